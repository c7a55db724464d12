"""O. Authentication and authorisation, and what they mean for other sections."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tests.conformance.configuration import changed, read
from tests.conformance.conftest import Launch
from tests.conformance.expectations import UUID
from tests.conformance.samples import MARS, POLYGON, P
from tests.harness import Client, Response, Server
from tests.harness.auth_service import AuthOTron, basic
from tests.harness.client import body
from tests.harness.patience import PATIENCE
from tests.harness.tokens import SECRET, bearer, claims, signed, token, unsigned
from tests.harness.web_service import Asked, Said

Header = tuple[tuple[str, str], ...]

NOBODY: Header = ()
ANY, ADMIN, OPTIONAL, WRITE, REALM = (
    f"test_polygon_auth_{name}" for name in ("any", "admin", "optional", "write", "realm")
)
DELETE = "/api/v1/admin/notification/mars@999999"
CHECK = "/api/v1/auth/check"
BOTH = ["Bearer", "Basic"]
REFUSALS = {
    401: ("UNAUTHORIZED", "unauthorized"),
    403: ("FORBIDDEN", "forbidden"),
    503: ("SERVICE_UNAVAILABLE", "service_unavailable"),
}


@pytest.fixture(scope="module")
def backend() -> str:
    """Who may has nothing to do with where notifications are kept: one backend is enough."""
    return "in_memory"


@pytest.fixture(scope="module")
def service() -> Iterator[AuthOTron]:
    """The authentication service."""
    with AuthOTron() as running:
        yield running


def settings(**auth: Any) -> dict[str, Any]:
    return changed(read("auth"), {"auth": {"jwt_secret": SECRET, **auth}})


@pytest.fixture(scope="module")
def server(launch: Launch, service: AuthOTron) -> Server:
    """A server in mode direct."""
    return launch(settings(auth_o_tron_url=f"{service.url}//"))


@pytest.fixture
def api(server: Server, service: AuthOTron) -> Client:
    """A client of that server; the service gives its usual answers."""
    service.answer = service.usual
    service.asked.clear()
    return server.client


@pytest.fixture(scope="module")
def proxied(launch: Launch) -> Client:
    """A client of a server in mode trusted_proxy."""
    return launch(settings(mode="trusted_proxy")).client


def user(name: str) -> Header:
    return basic(f"{name}-user", f"{name}-pass")


def watch(api: Client, event_type: str, header: Header) -> Response:
    return api.answer("watch", body(event_type, {"polygon": P}), header)


def notify(api: Client, event_type: str, header: Header) -> Response:
    return api.answer("notification", body(event_type, POLYGON, payload="x"), header)


def challenges(response: Response) -> list[str]:
    return [value for name, value in response.headers if name == "www-authenticate"]


def assert_denied(response: Response, status: int, accepted: list[str] | None = None) -> None:
    """The answer is a refusal in the contract's form, with challenges on a 401 only."""
    assert response.status == status, response.body
    assert response.header("content-type") == "application/json"
    assert response.header("access-control-allow-origin") is None
    answer = response.json()
    assert set(answer) == {"code", "error", "message", "request_id"}
    assert (answer["code"], answer["error"]) == REFUSALS[status]
    assert answer["message"]
    assert answer["request_id"] == response.header("x-request-id")
    assert UUID.fullmatch(answer["request_id"])
    assert challenges(response) == ((BOTH if accepted is None else accepted) if status == 401 else [])


@pytest.mark.parametrize("header", [NOBODY, (("Authorization", "BadScheme x"),), bearer(token(lifetime=-3600))])
@pytest.mark.parametrize("path", ["/api/v1/schema", "/api/v1/schema/mars"])
def test_case_176_schema_is_public(api: Client, service: AuthOTron, path: str, header: Header) -> None:
    assert api.request("GET", path, None, header).status == 200
    assert service.asked == []


@pytest.mark.parametrize("path", ["/health", "/ready", "/", "/api-docs/openapi.json", "/swagger-ui/"])
def test_what_is_outside_is_public(api: Client, path: str) -> None:
    assert api.request("GET", path, None, bearer("not.a.token")).status == 200


