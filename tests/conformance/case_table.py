"""Which conformance cases are tested where, which a ruling has changed, and which wait for a feature.

Cases are numbered as in the contract: 1 to 237, and n1 to n13 for what came after release 0.7.1. A case counts as
tested when a test function carries its number: `test_case_072_...`, `test_case_n03_...`.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

__all__ = ["ALL", "ELSEWHERE", "RULED", "WAITING", "cases_with_tests"]

ALL = [f"{number:03}" for number in range(1, 238)] + [f"n{number:02}" for number in range(1, 14)]

RULED = {
    "034": "D17: to_id and to_date are members of a replay, and refused with a reason elsewhere",
    "051": "D12: generic events are delivered like any other",
    "059": "D6, D7: an unknown identifier key is a 400",
    "078": "D11: fields outside key_order are delivered",
    "083": "D6: an unknown identifier key is a 400 on reading too",
    "091": "D11: a scalar outside key_order filters",
    "092": "D11: a constraint outside key_order filters",
    "144": "D14: the pause between batches is 0 unless configured; the case configures 100 ms",
    "147": "D4: exactly once",
    "148": "D3: a cap per request, on every backend",
    "149": "D5: no replay_completed after a failed read",
    "153": "D16: the polygon comes back as an array",
    "154": "D16: the polygon comes back as an array",
    "158": "D16: a point may be a JSON array",
    "167": "D16: the text becomes an array",
    "169": "D17: point and polygon are unknown fields where there is no geometry",
    "170": "D2: a polygon never routes on reading",
    "185": "D8: an unknown stream is a 404",
    "192": "D15: sequences belong to a stream",
    "236": "D8: a stream is found by its name in any case",
}
"""Cases whose outcome in 0.7.1 a ruling has overruled. The tests expect the ruling's outcome."""

WAITING: dict[str, str] = {}
"""Cases that need a feature which this version does not have. Configuring one of these features is refused."""

ELSEWHERE = {
    "113": "tests/model: malformed wire tokens cannot be stored over HTTP; every value that can be is tested here",
    "150": "tests/delivery: no fault from outside makes a subscription fail; a replay without an end is tested here",
}
"""Cases with a part that cannot be reached over the wire, and where that part is tested."""


def cases_with_tests() -> dict[str, set[str]]:
    """The numbers that test functions of this suite carry, with the modules they are in."""
    found: dict[str, set[str]] = {}
    for path in sorted(Path(__file__).parent.glob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef) and (match := re.match(r"test_case((?:_n?\d{2,3})+)_", node.name)):
                for number in match[1].strip("_").split("_"):
                    found.setdefault(number, set()).add(path.name)
    return found
