"""
Provide the Pythons that a machine lacks, from Debian's packages in a chroot.

    python3 tools/interpreters.py 3.14 3.15

The chroot is made once and kept in ``.venvs/debian``. A command runs in it through a launcher, in the same working
directory and with the same environment variables; the launcher's mounts are in a namespace of their own and end with
the command, so that removing ``.venvs`` removes nothing else. It needs root, and Debian's debootstrap.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CHROOT = ROOT / ".venvs" / "debian"
SUITE = "unstable"
MIRROR = "http://deb.debian.org/debian"
TIMEOUT_S = 600
# Read by pip and by TLS, inside as outside.
SETTINGS = ("/etc/pip.conf", "/etc/resolv.conf", "/etc/ssl/certs/ca-certificates.crt", "~/.config/pip/pip.conf")

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


class NotProvidedError(Exception):
    """An interpreter cannot be provided on this machine; the message says why."""


def launcher() -> list[str]:
    """Return the beginning of a command line that runs the rest of it in the chroot."""
    return ["unshare", "--mount", "--propagation", "private", "sh", "-c", ENTER, "sh", str(CHROOT), str(ROOT)]


def provide(minors: Iterable[str]) -> list[str]:
    """
    Make the Pythons *minors*, as ``3.14``, available as ``/usr/bin/python3.14`` in the chroot.

    Returns:
        Those that Debian has; nothing is done for those that are there already.

    Raises:
        NotProvidedError: if there can be no chroot here.
    """
    wanted = list(minors)
    if not wanted:
        return []
    if os.geteuid() != 0:
        raise NotProvidedError("a chroot needs root")
    if not (CHROOT / "usr" / "bin" / "env").exists():
        make_chroot()
    for setting in SETTINGS:
        file = Path(setting).expanduser()
        if file.is_file():
            copy = CHROOT / file.relative_to("/")
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, copy)
    (CHROOT / ROOT.relative_to("/")).mkdir(parents=True, exist_ok=True)
    return [minor for minor in wanted if is_there(minor) or install(minor)]


def make_chroot() -> None:
    if shutil.which("debootstrap") is None:
        run("apt-get", "update", "-qq")
        run("apt-get", "install", "-y", "-qq", "--no-install-recommends", "debootstrap")
    print(f"{CHROOT.relative_to(ROOT)}: making a chroot of Debian {SUITE}", flush=True)
    partial = CHROOT.with_name("debian-partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.parent.mkdir(exist_ok=True)
    # The keys of a later Debian need not be known here; what is installed runs tests and nothing else.
    run("debootstrap", "--variant=minbase", "--no-check-gpg", "--include=ca-certificates", SUITE, str(partial), MIRROR)
    shutil.rmtree(CHROOT, ignore_errors=True)
    partial.rename(CHROOT)


def is_there(minor: str) -> bool:
    return (CHROOT / "usr" / "bin" / f"python{minor}").exists()


def install(minor: str) -> bool:
    packages = (f"python{minor}", f"python{minor}-venv")
    apt = ["chroot", str(CHROOT), "/usr/bin/env", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "apt-get", "-qq", "-y"]
    try:
        run(*apt, "install", "--no-install-recommends", *packages)
    except NotProvidedError:
        return False
    return is_there(minor)


def run(*command: str) -> None:
    try:
        done = subprocess.run(
            command, check=False, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=TIMEOUT_S
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotProvidedError(f"{command[0]}: {error}") from error
    if done.returncode:
        last = (done.stderr or done.stdout).strip().splitlines()[-1:] or ["no word"]
        raise NotProvidedError(f"{command[0]} failed: {last[0]}")


def main(arguments: Sequence[str]) -> int:
    try:
        found = provide(arguments)
    except NotProvidedError as error:
        print(f"not provided: {error}")
        return 1
    for minor in found:
        print(f"{minor}: /usr/bin/python{minor} in {CHROOT.relative_to(ROOT)}")
    return 0 if len(found) == len(arguments) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
