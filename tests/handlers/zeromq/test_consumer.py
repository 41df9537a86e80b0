from __future__ import annotations

import random

import pytest

from clocks import SecondsClock
from trackside.events import Source
from trackside.handlers.zeromq._protocol import (
    PROTOCOL_VERSION,
    VIEWER_END,
    Filter,
    FrameEntry,
    LossEntry,
    Snapshot,
    SourcePosition,
    Welcome,
    decode,
    decode_snapshot,
    encode,
    encode_snapshot,
)
from trackside.handlers.zeromq._receiver import StreamConsumer
from trackside.handlers.zeromq._server import LostRange, ReadySnapshot, RingBudget, StreamServer
from trackside.handlers.zeromq._session import Sent

BEAT_S = 1.0


class Sender:
    """A source end whose entries the test writes."""

    def __init__(self, clock, send, most_bytes=8 << 20):
        self.rings = []
        self.server = StreamServer(
            self,
            send,
            own_id="sender",
            connects=True,
            budget=RingBudget(most_bytes, 1e9, monotonic_s=clock),
        )
        self.server.hold(Filter())

    def open_stream(self, wanted, ring):
        """Begin a stream."""
        self.rings.append(ring)
        return lambda: self.rings.remove(ring)

    def take_snapshot(self, models, ring, done):
        """Give a snapshot at once."""
        places = [SourcePosition(Source.unknown("one"), 0, 0)]
        done(ReadySnapshot(encode_snapshot(Snapshot(places, {}, 0)), ring.next_index, ring.before))

    def status(self):
        """Have no status."""
        return {}

    def append(self, content, events):
        """Add an entry to every stream."""
        for ring in self.rings:
            ring.append(content, events)


class Wire:
    """Two directions that drop, repeat and reorder messages, as a seed determines."""

    def __init__(self, rng, share):
        self.rng, self.share, self.to_sender, self.to_consumer = rng, share, [], []

    def put(self, queue, parts):
        """Send a message, or not, or twice, or ahead of others."""
        if self.rng.random() < self.share:
            return
        queue.insert(len(queue) - (self.rng.randrange(min(8, len(queue) + 1)) if self.share else 0), parts)
        if self.rng.random() < self.share:
            queue.append(parts)


class Pair:
    """A sender and a consumer on such a wire."""

    def __init__(self, rng, share, most_bytes=8 << 20):
        self.clock, self.wire = SecondsClock(100.0), Wire(rng, share)
        self.sender = Sender(self.clock, self._to_consumer, most_bytes)
        self.accepted, self.introduced = [], []
        self.consumer = StreamConsumer(
            lambda message: self.wire.put(self.wire.to_sender, encode(message)),
            self.accepted.append,
            self.introduced.append,
        )
        welcome = encode(Welcome(PROTOCOL_VERSION, VIEWER_END, "consumer", ""))
        self.sender.server.receive(b"", welcome, self.clock.now_s, 0)
        self.wire.to_consumer.clear()

    def _to_consumer(self, address, parts):
        self.wire.put(self.wire.to_consumer, parts)
        return Sent.QUEUED

    def run(self, seconds):
        """Let time pass."""
        for _ in range(round(seconds / 0.05)):
            self.clock.now_s += 0.05
            self.step()

    def step(self):
        """Let both ends do what is due."""
        now_s = self.clock.now_s
        self.consumer.tick(now_s)
        for parts in self.drained(self.wire.to_sender):
            self.sender.server.receive(b"", parts, now_s, 0)
        self.sender.server.tick(now_s)
        self.sender.server.pump()
        for parts in self.drained(self.wire.to_consumer):
            self.consumer.on(decode(parts), sum(map(len, parts)), now_s)

    @staticmethod
    def drained(queue):
        """Return the messages in transit, and empty the queue."""
        accepted, queue[:] = queue[:], []
        return accepted

    @property
    def contents(self):
        """Return the frames accepted, in order."""
        return [entry.frame for entry in self.accepted if isinstance(entry, FrameEntry)]


class TestStreamConsumer:
    def test_from_the_first(self, rng):
        """Entries from before the subscription come too: the sender's log is whole."""
        pair = Pair(rng, 0.0)
        pair.sender.append(b"first", 1)

        pair.run(1)

        assert pair.contents == [b"first"]

    def test_sources_are_introduced_first(self, rng):
        """The sources are known before their first entry is delivered."""
        pair = Pair(rng, 0.0)
        pair.sender.append(b"first", 1)

        pair.run(1)

        assert [place.source.id for place in decode_snapshot(pair.introduced[0]).places] == ["one"]

    @pytest.mark.parametrize("round_", range(10))
    def test_each_once_and_in_order(self, seed, round_):
        """
        Over a connection that drops, repeats and reorders a tenth of all messages, every entry is delivered once and in
        order.
        """
        rng = random.Random(seed + round_)
        pair = Pair(rng, 0.1)
        sent = [b"%d" % number for number in range(300)]
        for content in sent:
            pair.sender.append(content, 1)
            if rng.random() < 0.3:
                pair.run(0.05)

        pair.run(60)

        assert pair.contents == sent

    def test_losses_come_in_their_place(self, rng):
        """Losses before the sender are reported between the entries where events are missing."""
        pair = Pair(rng, 0.0)
        pair.sender.append(b"a", 1)
        pair.sender.append(LostRange("one", 1, 5, "gone"), 0)
        pair.sender.append(b"b", 1)

        pair.run(1)

        assert [type(entry) for entry in pair.accepted] == [FrameEntry, LossEntry, FrameEntry]

    def test_what_the_ring_could_not_hold_is_counted(self, rng):
        """While the connection is away the sender's ring overflows; the number of lost events is exact."""
        pair = Pair(rng, 0.0, most_bytes=10_000)
        pair.sender.append(b"x" * 1000, 7)
        pair.run(1)
        accepted = len(pair.accepted)
        for _ in range(100):
            pair.sender.append(b"y" * 1000, 7)

        pair.run(2)

        kept = len(pair.accepted) - accepted
        assert 0 < kept < 100
        assert pair.consumer.skipped_events == (100 - kept) * 7

    def test_goes_on_after_a_new_connection(self, rng):
        """A new connection goes on with the entry that is due."""
        pair = Pair(rng, 0.0)
        pair.sender.append(b"a", 1)
        pair.run(1)
        pair.consumer.restart()
        pair.sender.append(b"b", 1)

        pair.run(2)

        assert pair.contents == [b"a", b"b"]
        assert pair.consumer.repeated == 0

    def test_broken_off_while_the_snapshot_came(self, rng):
        """
        A subscription that breaks off between an entry and the end of its snapshot is begun anew, and nothing hangs.

        The schedules of `test_schedules` found this case: the rank is silent for ever, though each Replay was answered.
        """
        pair = Pair(rng, 0.0)
        pair.sender.append(b"first", 1)
        pair.consumer.tick(pair.clock.now_s)
        for parts in pair.drained(pair.wire.to_sender):
            pair.sender.server.receive(b"", parts, pair.clock.now_s, 0)
        pair.sender.server.pump()
        for parts in pair.drained(pair.wire.to_consumer):  # the answer and the first entry, and no chunk yet
            pair.consumer.on(decode(parts), 100, pair.clock.now_s)
        pair.drained(pair.wire.to_sender)
        pair.consumer.restart()

        pair.run(5)

        assert (pair.contents, len(pair.introduced)) == ([b"first"], 1)
