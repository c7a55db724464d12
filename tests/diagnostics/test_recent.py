"""The last warnings and errors of the process."""

from __future__ import annotations

import logging

from aviso_server.diagnostics.recent import RecentRecords


def record(level: int, message: str, **more: object) -> logging.LogRecord:
    made = logging.makeLogRecord({"levelno": level, "msg": message, **more})
    made.created = 1_751_803_200.5
    return made


def handled(records: RecentRecords, *given: logging.LogRecord) -> list[str]:
    logger = logging.getLogger("tests.recent")
    logger.addHandler(records)
    try:
        for each in given:
            logger.handle(each)
    finally:
        logger.removeHandler(records)
    return [each.message for each in records.newest_first()]


def test_only_warnings_and_errors_are_remembered_newest_first() -> None:
    records = RecentRecords()
    given = [record(level, str(level)) for level in (10, 20, 30, 40)]
    assert handled(records, *given) == ["40", "30"]
    assert [each.level for each in records.newest_first()] == ["ERROR", "WARN"]


def test_the_oldest_are_forgotten() -> None:
    assert handled(RecentRecords(kept=2), *[record(30, name) for name in "abc"]) == ["c", "b"]


def test_a_record_carries_when_and_which_request() -> None:
    records = RecentRecords()
    handled(records, record(40, "disk full", event="log.failed", request_id="r-1"))
    (kept,) = records.newest_first()
    assert (kept.time, kept.event, kept.request_id) == (1_751_803_200_500_000_000, "log.failed", "r-1")


def test_credentials_are_left_out_and_long_messages_cut() -> None:
    (message,) = handled(RecentRecords(), record(30, "sent Bearer abcdefghijkl to http://user:pw@host/"))
    assert "abcdefghijkl" not in message
    assert "pw" not in message
    (message,) = handled(RecentRecords(), record(30, "x" * 10_000))
    assert len(message) == 500


def test_a_record_that_cannot_be_written_does_no_harm() -> None:
    records = RecentRecords()
    broken = record(30, "%d")
    broken.args = ("text",)
    before, logging.raiseExceptions = logging.raiseExceptions, False
    try:
        assert handled(records, broken, record(30, "fine")) == ["fine"]
    finally:
        logging.raiseExceptions = before
