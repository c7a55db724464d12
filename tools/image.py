"""`python -m tools.image`: build the image on a base of Debian's own packages, start it, publish, watch and stop it.

For machines that reach no registry of images; needs root, `debootstrap` and `buildah`. No network but the host's, and
Buildah's chroot isolation in place of a container engine: what a container adds to that is not tried.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import httpx

_ROOT = Path(__file__).parents[1]
_PACKAGES = "python3,python3-venv,python3-pip,python-is-python3,ca-certificates"
_BASE = "localhost/debian-python"
_IMAGE = "localhost/aviso-server-tried"
_BUILDAH = ("buildah", "--storage-driver", "vfs")


def main() -> int:
    """Build and try the image; 0 if everything was as it should be."""
    missing = [name for name in ("debootstrap", "buildah") if shutil.which(name) is None]
    if os.geteuid() != 0 or missing:
        print(f"needs root and {' and '.join(missing or ['nothing else'])}: apt-get install debootstrap buildah")
        return 1
    with tempfile.TemporaryDirectory(prefix="aviso-image-") as scratch:
        _make_base(Path(scratch) / "root")
    certificates = "/etc/ssl/certs"
    _run(
        *_BUILDAH, "build", "--isolation", "chroot", "--network", "host", "--build-arg", f"PYTHON={_BASE}",
        *("--build-arg", "EXTRAS=otlp", "--volume", f"{certificates}:{certificates}:ro", "--tag", _IMAGE, str(_ROOT)),
    )  # fmt: skip
    print("built")
    with _started() as url:
        _publish_and_watch(url)
    print("stopped by SIGTERM")
    return 0


def _make_base(root: Path) -> None:
    _run("debootstrap", "--variant=minbase", f"--include={_PACKAGES}", "bookworm", str(root))
    container = _run(*_BUILDAH, "from", "scratch").strip()
    _run(*_BUILDAH, "add", container, str(root), "/")
    _run(*_BUILDAH, "commit", "--rm", container, _BASE)


@contextlib.contextmanager
def _started() -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    container = _run(*_BUILDAH, "from", _IMAGE).strip()
    command = ["run", "--isolation", "chroot", "--network", "host", "--env", f"AVISOSERVER_APPLICATION__PORT={port}"]
    server = subprocess.Popen([*_BUILDAH, *command, container, "--", "aviso-server", "serve"], start_new_session=True)
    try:
        deadline = time.monotonic() + 120
        while not _healthy(port):
            if server.poll() is not None or time.monotonic() > deadline:
                sys.exit("the server in the image did not start")
            time.sleep(0.2)
        inside = _run(
            "pgrep", "--newest", "--full", "^/opt/aviso-server/bin/python /opt/aviso-server/bin/aviso-server"
        ).strip()
        user = Path(f"/proc/{inside}").stat().st_uid
        print(f"started, as user {user}")
        yield f"http://127.0.0.1:{port}"
        os.kill(int(inside), signal.SIGTERM)
        server.wait(60)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGKILL)
        server.wait()
        _run(*_BUILDAH, "rm", container)


def _healthy(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/health").is_success
    except httpx.HTTPError:
        return False


def _publish_and_watch(url: str) -> None:
    identifier = {"event_type": "tried", "identifier": {"colour": "red"}}
    with httpx.stream("POST", f"{url}/api/v1/watch", json=identifier, timeout=60) as watch:
        lines = watch.iter_lines()
        next(line for line in lines if "connection_established" in line)
        httpx.post(f"{url}/api/v1/notification", json={**identifier, "payload": 1}).raise_for_status()
        found = next(line for line in lines if '"specversion"' in line)
    print("published and watched", json.loads(found.removeprefix("data: "))["id"])


def _run(*command: str) -> str:
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command[:6])}… failed with {done.returncode}")
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
