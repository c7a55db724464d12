"""Spark for the tests of the pipeline."""

from tests.spark.quick import pytest_runtest_teardown, spark

__all__ = ["pytest_runtest_teardown", "spark"]
