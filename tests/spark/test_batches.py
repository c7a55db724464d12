"""Publishing rows in batches: once each, whatever gets lost on the way."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from pyspark_aviso.errors import PipelineError
from pyspark_aviso.write import BatchLedger, Row, cut, publish, rows_of
from tests.harness import Server
from tests.spark.proxy import Proxy
from tests.spark.scene import CONFIGURATION, bare
from tests.spark.test_publishing import payloads, staged, tides


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    limits = {"limits": {"max_batch_bytes": 100_000}}
    with Server({**CONFIGURATION, **limits}, tmp_path_factory.mktemp("server")) as running:
        yield running


@pytest.fixture
def proxy(server: Server) -> Iterator[Proxy]:
    server.client.wipe_all()
    with Proxy(server) as running:
        yield running


@pytest.fixture
def write() -> str:
    """A name that no other test uses."""
    return os.urandom(8).hex()


def batches(proxy: Proxy) -> list[int]:
    """The sizes of the batches that were sent."""
    return [len(asked) for asked in proxy.asked_for("notifications") if asked]


def test_rows_are_published_in_order_in_few_requests(server: Server, proxy: Proxy, write: str) -> None:
    parts = [staged(proxy, tides(3, 10), partition=1), None, staged(proxy, tides(5), partition=0)]
    assert publish(bare(proxy.url), parts, write) == 8
    assert payloads(server) == [0, 1, 2, 3, 4, 10, 11, 12]
    assert batches(proxy) == [8]
    assert proxy.asked_for("notification") == []


def test_several_connections_publish_everything_once(server: Server, proxy: Proxy, write: str) -> None:
    rows = [{**row, "payload": f'"{row["payload"]}{"x" * 60}"'} for row in tides(2500)]
    assert publish(bare(proxy.url, connections="3"), [staged(proxy, rows)], write) == 2500
    assert sorted(int(payload.strip("x")) for payload in payloads(server)) == list(range(2500))
    assert max(batches(proxy)) <= 1000


def test_a_lost_answer_does_no_harm(server: Server, proxy: Proxy, write: str) -> None:
    proxy.lose_answers = 2
    assert publish(bare(proxy.url), [staged(proxy, tides(30))], write) == 30
    assert batches(proxy) == [30, 30, 30]
    assert payloads(server) == list(range(30))


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_server_that_cannot_now_is_asked_again(server: Server, proxy: Proxy, write: str, status: int) -> None:
    proxy.fail_with = [status, status]
    assert publish(bare(proxy.url), [staged(proxy, tides(2))], write) == 2
    assert payloads(server) == [0, 1]


@pytest.mark.parametrize("status", [400, 401, 403])
def test_other_answers_end_it(server: Server, proxy: Proxy, write: str, status: int) -> None:
    proxy.fail_with = [status]
    with pytest.raises(PipelineError, match=rf"at least 0 of 2 rows, then stopped: row 0 .*status {status}"):
        publish(bare(proxy.url), [staged(proxy, tides(2))], write)
    assert payloads(server) == []


def test_a_server_that_never_answers(proxy: Proxy, write: str) -> None:
    proxy.lose_answers = 9
    with pytest.raises(PipelineError, match="row 0 of partition 0 and 3 more: not known to be published"):
        publish(bare(proxy.url), [staged(proxy, tides(4))], write)


def test_what_is_too_much_for_one_request_is_halved(server: Server, proxy: Proxy, write: str) -> None:
    rows = [{**row, "payload": '"' + "x" * 3000 + '"'} for row in tides(100)]
    assert publish(bare(proxy.url), [staged(proxy, rows)], write) == 100
    assert batches(proxy)[0] == 100
    assert len(payloads(server)) == 100


def test_the_same_write_again_publishes_nothing_more(server: Server, proxy: Proxy, write: str) -> None:
    rows = [*tides(4), tides(1)[0]]  # the same content twice is two notifications
    part = staged(proxy, rows)
    assert publish(bare(proxy.url), [part], write) == 5
    assert publish(bare(proxy.url), [part], write) == 5
    swapped = [staged(proxy, rows[3:], partition=0), staged(proxy, rows[:3], partition=1)]
    assert publish(bare(proxy.url), swapped, write) == 5, "in another order it is the same write"
    assert sorted(payloads(server)) == [0, 0, 1, 2, 3]
    assert publish(bare(proxy.url), [part], f"{write} other") == 5
    assert len(payloads(server)) == 10


def test_a_ledger_that_lost_its_last_lines(server: Server, proxy: Proxy, tmp_path: Path, write: str) -> None:
    ledger = BatchLedger(tmp_path, 7)
    publish(bare(proxy.url), [staged(proxy, tides(4))], write, ledger)
    ledger.close()
    file = tmp_path / "7"
    file.write_bytes(file.read_bytes()[:40])  # killed after the answer
    again = BatchLedger(tmp_path, 7)
    assert publish(bare(proxy.url), [staged(proxy, tides(4))], write, again) == 3
    again.close()
    assert payloads(server) == [0, 1, 2, 3]
    assert len(file.read_bytes().split()) == 4


def test_pieces_hold_all_rows_once() -> None:
    rows = [Row(0, place, b"x" * size, b"", "") for place, size in enumerate([3_000_000, 2_000_000, *[10] * 2500])]
    pieces = list(cut(rows, (len(row.request) for row in rows)))
    assert [row for piece in pieces for row in piece] == rows
    assert all(len(piece) <= 1000 for piece in pieces)
    assert [len(piece) for piece in pieces] == [1, 1000, 1000, 501]
    assert list(cut([], [])) == []


def test_keys_differ_between_rows_and_writes(proxy: Proxy) -> None:
    part = staged(proxy, [*tides(3), *tides(3)])
    keys = [row.key for write in ("a", "b", "a/1") for row in rows_of([part], write)]
    assert len(set(keys)) == len(keys) == 18
    assert [row.key for row in rows_of([part], "a")] == keys[:6]
