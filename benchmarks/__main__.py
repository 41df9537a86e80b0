"""
``python -m benchmarks``: print the cost of trackside and of its peers, measured in one run.

A family that cannot be measured is reported with the reason, and the others go on; the exit code is then 1.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import platform
import sys
import traceback
from collections.abc import Callable
from importlib import import_module

import attrs

from benchmarks.measure import Row
from trackside import implementation

FAMILIES = (
    "emission",
    "threads",
    "counters",
    "files",
    "frames",
    "spans",
    "iterations",
    "sections",
    "gpu",
    "scores",
    "goodput",
    "parquet",
    "report",
    "zeromq",
    "streams",
    "imports",
    "growth",
    "whole",
    "watched",
    "sinks",
)


def main() -> int:
    """Measure and print; 1 if a budget is not met or a family could not be measured."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("only", nargs="*", metavar="FAMILY", help=f"of {', '.join(FAMILIES)}; all unless given")
    parser.add_argument("--json", metavar="FILE", type=pathlib.Path, help="keep the figures")
    parser.add_argument("--full", action="store_true", help="measure families at full size that are smaller else")
    options = parser.parse_args()
    unknown = set(options.only) - set(FAMILIES)
    if unknown:
        parser.error(f"there is no family {', '.join(sorted(unknown))}; choose from {', '.join(FAMILIES)}")
    rows: list[Row] = []
    failed: dict[str, str] = {}
    python = f"CPython {platform.python_version()}, {platform.machine()}, trackside {implementation}"
    print(f"{python}; ns per operation, median of interleaved repeats")
    print(f"{'operation':<56} {'ours':>9} {'peer':>9}  {'peer is':<20} {'ratio':>6} {'budget':>6}  met  spread of ours")
    for family in options.only or FAMILIES:
        try:
            found = measured(family, is_full=options.full)
        except Exception as error:
            traceback.print_exc()
            failed[family] = f"{type(error).__name__}: {error}"
            continue
        for row in found:
            rows.append(row)
            print(line(row), flush=True)
    for family, reason in failed.items():
        print(f"{family:<56} NOT MEASURED: {reason}")
    if options.json is not None:
        options.json.write_text(json.dumps([{**attrs.asdict(row), "met": row.is_met} for row in rows], indent=2))
    return 0 if not failed and all(row.is_met for row in rows) else 1


def measured(family: str, *, is_full: bool) -> list[Row]:
    """Return the rows of a family."""
    module = import_module(f"benchmarks.{family}")
    measure: Callable[[], list[Row]] = getattr(module, "full_rows", module.rows) if is_full else module.rows
    return measure()


def line(row: Row) -> str:
    """Return *row* as a line of the table."""
    spread = f"{row.ours.best_ns:,.0f} to {row.ours.worst_ns:,.0f}"
    return (
        f"{row.operation:<56} {row.ours.median_ns:>9,.0f} {row.theirs.median_ns:>9,.0f}  {row.peer:<20}"
        f" {row.ratio:>6.3f} {row.budget:>6.2f}  {'yes' if row.is_met else 'NO ':<3}  {spread}"
    )


if __name__ == "__main__":
    sys.exit(main())
