"""Whatever is killed with -9 at whatever moment: every notification is archived once, and as it was."""

from __future__ import annotations

import http.client
import random
import threading
import time
from pathlib import Path

import pytest

from tests.harness import Server
from tests.harness.patience import PATIENCE
from tests.spark.archive.keeping import Pipeline, archived, in_log, until
from tests.spark.scene import CONFIGURATION, flood, tide

pytestmark = pytest.mark.long  # Java starts again after each kill


# what is killed, and whether the pipeline is just starting up then
VICTIMS = [
    ("server", False),
    ("pipeline", False),
    ("java", True),
    ("pipeline", True),
    ("server", False),
    ("java", False),
]


class Publisher:
    """Publishes floods and tides for as long as it is let, over restarts of the server."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._publish)
        self.sent = 0

    def __enter__(self) -> Publisher:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _publish(self) -> None:
        while not self._done.is_set():
            numbers = range(self.sent + 1, self.sent + 21)
            try:
                self._server.client.publish_many("flood", [(flood(number), {"n": number}) for number in numbers])
                self._server.client.publish("tide", tide(self.sent), self.sent)
            except (OSError, http.client.HTTPException):
                time.sleep(0.05)  # it is being started again
            else:
                self.sent += len(numbers)
            time.sleep(0.02)


def test_nothing_is_lost_or_doubled_by_any_kill(tmp_path: Path) -> None:
    chance = random.Random(4)
    with Server(CONFIGURATION, tmp_path / "server") as server:
        server.environment["AVISOSERVER_APPLICATION__PORT"] = str(server.port)  # where the pipeline looks for it
        with Pipeline(server.url, tmp_path / "pipeline") as pipeline:
            with Publisher(server):
                for victim, starting in VICTIMS:
                    if not starting:
                        grow(pipeline)
                    time.sleep(chance.uniform(0.0, 8.0 if starting else 0.6))
                    if victim == "server":
                        server.kill()
                        time.sleep(chance.uniform(0.0, 0.5))
                        server.start()
                    elif victim == "pipeline":
                        pipeline.kill()
                        pipeline.start()
                    else:
                        pipeline.kill_java()
                        assert pipeline.wait() == 4, pipeline.last_words()
                        pipeline.start()
            for event_type, stream in (("flood", "floods"), ("tide", "tide")):
                log = in_log(server, event_type)
                pipeline.until_archived(stream, log.num_rows)
                assert log.column("sequence").to_pylist() == list(range(1, log.num_rows + 1))
                assert archived(pipeline.archive, stream).equals(log)
    drafts = list((tmp_path / "pipeline" / "archive").rglob("_draft-*"))
    assert drafts == [], "the next job was to remove what killed ones left"


def grow(pipeline: Pipeline) -> None:
    """Wait until the archive is growing."""
    before = pipeline.archived("floods")
    until(lambda: pipeline.archived("floods") > before, 5 * PATIENCE, pipeline.last_words)
