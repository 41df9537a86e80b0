"""The model of straggler scores: it reads the windows of all ranks and scores them."""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Final

import attrs

from trackside.events import (
    ConfigError,
    Event,
    GpuTimingUnavailable,
    KernelWindow,
    Publish,
    RunsOn,
    SectionWindow,
    Source,
    TrainingConfigured,
)
from trackside.handlers.models._model import VersionedModel
from trackside.handlers.models.scores._evaluation import (
    Column,
    Evaluation,
    Slow,
    Streak,
    Streaks,
    continued,
    dump_streaks,
    evaluate,
    is_nccl,
    load_streaks,
    slow_ranks,
    stragglers,
    total_times,
)
from trackside.handlers.models.scores._score_report import KINDS, ScoreReport, Thresholds, events_of
from trackside.handlers.models.scores._window import (
    Key,
    Layout,
    Layouts,
    Member,
    Names,
    Summary,
    Timings,
    Window,
    packed,
    unpacked,
)
from trackside.handlers.models.steps import FEWEST_STEPS
from trackside.wire import FrameView

_MOST_AHEAD: Final = 2
"""The number of windows that a rank must be ahead for a window to close without the others."""
_MAX_NAMES: Final = 1 << 14


class Lowest:
    """
    The smallest median of each name in one stream of windows.

    Before each window every value grows by the share *relax*, so that one lucky window is not the reference for ever.
    """

    __slots__ = ("_growth", "layout", "values")

    def __init__(self, relax: float) -> None:
        self._growth = 1.0 + relax
        self.layout = Layout(())
        self.values = array("d")

    def update(self, layout: Layout, medians: array[float], layouts: Layouts) -> array[float]:
        """Add a window's *medians*, and return the smallest so far of the same names, these included."""
        if layout is not self.layout:
            return self._update_others(layout, medians, layouts)
        self.values = array("d", map(min, self._relaxed(), medians))
        return self.values

    def _update_others(self, layout: Layout, medians: array[float], layouts: Layouts) -> array[float]:
        new = [name for name in layout.names if name not in self.layout.places]
        if len(self.layout) + len(new) > _MAX_NAMES:
            self.layout, self.values, new = Layout(()), array("d"), list(layout.names)
        # A new array, because windows hold the former one.
        self.values = array("d", self._relaxed())
        if new:
            self.layout = layouts.of((*self.layout.names, *new))
            self.values.extend([float("inf")] * len(new))
        places = self.layout.places
        for name, median in zip(layout.names, medians, strict=True):
            place = places[name]
            self.values[place] = min(self.values[place], median)
        return array("d", [self.values[places[name]] for name in layout.names])

    def _relaxed(self) -> Iterable[float]:
        growth = self._growth
        return self.values if growth == 1.0 else [value * growth for value in self.values]

    def after(self, name: str, windows: int) -> float:
        """Return the smallest median of *name*, grown over *windows* more windows; infinite if there is none."""
        place = self.layout.places.get(name)
        return float("inf") if place is None else self.values[place] * self._growth**windows

    def absorb(self, earlier: Lowest, windows: int, layouts: Layouts) -> None:
        """Merge the smallest medians of an *earlier* stream, grown over this stream's *windows*."""
        names = earlier.layout.names[: _MAX_NAMES - len(self.layout)]
        self.layout = layouts.of(dict.fromkeys((*self.layout.names, *names)))
        known = dict.fromkeys(self.layout.names, float("inf"))
        known.update(zip(self.layout.names, self.values, strict=True))
        for name in names:
            known[name] = min(known[name], earlier.after(name, windows))
        self.values = array("d", known.values())

    def dump(self) -> list[Any]:
        """Return this as plain data."""
        return [list(self.layout.names), packed(self.values)]

    def load(self, data: Any, layouts: Layouts) -> None:
        """Load the state that was dumped as *data*."""
        names, values = data
        self.layout, self.values = layouts.of(names), unpacked(values)
        if len(self.layout) != len(self.values):
            raise ValueError("as many values as names")


