"""Judge every job of the test bed and print the table of docs/verdicts.md; --write puts it into the page."""

from __future__ import annotations

import argparse
import importlib.util
import re
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

from trackside.report import read_report

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "verdicts.md"
HEALTHY = 200


def main() -> int:
    """Judge the jobs; 1 if any verdict is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="put the table into docs/verdicts.md")
    parser.add_argument("--no-real", action="store_true", help="leave out the real jobs, which take a minute or two")
    options = parser.parse_args()
    bed = load_bed()
    counts: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
    for name, labelled in {**bed.JOBS, **bed.LARGE}.items():
        add(counts, name, f"{labelled.cause}", simulated(labelled), is_healthy=labelled.kind is None)
    for seed in range(HEALTHY):
        labelled = bed.Labelled(cause="healthy and noisy", kind=None, job=bed.healthy(seed))
        add(counts, f"healthy {seed}", "healthy and noisy", simulated(labelled), is_healthy=True)
    if not options.no_real:
        add_real(counts, bed)
    table = table_of(counts)
    print(table)
    if options.write:
        page = PAGE.read_text(encoding="utf-8")
        page = re.sub(r"(?s)(<!-- table -->\n).*?(<!-- end -->)", lambda found: found[1] + table + found[2], page)
        PAGE.write_text(page, encoding="utf-8")
    return int(any(own[1] or own[2] for own in counts.values()))


def add_real(counts: dict[str, list[int]], bed: Any) -> None:
    """Run and judge the real jobs, as far as their frameworks are installed."""
    for name, labelled in {**bed.REAL, **bed.FRAMEWORKS}.items():
        if labelled.framework != "workers" and labelled.framework and not importlib.util.find_spec(labelled.framework):
            print(f"{name}: left out, {labelled.framework} is not installed", file=sys.stderr)
            continue
        with tempfile.TemporaryDirectory() as directory:
            mistakes = labelled.mistakes(bed.run_real(labelled, Path(directory)).verdict)
        cause = f"{labelled.cause} ({labelled.framework or 'plain loop'})"
        add(counts, f"real: {name}", cause, mistakes, is_healthy=labelled.kind is None)


def load_bed() -> Any:
    """Return the module of the test bed."""
    spec = importlib.util.spec_from_file_location("verdict_bed", ROOT / "tests" / "verdicts" / "bed.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def simulated(labelled: Any) -> list[str]:
    """Return what is wrong with the verdict on a simulated job."""
    with tempfile.TemporaryDirectory() as directory:
        mistakes: list[str] = labelled.mistakes(read_report(labelled.job.write(Path(directory))).verdict)
    return mistakes


def add(counts: dict[str, list[int]], name: str, cause: str, mistakes: list[str], *, is_healthy: bool) -> None:
    """Count a verdict as right, wrong or an accusation without a cause."""
    is_accused = bool(mistakes) and (is_healthy or all(one.startswith("accused") for one in mistakes))
    counts[cause][2 if is_accused else 1 if mistakes else 0] += 1
    for mistake in mistakes:
        print(f"{name}: {mistake}", file=sys.stderr)


def table_of(counts: dict[str, list[int]]) -> str:
    """Return the table, and its sum."""
    total = [sum(own[place] for own in counts.values()) for place in range(3)]
    lines = ["| cause | right | wrong | false accusation |", "| --- | ---: | ---: | ---: |"]
    lines += [f"| {cause} | {right} | {wrong} | {accused} |" for cause, (right, wrong, accused) in counts.items()]
    lines.append(f"| **all** | {total[0]} | {total[1]} | {total[2]} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
