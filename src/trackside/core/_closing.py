"""Objects that are closed at the end of a ``with`` block, and the deadlines that calls of `close` share."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import Self


def deadline_in(timeout_s: float) -> float:
    """Return the moment *timeout_s* from now: not in the past, and not beyond what locks can wait for."""
    return time.monotonic() + min(max(0.0, timeout_s), threading.TIMEOUT_MAX / 2)


def left_s(deadline_s: float) -> float:
    """Return the seconds until *deadline_s*, at least 0."""
    return max(0.0, deadline_s - time.monotonic())


class Once:
    """
    Work that is done once, by one caller: others that come meanwhile, or from within it, do not wait.

    If an exception interrupts the work, the next caller begins anew, so the work must allow for what was done before.
    """

    __slots__ = ("_callers", "_outcome")

    def __init__(self) -> None:
        self._callers: dict[str, object] = {}
        self._outcome = True

    def run(self, work: Callable[[], bool]) -> bool:
        """Return the result of *work*; True while another caller does it."""
        mine = object()
        try:
            # One step of a dict decides which caller is first; a lock would stay locked if a signal handler raised
            # after `acquire`.
            if self._callers.setdefault("first", mine) is mine:
                self._outcome = work()
        except BaseException:
            if self._callers.get("first") is mine:
                self._callers.clear()
            raise
        return self._outcome


class Closing:
    """A base of classes whose `close` needs no argument: a ``with`` block calls it at its end."""

    __slots__ = ()

    if TYPE_CHECKING:

        def close(self) -> object: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
