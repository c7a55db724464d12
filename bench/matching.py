"""Finding who wants a notification: the index against testing every filter, and its cost in a running server."""

from __future__ import annotations

import random
import statistics
import time
from functools import partial
from typing import Any

import msgspec

from aviso_server.delivery.index import FilterIndex
from aviso_server.model.event_type import EventType, read_point
from aviso_server.model.fields import Field, IntField, PolygonField, StringField
from aviso_server.model.filter import Filter, View
from aviso_server.model.notification import Notification
from bench import workload
from bench.machine import Bench, Measured
from bench.table import Row, alternate, compare

__all__ = ["population", "run"]

MATCHING = 10


class Interest(msgspec.Struct, eq=False):
    """Somebody with a filter."""

    wanted: Filter


def run(bench: Bench, quick: bool) -> list[Row]:
    """In process first, then over the wire."""
    rows = [in_process(count, quick) for count in ((100, 10_000) if quick else (100, 10_000, 100_000))]
    return [*rows, in_server(bench, quick)]


def in_process(count: int, quick: bool) -> Row:
    """Microseconds per notification, without sockets."""
    event_type = area_type()
    filters = population(event_type, count)
    index: FilterIndex[Interest] = FilterIndex()
    interests = [Interest(each) for each in filters]
    for interest in interests:
        index.add(interest)
    notifications = published(event_type, 20 if count > 10_000 else 200)
    matches = [len(index.match(View(each))) for each in notifications]  # builds what is built lazily, too
    for each, found in zip(notifications[:5], matches, strict=False):
        exact = sum(one.matches(each) for one in filters)
        if exact != found:
            raise RuntimeError(f"the index found {found} of {exact}")

    def indexed() -> float:
        start = time.perf_counter()
        for each in notifications:
            index.match(View(each))
        return (time.perf_counter() - start) / len(notifications) * 1e6

    def linear() -> float:
        few = notifications[: max(2, 200_000 // count)]
        start = time.perf_counter()
        for each in few:
            view = View(each)
            for one in filters:
                one.passes(view)
        return (time.perf_counter() - start) / len(few) * 1e6

    results = alternate(3 if quick else 7, {"index": indexed, "linear": linear})
    return compare(
        "match",
        f"{count:,} filters",
        "µs per notification",
        results["index"],
        "testing each filter",
        results["linear"],
        lower_is_better=True,
        at_least=20 if count == 10_000 else None,
        note=f"{statistics.mean(matches) / count:.3%} of the filters match",
    )


def area_type() -> EventType:
    """An event type with texts, a number and an area."""
    fields: dict[str, Field] = {
        "source": StringField(required=False),
        "kind": StringField(required=False),
        "step": IntField(required=False),
        "polygon": PolygonField(required=False),
    }
    return EventType(name="area", fields=fields, base="area", key_order=("source", "kind", "step"))


def population(event_type: EventType, count: int, seed: int = 1) -> list[Filter]:
    """Filters of which about one in 10,000 lets a notification pass, whatever it asks for."""
    chance = random.Random(seed)
    requests: list[dict[str, Any]] = []
    for number in range(count):
        place = number % 20
        if place < 8:  # one field, or two together
            fields = {"source": f"s{chance.randrange(10_000)}"}
            if place < 4:
                fields = {"source": f"s{chance.randrange(100)}", "kind": f"k{chance.randrange(100)}"}
            requests.append(dict(fields))
        elif place < 12:
            low = chance.randrange(99_990)
            requests.append({"step": {"between": [low, low + 9]}})
        elif place < 15:
            requests.append({"step": {"in": [chance.randrange(100_000) for _ in range(10)]}})
        elif place < 18:
            requests.append({"polygon": square(chance, 0.55)})
        else:
            requests.append({"point": f"{chance.uniform(-88, 88):.4f},{chance.uniform(-178, 178):.4f}"})
    return [event_type.compile(each, "watch", read_point(each)) for each in requests]


def published(event_type: EventType, count: int, seed: int = 2) -> list[Notification]:
    """Notifications spread evenly over everything that filters ask for."""
    chance = random.Random(seed)
    found = []
    for number in range(count):
        draft = event_type.check(
            {
                "source": f"s{chance.randrange(10_000)}",
                "kind": f"k{chance.randrange(100)}",
                "step": str(chance.randrange(100_000)),
                "polygon": square(chance, 2.0),
            }
        )
        found.append(Notification(number + 1, number, draft.topic, draft.identifier, draft.payload, draft.box))
    return found


def square(chance: random.Random, side: float) -> str:
    """A square somewhere on the map."""
    lat, lon = chance.uniform(-87, 87 - side), chance.uniform(-178, 178 - side)
    corners = [(lat, lon), (lat + side, lon), (lat + side, lon + side), (lat, lon + side), (lat, lon)]
    return "(" + ",".join(f"{a:.4f},{b:.4f}" for a, b in corners) + ")"


def in_server(bench: Bench, quick: bool) -> Row:
    """Publishes per second with 10 watchers who match, alone and beside thousands who do not."""
    others = 2000 if quick else 10_000 - MATCHING
    bodies = workload.write(workload.bodies(), bench.directory / "bodies")
    alone = workload.write(workload.everything(), bench.directory / "alone")
    crowd = workload.write(workload.everything() * MATCHING + workload.others(others), bench.directory / "crowd")
    target = bench.server(workload.configuration("in_memory"), "crowd")
    run = partial(bench.run, target, publishers=16, bodies=bodies, seconds=2, deliveries=MATCHING)
    results: dict[str, list[Measured]] = alternate(
        1 if quick else 3,
        {
            "crowd": partial(run, watchers=MATCHING + others, filters=crowd),
            "alone": partial(run, watchers=MATCHING, filters=alone),
        },
    )
    return compare(
        "match",
        f"in the server: {MATCHING} of {MATCHING + others:,} watchers match",
        "publishes/s",
        [each.publishes_per_second for each in results["crowd"]],
        f"{MATCHING} watchers only",
        [each.publishes_per_second for each in results["alone"]],
        cpu=(_costs(results["crowd"]), _costs(results["alone"])),
        load_cpu=max(each.load_cpu for name in results for each in results[name]),
    )


def _costs(results: list[Measured]) -> list[float]:
    return [each.server_seconds / each.requests for each in results]
