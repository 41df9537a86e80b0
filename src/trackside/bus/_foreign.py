"""Events of other processes, on their way to the handlers of this one."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from trackside.bus._inline import InlineSeat
from trackside.events import FRAMES, Event

if TYPE_CHECKING:
    from trackside.bus._past import Seat
    from trackside.bus._porter import Porter
    from trackside.bus._relay import Relay


def bring(events: Sequence[Event], seats: Sequence[Seat], porter: Porter, relay: Relay) -> bool:
    """
    Bring *events* of other processes to *seats*, with the sources and numbers that they have.

    Plain callables run at once, in this thread; models and sinks read the events from the queue. Takers of frames do
    not get them: an event log is the stream of its own process. For one thread at a time.

    Returns:
        False if the queue has no room now; then nobody got anything.
    """
    is_queued = any(not isinstance(seat, InlineSeat) and seat.runs_on is not FRAMES for seat in seats)
    if is_queued and not porter.bring(events):
        return False
    inline = [seat for seat in seats if isinstance(seat, InlineSeat)]
    for event in events if inline else ():
        for seat in inline:
            if seat.wants(type(event)):
                # What a strict bus raises is for whoever logs; here it is counted.
                with contextlib.suppress(Exception):
                    relay.deliver(seat, event)
    return True
