"""
Run pytest, and once more, one by one, the tests that failed: ``python tools/twice.py [pytest's arguments]``.

A test that passes at the second try is unsteady. That is a failure, unless ``tests/unsteady.txt`` names it.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
KNOWN = "tests/unsteady.txt"
"""A test's id a line, with an issue after a ``#``; it should be empty."""
FAILED, NO_TESTS = 1, 5


def main(arguments: Sequence[str], directory: Path = ROOT) -> int:
    # The failed tests are kept where no other run finds them.
    with tempfile.TemporaryDirectory() as cache:
        pytest = [sys.executable, "-m", "pytest", "-o", f"cache_dir={cache}", *arguments]
        status = subprocess.run(pytest, check=False, cwd=directory, stdin=subprocess.DEVNULL).returncode
        if status != FAILED:
            return status
        failed = read_failed(Path(cache))
        print("\n== once more, one by one: what failed ==", flush=True)
        pytest += ["--numprocesses", "0", "--last-failed", "--last-failed-no-failures", "none"]
        status = subprocess.run(pytest, check=False, cwd=directory, stdin=subprocess.DEVNULL).returncode
    if status != 0:
        return FAILED if status == NO_TESTS else status  # without a test to run again there is no proof
    unknown = failed - read_known(directory / KNOWN)
    for test in sorted(failed):
        listed = "" if test in unknown else f" (listed in {KNOWN})"
        print(f"UNSTEADY: {test} failed and then passed{listed}", flush=True)
    return FAILED if unknown else 0


def read_failed(cache: Path) -> set[str]:
    """Return the ids of the tests that failed in the run whose cache this is."""
    return set(json.loads((cache / "v" / "cache" / "lastfailed").read_text(encoding="utf-8")))


def read_known(path: Path) -> set[str]:
    """Return the ids of the tests that *path* lists as unsteady; none if there is no such file."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return {test for line in lines if (test := line.partition(" #")[0].strip()) and not test.startswith("#")}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
