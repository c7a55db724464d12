"""Insight: tables that say what was published, when, where and how late. Spark makes them; here they are read."""
