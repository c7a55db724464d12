"""Lets `python -m aviso_server` do what the `aviso-server` command does."""

from __future__ import annotations

from aviso_server.cli import main

__all__: list[str] = []

if __name__ == "__main__":
    main()
