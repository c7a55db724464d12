"""The lake: where notifications live for good, in one Delta table per stream."""
