"""
Run pytest, and once more, one by one, the tests that failed: ``python tools/twice.py [pytest's arguments]``.

A test that passes at the second try is unsteady, which is a defect of its own and is said; the exit code is then 0.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FAILED, NO_TESTS = 1, 5


def main(arguments: Sequence[str], directory: Path = ROOT) -> int:
    # What failed is kept where no other run finds it.
    with tempfile.TemporaryDirectory() as cache:
        pytest = [sys.executable, "-m", "pytest", "-o", f"cache_dir={cache}", *arguments]
        status = subprocess.run(pytest, check=False, cwd=directory, stdin=subprocess.DEVNULL).returncode
        if status != FAILED:
            return status
        print("\n== once more, one by one: what failed ==", flush=True)
        pytest += ["--numprocesses", "0", "--last-failed", "--last-failed-no-failures", "none"]
        status = subprocess.run(pytest, check=False, cwd=directory, stdin=subprocess.DEVNULL).returncode
    if status == 0:
        print("\nUNSTEADY: what failed before passed now; it deserves an issue", flush=True)
    return FAILED if status == NO_TESTS else status  # nothing to run again is no proof


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
