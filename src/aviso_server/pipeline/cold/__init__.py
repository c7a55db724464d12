"""Cold replay: notifications out of the archive, by Spark."""
