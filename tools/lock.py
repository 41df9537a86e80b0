"""
Bring requirements.lock up to date with pyproject.toml, with the hashes of the package index.

    .venv/bin/python tools/lock.py [--upgrade]

Locked packages stay at their versions as far as possible. torch is pinned without a hash: its builds for the CPU and
for each CUDA have one version and come from different indexes, and which one is installed is the machine's choice.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from environment import LOCK, ROOT

GROUPS = ("test", "integrations", "bench", "coverage", "lint", "types", "docs", "build", "dist", "lock")


def main() -> int:
    """Resolve, and remove the hashes of torch."""
    groups = [part for group in GROUPS for part in ("--group", f"pyproject.toml:{group}")]
    uv = [str(Path(sys.executable).with_name("uv")), "pip", "compile", "--quiet", "--universal", "--generate-hashes"]
    named = ["--python-version", "3.10", "--custom-compile-command", "make lock", "--all-extras", *groups]
    done = subprocess.run(
        [*uv, *named, "--output-file", LOCK.name, *sys.argv[1:], "pyproject.toml"], check=False, cwd=ROOT
    )
    if done.returncode == 0:
        LOCK.write_text(without_hashes(LOCK.read_text(encoding="utf-8"), "torch"), encoding="utf-8")
    return done.returncode


def without_hashes(lock: str, name: str) -> str:
    """Return *lock* with no hash for the package of that *name*."""
    return re.sub(rf"^({re.escape(name)}==[^\\\n]*?) \\\n(?:    --hash=.*\n)+", r"\1\n", lock, flags=re.MULTILINE)


if __name__ == "__main__":
    sys.exit(main())
