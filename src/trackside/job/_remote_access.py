"""
The remote access to a job: its publishers, the verbs that viewers may send, and the sockets where they find it.
"""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Final

import attrs

from trackside._platform import user_id
from trackside.bus import Bus, BusStats, Subscription
from trackside.core import complain, described
from trackside.events import (
    LIFECYCLE,
    ConfigError,
    ControlUsed,
    CounterWindow,
    Event,
    GpuTimingUnavailable,
    Handler,
    KernelWindow,
    Priority,
    SectionWindow,
    Source,
    TrainingConfigured,
)
from trackside.events._settings import suggests_settings
from trackside.handlers.eventlog import is_stream, stream_module
from trackside.handlers.models import CounterBoard, OpenSpans
from trackside.handlers.models.goodput import GoodputAccumulator
from trackside.handlers.models.scores import ScoreAggregator
from trackside.handlers.zeromq import (
    ALWAYS,
    RING_BYTES,
    EndpointFile,
    Filter,
    Publisher,
    Result,
    Verb,
    is_target,
    may_command,
    names_of,
)
from trackside.instruments import open_spans
from trackside.job._heartbeat import counts_of
from trackside.rules import Rule, rule_from_wire

_FLUSH_S: Final = 2.0
_MOST_S: Final = 86_400.0
MOST_WAITING: Final = 8
"""The most verbs that wait or are being done; each has a thread."""
_MOST_SAMPLED: Final = 1_000_000

Answer = tuple[bool, dict[str, Any]]
"""Whether the verb was carried out, and the values of the answer."""


@attrs.frozen
class Restriction:
    """The limits on what a job records while verbs restrict it; LIFECYCLE events are always recorded."""

    min_priority: Priority = Priority.PROFILE
    """The lowest priority that is recorded."""
    every: int = 1
    """Events that belong to a step are recorded only for each n-th step."""
    is_paused: bool = False
    until_s: float | None = None
    """The time when it ends by itself, in seconds of the monotonic clock; None if it does not."""

    def admits(self, event: Event) -> bool:
        """Return whether *event* is recorded."""
        if event.priority >= LIFECYCLE:
            return True
        if self.has_ended():
            return True
        if self.is_paused or event.priority < self.min_priority:
            return False
        return event.step < 0 or event.step % self.every == 0

    def has_ended(self) -> bool:
        """Return whether it ended by itself."""
        return self.until_s is not None and time.monotonic() >= self.until_s


NOTHING: Final = Restriction()


