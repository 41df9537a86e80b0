"""Objects that are closed at the end of a ``with`` block, and the deadlines that calls of `close` share."""

from __future__ import annotations

import threading
import time
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
