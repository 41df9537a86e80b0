"""The way from the porter to plain callables, which never run on its thread."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import NamedTuple

from trackside.bus._inline import InlineSeat
from trackside.bus._patience import Patience
from trackside.bus._siding import Siding
from trackside.events import Event


class _Parcel(NamedTuple):
    """An event that a model published, and who was there to get it at once."""

    event: Event
    seats: Sequence[InlineSeat]


class Relay:
    """
    Brings what models publish to plain callables, on a thread of its own that starts with the first of it.

    Args:
        fault: Deals with what a callable raised.
        is_seated: Whether a callable is still subscribed.
    """

    def __init__(
        self, fault: Callable[[InlineSeat, BaseException], None], is_seated: Callable[[InlineSeat], bool]
    ) -> None:
        self._fault = fault
        self._is_seated = is_seated
        self._siding = Siding(None, Patience("relay"), self._unpack)

    def bring(self, event: Event, seats: Sequence[InlineSeat]) -> None:
        """Take *event* to *seats*, or count it as shed where too many wait; on the porter."""
        if not self._siding.offer(_Parcel(event, seats), 0):
            for seat in seats:
                seat.refuse()
            return
        for seat in seats:
            seat.relayed.add()
        self._siding.send()

    def _unpack(self, parcel: _Parcel) -> None:
        for seat in parcel.seats:
            seat.unrelayed.add()
            if self._is_seated(seat):
                # What a strict bus lets through, or an exit, has nobody to reach on this thread; it is counted.
                with contextlib.suppress(BaseException):
                    self.deliver(seat, parcel.event)
            else:
                seat.refuse()

    def deliver(self, seat: InlineSeat, event: Event) -> None:
        """Call a plain callable in this thread, as `Bus.log` does."""
        arrived, handle, finished, _ = seat.step()
        arrived()
        try:
            handle(event)
        except BaseException as error:  # as in `Bus.log`
            self._fault(seat, error)
        else:
            if finished is not None:
                seat.ceiling = finished()

    def flush(self, timeout_s: float) -> bool:
        """Wait until everything on the way has arrived."""
        return self._siding.flush(timeout_s)

    def close(self, timeout_s: float) -> bool:
        """Bring what is on the way and stop; what has not arrived by then counts as waiting for ever."""
        return self._siding.close(timeout_s)