def test_case_195_no_credentials(api: Client) -> None:
    for operation in ("watch", "replay"):
        assert_denied(api.answer(operation, body(ANY, {"polygon": P}, from_id="1")), 401)


def test_case_196_reader(api: Client) -> None:
    assert watch(api, ANY, user("reader")).status == 200
    assert watch(api, ANY, bearer(token("reader-user"))).status == 200


def test_case_197_roles_for_reading(api: Client) -> None:
    assert_denied(watch(api, ADMIN, user("reader")), 403)
    assert watch(api, ADMIN, user("admin")).status == 200


def test_case_198_optional(api: Client) -> None:
    assert watch(api, OPTIONAL, NOBODY).status == 200
    assert notify(api, OPTIONAL, NOBODY).status == 200


@pytest.mark.parametrize(("header", "status"), [(NOBODY, 401), (user("reader"), 403), (user("admin"), 200)])
def test_case_199_writing_without_roles_is_for_admins(api: Client, header: Header, status: int) -> None:
    response = notify(api, ANY, header)
    assert response.status == status
    if status != 200:
        assert_denied(response, status)


@pytest.mark.parametrize(("name", "status"), [("producer", 200), ("reader", 403), ("admin", 200)])
def test_case_200_roles_for_writing(api: Client, name: str, status: int) -> None:
    assert notify(api, WRITE, user(name)).status == status
    assert watch(api, WRITE, user(name)).status == 200


def test_case_201_basic(api: Client, service: AuthOTron) -> None:
    header = basic("reader-user", "reader-pass")
    assert watch(api, ANY, header).status == 200
    (asked,) = service.asked
    assert asked.path == "/authenticate"
    assert asked.headers["authorization"] == header[0][1]


def test_more_than_one_blank_after_the_scheme(api: Client, proxied: Client) -> None:
    for client in (api, proxied):
        assert watch(client, ANY, (("Authorization", f"Bearer   {token()}"),)).status == 200


BAD_TOKENS = {
    "expired": lambda: token(lifetime=-65),
    "wrong secret": lambda: token(secret="another-secret-that-is-long-enough-to-be-one"),
    "alg none": lambda: unsigned(claims("admin-user"), {"alg": "none", "typ": "JWT"}) + ".",
    "alg none, signed": lambda: signed(claims("admin-user"), header={"alg": "none"}),
    "missing exp": lambda: token(exp=...),
}


@pytest.mark.parametrize("name", BAD_TOKENS)
def test_case_202_bad_tokens(api: Client, proxied: Client, name: str) -> None:
    header = bearer(BAD_TOKENS[name]())
    for event_type in (ANY, OPTIONAL):
        assert_denied(watch(api, event_type, header), 401)
        assert_denied(watch(proxied, event_type, header), 401, ["Bearer"])


def test_case_202_leeway(api: Client, proxied: Client) -> None:
    header = bearer(token(lifetime=-45))
    assert watch(api, ANY, header).status == 200
    assert watch(proxied, ANY, header).status == 200


def test_case_203_service_away(launch: Launch) -> None:
    with AuthOTron() as gone:
        url = gone.url
    api = launch(settings(auth_o_tron_url=url)).client
    for event_type in (ANY, OPTIONAL):
        assert_denied(watch(api, event_type, user("reader")), 503)
    assert_denied(api.request("DELETE", DELETE, None, user("admin")), 503)
    assert watch(api, OPTIONAL, NOBODY).status == 200
    assert_denied(watch(api, ANY, NOBODY), 401)


def test_case_203_service_too_slow(launch: Launch) -> None:
    with AuthOTron() as slow:
        api = launch(settings(auth_o_tron_url=slow.url, timeout_ms=1500)).client
        assert watch(api, ANY, user("reader")).status == 200
        denied = threading.Event()

        def late(asked: Asked) -> Said:
            denied.wait(PATIENCE)
            return slow.usual(asked)

        slow.answer = late
        assert_denied(watch(api, ANY, user("reader")), 503)
        denied.set()


