"""The options of the data source: what they become, and what is said about wrong ones."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from aviso_server.errors import PipelineError
from aviso_server.pipeline.options import OPTIONS, read_options

URL = "http://127.0.0.1:8000"


def test_defaults() -> None:
    options = read_options({"url": URL + "/", "event_type": "mars"})
    assert options.url == URL
    assert options.event_types == ("mars",)
    assert options.span == {"from_id": "0"}
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
    assert options.span == {"from_date": "2025-01-15T10:00:00Z", "to_id": "7"}
    assert (options.token, options.partitions, options.max_rows_per_batch) == ("t", 4, 1000)
    assert not options.fail_on_data_loss


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "option 'url' is missing"),
        ({"url": "ftp://x"}, "option 'url': 'ftp://x' is not an http or https address"),
        ({"url": "http://u:p@host"}, "credentials do not belong there"),
        ({"url": URL, "identifier": "[1]"}, "option 'identifier' must be a JSON object"),
        ({"url": URL, "identifer": "{}"}, "unknown option 'identifer'; did you mean 'identifier'?"),
        ({"url": URL, "eventtype": "x"}, "did you mean 'event_type'?"),
        ({"url": URL, "from_id": "-1"}, "option 'from_id': Invalid from_id '-1'"),
        ({"url": URL, "from_id": "1", "from_date": "0"}, "Cannot specify both from_id and from_date"),
        ({"url": URL, "from_id": "5", "to_id": "4"}, "to_id (4) must not be lower than from_id (5)"),
        ({"url": URL, "to_date": "yesterday"}, "option 'to_date': Invalid to_date 'yesterday'"),
        ({"url": URL, "partitions": "0"}, "option 'partitions': '0' is not a whole number of at least 1"),
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
    assert [name for name in OPTIONS if f"| `{name}` |" not in page] == []
