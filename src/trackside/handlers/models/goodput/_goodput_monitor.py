"""The goodput model, and the monitor that also publishes its results at intervals while the job runs."""

from __future__ import annotations

import bisect
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any, ClassVar, Final

import attrs

from trackside.events import (
    ConfigError,
    Event,
    GoodputUpdated,
    Heartbeat,
    Publish,
    RunsOn,
    Source,
    SourceEnded,
)
from trackside.handlers.models._model import VersionedModel
from trackside.handlers.models.goodput._account import EndedStep, Picture, SessionState
from trackside.handlers.models.goodput._buckets import Problem, Stretch
from trackside.handlers.models.goodput._reading import (
    LATEST_NS,
    READERS,
    ProcessState,
    Reader,
    read_event,
    read_usual,
    skip,
)
from trackside.handlers.models.goodput._result import (
    NS_PER_S,
    Answer,
    AttemptTimes,
    GoodputResult,
    Question,
    normalized,
)
from trackside.handlers.models.liveness import LifeSigns
from trackside.wire import FrameView

_BROKEN: Final = (TypeError, ValueError, OverflowError, AttributeError, LookupError)
"""The exceptions that values of the wrong type raise."""


@attrs.frozen
class LatestSteps:
    """The latest signs of life and steps of a process."""

    source: Source
    signs: LifeSigns
    """The signs from which `liveness` concludes whether it is alive."""
    steps: tuple[tuple[int, int, int], ...]
    """Number, start and end of its last steps, in ns since the epoch; failed and repeated steps are included."""