NO_VERDICT = {
    "500": Said(500),
    "404": Said(404),
    "redirect": Said(302, headers=(("Location", "/elsewhere"),)),
    "empty": Said(200),
    "no token": Said(200, b'{"status":"ok"}'),
    "token of another kind": Said(200, b'{"token":5}'),
    "not a token": Said(200, b"welcome"),
    "two parts": Said(200, b"abc.def"),
    "odd letters": Said(200, b"a!.b.c"),
    "other scheme and no body": Said(200, headers=(("Authorization", "Basic eDp5"),)),
    "deep": Said(200, b"[" * 100_000),
    "endless": Said(200, b"x" * 1_000_000),
}


@pytest.mark.parametrize("name", NO_VERDICT)
def test_case_204_no_verdict(api: Client, service: AuthOTron, name: str) -> None:
    service.answer = lambda asked: NO_VERDICT[name]
    assert_denied(watch(api, OPTIONAL, user("reader")), 503)
    assert [asked.path for asked in service.asked] == ["/authenticate"]


@pytest.mark.parametrize(("status", "expected"), [(401, 401), (403, 403)])
def test_case_204_verdicts(api: Client, service: AuthOTron, status: int, expected: int) -> None:
    service.answer = lambda asked: Said(status)
    assert_denied(watch(api, OPTIONAL, user("reader")), expected)


@pytest.mark.parametrize(
    "form", ['{"token":"%s"}', '{"x":1,"jwt":"%s"}', '{"access_token":"%s"}', '"%s"', "%s", " %s\n"]
)
@pytest.mark.parametrize("status", [200, 201])
def test_where_the_token_may_be(api: Client, service: AuthOTron, form: str, status: int) -> None:
    service.answer = lambda asked: Said(status, (form % token("admin-user")).encode())
    assert watch(api, ADMIN, basic("x", "y")).status == 200


def test_the_header_comes_first_and_members_in_order(api: Client, service: AuthOTron) -> None:
    def name_for(said: Said) -> str:
        service.answer = lambda asked: said
        username: str = api.request("GET", CHECK, None, basic("x", "y")).json()["username"]
        return username

    members = {"access_token": token("a"), "jwt": token("b"), "token": token("c")}
    text = json.dumps(members).encode()
    assert name_for(Said(200, text)) == "c"
    assert name_for(Said(200, text, (("Authorization", f"Bearer {token('d')}"),))) == "d"


def test_a_cookie_of_one_user_is_not_sent_for_another(api: Client, service: AuthOTron) -> None:
    def with_cookie(asked: Asked) -> Said:
        said = service.usual(asked)
        return said._replace(headers=(*said.headers, ("Set-Cookie", "session=admin; Path=/")))

    service.answer = with_cookie
    for name in ("admin", "reader"):
        assert api.request("GET", CHECK, None, user(name)).json()["username"] == f"{name}-user"
    assert all("cookie" not in asked.headers for asked in service.asked)


def test_case_205_public_stream(api: Client, proxied: Client) -> None:
    for header in ((("Authorization", "Digest x"),), (("Authorization", ""),), (("Authorization", "Bearer"),)):
        assert watch(api, OPTIONAL, header).status == 200
        assert watch(api, "test_polygon", header).status == 200
        assert watch(proxied, OPTIONAL, header).status == 200
    for name in (OPTIONAL, "test_polygon"):
        assert_denied(watch(api, name, bearer("invalid")), 401)
        assert_denied(watch(proxied, name, bearer("invalid")), 401, ["Bearer"])


ADMIN_ROUTES = (
    ("DELETE", DELETE),
    ("DELETE", "/api/v1/admin/wipe/all"),
    ("DELETE", "/api/v1/admin/wipe/stream"),
    ("GET", "/api/v1/admin/nothing"),
)


@pytest.mark.parametrize(("method", "path"), ADMIN_ROUTES)
def test_case_206_admin_routes(api: Client, method: str, path: str) -> None:
    assert_denied(api.request(method, path), 401)
    assert_denied(api.request(method, path, None, (("Authorization", "Digest x"),)), 401)
    assert_denied(api.request(method, path, None, user("reader")), 403)


def test_case_206_admin(api: Client) -> None:
    response = api.request("DELETE", DELETE, None, user("admin"))
    assert response.status == 404
    assert "Notification not found" in response.json()["message"]
    assert api.request("DELETE", "/api/v1/admin/wipe/all", None, user("admin")).status == 200


