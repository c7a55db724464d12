"""Spark: the `aviso` data source, and sessions to use it in."""
