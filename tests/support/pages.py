"""Parts of the pages of the documentation."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def table_of(page: Path, first_column: str) -> list[list[str]]:
    """Return the rows of the table in *page* whose first column has that name."""
    _, _, rest = page.read_text(encoding="utf-8").partition(f"| {first_column} |")
    rows = rest.partition("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]
