"""The archive in an object store: workers write there themselves; replays, deletes and restarts are as on a disk."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from aviso_server.lake.storage import table_uri
from aviso_server.lake.table import stream_folder
from aviso_server.model.filter import Filter
from tests.harness import Server
from tests.harness.objects import BUCKET, FaultyWay, environment, store_running
from tests.spark.archive.keeping import Pipeline, in_log
from tests.spark.scene import CONFIGURATION, publish_floods


def replayed(pipeline: Pipeline, last: int) -> pa.Table:
    """What a replay out of the archive brings."""
    return pipeline.replay(Filter("flood", "floods", "floods"), 1, last)


@pytest.mark.long  # a server with a Spark of its own
def test_archiving_replays_and_deletes(tmp_path: Path) -> None:
    with store_running(tmp_path) as store, Server(CONFIGURATION, tmp_path / "server") as server:
        way = FaultyWay(store.port)
        way.refuse_every = 40  # now and then
        variables = environment(way.url)
        pipeline = Pipeline(server.url, tmp_path / "pipeline", environment=variables)
        pipeline.archive = f"s3a://{BUCKET}/archive"
        try:
            publish_floods(server, 1, 200)
            pipeline.start()
            pipeline.until_archived("floods", 200, 400)
            assert replayed(pipeline, 200).equals(in_log(server, "flood"))
            assert pipeline.ask("delete", stream="floods", sequences=[5]) == {"deleted": [5], "early": []}
            assert 5 not in replayed(pipeline, 200)["sequence"].to_pylist()
            pipeline.kill()
            publish_floods(server, 201, 260)
            pipeline.start()
            pipeline.until_archived("floods", 260, 400)
        finally:
            pipeline.kill()
            way.close()
        folder = table_uri(stream_folder(pipeline.archive, "floods"))
        options = {"AWS_ALLOW_HTTP": "true", **environment(store.url)}
        rows = DeltaTable(folder, storage_options=options).to_pyarrow_table()
        assert sorted(rows["sequence"].to_pylist()) == [number for number in range(1, 261) if number != 5]
        assert not list((tmp_path / "pipeline" / "work").rglob("*.parquet")), "nothing goes through the driver's disk"