class Controls:
    """
    Carries out verbs on one bus.

    No verb runs code, names a file, or makes the job record more than it logs. A verb can only read the status, reduce
    what is recorded for a while, or flush. The events that it excludes are left out before events are numbered, so the
    stream has no gap, and are counted as filtered.
    """

    def __init__(self, bus: Bus, source: Source) -> None:
        self.restriction = NOTHING
        self._applied = NOTHING
        """The restriction that the dispatcher applies; a new *restriction* gets here at a barrier in the stream."""
        self._bus = bus
        self._source = source
        self._redact = bus.redact
        self._is_installed = False
        self._is_closed = False
        self._restricting = threading.RLock()
        self._performing = threading.Lock()
        self._waiting = threading.BoundedSemaphore(MOST_WAITING)

    def perform(self, verb: str, arguments: Mapping[str, Any], by: str) -> Answer:
        """Carry out *verb*, and publish its use and its sender *by*."""
        act = _VERBS.get(verb)
        try:
            done, values = act(self, arguments) if act is not None else (False, {"error": f"no verb {verb[:40]!r}"})
        except _ArgumentError as error:
            done, values = False, {"error": str(error)}
        self.record(verb, arguments, by, done=done, outcome=str(values.get("error", "")))
        return done, values

    def is_meant(self, verb: Verb) -> bool:
        """Return whether this process is among those that *verb* is for."""
        return is_target(self._source.id, self._source.rank, verb.targets)

    def on_verb(self, verb: Verb, by: str, is_allowed: bool, answer: Callable[[Result], object]) -> None:  # noqa: FBT001  a callback
        """
        Carry out a request, if it is meant for this process and its sender may ask, and answer. Does not wait.

        Args:
            verb: The request.
            by: The sender, in readable form.
            is_allowed: Whether the sender may use verbs.
            answer: Sends the answer; called on another thread.
        """
        source = self._source
        if not self.is_meant(verb):
            return

        def reply(done: bool, values: dict[str, Any]) -> None:  # noqa: FBT001  one of two values
            answer(Result(verb.request, source.id, done, {"rank": source.rank, **values}))

        if not self._waiting.acquire(blocking=False):
            reply(False, {"error": f"{MOST_WAITING} verbs are being done already; ask again"})  # noqa: FBT003
            return

        def work() -> None:
            # Not on the thread that received it, because a flush waits for that thread; and one verb at a time.
            try:
                with self._performing:
                    done, values = self.perform(verb.verb, verb.arguments, by) if is_allowed else self._refuse(verb, by)
            except Exception as error:  # the sender gets an answer in any case
                done, values = False, {"error": described(error)}
            finally:
                self._waiting.release()
            reply(done, values)

        try:
            threading.Thread(target=work, name="trackside-control", daemon=True).start()
        except RuntimeError as error:  # no thread can be started now
            self._waiting.release()
            reply(False, {"error": described(error)})  # noqa: FBT003

    def _refuse(self, verb: Verb, by: str) -> Answer:
        reason = "it takes the control key, a socket of this user's own, or a NATS server that has users"
        self.record(verb.verb, verb.arguments, by, done=False, outcome=reason)
        return False, {"error": reason}

    def record(self, verb: str, arguments: Mapping[str, Any], by: str, *, done: bool, outcome: str) -> None:
        """Publish the use of a verb."""
        self._bus.log(
            ControlUsed(
                verb=verb[:40], arguments=dict(arguments), by=by, done=done, outcome=outcome, span_id=0, step=-1
            )
        )

    def close(self) -> None:
        """Lift all restrictions for good, even if a verb comes later or is still being carried out."""
        with self._restricting:
            self._is_closed = True
            self.restriction = NOTHING
            self._apply(NOTHING)

    # --- the verbs ----------------------------------------------------------------------------------------------------

    def _status(self, arguments: Mapping[str, Any]) -> Answer:  # noqa: ARG002  the verbs'
        stats, restriction = self._bus.stats(), self._in_force()
        source = self._source
        return True, {
            "run": source.run_id,
            "host": source.host,
            "pid": source.pid,
            "published": stats.published,
            "in_queue": stats.in_queue,
            "dropped": sum(stats.dropped_by_type.values()),
            "failed": stats.failed,
            "min_priority": restriction.min_priority.name,
            "every": restriction.every,
            "paused": restriction.is_paused,
            "open_spans": open_spans(),
        }

    def _min_priority(self, arguments: Mapping[str, Any]) -> Answer:
        level = arguments.get("level")
        if level not in Priority.__members__:
            raise _ArgumentError(f"a level is one of {', '.join(Priority.__members__)}, not {str(level)[:40]!r}")
        self._restrict(attrs.evolve(self._in_force(), min_priority=Priority[str(level)], until_s=_until(arguments)))
        return True, {"min_priority": level}

    def _sample(self, arguments: Mapping[str, Any]) -> Answer:
        every = arguments.get("every")
        if type(every) is not int or not 1 <= every <= _MOST_SAMPLED:
            raise _ArgumentError(f"give every as a whole number from 1 to {_MOST_SAMPLED:,}")
        self._restrict(attrs.evolve(self._in_force(), every=every, until_s=_until(arguments)))
        return True, {"every": every}

    def _pause(self, arguments: Mapping[str, Any]) -> Answer:
        self._restrict(attrs.evolve(self._in_force(), is_paused=True, until_s=_until(arguments)))
        return True, {"paused": True}

    def _resume(self, arguments: Mapping[str, Any]) -> Answer:  # noqa: ARG002  the verbs'
        self._restrict(NOTHING)
        return True, {"paused": False}

    def _flush(self, arguments: Mapping[str, Any]) -> Answer:  # noqa: ARG002  the verbs'
        done = self._bus.flush(_FLUSH_S)
        return done, {"flushed": done, **({} if done else {"error": f"not done within {_FLUSH_S:g} s"})}

    def _in_force(self) -> Restriction:
        return NOTHING if self.restriction.has_ended() else self.restriction

    def _restrict(self, restriction: Restriction) -> None:
        with self._restricting:
            if self._is_closed:
                raise _ArgumentError("the job is closing")
            self.restriction = restriction
        # Earlier events may still be in the queue: the restriction under which they were logged applies to them.
        self._bus.at_barrier(lambda _: self._apply(restriction))

    def _apply(self, restriction: Restriction) -> None:
        with self._restricting:
            self._applied = restriction = NOTHING if self._is_closed else restriction
            if restriction == NOTHING:
                if self._is_installed:
                    self._bus.redact, self._is_installed = self._redact, False
            elif not self._is_installed:
                self._redact = self._bus.redact
                self._bus.redact, self._is_installed = self._gate, True

    def _gate(self, event: Event) -> Event | None:
        if not self._applied.admits(event):
            return None
        return self._redact(event) if self._redact is not None else event


