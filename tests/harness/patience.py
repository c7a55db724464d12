"""How long tests wait for what must happen."""

PATIENCE = 60.0
"""Seconds. Only a failing test waits that long, so the figure suits a crowded machine."""
