"""GPU times of sections, measured without ever waiting for the GPU."""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Protocol

from trackside.bus import Bus
from trackside.core import is_from_signal_handler
from trackside.events import GpuTimingUnavailable
from trackside.instruments._section import CHUNK, Section, SectionSummary, SectionTimes

if TYPE_CHECKING:
    from typing_extensions import Self

MAX_PENDING: Final = 4096
"""The most stretches that the GPU has not finished yet; further ones are counted as lost."""


class GpuTimer(Protocol):
    """Marks the ends of stretches of the GPU's current stream, and times them later. No method may wait."""

    def begin(self) -> Any:
        """Mark the start of a stretch; None if that is impossible now, for example while a graph is captured."""

    def end(self, mark: Any) -> None:
        """Mark the end of the stretch."""

    def elapsed_ns(self, mark: Any) -> int | None:
        """Return the stretch's time and release *mark*; None while the GPU has not finished the stretch."""

    def after_fork(self) -> None:
        """In a forked child, leave the parent's objects alone."""


class KernelSource(Protocol):
    """Records the kernels that are launched between two calls. Nothing here may wait for the GPU."""

    def begin(self) -> bool:
        """Record from now on; False if there is no room for it."""

    def end(self) -> None:
        """Stop recording, unless `begin` was called more often than this."""

    def drain(self) -> tuple[list[tuple[str, SectionSummary]], int]:
        """Return the statistics by kernel since the last call, and how many launches were lost."""

    def flush(self) -> None:
        """Fetch the records of the kernels that are finished now."""

    def close(self) -> None:
        """Release the GPU's records."""


_RECORDED: Final = object()
"""The mark of a stretch whose kernels are recorded."""


