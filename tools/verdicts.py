"""Judge every job of the test bed and print the table of docs/verdicts.md; --write puts it into the page."""

from __future__ import annotations

import argparse
import importlib.util
import re
import sys
import tempfile
import time
from collections import defaultdict
from functools import partial
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
    parser.add_argument("--record", action="store_true", help="keep the logs of the real jobs in the repository")
    parser.add_argument("--replay", action="store_true", help="judge the recorded logs instead of running real jobs")
    parser.add_argument("--only", metavar="TEXT", default="", help="judge the jobs whose name holds TEXT")
    parser.add_argument("--minutes", type=float, default=60.0, help="begin no further job after so long (default: 60)")
    options = parser.parse_args()
    if options.only and options.write:
        parser.error("--write needs all jobs: leave out --only")
    real = load_real()
    jobs: dict[str, Any] = {
        name: (labelled.cause, labelled, simulated) for name, labelled in {**real.bed.JOBS, **real.bed.LARGE}.items()
    }
    for seed in range(HEALTHY):
        labelled = real.bed.Labelled(cause="healthy and noisy", kind=None, job=real.bed.healthy(seed))
        jobs[f"healthy {seed}"] = labelled.cause, labelled, simulated
    judge = partial(replayed, real) if options.replay else partial(run, real, keep=options.record)
    for name, labelled in real.REAL.items():
        if options.replay or real.is_installed(labelled):
            cause = f"{labelled.cause} (real)"
            jobs[name] = cause, labelled, partial(judge, name)
        else:
            print(f"{name}: left out, {labelled.loop} is not installed", file=sys.stderr)
    jobs = {name: job for name, job in jobs.items() if options.only in name}
    counts: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0, 0, 0])
    is_whole = judge_all(counts, jobs, until_s=time.monotonic() + 60 * options.minutes)
    for name, (cause, *_) in jobs.items():
        is_wrong = real.traceml_mistakes(name) if name in real.REAL else None
        if is_wrong is not None:
            counts[cause][3 + is_wrong] += 1
    table = table_of(counts)
    print(table)
    if options.write and is_whole:
        page = PAGE.read_text(encoding="utf-8")
        page = re.sub(r"(?s)(<!-- table -->\n).*?(<!-- end -->)", lambda found: found[1] + table + found[2], page)
        PAGE.write_text(page, encoding="utf-8")
    return int(not is_whole or any(own[1] or own[2] for own in counts.values()))


def judge_all(counts: dict[str, list[int]], jobs: dict[str, Any], *, until_s: float) -> bool:
    """Judge *jobs*, a line of progress for each; one that fails is wrong. Return whether there was time for all."""
    for number, (name, (cause, labelled, judge)) in enumerate(jobs.items(), 1):
        began_s = time.monotonic()
        if began_s > until_s:
            print(f"out of time: {len(jobs) - number + 1} jobs were not judged", file=sys.stderr)
            return False
        try:
            mistakes = judge(labelled)
        except Exception as error:
            mistakes = [f"{type(error).__name__}: {error}"]
        add(counts, name, cause, mistakes, is_healthy=labelled.kind is None)
        state = "wrong" if mistakes else "right"
        print(f"{number}/{len(jobs)} {name}: {state}, {time.monotonic() - began_s:.1f} s", file=sys.stderr, flush=True)
    return True


def run(real: Any, name: str, _labelled: Any, *, keep: bool) -> list[str]:
    """Run a real job, and return the faults of the verdict on it."""
    with tempfile.TemporaryDirectory() as directory:
        mistakes: list[str] = real.judge(name, Path(directory), keep=keep)
    return mistakes


def replayed(real: Any, name: str, labelled: Any) -> list[str]:
    """Return the faults of the verdict on the recorded logs of a real job."""
    with tempfile.TemporaryDirectory() as directory:
        mistakes: list[str] = labelled.mistakes(real.replayed(name, Path(directory)).verdict)
    return mistakes


def load_real() -> Any:
    """Return the module of the real jobs, which has the test bed."""
    sys.path.append(str(ROOT / "tests" / "support"))  # as pytest has it: the test bed writes logs by it
    spec = importlib.util.spec_from_file_location("verdict_real", ROOT / "tests" / "verdicts" / "real.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def simulated(labelled: Any) -> list[str]:
    """Return the faults of the verdict on a simulated job."""
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
    total = [sum(own[place] for own in counts.values()) for place in range(5)]
    lines = [
        "| cause | right | wrong | false accusation | TraceML right | TraceML wrong |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for cause, (right, wrong, accused, *traceml) in {**counts, "**all**": total}.items():
        beside = " | ".join(map(str, traceml)) if any(traceml) else " | "
        lines.append(f"| {cause} | {right} | {wrong} | {accused} | {beside} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
