"""The model: events in, the account of a session's time out."""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby, islice
from typing import Any, ClassVar, Final

import attrs

from trackside.events import ConfigError, Event, IterationEnded, RunsOn, Source
from trackside.handlers.models._model import CalledWithEvents, decoding
from trackside.handlers.models.goodput import _problems as problems
from trackside.handlers.models.goodput._account import StepTime
from trackside.handlers.models.goodput._answer import Answer, Question, normalized
from trackside.handlers.models.goodput._buckets import Stretch
from trackside.handlers.models.goodput._fast_path import FAST, read_steps
from trackside.handlers.models.goodput._process import LATEST_NS, Process
from trackside.handlers.models.goodput._reading import READERS, Reader, read_event, skip
from trackside.handlers.models.goodput._result import NS_PER_S, GoodputResult
from trackside.handlers.models.goodput._session import Picture, Session
from trackside.handlers.models.liveness import LifeSigns
from trackside.wire import FrameView

VERSION: Final = 2
_MANY: Final = 8
"""Iterations from which it pays to look at them together."""
_BROKEN: Final = (TypeError, ValueError, OverflowError, AttributeError, LookupError)
"""What values of the wrong type lead to."""


@attrs.frozen
class Lately:
    """What was last heard of a process."""

    source: Source
    signs: LifeSigns
    """What `liveness` concludes from whether it is alive."""
    steps: tuple[tuple[int, int, int], ...]
    """Number, start and end of its last steps, in ns since the epoch; those that failed or were done again too."""


