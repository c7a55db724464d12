"""Bulk load: files of notifications, checked by the rules of the model and published, or made the past of a stream."""
