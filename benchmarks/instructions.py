"""
The instructions and the time of the hottest operations: ``make profile``.

Prints how many instructions the hottest operations execute, as counted by callgrind, beside the baseline kept for
this interpreter and implementation in ``benchmarks/baselines/``; then, for each, which functions the calling thread's
time goes to.
Instructions are the same whatever else the machine does, so a change of a percent can be seen; ``--update`` keeps the
new counts.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import os
import pathlib
import platform
import pstats
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack

import trackside
from trackside._later import load_all
from trackside.bus import Bus, default_bus
from trackside.events import SectionWindow
from trackside.instruments.section_windows import Sections

BASELINES = pathlib.Path(__file__).parent / "baselines"
FEW, MANY = 2_000, 6_000
COUNTERS = 15
STEPS_OF_A_DRAIN = 200
"""Steps of 1 ms until the dispatcher has what they logged; under valgrind the clock would leave that to chance."""
TOLERANCE = 0.02
"""The share by which a count may exceed its baseline: hash seeds and addresses move it a little."""
OWN_THREAD = frozenset(("step",))
"""Operations whose instructions are counted in the thread that does them: other threads work by the clock."""
CEILINGS = {"compiled": 17_600, "pure": 160_000}
"""The most instructions that a step may take: what was reached and a thirtieth, in pure Python a tenth; tested."""
SHARES = 12
"""Functions shown of each operation."""

Run = Callable[[int], None]


@trackside.event("benchmark.step.profiled")
class StepProfiled(trackside.Event):
    """An event of two fields."""

    index: int
    value: float


def _nothing(_event: object) -> None:
    pass


def _log(stack: ExitStack) -> Run:
    bus = Bus()
    stack.enter_context(bus.subscribe(_nothing, to=StepProfiled))

    def run(loops: int) -> None:
        for index in range(loops):
            bus.log(StepProfiled(index=index, value=1.0))

    return run


def _counter_add(_stack: ExitStack) -> Run:
    add = Bus().counter("profiled").add

    def run(loops: int) -> None:
        for _ in range(loops):
            add(1.0)

    return run


def _span(stack: ExitStack) -> Run:
    directory = stack.enter_context(tempfile.TemporaryDirectory())
    stack.enter_context(default_bus.subscribe(trackside.EventLog(pathlib.Path(directory) / "log", fsync_s=None)))

    def run(loops: int) -> None:
        for _ in range(loops):
            with trackside.span("step"):
                pass
        default_bus.flush()

    return run


def _section(stack: ExitStack) -> Run:
    bus = Bus()
    stack.enter_context(bus.subscribe(_nothing, to=SectionWindow))
    sections = Sections(bus)
    stack.callback(sections.close)

    def run(loops: int) -> None:
        for _ in range(loops):
            with sections.section("forward"):
                pass

    return run


def _step(stack: ExitStack) -> Run:
    # The parts that `start` adds work in other threads. Under valgrind, where one thread runs at a time, they would
    # only be slow.
    load_all("trackside")  # as `start` does
    directory = stack.enter_context(tempfile.TemporaryDirectory())
    stack.enter_context(default_bus.subscribe(trackside.EventLog(pathlib.Path(directory) / "log", fsync_s=None)))
    counters = [trackside.counter(f"train.value_{number}") for number in range(COUNTERS)]

    def run(loops: int) -> None:
        for step in range(loops):
            if not step % STEPS_OF_A_DRAIN:
                default_bus.flush()
            with trackside.training_iteration(step=step) as iteration:
                with trackside.data_loading():
                    pass
                with trackside.model_forward():
                    pass
                with trackside.model_backward():
                    pass
                with trackside.optimizer_update():
                    pass
                iteration.set(samples=64)
                for counter in counters:
                    counter.add(1.0)

    return run


OPERATIONS: dict[str, tuple[str, Callable[[ExitStack], Run]]] = {
    "log": ("an event of two fields built and logged to one handler", _log),
    "counter": ("a value added to a counter", _counter_add),
    "span": ("a span opened, closed and written to an event log, in all threads", _span),
    "section": ("a section entered and left", _section),
    "step": (f"a step: an iteration, 4 spans, {COUNTERS} counters; the thread that trains", _step),
}


def counted(operation: str, few: int = FEW, many: int = MANY) -> float:
    """
    Return the instructions of one *operation*, start and end of the process left out; of a step in its own thread.

    Args:
        operation: One of `OPERATIONS`.
        few: The number of operations in the first process that is counted.
        many: The number in the second.

    Raises:
        CalledProcessError: if valgrind or the operation fails.
    """
    # Once uncounted: the first process of a fresh checkout compiles the modules, which the second one then need not.
    subprocess.run([sys.executable, *_doing(operation, 1)], check=True, capture_output=True)  # noqa: S603  ours
    less, more = (_counted_process(operation, loops) for loops in (few, many))
    return (more - less) / (many - few)


def _doing(operation: str, loops: int) -> list[str]:
    """Return the interpreter's arguments for a process that does *operation* so often."""
    return ["-m", "benchmarks.instructions", "--run", operation, str(loops)]


