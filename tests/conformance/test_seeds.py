"""The examples of the documentation, run as they are written, with the real curl.

The pages are ours in `docs/examples`, and the documents that the product was made from where they lie beside the
repository.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.conformance.documents import Example, examples, table
from tests.harness import EventStream, Server
from tests.harness.client import body
from tests.harness.sse import FRAME

ROOT = Path(__file__).parents[2]
OURS = ROOT / "docs" / "examples"
SEEDS = ROOT.parent / "shared" / "seeds"
ADDRESS = "http://127.0.0.1:8000"


def pages(ours: str, seed: str) -> dict[str, str]:
    """Our page, and the seed document if it is there."""
    paths = {f"docs/{ours}": OURS / ours, f"seeds/{seed}": SEEDS / seed}
    return {name: path.read_text() for name, path in paths.items() if name.startswith("docs/") or path.exists()}


FILTERING = pages("constraint-filtering.md", "constraint-filtering.md")
STARTING = pages("starting-points.md", "streaming-semantics.md")
TOPICS = pages("topic-values.md", "topic-encoding.md")
OPERATORS = pages("constraint-filtering.md", "streaming-semantics.md")


class Answer(NamedTuple):
    """What a command brought."""

    status: int
    text: str

    @property
    def identifiers(self) -> list[dict[str, str]]:
        """The identifiers of the notifications in it."""
        frames = [json.loads(match[2]) for match in FRAME.finditer(self.text.encode())]
        return [frame["data"]["identifier"] for frame in frames if "specversion" in frame]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Server]]:
    """A server per page, with the example configuration, as `make serve` starts it; only the port is another."""
    running: dict[str, Server] = {}

    def serve(page: str) -> Server:
        if page not in running:
            environment = {"AVISOSERVER_APPLICATION__PORT": "0", "AVISOSERVER_ARCHIVE__ENABLED": "false"}
            directory = tmp_path_factory.mktemp("example")
            running[page] = Server(ROOT / "examples" / "config.yaml", directory, environment).start()
            if page in FILTERING:
                first = examples(FILTERING[page])[0]
                assert [run(command, running[page], directory).status for command in first.commands] == [200, 200]
        return running[page]

    yield serve
    for server in running.values():
        server.stop()


def start(command: str, server: Server, directory: Path) -> tuple[subprocess.Popen[bytes], Path]:
    """Run a command of a page in a shell, with our address for the one on the page."""
    assert ADDRESS in command
    home = directory / f"curl-{len(list(directory.glob('curl-*')))}"
    home.mkdir()
    headers = home / "headers"
    # The status goes to a file through curl's own configuration, so the command stays as it is on the page.
    (home / ".curlrc").write_text(f'dump-header = "{headers}"\nmax-time = 20\n')
    process = subprocess.Popen(
        ["bash", "-c", command.replace(ADDRESS, server.url)],
        env={**os.environ, "CURL_HOME": str(home), "HOME": str(home)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    return process, headers


def run(command: str, server: Server, directory: Path) -> Answer:
    """Run a command to its end."""
    process, headers = start(command, server, directory)
    output, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors.decode()
    return Answer(int(headers.read_text().split()[1]), output.decode())


def request_of(command: str) -> dict[str, Any]:
    """The JSON that a command sends."""
    match = re.search(r"-d '(.*)'", command, re.DOTALL)
    assert match is not None
    request: dict[str, Any] = json.loads(match[1])
    return request


class Run(NamedTuple):
    """An example that was run, for the checks of its promises."""

    example: Example
    answers: list[Answer]
    server: Server


def status(run: Run, number: str) -> None:
    assert [answer.status for answer in run.answers] == [int(number)] * len(run.answers)


def only(run: Run, field: str, value: str) -> None:
    found = [identifier[field] for identifier in run.answers[-1].identifiers]
    assert found
    assert set(found) == {value}


def includes(run: Run, field: str, value: str) -> None:
    assert value in [identifier[field] for identifier in run.answers[-1].identifiers]


def excludes(run: Run, field: str, value: str) -> None:
    assert value not in [identifier[field] for identifier in run.answers[-1].identifiers]


def not_finite(run: Run) -> None:
    request = request_of(run.example.commands[-1])
    for value in ("NaN", "inf", "-inf"):
        identifier = {**request["identifier"], "anomaly": value}
        assert run.server.client.answer("replay", {**request, "identifier": identifier}).status == 400
        polygon = {"polygon": "(0,0,0,2,2,2,2,0,0,0)"}
        assert run.server.client.notify(request["event_type"], {**identifier, **polygon}).status == 400
    text = json.dumps({**request, "identifier": {**request["identifier"], "anomaly": {"eq": float("nan")}}})
    assert run.server.client.answer("replay", text.encode()).status == 400


def live_regions(run: Run, regions: str) -> None:
    found = [identifier["region"] for identifier in run.answers[-1].identifiers]
    assert sorted(found) == sorted(json.loads(regions))


def message(run: Run) -> None:
    assert "exactly one operator" in json.loads(run.answers[-1].text)["message"]


FIELD = r"`(\w+) ?= ?([\w.]+)`"
PROMISES: dict[str, Callable[..., None]] = {
    r"(?:both return )?HTTP `(\d+)`": status,
    rf"only {FIELD} notifications match": only,
    rf"only notifications with exactly {FIELD} match": only,
    rf"includes {FIELD}": includes,
    rf"excludes {FIELD}": excludes,
    r"`NaN`/`inf` values are rejected by float validation/constraints": not_finite,
    r"live notifications pass only for regions in `(.*)`": live_regions,
    r"message says constraint object must contain exactly one operator": message,
}


def assert_promise(run: Run, promise: str) -> None:
    for pattern, check in PROMISES.items():
        if match := re.fullmatch(pattern, promise):
            return check(run, *match.groups())
    raise AssertionError(f"no check for: {promise}")


def watched(command: str, server: Server, directory: Path) -> Answer:
    """What a watch brings while a notification for every region is published that fits in all other fields."""
    process, headers = start(command, server, directory)
    assert process.stdout is not None
    try:
        text = process.stdout.readline()
        assert text == b"event: live-notification\n"
        request = request_of(command)
        wanted = {name: value for name, value in request["identifier"].items() if not isinstance(value, dict)}
        for region in ("north", "south", "east", "west"):
            identifier = {"anomaly": 50, "polygon": "(0,0,0,2,2,2,2,0,0,0)", **wanted, "region": region}
            server.client.publish(request["event_type"], identifier, region)
        while text.count(b'"specversion"') < 2:
            line = process.stdout.readline()
            assert line, text
            text += line
        text += process.stdout.readline()
    finally:
        process.kill()
        process.communicate()
    return Answer(int(headers.read_text().split()[1]), text.decode())


SECTIONS = [(page, example) for page, text in FILTERING.items() for example in examples(text)]


def test_every_command_is_found() -> None:
    for page, text in FILTERING.items():
        commands = [command for name, example in SECTIONS if name == page for command in example.commands]
        assert len(commands) == len(re.findall(r"^curl ", text, flags=re.MULTILINE)) == 9, page


@pytest.mark.parametrize(("page", "example"), SECTIONS, ids=[f"{page}: {example.title}" for page, example in SECTIONS])
def test_example(served: Callable[[str], Server], tmp_path: Path, page: str, example: Example) -> None:
    server = served(page)
    answers = [
        (watched if "/api/v1/watch" in command else run)(command, server, tmp_path) for command in example.commands
    ]
    for promise in example.expected:
        assert_promise(Run(example, answers, server), promise)


HEADINGS = {
    "docs/starting-points.md": "Forms of a time",
    "seeds/streaming-semantics.md": "Start Point for Historical Events",
}


@pytest.mark.parametrize("page", STARTING)
def test_every_form_of_a_time_is_accepted(served: Callable[[str], Server], page: str) -> None:
    forms = [row[1] for row in table(STARTING[page], HEADINGS[page])]
    assert len(forms) >= 6
    for form in forms:
        stream: EventStream = served(page).client.replay("mars", {"class": "od"}, from_date=form)
        assert stream.frames[0].data["from_date"] is not None


def test_the_command_for_starting_points(served: Callable[[str], Server], tmp_path: Path) -> None:
    page = "docs/starting-points.md"
    (command,) = re.findall(r"^curl .*?'$", STARTING[page], flags=re.MULTILINE | re.DOTALL)
    answer = run(command, served(page), tmp_path)
    assert answer.status == 200
    assert '"from_date":"2024-02-29T12:00:00Z"' in answer.text


CODEC = {"docs/topic-values.md": "Written form", "seeds/topic-encoding.md": "Encoding"}
MARS = {"class": "od", "expver": "1", "domain": "g", "date": "20250706", "time": "12", "step": "1"}


@pytest.mark.parametrize("page", TOPICS)
def test_values_are_used_as_they_are(served: Callable[[str], Server], page: str) -> None:
    rows = table(TOPICS[page], CODEC[page])
    assert len(rows) >= 4
    client = served(page).client
    for value, _ in rows:
        client.publish("mars", {**MARS, "stream": value}, value)
    for value, written in rows:
        (event,) = client.replay("mars", {"class": "od", "stream": value}).notifications
        assert event["data"]["identifier"]["stream"] == value
        found = client.replay("mars", {"class": "od", "stream": written}).notifications
        assert [event["data"]["payload"] for event in found] == [other for other, _ in rows if other == written]


HANDLERS = {
    "docs/constraint-filtering.md": "Operators",
    "seeds/streaming-semantics.md": "Supported operators by field type",
}
FIELDS: dict[str, tuple[str, Any, Any]] = {
    "IntHandler": ("severity", 3, 6),
    "FloatHandler": ("anomaly", 1.5, 2.5),
    "EnumHandler": ("region", "north", "south"),
}
ALL_OPERATORS = ("eq", "in", "gt", "gte", "lt", "lte", "between")


@pytest.mark.parametrize("page", OPERATORS)
def test_operators_are_those_of_the_page(served: Callable[[str], Server], page: str) -> None:
    rows = table(OPERATORS[page], HANDLERS[page])
    assert {row[0] for row in rows} == set(FIELDS)
    client = served(page).client
    given = {"region": "north", "run_time": "1200", "severity": "3"}
    for handler, listed in rows:
        field, low, high = FIELDS[handler]
        operators = [operator.strip("` ") for operator in listed.split(",")]
        for operator in ALL_OPERATORS:
            operand = [low, high] if operator in ("in", "between") else low
            request = body("extreme_event", {**given, field: {operator: operand}}, from_id="1")
            expected = 200 if operator in operators else 400
            assert client.answer("replay", request).status == expected, (handler, operator)
