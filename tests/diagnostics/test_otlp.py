"""Export over OTLP against a collector: records, traces from publish to delivery, and a collector that is away."""

from __future__ import annotations

import logging
import threading
from pathlib import Path
from typing import Any

import pytest

from aviso_server.config.settings import Deployment, Otlp
from aviso_server.diagnostics.log_records import RecordCounts
from aviso_server.diagnostics.otlp import OtlpHandler, endpoint
from tests.harness import Server, StartFailed
from tests.harness.client import JSON, body
from tests.harness.collector import Collector, collecting, collecting_grpc
from tests.harness.metrics import free_port, scrape, with_metrics
from tests.harness.patience import PATIENCE

CONFIG: dict[str, Any] = {
    "application": {"host": "127.0.0.1", "port": 0},
    "notification_backend": {"kind": "sqlite", "sqlite": {"path": "log"}},
    "watch_endpoint": {"sse_heartbeat_interval_sec": 1},
}
FAST = {"OTEL_BSP_SCHEDULE_DELAY": "100"}


def exporting(port: int, protocol: str = "http") -> dict[str, Any]:
    otlp = {"enabled": True, "endpoint": f"127.0.0.1:{port}", "protocol": protocol, "traces": True}
    return with_metrics({**CONFIG, "logging": {"level": "info", "otlp": otlp}})


def named(collector: Collector, name: str) -> list[Any]:
    return [span for span in list(collector.spans) if span.name == name]


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_records_and_traces(tmp_path: Path, protocol: str) -> None:
    with collecting() if protocol == "http" else collecting_grpc() as collector:
        config = exporting(collector.port, protocol)
        trace = "0af7651916cd43dd8448eb211c80319c"
        routed = {"OTEL_RESOURCE_ATTRIBUTES": "team=sea,service.name=other"}
        with Server(config, tmp_path, {**FAST, **routed}) as server:
            with server.client.watch("tide", {"port": "dover"}) as stream:
                stream.next()
                headers = (*JSON, ("traceparent", f"00-{trace}-b7ad6b7169203331-01"))
                accepted = server.client.answer("notification", body("tide", {"port": "dover"}), headers)
                assert accepted.status == 200
                while stream.next().kind != "notification":
                    pass
            collector.wait(lambda: bool(named(collector, "deliver")))
            collector.wait(lambda: "api.watch.stream.established" in collector.events())
            refused = server.client.answer("notification", b"{")
            port = config["metrics"]["port"]
            assert scrape(server, port).value("aviso_otlp_export_failures_total") == 0
            assert scrape(server, port).value("aviso_otlp_suppressed_log_records_total") == 0
        written = server.stdout
    assert collector.services == {"aviso-server"}
    assert collector.teams == {"sea"}
    [commit], [deliver] = (named(collector, name) for name in ("commit", "deliver"))
    [publish] = [span for span in named(collector, "publish") if span.span_id == commit.parent_span_id]
    assert {span.trace_id.hex() for span in (publish, commit, deliver)} == {trace}
    assert publish.parent_span_id.hex() == "b7ad6b7169203331"
    assert commit.parent_span_id == deliver.parent_span_id == publish.span_id
    told = {each.key: each.value.string_value for each in publish.attributes}
    assert told["request_id"] == accepted.header("x-request-id")
    assert publish.start_time_unix_nano <= commit.start_time_unix_nano <= deliver.start_time_unix_nano
    # what was logged last is exported before the server is gone, and written to stdout all the same
    assert collector.events()[-1] == "startup.server.stopped"
    assert "startup.server.stopped" in written
    ids = [
        each.value.string_value
        for record in collector.records
        for each in record.attributes
        if each.key == "request_id"
    ]
    assert refused.header("x-request-id") in ids


def test_a_collector_that_is_away_disturbs_nobody(tmp_path: Path) -> None:
    config = exporting(free_port())
    with Server(config, tmp_path, FAST) as server:
        for _ in range(20):
            server.client.publish("tide", {"port": "dover"})
        port = config["metrics"]["port"]
        failures = 0.0
        for _ in range(100):
            failures = scrape(server, port).value("aviso_otlp_export_failures_total")
            if failures:
                break
            threading.Event().wait(0.2)
        assert failures > 0
        assert server.stop() == 0