class GoodputAccumulator(VersionedModel):
    """
    Assigns every instant of a session, from its first start to its end, to exactly one bucket.

    ::

        goodput = GoodputAccumulator()
        feed(replay("runs/"), goodput)
        print(goodput.result().goodput)

    A session is all runs with one session tag; without a tag, it is one run. Its events may come from any number of
    processes, in any order between processes. Give the model events of all types: each event shows that its process
    was alive, and the gaps in the numbers show which events are missing.

    Args:
        validation_is_productive: Whether time in validation and testing counts as productive.
        ideal_step_time_s: The time that a step should take; computed from the steps unless given.
    """

    version = 3

    runs_on = RunsOn.DISPATCHER
    reads: ClassVar[tuple[type[Event], ...]] = (Event,)

    def __init__(self, *, validation_is_productive: bool = False, ideal_step_time_s: float | None = None) -> None:
        self.validation_is_productive = validation_is_productive
        self.ideal_step_time_s = ideal_step_time_s
        self._readers: dict[type[Event], Reader | None] = dict(READERS)
        self._processes: dict[str, ProcessState] = {}
        self._sessions: dict[str, SessionState] = {}
        self._due_ns = LATEST_NS
        """Events from this time on, in ns since the epoch, are given to `_consume` one by one."""
        self._source: Source | None = None
        self._process = ProcessState(Source.unknown(""))

    def consume(self, frame: FrameView) -> None:
        """Read one frame, or a part of one, of one source."""
        self._read_all(frame.events)

    def __call__(self, event: Event) -> None:
        """Read one event."""
        self._read_all([event])

    def _read_all(self, events: Sequence[Event]) -> None:
        place = 0
        while (place := read_usual(self._process, self._source, events, place, self._due_ns)) < len(events):
            self._consume(events[place])
            place += 1

    def _consume(self, event: Event) -> None:
        """Read one event of any type."""
        try:
            read = self._readers[event.__class__]
        except KeyError:
            read = self._reader(event.__class__)
        if read is skip:
            return
        source = event.source
        if source is not self._source:
            self._turn_to(source)
        process = self._process
        try:
            read_event(process, event, read)
        except _BROKEN:
            process.mend()

    def _reader(self, kind: type[Event]) -> Reader | None:
        found = next((READERS[base] for base in kind.__mro__ if base in READERS), None)
        self._readers[kind] = skip if kind.derived else found
        return self._readers[kind]

    def _turn_to(self, source: Source) -> None:
        process = self._processes.get(source.id)
        if process is None:
            process = self._processes[source.id] = ProcessState(source)
            self._sort(process)
        elif process.source is not source and process.source != source and source.run_id:
            # Its first events may have come before its identity.
            self._sessions[_session_of(process.source)].processes.remove(process)
            process.source = source
            self._sort(process)
        self._source, self._process = source, process

    def _sort(self, process: ProcessState) -> None:
        name = _session_of(process.source)
        session = self._sessions.get(name)
        if session is None:
            session = SessionState(name, validation_is_productive=self.validation_is_productive)
            self._sessions[name] = session
        bisect.insort(session.processes, process, key=lambda process: process.source.id)

    def sessions(self) -> list[str]:
        """Return the names of the sessions with at least one known rank, in order of their start."""
        known = [session for session in self._sessions.values() if session.mains()]
        return [session.name for session in sorted(known, key=lambda session: (session.start, session.name))]

    def result(
        self,
        *,
        session: str | Collection[str] | None = None,
        start_ns: int | None = None,
        end_ns: int | None = None,
        exclude: Iterable[Stretch] = (),
        ideal_step_time_s: float | None = None,
        is_alive: bool = False,
    ) -> GoodputResult:
        """
        Return how the time from *start_ns* to *end_ns* was spent.

        Each answer uses everything that is known by now: once work is lost, it counts as lost in every later answer.
        The answers for consecutive stretches add up to that for the whole.

        Args:
            session: Its name; the one that started last unless given. Several names are treated as one session, for
                example if no launcher gave the ranks a common id.
            start_ns: In ns since the epoch; the session's start unless given.
            end_ns: In ns since the epoch; the last event unless given. Nothing is known of the time after the last
                event, unless the job is known to be alive; the time after the job's end is not counted.
            exclude: Stretches to leave out, as starts and ends in ns since the epoch.
            ideal_step_time_s: The time that a step should take.
            is_alive: Whether the job is known to be running at *end_ns*: a step or span in progress then lasts until
                there.

        Raises:
            ConfigError: if there is no such session.
        """
        return self._answer(session, start_ns, end_ns, exclude, ideal_step_time_s, is_alive=is_alive).result()

    def _answer(
        self,
        session: str | Collection[str] | None,
        start_ns: int | None = None,
        end_ns: int | None = None,
        exclude: Iterable[Stretch] = (),
        ideal_step_time_s: float | None = None,
        *,
        is_alive: bool = False,
    ) -> Answer:
        asked = self._session(session)
        exclude = normalized(exclude)
        picture = self._picture(asked, end_ns, is_alive=is_alive, exclude=exclude)
        if session is None and len(self.sessions()) > 1:
            picture.problems[Problem.OTHER_SESSIONS] = len(self.sessions()) - 1
        if ideal_step_time_s is None:
            ideal_step_time_s = self.ideal_step_time_s
        question = Question(
            start_ns=picture.job.start if start_ns is None else start_ns,
            end_ns=picture.job.end if end_ns is None else end_ns,
            exclude=exclude,
            ideal_s=ideal_step_time_s,
            validation_is_productive=self.validation_is_productive,
            missed=self._missed,
        )
        return Answer(asked, picture, question)

    def windows(self, length_s: float, *, session: str | None = None, **question: Any) -> list[GoodputResult]:
        """
        Return the results for consecutive windows of *length_s*; the last one may be shorter.

        Args:
            length_s: The length of a window, in seconds.
            session: As for `result`.
            question: As for `result`.

        Raises:
            ConfigError: if there is no such session, or *length_s* is not at least a nanosecond.
        """
        length = round(length_s * NS_PER_S)
        if length < 1:
            raise ConfigError("windows()", length_s, "give a length in seconds, above zero")
        whole = self._answer(session, **question)
        starts = range(whole.start_ns, whole.end_ns, length)
        return [whole.of(start, min(start + length, whole.end_ns)).result() for start in starts]

    def step_times(
        self, *, session: str | None = None, start_ns: int = 0, end_ns: int = LATEST_NS
    ) -> Iterator[EndedStep]:
        """
        Yield, for each attempt, the steps of its slowest rank that ended after *start_ns* and by *end_ns*.

        Raises:
            ConfigError: if there is no such session.
        """
        for account in self._picture(self._session(session), None, is_alive=False).job.slowest:
            yield from account.steps(start_ns, end_ns)

    def lately(self, most_steps: int) -> list[LatestSteps]:
        """Return the latest signs of life of each process, and its last steps, at most *most_steps* of them."""
        found = []
        for process in self._processes.values():
            steps = islice(process.track.steps_backwards(LATEST_NS), most_steps)
            recent = [(number, start, end) for number, start, end, _ in steps]
            found.append(LatestSteps(process.source, process.signs, tuple(reversed(recent))))
        return found

    def attempts(self, *, session: str | None = None) -> list[AttemptTimes]:
        """
        Return how the time of each attempt was spent, in their order; together they cover the session.

        Raises:
            ConfigError: if there is no such session.
        """
        return self._answer(session).attempts()

    def _session(self, name: str | Collection[str] | None) -> SessionState:
        if name and not isinstance(name, str):
            parts = [self._session(one) for one in sorted(name)]
            if len(parts) == 1:
                return parts[0]
            joined = SessionState(parts[0].name, validation_is_productive=self.validation_is_productive)
            joined.processes = sorted(
                chain.from_iterable(one.processes for one in parts), key=lambda one: one.source.id
            )
            return joined
        found = self._sessions.get(name) if isinstance(name, str) else None
        if found is not None and found.mains():
            return found
        known = self.sessions()
        if name is None and known:
            return self._sessions[known[-1]]
        listed = ", ".join(known) or "none: there is no event of any rank"
        raise ConfigError("session", name, f"known are {listed}")

    @staticmethod
    def _picture(
        session: SessionState, end_ns: int | None, *, is_alive: bool, exclude: Sequence[Stretch] = ()
    ) -> Picture:
        picture = session.picture(end_ns, is_alive=is_alive, exclude=exclude)
        assert picture is not None  # a session is known by its ranks
        return picture

    def merge(self, other: GoodputAccumulator) -> None:
        """Take over the processes of *other* that are unknown here; *other* must not be used afterwards."""
        for source_id, process in other._processes.items():
            if source_id not in self._processes:
                self._processes[source_id] = process
                self._sort(process)
        self._missed += other._missed

    def _dump(self) -> dict[str, Any]:
        ordered = sorted(self._processes.items())
        return {"processes": [process.dump() for _, process in ordered]}

    def _load(self, state: Mapping[str, Any]) -> None:
        self._processes, self._sessions, self._source = {}, {}, None
        for item in state["processes"]:
            process = ProcessState.load(item)
            self._processes[process.source.id] = process
            self._sort(process)


