"""What this project is made of, and whether any of it is known to be vulnerable.

    python -m tools.supply_chain [--sbom FILE] [--advisories URL]

Writes a software bill of materials in the form of CycloneDX 1.6: every pinned package, and what is vendored for the
pages. Then asks a database of advisories, in the protocol of OSV, about each of them.

Exit codes: 0 nothing is known, or the database cannot be reached (and the last line says so); 1 something is
vulnerable. An advisory that does not concern us stands in pyproject.toml under `tool.supply-chain.accepted`, with the
reason.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tomllib
import uuid
from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import httpx

__all__ = ["Component", "bill_of_materials", "components", "main"]

ROOT = Path(__file__).parents[1]
_ADVISORIES = "https://api.osv.dev"
_SECONDS = 10.0
_PIN = re.compile(r"([A-Za-z0-9._-]+)==([A-Za-z0-9.+!]+)")
_VENDORED = re.compile(r"`(@?[a-z0-9./-]+)`,? (?:version )?([0-9]+\.[0-9]+\.[0-9]+)")
_PINS = ("constraints.txt", "tests/spark/connect.txt", "tools/docs/requirements.txt")
_PAGES = ("src/aviso_server/web/vendor/README.md", "CONTRIBUTING.md")  # they say what is vendored


class Component(NamedTuple):
    """A package of others, as its registry names it."""

    ecosystem: str  # PyPI or npm, as OSV calls them
    name: str
    version: str

    @property
    def purl(self) -> str:
        """Its package URL."""
        return f"pkg:{self.ecosystem.lower()}/{self.name.replace('@', '%40')}@{self.version}"


def components(root: Path = ROOT) -> list[Component]:
    """Every pinned package, and every vendored one."""
    found: list[Component] = []
    for file in _PINS:
        for name, version in _PIN.findall((root / file).read_text(encoding="utf-8")):
            found.append(Component("PyPI", re.sub(r"[-_.]+", "-", name).lower(), version))
    for page in _PAGES:
        for name, version in _VENDORED.findall((root / page).read_text(encoding="utf-8")):
            found.append(Component("npm", name, version))
    return sorted(set(found))


def bill_of_materials(parts: Sequence[Component], version: str) -> dict[str, Any]:
    """The CycloneDX document; the same for the same parts."""
    own = f"pkg:pypi/aviso-server@{version}"
    text = "\n".join(part.purl for part in parts)
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, own + text)}",
        "version": 1,
        "metadata": {
            "component": {
                "type": "application",
                "bom-ref": own,
                "name": "aviso-server",
                "version": version,
                "purl": own,
                "licenses": [{"license": {"id": "Apache-2.0"}}],
            }
        },
        "components": [_described(part) for part in parts],
        "dependencies": [{"ref": own, "dependsOn": [part.purl for part in parts]}],
    }


def _described(part: Component) -> dict[str, Any]:
    found = {"type": "library", "bom-ref": part.purl, "name": part.name, "version": part.version, "purl": part.purl}
    licence = _licence(part)
    return {**found, "licenses": [licence]} if licence else found


def _licence(part: Component) -> dict[str, Any] | None:
    """What an installed package says of its licence, if it says it in the standard form."""
    if part.ecosystem != "PyPI":
        return None
    try:
        said = metadata.metadata(part.name)
    except metadata.PackageNotFoundError:
        return None
    return {"expression": said["License-Expression"]} if "License-Expression" in said else None


def advisories(parts: Sequence[Component], url: str) -> Iterator[tuple[Component, str]]:
    """The advisories about these parts; httpx.HTTPError or ValueError if the database does not answer."""
    queries = [{"package": {"ecosystem": part.ecosystem, "name": part.name}, "version": part.version} for part in parts]
    answer = httpx.post(f"{url.rstrip('/')}/v1/querybatch", json={"queries": queries}, timeout=_SECONDS)
    answer.raise_for_status()
    results = answer.json().get("results")
    if not isinstance(results, list) or len(results) != len(parts):
        raise ValueError("the answer is not that of an OSV database")
    for part, result in zip(parts, results, strict=True):
        for each in result.get("vulns", ()):
            yield part, each["id"]


def main(arguments: Sequence[str] | None = None, accepted: Mapping[str, str] | None = None) -> int:
    """Write the bill of materials, look for advisories, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tools.supply_chain", allow_abbrev=False)
    parser.add_argument("--sbom", type=Path, default=ROOT / "build" / "sbom.cdx.json")
    parser.add_argument("--advisories", default=_ADVISORIES, help="a database with the interface of api.osv.dev")
    given = parser.parse_args(arguments)
    parts = components()
    given.sbom.parent.mkdir(parents=True, exist_ok=True)
    given.sbom.write_text(json.dumps(bill_of_materials(parts, _version()), indent=2) + "\n", encoding="utf-8")
    print(f"Bill of materials: {len(parts)} packages in {given.sbom}")
    try:
        found = list(advisories(parts, given.advisories))
    except (httpx.HTTPError, ValueError, KeyError, AttributeError) as error:
        reason = str(error) or type(error).__name__
        print(f"NOT CHECKED for known vulnerabilities: {given.advisories} cannot be asked ({reason})")
        return 0
    excused = _accepted() if accepted is None else accepted
    for part, name in found:
        print(f"{part.name} {part.version}: {name} {excused.get(name, 'is not accepted in pyproject.toml')}")
    refused = [name for _, name in found if name not in excused]
    print(f"Known vulnerabilities: {len(refused)}" if refused else "No known vulnerabilities")
    return 1 if refused else 0


def _accepted() -> dict[str, str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    found: dict[str, str] = project["tool"]["supply-chain"]["accepted"]
    return found


def _version() -> str:
    text = (ROOT / "src" / "aviso_server" / "__init__.py").read_text(encoding="utf-8")
    found = re.search(r'__version__ = "([^"]+)"', text)
    assert found is not None
    return found[1]


if __name__ == "__main__":
    sys.exit(main())
