"""Numbers and words in columns."""

from __future__ import annotations

import math
from collections.abc import Iterable

NS_PER_MS = 1e6
NS_PER_S = 1e9
_LONG = 10_000


def lay_out(rows: Iterable[tuple[str, ...]]) -> list[str]:
    """Lay out *rows*: the first column to the left, the others to the right."""
    table = list(rows)
    columns = max(map(len, table), default=0)
    padded = [row + ("",) * (columns - len(row)) for row in table]
    widths = [max(len(row[column]) for row in padded) for column in range(columns)]
    lines = []
    for first, *others in padded:
        cells = [cell.rjust(width + 3) for cell, width in zip(others, widths[1:], strict=True)]
        lines.append(first.ljust(widths[0]) + "".join(cells))
    return lines


def number(value: float | None, scale: float = 1.0) -> str:
    """Return *value* times *scale* in four digits or so; nothing if it is not known."""
    if value is None or math.isinf(value):
        return ""
    value *= scale
    return f"{value:,.0f}" if abs(value) >= _LONG else f"{value:.4g}"
