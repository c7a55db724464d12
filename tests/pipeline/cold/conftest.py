"""Spark for the tests of cold replay."""

from tests.pipeline.quick import pytest_runtest_teardown, spark

__all__ = ["pytest_runtest_teardown", "spark"]
