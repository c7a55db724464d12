"""Spark for the tests of insight."""

from tests.pipeline.quick import pytest_runtest_teardown, spark

__all__ = ["pytest_runtest_teardown", "spark"]
