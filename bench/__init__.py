"""Benchmarks of aviso-server against rivals in the same run. `README.md` says how to read them."""