class GoodputAccumulator(CalledWithEvents):
    """
    Assigns every instant of a session, from its first start to its end, to exactly one bucket.

    ::

        goodput = GoodputAccumulator()
        feed(replay("runs/"), goodput)
        print(goodput.result().goodput)

    A session is the runs with one session tag, or without one, one run. Its events may come from any number of
    processes and in any order between them. Give it all events, not some classes of them: others show when a process
    was alive, and what is missing is known by the gaps in their numbers.

    Args:
        validation_is_productive: Whether time in validation and testing counts as productive.
        ideal_step_time_s: What a step should take; found out from the steps unless given.
    """

    runs_on = RunsOn.DISPATCHER
    reads: ClassVar[tuple[type[Event], ...]] = (Event,)

    def __init__(self, *, validation_is_productive: bool = False, ideal_step_time_s: float | None = None) -> None:
        self.validation_is_productive = validation_is_productive
        self.ideal_step_time_s = ideal_step_time_s
        self._readers: dict[type[Event], Reader | None] = dict(READERS)
        self._processes: dict[str, Process] = {}
        self._sessions: dict[str, Session] = {}
        self._missed = 0
        self._source: Source | None = None
        self._process = Process(Source.unknown(""))

    def consume(self, frame: FrameView) -> None:
        """Read one frame, or a part of one, of one source."""
        for kind, run in groupby(frame.events, type):
            if kind is IterationEnded:
                self.consume_iterations(list(run))  # type: ignore[arg-type]  # that is what they are
            else:
                for event in run:
                    self(event)

    def __call__(self, event: Event) -> None:
        """Learn from *event*."""
        usual = FAST.get(type(event))
        if usual is None or not usual(self._process, self._source, event):
            self._consume(event)

    def _consume(self, event: Event) -> None:
        """Learn from *event*, whatever it is."""
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

    def consume_iterations(self, events: Sequence[IterationEnded]) -> None:
        """Learn from *events*, which follow each other in one source's stream: as from each by itself, but faster."""
        if len(events) >= _MANY and events[0].__class__ is IterationEnded:
            source = events[0].source
            if source is not self._source:
                self._turn_to(source)
            if read_steps(self._process, events):
                return
            self(events[0])  # what is out of the ordinary is most often the first one alone
            events = events[1:]
            if read_steps(self._process, events):
                return
        for event in events:
            self(event)

    def missed(self, source: Source, count: int) -> None:  # noqa: ARG002
        """Count events that did not get here."""
        self._missed += count

    def _reader(self, kind: type[Event]) -> Reader | None:
        found = next((READERS[base] for base in kind.__mro__ if base in READERS), None)
        self._readers[kind] = skip if kind.derived else found
        return self._readers[kind]

    def _turn_to(self, source: Source) -> None:
        process = self._processes.get(source.id)
        if process is None:
            process = self._processes[source.id] = Process(source)
            self._sort(process)
        elif process.source is not source and process.source != source and source.run_id:
            # Its first events may have come before it said who it is.
            self._sessions[_session_of(process.source)].processes.remove(process)
            process.source = source
            self._sort(process)
        self._source, self._process = source, process

    def _sort(self, process: Process) -> None:
        name = _session_of(process.source)
        session = self._sessions.get(name)
        if session is None:
            session = Session(name, validation_is_productive=self.validation_is_productive)
            self._sessions[name] = session
        bisect.insort(session.processes, process, key=lambda process: process.source.id)

    def sessions(self) -> list[str]:
        """Return the names of the sessions of which any rank is known, in order of their start."""
        known = [session for session in self._sessions.values() if session.mains()]
        return [session.name for session in sorted(known, key=lambda session: (session.start, session.name))]

    def result(
        self,
        *,
        session: str | None = None,
        start_ns: int | None = None,
        end_ns: int | None = None,
        exclude: Iterable[Stretch] = (),
        ideal_step_time_s: float | None = None,
        is_alive: bool = False,
    ) -> GoodputResult:
        """
        Return what the time from *start_ns* to *end_ns* was spent on.

        Everything that is known by now is used: work that was lost later on is lost in every answer from then on.
        The answers for stretches that follow each other add up to that for the whole.

        Args:
            session: Its name; the one that started last unless given.
            start_ns: In ns since the epoch; the session's start unless given.
            end_ns: In ns since the epoch; the last event unless given. Up to a later moment nothing is known, unless
                the job is known to be alive or has ended: after its end there is nothing to account for.
            exclude: Stretches to leave out, as starts and ends in ns since the epoch.
            ideal_step_time_s: What a step should take.
            is_alive: Whether the job is known to be running at *end_ns*: what is in progress then goes on until there.

        Raises:
            ConfigError: if there is no such session.
        """
        asked = self._session(session)
        exclude = normalized(exclude)
        picture = self._picture(asked, end_ns, is_alive=is_alive, exclude=exclude)
        if len(self.sessions()) > 1 and session is None:
            picture.problems[problems.OTHER_SESSIONS] = len(self.sessions()) - 1
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
        return Answer(asked, picture, question).result()

    def windows(self, length_s: float, *, session: str | None = None, **question: Any) -> list[GoodputResult]:
        """
        Return the results for consecutive windows of *length_s*, the last one as long as there is time left.

        Args:
            length_s: Of a window, in seconds.
            session: As for `result`.
            question: As for `result`.

        Raises:
            ConfigError: if there is no such session, or *length_s* is not at least a nanosecond.
        """
        length = round(length_s * NS_PER_S)
        if length < 1:
            raise ConfigError("windows()", length_s, "give a length in seconds, above zero")
        whole = self.result(session=session, **question)
        for bound in ("start_ns", "end_ns"):
            question.pop(bound, None)
        found = []
        for start in range(whole.start_ns, whole.end_ns, length):
            end = min(start + length, whole.end_ns)
            found.append(self.result(session=whole.session, start_ns=start, end_ns=end, **question))
        return found

    def step_times(
        self, *, session: str | None = None, start_ns: int = 0, end_ns: int = LATEST_NS
    ) -> Iterator[StepTime]:
        """
        Yield the steps that ended after *start_ns* and by *end_ns*, of each attempt those of its slowest rank.

        Raises:
            ConfigError: if there is no such session.
        """
        for account in self._picture(self._session(session), None, is_alive=False).job.slowest:
            yield from account.steps(start_ns, end_ns)

    def lately(self, most_steps: int) -> list[Lately]:
        """Return what was last heard of each process, with its last steps, at most *most_steps*."""
        found = []
        for process in self._processes.values():
            steps = islice(process.track.steps_backwards(LATEST_NS), most_steps)
            recent = [(number, start, end) for number, start, end, _ in steps]
            found.append(Lately(process.source, process.signs, tuple(reversed(recent))))
        return found

    def attempts(self, *, session: str | None = None) -> list[Stretch]:
        """
        Return of each attempt when it began and until when time is its own, in ns since the epoch.

        Raises:
            ConfigError: if there is no such session.
        """
        picture = self._picture(self._session(session), None, is_alive=False)
        starts = [attempt.start for attempt in picture.attempts]
        return list(zip(starts, [*starts[1:], picture.job.end], strict=True))

    def _session(self, name: str | None) -> Session:
        known = self.sessions()
        if name is None and known:
            return self._sessions[known[-1]]
        if name is None or name not in known:
            listed = ", ".join(known) or "none: there is no event of any rank"
            raise ConfigError("session", name, f"known are {listed}")
        return self._sessions[name]

    @staticmethod
    def _picture(session: Session, end_ns: int | None, *, is_alive: bool, exclude: Sequence[Stretch] = ()) -> Picture:
        picture = session.picture(end_ns, is_alive=is_alive, exclude=exclude)
        assert picture is not None  # a session is known by its ranks
        return picture

    def merge(self, other: GoodputAccumulator) -> None:
        """Take over what *other* knows of processes that are unknown here; it must not be used any more."""
        for source_id, process in other._processes.items():
            if source_id not in self._processes:
                self._processes[source_id] = process
                self._sort(process)
        self._missed += other._missed

    def dump(self) -> dict[str, Any]:
        """Return the state as plain data."""
        ordered = sorted(self._processes.items())
        return {"version": VERSION, "missed": self._missed, "processes": [process.dump() for _, process in ordered]}

    def load(self, state: Mapping[str, Any]) -> None:
        """
        Replace the state by one that `dump` returned.

        Raises:
            DecodeError: if *state* is anything else; the model is then as it was before.
        """
        with decoding(self, state, VERSION):
            processes = [Process.load(item) for item in state["processes"]]
            missed = int(state["missed"])
        self._processes, self._sessions, self._source, self._missed = {}, {}, None, missed
        for process in processes:
            self._processes[process.source.id] = process
            self._sort(process)


def _session_of(source: Source) -> str:
    return source.session_tag or source.run_id
