"""Let atheris look for bytes that make a reader of outside text fail; what it finds is kept in the corpus.

python -m tools.fuzz SECONDS [TARGET...]
"""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["aviso_server"]):
    from tests.fuzz.targets import TARGETS

_ROOT = Path(__file__).parent.parent
_KEPT = _ROOT / "tests/fuzz/corpus"
_FOUND = _ROOT / "build/fuzz"
_SLOWEST = 25  # seconds for one input: nothing takes a tenth of one, but the machine may be busy


def main(seconds: int, names: list[str]) -> int:
    """Give each target the same time, in a process of its own; 1 if one of them has failed."""
    failed = []
    for name in names:
        found = _FOUND / name
        found.mkdir(parents=True, exist_ok=True)
        print(f"== {name}, {seconds} s", flush=True)
        command = [sys.executable, "-m", "tools.fuzz", "--one", name, str(found), str(_KEPT / name)]
        options = [f"-max_total_time={seconds}", f"-timeout={_SLOWEST}", "-max_len=4096", "-verbosity=1"]
        crash = f"-artifact_prefix={_KEPT / name}/"
        if subprocess.run([*command, *options, crash], cwd=_ROOT, check=False).returncode:
            failed.append(name)
    print(f"failed: {', '.join(failed)}" if failed else f"{len(names)} targets, nothing found")
    return bool(failed)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        logging.disable()  # reports of single inputs mean nothing
        atheris.Setup([sys.argv[0], *sys.argv[3:]], TARGETS[sys.argv[2]])
        atheris.Fuzz()
    sys.exit(main(int(sys.argv[1]), sys.argv[2:] or list(TARGETS)))
