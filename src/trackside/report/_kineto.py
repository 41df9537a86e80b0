"""Traces of torch.profiler (Kineto) beside ours."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import attrs

from trackside.events import UnreadableError
from trackside.report._clocks import Alignment

_FIRST_PID: Final = 1_000_000
_PER_FILE: Final = 1_000
_EPOCH_US: Final = 1e14
"""Times below, in µs, cannot be since the epoch: they are relative to something that must be said."""
_LATEST_US: Final = 1e16
"""The year 2286. JSON has numbers of any size, ``Infinity`` and ``NaN``."""
_FLOWS: Final = frozenset("stf")


@attrs.frozen
class Profile:
    """One file."""

    path: str
    rank: int | None
    base_ns: int
    events: list[dict[str, Any]]

    @property
    def first_ns(self) -> int:
        """When it begins, in ns since the epoch; 0 if it holds nothing."""
        times = [event["ts"] for event in self.events if event.get("ph") == "X"]
        return self.base_ns + round(min(times) * 1000) if times else 0


def load(path: str | os.PathLike[str]) -> Profile:
    """
    Read one file.

    Raises:
        UnreadableError: It cannot be read, is no such trace, or does not say when it was.
    """
    name, wanted = str(path), "give a trace that torch.profiler exported"
    try:
        data = json.loads(Path(path).read_bytes())
    except OSError as error:
        raise UnreadableError(name, str(error.strerror), "see that it can be read") from error
    except (ValueError, RecursionError) as error:
        raise UnreadableError(name, f"is no JSON: {error}", wanted) from error
    events = data.get("traceEvents") if isinstance(data, dict) else None
    if not isinstance(events, list):
        raise UnreadableError(name, "holds no traceEvents", wanted)
    sound = [event for event in events if isinstance(event, dict) and _is_sound(event)]
    base_ns = data.get("baseTimeNanoseconds")
    base_ns = base_ns if isinstance(base_ns, int) and 0 <= base_ns < _LATEST_US * 1000 else 0
    if not base_ns and any(event["ts"] < _EPOCH_US for event in sound if event.get("ph") == "X"):
        raise UnreadableError(name, "does not say when it was: it has no baseTimeNanoseconds", wanted)
    about = data.get("distributedInfo")
    rank = about.get("rank") if isinstance(about, dict) else None
    return Profile(name, rank if isinstance(rank, int) else None, base_ns, sound)


def _is_sound(event: dict[str, Any]) -> bool:
    at_us, phase = event.get("ts"), event.get("ph")
    if not isinstance(phase, str):
        return False
    if at_us is None:
        return phase == "M" and "ts" not in event
    return isinstance(at_us, (int, float)) and -_LATEST_US < at_us < _LATEST_US


def merge(
    profile: Profile,
    number: int,
    alignment: Alignment | None,
    microseconds: Callable[[int], float],
    put: Callable[[dict[str, Any]], None],
) -> None:
    """
    Write *profile*'s events, in processes of their own.

    Args:
        profile: What to write.
        number: Which file it is, from 0.
        alignment: That of its rank: the profiler's times are the wall clock's.
        microseconds: From ns since the epoch to the trace's times.
        put: Writes one event.
    """
    pids: dict[Any, int] = {}
    who = f"rank {profile.rank}" if profile.rank is not None else Path(profile.path).name
    for event in profile.events:
        pid = event.get("pid", 0)
        pid = pid if isinstance(pid, (int, str)) else repr(pid)
        if pid not in pids:
            pids[pid] = _FIRST_PID + number * _PER_FILE + len(pids)
            put(
                {
                    "ph": "M",
                    "name": "process_name",
                    "pid": pids[pid],
                    "tid": 0,
                    "args": {"name": f"{who} · profiler {pid}"},
                }
            )
        if event.get("ph") == "M" and event.get("name") == "process_name":
            continue
        moved = {**event, "pid": pids[pid]}
        if "ts" in event:
            wall_ns = profile.base_ns + round(event["ts"] * 1000)
            moved["ts"] = microseconds(wall_ns + (alignment.apart_ns(wall_ns) if alignment is not None else 0))
        if event.get("ph") in _FLOWS:
            moved["id"] = f"{number}:{event.get('id')}"
        try:
            put(moved)
        except ValueError:  # a figure that JSON has no word for
            continue
