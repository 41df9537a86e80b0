"""Programs in processes of their own, which must end well."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap


def in_child(program: str, *arguments: object, **environment: str) -> tuple[str, str]:
    """Run *program* in a process of its own; return what it printed to stdout and to stderr."""
    child = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", textwrap.dedent(program), *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, **environment},
    )
    assert child.returncode == 0, child.stderr
    return child.stdout, child.stderr


def printed_by(program: str, *arguments: object) -> str:
    """Run *program* in a process of its own, which must print nothing to stderr; return what it printed."""
    out, err = in_child(program, *arguments)
    assert err == ""
    return out