_VERBS: Final[dict[str, Callable[[Controls, Mapping[str, Any]], Answer]]] = {
    "status": Controls._status,  # noqa: SLF001  its own verbs
    "priority": Controls._min_priority,  # noqa: SLF001
    "sample": Controls._sample,  # noqa: SLF001
    "pause": Controls._pause,  # noqa: SLF001
    "resume": Controls._resume,  # noqa: SLF001
    "flush": Controls._flush,  # noqa: SLF001
}


class _ArgumentError(ValueError):
    """A verb was requested with invalid arguments."""


def _until(arguments: Mapping[str, Any]) -> float | None:
    seconds = arguments.get("seconds")
    if seconds is None:
        return None
    if type(seconds) not in (int, float) or not 0 < seconds <= _MOST_S:
        raise _ArgumentError(f"give seconds from above 0 to {_MOST_S:,.0f}")
    return time.monotonic() + float(seconds)


COLLECTOR: Final = "TRACKSIDE_COLLECTOR"
"""The collector to connect to if `start` names none; the only variable that a launcher must set."""
KEYS: Final = "TRACKSIDE_KEYS"
"""The directory of keys for the endpoints."""
_MOST_NAME: Final = 40
_KEPT: Final[dict[type[Any], tuple[tuple[type[Event], ...], Priority | None]]] = {
    GoodputAccumulator: ((Event,), None),
    OpenSpans: (OpenSpans.reads, LIFECYCLE),
    CounterBoard: ((CounterWindow,), None),
    ScoreAggregator: ((SectionWindow, KernelWindow, TrainingConfigured, GpuTimingUnavailable), None),
}
"""The models whose state a late `trackside top` cannot rebuild, with the events and the priority that each reads."""


def _check_publish(_instance: object, _field: object, given: object) -> None:
    if not isinstance(given, (bool, str)):
        raise ConfigError("publish", given, "give True, or an endpoint such as ipc:///run/user/1000/ts/job")


@suggests_settings()
@attrs.frozen(kw_only=True)
class Remote:
    """
    The settings for access to a job's events while it runs; the *remote* of `trackside.start`.

    Args:
        publish: True to let this user attach on this machine (`trackside attach DIRECTORY`), or an endpoint.
        collector: The collector to send all events to, or a stream of NATS (``nats://HOST:PORT/STREAM``); by default
            the value of ``TRACKSIDE_COLLECTOR``, if any.
        keys: A directory of keys for these endpoints; by default the value of ``TRACKSIDE_KEYS``, if any.
        insecure: Allow endpoints without keys where keys are required.
        ring_bytes: The most bytes kept for viewers that are slow or reconnect.

    Raises:
        ConfigError: if *publish* is neither a flag nor an endpoint.
    """

    publish: bool | str = attrs.field(default=False, validator=_check_publish)
    collector: str | None = None
    keys: str | os.PathLike[str] | None = None
    insecure: bool = False
    ring_bytes: int = RING_BYTES

    def with_environment(self) -> Remote:
        """Return these settings, completed by the variables of the environment."""
        collector, keys = self.collector or os.environ.get(COLLECTOR), self.keys or os.environ.get(KEYS)
        return attrs.evolve(self, collector=collector, keys=keys)


