"""Areas, places and point clouds with the client, as text and as lists."""

from __future__ import annotations

from typing import Any

import pytest
from pyaviso import AvisoClient, HttpError

from tests.client.listening import Open, payloads
from tests.harness import Server

DIAMOND_TEXT = "(52.5,13.4,52.6,13.5,52.5,13.6,52.4,13.5,52.5,13.4)"
DIAMOND_LIST = [[52.5, 13.4], [52.6, 13.5], [52.5, 13.6], [52.4, 13.5], [52.5, 13.4]]
FAR_TEXT = "(10,10,10.2,10,10.2,10.2,10,10.2,10,10)"
FAR_LIST = [[10, 10], [10.2, 10], [10.2, 10.2], [10, 10.2], [10, 10]]


@pytest.fixture(scope="module", autouse=True)
def areas(server: Server) -> None:
    """Two notifications about the same area, one published as text and one as a list, and two about another."""
    for name, polygon in [("text", DIAMOND_TEXT), ("list", DIAMOND_LIST), ("far", FAR_TEXT), ("far", FAR_LIST)]:
        server.client.publish("area", {"name": name, "polygon": polygon}, name)


@pytest.mark.parametrize(
    ("wanted", "matching"),
    [
        ({"polygon": DIAMOND_TEXT}, ["text", "list"]),
        ({"polygon": DIAMOND_LIST}, ["text", "list"]),
        ({"polygon": "(52.6,13.5,52.7,13.4,52.7,13.6,52.6,13.5)"}, ["text", "list"]),
        ({"polygon": [[52.58, 13.40], [52.60, 13.40], [52.60, 13.42], [52.58, 13.42], [52.58, 13.40]]}, []),
        ({"polygon": FAR_LIST}, ["far", "far"]),
        ({"point": "52.55,13.5"}, ["text", "list"]),
        ({"point": [52.55, 13.5]}, ["text", "list"]),
        ({"point": [52.6, 13.5]}, []),
        ({"point": "0,0"}, []),
        ({"point": [52.5, 13.5], "name": "list"}, ["list"]),
        ({}, ["text", "list", "far", "far"]),
    ],
    ids=["text", "list", "touching", "beside", "far", "point text", "point", "vertex", "sea", "both", "none"],
)
def test_areas_in_history(client: AvisoClient, wanted: dict[str, Any], matching: list[str]) -> None:
    assert payloads(client.listen("area", filter=wanted, start_from=0, mode="replay_only")) == matching


@pytest.mark.parametrize("published", [DIAMOND_TEXT, DIAMOND_LIST], ids=["text", "list"])
@pytest.mark.parametrize(
    "wanted",
    [{"polygon": DIAMOND_TEXT}, {"polygon": DIAMOND_LIST}, {"point": "52.5,13.5"}, {"point": [52.5, 13.5]}],
    ids=["polygon text", "polygon list", "point text", "point list"],
)
def test_areas_live(
    server: Server, client: AvisoClient, listen: Open, published: str | list[list[float]], wanted: dict[str, Any]
) -> None:
    listening = listen(server, lambda: client.listen("area", filter={**wanted, "name": "live"}))
    client.notify(event_type="area", identifier={"name": "live", "polygon": FAR_LIST}, payload="far")
    client.notify(event_type="area", identifier={"name": "live", "polygon": published}, payload="near")
    assert payloads(listening.take()) == ["near"]


def test_polygon_comes_back_as_a_list(client: AvisoClient) -> None:
    wanted = {"polygon": DIAMOND_LIST, "name": "text"}
    [notification] = client.listen("area", filter=wanted, start_from=0, mode="replay_only")
    assert notification.identifier["polygon"] == DIAMOND_LIST


SQUARE = [[0, 0], [0, 10], [10, 10], [10, 0], [0, 0]]


def test_point_clouds(server: Server, client: AvisoClient, listen: Open) -> None:
    listening = listen(server, lambda: client.listen("buoys", filter={"polygon": SQUARE}))
    for cloud in ([[1, 1], [50, 50]], [[50, 50]], [[0, 5]]):
        client.notify(event_type="buoys", identifier={"network": "n", "point_cloud": cloud}, payload=cloud)
    expected = [[[1, 1], [50, 50]], [[0, 5]]]
    live = listening.take(2)
    assert payloads(live) == expected
    assert [notification.identifier["point_cloud"] for notification in live] == expected
    text = "(0,0,0,10,10,10,10,0,0,0)"
    for polygon in (SQUARE, text):
        wanted = {"polygon": polygon, "network": "n"}
        assert payloads(client.listen("buoys", filter=wanted, start_from=0, mode="replay_only")) == expected


@pytest.mark.parametrize(
    "cloud", [[], "1,1", [[91, 0]], [[1, 2, 3]], [["1", "2"]], [[1, 1]] * 4], ids=lambda cloud: str(cloud)[:20]
)
def test_wrong_point_clouds_are_refused(client: AvisoClient, cloud: Any) -> None:
    with pytest.raises(HttpError, match="point_cloud") as refusal:
        client.notify(event_type="buoys", identifier={"network": "n", "point_cloud": cloud})
    assert refusal.value.status == 400


@pytest.mark.parametrize(
    "wanted",
    [{}, {"point": [1, 1]}, {"polygon": SQUARE, "point_cloud": [[1, 1]]}],
    ids=["no polygon", "point", "cloud"],
)
def test_point_clouds_are_asked_for_with_a_polygon(client: AvisoClient, wanted: dict[str, Any]) -> None:
    with pytest.raises(HttpError) as refusal:
        next(client.listen("buoys", filter=wanted))
    assert refusal.value.status == 400
