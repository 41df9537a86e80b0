"""
Appending to a numbered series of files, whatever errors the disk has.

The operating system may write all of a chunk, a part of it, or nothing, perhaps for a reason that passes.
`Appender` has two outcomes only: all, or nothing and the reason.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path

import attrs

from trackside._platform import APPEND, create_below, sync_directory
from trackside.events import clock

FILE_MODE = 0o600
DIRECTORY_MODE = 0o700
_MOST_PARTS = 100_000
_FIRST_REST_NS = 250_000_000
_LONGEST_REST_NS = 30_000_000_000
_NO_FILE = -1

PartName = Callable[[int], str]
"""Return the name of a part, counted from 0, below the directory; slashes separate directories."""


@attrs.frozen
class Vanished:
    """A file that was removed, or emptied, while it was written."""

    path: Path
    events: int
    size_bytes: int


@attrs.frozen
class WriteOutcome:
    """
    The outcome of a write; true if all of it is in the kernel.

    If not, nothing of it is, and the same bytes may be written again: at once if a file vanished.
    """

    error: OSError | None = None
    vanished: Vanished | None = None

    def __bool__(self) -> bool:
        return self.error is None and self.vanished is None


DONE = WriteOutcome()


def create_file(directory: Path, name: str) -> int:
    """
    Create *name* below *directory* and return its descriptor.

    The file must not exist, and neither it nor a directory that *name* leads through may be a symbolic
    link: another user who can write to *directory* must not choose the file that is written. Missing directories are
    made for this user alone.

    Raises:
        OSError: The file cannot be made; `FileExistsError` if it is there.
    """
    make_directory(directory)
    return create_below(directory, name, mode=FILE_MODE, directory_mode=DIRECTORY_MODE)


def make_directory(directory: Path) -> None:
    """Make *directory* and those above it, each for this user alone; those that exist stay as they are."""
    missing = [directory]
    while not missing[-1].parent.exists():
        missing.append(missing[-1].parent)
    for path in reversed(missing):
        with contextlib.suppress(FileExistsError):
            path.mkdir(mode=DIRECTORY_MODE)


class Appender:
    """
    Appends chunks of bytes to the files ``name(0)``, ``name(1)`` and so on below a directory.

    Never raises `OSError`. A write that fails leaves the file as it was. Then writes are refused for a while, a
    quarter of a second at first and twice as long each time up to 30 s, so a full disk costs no more than an
    empty one. Only one thread may use it; it may block as long as the disk does.

    Args:
        directory: Made when the first file is.
        name: Gives each part its name; a name that is taken is skipped.
        rotate_bytes: A part that has reached this size is finished and the next one begun.
        fsync_s: The age in seconds at which written bytes are forced to the device. 0 forces them after every
            write, None leaves it to the kernel.
        create: Opens a file.
    """

    def __init__(
        self,
        directory: Path,
        name: PartName,
        *,
        rotate_bytes: int | None = None,
        fsync_s: float | None = None,
        create: Callable[[Path, str], int] = create_file,
    ) -> None:
        self.directory = directory
        # Path.is_dir may raise where os.path.isdir returns False.
        self._existing = next((path for path in (directory, *directory.parents) if os.path.isdir(path)), directory)  # noqa: PTH112
        self.part: int = 0
        """The number of the open part, else of the next one."""
        self.size_bytes: int = 0
        """The size of the open part; 0 if none is open."""
        self.events: int = 0
        """The events in the open part, as they were given to `write`."""
        self.written_bytes: int = 0
        """The bytes written to all parts, including those that vanished."""
        self.errors: int = 0
        self.last_error: OSError | None = None
        self.paths: list[Path] = []
        """The files made so far."""
        self._name = name
        self._rotate_bytes = rotate_bytes
        self._fsync_ns = None if fsync_s is None else int(fsync_s * 1e9)
        self._create = create
        self._fd = _NO_FILE
        self._is_dirty = False
        self._is_new = False
        self._is_parked = False
        self._synced_ns = clock.monotonic_ns()
        self._rest_ns = 0
        self._rest_until_ns = 0

    @property
    def is_full(self) -> bool:
        """Whether the open part has reached its size."""
        return self._rotate_bytes is not None and self.size_bytes >= self._rotate_bytes

    @property
    def rest_ns(self) -> int:
        """The time, in ns, for which writes are still refused; 0 if they are not."""
        return max(0, self._rest_until_ns - clock.monotonic_ns()) if self._rest_ns else 0

    def ready(self, *, insist: bool = False) -> WriteOutcome:
        """
        Ensure that a part is open and not full, so that `part` and `size_bytes` show where the next chunk goes.

        Args:
            insist: Try even while writes are refused after a failure.

        Returns:
            Success, the error, or the loss of the open file that vanished; then the next call begins a new part.
        """
        if not insist and self.rest_ns:
            return WriteOutcome(error=self.last_error)
        if self._is_parked:
            outcome = self._unpark()
            if not outcome:
                return outcome
        vanished = self.check()
        if vanished is not None:
            return WriteOutcome(vanished=vanished)
        if self.is_full:
            self.finish()
        if self._fd == _NO_FILE:
            try:
                self._open()
            except OSError as error:
                return self._refuse(error)
        return DONE

    def write(self, chunk: bytes, *, events: int = 1, insist: bool = False) -> WriteOutcome:
        """
        Append all of *chunk*, or nothing.

        Args:
            chunk: The bytes that a reader should find whole or not at all.
            events: The number of events in *chunk*, to be reported if the file vanishes.
            insist: As for `ready`, which is called first.
        """
        outcome = self.ready(insist=insist)
        if not outcome:
            return outcome
        try:
            self._append(chunk)
        except OSError as error:
            return self._refuse(error)
        self.events += events
        self._rest_ns = 0
        if self._fsync_ns == 0:
            self.sync()
        return DONE

    def check(self) -> Vanished | None:
        """Close the open file if others have removed or emptied it, and return the loss."""
        if self._fd == _NO_FILE:
            return None
        try:
            found = os.fstat(self._fd)
        except OSError as error:  # a stale handle of a network file system
            self._note(error)
        else:
            is_emptied = stat.S_ISREG(found.st_mode) and self.size_bytes > 0 == found.st_size
            if found.st_nlink and not is_emptied:
                return None
        vanished = Vanished(self.paths[-1], self.events, self.size_bytes)
        self._let_go()
        return vanished if vanished.size_bytes else None

    def sync_if_due(self) -> None:
        """Force the written bytes to the device if the last time was *fsync_s* ago or longer."""
        if self._is_dirty and self._fsync_ns is not None and clock.monotonic_ns() - self._synced_ns >= self._fsync_ns:
            self.sync()

    def sync(self) -> None:
        """Force the written bytes to the device; count a failure and do not retry, which would prove nothing."""
        self._synced_ns = clock.monotonic_ns()
        if self._fd == _NO_FILE or not self._is_dirty:
            return
        self._is_dirty = False
        try:
            os.fsync(self._fd)
            if self._is_new:
                self._sync_name()
        except OSError as error:
            self._note(error)

    def finish(self, last: bytes = b"") -> WriteOutcome:
        """
        Append *last* to the open part and close it, forced to the device if that was asked for.

        The next write begins another part. If none is open, nothing is done.
        """
        outcome = self._unpark() if self._is_parked else DONE
        if self._fd != _NO_FILE and last:
            try:
                self._append(last)
            except OSError as error:
                self._note(error)
                outcome = WriteOutcome(error=error)
        if self._fsync_ns is not None:
            self.sync()
        self._let_go()
        return outcome

    def park(self) -> None:
        """
        Close the descriptor until the next write, which continues the same part.

        This is for writers of more files than may be open. The written bytes are forced to the device first if that
        was asked for.
        """
        if self._fd == _NO_FILE:
            return
        if self._fsync_ns is not None:
            self.sync()
        fd, self._fd = self._fd, _NO_FILE
        self._is_parked = True
        try:
            os.close(fd)
        except OSError as error:  # NFS reports a failed write here
            self._note(error)

    def abandon(self) -> None:
        """Close this process's copy of the descriptor and touch nothing else; for a forked child."""
        self._is_parked = False
        fd, self._fd = self._fd, _NO_FILE
        if fd != _NO_FILE:
            with contextlib.suppress(OSError):
                os.close(fd)

    def _sync_name(self) -> None:
        """Force the new file's name to the device, and the names of the directories that were made for it."""
        for directory in self.paths[-1].parents:
            sync_directory(directory)
            if directory == self._existing:
                break
        # Those directories exist from now on; a part that comes later may need one below the log's directory.
        self._existing = self.directory
        self._is_new = False

    def _unpark(self) -> WriteOutcome:
        path = self.paths[-1]
        try:
            self._fd = os.open(path, APPEND)
        except FileNotFoundError:
            self._is_parked = False
            vanished = Vanished(path, self.events, self.size_bytes)
            self._turn_page()
            return WriteOutcome(vanished=vanished)
        except OSError as error:
            return self._refuse(error)
        self._is_parked = False
        return DONE

    def _open(self) -> None:
        for _ in range(_MOST_PARTS):
            name = self._name(self.part)
            try:
                self._fd = self._create(self.directory, name)
            except FileExistsError:
                self.part += 1
            else:
                self.paths.append(self.directory / name)
                self._is_new = True
                return
        raise FileExistsError(errno.EEXIST, f"{_MOST_PARTS} parts exist", str(self.directory))

    def _append(self, chunk: bytes) -> None:
        rest = memoryview(chunk)
        try:
            while rest:
                # A short write comes before the error that explains it: continue until there is one.
                rest = rest[os.write(self._fd, rest) :]
        except OSError:
            if len(rest) < len(chunk):
                self._cut_back()
            raise
        self.size_bytes += len(chunk)
        self.written_bytes += len(chunk)
        self._is_dirty = True

    def _cut_back(self) -> None:
        """Remove what a failed write left; if even that fails, the file ends torn, and another one is begun."""
        try:
            os.ftruncate(self._fd, self.size_bytes)
        except OSError as error:
            self._note(error)
            self._let_go()

    def _refuse(self, error: OSError) -> WriteOutcome:
        self._note(error)
        if error.errno == errno.EFBIG and self.size_bytes:
            # The limit is on one file. The next file may hold the chunk; if not, it is empty and stays open.
            self.finish()
        elif self._rest_ns == 0:
            self._rest(_FIRST_REST_NS)
        else:
            self._rest(min(2 * self._rest_ns, _LONGEST_REST_NS))
        return WriteOutcome(error=error)

    def _rest(self, rest_ns: int) -> None:
        self._rest_ns = rest_ns
        self._rest_until_ns = clock.monotonic_ns() + rest_ns

    def _note(self, error: OSError) -> None:
        self.errors += 1
        self.last_error = error

    def _let_go(self) -> None:
        fd, self._fd = self._fd, _NO_FILE
        if fd == _NO_FILE:
            return
        self._turn_page()
        try:
            os.close(fd)
        except OSError as error:  # NFS reports a failed write here
            self._note(error)

    def _turn_page(self) -> None:
        self.part += 1
        self.size_bytes = self.events = 0
        self._is_dirty = False