def _session_of(source: Source) -> str:
    return source.session_tag or source.run_id


MOST_STEPS: Final = 1_000
"""The most steps in one update."""
_MARGIN: Final = 2


def update_of(
    model: GoodputAccumulator, result: GoodputResult, *, at_ns: int, windows_s: Sequence[float] = (), since_ns: int = 0
) -> GoodputUpdated:
    """
    Return *result* as an event.

    Args:
        model: The model that gave the answer.
        result: The answer for a whole session.
        at_ns: The time of the event, in ns since the epoch.
        windows_s: The lengths of the rolling windows, in seconds.
        since_ns: Steps that ended by then are left out; an earlier update has them.
    """
    last_step, efficiency = result.last_step, result.slice_efficiency
    return GoodputUpdated(
        at_ns=at_ns,
        span_id=0,
        step=-1 if last_step is None else last_step,
        session=result.session,
        elapsed_s=result.elapsed_s,
        productive_s=result.productive_s,
        goodput=result.goodput,
        effective_goodput=result.effective_goodput,
        degraded_s=result.step_time.degraded_s,
        badput_s=result.badput_s,
        informational_s=result.informational_s,
        excluded_s=result.excluded_s,
        attempts=result.attempts,
        disruptions=result.disruptions,
        last_step=last_step,
        step_time=attrs.asdict(result.step_time),
        ranks=_columns([attrs.asdict(rank) for rank in result.ranks]),
        slowest=None if result.slowest is None else attrs.asdict(result.slowest),
        slice_efficiency={} if efficiency is None else attrs.asdict(efficiency),
        windows=_rolling(model, result, windows_s),
        steps=_steps(model, result, since_ns),
        problems=dict(result.problems),
    )


