"""A simulated forecast centre: four cycles a day, steps, jitter, and a product that comes once a week."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from aviso_server.model.lateness import DAY, Watched, combination_text, day_text, weekday
from aviso_server.model.notification import Notification
from tests.model.event_types import event_type

__all__ = [
    "FORECAST",
    "FRIDAY",
    "PRODUCTS",
    "WATCHED",
    "WEEKLY",
    "Arrival",
    "Product",
    "arrivals",
    "nominal",
    "stored",
    "text",
]

HOUR = 3600
FRIDAY = 4
FORECAST = event_type(
    "forecast",
    {"stream": "StringHandler", "date": "DateHandler", "time": "TimeHandler", "step": "IntHandler"},
    base="forecasts",
    order=["stream", "date", "time", "step"],
)
WATCHED = Watched(event_type="forecast", stream="forecasts", by=("stream", "time", "step"), date="date")


class Product(NamedTuple):
    """What one combination of stream, cycle and step stands for."""

    stream: str
    time: str
    step: str


class Arrival(NamedTuple):
    """A notification, when it was stored."""

    second: int
    product: Product
    day: int

    def identifier(self) -> dict[str, str]:
        """As a publisher sends it."""
        return {**self.product._asdict(), "date": day_text(self.day)}


DAILY = [
    Product(stream, time, str(step))
    for stream in ("oper", "enfo")
    for time in ("0000", "0600", "1200", "1800")
    for step in (0, 24, 48, 120, 240)
]
WEEKLY = Product("eefo", "0000", "1104")
PRODUCTS = [*DAILY, WEEKLY]


def nominal(product: Product) -> int:
    """When it should come: seconds after midnight of its date. The evening's last ones come after midnight."""
    later = {"oper": 4 * HOUR, "enfo": 6 * HOUR, "eefo": 21 * HOUR}[product.stream]
    return int(product.time[:2]) * HOUR + later + int(product.step) * 20


def arrivals(
    first: int, last: int, dice: random.Random, delays: Mapping[tuple[Product, int], int | None] | None = None
) -> list[Arrival]:
    """What comes for these days, in order; `delays` has extra seconds, None for what never comes."""
    found = []
    for day in range(first, last + 1):
        for product in PRODUCTS:
            if product == WEEKLY and weekday(day) != FRIDAY:
                continue
            delay = (delays or {}).get((product, day), 0)
            if delay is not None:
                jitter = abs(dice.gauss(0, 240)) + dice.expovariate(1 / 180)
                found.append(Arrival(day * DAY + nominal(product) + round(jitter) + delay, product, day))
    return sorted(found)


def stored(coming: Iterable[Arrival], first: int = 1) -> Sequence[Notification]:
    """As the log would keep them."""
    found = []
    for sequence, each in enumerate(coming, first):
        draft = FORECAST.check(each.identifier(), None)
        found.append(Notification(sequence, each.second * 10**9, draft.topic, draft.identifier, draft.payload))
    return found


def text(product: Product) -> str:
    """The combination as notices show it."""
    return combination_text(WATCHED.by, product)
