"""aviso-server: notifications for data-driven workflows, live and replayed."""

__version__ = "0.1.0"

__all__ = ["__version__"]
