"""The comparison of two sets of runs: the changes, and whether chance can explain each."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

import attrs

from trackside.core import text as words
from trackside.events import Source, UnreadableError
from trackside.handlers import replay
from trackside.handlers.models.goodput import GoodputResult
from trackside.handlers.models.liveness import RUNNING
from trackside.report._build import Progress, find_change, gather, joined, part_series, rank_rows, step_time
from trackside.report._gather import Gatherer, StepLengths, Watched
from trackside.report._statistics import TRIM, Difference, difference
from trackside.report._whatif import compare_all, late_words

BETTER, WORSE, SAME = "better", "worse", "no difference shown"
LEAST: Final = 0.01
"""A smaller change of the step time does not matter, however certain it is."""
LEAST_GOODPUT: Final = 0.02
"""A smaller change of goodput or another share of the time does not matter: 2 percentage points."""
_WINDOWS: Final = 40
_FEWEST_STEPS: Final = 20
_MOST_LATE: Final = 3
_S: Final = 1e9

Wanted = Callable[[Source], bool]


@attrs.frozen(kw_only=True)
class Side:
    """One of the two sets of runs."""

    name: str
    runs: tuple[str, ...]
    ranks: int
    steps: int
    step_p50_s: float | None
    """The median step time, as in the report; None without steps."""
    unread: tuple[str, ...]
    """The reasons why whole files were not read."""
    missing: int
    """The number of events that are known to be missing from the files."""
    damaged_bytes: int
    """The number of bytes of the files that were passed over."""

    @property
    def problems(self) -> tuple[str, ...]:
        """The reasons why whole files were not read, as a replay names them."""
        return self.unread


@attrs.frozen(kw_only=True)
class Row:
    """One figure of both sides."""

    name: str
    is_share: bool
    """Whether it is a share of the time, whose change is a difference of shares; otherwise it is in seconds."""
    difference: Difference
    is_worse_when_larger: bool
    least: float
    """The least change that matters."""

    @property
    def verdict(self) -> str:
        """``better``, ``worse`` or ``no difference shown``."""
        found = self.difference
        if found.change is None or not found.is_shown or abs(found.change) < self.least:
            return SAME
        return WORSE if (found.change > 0) is self.is_worse_when_larger else BETTER


@attrs.frozen(kw_only=True)
class Comparison:
    """The changes between two sets of runs."""

    before: Side
    after: Side
    judged: tuple[Row, ...]
    """The rows that decide the verdict: typical and mean step time, and goodput."""
    buckets: tuple[Row, ...]
    parts: tuple[Row, ...]
    """The parts of a step that both sides have: spans or sections."""
    settings: dict[str, tuple[tuple[str, ...], tuple[str, ...]]]
    """For each hyper-parameter that differs, its values before and after; an empty tuple if it was not set."""
    notes: tuple[str, ...]

    @property
    def verdict(self) -> str:
        """``worse`` if a judged row is worse, else ``better`` if one is better, else ``no difference shown``."""
        verdicts = {row.verdict for row in self.judged}
        return next((one for one in (WORSE, BETTER) if one in verdicts), SAME)

    def to_json(self) -> dict[str, Any]:
        """Return the comparison as plain data."""

        def plain(row: Row) -> dict[str, Any]:
            figures = {key: _finite(value) for key, value in attrs.asdict(row.difference).items()}
            return {"name": row.name, "unit": "share" if row.is_share else "s", **figures, "verdict": row.verdict}

        return {
            "verdict": self.verdict,
            "before": attrs.asdict(self.before),
            "after": attrs.asdict(self.after),
            "judged": [plain(row) for row in self.judged],
            "buckets": [plain(row) for row in self.buckets],
            "parts": [plain(row) for row in self.parts],
            "settings": {
                name: {"before": list(before), "after": list(after)} for name, (before, after) in self.settings.items()
            },
            "notes": list(self.notes),
        }


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


@attrs.frozen
class Selected:
    """The runs to read: the name of their set, and the paths of their logs."""

    name: str
    paths: Sequence[str | os.PathLike[str]]
    wanted: Wanted | None = None
    """Selects the sources to read; None for all."""


def compare(before: Selected, after: Selected, *, least: float = LEAST, progress: Progress | None = None) -> Comparison:
    """
    Compare two sets of runs.

    The typical step time is the mean of the steps of each attempt's first rank, except the shortest and the longest
    tenth; the first two steps of each attempt are left out. Its error allows for steps that depend on earlier ones
    and, if there are several runs, for the differences between them.

    Args:
        before: The reference.
        after: The runs that are judged.
        least: The share by which step time must change to matter.
        progress: Called with the progress of the reading.

    Raises:
        UnreadableError: There is nothing to read.
    """
    here, there = _read(before, progress), _read(after, progress)
    lengths = here.lengths(), there.lengths()
    judged = [
        _row("step time, typical", difference(*lengths, TRIM), least),
        _row("step time, mean", difference(*lengths, 0.0), least),
        _share("goodput", here.shares(_goodput), there.shares(_goodput), is_worse_when_larger=False),
    ]
    notes = [
        f"{one.side.name} has {one.side.steps:,} steps: too few to know what is chance"
        for one in (here, there)
        if one.side.steps < _FEWEST_STEPS
    ]
    notes += [note for one in (here, there) for note in one.notes()]
    return Comparison(
        before=here.side,
        after=there.side,
        judged=tuple(judged),
        buckets=tuple(_buckets(here, there)),
        parts=tuple(_parts(here, there, least)),
        settings=dict(_settings(here, there)),
        notes=tuple(notes),
    )


def _row(name: str, change: Difference, least: float) -> Row:
    return Row(name=name, is_share=False, difference=change, is_worse_when_larger=True, least=least)


def _share(
    name: str, here: Sequence[Sequence[float]], there: Sequence[Sequence[float]], *, is_worse_when_larger: bool = True
) -> Row:
    change = difference(here, there, 0.0, is_share=True)
    return Row(
        name=name, is_share=True, difference=change, is_worse_when_larger=is_worse_when_larger, least=LEAST_GOODPUT
    )


class _Read:
    """The events of one set of runs, as they were read."""

    def __init__(self, side: Side, gathered: Gatherer) -> None:
        self.side = side
        self.gathered = gathered
        self.windows = {
            session: gathered.goodput.windows(
                max(gathered.goodput.result(session=session).elapsed_s / _WINDOWS, 1e-6), session=session
            )[:_WINDOWS]
            for session in gathered.goodput.sessions()
        }

    def lengths(self) -> list[list[float]]:
        """Return each run's steps, in seconds."""
        runs: dict[str, list[StepLengths]] = {}
        for process in self.gathered.processes:
            if process.lengths is not None:
                runs.setdefault(process.source.run_id, []).append(process.lengths)
        return [[length / _S for length in joined(own)[0]] for own in runs.values()]

    def notes(self) -> Iterator[str]:
        """
        Yield notes on each run: the rank of its last attempt that failed first, and the ranks that were late.

        Where none was, also the step since which all steps are longer for good.
        """
        by_run: dict[str, list[Watched]] = {}
        for process in self.gathered.processes:
            if process.is_rank:
                by_run.setdefault(process.source.run_id, []).append(process)
        for run_id, own in by_run.items():
            rows = rank_rows(own)
            last = max(row.attempt for row in rows)
            bad = [row for row in rows if row.attempt == last and not row.has_good_end and row.state != RUNNING]
            if bad:
                first = min(bad, key=lambda row: row.last_ns)
                why = f"ended by {first.error}" if first.error else "died"
                yield f"{self.side.name}: rank {first.rank} of run {run_id} {why} {words.step(first.last_step)}"
            late = compare_all(own, self.gathered.waits).late
            for one in late[:_MOST_LATE]:
                yield f"{self.side.name}: rank {one.rank} of run {run_id} is {late_words(one)}"
            lengths, numbers = joined(process.lengths for process in own if process.lengths is not None)
            change = find_change(lengths)
            if change is not None and not late:
                grew = words.percent(change.after / change.before - 1)
                yield f"{self.side.name}: steps of run {run_id} take {grew} longer since step {numbers[change.place]}"

    def values(self, name: str) -> tuple[str, ...]:
        """Return the different values of the hyper-parameter *name* in the runs."""
        return tuple(dict.fromkeys(str(own[name]) for own in self.gathered.configs.values() if name in own))

    def shares(self, of: Callable[[GoodputResult], float]) -> list[list[float]]:
        """Return the share *of* each window of time, session by session."""
        return [[of(window) for window in windows] for windows in self.windows.values()]


