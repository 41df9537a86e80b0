"""The source end without a socket: the messages to each viewer, their number at once, and the notices."""

from __future__ import annotations

import pytest

from trackside.events import ConfigError
from trackside.handlers.zeromq._protocol import (
    OLDEST,
    Ack,
    Beat,
    Bye,
    Chunk,
    Fetch,
    Filter,
    Hello,
    Ping,
    Pong,
    Refused,
    ReplayRequest,
    Reset,
    Skipped,
    Subscribe,
    Subscribed,
    Verb,
    Welcome,
    decode,
    encode,
)
from trackside.handlers.zeromq._server import ReadySnapshot, RingBudget, StreamServer
from trackside.handlers.zeromq._session import Sent

VIEWER = b"address"


class Supply:
    """A provider with a ring for each filter, and snapshots that the test sets."""

    def __init__(self):
        self.rings = {}
        self.closed = []
        self.snapshot = b"snapshot"
        self.waiting = []

    def open_stream(self, wanted, ring):
        """Keep the ring."""
        if "bad" in wanted.names:
            raise ConfigError("to", "bad", "give another")
        self.rings[wanted.names] = ring
        return lambda: self.closed.append(wanted.names)

    def take_snapshot(self, models, ring, done):
        """Be ready at once, or when the test says so."""
        self.waiting.append(lambda: done(ReadySnapshot(self.snapshot, ring.next_index, ring.before)))
        if self.snapshot is not None:
            self.waiting.pop()()

    def status(self):
        """Return a status."""
        return {"seq": 7}


class Bench:
    """A server, and viewers that send the messages that a test chooses."""

    def __init__(self, **options):
        self.provider = Supply()
        self.sent = []
        self.now_s = 100.0
        self.outcome = Sent.QUEUED
        self.server = StreamServer(self.provider, self._send, own_id="me", **options)

    def _send(self, address, parts):
        if self.outcome is Sent.QUEUED:
            self.sent.append((address, decode(parts)))
        return self.outcome

    def say(self, message, address=VIEWER, user=""):
        """Have a viewer send *message*; return the answers."""
        self.server.receive(address, encode(message), self.now_s, 5, user)
        return self.sent_to(address)

    def sent_to(self, address=VIEWER):
        """Send the due messages, and return them."""
        self.server.pump()
        recorded = [message for to, message in self.sent if to == address]
        self.sent = [(to, message) for to, message in self.sent if to != address]
        return recorded

    def join(self, address=VIEWER, names=("*",), **asked):
        """Have a viewer come and subscribe; return the answer."""
        self.say(Hello(2, "viewer", address.decode(), ""), address)
        return self.say(subscription(names=names, **asked), address)[-1]

    def fill(self, count, size=100, names=("*",)):
        """Append an event."""
        for _ in range(count):
            self.provider.rings[names].append(bytes(size), 10)


def subscription(request=1, names=("*",), models=(), resume=("", 0), window=4 << 20):
    return Subscribe(request, list(names), 1, None, list(models), *resume, window)


@pytest.fixture
def bench():
    return Bench()


class TestMeeting:
    def test_stranger(self, bench):
        """A peer that has not said hello is asked to begin with that."""
        assert bench.say(Ping(1)) == [Reset()]

    def test_hello(self, bench):
        """Hello is answered with the server's identity."""
        (welcome,) = bench.say(Hello(2, "viewer", "v", ""))
        assert isinstance(welcome, Welcome)
        assert (welcome.end, welcome.id) == ("source", "me")

    def test_other_version(self, bench):
        """A peer of another version gets the server's version."""
        (refused,) = bench.say(Hello(1, "viewer", "v", ""))
        assert (refused.code, "here it is 2" in refused.text) == ("version", True)

    def test_two_sources(self, bench):
        """Two ends that both offer streams refuse each other."""
        assert bench.say(Hello(2, "source", "v", ""))[0].code == "unsupported"

    def test_too_many(self):
        """Viewers beyond the maximum are refused, and may ask again."""
        bench = Bench(most_viewers=2)
        for name in (b"a", b"b"):
            bench.join(name)
        assert bench.say(Hello(2, "viewer", "c", ""), b"c")[0].code == "busy"

    def test_ping(self, bench):
        """A ping is answered with both times of this clock."""
        bench.join()
        (pong,) = bench.say(Ping(42))
        assert isinstance(pong, Pong)
        assert (pong.sent_ns, pong.received_ns) == (42, 5)

    def test_flood(self, bench):
        """Of more than a thousand messages a second the rest is ignored."""
        bench.join()
        answered = sum(bool(bench.say(Ping(1))) for _ in range(3000))
        assert answered < 1000
        assert bench.server.counts["ignored"] > 2000
        bench.now_s += 1.0
        assert bench.say(Ping(1))

    def test_verbs_refused(self, bench):
        """Without an on_verb function, every verb is refused."""
        bench.join()
        assert bench.say(Verb(9, "pause", [], {})) == [Refused(9, "forbidden", "no verb is accepted on this endpoint")]

    def test_verbs_passed_on(self):
        """A verb is passed on with its sender."""
        recorded = []
        bench = Bench(on_verb=lambda *given: recorded.append(given))
        bench.say(Hello(2, "viewer", "v", ""), user="control:abc")
        bench.say(Verb(9, "pause", [], {}), user="control:abc")
        assert recorded == [(VIEWER, Verb(9, "pause", [], {}), "control:abc")]


