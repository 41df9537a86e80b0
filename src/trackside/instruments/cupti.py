"""
The times of single GPU kernels, through NVIDIA's CUPTI; the one module that imports ``cupti``, when it is asked to.

CUPTI hands the records of finished kernels over on threads of its own or of ours, never on the training's: nothing
here waits for the GPU.
"""

from __future__ import annotations

import atexit
import os
import threading
from array import array
from collections.abc import Sequence
from typing import Any, Final

from trackside.core import StopEvent
from trackside.instruments._section import CHUNK, SectionSummary, SectionTimes

BUFFER_BYTES: Final = 1 << 20
MAX_BUFFERS: Final = 8
"""That CUPTI may hold at a time; while it holds as many, no further entry of a section is recorded."""
MAX_KERNELS: Final = 8192
"""Kernels and launch shapes that are kept apart in one window."""
MAX_NAME_LENGTH: Final = 256
"""In characters; a longer name is cut, and gets a digest of the whole."""
MAX_NAMES_BYTES: Final = 100_000
"""Of all names in one window: of more kernels those that took the longest are kept."""
QUIET_WINDOWS: Final = 3
"""Windows in a row in which sections were recorded and no kernel came, before CUPTI is taken for lost."""
_FLUSH_INTERVAL_S: Final = 1.0

_taken: Final = threading.Lock()
"""Held while this process has a recorder: CUPTI knows one set of callbacks."""


class KernelRecorder:
    """
    Records the kernels that are launched between `begin` and `end`, those of CUDA graphs included.

    Args:
        cupti: The module ``cupti.cupti``, or what behaves like it.
        flush_interval_s: How often a thread asks CUPTI for finished records, in seconds; 0 for no thread.

    Raises:
        RuntimeError: if CUPTI cannot be had, with the reason.
    """

    def __init__(self, cupti: Any, *, flush_interval_s: float = _FLUSH_INTERVAL_S) -> None:
        if not _taken.acquire(blocking=False):
            raise RuntimeError("CUPTI records kernels for another part of this process")
        self._cupti = cupti
        self._pid = os.getpid()
        self._kind = cupti.ActivityKind.CONCURRENT_KERNEL
        self._lock = threading.Lock()
        self._open = 0
        self._is_on = False
        self._requested = self._completed = 0
        self._entries = self._quiet = 0
        self._taking = threading.Lock()
        self._times: dict[str, SectionTimes] = {}
        self._names: dict[tuple[Any, ...], str] = {}
        self._launches = self._lost = 0
        self._stop = StopEvent()
        self._thread: threading.Thread | None = None
        try:
            # First of all calls: it fails where another profiler is at work, before anything of that is disturbed.
            self._subscriber = cupti.subscribe(_nothing, None)
            cupti.activity_register_callbacks(self._buffer_requested, self._buffer_completed)
        except Exception as error:
            _taken.release()
            raise RuntimeError(_reason(cupti, error)) from error
        atexit.register(self.close)
        if flush_interval_s:
            self._thread = threading.Thread(
                target=self._run, args=(flush_interval_s,), name="trackside-kernels", daemon=True
            )
            self._thread.start()

    # --- in the training's thread ------------------------------------------------------------------------------

    def begin(self) -> bool:
        """Record kernels from now on; False, and one loss counted, while CUPTI holds too many buffers."""
        with self._lock:
            if not self._open and self._requested - self._completed >= MAX_BUFFERS:
                self._lost += 1
                return False
            self._open += 1
            self._entries += 1
            if not self._is_on:
                self._cupti.activity_enable(self._kind)
                self._is_on = True
        return True

    def end(self) -> None:
        """Record no more kernels, unless another section is still open."""
        with self._lock:
            self._open = max(0, self._open - 1)
            if not self._open and self._is_on:
                self._is_on = False
                self._cupti.activity_disable(self._kind)

    def drain(self) -> tuple[list[tuple[str, SectionSummary]], int]:
        """
        Return the statistics of the kernels that came since the last call, by name, and how many launches were lost.

        Raises:
            RuntimeError: if sections were recorded for several windows and no kernel came.
        """
        with self._taking:
            times, self._times = self._times, {}
            launches, self._launches = self._launches, 0
            lost, self._lost = self._lost, 0
        entries, self._entries = self._entries, 0
        self._quiet = 0 if launches else self._quiet + bool(entries)
        if self._quiet >= QUIET_WINDOWS:
            raise RuntimeError(
                f"CUPTI recorded no kernel in {QUIET_WINDOWS} windows: there is none, or another profiler has taken it"
            )
        summaries = [(name, summary) for name, kept in times.items() if (summary := kept.close()) is not None]
        kept_of, left_out = _heaviest(summaries)
        return kept_of, lost + left_out

    # --- in threads of CUPTI's or of our own -------------------------------------------------------------------

    def flush(self) -> None:
        """Ask CUPTI for the records of finished kernels; those that are under way are not waited for."""
        self._cupti.activity_flush_all(0)
        dropped = array("Q", [0])
        self._cupti.activity_get_num_dropped_records(0, 0, dropped.buffer_info()[0])  # writes a size_t there
        if dropped[0]:
            with self._taking:
                self._lost += dropped[0]

    def _run(self, flush_interval_s: float) -> None:
        while not self._stop.wait(flush_interval_s):
            try:
                self.flush()
            except Exception:
                return  # what does not come any more is noticed by `take`

    def _buffer_requested(self) -> tuple[int, int]:
        self._requested += 1
        return BUFFER_BYTES, 0  # as many records as fit

    def _buffer_completed(self, activities: Sequence[Any]) -> None:
        self._completed += 1
        with self._taking:
            for activity in activities:
                if activity.kind == self._kind:
                    self._add(activity)

    def _add(self, kernel: Any) -> None:
        self._launches += 1
        if not kernel.start or not kernel.end:
            self._lost += 1
            return
        name = self._name_of(kernel)
        times = self._times.get(name)
        if times is None:
            if len(self._times) >= MAX_KERNELS:
                self._lost += 1
                return
            times = self._times[name] = SectionTimes(name, 1)
        times.add(kernel.end - kernel.start)
        if len(times.times) >= CHUNK:
            times.fold()

    def _name_of(self, kernel: Any) -> str:
        shape = kernel.block_x, kernel.block_y, kernel.block_z, kernel.grid_x, kernel.grid_y, kernel.grid_z
        key = (kernel.name, *shape)
        name = self._names.get(key)
        if name is None:
            if len(self._names) >= MAX_KERNELS:
                self._names.clear()
            block, grid = "_".join(map(str, shape[:3])), "_".join(map(str, shape[3:]))
            name = self._names[key] = f"{_short(kernel.name or '')}_blk_{block}_grid_{grid}"
        return name

    # --- the end -----------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Let CUPTI go; safe to call twice."""
        if self._stop.is_set():
            return
        self._stop.set()
        atexit.unregister(self.close)
        if os.getpid() != self._pid:
            return  # a forked child has none of CUPTI's threads, and must leave it alone
        if self._thread is not None:
            self._thread.join(_FLUSH_INTERVAL_S)
        try:
            if self._is_on:
                self._is_on = False
                self._cupti.activity_disable(self._kind)
            self._cupti.activity_flush_all(0)
            self._cupti.unsubscribe(self._subscriber)
        except Exception:  # noqa: S110  the driver may have gone before us; there is nothing left to give back
            pass
        finally:
            _taken.release()


