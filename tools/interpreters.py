"""
Provide the Pythons that a machine lacks.

    python3 tools/interpreters.py 3.14 3.15 3.14t

``3.14`` and the like are Debian's packages, in a chroot of Debian unstable. A command runs in it through a launcher, in
the same working directory and with the same environment variables; the launcher's mounts are in a namespace of their
own and end with the command. This needs root and Debian's debootstrap. ``3.14t``, without the interpreter lock, is
built from the sources that Debian keeps; this needs a C compiler and the headers of OpenSSL, libffi and zlib.

Both are kept in ``$XDG_CACHE_HOME/trackside`` (``~/.cache/trackside``), which all clones share. Archives come from the
Debian mirror of this machine's apt, so a machine without apt gets none.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
SUITE = "unstable"
TIMEOUT_S = 1800
DOWNLOAD_TIMEOUT_S = 60
REACH_TIMEOUT_S = 10
# Read by pip and by TLS, inside as outside.
SETTINGS = ("/etc/pip.conf", "/etc/resolv.conf", "/etc/ssl/certs/ca-certificates.crt", "~/.config/pip/pip.conf")


class Archive(NamedTuple):
    """The sources of a Python among Debian's packages."""

    version: str
    path: str
    sha256: str


SOURCES = {
    "3.14t": Archive(
        "3.14.7",
        "pool/main/p/python3.14/python3.14_3.14.7.orig.tar.xz",
        "3b48dac8fb59f62eaa67ac83c1eb12bda1b7a08406dd286e252c11a66be27f81",
    ),
}
# In the chroot: with them the core is compiled there, and tested.
COMPILER = ("gcc", "libc6-dev")
PARTS = ("", "-venv", "-dev")
BUILD_OPTIONS = "OPT=-DNDEBUG -O1"

ENTER = """
set -e
inside=$1 root=$2 here=$PWD
shift 2
mount --bind "$root" "$inside$root"
mount --bind /tmp "$inside/tmp"
mount --bind /proc "$inside/proc"
mount --rbind /dev "$inside/dev"
exec chroot "$inside" /usr/bin/env -C "$here" "$@"
"""

# The libraries that pip and the tests need in a Python that was built here.
WORKS = "import ctypes, ensurepip, ssl, sys, venv, zlib; assert not sys._is_gil_enabled()"


class NotProvidedError(Exception):
    """An interpreter cannot be provided on this machine; the message says why."""


class Provided(NamedTuple):
    """An interpreter that was provided."""

    path: Path
    launcher: tuple[str, ...] = ()
    """The first words of a command line that runs the rest of it where this interpreter is."""


def provide(name: str) -> Provided:
    """
    Make the Python *name*, as ``3.14`` or ``3.14t``, available; nothing is done where that was done before.

    Raises:
        NotProvidedError: if there can be none here.
    """
    if name in SOURCES:
        with only_one(name):
            return Provided(built(SOURCES[name]))
    with only_one(SUITE):
        return Provided(installed(name), launcher())


@contextmanager
def only_one(what: str) -> Iterator[None]:
    """Let other processes that provide the interpreter *what* wait until this one is ready."""
    try:
        cache().mkdir(parents=True, exist_ok=True)
        lock = (cache() / f"{what}.lock").open("w")
    except OSError as error:
        raise NotProvidedError(f"there is no cache: {error}") from error
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def cache() -> Path:
    """Return the directory in which interpreters are kept."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "trackside"


def mirror() -> str:
    """Return the address of the Debian archive that apt uses here, with a slash at its end."""
    answer = run("apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages", "Component: main")
    addresses = [line for line in answer.splitlines() if line.rstrip("/").endswith("/debian")]
    if not addresses:
        raise NotProvidedError("apt knows no Debian archive here")
    return addresses[0].rstrip("/") + "/"


def require_answer(address: str) -> None:
    """Raise NotProvidedError if no archive answers at *address*: debootstrap and apt would try for many minutes."""
    try:
        urllib.request.urlopen(f"{address}dists/{SUITE}/InRelease", timeout=REACH_TIMEOUT_S).close()  # noqa: S310
    except (OSError, ValueError) as error:
        raise NotProvidedError(f"the Debian archive does not answer: {error}") from error


def launcher() -> tuple[str, ...]:
    """Return the beginning of a command line that runs the rest of it in the chroot."""
    inside = str(chroot())
    return ("unshare", "--mount", "--propagation", "private", "sh", "-c", ENTER, "sh", inside, str(ROOT))


def chroot() -> Path:
    return cache() / f"debian-{SUITE}"


def installed(minor: str) -> Path:
    """Install Debian's Python *minor* in the chroot, which is made if there is none; return its path in there."""
    if os.geteuid() != 0:
        raise NotProvidedError("a chroot needs root")
    inside = chroot()
    python = Path("/usr/bin", f"python{minor}")
    headers = inside / "usr" / "include" / python.name / "Python.h"
    if not headers.exists():
        require_answer(mirror())
    if not (inside / "usr" / "bin" / "env").exists():
        make_chroot()
    for setting in SETTINGS:
        file = Path(setting).expanduser()
        if file.is_file():
            copy = inside / file.relative_to("/")
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, copy)
    (inside / ROOT.relative_to("/")).mkdir(parents=True, exist_ok=True)
    if not headers.exists():
        apt = ("chroot", str(inside), "/usr/bin/env", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "apt-get", "-qq", "-y")
        run(*apt, "install", "--no-install-recommends", *COMPILER, *(f"python{minor}{part}" for part in PARTS))
    run(*launcher(), str(python), "-c", "pass")
    return python