class TestSubscribing:
    def test_from_now_on(self, bench):
        """The first subscription begins at the stream's present position."""
        bench.join(b"earlier")
        bench.fill(3)
        answer = bench.join()
        assert (answer.next_index, answer.before, answer.resumed) == (3, 30, False)
        bench.fill(1)
        assert [entry.index for entry in bench.sent_to()] == [3]

    def test_snapshot(self, bench):
        """A snapshot is announced, and fetched in chunks, again if need be."""
        bench.provider.snapshot = bytes(1_200_000)
        answer = bench.join()
        assert (answer.snapshot_bytes, answer.snapshot_chunks) == (1_200_000, 3)
        for _ in range(2):
            chunks = bench.say(Fetch(1, 0, 9))
            assert [chunk.number for chunk in chunks] == [0, 1, 2]
            assert b"".join(chunk.data for chunk in chunks) == bench.provider.snapshot

    def test_asked_twice(self, bench):
        """A repeated request gets the same answer, and no second snapshot."""
        answer = bench.join()
        assert bench.say(subscription()) == [answer]
        assert isinstance(answer, Subscribed)

    def test_asked_twice_meanwhile(self, bench):
        """A repeated request while the snapshot is taken is answered once."""
        bench.provider.snapshot = None
        bench.say(Hello(2, "viewer", "v", ""))
        assert bench.say(subscription()) == bench.say(subscription()) == []
        assert len(bench.provider.waiting) == 1

    def test_states_once_a_second(self, bench):
        """Models' states, for which the dispatcher must wait, are taken at most once a second for each viewer."""
        bench.join(models=("SpanBuilder",))
        assert bench.say(subscription(2, models=("SpanBuilder",)))[-1].code == "busy"
        bench.now_s += 1
        assert isinstance(bench.say(subscription(2, models=("SpanBuilder",)))[-1], Subscribed)

    def test_bad_filter(self, bench):
        """An invalid subscription is refused with the reason."""
        refused = bench.join(names=("bad",))
        assert (refused.code, "give another" in refused.text) == ("malformed", True)

    def test_something_else_all_the_time(self, bench):
        """A viewer that changes its filter again and again gets sixteen streams a second, and keeps the one before."""
        bench.join()
        recorded = [bench.say(subscription(1 + n, names=(f"t{n}",)))[-1] for n in range(1, 100)]
        assert [type(answer) for answer in recorded] == [Subscribed] * 15 + [Refused] * 84
        assert recorded[-1].code == "busy"
        bench.now_s += 1.0
        assert type(bench.say(subscription(100, names=("t99",)))[-1]) is Subscribed

    def test_shared(self, bench):
        """Equal filters share one stream, others have another; each is closed with its last viewer."""
        for name in (b"a", b"b"):
            bench.join(name, names=("x", "y"))
        bench.join(b"c", names=("z",))
        assert len(bench.provider.rings) == 2
        bench.say(Bye(""), b"a")
        assert bench.provider.closed == []
        bench.say(Bye(""), b"b")
        assert bench.provider.closed == [("x", "y")]

    def test_forgotten(self, bench):
        """A viewer that is silent for thirty seconds is forgotten, and its stream ends."""
        bench.join()
        bench.now_s += 31
        bench.server.tick(bench.now_s)
        assert bench.provider.closed == [("*",)]
        assert bench.say(Ping(1)) == [Reset()]

    def test_resumed(self, bench):
        """A viewer that comes back over another connection goes on where it was, without a snapshot."""
        answer = bench.join()
        bench.fill(5)
        bench.sent_to()
        bench.say(Hello(2, "viewer", VIEWER.decode(), ""), b"anew")
        again = bench.say(subscription(resume=(answer.stream, 2)), b"anew")
        assert again[0].resumed
        assert [entry.index for entry in again[1:]] == [2, 3, 4]
        assert VIEWER not in bench.server.viewers

    def test_oldest(self, bench):
        """A collector gets a held stream from its beginning."""
        bench.server.hold(Filter())
        bench.fill(4)
        bench.say(Hello(2, "viewer", "collector", ""))
        answer, *entries = bench.say(subscription(resume=("*", 0)))
        assert (answer.next_index, answer.before) == (0, 0)
        assert [entry.index for entry in entries] == [0, 1, 2, 3]