def kernel_recorder() -> KernelRecorder:
    """
    Return what records kernels.

    Raises:
        RuntimeError: if that cannot be done, with the reason.
    """
    try:
        from cupti import cupti  # noqa: PLC0415  needed only by those who ask for it
    except ImportError as error:
        reason = "cupti-python is not installed" if error.name == "cupti" else f"cupti-python does not load: {error}"
        raise RuntimeError(reason) from None
    return KernelRecorder(cupti)


def _nothing(*_arguments: object) -> None:
    """Be called by CUPTI; no callback is ever enabled."""


def _reason(cupti: Any, error: Exception) -> str:
    code = getattr(error, "status", None)
    if code is not None and code == cupti.Result.ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED:
        return "another profiler has taken CUPTI"
    return f"CUPTI: {error}" if str(error) else f"CUPTI: {type(error).__name__}"


def _short(name: str) -> str:
    if len(name) <= MAX_NAME_LENGTH:
        return name
    import hashlib  # noqa: PLC0415  brings OpenSSL along, and few names are so long

    digest = hashlib.blake2b(name.encode(errors="replace"), digest_size=8).hexdigest()
    return f"{name[: MAX_NAME_LENGTH - len(digest) - 1]}~{digest}"


def _heaviest(summaries: list[tuple[str, SectionSummary]]) -> tuple[list[tuple[str, SectionSummary]], int]:
    """Return those that took the longest, as many as there is room for, by name; and how many launches are left out."""
    room = MAX_NAMES_BYTES
    kept, left_out = [], 0
    for name, summary in sorted(summaries, key=lambda one: (-one[1].mean_ns * one[1].timed, one[0])):
        room -= len(name.encode(errors="replace"))
        if room >= 0:
            kept.append((name, summary))
        else:
            left_out += summary.timed
    return sorted(kept), left_out
