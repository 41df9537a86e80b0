"""The fuzz target for the protocol: a collector, a publisher and a viewer that are sent any bytes at all."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import attrs
import fuzzing as frames
import msgpack

from clocks import SecondsClock
from trackside.events import Source
from trackside.handlers.models import ClockOffsets, CounterBoard, GoodputAccumulator, ScoreAggregator, SpanBuilder
from trackside.handlers.zeromq._attachment import ViewerSession
from trackside.handlers.zeromq._collector import CollectedStreams
from trackside.handlers.zeromq._protocol import (
    CHUNK_BYTES,
    MAX_SNAPSHOT_BYTES,
    PROTOCOL_VERSION,
    SOURCE_END,
    VIEWER_END,
    Filter,
    Message,
    Refused,
    Reset,
    Snapshot,
    SourcePosition,
    decode,
    decode_snapshot,
    encode,
    encode_snapshot,
)
from trackside.handlers.zeromq._receiver import Receiver, SourceRegistry
from trackside.handlers.zeromq._server import RingBudget, StreamServer
from trackside.handlers.zeromq._session import Sent

KINDS = {kind.__name__: kind for kind in Message.__subclasses__()}
SMALL = (0, 0, 1, 1, 2, 3, 7, 200, 2**31, 2**62 - 1)
TEXTS = ("", "0", "1", "s", "run", "viewer", SOURCE_END, VIEWER_END, "main", "x" * 256)
MOST_SENT = 5_000
"""The most messages in answer to one."""


class Wire:
    """The messages that an end sent to each address, and the streams that it named."""

    endpoint = "fuzzed"

    def __init__(self) -> None:
        self.sent: dict[bytes, list[Message]] = {}
        self.inbox: list[list[bytes]] = []
        self.streams: list[str] = []

    def send(self, address: bytes, parts: list[bytes]) -> Sent:
        """Accept a message: every one that is sent must be readable."""
        message = decode(parts)
        self.sent.setdefault(address, []).append(message)
        assert len(self.sent[address]) < MOST_SENT, f"{len(self.sent[address])} answers to one message"
        stream = getattr(message, "stream", "")
        if stream and stream not in self.streams:
            self.streams.append(stream)
        return Sent.QUEUED

    def renew(self, now_s: float) -> bool:
        """Never time out."""
        return False

    def receive(self, most: int) -> Iterator[tuple[bytes, list[bytes], str]]:
        """Yield the messages that were put in."""
        while self.inbox and most:
            most -= 1
            yield b"", self.inbox.pop(0), ""


class Ends:
    """One collector with its two sides, and one viewer, all fresh."""

    def __init__(self, clock: SecondsClock) -> None:
        self.clock = clock
        self.streams = CollectedStreams(
            Source.detect({}, run_id="collectors", role="collector"),
            [SpanBuilder(), GoodputAccumulator(), ScoreAggregator(), CounterBoard(), ClockOffsets()],
            None,
            SourceRegistry(),
            monotonic_s=clock,
        )
        self.below, self.above, self.beside = Wire(), Wire(), Wire()
        self.receiver = Receiver(self.streams, self.below.send, monotonic_s=clock, cpu_s=float)
        budget = RingBudget(1 << 20, 60.0, monotonic_s=clock)
        self.server = StreamServer(
            self.streams.filtered, self.above.send, budget=budget, on_verb=lambda address, verb, user: None
        )
        self.entries: list[object] = []
        self.viewer = ViewerSession(
            self.beside,  # type: ignore[arg-type]
            wanted=Filter(),
            models=("SpanBuilder",),
            deliver=self.entries.append,
            introduce=decode_snapshot,
            monotonic_s=clock,
        )

    def turn(self, seconds: float) -> None:
        """Let time pass."""
        self.clock.now_s += seconds
        self.receiver.tick()
        self.streams.tick(self.receiver.producers.values())
        self.server.tick(self.clock.now_s)
        self.server.pump()
        self.viewer.tick()
        for wire in (self.below, self.above, self.beside):
            wire.sent.clear()

    def deliver(self, end: str, address: bytes, user: str, parts: list[bytes]) -> None:
        """Deliver a message to one of the ends."""
        if end == "receiver":
            self.receiver.receive([(address, parts, user)])
        elif end == "server":
            self.above.sent.clear()
            self.server.receive(address, parts, self.clock.now_s, 5, user)
            if user.startswith("rank"):
                recorded = [type(one) for one in self.above.sent.get(address, ())]
                assert set(recorded) <= {Refused, Reset}, f"a rank's key was sent {recorded}"
        else:
            self.beside.inbox.append(parts)
            self.viewer.receive()

    def check(self) -> None:
        """Return whether all state is bounded, and no message got past the checks."""
        for name, counts in (
            ("collection", self.streams.counts),
            ("receiver", self.receiver.counts),
            ("server", self.server.counts),
        ):
            assert not counts["failed"], f"{name}: {dict(counts)}"
        waiting = sum(len(viewer.snapshot or b"") for viewer in self.server.viewers.values())
        assert waiting <= MAX_SNAPSHOT_BYTES


class Protocol:
    """
    Whichever messages come in whichever order, a bad one is only dropped: no guard is reached, no role is overstepped.
    """

    def __init__(self) -> None:
        self._clock = SecondsClock(1000.0)
        self._frames = frames.seeds()

    def make(self, rng: random.Random) -> bytes:
        """Return a schedule: which end sends which parts to which other end, and how much time passes between."""
        return rng.randbytes(8)

    def check(self, data: bytes) -> bool:
        """Run the schedule that *data* is the seed of; return whether some end delivered something."""
        rng = random.Random(data)
        ends = Ends(self._clock)
        greeted = set()
        for _ in range(rng.randrange(5, 60)):
            end = rng.choice(("receiver", "receiver", "server", "viewer"))
            address = b"" if end == "viewer" else rng.choice((b"a", b"b"))
            roles = {"receiver": ("", "rank:1", "viewer:1"), "server": ("", "viewer:1", "control:1", "rank:1")}
            user = rng.choice(roles.get(end, ("",))) if rng.random() < 0.2 else ""
            if (end, address) not in greeted and rng.random() < 0.8:
                greeted.add((end, address))
                kind, other = ("Welcome", SOURCE_END) if end == "viewer" else ("Hello", VIEWER_END)
                other = SOURCE_END if end == "receiver" else other
                parts = encode(KINDS[kind](PROTOCOL_VERSION, other, rng.choice("xy"), "text"))
            else:
                wire = {"receiver": ends.below, "server": ends.above, "viewer": ends.beside}[end]
                parts = self._message(rng, wire)
            ends.deliver(end, address, user, parts)
            if rng.random() < 0.3:
                ends.turn(rng.choice((0.0, 0.06, 0.3, 1.0, 5.0, 40.0)))
        ends.turn(1.0)
        ends.check()
        # Whatever came before, the next viewer must be able to begin.
        snapshot = Snapshot(list(ends.streams.positions()), {}, 1)
        decode_snapshot(encode_snapshot(snapshot))
        return bool(ends.streams.registry.states or ends.entries or ends.server.viewers)

    def _message(self, rng: random.Random, wire: Wire) -> list[bytes]:
        """Return the parts of some message, mostly a well-formed one."""
        kind = KINDS[rng.choice(sorted(KINDS))]
        values = [self._value(rng, kind, field, wire) for field in attrs.fields(kind)]
        body = [values.pop()] if kind.has_body else []
        if rng.random() < 0.05:
            return [rng.randbytes(rng.randrange(40)) for _ in range(rng.randrange(4))]
        head = msgpack.packb([kind.kind, *values])
        if rng.random() < 0.1:
            head = frames.mutated(rng, [head])
        return [head, *(part if isinstance(part, bytes) else b"" for part in body)]

    def _value(self, rng: random.Random, kind: type[Message], field: Any, wire: Wire) -> Any:
        if rng.random() < 0.03:
            return frames.anything(rng)
        known = [*wire.streams, *wire.streams, *TEXTS]
        if field.name == "frame":
            return self._frame(rng)
        if field.name == "data":
            return rng.choice((b"", rng.randbytes(9), encode_snapshot(self._snapshot(rng)), b"\0" * CHUNK_BYTES))
        if field.name == "code":
            return rng.choice(("busy", "version", "malformed", "forbidden"))
        if field.name == "rule":
            return rng.choice((None, None, ["every", 2], ["fraction", 0.5], ["all_of", [["every", 1]]], [[]]))
        if field.name in {"names", "models", "targets"}:
            return rng.choice((["*"], ["trackside.*"], ["SpanBuilder"], ["rank:0"], [], ["a", "b"]))
        by_type = {
            "Whole": rng.choice(SMALL),
            "Number": rng.choice(SMALL),
            "Text": rng.choice(known),
            "Flag": rng.random() < 0.5,
            "Table": rng.choice(
                ({}, {"seq": 1}, {"forwards": True}, {"open_spans": [{"name": "x"}]}, {"a": frames.anything(rng, 3)})
            ),
        }
        return by_type[field.type]

    def _frame(self, rng: random.Random) -> bytes:
        kind = rng.randrange(10)
        if kind < 4:
            return rng.choice(self._frames)
        return frames.composed(rng) if kind < 7 else frames.mutated(rng, self._frames)

    def _snapshot(self, rng: random.Random) -> Snapshot:
        source = Source.detect({}, run_id="run", id=rng.choice(("s", "t")))
        return Snapshot([SourcePosition(source, rng.choice(SMALL), 0)], {}, 1)