class RemoteAccess:
    """
    The publishers of one job; made with the job, closed with it.

    Raises:
        ConfigError: An endpoint is not safe, not free or malformed.
    """

    def __init__(
        self,
        config: Remote,
        *,
        bus: Bus,
        source: Source,
        directory: Path,
        read_stats: Callable[[], BusStats] | None = None,
    ) -> None:
        self._bus = bus
        self._source = source
        self._read_stats = read_stats or bus.stats
        self._publishers: list[Publisher] = []
        self._controls = Controls(bus, source)
        self._notes: list[EndpointFile] = []
        self.is_delivered: bool = True
        """Whether the collector, if there is one, had acknowledged everything when this was closed."""
        self._made: Path | None = None
        """The directory made for the socket because the usual ones could not be used; None if they could."""
        self.subscriptions: list[Subscription] = []
        """Those through which viewers, a collector or a stream get events."""
        self._ring_bytes = config.ring_bytes
        self._stream: Subscription | None = None
        """The subscription that publishes to a stream of NATS, if the collector is one."""
        try:
            publisher = None
            if isinstance(config.publish, str):
                # On this machine the file system is protection enough; keys are for the network.
                is_local = config.publish.startswith("ipc://")
                keys = None if is_local else config.keys
                publisher = self._open(config.publish, keys=keys, insecure=config.insecure and not is_local)
            elif config.publish:
                publisher = self._open_anywhere(source)
            if publisher is not None:
                self._notes.append(EndpointFile(directory, source, publisher.endpoint))
            if config.collector and is_stream(config.collector):
                self._stream = self._subscribe_to_stream(config.collector)
                self.subscriptions.append(self._stream)
            elif config.collector:
                self._open(config.collector, connects=True, keys=config.keys, insecure=config.insecure)
        except BaseException:
            self.close(0.0)
            raise

    @property
    def is_open(self) -> bool:
        """Whether viewers can attach here."""
        return bool(self._notes)

    @property
    def is_watched(self) -> bool:
        """Whether a viewer gets a stream now."""
        return any(publisher.is_watched for publisher in self._publishers)

    @property
    def endpoints(self) -> list[str]:
        """The endpoints of this process for viewers, or of the collector that it reports to."""
        return [publisher.endpoint for publisher in self._publishers]

    def close(self, timeout_s: float) -> bool:
        """Send viewers and the collector the events that they lack, and stop; return whether they have all."""
        done = True
        self._controls.close()
        for place, publisher in enumerate(self._publishers):
            has_all = publisher.close(timeout_s / (len(self._publishers) - place))
            self.is_delivered = self.is_delivered and (has_all or not publisher.connects)
            done = done and has_all
        if self._stream is not None:
            self.is_delivered = self._stream.close(timeout_s) and self.is_delivered
            done = done and self.is_delivered
        for note in self._notes:
            note.remove()
        if self._made is not None:
            with contextlib.suppress(OSError):
                self._made.rmdir()
        return done

    def _open_anywhere(self, source: Source) -> Publisher | None:
        """Publish in the first directory that only this user can use; if there is none, only report that."""
        refused = ""
        for make in (_runtime_directory, _temporary_directory, self._new_directory):
            try:
                where = make()
                publisher = self._open(f"ipc://{where / socket_name(source)}") if where is not None else None
            except (ConfigError, OSError) as error:
                refused = refused or described(error)
                continue
            if publisher is None:
                continue
            if refused:
                complain("viewers find this job at %s, because %s", publisher.endpoint, refused)
            return publisher
        complain("this job cannot be watched: %s", refused)
        return None

    def _subscribe_to_stream(self, address: str) -> Subscription:
        return self._bus.subscribe(stream_module().sink_to(address, on_verb=self._controls.on_verb))

    def _new_directory(self) -> Path:
        self._made = Path(tempfile.mkdtemp(prefix="trackside-"))
        return self._made

    def _open(self, endpoint: str, **options: Any) -> Publisher:
        bus = self._bus

        def subscribe(taker: Any, wanted: Filter) -> Callable[[], object]:
            rule = wanted.rule
            subscription = bus.subscribe(
                taker,
                to=wanted.names,
                min_priority=wanted.level,
                keep=_Sparing(rule_from_wire(rule)) if rule is not None else None,
            )
            self.subscriptions.append(subscription)

            def end() -> None:
                with contextlib.suppress(ValueError):
                    self.subscriptions.remove(subscription)
                subscription.close(0.0)

            return end

        def on_verb(address: bytes, verb: Verb, user: str) -> None:
            if publisher.connects:  # to a collector, which decides who may command; its key proves who it is
                is_allowed, by = publisher.safety.takes_control, "the collector"
            else:
                is_allowed, by = may_command(publisher.safety, user), user or "this machine"
                if not self._controls.is_meant(verb):  # the asker waits for an answer
                    result = Result(verb.request, self._source.id, done=True, values={"expected": 0})
                    publisher.server.answer(address, result)
                    return
            self._controls.on_verb(verb, by, is_allowed, partial(publisher.server.answer, address))

        publisher = Publisher(
            endpoint,
            subscribe=subscribe,
            at_barrier=bus.at_barrier,
            status=lambda: read_status(self._read_stats()),
            on_verb=on_verb,
            ring_bytes=self._ring_bytes,
            **options,
        )
        self._publishers.append(publisher)
        return publisher


