"""The bridge: how the server, which knows nothing of Spark, asks the process that does."""
