"""Insight: what Spark counts in the archive, kept up to date step by step."""
