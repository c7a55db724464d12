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


def sample(memory: int = 100, files: int = 20, tasks: int = 5, streams: int = 0) -> Sample:
    return Sample(0.0, memory * 2**20, files, tasks, streams, 0)


def test_growth_is_noticed() -> None:
    assert growth([sample(), sample(), sample(), sample(memory=105, files=21)]) == []
    assert len(growth([sample(), sample(), sample(), sample(memory=140)])) == 1
    assert len(growth([sample(), sample(), sample(files=30)])) == 1
    assert len(growth([sample(), sample(), sample(tasks=30)])) == 1
    assert len(growth([sample(), sample(), sample(streams=1)])) == 1
