"""Flushing, closing and counting what stands behind the queue."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

from trackside.bus._inline import InlineSeat
from trackside.bus._past import Past, Seat, suppressed_at
from trackside.bus._patience import complain
from trackside.bus._porter import Porter
from trackside.bus._queued import QueuedSeat
from trackside.bus._sorter import Join, Leave
from trackside.bus._stats import BusStats, HandlerStats
from trackside.events import FRAMES, Event, Source


def deadline_in(timeout_s: float) -> float:
    """Return the moment *timeout_s* from now on the monotonic clock, not before now and not after all time."""
    return time.monotonic() + min(max(0.0, timeout_s), threading.TIMEOUT_MAX / 2)


def left_s(deadline_s: float) -> float:
    """Return the seconds until *deadline_s* on the monotonic clock, at least 0."""
    return max(0.0, deadline_s - time.monotonic())


def flush_sinks(seats: Sequence[QueuedSeat], deadline_s: float) -> bool:
    """Flush every sink, each with a fair share of the time: a stalled one must not use up that of the next."""
    done = True
    for place, seat in enumerate(seats):
        share_s = left_s(deadline_s) / (len(seats) - place)
        if seat.siding is not None:
            done = seat.siding.flush(share_s) and done
        elif seat.runs_on is FRAMES and seat.opened:
            done = _guarded(seat, "flush", share_s) and done
    return done


def close_sinks(seats: Sequence[QueuedSeat], deadline_s: float) -> bool:
    """Close every sink, each with a fair share of the time."""
    done = True
    for place, seat in enumerate(seats):
        share_s = left_s(deadline_s) / (len(seats) - place)
        if seat.siding is not None:
            done = seat.siding.close(share_s) and done
        elif seat.runs_on is FRAMES:
            done = _guarded(seat, "close", share_s) and done
    return done


def goes_along(seat: QueuedSeat, source: Source) -> bool:
    """In a forked child: have a taker of frames begin anew; return whether it does, and does not stay behind."""
    seat.forget()
    try:
        return seat.handler.after_fork(source) is not False
    except Exception as error:
        seat.patience.report(error)
        return False


def _guarded(seat: QueuedSeat, method: str, timeout_s: float) -> bool:
    try:
        return bool(getattr(seat.handler, method)(timeout_s))
    except Exception as error:  # whatever is wrong with a sink, the others get theirs
        seat.patience.report(error)
        return False


def take_stock(
    porter: Porter, seats: Iterable[Seat], past: Past, *, pause_s: float, after_close: int, misfits: int
) -> BusStats:
    """
    Return the counts of a whole bus, of one moment.

    Args:
        porter: What is behind the queue; held still meanwhile, if it can be within *pause_s*.
        seats: Who is on the bus.
        past: Who was.
        pause_s: In seconds.
        after_close: As in the result.
        misfits: As in the result.
    """
    with held_still(porter, pause_s):
        waiting = porter.queue.copy()
        now = list(seats)
        return BusStats(
            handlers=(*(stats_of(seat, porter, waiting) for seat in now), *past.stats()),
            suppressed=sum(suppressed_at(seat) for seat in now) + past.suppressed,
            after_close=after_close,
            misfits=misfits,
            **porter.counts(waiting),
        )


@contextlib.contextmanager
def held_still(porter: Porter, timeout_s: float) -> Iterator[None]:
    """Let the porter stand still, unless it does not come to that within *timeout_s*."""
    was_held = porter.is_here()
    try:
        porter.paused(timeout_s)
        yield
    finally:
        if not was_held and porter.is_here():  # also if Ctrl-C came before we knew
            porter.resume()


def stats_of(seat: Seat, porter: Porter, waiting: Collection[Any] | None = None) -> HandlerStats:
    """Return the counts of one seat; *waiting* is what the queue holds, if that is known."""
    if isinstance(seat, InlineSeat):
        return seat.stats()
    items = porter.queue.copy() if waiting is None else waiting
    return seat.stats(porter.lanes, _count_waiting(seat, items))


def _count_waiting(seat: QueuedSeat, items: Collection[Any]) -> int:
    """Count the queued *items* that are for *seat*: those after it joined and before it left."""
    kinds = Counter(map(type, items))
    if Join not in kinds and Leave not in kinds:
        wanted = sum(kinds[kind] for kind in kinds if issubclass(kind, Event) and seat.wants(kind))
        return wanted if seat.joined else 0
    count = 0
    inside = seat.joined
    for item in items:
        if isinstance(item, Event):
            count += inside and seat.wants(type(item))
        elif isinstance(item, Join) and item.seat is seat:
            inside = True
        elif isinstance(item, Leave) and item.seat is seat:
            break
    return count


def report_losses(stats: BusStats) -> None:
    """Say in one line how many events did not reach a handler, if any did not."""
    lost = stats.lost + stats.total("in_queue")
    if not lost:
        return
    parts = []
    for handler in stats.handlers:
        reasons = {name: getattr(handler, name) for name in ("failed", "shed", "rested", "invalid", "in_queue")}
        told = ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in reasons.items() if count)
        if told:
            parts.append(f"{handler.name} ({told})")
    complain("lost %d event(s): %s", lost, "; ".join(parts))