@attrs.define
class RankMeasurements:
    """One rank in one attempt."""

    source: tuple[int, str]
    """The start of the process, and its id: if two claim to be the same rank and attempt, the later one counts."""
    sections: Lowest
    kernels: Lowest
    tag: tuple[str, ...] = ()
    section_windows: int = 0
    kernel_windows: int = 0
    gpu_off: str | None = None
    """Its reason for having no GPU times; None if it gave none."""

    def begin_anew(self, tag: tuple[str, ...], relax: float) -> None:
        """Forget its history if *tag* is another performance tag, under which the work is different."""
        if tag != self.tag:
            self.tag = tag
            self.sections, self.kernels = Lowest(relax), Lowest(relax)
            self.section_windows = self.kernel_windows = 0

    def absorb(self, earlier: RankMeasurements, layouts: Layouts) -> None:
        """Take over the history of an *earlier* attempt, if the work was the same."""
        if earlier.tag == self.tag:
            self.sections.absorb(earlier.sections, self.section_windows, layouts)
            self.kernels.absorb(earlier.kernels, self.kernel_windows, layouts)

    def dump(self) -> list[Any]:
        """Return this as plain data."""
        return [
            list(self.source),
            self.sections.dump(),
            self.kernels.dump(),
            list(self.tag),
            self.section_windows,
            self.kernel_windows,
            self.gpu_off,
        ]

    @classmethod
    def load(cls, data: Any, relax: float, layouts: Layouts) -> RankMeasurements:
        """Return the object that was dumped as *data*."""
        source, sections, kernels, tag, section_windows, kernel_windows, gpu_off = data
        stream = cls(
            (int(source[0]), str(source[1])),
            Lowest(relax),
            Lowest(relax),
            tuple(map(str, tag)),
            int(section_windows),
            int(kernel_windows),
            gpu_off,
        )
        stream.sections.load(sections, layouts)
        stream.kernels.load(kernels, layouts)
        return stream


_MAX_RANKS: Final = 1 << 16
_MAX_ATTEMPTS: Final = 4
"""The attempts of each rank whose history is kept apart; earlier ones are merged into the first of these."""


