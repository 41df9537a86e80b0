"""
The features that differ between operating systems, or that some systems lack.

No other module checks its operating system, or uses a feature that Windows or macOS lacks; `tests/test_platform.py`
checks that. If callers can do without a missing feature, the function here does nothing or returns None, as its
docstring says.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pathlib import Path

_os: Any = os

SYSTEM: Final[str] = sys.platform
HAS_UNIX_SOCKETS: Final = sys.platform != "win32"
HAS_ABSTRACT_SOCKETS: Final = sys.platform == "linux"
MONOTONIC_IS_POSIX: Final = sys.platform == "linux"
"""Whether `time.monotonic_ns` reads ``CLOCK_MONOTONIC``, as compiled code does."""

_ALWAYS: Final[int] = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
NO_LINK: Final[int] = getattr(os, "O_NOFOLLOW", 0)
READ: Final[int] = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | _ALWAYS
"""Non-blocking: opening a named pipe would otherwise wait for a writer."""
APPEND: Final[int] = os.O_WRONLY | os.O_APPEND | NO_LINK | _ALWAYS
CREATE: Final[int] = os.O_WRONLY | os.O_CREAT | os.O_EXCL | NO_LINK | _ALWAYS
_HAS_PLACES: Final = os.open in os.supports_dir_fd
"""Whether a path can be relative to an open directory."""
_DIRECTORY: Final[int] = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | _ALWAYS


def after_fork_in_child(reset: Callable[[], object]) -> None:
    """Register *reset* to be called in each forked child; do nothing where processes cannot fork."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=reset)


def may_run(pid: int) -> bool:
    """Return whether a process may have the id *pid* on this machine; always True on Windows."""
    if sys.platform == "win32":  # where `os.kill` would end the process
        return True
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:  # it is another user's process
        return True
    return True


class ExitWatch:
    """
    Reports which of the watched processes have exited, in the order of their exits, even if it is called late.

    Only Linux reports the exits of other processes; elsewhere none can be watched.
    """

    def __init__(self) -> None:
        self._handles: set[int] = set()
        self._readable: Any = None
        if hasattr(os, "pidfd_open"):
            import select  # noqa: PLC0415  to import it takes 0.3 ms

            # Unlike `poll`, it hands out descriptors in the order in which they became readable.
            self._readable = select.epoll()

    def add(self, pid: int) -> int | None:
        """Watch the process *pid* from now on; return a handle for it, or None if it cannot be watched."""
        if self._readable is None:
            return None
        try:
            handle = int(_os.pidfd_open(pid))
        except OSError:  # there is no such process
            return None
        self._handles.add(handle)
        self._readable.register(handle)
        return handle

    def wait(self, timeout_s: float) -> list[int]:
        """Return the handles of processes that exited since the last call; wait at most *timeout_s* seconds for one."""
        exited = [handle for handle, _ in self._readable.poll(timeout_s)]
        for handle in exited:
            self._handles.remove(handle)
            os.close(handle)
        return exited

    def close(self) -> None:
        """Stop watching all processes."""
        for handle in self._handles:
            os.close(handle)
        self._handles.clear()
        if self._readable is not None:
            self._readable.close()


def exit_status_of(pid: int) -> int | None:
    """
    Return the exit code of the process *pid*, or the negated number of the signal that ended it.

    None if it still runs, if its parent has read its status already, or if the system does not show it (Linux does).
    """
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:  # noqa: PTH123
            fields = file.read().rpartition(")")[2].split()  # from the third on; see proc(5)
        return os.waitstatus_to_exitcode(int(fields[-1])) if fields[0] == "Z" else None
    except (OSError, ValueError, IndexError):
        return None


def user_id() -> int | None:
    """Return the id of the user that this process acts as; None where files have no such owner."""
    return _os.geteuid() if hasattr(os, "geteuid") else None


def lock_file(descriptor: int) -> bool:
    """
    Lock an open file until every process that holds *descriptor* has closed it or ended.

    Returns:
        False if another process has locked the file, or if the system has no such locks.
    """
    try:
        import fcntl  # noqa: PLC0415  not on Windows

        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (ImportError, OSError):
        return False
    return True


def clock_through_sleep_ns() -> int | None:
    """Read the monotonic clock that also runs while the machine sleeps; None if the system has none."""
    boottime = getattr(time, "CLOCK_BOOTTIME", None)
    return None if boottime is None else time.clock_gettime_ns(boottime)


def process_age_s() -> float | None:
    """Return the seconds since this process started; None where the system does not show them."""
    if SYSTEM != "linux":
        return None
    try:
        with open("/proc/self/stat", "rb") as file:  # noqa: PTH123  pathlib is loaded by nothing else here
            began_ticks = int(file.read(4096).rpartition(b")")[2].split()[19])  # after the name, which may have blanks
        age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - began_ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return None
    return age_s if began_ticks and age_s >= 0 else None


def read_at(fd: int, size: int, offset: int) -> bytes:
    """Return up to *size* bytes from *offset*; on systems without ``pread`` only one thread may use *fd*."""
    if hasattr(os, "pread"):
        return os.pread(fd, size, offset)
    os.lseek(fd, offset, os.SEEK_SET)
    return os.read(fd, size)


def create_below(directory: Path, name: str, *, mode: int, directory_mode: int) -> int:
    """
    Create the file *name* below the existing *directory*, and return a descriptor that appends to it.

    The directories in *name*, separated by slashes, must not be symbolic links, and the file must not exist. If the
    system cannot open a file relative to a directory, links are not checked.

    Raises:
        OSError: The file cannot be made; `FileExistsError` if it exists.
    """
    *between, last = name.split("/")
    if not _HAS_PLACES:
        directory.joinpath(*between).mkdir(mode=directory_mode, parents=True, exist_ok=True)
        return os.open(directory / name, CREATE | os.O_APPEND, mode)
    at = os.open(directory, _DIRECTORY)
    try:
        for step in between:
            with contextlib.suppress(FileExistsError):
                os.mkdir(step, directory_mode, dir_fd=at)
            inner = os.open(step, _DIRECTORY | NO_LINK, dir_fd=at)
            os.close(at)
            at = inner
        return os.open(last, CREATE | os.O_APPEND, mode, dir_fd=at)
    finally:
        os.close(at)


def sync_directory(directory: Path) -> None:
    """
    Force the names in *directory* to the device; do nothing where the system does so itself.

    Raises:
        OSError: The device failed.
    """
    if not hasattr(os, "O_DIRECTORY"):
        return
    at = os.open(directory, _DIRECTORY)
    try:
        os.fsync(at)
    finally:
        os.close(at)


def raise_descriptor_limit(wanted: int) -> None:
    """Raise the limit of open descriptors to *wanted*, as far as allowed; do nothing where there is no such limit."""
    try:
        import resource  # noqa: PLC0415  not on Windows
    except ImportError:
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


@contextlib.contextmanager
def keyboard() -> Iterator[Callable[[], str]]:
    """Read keys without Enter; yield a function that returns the key that was pressed, or an empty text."""
    try:
        import termios  # noqa: PLC0415  not on Windows
        import tty  # noqa: PLC0415
        from select import select  # noqa: PLC0415  on Windows for sockets alone

        descriptor = sys.stdin.fileno()
        before = termios.tcgetattr(descriptor)
    except (ImportError, OSError, ValueError, AttributeError):  # stdin is no terminal, or termios is missing
        yield str
        return
    except termios.error:
        yield str
        return
    try:
        tty.setcbreak(descriptor)
        yield lambda: os.read(descriptor, 1).decode("ascii", "replace") if select([descriptor], [], [], 0)[0] else ""
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
