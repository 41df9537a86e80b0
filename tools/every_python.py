"""
Run the tests on every Python that this machine has, and say which ones it lacks.

    .venv/bin/python tools/every_python.py [--provide] [--measure] [pytest's arguments]

First comes the interpreter that runs this script, in its own environment and with all tests; then the same once more
without the compiled core, with the long recipes cut shorter still; then each
other CPython from 3.10 on that is on the PATH or known to pyenv and, with ``--provide``, those that
`tools/interpreters.py` can provide; each in an environment of its own under .venvs/, without torch, with the long
recipes cut shorter still and without what only reads the sources.

With ``--measure`` one of the others, 3.14, runs all tests and leaves in build/coverage which lines and branches of the
package they reach; the rest run the tests of the core. Interpreters that were left out are listed at the end.

Failed tests are run once more: `tools/twice.py`.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import interpreters

ROOT = Path(__file__).resolve().parents[1]
SUPPORTED = ("3.10", "3.11", "3.12", "3.13", "3.14", "3.14t", "3.15")
"""Those with a "t" run without the interpreter lock."""
CORE = ("bus", "core", "counters", "events", "instruments", "wire", "handlers/eventlog", "handlers/zeromq")
"""The folders of the tests that run everywhere: threads, processes, bytes and sockets."""
LEFT_OUT = ("3.13",)
"""The minor versions that ``--measure`` leaves to ``make test-all``: the versions before and after them run."""
MEASURED = "3.14"
"""From this version on, an interpreter reports branches at little cost, and without a trace function."""
COVERAGE = ROOT / "build" / "coverage"
OLDEST = (3, 10)
NO_TESTS = 5
PROBE = """
import importlib.util, json, sys, sysconfig
print(json.dumps({
    "version": sys.version_info[:3],
    "free_threaded": bool(sysconfig.get_config_var("Py_GIL_DISABLED")),
    "usable": sys.implementation.name == "cpython"
    and sys.version_info.releaselevel == "final"
    and sys.prefix == sys.base_prefix
    and all(map(importlib.util.find_spec, ("venv", "ensurepip"))),
}))
"""


class Interpreter(NamedTuple):
    """An interpreter of this machine."""

    version: tuple[int, int, int]
    path: Path
    launcher: tuple[str, ...] = ()
    """The first words of a command line that runs the rest of it where this interpreter is."""
    free_threaded: bool = False

    @property
    def name(self) -> str:
        """The name as its executable has it: 3.12, or 3.14t without the interpreter lock."""
        return "{}.{}".format(*self.version) + "t" * self.free_threaded

    def __str__(self) -> str:
        return "Python {}.{}.{}".format(*self.version) + "t" * self.free_threaded


class Outcome(NamedTuple):
    """The result of the tests on one interpreter."""

    interpreter: Interpreter
    verdict: str
    seconds: float
    extent: str = "all tests"

    @property
    def good(self) -> bool:
        """Whether no test failed."""
        return self.verdict in {"passed", "no tests"}


def main(arguments: Sequence[str]) -> int:
    options = {"--provide", "--measure"}.intersection(arguments)
    arguments = [argument for argument in arguments if argument not in options]
    measures = "--measure" in options
    this = this_interpreter()
    outcomes = [run_tests(this, this.path, *arguments)]
    outcome = run_tests(this, this.path, "--scale", "0.01", *arguments, TRACKSIDE_PURE_PYTHON="1")
    outcomes.append(outcome._replace(extent="all tests in pure Python, recipes cut short"))
    left_out = LEFT_OUT if measures else ()
    found = [interpreter for interpreter in others(this) if interpreter.name not in left_out]
    missing: dict[str, str] = {}
    if "--provide" in options:
        present = {this.name, *left_out, *(interpreter.name for interpreter in found)}
        provided, missing = provide([name for name in SUPPORTED if name not in present])
        found += provided
    for interpreter in found:
        is_measured = measures and interpreter.name == MEASURED
        environment = ROOT / ".venvs" / interpreter.name
        script = str(ROOT / "tools" / "environment.py")
        make = [*interpreter.launcher, str(interpreter.path), script, str(environment), "--group", "test"]
        make += ["--group", "coverage"] if is_measured else []
        if subprocess.run(make, check=False, stdin=subprocess.DEVNULL).returncode:
            outcomes.append(Outcome(interpreter, "could not be set up", 0.0))
            continue
        # A hundredth of the long recipes: differences between interpreters show early.
        chosen = f"not integration and not {'unmeasured' if is_measured else 'once'}"
        shorter = ["--scale", "0.01", "-m", chosen, "--ignore=tests/integration"]
        extent = "all tests but those marked once, recipes cut short"
        if is_measured:
            shutil.rmtree(COVERAGE, ignore_errors=True)
            extent = "all tests that can be measured, recipes cut short"
        elif measures:
            shorter += [f"tests/{folder}" for folder in CORE]
            extent = "the core's tests, recipes cut short"
        python = environment / "bin" / "python"
        outcome = run_tests(interpreter, python, *shorter, *arguments, is_measured=is_measured)
        outcomes.append(outcome._replace(extent=extent))
    report(outcomes, missing, left_out)
    return 0 if all(outcome.good for outcome in outcomes) else 1


def this_interpreter() -> Interpreter:
    free_threaded = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))
    return Interpreter(sys.version_info[:3], Path(sys.executable), free_threaded=free_threaded)


def run_tests(
    interpreter: Interpreter, python: Path, *arguments: str, is_measured: bool = False, **variables: str
) -> Outcome:
    print(f"\n== {interpreter} {' '.join(f'{name}={value}' for name, value in variables.items())}".rstrip(), flush=True)
    started = time.monotonic()
    measure = ["-m", "coverage", "run", f"--data-file={COVERAGE / f'data.{MEASURED}'}"] if is_measured else []
    twice = [*measure, str(ROOT / "tools" / "twice.py"), "--numprocesses", "2"]
    pytest = [*interpreter.launcher, str(python), *twice, *arguments]
    environ = {**os.environ, **variables}
    status = subprocess.run(pytest, check=False, cwd=ROOT, stdin=subprocess.DEVNULL, env=environ).returncode
    verdict = {0: "passed", NO_TESTS: "no tests"}.get(status, "FAILED")
    return Outcome(interpreter, verdict, time.monotonic() - started)


def report(outcomes: Sequence[Outcome], missing: Mapping[str, str], left_out: Sequence[str] = ()) -> None:
    print()
    for outcome in outcomes:
        print(f"{outcome.interpreter!s:<15} {outcome.verdict}, {outcome.seconds:.0f} s ({outcome.extent})")
    ran = {outcome.interpreter.name for outcome in outcomes}
    for name in SUPPORTED:
        if name in left_out:
            print(f"untested: {name} (left to make test-all)")
        elif name not in ran:
            print(f"untested: {name} ({missing.get(name, 'not on this machine; make test-all provides it')})")


def others(this: Interpreter) -> list[Interpreter]:
    """Return the newest usable interpreter of each name but that of *this*."""
    found = sorted(filter(None, map(probe, set(candidates()))))
    newest = {interpreter.name: interpreter for interpreter in found if interpreter.name != this.name}
    return list(newest.values())


def provide(names: Sequence[str]) -> tuple[list[Interpreter], dict[str, str]]:
    """Return those of *names* that can be provided here, and the reasons for the others."""
    found: list[Interpreter] = []
    missing: dict[str, str] = {}
    for name in names:
        try:
            path, launcher = interpreters.provide(name)
        except interpreters.NotProvidedError as error:
            missing[name] = str(error)
            continue
        interpreter = probe(path, launcher)
        if interpreter is None:
            missing[name] = f"{path} does not run here"
        else:
            found.append(interpreter)
    return found, missing


def candidates() -> Iterator[Path]:
    """Yield paths that may be a Python: pythonX.Y or X.Yt on the PATH, and pyenv's versions, chosen there or not."""
    for directory in os.get_exec_path():
        yield from (path for path in Path(directory).glob("python3.*") if re.fullmatch(r"python3\.\d+t?", path.name))
    if shutil.which("pyenv"):
        root = subprocess.run(["pyenv", "root"], check=False, capture_output=True, text=True).stdout.strip()
        yield from Path(root, "versions").glob("*/bin/python")


def probe(path: Path, launcher: tuple[str, ...] = ()) -> Interpreter | None:
    """Return the interpreter at *path*, or None if it does not run or the tests cannot run on it."""
    command = [*launcher, str(path), "-I", "-c", PROBE]
    try:
        answer = subprocess.run(command, check=True, capture_output=True, timeout=60).stdout
        found = json.loads(answer)
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
    version = tuple(found["version"])
    if not found["usable"] or version < OLDEST:
        return None
    return Interpreter(version, path, launcher, found["free_threaded"])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