class Ranks:
    """The streams of all ranks, by rank and attempt."""

    def __init__(self, relax: float) -> None:
        self.layouts = Layouts()
        self._relax = relax
        self._streams: dict[int, dict[int, RankMeasurements]] = {}
        self._worlds: dict[int, int] = {}
        self._versions: dict[int, int] = {}
        self.settings = 0
        """The number of times that a rank reported a setting that may change how windows are read."""

    def has_room_for(self, source: Source) -> bool:
        """Return whether the rank of *source* is below the limit."""
        return source.rank < _MAX_RANKS

    def stream(self, source: Source, windows: Mapping[Key, Window]) -> RankMeasurements | None:
        """
        Return the stream of *source*; None if a later process has the same rank and attempt.

        The windows of an earlier such process are removed from *windows*.
        """
        attempts = self._streams.setdefault(source.rank, {})
        mark = (source.anchor.wall_ns, source.id)
        stream = attempts.get(source.attempt)
        if stream is not None and stream.source == mark:
            return stream
        if stream is not None and stream.source > mark:
            return None
        if stream is not None:
            for (attempt, _), window in windows.items():
                if attempt == source.attempt:
                    window.without(source.rank)
        fresh = RankMeasurements(mark, Lowest(self._relax), Lowest(self._relax), tag=source.perf_tags)
        attempts[source.attempt] = fresh
        self._worlds[source.attempt] = max(self._worlds.get(source.attempt, 0), self._world(source))
        if len(attempts) > _MAX_ATTEMPTS:
            oldest, second = sorted(attempts)[:2]
            attempts[second].absorb(attempts.pop(oldest), self.layouts)
        return attempts.get(source.attempt, fresh)

    @staticmethod
    def _world(source: Source) -> int:
        # A launcher that gives a wrong world size must not cause a report of a billion silent ranks.
        return source.world_size if source.world_size <= _MAX_RANKS else source.rank + 1

    def configure(self, source: Source, tag: tuple[str, ...]) -> None:
        """Record that *source* works under a performance *tag*."""
        stream = self.stream(source, {}) if self.has_room_for(source) else None
        if stream is not None and stream.tag != tag:
            stream.begin_anew(tag, self._relax)
            self.settings += 1

    def lacks_gpu_times(self, source: Source, reason: str) -> None:
        """Record the *reason* why *source* has no GPU times."""
        stream = self.stream(source, {}) if self.has_room_for(source) else None
        if stream is not None:
            stream.gpu_off = reason
            self.settings += 1

    def count(self, attempt: int) -> None:
        """Count a change of *attempt*: results from its earlier states are no longer valid."""
        self._versions[attempt] = self._versions.get(attempt, 0) + 1

    def version_before(self, attempt: int) -> int:
        """Return the number of changes of all attempts before *attempt*."""
        if len(self._versions) == 1:
            return 0
        return sum(count for known, count in self._versions.items() if known < attempt)

    def expected(self, attempt: int) -> int:
        """Return how many ranks *attempt* has."""
        return self._worlds.get(attempt, 0)

    def of(self, attempt: int, seen: Collection[int]) -> list[int]:
        """Return the ranks of *attempt*: those below its world size, and those *seen* beyond."""
        world = self.expected(attempt)
        return [*range(world), *sorted(rank for rank in seen if rank >= world)]

    def gpu_off(self, attempt: int, rank: int) -> str | None:
        """Return the reason of *rank* for having no GPU times; None if it gave none."""
        stream = self._streams.get(rank, {}).get(attempt)
        return None if stream is None else stream.gpu_off

    def references(self, attempt: int, rank: int, member: Member, timings: Timings) -> Column:
        """Return the smallest medians that *rank* has had up to a window, those of earlier attempts included."""
        earlier = [
            stream
            for known, stream in self._streams.get(rank, {}).items()
            if known < attempt and stream.tag == member.tag
        ]
        if not earlier:
            return timings.lowest
        is_of_sections = timings is member.sections
        histories = [stream.sections if is_of_sections else stream.kernels for stream in earlier]
        return array(
            "d",
            [
                min(own, *(history.after(name, timings.number) for history in histories))
                for name, own in zip(timings.layout.names, timings.lowest, strict=True)
            ],
        )

    def dump(self) -> list[Any]:
        """Return this as plain data."""
        streams = [
            [rank, attempt, stream.dump()]
            for rank, attempts in sorted(self._streams.items())
            for attempt, stream in sorted(attempts.items())
        ]
        return [streams, sorted(map(list, self._worlds.items())), sorted(map(list, self._versions.items()))]

    def load(self, data: Any) -> None:
        """Load the state that was dumped as *data*."""
        streams, worlds, versions = data
        for rank, attempt, stream in streams:
            loaded = RankMeasurements.load(stream, self._relax, self.layouts)
            self._streams.setdefault(int(rank), {})[int(attempt)] = loaded
        self._worlds = {int(attempt): int(world) for attempt, world in worlds}
        self._versions = {int(attempt): int(version) for attempt, version in versions}


_MAIN: Final = "main"


@attrs.frozen(kw_only=True)
class ScoreResult:
    """The result of the aggregator: plain data, which does not depend on how the sources interleaved."""

    windows: list[ScoreReport]
    """The latest windows, oldest first."""
    missed: int
    """Events that did not reach the model."""
    malformed: int
    """Windows that were refused: columns of unequal length, a name twice, a rank beyond the limit."""