def test_without_the_extra_the_start_says_what_to_install(tmp_path: Path) -> None:
    # a package that cannot be imported stands for one that is not there
    (tmp_path / "opentelemetry").mkdir()
    (tmp_path / "opentelemetry" / "__init__.py").write_text("raise ImportError('not here')\n")
    with pytest.raises(StartFailed) as failed:
        Server(exporting(free_port()), tmp_path / "server", {"PYTHONPATH": _with(tmp_path)}).start()
    assert failed.value.exit_code == 1
    assert "pip install 'aviso-server[otlp]'" in failed.value.output


def _with(directory: Path) -> str:
    return f"{directory}:{Path(__file__).parents[2] / 'src'}"


@pytest.mark.parametrize(
    ("given", "protocol", "signal", "address"),
    [
        ("collector:4317", "grpc", "logs", "http://collector:4317"),
        ("https://collector:4317", "grpc", "traces", "https://collector:4317"),
        ("collector:4318", "http", "logs", "http://collector:4318/v1/logs"),
        ("http://collector:4318/v1/logs", "http", "logs", "http://collector:4318/v1/logs"),
        ("http://collector:4318/v1/logs/", "http", "logs", "http://collector:4318/v1/logs"),
        ("http://collector:4318/v1/logs", "http", "traces", "http://collector:4318/v1/traces"),
        ("https://collector/otlp/", "http", "traces", "https://collector/otlp/v1/traces"),
    ],
)
def test_addresses(given: str, protocol: Any, signal: Any, address: str) -> None:
    assert endpoint(Otlp(True, given, protocol), signal) == address


@pytest.mark.parametrize(("enabled", "traces"), [(True, False), (False, True)])
def test_records_and_traces_have_a_switch_each(tmp_path: Path, enabled: bool, traces: bool) -> None:
    with collecting() as collector:
        config = exporting(collector.port)
        config["logging"]["otlp"] |= {"enabled": enabled, "traces": traces}
        with Server(config, tmp_path, FAST) as server:
            server.client.publish("tide", {"port": "dover"})
        # what is left is exported before the server is gone
    assert (bool(collector.records), bool(collector.spans)) == (enabled, traces)


class Slow:
    """An exporter that does not get on until it may."""

    def __init__(self) -> None:
        self.may = threading.Event()
        self.exported = 0

    def export(self, batch: list[Any]) -> None:
        self.may.wait(PATIENCE)
        self.exported += len(batch)

    def shutdown(self) -> None:
        pass


def test_what_a_slow_collector_cannot_take_is_counted_and_nobody_waits() -> None:
    records, slow = RecordCounts(), Slow()
    handler = OtlpHandler(slow, Deployment(), records)
    record = logging.makeLogRecord({"msg": "x", "levelno": logging.INFO, "name": "aviso_server"})
    for _ in range(20_000):
        handler.emit(record)
    assert records.not_exported > 10_000
    slow.may.set()
    handler.close()
    assert slow.exported + records.not_exported == 20_000


def test_records_with_a_secret_are_withheld_and_counted() -> None:
    records, slow = RecordCounts(), Slow()
    slow.may.set()
    handler = OtlpHandler(slow, Deployment(), records)
    plain = {"msg": "x", "levelno": logging.INFO, "name": "aviso_server"}
    for secret in ({"password": "hush"}, {"broker": "nats://user:hush@host"}, {"sent": {"api_key": "hush"}}):
        handler.emit(logging.makeLogRecord({**plain, **secret}))
    handler.emit(logging.makeLogRecord({**plain, "msg": "from nats://user:hush@host", "stream": "tide"}))
    handler.close()
    assert (slow.exported, records.withheld, records.not_exported) == (1, 3, 0)


def test_the_exporter_does_not_export_itself() -> None:
    records, slow = RecordCounts(), Slow()
    slow.may.set()
    handler = OtlpHandler(slow, Deployment(), records)
    handler.emit(logging.makeLogRecord({"msg": "x", "levelno": logging.INFO, "name": "opentelemetry.exporter"}))
    handler.close()
    assert slow.exported == 0
