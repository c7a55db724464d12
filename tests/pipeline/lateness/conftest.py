"""One Spark session for all tests of lateness."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from aviso_server.pipeline.session import open_session


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    settings = {"spark.driver.memory": "1g", "spark.sql.shuffle.partitions": "2"}
    session = open_session(tmp_path_factory.mktemp("spark"), "local[2]", settings=settings)
    yield session
    session.stop()