def _rolling(model: GoodputAccumulator, whole: GoodputResult, windows_s: Sequence[float]) -> dict[str, list[Any]]:
    rows = []
    for length_s in windows_s:
        start_ns = whole.end_ns - round(length_s * NS_PER_S)
        result = model.result(session=whole.session, start_ns=start_ns, end_ns=whole.end_ns)
        rows.append(
            {
                "length_s": length_s,
                "elapsed_s": result.elapsed_s,
                "productive_s": result.productive_s,
                "goodput": result.goodput,
                "badput_s": result.badput_s,
                "disruptions": result.disruptions,
            }
        )
    return _columns(rows) if rows else {}


def _steps(model: GoodputAccumulator, result: GoodputResult, since_ns: int) -> dict[str, list[Any]]:
    ideal_s = result.step_time.ideal_s
    rows = []
    for step in _fresh(model, result, since_ns):
        duration_s = step.net / NS_PER_S
        deviation_s = None if ideal_s is None else abs(duration_s - ideal_s)
        rows.append({"step": step.number, "duration_s": duration_s, "deviation_s": deviation_s})
    return _columns(rows, "step", "duration_s", "deviation_s")


def _fresh(model: GoodputAccumulator, result: GoodputResult, since_ns: int) -> deque[EndedStep]:
    """Return the latest steps that ended after *since_ns*, without reading much further back than needed."""
    first_ns = max(since_ns, result.start_ns)
    length_ns = round(_MARGIN * MOST_STEPS * (result.step_time.p50_s or 0.0) * NS_PER_S)
    while True:
        start_ns = max(first_ns, result.end_ns - length_ns)
        steps = model.step_times(session=result.session, start_ns=start_ns, end_ns=result.end_ns)
        fresh = deque((step for step in steps if step.is_sample), MOST_STEPS)
        if start_ns == first_ns or len(fresh) == MOST_STEPS:
            return fresh
        length_ns = _MARGIN * max(length_ns, NS_PER_S)


def _columns(rows: Sequence[dict[str, Any]], *names: str) -> dict[str, list[Any]]:
    return {name: [row[name] for row in rows] for name in names or rows[0]}


_MAIN: Final = "main"


