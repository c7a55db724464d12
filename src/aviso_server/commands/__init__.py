"""The commands of `aviso-server`, one module each."""

__all__: list[str] = []