class TestSending:
    def test_window(self, bench):
        """No more than the window is ever in transit; acknowledgements make room."""
        bench.join(window=1 << 20)
        bench.fill(60, size=100_000)
        first = bench.sent_to()
        assert [entry.index for entry in first] == list(range(11))
        stream = first[0].stream
        assert [entry.index for entry in bench.say(Ack(stream, 5))] == [11, 12, 13, 14, 15]

    def test_windows_share(self):
        """The windows of all viewers together stay within eight MiB, as long as there are few."""
        bench = Bench(budget=RingBudget(64 << 20))
        for number in range(16):
            bench.join(b"%d" % number)
        bench.fill(300, size=100_000)
        sizes = [sum(len(entry.frame) for entry in bench.sent_to(b"%d" % number)) for number in range(16)]
        assert sum(sizes) <= (8 << 20) + 16 * 100_000

    def test_skipped(self):
        """Entries that the ring dropped before they could be sent are reported with their exact count."""
        bench = Bench(budget=RingBudget(1 << 20))
        stream = bench.join(window=900_000).stream
        bench.fill(4, size=250_000)  # as many as fit in the ring, and in transit
        assert [entry.index for entry in bench.sent_to()] == [0, 1, 2, 3]
        bench.fill(100, size=250_000)
        assert bench.sent_to() == []  # nothing was acknowledged
        (skip, entry) = bench.say(Ack(stream, 4))
        assert skip == Skipped(stream, 4, 103, 1030)
        assert (entry.index, entry.before) == (103, 1030)

    @pytest.mark.parametrize(("is_held", "first"), [(False, 90), (True, 20)])
    def test_where_it_goes_on(self, is_held, first):
        """
        A viewer that lacks dropped entries goes on with the last eighth of the room; one that wants all, with all there
        is.
        """
        bench = Bench(budget=RingBudget(80_000))
        if is_held:
            bench.server.hold(Filter())
        stream = bench.join().stream
        bench.fill(100, size=744)  # 1,000 bytes with the entry's own overhead: the ring has 80
        (skip, *entries) = bench.sent_to()
        assert skip == Skipped(stream, 0, first, 10 * first)
        assert [(entry.index, entry.before) for entry in entries] == [(n, 10 * n) for n in range(first, 100)]

    def test_slow_but_not_too_slow(self):
        """A viewer that is behind, with nothing dropped yet, is sent all of it."""
        bench = Bench(budget=RingBudget(80_000))
        bench.join()
        bench.fill(80, size=744)
        assert [entry.index for entry in bench.sent_to()] == list(range(80))

    def test_replay(self, bench):
        """Entries that are asked for again are sent again, from there on."""
        stream = bench.join().stream
        bench.fill(10)
        bench.sent_to()
        bench.now_s += 1
        assert [entry.index for entry in bench.say(ReplayRequest(stream, 7))] == [7, 8, 9]

    def test_refused_send(self, bench):
        """An entry that the socket does not accept is sent when it does."""
        bench.join()
        bench.fill(3)
        bench.outcome = Sent.FULL
        assert bench.sent_to() == []
        bench.outcome = Sent.QUEUED
        assert [entry.index for entry in bench.sent_to()] == [0, 1, 2]
        assert bench.server.counts["refused_sends"] > 0

    def test_gone(self, bench):
        """A viewer whose connection is closed is no longer sent to, and may come back to its stream."""
        stream = bench.join().stream
        bench.fill(3)
        bench.outcome = Sent.GONE
        bench.sent_to()
        bench.outcome = Sent.QUEUED
        bench.server.tick(bench.now_s)
        assert bench.server.viewers == {}
        assert bench.join(resume=(stream, 0)) is not None
        assert bench.server.viewers[VIEWER].cursor == 3

    def test_beat(self, bench):
        """Once a second each viewer gets the position of its stream."""
        bench.join()
        bench.fill(2)
        bench.sent_to()
        bench.now_s += 1
        bench.server.tick(bench.now_s)
        bench.server.tick(bench.now_s + 0.5)
        (beat,) = bench.sent_to()
        assert isinstance(beat, Beat)
        assert (beat.next_index, beat.before, beat.status) == (2, 20, {"seq": 7})

    def test_status_too_large(self, bench):
        """A status that is too large for a heartbeat message loses its largest parts, and the message is sent."""
        bench.provider.status = lambda: {"open_spans": {str(n): ["x" * 60] for n in range(1000)}, "seq": 1}
        bench.join()
        bench.now_s += 1
        bench.server.tick(bench.now_s)
        assert bench.sent_to()[-1].status == {"seq": 1}

    def test_parting(self, bench):
        """At the end every viewer gets a goodbye, and every stream is closed."""
        bench.join()
        bench.server.part("closed")
        assert bench.sent_to() == [Bye("closed")]
        assert bench.provider.closed == [("*",)]