class GoodputMonitor(GoodputAccumulator):
    """
    Publishes a `GoodputUpdated` at an interval, and whenever `ask` is called.

    ::

        trackside.start("runs/", handlers=[GoodputMonitor(update_interval_s=60, windows_s=[600, 3600])])

    It is only the model: it has no process, no clock and, except for *read_earlier*, no thread. Time comes from the
    events; a job has a heartbeat every second. So over a recorded log it publishes the same as in the job.
    `trackside.start` subscribes one on rank 0, unless it is given another; it gets no events of the other ranks.

    Args:
        publish: Called with every update; `trackside.start` sets it to its bus's unless given.
        update_interval_s: The time between two updates, in seconds.
        windows_s: The lengths of rolling windows, in seconds.
        read_earlier: Returns the events of earlier attempts. It is called once, at the first event, on a thread of
            its own; until it is done the updates cover this attempt alone, and report this as a problem.
        validation_is_productive: As for `GoodputAccumulator`.
        ideal_step_time_s: As for `GoodputAccumulator`.

    Raises:
        ConfigError: if *update_interval_s* or one of *windows_s* is not above zero.
    """

    stands_for: ClassVar[tuple[str, ...]] = ("GoodputAccumulator",)
    """Models with the same state: viewers that ask for them may get this one's."""

    def __init__(
        self,
        publish: Publish | None = None,
        *,
        update_interval_s: float = 30.0,
        windows_s: Sequence[float] = (),
        read_earlier: Callable[[], Iterable[Event]] | None = None,
        validation_is_productive: bool = False,
        ideal_step_time_s: float | None = None,
    ) -> None:
        super().__init__(validation_is_productive=validation_is_productive, ideal_step_time_s=ideal_step_time_s)
        for field, length in [
            ("update_interval_s", update_interval_s),
            *(("windows_s", length) for length in windows_s),
        ]:
            if not length > 0:
                raise ConfigError(field, length, "give a number of seconds above zero")
        self.read_earlier = read_earlier
        self.publish = publish
        self._interval_ns = round(update_interval_s * NS_PER_S)
        self._windows_s = tuple(windows_s)
        self._due_ns = 0
        self._asked_ns: int | None = None
        self._updated_ns: dict[str, int] = {}
        """By session, the time of its last update."""
        self._is_reading = False
        self._earlier: GoodputAccumulator | None = None
        """The earlier attempts that were read and are not part of the model yet."""

    def _consume(self, event: Event) -> None:
        """Read one event, and publish an update if it is due."""
        super()._consume(event)
        at_ns = event.at_ns
        if type(at_ns) is int and self._due_ns <= at_ns < LATEST_NS and self._is_due_to(event):
            self._update(at_ns)

    def ask(self, now_ns: int) -> None:
        """
        Publish an update at the next heartbeat after *now_ns*, in ns since the epoch; called from any thread.

        So the update covers all events published before, which may still be on their way.
        """
        self._asked_ns = now_ns
        self._due_ns = 0

    def _is_due_to(self, event: Event) -> bool:
        if event.source.role != _MAIN or event.derived or isinstance(event, SourceEnded):
            return False  # nothing is published in a stream that has ended
        if self._asked_ns is not None:
            if not isinstance(event, Heartbeat) or event.at_ns < self._asked_ns:
                return False
            self._asked_ns = None
        return True

    def _update(self, at_ns: int) -> None:
        self._due_ns = min(at_ns + self._interval_ns, LATEST_NS)
        if self._asked_ns is not None:  # `ask` was called in this moment
            self._due_ns = 0
        if self.read_earlier is not None:
            read, self.read_earlier = self.read_earlier, None
            self._start_reading(read)
        earlier, self._earlier = self._earlier, None
        if earlier is not None:
            self._take_over(earlier)
        publish = self.publish
        if publish is None:
            return
        for session in self.sessions():
            result, since_ns = self.result(session=session), self._updated_ns.get(session, 0)
            if not result.elapsed_s or result.end_ns <= since_ns:
                continue
            update = update_of(self, result, at_ns=at_ns, windows_s=self._windows_s, since_ns=since_ns)
            update.problems.pop(Problem.NO_GOOD_END, None)  # it is alive, since it publishes
            if self._is_reading:
                update.problems[Problem.EARLIER_UNREAD] = 1
            publish(update)
            self._updated_ns[session] = result.end_ns

    # --- earlier attempts --------------------------------------------------------------------------------------

    def _start_reading(self, read: Callable[[], Iterable[Event]]) -> None:
        self._is_reading = True
        thread = threading.Thread(target=self._read, args=[read], name="trackside-goodput", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # the interpreter is about to end
            return

    def _read(self, read: Callable[[], Iterable[Event]]) -> None:
        """Read the earlier attempts, while the model reads the present one."""
        earlier = GoodputAccumulator()
        try:
            for event in read():
                earlier(event)
        except Exception:  # the events read so far count, and updates report that some are missing
            self._earlier = earlier
        else:
            self._earlier = earlier
            self._is_reading = False

    def _take_over(self, earlier: GoodputAccumulator) -> None:
        for session in earlier.sessions():
            end_ns = earlier.result(session=session).end_ns
            self._updated_ns[session] = max(end_ns, self._updated_ns.get(session, 0))  # earlier updates have its steps
        self.merge(earlier)
