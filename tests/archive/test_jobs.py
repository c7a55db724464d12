"""Jobs of commands over Flight: how far they are, their answer, and who gives up when."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from aviso_server.archive.flight_client import Address, Refused, Unreachable, do_job, find_address
from aviso_server.errors import PipelineError
from aviso_server.spark.archiver import ArchiveStatus
from aviso_server.spark.command_jobs import Heard
from aviso_server.spark.flight import FlightServer

TOKEN = "a token"


class Work:
    """Jobs that count, fail, or wait for a test."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.began = threading.Event()
        self.stopped = threading.Event()

    def __call__(self, name: str, members: dict[str, Any], heard: Heard) -> dict[str, Any]:
        if name == "fail":
            raise PipelineError("the lake is dry")
        if name == "break":
            raise RuntimeError("Java is gone")
        self.began.set()
        try:
            for number in range(members["steps"]):
                heard("counting", number + 1, members["steps"])
                while name == "wait" and not self.gate.wait(0.05):
                    heard("waiting", 0, 1)
        except PipelineError:
            self.stopped.set()
            raise
        return {"counted": members["steps"]}


@pytest.fixture
def work() -> Work:
    return Work()


@pytest.fixture
def address(work: Work, tmp_path: Path) -> Iterator[Address]:
    def no_reader() -> Any:
        raise AssertionError("jobs read nothing")

    server = FlightServer(TOKEN, ArchiveStatus(str(tmp_path)), no_reader, work)
    yield Address(server.port, TOKEN)
    server.shutdown()


def test_a_job_says_how_far_it_is_and_then_its_answer(address: Address) -> None:
    told: list[tuple[str, int, int]] = []
    assert do_job(address, "count", {"steps": 3}, lambda *words: told.append(words)) == {"counted": 3}
    assert told == [("counting", 1, 3), ("counting", 2, 3), ("counting", 3, 3)]


@pytest.mark.parametrize(("name", "sentence"), [("fail", "the lake is dry"), ("break", "break failed: RuntimeError")])
def test_a_job_that_fails_says_why(address: Address, name: str, sentence: str) -> None:
    with pytest.raises(PipelineError, match=sentence):
        do_job(address, name, {}, lambda *words: None)


def test_a_second_job_is_refused_before_it_begins(address: Address, work: Work) -> None:
    first = threading.Thread(target=do_job, args=(address, "wait", {"steps": 1}, lambda *words: None))
    first.start()
    try:
        assert work.began.wait(60)
        with pytest.raises(Refused, match="another command is using"):
            do_job(address, "count", {"steps": 1}, lambda *words: None)
    finally:
        work.gate.set()
        first.join(60)
    assert do_job(address, "count", {"steps": 1}, lambda *words: None) == {"counted": 1}


def test_a_job_ends_when_its_command_does(address: Address, work: Work) -> None:
    def leave(*words: Any) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        do_job(address, "wait", {"steps": 1}, leave)
    assert work.stopped.wait(60), "nobody waits for it any more"


def test_strangers_and_nobody_are_told_apart_from_failures(address: Address) -> None:
    with pytest.raises(Refused, match="token"):
        do_job(Address(address.port, "wrong"), "count", {"steps": 1}, lambda *words: None)
    with pytest.raises(Unreachable):
        do_job(Address(1, TOKEN), "count", {"steps": 1}, lambda *words: None)


def test_the_address_is_found_while_its_process_lives(tmp_path: Path) -> None:
    file = tmp_path / "flight.json"
    assert find_address(file) is None
    file.write_text(json.dumps({"port": 7, "pid": os.getpid(), "token": "t"}))
    assert find_address(file) == Address(7, "t")
    file.write_text(json.dumps({"port": 7, "pid": 2**22 + 1, "token": "t"}))
    assert find_address(file) is None
    file.write_text(json.dumps({"error": "no Java"}))
    assert find_address(file) is None
