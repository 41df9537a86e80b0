"""The collector: many ranks in, their logs, models over all of them, and viewers out."""

from __future__ import annotations

import contextlib
import os
import resource
import threading
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

from trackside.events import Event, Source, __version__, clock
from trackside.handlers.models import ClockOffsets, CounterBoard, SpanBuilder
from trackside.handlers.models.goodput import GoodputAccumulator
from trackside.handlers.models.scores import ScoreAggregator
from trackside.handlers.zeromq._collection import Collection
from trackside.handlers.zeromq._dispatch import Dispatch, may_command
from trackside.handlers.zeromq._intake import MOST_GIVERS, WAITING_MESSAGES, Intake
from trackside.handlers.zeromq._keeper import Keeper
from trackside.handlers.zeromq._keys import SERVER
from trackside.handlers.zeromq._link import Link, wait_for
from trackside.handlers.zeromq._outlet import Outlet
from trackside.handlers.zeromq._own_stream import COLLECTORS
from trackside.handlers.zeromq._quota import Quota
from trackside.handlers.zeromq._relay import Keep
from trackside.handlers.zeromq._restore import Restored
from trackside.handlers.zeromq._ring import RING_S, Room
from trackside.handlers.zeromq._roll import SILENT_AFTER_S, Roll

if TYPE_CHECKING:
    from typing_extensions import Self

    from trackside.handlers.zeromq._protocol import Verb

MOST_VIEWERS: Final = 256
RING_BYTES: Final = 64 << 20
"""What is kept for viewers that are slow or come back."""
_TICK_S: Final = 0.05
_AT_ONCE: Final = 1024
_PARTING_S: Final = 0.5
_DESCRIPTORS_APART: Final = 64


