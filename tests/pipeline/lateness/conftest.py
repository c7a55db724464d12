"""Spark for the tests of learning."""

from tests.pipeline.quick import pytest_runtest_teardown, spark

__all__ = ["pytest_runtest_teardown", "spark"]
