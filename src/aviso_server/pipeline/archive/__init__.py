"""The archive: Parquet files that hold what the log once held."""