class GpuSections:
    """
    The stretches that run on the GPU, and the times of those that have ended.

    Single kernels are recorded if that is possible; else stretches of the stream are timed.

    Args:
        bus: Publishes the reason why there are no GPU times, or none of single kernels.
        find_timer: Returns the timer, or raises with the reason why there is none.
        find_kernels: Returns the recorder of kernels, or raises with the reason why there is none.
    """

    def __init__(
        self, bus: Bus, find_timer: Callable[[], GpuTimer], find_kernels: Callable[[], KernelSource] | None = None
    ) -> None:
        self._bus = bus
        self._find_timer = find_timer
        self._find_kernels = find_kernels
        self._finding = threading.Lock()
        self._kernels: KernelSource | None = None
        self._timer: GpuTimer | None = None
        self._is_off = False
        self._pending: deque[tuple[str, Any]] = deque()
        self._times: dict[str, SectionTimes] = {}
        self._lost = 0

    def begin(self) -> Any:
        """Mark the beginning of a stretch; None if it is not timed."""
        if self._is_off:
            return None
        if self._timer is None and self._kernels is None:
            with self._finding:
                self._find()
        try:
            if self._kernels is not None:
                return _RECORDED if self._kernels.begin() else None
            return self._timer.begin() if self._timer is not None else None
        except Exception as error:
            self._give_up(error)
            return None

    def _find(self) -> None:
        """Find the recorder of kernels, else the timer of stretches."""
        if self._timer is not None or self._kernels is not None or self._is_off:
            return  # another thread was quicker
        if self._find_kernels is not None:
            try:
                self._kernels = self._find_kernels()
            except Exception as error:
                self._fall_back(error)
            return
        try:
            self._timer = self._find_timer()
        except Exception as error:
            self._turn_off(error)

    def _fall_back(self, error: Exception) -> None:
        """Time stretches instead of kernels from now on, and publish the reason once."""
        if is_from_signal_handler(error):
            raise error
        kernels, self._kernels, self._find_kernels = self._kernels, None, None
        if kernels is not None:
            kernels.close()
        try:
            self._timer = self._find_timer()
        except Exception as other:
            self._turn_off(other, f"{_said(error)}; ")
        else:
            self._bus.log(GpuTimingUnavailable(reason=_said(error), instead="the sections' stretches of the stream"))

    def _give_up(self, error: Exception) -> None:
        if self._kernels is not None:
            self._fall_back(error)
        else:
            self._turn_off(error)

    def end(self, name: str, mark: Any, *, failed: bool) -> None:
        """Mark the end of the stretch that began at *mark*; if it *failed*, its time is not kept."""
        if mark is _RECORDED:
            self._end_recording()
            return
        if self._timer is None or self._is_off:
            return
        try:
            self._timer.end(mark)
        except Exception as error:
            self._give_up(error)
        else:
            if failed:
                return
            if len(self._pending) < MAX_PENDING:
                self._pending.append((name, mark))
            else:
                self._lost += 1

    def _end_recording(self) -> None:
        if self._kernels is None:
            return
        try:
            self._kernels.end()
        except Exception as error:
            self._give_up(error)

    def collect(self) -> None:
        """Collect the times of finished stretches, in order, up to the first that the GPU has not finished."""
        while self._pending and self._timer is not None and not self._is_off:
            name, mark = self._pending[0]
            try:
                taken_ns = self._timer.elapsed_ns(mark)
            except Exception as error:
                self._turn_off(error)
                return
            if taken_ns is None:
                return
            self._pending.popleft()
            times = self._times.setdefault(name, SectionTimes(name, 1))
            times.add(taken_ns)
            if len(times.times) >= CHUNK:
                times.fold()

    def close(self) -> tuple[list[tuple[str, SectionSummary]], int]:
        """Return the statistics since the last call, and how many stretches were lost; pending ones come later."""
        if self._kernels is not None:
            try:
                return self._kernels.drain()
            except Exception as error:
                self._give_up(error)
        self.collect()
        lost, self._lost = self._lost, 0
        summaries = [(name, times.close()) for name, times in self._times.items()]
        return [(name, summary) for name, summary in summaries if summary is not None], lost

    def flush(self) -> None:
        """Fetch the kernels that are finished now; a thread also does so once a second."""
        if self._kernels is not None:
            try:
                self._kernels.flush()
            except Exception as error:
                self._give_up(error)

    def after_fork(self) -> None:
        """Leave the GPU alone: a forked child has none."""
        self._is_off, self._kernels = True, None
        if self._timer is not None:
            self._timer.after_fork()

    def leave(self) -> None:
        """Release the recorder of kernels."""
        kernels, self._kernels = self._kernels, None
        self._is_off = True
        if kernels is not None:
            kernels.close()

    def _turn_off(self, error: Exception, before: str = "") -> None:
        """Continue without GPU times, and publish the reason once."""
        if is_from_signal_handler(error):
            raise error
        self._is_off = True
        self._lost += len(self._pending)
        self._pending.clear()
        self._bus.log(GpuTimingUnavailable(reason=before + _said(error)))


def _said(error: Exception) -> str:
    return str(error) or type(error).__name__


class GpuSection(Section):
    """A section whose work on the GPU is timed too, in the same entries."""

    __slots__ = ("_gpu", "_marks")

    def __init__(self, times: SectionTimes, gpu: GpuSections) -> None:
        super().__init__(times)
        self._gpu = gpu
        self._marks: list[Any] = []

    def __enter__(self) -> Self:
        super().__enter__()
        is_timed = self._start_ns > 0
        try:
            self._marks.append(self._gpu.begin() if is_timed else None)
        except BaseException:  # raised by a signal handler: Python does not call __exit__ then
            super().__exit__(*sys.exc_info())
            raise
        if is_timed:
            self._restart()  # the time to begin on the GPU is not the block's
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, trace)
        mark = self._marks.pop()
        if mark is not None:
            self._gpu.end(self.name, mark, failed=kind is not None)

    def _fresh(self) -> Section:
        return GpuSection(self._times, self._gpu)
