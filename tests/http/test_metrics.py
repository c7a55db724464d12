"""The metrics port: every series of the contract and ours, with their labels, zeros and bounds."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from aviso_server.http.metrics import SERIES
from tests.harness import Client, Server, StartFailed
from tests.harness.client import body
from tests.harness.metrics import Scrape, scrape, with_metrics

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
DASHBOARD = json.loads((ROOT / "deploy" / "grafana" / "dashboard.json").read_text(encoding="utf-8"))

# name -> labels, as the contract lists them
CONTRACT = {
    "aviso_build_info": {"version"},
    "aviso_http_requests_total": {"route", "method", "status_code"},
    "aviso_http_request_duration_seconds": {"route", "method"},
    "aviso_http_requests_in_flight": {"method"},
    "aviso_backend_operations_total": {"backend", "operation", "outcome"},
    "aviso_backend_operation_duration_seconds": {"backend", "operation", "outcome"},
    "aviso_notifications_total": {"event_type", "status"},
    "aviso_sse_connections_active": {"route", "event_type"},
    "aviso_sse_connections_total": {"route", "event_type"},
    "aviso_sse_unique_users_active": {"route"},
    "aviso_sse_events_sent_total": {"route", "event_type"},
    "aviso_sse_stream_errors_total": {"route", "event_type"},
    "aviso_sse_connection_duration_seconds": {"route"},
    "aviso_auth_requests_total": {"mode", "outcome"},
    "aviso_ecpds_cache_hits_total": set(),
    "aviso_ecpds_cache_misses_total": set(),
    "aviso_ecpds_cache_size": set(),
    "aviso_ecpds_access_decisions_total": {"outcome"},
    "aviso_ecpds_fetch_total": {"outcome"},
    "aviso_otlp_suppressed_log_records_total": set(),
    "aviso_otlp_export_failures_total": set(),
}

CONFIG: dict[str, Any] = {
    "application": {"host": "127.0.0.1", "port": 0},
    "notification_backend": {"kind": "sqlite", "sqlite": {"path": "log"}},
    "notification_schema_strict": False,
    "limits": {"max_polygon_vertices": 5, "max_identifier_bytes": 2000},
    "notification_schema": {
        "tide": {
            "topic": {"base": "tides", "key_order": ["port"]},
            "identifier": {"port": {"type": "StringHandler", "required": True}},
        },
        "area": {
            "topic": {"base": "areas", "key_order": ["port"]},
            "identifier": {
                "port": {"type": "StringHandler", "required": True},
                "polygon": {"type": "PolygonHandler", "required": True},
            },
        },
    },
}


class Metered:
    """A server and its metrics."""

    def __init__(self, server: Server, port: int) -> None:
        self.server = server
        self.port = port
        self.api = server.client

    def scrape(self) -> Scrape:
        return scrape(self.server, self.port)


@pytest.fixture(scope="module")
def metered(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Metered]:
    config = with_metrics(CONFIG)
    with Server(config, tmp_path_factory.mktemp("metered")) as server:
        yield Metered(server, config["metrics"]["port"])


def test_zeros_before_anything_happened(tmp_path: Path) -> None:
    config = with_metrics({**CONFIG, "notification_schema_strict": True})
    with Server(config, tmp_path) as server:
        fresh = scrape(server, config["metrics"]["port"])
    for mode in ("direct", "trusted_proxy"):
        for outcome in ("success", "unauthorized", "forbidden", "service_unavailable"):
            assert fresh.value("aviso_auth_requests_total", mode=mode, outcome=outcome) == 0
    for name, status in [("unknown", "error"), ("unknown", "rejected"), ("tide", "success"), ("tide", "error")]:
        assert fresh.value("aviso_notifications_total", event_type=name, status=status) == 0
    for operation in ("publish", "get_batch", "wipe_stream", "wipe_all", "delete_message"):
        for outcome in ("ok", "error"):
            labels = {"backend": "sqlite", "operation": operation, "outcome": outcome}
            assert fresh.value("aviso_backend_operations_total", **labels) == 0
    decisions = ["allow", "deny_destination", "deny_match_key_missing", "unavailable", "admin_bypass", "error"]
    assert fresh.labels("aviso_ecpds_access_decisions_total", "outcome") == set(decisions)
    fetches = ["success", "http_401", "http_403", "http_4xx", "http_5xx", "invalid_response", "unreachable"]
    assert fresh.labels("aviso_ecpds_fetch_total", "outcome") == set(fetches)
    buckets = fresh.labels("aviso_sse_connection_duration_seconds_bucket", "le") - {"+Inf"}
    assert sorted(map(float, buckets)) == [1, 5, 15, 30, 60, 300, 900, 1800, 3600, 7200, 14400, 28800, 43200, 86400]


def test_every_series_is_exported_with_its_labels(metered: Metered) -> None:
    metered.api.publish("tide", {"port": "dover"})
    metered.api.replay("tide", {"port": "dover"})
    with metered.api.watch("tide", {"port": "dover"}) as stream:
        stream.next()
        found = metered.scrape()
    exported: dict[str, set[str]] = {}
    for family in found.families.values():
        for sample in family.samples:
            name = re.sub(r"_(bucket|count|sum)$", "", sample.name) if family.type == "histogram" else sample.name
            exported.setdefault(name, set()).update(set(sample.labels) - {"le"})
    ours = {name: labels for name, labels in exported.items() if not name.startswith("process_")}
    assert ours == {name: set(series.labels) for name, series in SERIES.items()}
    assert {name: ours[name] for name in CONTRACT} == CONTRACT
    assert "process_resident_memory_bytes" in exported
    assert "process_open_fds" in exported
    assert found.value("process_threads") >= 1


def test_requests_by_route(metered: Metered) -> None:
    before = metered.scrape()
    metered.api.get("/health")
    metered.api.get("/api/v1/schema/tide")
    metered.api.get("/api/v1/schema/nobody")
    metered.api.delete("/api/v1/admin/notification/tide@999999")
    metered.api.get("/static/nothing/here.txt")
    metered.api.get("/nowhere/at/all")
    metered.api.request("PUT", "/health")
    metered.api.request("PROPFIND", "/health")
    after = metered.scrape()

    def added(**labels: str) -> float:
        name = "aviso_http_requests_total"
        return after.total(name, **labels) - before.total(name, **labels)

    assert added(route="/health", method="GET", status_code="200") == 1
    assert added(route="/api/v1/schema/{event_type}", status_code="200") == 1
    assert added(route="/api/v1/schema/{event_type}", status_code="404") == 1
    assert added(route="/api/v1/admin/notification/{notification_id}", method="DELETE", status_code="404") == 1
    assert added(route="/static/{path}", status_code="404") == 1
    assert added(route="unmatched", status_code="404") == 3
    assert added(route="unmatched", method="other") == 1
    assert after.total("aviso_http_requests_in_flight") == 0
    # the duration counts each request once
    name = "aviso_http_request_duration_seconds_count"
    assert after.total(name) - before.total(name) == 8


def test_publish_outcomes(metered: Metered) -> None:
    before = metered.scrape()
    api = metered.api
    api.publish("tide", {"port": "dover"})
    api.publish("nobody-configured-this", {"a": "b"})
    assert api.answer("notification", b"{").status == 400
    assert api.notify("tide", {}).status == 400
    assert api.notify("tide", {"port": "x", "point": "1,1"}).status == 400
    assert api.answer("notification", b" " * 300_000).status == 413
    after = metered.scrape()

    def added(event_type: str, status: str) -> float:
        labels = {"event_type": event_type, "status": status}
        return after.total("aviso_notifications_total", **labels) - before.total("aviso_notifications_total", **labels)

    assert added("tide", "success") == 1
    assert added("generic", "success") == 1
    assert added("unknown", "error") == 1
    assert added("tide", "error") == 2
    assert after.total("aviso_notifications_total") - before.total("aviso_notifications_total") == 5  # 413 is not one
    published = {"operation": "publish", "outcome": "ok", "backend": "sqlite"}
    name = "aviso_backend_operations_total"
    assert after.value(name, **published) - before.value(name, **published) == 2
    sizes = "aviso_log_commit_size_sum"
    assert after.value(sizes) - before.value(sizes) == 2


def test_strict_servers_count_unknown_event_types_as_rejected(tmp_path: Path) -> None:
    config = with_metrics({**CONFIG, "notification_schema_strict": True})
    with Server(config, tmp_path) as server:
        assert server.client.notify("nobody", {}).status == 400
        found = scrape(server, config["metrics"]["port"])
    assert found.value("aviso_notifications_total", event_type="unknown", status="rejected") == 1


def test_streams(metered: Metered) -> None:
    api = metered.api
    before = metered.scrape()
    watch = {"route": "/api/v1/watch", "event_type": "tide"}
    with api.watch("tide", {"port": "hull"}) as first, api.watch("tide", {"port": "hull"}) as second:
        for stream in (first, second):
            stream.next()
        api.publish("tide", {"port": "hull"})
        for stream in (first, second):
            while stream.next().kind != "notification":
                pass
        during = metered.scrape()
        assert during.value("aviso_sse_connections_active", **watch) == 2
        assert during.value("aviso_watchers", event_type="tide", state="live") == 2
        assert during.value("aviso_index_filters", event_type="tide") == 1  # both want the same
    sent = "aviso_sse_events_sent_total"
    assert during.total(sent, **watch) - before.total(sent, **watch) == 2
    matches = "aviso_live_matches_total"
    assert during.total(matches, event_type="tide") - before.total(matches, event_type="tide") == 1
    api.replay("tide", {"port": "hull"})
    after = metered.scrape()
    replay = {"route": "/api/v1/replay", "event_type": "tide"}
    assert after.total(sent, **replay) - before.total(sent, **replay) == 1
    opened = "aviso_sse_connections_total"
    assert after.total(opened, **replay) - before.total(opened, **replay) == 1
    assert after.total(opened, **watch) - before.total(opened, **watch) == 2
    durations = "aviso_sse_connection_duration_seconds_count"
    assert after.total(durations, route="/api/v1/replay") - before.total(durations, route="/api/v1/replay") == 1


def test_what_the_log_holds(metered: Metered) -> None:
    metered.api.wipe_all()
    start = metered.scrape().value("aviso_log_last_sequence", event_type="tide")
    for _ in range(3):
        metered.api.publish("tide", {"port": "dover"})
    metered.api.publish("some-generic", {"a": "b"})
    found = metered.scrape()
    assert found.value("aviso_log_notifications", event_type="tide") == 3
    assert found.value("aviso_log_first_sequence", event_type="tide") == start + 1
    assert found.value("aviso_log_last_sequence", event_type="tide") == start + 3
    assert found.value("aviso_log_notifications", event_type="generic") == 1
    assert found.value("aviso_log_bytes", event_type="generic") > 0


def test_labels_are_bounded_whatever_clients_send(metered: Metered) -> None:
    for number in range(20):
        metered.api.publish(f"made-up-{number}", {"a": "b"})
        metered.api.get(f"/made/up/{number}")
        metered.api.get(f"/api/v1/schema/made-up-{number}")
        metered.api.request(f"VERB{number}", "/health")
        with metered.api.watch(f"made-up-{number}", {"a": "b"}) as stream:
            stream.next()
    found = metered.scrape()
    assert "made" not in str(found.samples.keys())
    assert "VERB" not in str(found.samples.keys())


def test_metrics_port_answers_nothing_else(metered: Metered) -> None:
    client = Client(metered.server.host, metered.port)
    for method, path in [("POST", "/metrics"), ("HEAD", "/metrics"), ("GET", "/"), ("GET", "/metrics/")]:
        response = client.request(method, path)
        assert (response.status, response.body) == (404, b"")
        assert response.header("x-request-id")
    assert metered.api.get("/metrics").status == 404


def test_a_metrics_port_in_use_stops_the_start(metered: Metered, tmp_path: Path) -> None:
    config = {**CONFIG, "metrics": {"enabled": True, "port": metered.port}}
    with pytest.raises(StartFailed) as failed:
        Server(config, tmp_path).start()
    assert "startup.metrics.failed" in failed.value.output
    assert failed.value.exit_code == 1


@pytest.mark.parametrize(
    ("event_type", "identifier", "status", "limit"),
    [
        ("area", {"port": "x", "polygon": "(0,0,0,1,1,1,1,0,0.5,-1,0.2,0.1,0,0)"}, 400, "polygon_vertices"),
        ("tide", {"port": "x" * 3000}, 413, "identifier_bytes"),
        ("tide", {"port": "x" * 300_000}, 413, "body_bytes"),
    ],
)
def test_sizes_that_are_refused_are_counted(
    metered: Metered, event_type: str, identifier: dict[str, str], status: int, limit: str
) -> None:
    before = metered.scrape().value("aviso_limit_refusals_total", limit=limit)
    assert metered.api.notify(event_type, identifier).status == status
    watched = metered.api.answer("watch", body(event_type, identifier))
    assert watched.status == status
    assert metered.scrape().value("aviso_limit_refusals_total", limit=limit) == before + 2


def test_every_series_is_documented() -> None:
    rows = dict(re.findall(r"^\| `(aviso_\w+)` \| \w+ \| ([^|]+) \|", PAGE, re.MULTILINE))
    documented = {name: tuple(re.findall(r"`(\w+)`", labels)) for name, labels in rows.items()}
    assert documented == {name: series.labels for name, series in SERIES.items()}


def expressions(node: Any) -> Iterator[str]:
    """Every query in the dashboard, also of variables."""
    if isinstance(node, dict):
        for key, value in node.items():
            if key in ("expr", "query", "definition") and isinstance(value, str):
                yield value
            else:
                yield from expressions(value)
    elif isinstance(node, list):
        for item in node:
            yield from expressions(item)


def test_every_query_of_the_dashboard_names_a_series_we_export() -> None:
    queries = [query for query in expressions(DASHBOARD) if query != "prometheus"]
    assert len(queries) > 15
    exported = set(SERIES) | {
        f"{name}{end}" for name, series in SERIES.items() if series.kind == "histogram" for end in ("_bucket", "_count")
    }
    for query in queries:
        named = re.findall(r"\b(?:aviso|process)_\w+", query)
        assert named, f"no series in {query}"
        for name in named:
            assert name.startswith("process_") or name in exported, f"{name} in {query}"
        for name, selector in re.findall(r"\b(aviso_\w+)\{([^}]*)\}", query):
            series = SERIES[re.sub(r"_(bucket|count)$", "", name) if name not in SERIES else name]
            assert set(re.findall(r"(\w+)\s*(?:=~|!=|!~|=)", selector)) <= {*series.labels, "instance", "job"}, query
        grouped = re.findall(r"\bby\s*\(([^)]*)\)", query)
        known = {label for name in named if name in SERIES for label in SERIES[name].labels} | {"le", "instance", "job"}
        known |= {
            label
            for name in named
            for label in getattr(SERIES.get(re.sub(r"_(bucket|count)$", "", name)), "labels", ())
        }
        for labels in grouped:
            assert {label.strip() for label in labels.split(",")} <= known, query