class ScoreAggregator(VersionedModel):
    """
    Compute from the section and kernel windows of all ranks of one run which rank is slow, where and since when.

    A window closes when all ranks have sent it, when at least half have and all of these have sent the next one too, or
    when some rank is two windows ahead. Its report is published then, and again under a higher revision whenever a late
    rank changes it.

    Args:
        publish: Called with each `StragglerReport`; None publishes nothing.
        group: A key of the windows' ``groups``: ranks with the same value are compared; without it, all ranks are.
        thresholds: The scores below which a rank is a straggler in the published reports; may be set at any time.
        kinds: The kinds of scores to compute, ``relative`` and ``individual``.
        relax: The share by which a rank's smallest medians grow before each window; 0 never forgets.
        keep: The number of windows that are kept, and so how many windows late a rank may be.
        exclude: Returns whether to leave out the kernels of a name; by default NCCL's are left out.
        on_report: Called with each report, whether *publish* is given or not.
        on_leave: Called with the last report of each window that is no longer kept.
        summaries_of: The rank whose full statistics are to be in the reports; None for no rank's.

    Raises:
        ConfigError: if an argument is out of its range.
    """

    version = 2

    runs_on = RunsOn.DISPATCHER
    reads: ClassVar[tuple[type[Event], ...]] = (SectionWindow, KernelWindow, TrainingConfigured, GpuTimingUnavailable)

    def __init__(
        self,
        *,
        publish: Publish | None = None,
        group: str = "",
        thresholds: Thresholds | None = None,
        kinds: Sequence[str] = KINDS,
        relax: float = 0.001,
        keep: int = 8,
        exclude: Callable[[str], bool] = is_nccl,
        on_report: Callable[[ScoreReport], object] | None = None,
        on_leave: Callable[[ScoreReport], object] | None = None,
        summaries_of: int | None = None,
    ) -> None:
        if isinstance(kinds, str) or not set(kinds) <= set(KINDS):
            raise ConfigError("kinds", kinds, f"give a list of {' and '.join(KINDS)}")
        if not 0.0 <= relax < 1.0:
            raise ConfigError("relax", relax, "give a share from 0 to below 1")
        if keep < 1:
            raise ConfigError("keep", keep, "give a number of windows, at least 1")
        self.publish = publish
        self._group = group
        self._thresholds = thresholds or Thresholds()
        self._kinds = tuple(kind for kind in KINDS if kind in kinds)
        self._keep = keep
        self._exclude = exclude
        self._on_report = on_report
        self._tells = publish is not None or on_report is not None
        self._on_leave = on_leave
        self._summaries_of = summaries_of
        self._relax = relax
        self.too_late: int = 0
        """Ranks' windows that came too late to be kept; the only figure that depends on interleaving."""
        self._forget()

    def _forget(self) -> None:
        self._malformed = 0
        self._windows: dict[Key, Window] = {}
        self._newest: Key = (-1, -1)
        self._ranks = Ranks(self._relax)
        self._streaks: Streaks = {}
        self._published: dict[Key, int] = {}
        self._evaluated: dict[Key, tuple[tuple[int, int, int], Evaluation]] = {}
        self._flagged: dict[Key, tuple[Evaluation, dict[Slow, int]]] = {}

    @property
    def thresholds(self) -> Thresholds:
        """The thresholds below which a rank is a straggler in the reports."""
        return self._thresholds

    @thresholds.setter
    def thresholds(self, thresholds: Thresholds) -> None:
        self._thresholds = thresholds
        self._flagged.clear()

    # --- taking ------------------------------------------------------------------------------------------------

    def consume(self, frame: FrameView) -> None:
        """Read one frame, or a part of one, of one source."""
        if frame.source.role != _MAIN:
            return
        for event in frame.of(*self.reads):
            if isinstance(event, (SectionWindow, KernelWindow)):
                self._consume_event(event, frame.source)
            elif isinstance(event, TrainingConfigured):
                self._ranks.configure(frame.source, tuple(event.perf_tag))
            elif isinstance(event, GpuTimingUnavailable) and not event.instead:
                self._ranks.lacks_gpu_times(frame.source, event.reason)

    def _consume_event(self, event: SectionWindow | KernelWindow, source: Source) -> None:
        if not is_sound(event) or not self._ranks.has_room_for(source):
            self._malformed += 1
            return
        stream = self._ranks.stream(source, self._windows)
        if stream is None:
            return  # an earlier process that claims the same rank
        if not stream.section_windows and not stream.kernel_windows:
            self._forget_empty()  # an earlier process of this rank may have been the only one in a window
        self._ranks.count(source.attempt)
        layouts = self._ranks.layouts
        if isinstance(event, SectionWindow):
            stream.section_windows += 1
            timings = section_timings(event, stream.sections, stream.section_windows, layouts)
        else:
            stream.kernel_windows += 1
            timings = kernel_timings(event, stream.kernels, stream.kernel_windows, layouts, self._exclude)
        key = (source.attempt, event.window)
        is_ahead = key > self._newest
        if not self._open(key):
            self.too_late += 1
            return
        self._place(self._windows[key], event, source, stream.tag, timings)
        if self._tells:
            self._publish_due(key, is_ahead=is_ahead)

    def _forget_empty(self) -> None:
        for key in [key for key, window in self._windows.items() if not window.members]:
            del self._windows[key]
            self._published.pop(key, None)
            self._evaluated.pop(key, None)
            self._flagged.pop(key, None)

    def _open(self, key: Key) -> bool:
        """Make room for the window of *key*; False if it is older than all that are kept."""
        if key in self._windows:
            return True
        if len(self._windows) >= self._keep:
            oldest = min(self._windows)
            if key < oldest:
                return False
            self._retire(oldest)
        self._windows[key] = Window()
        self._newest = max(self._newest, key)
        return True

    def _retire(self, key: Key) -> None:
        """Remove the oldest window; only its slow ranks are remembered."""
        if self._tells:
            self._publish_changed(key)
        if self._on_leave is not None:
            self._on_leave(self._report(key))
        self._streaks = self._continued(self._streaks, key)
        del self._windows[key]
        self._published.pop(key, None)
        self._evaluated.pop(key, None)
        self._flagged.pop(key, None)

    def _place(
        self,
        window: Window,
        event: SectionWindow | KernelWindow,
        source: Source,
        tag: tuple[str, ...],
        timings: Timings,
    ) -> None:
        member = window.members.get(source.rank)
        bounds = (event.first_step, event.last_step, event.start_ns, event.at_ns)
        if member is None:
            group = event.groups.get(self._group, "") if self._group else ""
            member = window.members[source.rank] = Member(source.host, group, tag, *bounds)
        else:
            member.widen(*bounds)
        if isinstance(event, SectionWindow):
            window.timed += member.sections is None
            member.sections = timings
            member.waited_ns = waited_ns(event)
        else:
            member.kernels = timings
        if source.rank == self._summaries_of:
            member.summaries["sections" if isinstance(event, SectionWindow) else "kernels"] = summary(event)
        member.events += 1
        window.revision += 1

    # --- closing -----------------------------------------------------------------------------------------------

    def _is_full(self, key: Key) -> bool:
        return self._windows[key].timed == self._ranks.expected(key[0])

    def _is_closed(self, key: Key) -> bool:
        if self._is_full(key) or key[0] < self._newest[0] or self._newest[1] >= key[1] + _MOST_AHEAD:
            return True
        here, following = len(self._windows[key].members), self._windows.get((key[0], key[1] + 1))
        return following is not None and len(following.members) >= here >= self._ranks.expected(key[0]) / 2

    def _publish_due(self, key: Key, *, is_ahead: bool) -> None:
        """Publish the windows that an event of window *key* may have closed; if *key* is new, all that changed."""
        if is_ahead:
            for known in sorted(self._windows):
                if known < key and self._is_closed(known):
                    self._publish_changed(known)
        if self._is_full(key):
            self._publish_changed(key)
        previous = (key[0], key[1] - 1)
        if previous in self._windows and previous not in self._published and self._is_closed(previous):
            self._publish_changed(previous)

    def _publish_changed(self, key: Key) -> None:
        revision = self._windows[key].revision
        if not self._tells or self._published.get(key) == revision:
            return
        self._published[key] = revision
        report = self._report(key)
        if self.publish is not None:
            for event in events_of(report, report.end_ns):
                self.publish(event)
        if self._on_report is not None:
            self._on_report(report)

    # --- results -----------------------------------------------------------------------------------------------

    def result(self) -> ScoreResult:
        """Return the scores of all windows kept."""
        windows = [self._report(key) for key in sorted(self._windows)]
        return ScoreResult(windows=windows, missed=self._missed, malformed=self._malformed)

    def latest(self) -> ScoreReport | None:
        """Return the scores of the latest closed window, if there is one."""
        closed = [key for key in self._windows if self._is_closed(key)]
        return self._report(max(closed)) if closed else None

    def _evaluation(self, key: Key) -> Evaluation:
        window = self._windows[key]
        version = (window.revision, self._ranks.version_before(key[0]), self._ranks.settings)
        ranks = self._ranks.of(key[0], window.members)
        known = self._evaluated.get(key)
        if known is not None and known[0] == version and known[1].ranks == ranks:
            return known[1]

        def references(rank: int, member: Member, timings: Timings) -> Column:
            return self._ranks.references(key[0], rank, member, timings)

        evaluation = evaluate(
            window,
            ranks,
            kinds=self._kinds,
            references=references,
            gpu_off=lambda rank: self._ranks.gpu_off(key[0], rank),
        )
        self._evaluated[key] = version, evaluation
        return evaluation

    def _continued(self, streaks: Streaks, key: Key) -> Streaks:
        evaluation = self._evaluation(key)
        members = self._windows[key].members.values()
        here = Streak(key[1], min(member.first_step for member in members))
        return continued(streaks, self._slow(key, evaluation), evaluation, here)

    def _slow(self, key: Key, evaluation: Evaluation) -> dict[Slow, int]:
        known = self._flagged.get(key)
        if known is None or known[0] is not evaluation:
            known = self._flagged[key] = evaluation, slow_ranks(evaluation, self._thresholds)
        return known[1]

    def _report(self, key: Key) -> ScoreReport:
        streaks = self._streaks
        for earlier in sorted(self._windows):
            if earlier <= key:
                streaks = self._continued(streaks, earlier)
        evaluation, window = self._evaluation(key), self._windows[key]
        members = window.members.values()
        kept_of = window.members.get(self._summaries_of) if self._summaries_of is not None else None
        return ScoreReport(
            attempt=key[0],
            window=key[1],
            first_step=min(member.first_step for member in members),
            last_step=max(member.last_step for member in members),
            start_ns=min(member.start_ns for member in members),
            end_ns=max(member.end_ns for member in members),
            revision=window.revision,
            is_closed=self._is_closed(key),
            group=self._group,
            ranks=evaluation.ranks,
            nodes=[member.node if member else "" for member in evaluation.members],
            peers=[member.group if member else "" for member in evaluation.members],
            relative=evaluation.relative,
            individual=evaluation.individual,
            off=[kind for kind in KINDS if kind not in self._kinds],
            waited_s_per_step=[member.waited_s_per_step if member else None for member in evaluation.members],
            left_out_s_per_step=[member.left_out_s_per_step if member else None for member in evaluation.members],
            coverage=evaluation.coverage,
            missing=evaluation.missing,
            stragglers=stragglers(evaluation, self._slow(key, evaluation), streaks),
            summaries=dict(kept_of.summaries) if kept_of else {},
        )

    # --- moving ------------------------------------------------------------------------------------------------

    def _dump(self) -> dict[str, Any]:
        names = Names()
        windows = [
            [*key, [[rank, member.dump(names.place_of)] for rank, member in sorted(self._windows[key].members.items())]]
            for key in sorted(self._windows)
        ]
        return {
            "names": names.dump(),
            "windows": windows,
            "ranks": self._ranks.dump(),
            "streaks": dump_streaks(self._streaks),
            "malformed": self._malformed,
            "too_late": self.too_late,
        }

    def _load(self, state: Mapping[str, Any]) -> None:
        self._forget()
        self._ranks.load(state["ranks"])
        layouts = Names.load(state["names"], self._ranks.layouts)
        for attempt, number, members in state["windows"][-self._keep :]:
            window = self._windows[int(attempt), int(number)] = Window()
            for rank, member in members:
                window.add(int(rank), Member.load(member, layouts))
        self._newest = max(self._windows, default=self._newest)
        self._streaks = load_streaks(state["streaks"])
        self._malformed = int(state["malformed"])
        self.too_late = int(state["too_late"])
        self._published = {key: self._windows[key].revision for key in self._windows if self._is_closed(key)}


