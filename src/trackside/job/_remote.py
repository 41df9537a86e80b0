"""The job's side of being watched: its publishers, how they are wired to the bus, and where they can be found."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, ClassVar, Final

import attrs

from trackside.bus import Bus, Rule, Subscription, rule_from_wire
from trackside.events import (
    LIFECYCLE,
    ConfigError,
    CounterWindow,
    Detail,
    Event,
    GpuTimingUnavailable,
    Handler,
    KernelWindow,
    SectionWindow,
    Source,
    TrainingConfigured,
)
from trackside.handlers.models import CounterBoard, OpenSpans
from trackside.handlers.models.goodput import GoodputAccumulator
from trackside.handlers.models.scores import ScoreAggregator
from trackside.handlers.zeromq import ALWAYS, RING_BYTES, Filter, Note, Publisher, Verb, names_of
from trackside.instruments import open_spans
from trackside.job._control import Controls

COLLECTOR: Final = "TRACKSIDE_COLLECTOR"
"""The collector to connect to, where `start` was not told; the one setting that a launcher needs."""
KEYS: Final = "TRACKSIDE_KEYS"
"""The directory of keys for it."""
_MOST_NAME: Final = 40
_KEPT: Final[dict[type[Any], tuple[tuple[type[Event], ...], Detail | None]]] = {
    GoodputAccumulator: ((Event,), None),
    OpenSpans: (OpenSpans.reads, LIFECYCLE),
    CounterBoard: ((CounterWindow,), None),
    ScoreAggregator: ((SectionWindow, KernelWindow, TrainingConfigured, GpuTimingUnavailable), None),
}
"""What `trackside top` cannot make up for when it comes late, and what each reads: the rest costs nothing."""


@attrs.frozen
class RemoteConfig:
    """What `start` was told of who may watch."""

    publish: bool | str = False
    collector: str | None = None
    keys: str | os.PathLike[str] | None = None
    insecure: bool = False
    ring_bytes: int = RING_BYTES
    """What is kept for viewers that are slow or come back."""

    @classmethod
    def resolve(
        cls,
        publish: object,
        collector: str | None,
        keys: str | os.PathLike[str] | None,
        *,
        insecure: bool,
    ) -> RemoteConfig:
        """
        Return the configuration, what was not given taken from the environment.

        Raises:
            ConfigError: if *publish* is neither a flag nor an endpoint.
        """
        if not isinstance(publish, (bool, str)):
            raise ConfigError("publish", publish, "give True, or an endpoint such as ipc:///run/user/1000/ts/job")
        return cls(publish, collector or os.environ.get(COLLECTOR), keys or os.environ.get(KEYS), insecure)


class Remote:
    """
    The publishers of one job; made with the job, closed with it.

    Raises:
        ConfigError: An endpoint is not safe, not free or malformed.
    """

    def __init__(self, config: RemoteConfig, *, bus: Bus, source: Source, directory: Path) -> None:
        self._bus = bus
        self._publishers: list[Publisher] = []
        self._controls = Controls(bus, source)
        self._notes: list[Note] = []
        self._ring_bytes = config.ring_bytes
        try:
            if config.publish:
                endpoint = config.publish if isinstance(config.publish, str) else own_endpoint(source)
                # On this machine the file system is protection enough; keys are for the network.
                is_local = endpoint.startswith("ipc://")
                keys = None if is_local else config.keys
                publisher = self._open(endpoint, keys=keys, insecure=config.insecure and not is_local)
                self._notes.append(Note(directory, source, publisher.endpoint))
            if config.collector:
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
        """Whether somebody gets a stream now."""
        return any(publisher.is_watched for publisher in self._publishers)

    @property
    def endpoints(self) -> list[str]:
        """Where viewers find this process, or the collector that it reports to."""
        return [publisher.endpoint for publisher in self._publishers]

    def close(self, timeout_s: float) -> bool:
        """Send viewers what they lack and stop; return whether they have it all."""
        done = True
        self._controls.close()
        for place, publisher in enumerate(self._publishers):
            done = publisher.close(timeout_s / (len(self._publishers) - place)) and done
        for note in self._notes:
            note.remove()
        return done

    def _open(self, endpoint: str, **options: Any) -> Publisher:
        bus = self._bus

        def subscribe(taker: Any, wanted: Filter) -> Callable[[], object]:
            rule = wanted.rule
            subscription = bus.subscribe(
                taker,
                to=wanted.names,
                detail=wanted.level,
                keep=_Sparing(rule_from_wire(rule)) if rule is not None else None,
            )
            return lambda: subscription.close(0.0)

        def obey(address: bytes, verb: Verb, user: str) -> None:
            self._controls.obey(publisher, address, verb, user)

        publisher = Publisher(
            endpoint,
            subscribe=subscribe,
            look=bus.look,
            status=lambda: read_status(bus),
            obey=obey,
            ring_bytes=self._ring_bytes,
            **options,
        )
        self._publishers.append(publisher)
        return publisher


@attrs.frozen
class _Sparing:
    """A rule that is not asked about what sources say of themselves, and so cannot drop that or count it."""

    rule: Rule
    portable: ClassVar[bool] = False

    def start(self) -> Callable[[Event], Any]:
        """Return the rule's own decision about all the rest."""
        decide = self.rule.start()
        return lambda event: None if event.wire_name in ALWAYS else decide(event)

    def to_wire(self) -> list[Any]:
        """Return the rule's own form."""
        return self.rule.to_wire()


def keep_for_viewers(bus: Bus, handlers: Iterable[Handler], config: RemoteConfig) -> list[Subscription]:
    """Subscribe the models that a job keeps for who attaches late, if *handlers* lack them."""
    own = {name for handler in handlers for name in names_of(handler)}
    missing = [kind for kind in _KEPT if kind.__qualname__ not in own] if config.publish else []
    return [bus.subscribe(kind(), to=_KEPT[kind][0], detail=_KEPT[kind][1]) for kind in missing]


def read_status(bus: Bus) -> dict[str, Any]:
    """Return what a job says of itself each second while somebody watches."""
    stats = bus.stats()
    counts = {
        "published": stats.published,
        "in_queue": stats.in_queue,
        "shed": sum(stats.shed_by_type.values()),
        "failed": stats.failed,
        "invalid": stats.invalid,
    }
    return {"seq": stats.published, "counts": counts, "open_spans": open_spans()}


def own_endpoint(source: Source) -> str:
    """Return an endpoint of this process's own, in a directory that is this user's alone."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    base = Path(runtime) if runtime and Path(runtime).is_dir() else Path(tempfile.gettempdir())
    name = "trackside" if base == Path(runtime or "") else f"trackside-{os.geteuid()}"
    run = re.sub(r"[^A-Za-z0-9._-]+", "-", source.run_id)[:_MOST_NAME].strip("-.") or "run"
    return f"ipc://{base / name}/{run}.{source.rank}.{os.getpid()}"