class Collector:
    """
    Takes the streams of many ranks in and keeps them, runs models over all of them, and gives them to viewers.

    ::

        with Collector("tcp://*:7070", publish="tcp://*:7071", log="runs/", keys="keys/") as collector:
            collector.serve()

    Ranks connect to *bind*, viewers attach to *publish*. Each rank's frames are written as they came, to a file of its
    own, which `replay` and every command read. What a rank sent while the collector was away comes from the rank's
    ring; what that no longer held is reported as `EventsLost`. A collector that is started again with the same
    *log* reads it back first, and goes on.

    Args:
        bind: Where ranks and forwarders connect to.
        publish: Where viewers attach; None for nowhere.
        log: The directory of the logs, and of nothing else; None to keep none.
        keys: A directory of keys with the server's secret and the public keys of who is let in.
        insecure: Do without keys where they are needed. No verb is accepted then.
        models: What to feed with everything; by default spans, goodput, scores, counters and clocks.
        quota: What one peer may send.
        silent_after_s: After how long without a sign a rank is said to have fallen silent, in seconds.
        most_peers: How many ranks or forwarders may connect.
        ring_bytes: What is kept for viewers, in bytes.
        read_rule: Makes the rule of a viewer's filter from its wire form; without it such filters are refused.

    Raises:
        ConfigError: An endpoint is not safe, not free or malformed, or a key is missing.
    """

    def __init__(
        self,
        bind: str,
        *,
        publish: str | None = None,
        log: str | os.PathLike[str] | None = None,
        keys: str | os.PathLike[str] | None = None,
        insecure: bool = False,
        models: Sequence[Any] | None = None,
        quota: Quota | None = None,
        silent_after_s: float = SILENT_AFTER_S,
        most_peers: int = MOST_GIVERS,
        ring_bytes: int = RING_BYTES,
        read_rule: Callable[[list[Any]], Keep] | None = None,
    ) -> None:
        _raise_descriptor_limit(most_peers + MOST_VIEWERS)
        self._links: list[Link] = []
        self._stop = threading.Event()
        self._is_closed = False
        self._ticked_s = 0.0
        self._intake_link = self._link(bind, keys, insecure=insecure)
        self._viewer_link = self._link(publish, keys, insecure=insecure) if publish is not None else None
        self.endpoint = self._intake_link.endpoint
        """Where ranks connect to; with the port that was found."""
        self.viewer_endpoint = self._viewer_link.endpoint if self._viewer_link is not None else ""
        """Where viewers attach; empty for nowhere."""
        source = Source.detect({}, run_id=COLLECTORS, role="collector", versions={"trackside": __version__})
        self._keeper = Keeper(log) if log is not None else None
        roll = Roll(silent_after_s)
        self.collection = Collection(
            source,
            self._default_models() if models is None else models,
            self._keeper,
            roll,
            read_rule=read_rule,
            monotonic_s=time.monotonic,
        )
        self.restored = self.collection.restore(log) if log is not None else Restored()
        """What was read of earlier logs."""
        self.intake = Intake(self.collection, self._intake_link.send, quota=quota, most=most_peers)
        self._outlet = self._open_outlet(self._viewer_link, ring_bytes) if self._viewer_link is not None else None

    def _link(self, endpoint: str, keys: str | os.PathLike[str] | None, *, insecure: bool) -> Link:
        try:
            link = Link(
                endpoint,
                binds=True,
                role=SERVER,
                keys=keys,
                insecure=insecure,
                receive_messages=WAITING_MESSAGES,
            )
        except BaseException:
            for other in self._links:
                other.close()
            raise
        self._links.append(link)
        return link

    def _default_models(self) -> list[Any]:
        return [
            SpanBuilder(),
            GoodputAccumulator(),
            ScoreAggregator(publish=self._publish),
            CounterBoard(),
            ClockOffsets(),
        ]

    def _publish(self, event: Event) -> None:
        self.collection.publish(event)

    def _open_outlet(self, link: Link, ring_bytes: int) -> Outlet:
        outlet = Outlet(
            self.collection.relay,
            link.send,
            own_id=os.urandom(8).hex(),
            room=Room(ring_bytes, RING_S),
            most_peers=MOST_VIEWERS,
            obey=self._obey,
        )
        self._dispatch = Dispatch(
            self.intake,
            self.collection.roll,
            answer=outlet.answer,
            publish=self.collection.publish,
            source_id=self.collection.own.source.id,
        )
        self.collection.on_verb_result = self._dispatch.on_result
        return outlet

    @property
    def models(self) -> list[Any]:
        """The models, over everything that was heard."""
        return self.collection.models

    def totals(self) -> dict[str, int]:
        """
        Return the counts: sources (of which silent and ended), events, lost, repeated, shed, peers.

        ``lost`` are events with a number that did not come and can no longer be had; ``repeated`` came more than once
        and were taken once; ``shed`` were given up in the job before they had a number.
        """
        collection = self.collection
        refused = self._keeper.stats()["refused_events"] if self._keeper is not None else 0
        return {
            **collection.roll.totals(),
            "peers": len(self.intake.givers),
            "viewers": len(self._outlet.peers) if self._outlet is not None else 0,
            "malformed": collection.counts["malformed"] + self.intake.counts["malformed"],
            "cut": self.intake.counts["cut"] + sum(g.purse.cut_messages for g in self.intake.givers.values()),
            "not_logged": refused,
        }

    def serve(self) -> None:
        """Work until `stop` is called."""
        while not self._stop.is_set():
            self.turn(_TICK_S)

    def turn(self, timeout_s: float) -> None:
        """Wait for what comes, at most *timeout_s*, and deal with it."""
        outlet, viewers = self._outlet, self._viewer_link
        more = outlet.pump() if outlet is not None else False
        wait_for(self._links, 0.0 if more else timeout_s)
        for address, parts, user in self._intake_link.receive(_AT_ONCE):
            self.intake.receive(address, parts, user)
        now_s = time.monotonic()
        if outlet is not None and viewers is not None:
            self._serve_viewers(outlet, viewers)
        if now_s - self._ticked_s >= _TICK_S:
            self._ticked_s = now_s
            self.intake.tick()
            self.collection.tick(self.intake.givers.values())

    def stop(self) -> None:
        """Have `serve` return; on any thread, and from a signal handler."""
        self._stop.set()

    def close(self, timeout_s: float = 5.0) -> bool:
        """
        Say goodbye, and write everything; safe to call twice.

        Returns:
            Whether everything is in the logs.
        """
        if self._is_closed:
            return True
        self._is_closed = True
        self._stop.set()
        self.intake.part("closed")
        self.collection.own.end("closed")
        if self._outlet is not None and self._viewer_link is not None:
            self._part(self._outlet, self._viewer_link)
        done = self._keeper.close(timeout_s) if self._keeper is not None else True
        for link in self._links:
            link.close()
        return done

    def _serve_viewers(self, outlet: Outlet, link: Link) -> None:
        now_s = time.monotonic()
        for address, parts, user in link.receive(_AT_ONCE):
            outlet.receive(address, parts, now_s, clock.now_ns(), user)
        outlet.tick(now_s)

    def _part(self, outlet: Outlet, link: Link) -> None:
        """Send viewers what they still lack, as far as they take it soon."""
        deadline_s = time.monotonic() + _PARTING_S
        while time.monotonic() < deadline_s and not outlet.is_drained:
            outlet.pump()
            outlet.beat()  # which is acknowledged at once
            wait_for([link], _TICK_S)
            self._serve_viewers(outlet, link)
        outlet.part("closed")

    def _obey(self, address: bytes, verb: Verb, user: str) -> None:
        assert self._viewer_link is not None  # verbs come from there
        safety = self._viewer_link.safety
        by = user or "this machine"
        if may_command(safety, user):
            self._dispatch.pass_on(address, verb, by, time.monotonic(), {"totals": self.totals()})
        else:
            self._dispatch.refuse(address, verb, by)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _raise_descriptor_limit(connections: int) -> None:
    """Let this process have the descriptors that many connections and their logs take, as far as it may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * connections + _DESCRIPTORS_APART
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