# --- windows as they are read ----------------------------------------------------------------------------------------


def is_sound(event: SectionWindow | KernelWindow) -> bool:
    """Return whether *event* has columns of equal length, each name once, and a possible window number."""
    size = len(event.names)
    columns = (event.counts, event.min_ns, event.max_ns, event.median_ns, event.mean_ns, event.std_ns)
    return (
        all(len(column) == size for column in columns)
        and (isinstance(event, KernelWindow) or len(event.entries) == size)
        and len(set(event.names)) == size
        and event.window >= 0
    )


def section_timings(event: SectionWindow, history: Lowest, number: int, layouts: Layouts) -> Timings:
    """Return the timings in *event*, and add them to *history*."""
    layout = layouts.of(event.names)
    medians, entries = array("d", event.median_ns), array("d", event.entries)
    timed = zip(event.min_ns, event.counts, strict=True)
    shortest = array("d", [low if count >= FEWEST_STEPS else 0.0 for low, count in timed])
    if event.waits or not _are_times(medians):
        waits = set(event.waits)
        kept = [place for place, median in enumerate(medians) if _is_time(median) and layout.names[place] not in waits]
        layout, (medians, entries, shortest) = _only(kept, layout, layouts, medians, entries, shortest)
    return Timings(layout, medians, entries, history.update(layout, medians, layouts), shortest, number)


