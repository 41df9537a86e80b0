"""The parts of a training step, for frameworks: each a span, and a section of the same name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from trackside.events import ProfileSpanEnded, clock, span_names
from trackside.instruments import callbacks
from trackside.instruments._section import Section
from trackside.instruments._span import Span
from trackside.instruments.sections import section, waiting

_MOMENTS: Final[dict[str, tuple[Callable[[], Any], Callable[[], Any]]]] = {
    span_names.DATA_LOADING: (callbacks.on_data_loading_start, callbacks.on_data_loading_end),
    span_names.MODEL_FORWARD: (callbacks.on_model_forward_start, callbacks.on_model_forward_end),
    span_names.ZERO_GRAD: (callbacks.on_zero_grad_start, callbacks.on_zero_grad_end),
    span_names.MODEL_BACKWARD: (callbacks.on_model_backward_start, callbacks.on_model_backward_end),
    span_names.OPTIMIZER_UPDATE: (callbacks.on_optimizer_update_start, callbacks.on_optimizer_update_end),
}


class Parts:
    """
    The parts that are open. An end without a start, and a start of what is open, do nothing.

    Attributes:
        gpu: Whether sections time the GPU too.
        is_shared: Whether other ranks work on the same step. Then a backward pass contains waiting for them: who is
            long in it is not slow, and its section is timed and not scored.
    """

    def __init__(self) -> None:
        self.gpu = self.is_shared = False
        self._open: dict[str, Section] = {}

    def has_open(self, name: str) -> bool:
        """Return whether the part *name* is open."""
        return name in self._open

    def begin(self, name: str) -> None:
        """Begin the part *name*, one of those within a step."""
        if name in self._open:
            return
        self._open[name] = timed = self._section(name)
        _MOMENTS[name][0]()
        timed.__enter__()

    def _section(self, name: str) -> Section:
        if self.is_shared and name == span_names.MODEL_BACKWARD:
            return waiting(name)
        return section(name, gpu=self.gpu and name != span_names.DATA_LOADING)

    def end(self, name: str) -> None:
        """End the part *name*."""
        timed = self._open.pop(name, None)
        if timed is not None:
            timed.__exit__(None, None, None)
            _MOMENTS[name][1]()

    def took(self, name: str, began_ns: int) -> None:
        """Tell of the part *name* now that it is over: it began at *began_ns*, in ns since the epoch."""
        timed = section(name, gpu=False)
        now_ns = clock.now_ns()
        timed.__enter__()
        if timed._start_ns > 0:  # noqa: SLF001  it is timed at all
            timed._start_ns -= now_ns - began_ns  # noqa: SLF001
        timed.__exit__(None, None, None)
        Span(name, ProfileSpanEnded, {}).open(at_ns=began_ns).close(at_ns=now_ns)

    def end_all(self) -> None:
        """End what is open, the latest first."""
        for name in reversed(list(self._open)):
            self.end(name)

    def fail(self, error: BaseException) -> None:
        """Let an exception end what is open; the times of such sections are not kept. Their spans end elsewhere."""
        while self._open:
            _, timed = self._open.popitem()
            timed.__exit__(type(error), error, None)
