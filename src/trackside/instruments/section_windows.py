"""
Sections: the times of the parts of a training step on this rank.

Each section keeps bounded statistics, which are published as one `SectionWindow` for all sections of a window. A
window ends with a training iteration; nothing here waits for another rank or for a GPU.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import PurePath
from types import CodeType
from typing import Any, Final

from trackside._implementation import native
from trackside._platform import after_fork_in_child
from trackside.bus import Bus, Subscription, default_bus
from trackside.events import ConfigError, IterationEnded, KernelWindow, SectionWindow, clock
from trackside.instruments._gpu_sections import GpuSection, GpuSections, KernelSource
from trackside.instruments._section import Section, SectionSummary, SectionTimes
from trackside.instruments.cupti import kernel_recorder
from trackside.instruments.torch import cuda_event_timer

MAX_SECTIONS: Final = 256
"""The most names that a process times; further ones are counted as dropped."""
MAX_NAME_LENGTH: Final = 256


class Sections:
    """
    The sections of one process, and the windows that they are published in.

    Args:
        bus: The bus on which windows are published, and whose iterations are read.
        find_kernels: Returns a recorder of single kernels, or raises with the reason why there is none: then CUDA's
            events time the sections. Called when the first section with GPU times is entered; None for CUDA's events.
    """

    # A slot for the attribute that the compiled core reads; all others are in the dict.
    __slots__ = ("__dict__", "__weakref__", "_times")

    def __init__(self, bus: Bus, *, find_kernels: Callable[[], KernelSource] | None = None) -> None:
        self._bus = bus
        self._find_kernels = find_kernels
        self._lock = threading.RLock()
        self._window_steps = 100
        self._window_ns = 0
        self._every = 1
        self._groups: dict[str, str] = {}
        self._following: Subscription | None = None
        self._make_fresh()

    def _make_fresh(self) -> None:
        self._times: dict[str, SectionTimes] = {}
        self._locations: dict[tuple[CodeType, int], str] = {}
        self._overflow: SectionTimes | None = None
        self._dropped: set[str] = set()
        self._window: int | None = None
        self._first_step = self._last_step = -1
        self._start_ns = clock.now_ns()
        self._is_wanted = False
        self._gpu = GpuSections(self._bus, cuda_event_timer, self._find_kernels)

    def after_fork(self) -> None:
        """Start without the parent's times, with a free lock."""
        self._lock = threading.RLock()
        self._gpu.after_fork()
        known = self._times  # decorated functions refer to these
        self._make_fresh()
        self._times = known
        for times in known.values():
            times.after_fork()
        self._set_interval()

    def configure(
        self,
        *,
        window_steps: int | None = None,
        window_s: float | None = None,
        profiling_interval: int | None = None,
        groups: Mapping[str, str] | None = None,
    ) -> None:
        """
        Change the timing of sections from the next window on; settings that are not given stay as they are.

        Args:
            window_steps: The length of a window in steps; the same on all ranks. 100 by default.
            window_s: The length of a window in seconds, instead.
            profiling_interval: Time the first of every so many entries of each section; 0 times none.
            groups: The rank's position in the job, ``{"pipeline_stage": "3"}``: ranks that share a value are peers.

        Raises:
            ConfigError: if a setting is out of its range, or both lengths are given.
        """
        if window_steps is not None and window_s is not None:
            raise ConfigError("window_s", window_s, "give the length of a window in steps or in seconds, not both")
        if window_steps is not None and window_steps < 1:
            raise ConfigError("window_steps", window_steps, "give a number of steps, at least 1")
        if window_s is not None and not window_s > 0:
            raise ConfigError("window_s", window_s, "give a number of seconds above 0")
        if profiling_interval is not None and profiling_interval < 0:
            raise ConfigError("profiling_interval", profiling_interval, "give a number of entries; 0 for none")
        with self._lock:
            if window_steps is not None:
                self._window_steps, self._window_ns = window_steps, 0
            if window_s is not None:
                self._window_ns = round(window_s * 1e9)
            if profiling_interval is not None:
                self._every = profiling_interval
                self._set_interval()
            if groups is not None:
                self._groups = {str(key): str(value) for key, value in groups.items()}

    # --- timing ------------------------------------------------------------------------------------------------

    def section(self, name: str | None = None, *, gpu: bool = False) -> Section:
        """
        Return a section; use it with ``with``, or as a decorator.

        ::

            with section("forward", gpu=True):
                loss = model(batch)

        Args:
            name: What it is called, the same on all ranks; the caller's file and line unless given.
            gpu: Time its work on the GPU too, without waiting for it. If that is not possible, one event has the
                reason, and the section is timed without it.
        """
        if name is None:
            return self.section_at(2, gpu=gpu)
        try:
            times = self._times[name]
        except KeyError:
            times = self._times_of(name)
        return GpuSection(times, self._gpu) if gpu else Section(times)

    def waiting(self, name: str) -> Section:
        """Return a section in which this rank waits for others; it is timed, and never scored."""
        times = self._times_of(name)
        times.waits = True
        return Section(times)

    def section_at(self, depth: int, *, gpu: bool = False) -> Section:
        """Return the section named after the file and line of the caller *depth* calls up; 1 is the direct caller."""
        frame = sys._getframe(depth)  # noqa: SLF001  the one way to know the caller
        return self.section(self._location(frame.f_code, frame.f_lineno), gpu=gpu)

    def _location(self, code: CodeType, line: int) -> str:
        known = self._locations.get((code, line))
        if known is None:
            known = f"{PurePath(code.co_filename).name}:{line}"
            if len(self._locations) < MAX_SECTIONS:
                self._locations[code, line] = known
        return known

    def _times_of(self, name: str) -> SectionTimes:
        with self._lock:
            short = name[:MAX_NAME_LENGTH]
            times = self._times.get(short)
            if times is None and len(self._times) >= MAX_SECTIONS:
                return self._dropping(short)
            if times is None:
                times = self._times[short] = SectionTimes(short, 0)
                self._set_interval()
        self._follow()
        return times

    def _dropping(self, name: str) -> SectionTimes:
        """Return a section that times nothing, and remember that *name* was dropped."""
        if len(self._dropped) < MAX_SECTIONS:
            self._dropped.add(name)
        if self._overflow is None:
            self._overflow = SectionTimes("", 0)
        return self._overflow

    def _follow(self) -> None:
        """Subscribe to the ends of iterations, if that is not done yet."""
        with self._lock:
            if self._following is None:
                self._following = self._bus.subscribe(self._on_iteration, to=IterationEnded)

    def close(self) -> None:
        """Forget all sections; those in use or around functions are timed no more. The next section begins anew."""
        with self._lock:
            following, self._following = self._following, None
            for times in self._times.values():
                times.every = 0
            self._gpu.leave()
            self._make_fresh()
        if following is not None:
            following.close()

    def _set_interval(self) -> None:
        """Apply the profiling interval, or time nothing while no handler wants `SectionWindow`."""
        self._is_wanted = self._bus.wants(SectionWindow)
        every = self._every if self._is_wanted else 0
        for times in self._times.values():
            times.every = every

    # --- windows -----------------------------------------------------------------------------------------------

    def _on_iteration(self, event: IterationEnded) -> None:
        if event.kind == "training" and event.step >= 0:
            self.step_ended(event.step, at_ns=event.at_ns)

    def step_ended(self, step: int, *, at_ns: int | None = None) -> None:
        """
        Note that training *step* ended; called after every training iteration, or by loops that have none.

        Args:
            step: Its number, counted from 0.
            at_ns: When it ended, in ns since the epoch; now unless given.
        """
        end_ns = clock.now_ns() if at_ns is None else at_ns
        closed: list[SectionWindow | KernelWindow] = []
        with self._lock:
            window = end_ns // self._window_ns if self._window_ns else step // self._window_steps
            if self._window is not None and window != self._window:
                closed += self._close(end_ns)
            if self._window is None:
                self._window, self._first_step = window, step
            self._last_step = step
            self._gpu.collect()
            if not self._window_ns and (step + 1) % self._window_steps == 0:
                closed += self._close(end_ns)
            if self._is_wanted != self._bus.wants(SectionWindow):
                self._set_interval()
        self._publish(closed)

    def flush_gpu(self) -> None:
        """Fetch the times of the kernels that the GPU has finished, so that the next window holds them."""
        self._gpu.flush()

    def close_window(self) -> None:
        """Publish the times so far, for example at the end of a job."""
        self.flush_gpu()
        with self._lock:
            closed = self._close(clock.now_ns())
        self._publish(closed)

    def begin(self) -> None:
        """Time sections from now on if a handler wants their times, not only from the next step; for a job's start."""
        with self._lock:
            if self._window is None:
                self._start_ns = clock.now_ns()
            self._set_interval()

    def _publish(self, closed: list[SectionWindow | KernelWindow]) -> None:
        # Outside the lock: the handler that receives a window may use sections.
        for event in closed:
            self._bus.log(event)

    def _close(self, end_ns: int) -> list[SectionWindow | KernelWindow]:
        window, self._window = self._window, None
        start_ns, self._start_ns = self._start_ns, end_ns
        summaries = [(times.name, times.close()) for times in list(self._times.values())]
        on_gpu, lost = self._gpu.close()
        if window is None or not self._is_wanted:
            return []
        common: dict[str, Any] = {
            "at_ns": end_ns,
            "step": self._last_step,
            "window": window,
            "first_step": self._first_step,
            "last_step": self._last_step,
            "start_ns": start_ns,
            "groups": self._groups,
        }
        timed = [(name, summary) for name, summary in summaries if summary is not None]
        entries = [summary.entries for _, summary in timed]
        sections = SectionWindow(
            **common,
            **_columns(timed),
            entries=entries,
            dropped=len(self._dropped),
            waits=[name for name, _ in timed if self._times[name].waits],
        )
        if not on_gpu and not lost:
            return [sections]
        # The kernels come first: readers regard a rank as complete when its sections have arrived.
        return [KernelWindow(**common, **_columns(on_gpu), dropped=lost), sections]


def _columns(timed: list[tuple[str, SectionSummary]]) -> dict[str, Any]:
    return {
        "names": [name for name, _ in timed],
        "counts": [summary.timed for _, summary in timed],
        "min_ns": [summary.min_ns for _, summary in timed],
        "max_ns": [summary.max_ns for _, summary in timed],
        "median_ns": [summary.median_ns for _, summary in timed],
        "mean_ns": [summary.mean_ns for _, summary in timed],
        "std_ns": [summary.std_ns for _, summary in timed],
    }


if native is not None:
    Sections.section = native.compile_making(Sections)  # type: ignore[method-assign]

_sections: Final = Sections(default_bus, find_kernels=kernel_recorder)

section: Final = _sections.section
waiting: Final = _sections.waiting
configure_sections: Final = _sections.configure
close_section_window: Final = _sections.close_window
begin_section_windows: Final = _sections.begin
step_ended: Final = _sections.step_ended

after_fork_in_child(_sections.after_fork)
