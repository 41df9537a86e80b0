"""The publishers of a job: how they are wired to the bus, and where viewers find them."""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, ClassVar, Final

import attrs

from trackside._platform import user_id
from trackside.bus import Bus, Subscription
from trackside.core import complain, described
from trackside.events import (
    LIFECYCLE,
    ConfigError,
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
from trackside.handlers.eventlog import is_stream, stream_module
from trackside.handlers.models import CounterBoard, OpenSpans
from trackside.handlers.models.goodput import GoodputAccumulator
from trackside.handlers.models.scores import ScoreAggregator
from trackside.handlers.zeromq import ALWAYS, RING_BYTES, EndpointFile, Filter, Publisher, Verb, names_of
from trackside.instruments import open_spans
from trackside.job._control import Controls
from trackside.job._heartbeat import counts_of
from trackside.rules import Rule, rule_from_wire

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

    def __init__(self, config: Remote, *, bus: Bus, source: Source, directory: Path) -> None:
        self._bus = bus
        self._publishers: list[Publisher] = []
        self._controls = Controls(bus, source)
        self._notes: list[EndpointFile] = []
        self.is_delivered = True
        """Whether the collector, if there is one, had acknowledged everything when this was closed."""
        self._made: Path | None = None
        """The directory made for the socket because the usual ones could not be used; None if they could."""
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
        """Where viewers find this process, or the collector that it reports to."""
        return [publisher.endpoint for publisher in self._publishers]

    def close(self, timeout_s: float) -> bool:
        """Send viewers and the collector what they lack, and stop; return whether they have it all."""
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
        """Publish in the first directory that is this user's alone; if there is none, only report it."""
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
        return self._bus.subscribe(stream_module().sink_to(address))

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
            return lambda: subscription.close(0.0)

        def on_verb(address: bytes, verb: Verb, user: str) -> None:
            self._controls.on_verb(publisher, address, verb, user)

        publisher = Publisher(
            endpoint,
            subscribe=subscribe,
            look=bus.at_barrier,
            status=lambda: read_status(bus),
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
        """Return the function that decides, which calls that of *rule* for all other events."""
        decide = self.rule.start()
        return lambda event: None if event.wire_name in ALWAYS else decide(event)

    def to_wire(self) -> list[Any]:
        """Return the wire form of *rule*."""
        return self.rule.to_wire()


def keep_for_viewers(bus: Bus, handlers: Iterable[Handler], config: Remote) -> list[Subscription]:
    """Subscribe the models that a job keeps for late viewers, if *handlers* lack them."""
    own = {name for handler in handlers for name in names_of(handler)}
    missing = [kind for kind in _KEPT if kind.__qualname__ not in own] if config.publish else []
    return [bus.subscribe(kind(), to=_KEPT[kind][0], min_priority=_KEPT[kind][1]) for kind in missing]


def read_status(bus: Bus) -> dict[str, Any]:
    """Return what a job reports of itself each second while it has a viewer."""
    stats = bus.stats()
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