def _read(selected: Selected, progress: Progress | None) -> _Read:
    recorded = replay(*selected.paths)
    wanted = selected.wanted
    sources = [
        (source, (view.events for view in frames))
        for source, frames in recorded.by_source()
        if wanted is None or wanted(source)
    ]
    if not sources:
        if recorded.problems:
            raise recorded.problems[0]
        raise UnreadableError(selected.name, "holds no run", "see trackside runs for what there is")
    sources.sort(key=lambda item: (item[0].run_id, item[0].attempt, item[0].role != "main", item[0].rank))
    gathered = gather(sources, progress)
    mains = [process for process in gathered.processes if process.is_rank]
    side = Side(
        name=selected.name,
        runs=tuple(dict.fromkeys(process.source.run_id for process in mains)),
        ranks=len({process.source.rank for process in mains}),
        steps=sum(len(process.lengths.lengths_ns) * process.lengths.block for process in mains if process.lengths),
        step_p50_s=step_time(mains).p50_s,
        unread=tuple(str(problem) for problem in recorded.problems),
        missing=recorded.missing,
        damaged_bytes=recorded.damaged_bytes,
    )
    return _Read(side, gathered)


def _goodput(result: GoodputResult) -> float:
    return result.goodput or 0.0


def _bucket_of(name: str) -> Callable[[GoodputResult], float]:
    def of(result: GoodputResult) -> float:
        length = result.named_badput_s.get(name, 0.0)
        total = sum(length.values()) if isinstance(length, dict) else length
        return float(total) / result.elapsed_s if result.elapsed_s else 0.0

    return of


def _buckets(here: _Read, there: _Read) -> Iterable[Row]:
    """Return all buckets, the largest first; buckets that are empty on both sides are included."""
    windows = [window for side in (here, there) for own in side.windows.values() for window in own]
    names = dict.fromkeys(name for window in windows for name in window.named_badput_s)
    rows = [_share(name, here.shares(_bucket_of(name)), there.shares(_bucket_of(name))) for name in names]
    return sorted(rows, key=lambda row: -max(row.difference.before, row.difference.after))


def _parts(here: _Read, there: _Read, least: float) -> Iterable[Row]:
    ours, theirs = (part_series(side.gathered) for side in (here, there))
    for name in sorted(ours.keys() & theirs.keys()):
        yield _row(name, difference([ours[name]], [theirs[name]], TRIM), least)


def _settings(here: _Read, there: _Read) -> Iterator[tuple[str, tuple[tuple[str, ...], tuple[str, ...]]]]:
    names = {name for side in (here, there) for own in side.gathered.configs.values() for name in own}
    for name in sorted(names):
        before, after = here.values(name), there.values(name)
        if set(before) != set(after):
            yield name, (before, after)
