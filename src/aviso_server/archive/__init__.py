"""The server's side of the archive: it looks after the process that has Spark, and asks it over Arrow Flight."""
