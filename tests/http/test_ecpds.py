"""What is counted about questions to ECPDS: of several failures the one that says most."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack

import pytest

from aviso_server.config.settings import Ecpds, Secret
from aviso_server.http.ecpds import Destinations, NoVerdict
from tests.harness.ecpds import PASSWORD, USERNAME, FakeEcpds
from tests.harness.web_service import Said

ANSWERS = {
    "http_401": Said(401),
    "http_403": Said(403),
    "http_4xx": Said(404),
    "invalid_response": Said(200, b"no"),
    "http_5xx": Said(502),
}
ORDER = [*ANSWERS, "unreachable"]


def settings(servers: list[str], policy: str = "strict") -> Ecpds:
    return Ecpds(
        username=USERNAME,
        password=Secret(PASSWORD),
        match_key="destination",
        servers=tuple(servers),
        partial_outage_policy="strict" if policy == "strict" else "any_success",
    )


def ask(chosen: Ecpds) -> tuple[Destinations, frozenset[str] | None]:
    """What was found out about a user, None without a verdict."""

    async def main() -> tuple[Destinations, frozenset[str] | None]:
        destinations = Destinations(chosen)
        try:
            return destinations, await destinations.of("user")
        except NoVerdict:
            return destinations, None
        finally:
            await destinations.close()

    return asyncio.run(main())


def counted(destinations: Destinations) -> dict[str, int]:
    return {outcome: count for outcome, count in destinations.fetches.items() if count}


def serving(stack: ExitStack, outcome: str) -> str:
    """The address of a server that causes this outcome."""
    service = FakeEcpds({"user": ["CIP"]})
    if outcome == "unreachable":
        with service:
            return service.url
    if outcome != "success":
        service.answer = lambda asked: ANSWERS[outcome]
    return stack.enter_context(service).url


@pytest.mark.parametrize("place", range(len(ORDER) - 1))
def test_the_failure_that_says_most_is_reported(place: int) -> None:
    with ExitStack() as stack:
        servers = [serving(stack, outcome) for outcome in (ORDER[place + 1], ORDER[place])]
        destinations, found = ask(settings(servers))
    assert found is None
    assert counted(destinations) == {ORDER[place]: 1}
    assert (destinations.hits, destinations.misses, len(destinations)) == (0, 1, 0)


@pytest.mark.parametrize("outcome", ORDER)
def test_a_failure_is_reported_even_if_another_server_answers(outcome: str) -> None:
    with ExitStack() as stack:
        servers = [serving(stack, "success"), serving(stack, outcome)]
        tolerant, found = ask(settings(servers, "any_success"))
        strict, nothing = ask(settings(servers))
    assert (found, nothing) == (frozenset({"CIP"}), None)
    assert counted(tolerant) == counted(strict) == {outcome: 1}
    assert len(tolerant) == 1


def test_success() -> None:
    with ExitStack() as stack:
        destinations, found = ask(settings([serving(stack, "success")]))
    assert found == frozenset({"CIP"})
    assert counted(destinations) == {"success": 1}
