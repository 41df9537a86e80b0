"""
Make a virtual environment, or bring one up to date, under the constraints of the lock.

    python3 tools/environment.py .venv --extra torch --group test
    python3 tools/environment.py .venv-floors --floors --group test

The environment belongs to the interpreter that runs this script. What an earlier call installed into it
stays; a call that finds nothing to do says nothing. Each file that is installed has one of the hashes of the lock;
torch has none there, because its builds for different processors have one version. With ``--floors`` the lock is the
one that has the libraries of trackside and its extras in the lowest version that pyproject.toml allows.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
from itertools import chain
from pathlib import Path
from typing import Any

OLDEST = (3, 10)
ROOT = Path(__file__).resolve().parents[1]
LOCK = ROOT / "requirements.lock"
FLOORS = ROOT / "requirements-floors.lock"
STAMP = "made-for.json"
READ_REQUIREMENTS = """
import json, sys
try:
    import tomllib
except ImportError:
    from pip._vendor import tomli as tomllib
with open(sys.argv[1], "rb") as file:
    whole = tomllib.load(file)
middle = sys.argv.index("--")
asked = list(whole["project"]["dependencies"])
for extra in sys.argv[2:middle]:
    asked += whole["project"]["optional-dependencies"][extra]
groups = sys.argv[middle + 1:]
for group in groups:
    for item in whole["dependency-groups"][group]:
        groups.append(item["include-group"]) if isinstance(item, dict) else asked.append(item)
print(json.dumps(asked))
"""


def main() -> None:
    """Make the environment that the command line describes."""
    options = read_options()
    if sys.version_info < OLDEST:
        here = ".".join(map(str, sys.version_info[:3]))
        sys.exit(f"trackside needs Python 3.10 or later and this is {here}: try `make PYTHON=python3.12 ...`")
    try:
        environment = Environment(options.directory.absolute(), FLOORS if options.floors else LOCK)
        environment.provide(set(options.extra), set(options.group))
    except subprocess.CalledProcessError as error:
        sys.exit(f"{options.directory}: `{' '.join(map(str, error.cmd[:6]))} ...` failed; see above")


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path, help="where the environment lies or will lie")
    parser.add_argument("--extra", action="append", default=[], help="an extra of trackside to install")
    parser.add_argument("--group", action="append", default=[], help="a dependency group to install")
    parser.add_argument("--floors", action="store_true", help="install the lowest versions that are allowed")
    return parser.parse_args()


def read_blocks(lock: Path = LOCK) -> list[str]:
    """Return the lines of *lock*, those of one version of a package together."""
    return re.findall(r"^[a-z0-9].*\n(?: .*\n)*", lock.read_text(encoding="utf-8"), flags=re.MULTILINE)


def read_unhashed(lock: Path) -> dict[str, set[str]]:
    """Return the packages for which *lock* has no hash, and the names of those that ask for each."""
    found = {}
    for block in read_blocks(lock):
        if "--hash=" not in block:
            found[block.partition("==")[0]] = set(
                re.findall(r"^    #(?: via|  ) ([\w.-]+)$", block, flags=re.MULTILINE)
            )
    return found


def write_pins(path: Path, lock: Path = LOCK) -> Path:
    """Write the pins of *lock* to *path*, without hashes."""
    lines = [block.partition("\n")[0].removesuffix("\\").rstrip() for block in read_blocks(lock)]
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def write_hashed(path: Path, name: str) -> Path:
    """Write the entry of the lock at *path* for the package of that *name*, for Python's own, older pip."""
    blocks = [block for block in read_blocks() if block.partition("==")[0] == name]
    path.write_text("".join(re.sub(r"^ +#.*\n", "", block, flags=re.MULTILINE) for block in blocks), encoding="utf-8")
    return path


class Environment:
    """A virtual environment with trackside in it, editable, and a stamp of its other contents."""

    def __init__(self, directory: Path, lock: Path) -> None:
        self.directory = directory
        self.lock = lock
        self.python = directory / "bin" / "python"
        self._stamp = directory / STAMP

    def provide(self, extras: set[str], groups: set[str]) -> None:
        """Install trackside with *extras* and *groups*, unless they are installed already."""
        started = time.monotonic()
        found = self._read_stamp()
        # A moved checkout or another interpreter leaves scripts that point nowhere: start again.
        here = {"root": str(ROOT), "python": sys.version}
        if {key: found.get(key) for key in here} != here:
            found = {}
            self._create()
        all_extras = sorted(extras.union(found.get("extras", ())))
        all_groups = sorted(groups.union(found.get("groups", ())))
        locked = fingerprint(ROOT / "pyproject.toml", self.lock)
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
        self._install(wanted["extras"], wanted["groups"], hint=" (torch takes a minute)" if "torch" in news else "")
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
        with tempfile.TemporaryDirectory() as scratch:
            self._pip("--requirement", write_hashed(Path(scratch, "pip.txt"), "pip"), constraints=None)

    def _install(self, extras: list[str], groups: list[str], *, hint: str) -> None:
        chosen_extras = f"[{','.join(extras)}]" if extras else ""
        self._say(f"installing {', '.join(['trackside' + chosen_extras, *groups])}{hint}")
        asked = self._asked(extras, groups)
        unhashed = read_unhashed(self.lock)
        apart = [name for name, parents in unhashed.items() if parents.union({name}).intersection(asked)]
        if apart:  # where some constraints have hashes, pip downloads nothing that has none
            with tempfile.TemporaryDirectory() as scratch:
                self._pip("--no-deps", *apart, constraints=write_pins(Path(scratch, "pins.txt"), self.lock))
        self._pip(*chain.from_iterable(asked.values()), constraints=self.lock)
        self._pip("--no-deps", "--build-constraint", LOCK, "--editable", ROOT, constraints=None)

    def _asked(self, extras: list[str], groups: list[str]) -> dict[str, list[str]]:
        """
        Return by name the requirements of pyproject.toml, read by the environment's pip, as Python 3.10 reads no TOML.
        """
        command = [str(self.python), "-c", READ_REQUIREMENTS, str(ROOT / "pyproject.toml"), *extras, "--", *groups]
        asked: dict[str, list[str]] = {}
        for text in json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout):
            asked.setdefault(re.split(r"[^\w.-]", text, maxsplit=1)[0].lower(), []).append(text)
        return asked

    def _pip(self, *arguments: str | Path, constraints: Path | None) -> None:
        # Doubly quiet: a mirror that lacks a package is no news as long as another has it.
        quiet = ("--quiet", "--quiet", "--no-input", "--disable-pip-version-check")
        chosen = ("--constraint", constraints) if constraints is not None else ()
        run(self.python, "-m", "pip", "install", *quiet, *chosen, *arguments)

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
