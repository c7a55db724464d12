"""The watch over what is expected, in a running server."""