def make_chroot() -> None:
    if shutil.which("debootstrap") is None:
        run("apt-get", "update", "-qq")
        run("apt-get", "install", "-y", "-qq", "--no-install-recommends", "debootstrap")
    print(f"{chroot()}: making a chroot of Debian {SUITE}", flush=True)
    partial = chroot().with_name("debian-partial")
    shutil.rmtree(partial, ignore_errors=True)
    # The keys of a later Debian need not be known here; the installed packages only run tests.
    options = ("--variant=minbase", "--no-check-gpg", "--include=ca-certificates")
    run("debootstrap", *options, SUITE, str(partial), mirror())
    shutil.rmtree(chroot(), ignore_errors=True)
    partial.rename(chroot())


def built(source: Archive) -> Path:
    """Return the path of a Python without the interpreter lock, built from *source* if it was not before."""
    prefix = cache() / f"cpython-{source.version}t"
    python = prefix / "bin" / f"python{source.version.rpartition('.')[0]}t"
    if python.exists():
        return python
    print(f"{prefix}: building Python {source.version} without the interpreter lock (minutes)", flush=True)
    with tempfile.TemporaryDirectory(dir=cache(), prefix="building-") as directory:
        archive = Path(directory, "sources")
        download(mirror() + source.path, archive, source.sha256)
        with tarfile.open(archive) as tar:
            if sys.version_info >= (3, 12):
                tar.extractall(directory, filter="data")
            else:
                tar.extractall(directory)  # noqa: S202  # its digest says that it is the archive we know
        tree = next(entry for entry in Path(directory).iterdir() if entry.is_dir())
        run(
            "./configure",
            "-q",
            "--disable-gil",
            "--disable-test-modules",
            f"--prefix={prefix}",
            "--with-ensurepip=no",
            cwd=tree,
        )
        # Less optimized, and without debug symbols: the build gains more time than the tests lose.
        run("make", "-s", f"-j{os.cpu_count() or 1}", BUILD_OPTIONS, cwd=tree)
        staged = Path(directory, "staged")
        run("make", "-s", "install", BUILD_OPTIONS, f"DESTDIR={staged}", cwd=tree)
        made = staged / prefix.relative_to("/")
        run(str(made / python.relative_to(prefix)), "-c", WORKS)
        shutil.rmtree(prefix, ignore_errors=True)
        made.rename(prefix)
    return python


def download(address: str, path: Path, sha256: str) -> None:
    try:
        with urllib.request.urlopen(address, timeout=DOWNLOAD_TIMEOUT_S) as answer:  # noqa: S310  # apt's own address
            path.write_bytes(answer.read())
    except (OSError, urllib.error.URLError) as error:
        raise NotProvidedError(f"{address.rpartition('/')[2]}: {error}") from error
    if hashlib.sha256(path.read_bytes()).hexdigest() != sha256:
        raise NotProvidedError(f"{address.rpartition('/')[2]}: not the archive that was expected")


def run(*command: str, cwd: Path | None = None) -> str:
    """Run *command* and return its output; raise NotProvidedError with its last line if it fails."""
    try:
        done = subprocess.run(
            command, check=False, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=TIMEOUT_S, cwd=cwd
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotProvidedError(f"{command[0]}: {error}") from error
    if done.returncode:
        last = (done.stderr or done.stdout).strip().splitlines()[-1:] or ["no word"]
        raise NotProvidedError(f"{command[0]} failed: {last[0]}")
    return done.stdout


def main(names: Sequence[str]) -> int:
    missing = 0
    for name in names:
        try:
            found = provide(name)
        except NotProvidedError as error:
            print(f"{name}: not provided: {error}")
            missing += 1
        else:
            print(f"{name}: {found.path}" + (f" in {chroot()}" if found.launcher else ""))
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
