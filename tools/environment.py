"""
Make a virtual environment, or bring one up to date, under the constraints of the lock.

    python3 tools/environment.py .venv --extra torch --group test
    python3 tools/environment.py .venv-floors --floors --group test

The environment belongs to the interpreter that runs this script. What an earlier call installed into it
stays; a call that finds nothing to do says nothing. With ``--floors`` the libraries that trackside asks for are
installed in the lowest version that pyproject.toml allows.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

OLDEST = (3, 10)
ROOT = Path(__file__).resolve().parents[1]
LOCK = ROOT / "requirements.lock"
STAMP = "made-for.json"


def main() -> None:
    """Make what the command line asks for."""
    options = read_options()
    if sys.version_info < OLDEST:
        here = ".".join(map(str, sys.version_info[:3]))
        sys.exit(f"trackside needs Python 3.10 or later and this is {here}: try `make PYTHON=python3.12 ...`")
    try:
        directory = options.directory.absolute()
        constraints = write_floors(ROOT / "build" / "floors.txt") if options.floors else LOCK
        Environment(directory, constraints).provide(set(options.extra), set(options.group))
    except subprocess.CalledProcessError as error:
        sys.exit(f"{options.directory}: `{' '.join(map(str, error.cmd[:6]))} ...` failed; see above")


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path, help="where the environment lies or will lie")
    parser.add_argument("--extra", action="append", default=[], help="an extra of trackside to install")
    parser.add_argument("--group", action="append", default=[], help="a dependency group to install")
    parser.add_argument("--floors", action="store_true", help="install the lowest versions that are allowed")
    return parser.parse_args()


def write_floors(path: Path) -> Path:
    """Write to *path* the lock with the lower bounds of trackside's dependencies and extras in place of its pins."""
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    asked = project[project.index("\ndependencies = [") : project.index("[project.scripts]")]
    floors = dict(re.findall(r'^[^#]*?"([\w-]+)>=([\d.]+)', asked, flags=re.MULTILINE))
    others = [line for line in LOCK.read_text(encoding="utf-8").splitlines() if line.partition("==")[0] not in floors]
    path.parent.mkdir(exist_ok=True)
    path.write_text("\n".join([*others, *(f"{name}=={floors[name]}" for name in sorted(floors)), ""]), encoding="utf-8")
    return path


class Environment:
    """A virtual environment with trackside in it, editable, and a stamp that says what else."""

    def __init__(self, directory: Path, constraints: Path = LOCK) -> None:
        self.directory = directory
        self.constraints = constraints
        self.python = directory / "bin" / "python"
        self._stamp = directory / STAMP

    def provide(self, extras: set[str], groups: set[str]) -> None:
        """Install trackside with *extras* and *groups*, unless that is how it stands."""
        started = time.monotonic()
        found = self._read_stamp()
        # A moved checkout or another interpreter leaves scripts that point nowhere: start again.
        here = {"root": str(ROOT), "python": sys.version}
        if {key: found.get(key) for key in here} != here:
            found = {}
            self._create()
        all_extras = sorted(extras.union(found.get("extras", ())))
        all_groups = sorted(groups.union(found.get("groups", ())))
        locked = fingerprint(ROOT / "pyproject.toml", self.constraints)
        wanted = {**here, "locked": locked, "extras": all_extras, "groups": all_groups}
        if wanted != found:
            self._provide_packages(wanted, found)
        # Also where nothing is installed: the C sources may have changed.
        run(self.python, ROOT / "native" / "build.py")
        if wanted != found:
            self._say(f"ready, {time.monotonic() - started:.0f} s")

    def _provide_packages(self, wanted: dict[str, Any], found: dict[str, Any]) -> None:
        self._stamp.unlink(missing_ok=True)  # an interrupted installation must not look finished
        news = set(wanted["extras"]).difference(found.get("extras", ()))
        self._install(wanted["extras"], wanted["groups"], patience=" (torch takes a minute)" if "torch" in news else "")
        self._stamp.write_text(json.dumps(wanted, indent=2) + "\n", encoding="utf-8")

    def _read_stamp(self) -> dict[str, Any]:
        try:
            found: dict[str, Any] = json.loads(self._stamp.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return found

    def _create(self) -> None:
        self._say(f"making an environment for Python {sys.version.split()[0]}")
        if self.directory.exists():
            shutil.rmtree(self.directory)
        run(base_python(), "-m", "venv", self.directory)
        self._pip("pip")

    def _install(self, extras: list[str], groups: list[str], *, patience: str) -> None:
        chosen_extras = f"[{','.join(extras)}]" if extras else ""
        self._say(f"installing {', '.join(['trackside' + chosen_extras, *groups])}{patience}")
        chosen_groups = [part for group in groups for part in ("--group", group)]
        self._pip("--build-constraint", LOCK, "--editable", f"{ROOT}{chosen_extras}", *chosen_groups)

    def _pip(self, *arguments: str | Path) -> None:
        # Doubly quiet: a mirror that lacks a package is no news as long as another has it.
        quiet = ("--quiet", "--quiet", "--no-input", "--disable-pip-version-check")
        run(self.python, "-m", "pip", "install", *quiet, "--constraint", self.constraints, *arguments)

    def _say(self, what: str) -> None:
        name = self.directory.relative_to(ROOT) if self.directory.is_relative_to(ROOT) else self.directory
        print(f"{name}: {what}", flush=True)


def base_python() -> Path:
    """Return the interpreter outside of every environment, as the environment to make may be the one we run in."""
    base = Path(sys.base_prefix, "bin", "python{}.{}".format(*sys.version_info))
    return base if base.exists() else Path(sys.executable)


def fingerprint(*paths: Path) -> str:
    """Return a digest of the contents of *paths*."""
    return hashlib.sha256(b"".join(path.read_bytes() for path in paths)).hexdigest()


def run(*command: str | Path) -> None:
    subprocess.run(command, check=True, cwd=ROOT, stdin=subprocess.DEVNULL)


if __name__ == "__main__":
    main()
