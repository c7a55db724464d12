"""On which side of a line a point lies, without rounding errors."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from aviso_server.model.geometry.runs import Numbers

__all__ = ["certain_sides", "side"]

# The rounding of the six operations below stays under this share of the two products (a little over
# 3 * 2**-53), the loss of very small products under the second value.
_ROUNDING = 3.3306690738754716e-16
_UNDERFLOW = 1e-300


def side(ax: float, ay: float, bx: float, by: float, cx: float, cy: float) -> float:
    """Positive if c lies left of the line from a to b, negative if right of it, zero if on it; exact."""
    left = (ax - cx) * (by - cy)
    right = (ay - cy) * (bx - cx)
    area = left - right
    # Overflow makes the comparison false, so it ends in the exact test as well.
    if abs(area) > _ROUNDING * (abs(left) + abs(right)) + _UNDERFLOW:
        return area
    return _exact_side(ax, ay, bx, by, cx, cy)


def certain_sides(ax: Numbers, ay: Numbers, bx: Numbers, by: Numbers, cx: Numbers, cy: Numbers) -> npt.NDArray[np.int8]:
    """For many triples at once: 1 or -1 where the side is beyond doubt, 0 where `side` has to decide."""
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        left = (ax - cx) * (by - cy)
        right = (ay - cy) * (bx - cx)
        area = left - right
        doubt = _ROUNDING * (np.abs(left) + np.abs(right)) + _UNDERFLOW
        return (area > doubt).astype(np.int8) - (area < -doubt).astype(np.int8)


def _exact_side(ax: float, ay: float, bx: float, by: float, cx: float, cy: float) -> int:
    left = _sign(ax, cx) * _sign(by, cy)
    right = _sign(ay, cy) * _sign(bx, cx)
    if left != right or left == 0:
        return left - right
    # Floats are fractions over powers of two: over the largest denominator all six are integers.
    ratios = [value.as_integer_ratio() for value in (ax, ay, bx, by, cx, cy)]
    scale = max(denominator for _, denominator in ratios)
    iax, iay, ibx, iby, icx, icy = (numerator * (scale // denominator) for numerator, denominator in ratios)
    area = (iax - icx) * (iby - icy) - (iay - icy) * (ibx - icx)
    return (area > 0) - (area < 0)


def _sign(value: float, other: float) -> int:
    return (value > other) - (value < other)
