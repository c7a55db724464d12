"""A short soak: clients of every kind come and go, and the server keeps nothing of them; `bench/soak.py` is longer."""

from __future__ import annotations

from pathlib import Path

from bench.soak import Sample, Soak, growth


def test_nothing_grows(tmp_path: Path) -> None:
    soak = Soak(tmp_path)
    with soak.server:
        churn = soak.run(seconds=16, rounds=4)
        assert soak.server.client.get("/ready").status == 200
    assert churn.surprises == []
    assert growth(soak.samples) == []
    for kind in ("publish", "watch", "replay", "slow", "notifications", "broken JSON", "half a head", "not HTTP"):
        assert churn.counts[kind] > 0, f"no client did this: {kind}"


def sample(at: int, memory: int = 100, files: int = 20, tasks: int = 5, streams: int = 0) -> Sample:
    return Sample(at, memory * 2**20, files, tasks, streams, 0)


def test_growth_is_noticed() -> None:
    even = [sample(at) for at in range(7)]
    assert growth([*even, sample(7, memory=105, files=21)]) == []
    assert growth([sample(at, memory=100 + 20 * (at % 2)) for at in range(8)]) == [], "up and down is no growth"
    assert len(growth([sample(at, memory=100 + 6 * at) for at in range(8)])) == 1
    assert len(growth([*even, sample(7, files=30)])) == 1
    assert len(growth([*even, sample(7, tasks=30)])) == 1
    assert len(growth([*even, sample(7, streams=1)])) == 1
