"""The sessions in logs: which sources belong together, also where their launcher gave them no common name."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

import attrs

from trackside.events import Source

_UNNAMED: Final = re.compile(r"run-[0-9a-f]{12}")
"""The run id of a process whose launcher set none: random, so another one on each rank."""
_TOGETHER_NS: Final = 600 * 10**9
"""Ranks of one launch start within so much of each other, clocks of machines included."""


def unified(sources: Iterable[Source]) -> dict[str, Source]:
    """
    Return each source by its id, ranks that belong together under one run id.

    A launcher that sets only RANK and WORLD_SIZE gives ranks nothing else in common. Those of one application and
    world size that started together, each rank once, are one launch; it gets the run id of its lowest rank. Sources
    that only collected others' events are left out where there are others.
    """
    known = list(sources)
    renamed = _common_run_ids(known)
    result = {
        source.id: attrs.evolve(source, run_id=renamed[source.run_id]) if source.run_id in renamed else source
        for source in known
    }
    own = {key: source for key, source in result.items() if source.role != "collector"}
    runs = {source.run_id for source in own.values()}
    # What `trackside run` recorded of a launch stays with it.
    return {key: source for key, source in result.items() if source.run_id in runs} if own else result


def _common_run_ids(sources: Iterable[Source]) -> Mapping[str, str]:
    """Return for each random run id of a rank the one of its launch."""
    alone = [
        source
        for source in sources
        if source.role == "main"
        and source.world_size > 1
        and not source.session_tag
        and _UNNAMED.fullmatch(source.run_id)
    ]
    launches: list[dict[int, Source]] = []
    for source in sorted(alone, key=lambda source: (source.anchor.wall_ns, source.rank)):
        launch = next((one for one in reversed(launches) if _belongs(source, one)), None)
        if launch is None:
            launches.append({source.rank: source})
        else:
            launch[source.rank] = source
    return {
        source.run_id: launch[min(launch)].run_id
        for launch in launches
        if len(launch) > 1
        for source in launch.values()
    }


def _belongs(source: Source, launch: Mapping[int, Source]) -> bool:
    first = next(iter(launch.values()))
    return (
        source.rank not in launch
        and (source.world_size, source.application, source.attempt)
        == (first.world_size, first.application, first.attempt)
        and source.anchor.wall_ns - first.anchor.wall_ns <= _TOGETHER_NS
    )
