"""The lake under fire: servers, Spark's processes and the object store die while everybody is at work.

    make test ARGS=tests/faults/test_lake.py     a few kills
    make soak-lake                               200 kills, with a schedule that is new each time; KILLS= says how many
    FAULT_SEED=17 make soak-lake                 the schedule that a run printed

Publishers publish, somebody deletes, somebody replays all of history again and again, another process compacts. Only a
few notifications stay in the log, so that history comes out of the lake. At every step: what was acknowledged is
replayed, once and in order, what was deleted is not, and another reader of the table counts what we count.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from random import Random
from typing import Any

import duckdb
import pytest
from deltalake import DeltaTable

from aviso_server.errors import PipelineError
from aviso_server.lake.compact import Compactor
from aviso_server.lake.storage import delta_options, table_uri
from aviso_server.lake.table import Table, Tables
from tests.faults import recorder
from tests.faults.recorder import EVENT_TYPE, Loop, Publisher
from tests.harness import Client, Server, StreamBroken
from tests.harness.broker import cluster, wait_until
from tests.harness.client import body
from tests.harness.objects import BUCKET, FaultyWay, environment, store_running

KILLS = int(os.environ.get("KILLS", "3"))
SEED = int(os.environ.get("FAULT_SEED", "1"))
IN_LOG = 40  # notifications that stay in the log
ROOT = f"s3://{BUCKET}/lake"
PATIENCE = 300.0  # seconds until Spark has started again, on a busy machine

pytestmark = pytest.mark.long  # Java starts again after most of the kills


def with_archive(configuration: dict[str, Any]) -> dict[str, Any]:
    """The same server, with its history in the lake."""
    schema = {**recorder.SCHEMA[EVENT_TYPE], "storage_policy": {"allow_duplicates": True, "max_messages": IN_LOG}}
    archive = {"enabled": True, "path": ROOT, "work_path": "work", "interval": "1s", "spark": "local[2]"}
    return {
        **configuration,
        "archive": archive,
        "insight": {"enabled": False},
        "notification_schema": {EVENT_TYPE: schema},
    }


class Deleter(Loop):
    """Deletes one notification after the other that a replay has shown."""

    def __init__(self, server: Server, chance: Random) -> None:
        super().__init__()
        self.seen: list[int] = []  # sequences to choose from
        self.deleted: set[int] = set()
        self.doubtful: set[int] = set()  # that may be gone
        self._server = server
        self._chance = chance

    def run(self) -> None:
        while not self.stopping.wait(self._chance.uniform(0.2, 1.0)):
            left = [each for each in self.seen if each not in self.deleted and each not in self.doubtful]
            if not left:
                continue
            sequence = self._chance.choice(left)
            self.doubtful.add(sequence)
            with suppress(OSError, EOFError, StreamBroken):
                client = Client(self._server.host, self._server.port, timeout=60)
                if client.delete(f"/api/v1/admin/notification/{EVENT_TYPE}@{sequence}").status == 200:
                    self.deleted.add(sequence)


class Historian(Loop):
    """Replays all of history again and again, and judges every replay that says that it is complete."""

    def __init__(self, servers: Sequence[Server], publishers: Sequence[Publisher], deleter: Deleter | None) -> None:
        super().__init__()
        self.complete = 0
        self.broken = 0
        self._servers = servers
        self._publishers = publishers
        self._deleter = deleter
        self._payloads: dict[int, str] = {}

    def run(self) -> None:
        while not self.stopping.wait(1.0):
            for server in self._servers:
                self.look(server)

    def look(self, server: Server) -> bool:
        """One replay; False if it did not come to its end."""
        acknowledged = {payload for each in self._publishers for payload in list(each.acknowledged)}
        gone = set() if self._deleter is None else set(self._deleter.deleted)
        found: list[dict[str, Any]] = []
        with suppress(OSError, EOFError, StreamBroken):
            client = Client(server.host, server.port, timeout=120)
            with client.open("replay", body(EVENT_TYPE, {}, from_id="1")) as stream:
                if stream.status == 200:
                    stream.rest()
                    if stream.kinds[-2:] == ["replay_completed", "connection-closing"]:
                        found = stream.notifications
        if not found:
            self.broken += 1
            return False
        sequences = [each["sequence"] for each in found]
        payloads = {each["sequence"]: each["data"]["payload"] for each in found}
        assert sequences == sorted(set(sequences)), "each once, and in order"
        assert len(set(payloads.values())) == len(payloads), "nothing is stored twice"
        assert all(self._payloads.get(sequence, payload) == payload for sequence, payload in payloads.items())
        assert not gone & set(sequences), f"deleted and back: {sorted(gone & set(sequences))[:5]}"
        self._payloads |= payloads
        missing = acknowledged - set(payloads.values())
        if self._deleter is not None:
            missing -= {self._payloads[each] for each in list(self._deleter.doubtful)}
            self._deleter.seen = sequences
        assert not missing, f"acknowledged and not replayed: {sorted(missing)[:5]}"
        self.complete += 1
        return True


class OutsideCompactor(Loop):
    """Merges all it can beside the server, as `aviso-server pipeline compact` does."""

    def __init__(self, tables: Tables) -> None:
        super().__init__()
        self.merged = 0
        self._tables = tables

    def run(self) -> None:
        while not self.stopping.wait(2.0):
            with suppress(PipelineError, OSError):
                for _ in Compactor(self._tables).run(everything=True):
                    self.merged += 1


class Outsider:
    """Another reader of the table: what it counts is what we count."""

    def __init__(self, url: str, patch: pytest.MonkeyPatch) -> None:
        for name, value in environment(url).items():
            patch.setenv(name, value)
        self.table = Table(ROOT, EVENT_TYPE)

    def compare(self) -> int:
        """Count the same version in three ways."""
        snapshot = self.table.snapshot()
        if snapshot.version < 0:
            return 0
        assert snapshot.missing == []
        folder, options = table_uri(self.table.folder), delta_options(self.table.folder)
        delta = DeltaTable(folder, version=snapshot.version, storage_options=options)
        rows = delta.to_pyarrow_dataset()
        with duckdb.connect() as connection:
            connection.register("rows", rows)
            found = connection.execute("select count(*), count(distinct sequence), max(sequence) from rows")
            counted = found.fetchone()
        ours = sum(each.rows for each in snapshot.files)
        assert counted is not None
        assert (rows.count_rows(), counted[0], counted[1]) == (ours, ours, ours)
        assert (counted[2] or 0) <= snapshot.watermark
        return ours


def processes_of(server: Server) -> dict[str, list[int]]:
    """The processes below a server that Spark needs: the driver, its Java, and Python workers."""
    found: dict[str, list[int]] = {"driver": [], "java": [], "worker": []}
    parents: dict[int, int] = {}
    words: dict[int, bytes] = {}
    for place in Path("/proc").iterdir():
        if place.name.isdigit():
            with suppress(OSError, IndexError):
                parents[int(place.name)] = int((place / "stat").read_text().rpartition(")")[2].split()[1])
                words[int(place.name)] = (place / "cmdline").read_bytes()
    family, added = {server.pid}, True
    while added:
        more = {child for child, parent in parents.items() if parent in family} - family
        family, added = family | more, bool(more)
    for pid in family - {server.pid}:
        command = words.get(pid, b"")
        if b"aviso_server.spark.process" in command:
            found["driver"].append(pid)
        elif b"org.apache.spark" in command:
            found["java"].append(pid)
        elif b"pyspark" in command:
            found["worker"].append(pid)
    return found


class Scene:
    """A server with its lake, and what can be killed of it."""

    def __init__(self, server: Server, way: FaultyWay, chance: Random) -> None:
        self.server = server
        self._way = way
        self._chance = chance

    def kill(self, victim: str) -> None:
        """Kill something as soon as it is there, and start again what nobody else would."""
        if victim == "server":
            self.server.kill()
            time.sleep(self._chance.uniform(0.0, 0.5))
            self.server.start(PATIENCE)
        elif victim == "store":
            self._way.cut()
            time.sleep(self._chance.uniform(0.1, 3.0))
            self._way.mend()
        else:
            deadline = time.monotonic() + PATIENCE
            while not self._kill_one(processes_of(self.server)[victim]):
                assert time.monotonic() < deadline, f"no {victim} in {PATIENCE:g} s: {self.ready()}"
                time.sleep(0.3)

    def _kill_one(self, processes: Sequence[int]) -> bool:
        """Kill one of the processes; False if there is none."""
        with suppress(ProcessLookupError, IndexError):
            os.kill(self._chance.choice(processes), signal.SIGKILL)
            return True
        return False

    def archived(self) -> int:
        """How far the archive is, as the server says."""
        with suppress(OSError, KeyError, ValueError, EOFError):
            streams = self.server.client.get("/ready").json()["archive"]["streams"]
            return int(streams.get(EVENT_TYPE, {"last": 0})["last"])
        return 0

    def wait_until_archived(self, sequence: int) -> None:
        """Wait until the archive has a sequence; fail with what the server says."""
        deadline = time.monotonic() + PATIENCE
        while self.archived() < sequence:
            if time.monotonic() > deadline:
                pytest.fail(f"not archived in {PATIENCE:g} s: {sequence}\n{self.ready()}\n{self.server.stderr[-3000:]}")
            time.sleep(0.1)

    def ready(self) -> str:
        """What the server says about itself."""
        return self.server.client.get("/ready").body.decode()


@contextmanager
def scene(directory: Path, chance: Random, patch: pytest.MonkeyPatch) -> Iterator[tuple[Scene, Outsider]]:
    """A server whose lake is in an object store."""
    with store_running(directory) as store:
        way = FaultyWay(store.port)
        configuration = recorder.configuration("nats://127.0.0.1:1")
        configuration["notification_backend"] = {"kind": "sqlite", "sqlite": {"path": "log"}}
        server = Server(with_archive(configuration), directory / "server", environment(way.url))
        try:
            server.start(PATIENCE)
            yield Scene(server, way, chance), Outsider(store.url, patch)
        finally:
            server.stop(PATIENCE)
            way.close()


@pytest.mark.timeout(1200 + 120 * KILLS)
def test_whatever_is_killed_history_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    print(f"FAULT_SEED={SEED} KILLS={KILLS}", flush=True)
    chance = Random(SEED)
    victims = _schedule(chance)
    with scene(tmp_path, chance, monkeypatch) as (running, outsider), ExitStack() as clients:
        server = running.server
        publishers = [clients.enter_context(Publisher(name, [server], 0.2)) for name in ("a", "b")]
        deleter = clients.enter_context(Deleter(server, Random(SEED + 1)))
        historian = clients.enter_context(Historian([server], publishers, deleter))
        compactor = clients.enter_context(OutsideCompactor(Tables(ROOT)))
        running.wait_until_archived(IN_LOG + 1)
        for number, victim in enumerate(victims, 1):
            if chance.random() < 0.6:  # else it may hit what is just starting again
                running.wait_until_archived(running.archived() + 1)
            time.sleep(chance.uniform(0.0, 2.0))
            running.kill(victim)
            counted = outsider.compare()
            print(
                f"{time.strftime('%H:%M:%S')} {number}: {victim}; {counted} rows, {len(deleter.deleted)} deleted, "
                f"{historian.complete} replays whole and {historian.broken} broken off, {compactor.merged} merges",
                flush=True,
            )
            assert not historian.failures, historian.failures
        for each in (deleter, *publishers):
            each.stop()
        historian.stop()
        compactor.stop()
        last = server.client.get("/api/v1/streams").json()["streams"][0]["last"]
        running.wait_until_archived(last)
        wait_until(lambda: historian.look(server), PATIENCE)
        assert outsider.compare() > 0
        audit(server)
        for each in publishers:
            assert each.acknowledged


def _schedule(chance: Random) -> list[str]:
    """Who is killed when: each kind about as often, in any order."""
    kinds = ["server", "java", "store", "driver", "worker"]
    victims = [kinds[place % len(kinds)] for place in range(KILLS)]
    chance.shuffle(victims)
    return victims


def audit(server: Server) -> None:
    """`aviso-server pipeline audit` finds nothing wrong."""
    done = subprocess.run(
        [
            *(sys.executable, "-m", "aviso_server", "pipeline", "audit", "--json"),
            *("--url", server.url, "--config", str(server.config_file)),
        ],
        cwd=server.directory,
        env={**os.environ, **server.environment},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert json.loads(done.stdout)["verdict"] == "clean"


@pytest.mark.timeout(1800)
def test_two_servers_on_one_broker_cluster_share_a_lake_and_either_may_die(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ExitStack() as stack:
        brokers = stack.enter_context(cluster(tmp_path / "brokers"))
        store = stack.enter_context(store_running(tmp_path))
        configuration = recorder.configuration(",".join(each.url for each in brokers), replicas=3)
        servers = []
        for name in ("one", "two"):
            server = Server(with_archive(configuration), tmp_path / name, environment(store.url))
            stack.callback(server.kill)
            servers.append(server.start(PATIENCE))
        outsider = Outsider(store.url, monkeypatch)
        publishers = [stack.enter_context(Publisher(each.directory.name, [each], 0.05)) for each in servers]
        historian = stack.enter_context(Historian(servers, publishers, None))
        wait_until(lambda: sorted(map(job, servers)) == ["running", "standby"], PATIENCE)
        for _ in range(2):  # first the one that archives, then the other, which archives by then
            holder = next(each for each in servers if job(each) == "running")
            other = next(each for each in servers if each is not holder)
            before = outsider.table.snapshot().watermark
            holder.kill()
            wait_until(lambda left=other: job(left) == "running", PATIENCE)  # type: ignore[misc]
            wait_until(lambda least=before: outsider.table.snapshot().watermark > least + IN_LOG, PATIENCE)  # type: ignore[misc]
            wait_until(lambda left=other: historian.look(left), PATIENCE)  # type: ignore[misc]
            holder.start(PATIENCE)
            wait_until(lambda back=holder: job(back) == "standby", PATIENCE)  # type: ignore[misc]
            wait_until(lambda back=holder: historian.look(back), PATIENCE)  # type: ignore[misc]
            outsider.compare()
        for each in publishers:
            each.stop()
        historian.stop()
        for server in servers:
            wait_until(lambda asked=server: historian.look(asked), PATIENCE)  # type: ignore[misc]
        assert outsider.compare() > IN_LOG


def job(server: Server) -> str:
    """What the archiver of a server does; empty if it does not say."""
    with suppress(OSError, KeyError, ValueError, EOFError, StreamBroken):
        return str(server.client.get("/ready").json()["archive"]["job"])
    return ""
