"""The table of routes: complete, guarded, and found by method and path."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from aviso_server.config.settings import Settings
from aviso_server.http.app import Route, Router
from aviso_server.http.request import Request
from aviso_server.http.response import ERRORS, HttpError
from aviso_server.http.routes import ROUTES
from aviso_server.log.memory import MemoryLog
from aviso_server.server.wiring import make_service

each_route = pytest.mark.parametrize("route", ROUTES, ids=[f"{each.method} {each.path}" for each in ROUTES])


def found(method: str, raw_path: str, path: str | None = None) -> Request:
    async def nothing(_: Any = None) -> None: ...

    service = make_service(Settings(), MemoryLog(1, 1))
    scope = {"method": method, "path": path or raw_path, "raw_path": raw_path.encode(), "headers": []}
    request = Request(service, scope, nothing, nothing)
    router = Router(ROUTES)
    router.find(request)
    router.decode(request)
    return request


@each_route
def test_every_handler_takes_a_request_and_returns_a_response(route: Route) -> None:
    signature = inspect.signature(route.handler)
    assert inspect.iscoroutinefunction(route.handler)
    assert [each.annotation for each in signature.parameters.values()] == ["Request"]
    assert signature.return_annotation in ("Response", "StreamingResponse")


@each_route
def test_every_route_below_the_api_is_guarded_but_for_schemas(route: Route) -> None:
    if route.path.startswith("/api/v1/admin/"):
        assert route.access == "admin"
    elif route.path.startswith("/api/v1/") and not route.path.startswith("/api/v1/schema"):
        assert route.access in ("user", "reader", "writer")
    else:
        assert route.access == "open"


@each_route
def test_only_readers_may_post_without_changing_anything(route: Route) -> None:
    """Pages of other sites may call these, so nothing that a reader may call writes."""
    if route.access == "reader" and route.method != "GET":
        assert route.path in {"/api/v1/watch", "/api/v1/replay", "/api/v1/explain"}


@each_route
def test_a_documented_route_says_what_it_does(route: Route) -> None:
    summary, _ = route.words
    assert summary
    assert bool(route.tag) == bool(route.answers)


def test_every_error_code_is_of_some_route() -> None:
    everywhere = {"UNAUTHORIZED", "FORBIDDEN", "TOO_MANY_REQUESTS", "INTERNAL_ERROR", "SERVICE_UNAVAILABLE"}
    assert {code for route in ROUTES for code in route.errors} | everywhere == set(ERRORS)


def test_no_two_routes_answer_the_same_request() -> None:
    assert len({(route.method, route.path) for route in ROUTES}) == len(ROUTES)
    assert len({route.name for route in ROUTES}) == len(ROUTES)


@pytest.mark.parametrize(
    ("method", "path", "route", "params"),
    [
        ("POST", "/api/v1/watch", "/api/v1/watch", {}),
        ("GET", "/api/v1/schema/mars", "/api/v1/schema/{event_type}", {"event_type": "mars"}),
        ("GET", "/api/v1/schema/a%2Fb", "/api/v1/schema/{event_type}", {"event_type": "a/b"}),
        ("GET", "/api/v1/schema/a%0Ab", "/api/v1/schema/{event_type}", {"event_type": "a\nb"}),
        (
            "GET",
            "/api/v1/insight/a%2Fb/hours",
            "/api/v1/insight/{event_type}/{name}",
            {"event_type": "a/b", "name": "hours"},
        ),
        ("GET", "/static/", "/static/{path}", {"path": ""}),
        ("GET", "/static/a/b.css", "/static/{path}", {"path": "a/b.css"}),
        (
            "DELETE",
            "/api/v1/admin/notification/mars@1",
            "/api/v1/admin/notification/{notification_id}",
            {"notification_id": "mars@1"},
        ),
    ],
)
def test_a_route_is_found_with_its_parameters(method: str, path: str, route: str, params: dict[str, str]) -> None:
    request = found(method, path)
    assert request.route is not None
    assert (request.route.path, request.params) == (route, params)
    assert request.scope["route"] == route


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/api/v1/watch"),
        ("POST", "/api/v1/watch/"),
        ("GET", "/api/v1/schema/"),
        ("GET", "/api/v1/schema/a/b"),
        ("GET", "/api/v1/insight/a"),
        ("GET", "/api/v1/insight/a/b/c"),
        ("PUT", "/api/v1/schema/mars"),
        ("GET", "/static"),
    ],
)
def test_anything_else_has_no_route(method: str, path: str) -> None:
    assert found(method, path).route is None


def test_a_name_of_any_length_is_not_looked_up() -> None:
    with pytest.raises(HttpError) as refused:
        found("GET", "/api/v1/schema/" + "a" * 4097)
    assert refused.value.status == 414
    assert "4097 bytes" in refused.value.message
