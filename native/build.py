"""
Compile the C sources beside this file into ``trackside._native``.

    python3 native/build.py [DIRECTORY]

The result is for the interpreter that runs this script, and is written to DIRECTORY, by default that of the package. A
result that was built from the same sources is left as it is. Without a compiler, trackside runs in pure Python.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import sysconfig
import tempfile
import zlib
from pathlib import Path

NATIVE = Path(__file__).resolve().parent
PACKAGE = NATIVE.parent / "src" / "trackside"
HEADER = PACKAGE / "include" / "trackside.h"
TIMEOUT_S = 300
# NDEBUG leaves out the assertions in the interpreter's headers, and with them the paths of this machine.
FLAGS = (
    *("-std=c11", "-O3", "-g", "-DNDEBUG", "-fPIC", "-fno-plt", "-fvisibility=hidden", "-fno-strict-aliasing"),
    *("-Wall", "-Wextra"),
)


def main() -> None:
    """Build into the directory that the command line names; print one line if that is not possible."""
    directory = Path(sys.argv[1]) if len(sys.argv) > 1 else PACKAGE
    try:
        build(directory)
    except NotBuiltError as error:
        print(f"trackside: goes without its compiled core: {error}", flush=True)


class NotBuiltError(Exception):
    """The compiled core cannot be built; the message says why."""


def fingerprint() -> str:
    """Return a digest of the sources, as `trackside._implementation` computes it when it looks for a stale build."""
    digest = 0
    for source in (*sorted(NATIVE.glob("*.[ch]")), HEADER):
        digest = zlib.crc32(source.read_bytes(), digest)
    return f"{digest:08x}"


def build(directory: Path) -> Path:
    """
    Compile the sources into *directory*, unless it has a core that was built from them.

    Raises:
        NotBuiltError: if there is no compiler, or it fails.
    """
    if os.environ.get("TRACKSIDE_PURE_PYTHON", "0") not in ("", "0"):
        raise NotBuiltError("TRACKSIDE_PURE_PYTHON asks for pure Python")
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        raise NotBuiltError("it needs an interpreter with a global lock")
    target = directory / f"_native{sysconfig.get_config_var('EXT_SUFFIX')}"
    digest = fingerprint()
    if target.exists() and f"trackside-sources:{digest}".encode() in target.read_bytes():
        return target
    # The file is put in its place in one step: another process may be importing it, or building it too.
    with tempfile.TemporaryDirectory(dir=directory) as scratch:
        partial = Path(scratch, target.name)
        compile_sources(partial, digest)
        partial.replace(target)
    return target


def compile_sources(target: Path, digest: str) -> None:
    """
    Compile and link all sources in one call of the compiler.

    Raises:
        NotBuiltError: as for `build`.
    """
    compiler = os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc"
    link = ("-bundle", "-undefined", "dynamic_lookup") if sys.platform == "darwin" else ("-shared", "-ldl", "-lpthread")
    command = [
        *shlex.split(compiler),
        *FLAGS,
        *shlex.split(os.environ.get("CFLAGS", "")),
        f'-DTRACKSIDE_SOURCES="{digest}"',
        f"-I{sysconfig.get_path('include')}",
        *map(str, sorted(NATIVE.glob("*.c"))),
        *link,
        "-lm",
        "-o",
        str(target),
    ]
    try:
        done = subprocess.run(
            command, check=False, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=TIMEOUT_S
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotBuiltError(f"{command[0]}: {error}") from error
    if done.returncode:
        problem = [line for line in done.stderr.splitlines() if "error" in line][:1] or ["no word"]
        raise NotBuiltError(f"{command[0]} failed: {problem[0].strip()}")
    sys.stderr.write(done.stderr)


if __name__ == "__main__":
    main()