@pytest.mark.parametrize(
    "path",
    [
        "/api/v1/%61dmin/wipe/all",
        "/%61pi/v1/admin/wipe/all",
        "/api%2Fv1/admin/wipe/all",
        "/api/v1/admin%2Fwipe/all",
        "/api/v1/admin/notification/mars%401",
        "/api/v1/%61dmin/notification/mars@1",
    ],
)
def test_no_spelling_of_a_path_gets_around_the_gate(api: Client, path: str) -> None:
    api.publish("mars", MARS, "kept")
    assert api.request("DELETE", path).status in (401, 404)
    assert api.request("DELETE", path, None, user("reader")).status in (403, 404)
    assert api.replay("mars", {"class": "od"}).notifications != []


def test_case_207_trusted_proxy(proxied: Client) -> None:
    assert watch(proxied, ANY, bearer(token("reader-user"))).status == 200
    assert watch(proxied, ANY, (("Authorization", f"bearer {token('reader-user')}"),)).status == 200
    assert_denied(watch(proxied, ANY, user("reader")), 401, ["Bearer"])
    assert_denied(watch(proxied, ANY, NOBODY), 401, ["Bearer"])
    assert_denied(proxied.request("DELETE", DELETE, None, user("admin")), 401, ["Bearer"])
    assert_denied(watch(proxied, ANY, (("Authorization", f"Bearer {token()} {token()}"),)), 401, ["Bearer"])


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({"realm": "otherrealm", "roles": ["whatever"]}, 200),
        ({"realm": "otherrealm", "roles": []}, 200),
        ({"realm": "localrealm", "roles": ["operator"]}, 200),
        ({"realm": "localrealm", "roles": ["reader", "operator"]}, 200),
        ({"realm": "localrealm", "roles": ["*"]}, 403),
        ({"realm": "localrealm", "roles": ["Operator"]}, 403),
        ({"realm": "thirdrealm", "roles": ["operator"]}, 403),
        ({"realm": ..., "roles": ["operator"]}, 403),
        ({"realm": None, "roles": ["operator"]}, 403),
        ({"realm": "otherrealm", "roles": ["admin"]}, 200),
        ({"realm": "thirdrealm", "roles": ["admin"]}, 403),
        ({"roles": ...}, 403),
    ],
)
def test_case_208_realms(proxied: Client, changes: dict[str, Any], status: int) -> None:
    header = bearer(token("somebody", **changes))
    assert watch(proxied, REALM, header).status == status
    writes = 200 if changes.get("realm") == "otherrealm" else 403
    assert notify(proxied, REALM, header).status == writes


def test_case_208_an_admin_of_another_realm_is_none(proxied: Client) -> None:
    header = bearer(token("somebody", realm="otherrealm", roles=["admin"]))
    assert_denied(proxied.request("DELETE", DELETE, None, header), 403)


def test_case_209_order(api: Client) -> None:
    def code(operation: str, request: Any, header: Header = NOBODY) -> str:
        answered: str = api.answer(operation, request, header).json()["code"]
        return answered

    bad = bearer(token(lifetime=-3600))
    assert code("watch", body("nope", {})) == "UNKNOWN_EVENT_TYPE"
    assert code("notification", body(ANY, {**POLYGON, "point": "1,1"}, payload=1)) == "INVALID_NOTIFICATION_REQUEST"
    assert code("notification", body(ANY, {"time": "never"})) == "UNAUTHORIZED"
    assert code("watch", body(ANY, {"bogus": 1}, from_id="x")) == "UNAUTHORIZED"
    assert code("replay", body(ANY, {"polygon": P, "point": "1,1"})) == "UNAUTHORIZED"
    assert code("watch", body(ADMIN, {"bogus": 1}, from_id="x"), user("reader")) == "FORBIDDEN"
    assert code("watch", body(ANY, {"bogus": 1}), user("reader")) == "INVALID_WATCH_REQUEST"
    assert code("notification", b"not json", bad) == "UNAUTHORIZED"
    assert code("notification", b"x" * 300_000, bad) == "UNAUTHORIZED"
    assert code("notification", b"not json", user("reader")) == "INVALID_JSON"