class TestConnecting:
    def test_says_hello(self):
        """
        An end that made the connection says hello until it is answered, and again when the other does not know it any
        more.
        """
        bench = Bench(connects=True)
        bench.server.tick(1.0)
        bench.server.tick(1.5)
        bench.server.tick(2.5)
        assert [type(message) for message in bench.sent_to(b"")] == [Hello, Hello]
        bench.say(Welcome(2, "viewer", "collector", ""), b"")
        bench.say(subscription(), b"")
        bench.server.tick(bench.now_s + 9.0)
        assert {type(message) for message in bench.sent_to(b"")} == {Beat}
        bench.say(Reset(), b"")
        bench.server.tick(bench.now_s + 9.1)
        assert [type(message) for message in bench.sent_to(b"")] == [Hello]

    def test_welcomed_and_forgotten(self):
        """An end that was welcomed, and not subscribed to because the connection broke, says hello again."""
        bench = Bench(connects=True)
        bench.say(Welcome(2, "viewer", "collector", ""), b"")
        bench.server.tick(bench.now_s + 2.9)
        assert bench.sent_to(b"") == []
        bench.server.tick(bench.now_s + 3.1)
        assert [type(message) for message in bench.sent_to(b"")] == [Hello]

    def test_not_drained_before_it_was_asked(self):
        """
        An end that was welcomed has delivered nothing before its stream was requested, and that request acknowledged.
        """
        bench = Bench(connects=True)
        assert not bench.server.is_drained
        bench.say(Welcome(2, "viewer", "collector", ""), b"")
        assert not bench.server.is_drained
        bench.say(subscription(), b"")
        bench.fill(1)
        (entry,) = bench.sent_to(b"")
        assert not bench.server.is_drained
        bench.say(Ack(entry.stream, 1), b"")
        assert bench.server.is_drained

    def test_not_drained_before_it_was_answered(self):
        """
        A collector that subscribes anew, as after a restart, lacks the entries sent before, until their fate is known.
        """
        bench = Bench(connects=True)
        bench.say(Welcome(2, "viewer", "collector", ""), b"")
        bench.say(subscription(), b"")
        bench.fill(3)
        bench.sent_to(b"")
        bench.provider.snapshot = None  # it takes a while
        bench.say(subscription(request=2, resume=(OLDEST, 0)), b"")
        assert not bench.server.is_drained


def test_chunk_is_of_the_request(bench):
    """Chunks of a snapshot that was not asked for are not sent."""
    bench.join()
    assert bench.say(Fetch(7, 0, 4)) == []
    assert [type(message) for message in bench.say(Fetch(1, 0, 4))] == [Chunk]