@attrs.frozen
class _Sparing:
    """A rule that keeps all events in `ALWAYS`, which describe sources, and leaves the others to *rule*."""

    rule: Rule
    portable: ClassVar[bool] = False

    def start(self) -> Callable[[Event], Any]:
        """Return a function that keeps the events in `ALWAYS`, and asks *rule* about all others."""
        decide = self.rule.start()
        return lambda event: None if event.wire_name in ALWAYS else decide(event)

    def to_wire(self) -> list[Any]:
        """Return the wire form of *rule*."""
        return self.rule.to_wire()


def keep_for_viewers(bus: Bus, handlers: Iterable[Handler], config: Remote) -> Iterator[Subscription]:
    """Subscribe the models that a job keeps for late viewers, if *handlers* lack them, one by one."""
    own = {name for handler in handlers for name in names_of(handler)}
    missing = [kind for kind in _KEPT if kind.__qualname__ not in own] if config.publish else []
    for kind in missing:
        yield bus.subscribe(kind(), to=_KEPT[kind][0], min_priority=_KEPT[kind][1])


def read_status(stats: BusStats) -> dict[str, Any]:
    """Return the status that a job reports each second while it has a viewer."""
    return {"seq": stats.published, "counts": counts_of(stats), "open_spans": open_spans()}


def _runtime_directory() -> Path | None:
    """Return the directory for sockets below ``XDG_RUNTIME_DIR``; None if that does not exist."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    return Path(runtime) / "trackside" if runtime and Path(runtime).is_dir() else None


def _temporary_directory() -> Path:
    return Path(tempfile.gettempdir()) / f"trackside-{user_id()}"


def socket_name(source: Source) -> str:
    """Return the name of the socket on which a process can be watched: its run, rank and process id."""
    run = re.sub(r"[^A-Za-z0-9._-]+", "-", source.run_id)[:_MOST_NAME].strip("-.") or "run"
    return f"{run}.{source.rank}.{os.getpid()}"