def waited_ns(event: SectionWindow) -> float:
    """Return the total time for which the rank waited for others, in the sections that are declared as waiting."""
    if not event.waits:
        return 0.0
    waits = set(event.waits)
    rows = zip(event.names, event.mean_ns, event.entries, strict=True)
    return sum(mean * entries for name, mean, entries in rows if name in waits and _is_time(mean))


def kernel_timings(
    event: KernelWindow, history: Lowest, number: int, layouts: Layouts, exclude: Callable[[str], bool]
) -> Timings:
    """Return the timings in *event* without the kernels to *exclude*, and add them to *history*."""
    layout = layouts.of(event.names)
    medians, weights = array("d", event.median_ns), array("d", total_times(event.counts, event.mean_ns))
    left_out_ns = 0.0
    excluded = layout.excluded(exclude)
    if excluded or not _are_times(medians) or not _are_times(weights):
        left_out_ns = sum(weights[place] for place in excluded)
        kept = [
            place
            for place, (median, weight) in enumerate(zip(medians, weights, strict=True))
            if place not in excluded and _is_time(median) and _is_time(weight)
        ]
        layout, (medians, weights) = _only(kept, layout, layouts, medians, weights)
    lowest = history.update(layout, medians, layouts)
    return Timings(layout, medians, weights, lowest, array("d"), number, left_out_ns)


def summary(event: SectionWindow | KernelWindow) -> Summary:
    """Return the statistics of *event* by name."""
    columns = zip(event.counts, event.min_ns, event.max_ns, event.median_ns, event.mean_ns, event.std_ns, strict=True)
    fields = ("count", "min", "max", "median", "mean", "std")
    return {name: dict(zip(fields, values, strict=True)) for name, values in zip(event.names, columns, strict=False)}


def _are_times(values: Sequence[float]) -> bool:
    # A sum that is finite has no infinity and no NaN in it.
    return not values or (min(values) > 0.0 and math.isfinite(sum(values)))


def _is_time(value: float) -> bool:
    return 0.0 < value < math.inf


def _only(
    kept: list[int], layout: Layout, layouts: Layouts, *columns: array[float]
) -> tuple[Layout, list[array[float]]]:
    names = layouts.of(layout.names[place] for place in kept)
    return names, [array("d", [column[place] for place in kept]) for column in columns]
