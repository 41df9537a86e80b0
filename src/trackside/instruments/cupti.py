"""
The times of single GPU kernels, through NVIDIA's CUPTI, which torch installs; ``native/kernels.c`` calls it.

CUPTI delivers the records of finished kernels on threads of its own, and nothing here waits for the GPU. CUPTI has one
set of callbacks, so nothing here uses it while torch's profiler does.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
from typing import Final

from trackside._implementation import native
from trackside.core import StopEvent, is_from_signal_handler
from trackside.instruments._section import SectionSummary
from trackside.instruments.torch import watch_profiler

LIBRARIES: Final = ("libcupti.so.13", "libcupti.so.12")
MAX_NAME_LENGTH: Final = 256
"""In characters; a longer name is cut, and gets a digest of the whole."""
MAX_NAMES_BYTES: Final = 100_000
"""The most bytes of all names in one window; the kernels that took the longest are kept."""
QUIET_WINDOWS: Final = 3
"""CUPTI counts as lost after so many windows in a row with recorded sections and without kernels."""
_FLUSH_INTERVAL_S: Final = 1.0

_taken: Final = threading.Lock()
"""Held while this process has a recorder: CUPTI has one set of callbacks."""


class KernelRecorder:
    """
    Records the kernels that are launched between `begin` and `end`, those of CUDA graphs included.

    Args:
        libraries: Names or paths of CUPTI; the first that this process has loaded, or else can load, is used.
        flush_interval_s: How often a thread asks CUPTI for finished records, in seconds; 0 for no thread.

    Raises:
        RuntimeError: if CUPTI cannot be used, with the reason.
    """

    def __init__(self, libraries: tuple[str, ...] = LIBRARIES, *, flush_interval_s: float = _FLUSH_INTERVAL_S) -> None:
        if native is None:
            raise RuntimeError("kernels are recorded by the compiled core, which is not in use")
        if not _taken.acquire(blocking=False):
            raise RuntimeError("CUPTI records kernels for another part of this process")
        try:
            native.open_kernels(libraries)
            native.take_kernels()
            native.drain_kernels()  # the records that an earlier recorder left
            self._unwatch = watch_profiler(self._pause, self._resume)
        except BaseException:
            _taken.release()
            raise
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._is_paused = False
        self._missed = 0
        """Entries that were not recorded because torch's profiler had CUPTI."""
        self._entries = self._quiet = 0
        self._stop = StopEvent()
        self._thread: threading.Thread | None = None
        atexit.register(self.close)
        if flush_interval_s:
            self._thread = threading.Thread(
                target=self._run, args=(flush_interval_s,), name="trackside-kernels", daemon=True
            )
            self._thread.start()

    def begin(self) -> bool:
        """Record kernels from now on; while CUPTI has all buffers or another user, count a loss and return False."""
        with self._lock:
            if self._is_paused:
                self._missed += 1
                return False
            begun: bool = native.begin_kernels()
            self._entries += begun
            return begun

    def end(self) -> None:
        """Record no more kernels, unless another section is still open."""
        with self._lock:
            if not self._is_paused:
                native.end_kernels()

    def drain(self) -> tuple[list[tuple[str, SectionSummary]], int]:
        """
        Return the statistics of the kernels that came since the last call, by name, and how many launches were lost.

        Raises:
            RuntimeError: if sections were recorded for several windows and no kernel came.
        """
        kernels, launches, lost = native.drain_kernels()
        with self._lock:
            entries, self._entries = self._entries, 0
            missed, self._missed = self._missed, 0
        self._quiet = 0 if launches else self._quiet + bool(entries)
        if self._quiet >= QUIET_WINDOWS:
            raise RuntimeError(
                f"CUPTI recorded no kernel in {QUIET_WINDOWS} windows: there is none, or another profiler has taken it"
            )
        summaries = [(_named(name, shape), SectionSummary(*times)) for name, shape, times in kernels]
        kept, left_out = _heaviest(summaries)
        return kept, lost + missed + left_out

    def flush(self) -> None:
        """Ask CUPTI for the records of finished kernels; do not wait for others."""
        if not self._is_paused:
            native.flush_kernels()

    def _run(self, flush_interval_s: float) -> None:
        while not self._stop.wait(flush_interval_s):
            try:
                self.flush()
            except RuntimeError:
                return  # `drain` notices if no more kernels come

    def _pause(self) -> None:
        """Release CUPTI, before torch's profiler takes it."""
        with self._lock, contextlib.suppress(RuntimeError):
            self._is_paused = True
            native.leave_kernels()

    def _resume(self) -> None:
        """Take CUPTI back; if that fails, the recorder stays paused and counts the missed entries."""
        with self._lock, contextlib.suppress(RuntimeError):
            if self._is_paused:
                native.take_kernels()
                self._is_paused = False

    def close(self) -> None:
        """Release CUPTI; safe to call twice."""
        if self._stop.is_set():
            return
        self._stop.set()
        atexit.unregister(self.close)
        self._unwatch()
        if os.getpid() != self._pid:
            return  # a forked child has none of CUPTI's threads, and must leave it alone
        try:
            if self._thread is not None:
                self._thread.join(_FLUSH_INTERVAL_S)
            if not self._is_paused:
                native.leave_kernels()
        except RuntimeError as error:  # the driver may have gone before us; there is nothing left to give back
            if is_from_signal_handler(error):
                raise
        finally:
            _taken.release()


def kernel_recorder() -> KernelRecorder:
    """
    Return a recorder of kernels.

    Raises:
        RuntimeError: if there can be none, with the reason.
    """
    return KernelRecorder()


def _named(name: str, shape: tuple[int, ...]) -> str:
    """Return the key of a kernel: its name and launch shape, as NVRx has it."""
    block, grid = "_".join(map(str, shape[:3])), "_".join(map(str, shape[3:]))
    return f"{_short(name)}_blk_{block}_grid_{grid}"


def _short(name: str) -> str:
    if len(name) <= MAX_NAME_LENGTH:
        return name
    import hashlib  # noqa: PLC0415  brings OpenSSL along, and few names are so long

    digest = hashlib.blake2b(name.encode(errors="replace"), digest_size=8).hexdigest()
    return f"{name[: MAX_NAME_LENGTH - len(digest) - 1]}~{digest}"


def _heaviest(summaries: list[tuple[str, SectionSummary]]) -> tuple[list[tuple[str, SectionSummary]], int]:
    """Return the kernels that took the longest, as many as fit, by name; and how many launches are left out."""
    room = MAX_NAMES_BYTES
    kept, left_out = [], 0
    for name, summary in sorted(summaries, key=lambda one: (-one[1].mean_ns * one[1].timed, one[0])):
        room -= len(name.encode(errors="replace"))
        if room >= 0:
            kept.append((name, summary))
        else:
            left_out += summary.timed
    return sorted(kept), left_out
