"""The summary at the end of a job, in a few lines."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from trackside.bus import BusStats, HandlerStats
from trackside.core.text import amount, plural, printable
from trackside.counters import CounterSnapshot
from trackside.events import Source
from trackside.handlers import EventLog

_MOST_LISTED = 6


def summarize(
    source: Source,
    stats: BusStats,
    counters: Sequence[CounterSnapshot],
    log: EventLog,
    elapsed_s: float,
    *,
    is_done: bool = True,
) -> str:
    """Return the summary of one process's telemetry, as text of a few lines; *is_done* is as for `losses`."""
    who = f"{source.run_id}, rank {source.rank} of {source.world_size}, attempt {source.attempt}"
    core = source.versions.get("core")
    lines = [
        f"trackside: {who}, {elapsed_s:.1f} s" + (f" ({core})" if core else ""),
        f"  events    {stats.published:,}: {_listed(stats.by_type)}" if stats.published else "  events    none",
    ]
    lines += [
        f"  {'counters' if not place else '':9} {_counter(snapshot)}"
        for place, snapshot in enumerate(counters[:_MOST_LISTED])
    ]
    if len(counters) > _MOST_LISTED:
        lines.append(f"            and {len(counters) - _MOST_LISTED} more counters")
    lines.append(f"  lost      {losses(stats, is_done=is_done) or 'nothing'}")
    lines += [f"  {'log' if not place else '':9} {path} ({_size(path)})" for place, path in enumerate(log.paths)]
    if not log.paths:
        lines.append(f"  log       nothing could be written below {log.directory}")
    lines.append(f"  look      trackside report {log.directory}")
    return "\n".join(map(printable, lines))


def _listed(by_type: dict[str, int]) -> str:
    ordered = sorted(by_type.items(), key=lambda item: (-item[1], item[0]))
    listed = [f"{count:,} {name.removeprefix('trackside.')}" for name, count in ordered[:_MOST_LISTED]]
    rest = sum(count for _, count in ordered[_MOST_LISTED:])
    return ", ".join(listed) + (f", {rest:,} of other types" if rest else "")


def _counter(counter: CounterSnapshot) -> str:
    unit = f" {counter.unit}" if counter.unit else ""
    if not counter.count:
        return f"{counter.name}: no values"
    if counter.kind == "counter":
        return f"{counter.name}: {counter.sum:,.6g}{unit}"
    if counter.kind == "gauge":
        return f"{counter.name}: {counter.last:,.4g}{unit}"
    return (
        f"{counter.name}: {plural(counter.count, 'value')},"
        f" mean {counter.sum / counter.count:,.4g}{unit}, last {counter.last:,.4g}{unit}"
    )


def losses(stats: BusStats, *, is_done: bool = True) -> str:
    """
    Return the losses and possible losses of handlers, as part of a line; empty if certainly nothing was lost.

    Args:
        stats: The counts of the bus, after its handlers have left.
        is_done: Whether everything was delivered in time; then events in the queue were logged later and do not count.
    """
    # No total: an event that two handlers lost is two losses, and still one event.
    known = [
        f"{_short(handler)} {handler.lost:,} of {handler.logged:,} events" for handler in stats.handlers if handler.lost
    ]
    waiting = [(handler, 0 if is_done else handler.in_queue) for handler in stats.handlers]
    unknown = [
        f"{_short(handler)} was not done in time with {count or handler.handled:,} events"
        for handler, count in waiting
        if count or handler.unfinished
    ]
    if unknown:
        return "; ".join((", ".join(known) or "nothing that is known", *unknown))
    return ", ".join(known)


def _short(handler: HandlerStats) -> str:
    return handler.name.rpartition(".")[2]


def _size(path: Path) -> str:
    try:
        return amount(path.stat().st_size, "B")
    except OSError:
        return "gone"
