"""The commands of `aviso-server`, by what they are about."""

__all__: list[str] = []