@pytest.mark.parametrize("path", ["/api/v1/nothing", "/api/v1/notification", "/api/v1", "/api/v1/"])
def test_the_gate_comes_before_the_route(api: Client, path: str) -> None:
    assert_denied(api.request("GET", path, None, bearer("invalid")), 401)
    response = api.request("GET", path)
    assert (response.status, response.body) == (404, b"")


def test_case_210_names(proxied: Client) -> None:
    def name(**changes: Any) -> Any:
        return proxied.request("GET", CHECK, None, bearer(token("x", **changes))).json().get("username")

    assert name(username=..., sub="by-sub") == "by-sub"
    assert name(username="by-name", sub="by-sub") == "by-name"
    assert name(username=None, sub="by-sub") == "by-sub"
    for changes in (
        {"username": ...},
        {"username": None},
        {"username": ""},
        {"username": 5},
        {"username": ..., "sub": 5},
    ):
        header = bearer(token("x", **changes))
        assert_denied(proxied.request("GET", CHECK, None, header), 401, ["Bearer"])


def test_who_am_i(api: Client) -> None:
    response = api.request("GET", CHECK, None, user("admin"))
    answer = response.json()
    assert response.status == 200
    assert answer.pop("request_id") == response.header("x-request-id")
    assert answer.pop("expires_at").endswith("Z")
    assert answer == {
        "auth_enabled": True,
        "username": "admin-user",
        "realm": "localrealm",
        "roles": ["admin"],
        "admin": True,
    }
    assert api.request("GET", CHECK, None, user("reader")).json()["admin"] is False
    assert_denied(api.request("GET", CHECK), 401)
    assert api.request("POST", CHECK, b"{}").status == 404


def test_who_am_i_without_authentication(launch: Launch) -> None:
    response = launch().client.request("GET", CHECK, None, bearer("whatever"))
    answer = response.json()
    assert answer.pop("request_id") == response.header("x-request-id")
    assert answer == {
        "auth_enabled": False,
        "username": None,
        "realm": None,
        "roles": [],
        "admin": True,
        "expires_at": None,
    }


def test_an_unknown_event_type_is_no_way_into_a_guarded_stream(launch: Launch) -> None:
    """Without strictness the base of a guarded stream is an event type like any other, but for its guard."""
    api = launch({**settings(mode="trusted_proxy"), "notification_schema_strict": False}).client
    for name in ("polygon_auth_admin", "POLYGON_AUTH_ADMIN"):
        assert_denied(api.answer("replay", body(name, {"a": "*"}, from_id="1")), 401, ["Bearer"])
        assert_denied(api.answer("notification", body(name, {"a": "b"})), 401, ["Bearer"])
        assert_denied(api.answer("replay", body(name, {"a": "*"}, from_id="1"), bearer(token())), 403)
    assert api.answer("notification", body("something_else", {"a": "b"})).status == 200


def test_a_server_without_authentication_ignores_the_header(launch: Launch) -> None:
    api = launch().client
    for header in (bearer("invalid"), bearer(token(lifetime=-3600)), (("Authorization", "Odd \u00e9"),)):
        assert watch(api, "test_polygon", header).status == 200
        assert api.request("DELETE", DELETE, None, header).status == 404


def test_secrets_are_not_logged(launch: Launch) -> None:
    with AuthOTron() as service:
        server = launch(settings(auth_o_tron_url=service.url), environment={"RUST_LOG": "trace"})
        good, bad = token("reader-user"), token(lifetime=-3600)
        for header in (user("reader"), bearer(good), bearer(bad), basic("reader-user", "not-my-password")):
            watch(server.client, ANY, header)
        service.answer = lambda asked: Said(500, b"the-answer")
        watch(server.client, ANY, bearer(good))
        server.stop()
    output = server.stdout + server.stderr
    assert "auth.middleware.request.denied" in output
    assert "auth.middleware.remote.validation.failed" in output
    words = [SECRET, *good.split("."), *bad.split("."), user("reader")[0][1].split()[1], "not-my-password"]
    assert [word for word in words if word in output] == []
