"""Connections to clients, below the application."""
