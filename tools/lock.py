"""
Bring the two locks up to date with pyproject.toml, with the hashes of the package index.

    .venv/bin/python tools/lock.py [--upgrade]

requirements.lock has the newest versions that go together, requirements-floors.lock what trackside and its extras ask
for in the lowest version that they allow, and the newest of everything else. Locked packages stay at their versions as
far as possible. torch is pinned without a hash: its builds for the CPU and
for each CUDA have one version and come from different indexes, and which one is installed is the machine's choice.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

from environment import FLOORS, LOCK, ROOT

GROUPS = ("test", "integrations", "bench", "coverage", "lint", "types", "docs", "build", "dist", "lock", "pictures")


def main() -> int:
    """Resolve both, and remove the hashes of torch."""
    with tempfile.TemporaryDirectory() as scratch:
        floors = Path(scratch, "floors.txt")
        floors.write_text("".join(f"{name}=={version}\n" for name, version in read_floors().items()), encoding="utf-8")
        status = resolve(LOCK, *GROUPS) or resolve(FLOORS, "floors", constraints=("--constraint", floors))
        locked = FLOORS.read_text(encoding="utf-8").replace(f"-c {floors}", "the lower bound")
        FLOORS.write_text(locked, encoding="utf-8")
    return status


def resolve(lock: Path, *groups: str, constraints: tuple[str | Path, ...] = ()) -> int:
    """Write *lock*, for *groups* and all extras under *constraints*, and return the resolver's exit status."""
    uv = [str(Path(sys.executable).with_name("uv")), "pip", "compile", "--quiet", "--universal", "--generate-hashes"]
    named = ["--python-version", "3.10", "--custom-compile-command", "make lock", "--all-extras"]
    asked = [part for group in groups for part in ("--group", f"pyproject.toml:{group}")]
    written = ["--output-file", lock.name, *sys.argv[1:], "pyproject.toml"]
    done = subprocess.run([*uv, *named, *asked, *constraints, *written], check=False, cwd=ROOT)
    if done.returncode == 0:
        lock.write_text(without_hashes(lock.read_text(encoding="utf-8"), "torch"), encoding="utf-8")
    return done.returncode


def read_floors() -> dict[str, str]:
    """Return the lower bounds of dependencies and extras by name, without torch, whose old builds are huge."""
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    asked = project[project.index("\ndependencies = [") : project.index("[project.scripts]")]
    floors = dict(re.findall(r'^[^#]*?"([\w-]+)>=([\d.]+)', asked, flags=re.MULTILINE))
    del floors["torch"]
    return floors


def without_hashes(lock: str, name: str) -> str:
    """Return *lock* with no hash for the package of that *name*."""
    return re.sub(rf"^({re.escape(name)}==[^\\\n]*?) \\\n(?:    --hash=.*\n)+", r"\1\n", lock, flags=re.MULTILINE)


if __name__ == "__main__":
    sys.exit(main())
