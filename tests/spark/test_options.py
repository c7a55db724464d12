"""The options of the data source: what they become, and what is said about wrong ones."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from aviso_server.model.times import parse_instant
from pyspark_aviso.errors import PipelineError
from pyspark_aviso.options import ALIASES, OPTIONS, event_time, instant, read_options

URL = "http://127.0.0.1:8000"


def test_defaults() -> None:
    options = read_options({"url": URL + "/", "event_type": "mars"})
    assert options.url == URL
    assert options.event_types == ("mars",)
    assert options.span("mars") == {"from_id": "0"}
    assert (options.rows_per_partition, options.partitions, options.connections) == (250_000, None, 1)
    assert options.fail_on_data_loss
    assert pickle.loads(pickle.dumps(options)) == options


def test_all_options_are_read_whatever_their_case() -> None:
    given = {
        "URL": URL,
        "Event_Type": "mars, dissemination",
        "identifier": '{"class":"od"}',
        "from_date": "2025-01-15T10:00:00Z",
        "to_id": "7",
        "token": "t",
        "partitions": "4",
        "max_rows_per_batch": "1000",
        "fail_on_data_loss": "False",
        "poll_interval": "0.1",
    }
    options = read_options(given)
    assert options.event_types == ("mars", "dissemination")
    assert options.identifier == {"class": "od"}
    assert options.span("mars") == {"from_date": "2025-01-15T10:00:00.000000000Z", "to_id": "7"}
    assert (options.token, options.partitions, options.max_rows_per_batch) == ("t", 4, 1000)
    assert not options.fail_on_data_loss


def test_names_as_spark_users_know_them() -> None:
    given = {
        "url": URL,
        "startingOffsets": '{"mars": 12}',
        "endingOffsets": '{"mars": 20, "dissemination": 7}',
        "numPartitions": "4",
        "maxRecordsPerBatch": "1000",
        "failOnDataLoss": "false",
        "columns": "sequence, payload",
    }
    options = read_options(given)
    assert options.span("mars") == {"from_id": "12", "to_id": "20"}
    assert options.span("dissemination") == {"from_id": "0", "to_id": "7"}
    assert options.span("another") == {"from_id": "0"}
    assert (options.partitions, options.max_rows_per_batch, options.fail_on_data_loss) == (4, 1000, False)
    assert options.columns == ("sequence", "payload")
    for place, expected in (("earliest", "0"), ("42", "42")):
        assert read_options({"url": URL, "startingOffsets": place}).span("mars") == {"from_id": expected}


@pytest.mark.parametrize(
    ("text", "nanoseconds"),
    [
        ("2025-01-15T10:00:00Z", 1_736_935_200 * 10**9),
        ("2025-01-15 11:00:00.123456789+01:00", 1_736_935_200 * 10**9 + 123_456_789),
        ("2025-01-15T10:00:00.5", 1_736_935_200 * 10**9 + 500_000_000),
        ("1736935200", 1_736_935_200 * 10**9),
        ("1736935200123", 1_736_935_200_123 * 10**6),
        ("0", 0),
    ],
)
def test_points_in_time(text: str, nanoseconds: int) -> None:
    assert instant(text) == nanoseconds == parse_instant("from_date", event_time(instant(text)))
    assert parse_instant("from_date", text) == nanoseconds, "the server takes it for the same"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "option 'url' is missing"),
        ({"url": "ftp://x"}, "option 'url': 'ftp://x' is not an http or https address"),
        ({"url": "http://u:p@host"}, "credentials do not belong there"),
        ({"url": URL, "identifier": "[1]"}, "option 'identifier' must be a JSON object"),
        ({"url": URL, "identifer": "{}"}, "unknown option 'identifer'; did you mean 'identifier'?"),
        ({"url": URL, "eventtype": "x"}, "did you mean 'event_type'?"),
        (
            {"url": URL, "from_id": "-1"},
            "option 'from_id': '-1' is not a place in a stream; accepted: earliest, latest",
        ),
        ({"url": URL, "startingOffsets": "newest"}, "option 'startingOffsets': 'newest' is not a place in a stream"),
        ({"url": URL, "endingOffsets": "earliest"}, "'earliest' is not a place in a stream; accepted: latest, a sequ"),
        ({"url": URL, "startingOffsets": '{"mars": "x"}'}, 'one for each event type, such as {"mars": 42}'),
        ({"url": URL, "startingOffsets": "{}"}, "option 'startingOffsets'"),
        ({"url": URL, "startingOffset": "1"}, "unknown option 'startingoffset'; did you mean 'startingOffsets'?"),
        ({"url": URL, "from_id": "1", "from_date": "0"}, "options 'from_id' and 'from_date' exclude each other"),
        (
            {"url": URL, "endingOffsets": "1", "to_date": "0"},
            "'endingOffsets' and 'to_date' exclude each other",
        ),
        ({"url": URL, "from_id": "1", "startingOffsets": "1"}, "options 'from_id' and 'startingOffsets' are the same"),
        ({"url": URL, "from_id": "5", "to_id": "4"}, "option 'to_id' (4) must not be lower than 'from_id' (5)"),
        (
            {"url": URL, "to_date": "yesterday"},
            "option 'to_date': 'yesterday' is not a point in time; accepted: RFC",
        ),
        ({"url": URL, "from_date": "2025-01-15"}, "option 'from_date': '2025-01-15' is not a point in time"),
        ({"url": URL, "partitions": "0"}, "option 'partitions': '0' is not a whole number of at least 1"),
        ({"url": URL, "numPartitions": "many"}, "option 'numPartitions': 'many' is not a whole number of at least 1"),
        ({"url": URL, "timeout": "soon"}, "option 'timeout': 'soon' is not a number of seconds"),
        ({"url": URL, "fail_on_data_loss": "maybe"}, "'maybe' is neither true nor false"),
        ({"url": URL, "username": "u"}, "'username' and 'password' go together"),
        ({"url": URL, "token": "t", "username": "u", "password": "p"}, "exclude each other"),
    ],
)
def test_wrong_options_are_named(given: dict[str, str], words: str) -> None:
    with pytest.raises(PipelineError) as caught:
        read_options(given)
    assert words in str(caught.value)


def test_options_of_spark_itself_pass() -> None:
    read_options({"url": URL, "checkpointLocation": "/x", "queryName": "q", "path": "p"})


@pytest.mark.parametrize(
    ("checkpoint", "ledger"),
    [
        ("/data/query", "/data/query/aviso-ledger"),
        ("file:///data/query/", "/data/query/aviso-ledger"),
        ("s3a://bucket/query", None),
        ("hdfs://host:8020/query", None),
    ],
)
def test_the_ledger_lies_beside_a_local_checkpoint(checkpoint: str, ledger: str | None) -> None:
    assert read_options({"url": URL, "checkpointLocation": checkpoint}).ledger == ledger


def test_every_option_is_documented() -> None:
    page = (Path(__file__).parents[2] / "docs" / "spark.md").read_text(encoding="utf-8")
    assert [name for name in OPTIONS if f"| `{name}` |" not in page and f"| `{name}`, `" not in page] == []
    assert [name for name, option in ALIASES.items() if f"| `{option}`, `{name}` |" not in page] == []
