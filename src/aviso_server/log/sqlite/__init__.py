"""The log in an SQLite database."""
