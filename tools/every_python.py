"""
Run the tests on every Python that this machine has, and say which ones it lacks.

    .venv/bin/python tools/every_python.py [--provide] [pytest's arguments]

First comes the interpreter that runs this script, in its own environment and with all tests; then each
other CPython from 3.10 on that is on the PATH or known to pyenv and, with ``--provide``, those that
`tools/interpreters.py` can provide; each in an environment of its own under .venvs/, without torch, with the long
recipes cut shorter still and without what only reads the sources.

What fails is run once more: `tools/twice.py`.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import interpreters

ROOT = Path(__file__).resolve().parents[1]
SUPPORTED = ("3.10", "3.11", "3.12", "3.13", "3.14", "3.15")
OLDEST = (3, 10)
NO_TESTS = 5
PROBE = """
import importlib.util, json, sys, sysconfig
print(json.dumps({
    "version": sys.version_info[:3],
    "usable": sys.implementation.name == "cpython"
    and sys.version_info.releaselevel == "final"
    and not sysconfig.get_config_var("Py_GIL_DISABLED")
    and sys.prefix == sys.base_prefix
    and all(map(importlib.util.find_spec, ("venv", "ensurepip"))),
}))
"""


class Interpreter(NamedTuple):
    """An interpreter of this machine."""

    version: tuple[int, int, int]
    path: Path
    launcher: tuple[str, ...] = ()
    """The beginning of a command line that runs the rest of it where this interpreter is."""

    @property
    def minor(self) -> str:
        """As people call it: 3.12."""
        return "{}.{}".format(*self.version)

    def __str__(self) -> str:
        return "Python {}.{}.{}".format(*self.version)


class Outcome(NamedTuple):
    """How the tests went on one interpreter."""

    interpreter: Interpreter
    verdict: str
    seconds: float

    @property
    def good(self) -> bool:
        """Whether nothing failed."""
        return self.verdict in {"passed", "no tests"}


def main(arguments: Sequence[str]) -> int:
    wants_more = "--provide" in arguments
    arguments = [argument for argument in arguments if argument != "--provide"]
    this = Interpreter(sys.version_info[:3], Path(sys.executable))
    outcomes = [test(this, this.path, *arguments)]
    found = others(this)
    if wants_more:
        found += provided({this.minor, *(interpreter.minor for interpreter in found)})
    for interpreter in found:
        environment = ROOT / ".venvs" / interpreter.minor
        script = str(ROOT / "tools" / "environment.py")
        make = [*interpreter.launcher, str(interpreter.path), script, str(environment), "--group", "test"]
        if subprocess.run(make, check=False, stdin=subprocess.DEVNULL).returncode:
            outcomes.append(Outcome(interpreter, "could not be set up", 0.0))
            continue
        # A hundredth of the long recipes: what differs between interpreters shows early.
        shorter = (
            "--scale",
            "0.01",
            "-m",
            "not integration and not once",
            "--ignore=tests/integration",
        )
        outcomes.append(test(interpreter, environment / "bin" / "python", *shorter, *arguments))
    report(outcomes)
    return 0 if all(outcome.good for outcome in outcomes) else 1


def test(interpreter: Interpreter, python: Path, *arguments: str) -> Outcome:
    print(f"\n== {interpreter} ==", flush=True)
    started = time.monotonic()
    pytest = [*interpreter.launcher, str(python), str(ROOT / "tools" / "twice.py"), "--numprocesses", "2", *arguments]
    status = subprocess.run(pytest, check=False, cwd=ROOT, stdin=subprocess.DEVNULL).returncode
    verdict = {0: "passed", NO_TESTS: "no tests"}.get(status, "FAILED")
    return Outcome(interpreter, verdict, time.monotonic() - started)


def report(outcomes: Sequence[Outcome]) -> None:
    print()
    for outcome in outcomes:
        print(f"{outcome.interpreter!s:<15} {outcome.verdict}, {outcome.seconds:.0f} s")
    ran = {outcome.interpreter.minor for outcome in outcomes}
    missing = [minor for minor in SUPPORTED if minor not in ran]
    if missing:
        print(f"untested: {', '.join(missing)} (not on this machine)")


def others(this: Interpreter) -> list[Interpreter]:
    """Return the newest usable interpreter of each minor version but that of *this*."""
    found = sorted(filter(None, map(probe, set(candidates()))))
    newest = {interpreter.minor: interpreter for interpreter in found if interpreter.minor != this.minor}
    return list(newest.values())


def provided(present: set[str]) -> list[Interpreter]:
    """Return the supported interpreters that are not *present* and can be had from Debian; say why where not."""
    lacking = [minor for minor in SUPPORTED if minor not in present]
    try:
        minors = interpreters.provide(lacking)
    except interpreters.NotProvidedError as error:
        print(f"no Python {', '.join(lacking)} here: {error}", flush=True)
        return []
    launcher = tuple(interpreters.launcher())
    found = [probe(Path(f"/usr/bin/python{minor}"), launcher) for minor in minors]
    return [interpreter for interpreter in found if interpreter is not None]


def candidates() -> Iterator[Path]:
    """Yield what may be a Python: pythonX.Y on the PATH, and pyenv's versions, chosen there or not."""
    for directory in os.get_exec_path():
        yield from (path for path in Path(directory).glob("python3.*") if re.fullmatch(r"python3\.\d+", path.name))
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
    return Interpreter(version, path, launcher) if found["usable"] and version >= OLDEST else None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