def _counted_process(operation: str, loops: int) -> int:
    with tempfile.TemporaryDirectory() as directory:
        command = [
            "valgrind",
            "--tool=callgrind",
            "--separate-threads=yes",
            "--fair-sched=try",
            f"--callgrind-out-file={directory}/out",
            sys.executable,
            *_doing(operation, loops),
        ]
        environ = {**os.environ, "PYTHONHASHSEED": "0"}
        subprocess.run(command, check=True, capture_output=True, env=environ)  # noqa: S603  ours
        files = sorted(pathlib.Path(directory).glob("out-01" if operation in OWN_THREAD else "out-*"))
        found = [re.search(r"^totals: (\d+)", file.read_text(), re.MULTILINE) for file in files]
    return sum(int(total[1]) for total in found if total is not None)


def show_counts(*, update: bool) -> int:
    """Print the counts beside the baselines; 1 if one is exceeded."""
    interpreter = "{}.{}".format(*sys.version_info[:2])
    file = BASELINES / f"instructions-{interpreter}-{trackside.implementation}.json"
    kept: dict[str, float] = json.loads(file.read_text()) if file.exists() else {}
    found: dict[str, float] = {}
    python = f"CPython {platform.python_version()}, trackside {trackside.implementation}"
    print(f"instructions of one operation, {python}, under callgrind")
    for name, (what, _) in OPERATIONS.items():
        found[name] = round(counted(name))
        before = kept.get(name)
        change = f"{found[name] / before - 1:+.1%} of the baseline's {before:,.0f}" if before else "no baseline"
        print(f"  {what:<68} {found[name]:>8,.0f}  {change}", flush=True)
    if update:
        file.parent.mkdir(exist_ok=True)
        file.write_text(json.dumps(found, indent=2) + "\n")
        print(f"kept in benchmarks/baselines/{file.name}")
        return 0
    return int(any(found[name] > kept.get(name, found[name]) * (1 + TOLERANCE) for name in found))


def show_step() -> int:
    """Print the instructions of a step beside the most that it may take; 1 if it takes more."""
    found, most = counted("step", few=400, many=1_200), CEILINGS[trackside.implementation]
    print(f"{OPERATIONS['step'][0]}: {found:,.0f} instructions, {trackside.implementation}; at most {most:,}")
    return int(found > most)


def show_shares() -> None:
    """Print the time of the calling thread, by function."""
    for name, (what, prepare) in OPERATIONS.items():
        with ExitStack() as stack:
            run = prepare(stack)
            run(1_000)
            profile = cProfile.Profile()
            profile.runcall(run, 4_000)
        rows = pstats.Stats(profile).stats  # type: ignore[attr-defined]
        total_s = sum(own_s for _, _, own_s, _, _ in rows.values())
        print(f"\n{name}: {what}; share of the calling thread's time, as far as the profiler can see it")
        for (path, line, function), (_, calls, own_s, _, _) in sorted(rows.items(), key=lambda row: -row[1][2])[
            :SHARES
        ]:
            where = f"{pathlib.Path(path).name}:{line} " if line else ""
            print(f"  {own_s / total_s:>6.1%} {calls:>8,} calls  {where}{function}")


def main() -> int:
    """Count and show; 1 if there are more instructions than the baseline allows."""
    parser = argparse.ArgumentParser(prog="make profile ARGS=…", description=__doc__)
    parser.add_argument("--update", action="store_true", help="keep the counts as this interpreter's baseline")
    parser.add_argument(
        "--check", action="store_true", help="count those of a step alone, and fail if they are too many"
    )
    parser.add_argument("--run", nargs=2, metavar=("OPERATION", "LOOPS"), help="do an operation: what is counted")
    options = parser.parse_args()
    if options.run is not None:
        operation, loops = options.run
        with ExitStack() as stack:
            OPERATIONS[operation][1](stack)(int(loops))
        return 0
    if options.check:
        return show_step()
    if shutil.which("valgrind") is None:
        print("no instructions counted: there is no valgrind on this machine (Debian's package valgrind)")
        status = 0
    else:
        status = show_counts(update=options.update)
    show_shares()
    return status


if __name__ == "__main__":
    sys.exit(main())
