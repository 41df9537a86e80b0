"""The source end without a socket: what each viewer is sent, how much of it at once, and what it is told."""

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
    """Has a ring for each filter, and snapshots that it was given."""

    def __init__(self):
        self.rings = {}
        self.closed = []
        self.snapshot = b"snapshot"
        self.waiting = []

    def open_stream(self, wanted, ring):
        """Remember the ring."""
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
        """Say something."""
        return {"seq": 7}


class Bench:
    """An server, and viewers that say what the test tells them to."""

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
        """Have a viewer say *message*; return what it is answered."""
        self.server.receive(address, encode(message), self.now_s, 5, user)
        return self.take(address)

    def take(self, address=VIEWER):
        """Send what is due, and return it."""
        self.server.pump()
        recorded = [message for to, message in self.sent if to == address]
        self.sent = [(to, message) for to, message in self.sent if to != address]
        return recorded

    def join(self, address=VIEWER, names=("*",), **asked):
        """Have a viewer come and subscribe; return the answer."""
        self.say(Hello(2, "viewer", address.decode(), ""), address)
        return self.say(subscription(names=names, **asked), address)[-1]

    def fill(self, count, size=100, names=("*",)):
        """Let something happen."""
        for _ in range(count):
            self.provider.rings[names].append(bytes(size), 10)


def subscription(request=1, names=("*",), models=(), resume=("", 0), window=4 << 20):
    return Subscribe(request, list(names), 1, None, list(models), *resume, window)


@pytest.fixture
def bench():
    return Bench()


class TestMeeting:
    def test_stranger(self, bench):
        """Who has not said hello is asked to begin with that."""
        assert bench.say(Ping(1)) == [Reset()]

    def test_hello(self, bench):
        """Hello is answered with who is here."""
        (welcome,) = bench.say(Hello(2, "viewer", "v", ""))
        assert isinstance(welcome, Welcome)
        assert (welcome.end, welcome.id) == ("source", "me")

    def test_other_version(self, bench):
        """Another version is told which one is spoken here."""
        (refused,) = bench.say(Hello(1, "viewer", "v", ""))
        assert (refused.code, "here it is 2" in refused.text) == ("version", True)

    def test_two_sources(self, bench):
        """Two ends that both have streams to give have nothing to say to each other."""
        assert bench.say(Hello(2, "source", "v", ""))[0].code == "unsupported"

    def test_too_many(self):
        """More viewers than there is room for are refused, and may ask again."""
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
        """Where nothing was given to on_verb with, every verb is refused."""
        bench.join()
        assert bench.say(Verb(9, "pause", [], {})) == [Refused(9, "forbidden", "no verb is accepted on this endpoint")]

    def test_verbs_passed_on(self):
        """A verb is passed on with who said it."""
        recorded = []
        bench = Bench(on_verb=lambda *given: recorded.append(given))
        bench.say(Hello(2, "viewer", "v", ""), user="control:abc")
        bench.say(Verb(9, "pause", [], {}), user="control:abc")
        assert recorded == [(VIEWER, Verb(9, "pause", [], {}), "control:abc")]


class TestSubscribing:
    def test_from_now_on(self, bench):
        """The first subscription begins where the stream stands."""
        bench.join(b"earlier")
        bench.fill(3)
        answer = bench.join()
        assert (answer.next_index, answer.before, answer.resumed) == (3, 30, False)
        bench.fill(1)
        assert [entry.index for entry in bench.take()] == [3]

    def test_snapshot(self, bench):
        """A snapshot is told of, and fetched in chunks, again if need be."""
        bench.provider.snapshot = bytes(1_200_000)
        answer = bench.join()
        assert (answer.snapshot_bytes, answer.snapshot_chunks) == (1_200_000, 3)
        for _ in range(2):
            chunks = bench.say(Fetch(1, 0, 9))
            assert [chunk.number for chunk in chunks] == [0, 1, 2]
            assert b"".join(chunk.data for chunk in chunks) == bench.provider.snapshot

    def test_asked_twice(self, bench):
        """A request that is repeated gets the same answer, and no second snapshot."""
        answer = bench.join()
        assert bench.say(subscription()) == [answer]
        assert isinstance(answer, Subscribed)

    def test_asked_twice_meanwhile(self, bench):
        """A request that is repeated while the snapshot is taken is answered once."""
        bench.provider.snapshot = None
        bench.say(Hello(2, "viewer", "v", ""))
        assert bench.say(subscription()) == bench.say(subscription()) == []
        assert len(bench.provider.waiting) == 1

    def test_states_once_a_second(self, bench):
        """Models' states, which the dispatcher stands still for, are had at most once a second by each viewer."""
        bench.join(models=("SpanBuilder",))
        assert bench.say(subscription(2, models=("SpanBuilder",)))[-1].code == "busy"
        bench.now_s += 1
        assert isinstance(bench.say(subscription(2, models=("SpanBuilder",)))[-1], Subscribed)

    def test_bad_filter(self, bench):
        """What cannot be subscribed to is refused with the reason."""
        refused = bench.join(names=("bad",))
        assert (refused.code, "give another" in refused.text) == ("malformed", True)

    def test_something_else_all_the_time(self, bench):
        """Who wants something else again and again is given sixteen streams a second, and keeps the one before."""
        bench.join()
        recorded = [bench.say(subscription(1 + n, names=(f"t{n}",)))[-1] for n in range(1, 100)]
        assert [type(answer) for answer in recorded] == [Subscribed] * 15 + [Refused] * 84
        assert recorded[-1].code == "busy"
        bench.now_s += 1.0
        assert type(bench.say(subscription(100, names=("t99",)))[-1]) is Subscribed

    def test_shared(self, bench):
        """Equal filters have one stream, others another; each is closed with its last viewer."""
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
        """Who comes back over another connection goes on where it was, without a snapshot."""
        answer = bench.join()
        bench.fill(5)
        bench.take()
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
        """No more than the window is ever on its way; what is acknowledged makes room."""
        bench.join(window=1 << 20)
        bench.fill(60, size=100_000)
        first = bench.take()
        assert [entry.index for entry in first] == list(range(11))
        stream = first[0].stream
        assert [entry.index for entry in bench.say(Ack(stream, 5))] == [11, 12, 13, 14, 15]

    def test_windows_share(self):
        """The windows of all viewers together stay within eight MiB, as long as there are few."""
        bench = Bench(budget=RingBudget(64 << 20))
        for number in range(16):
            bench.join(b"%d" % number)
        bench.fill(300, size=100_000)
        sizes = [sum(len(entry.frame) for entry in bench.take(b"%d" % number)) for number in range(16)]
        assert sum(sizes) <= (8 << 20) + 16 * 100_000

    def test_skipped(self):
        """What fell out of the ring before it could be sent is told with its exact count."""
        bench = Bench(budget=RingBudget(1 << 20))
        stream = bench.join(window=900_000).stream
        bench.fill(4, size=250_000)  # as many as fit in the ring, and on the way
        assert [entry.index for entry in bench.take()] == [0, 1, 2, 3]
        bench.fill(100, size=250_000)
        assert bench.take() == []  # nothing was acknowledged
        (skip, entry) = bench.say(Ack(stream, 4))
        assert skip == Skipped(stream, 4, 103, 1030)
        assert (entry.index, entry.before) == (103, 1030)

    @pytest.mark.parametrize(("is_held", "first"), [(False, 90), (True, 20)])
    def test_where_it_goes_on(self, is_held, first):
        """Who lacks what is gone goes on with the last eighth of the room; where all is wanted, with all there is."""
        bench = Bench(budget=RingBudget(80_000))
        if is_held:
            bench.server.hold(Filter())
        stream = bench.join().stream
        bench.fill(100, size=744)  # 1,000 bytes with what an entry takes besides: the ring has 80
        (skip, *entries) = bench.take()
        assert skip == Skipped(stream, 0, first, 10 * first)
        assert [(entry.index, entry.before) for entry in entries] == [(n, 10 * n) for n in range(first, 100)]

    def test_slow_but_not_too_slow(self):
        """Who is behind, with nothing gone yet, is sent all of it."""
        bench = Bench(budget=RingBudget(80_000))
        bench.join()
        bench.fill(80, size=744)
        assert [entry.index for entry in bench.take()] == list(range(80))

    def test_replay(self, bench):
        """What is asked for again is sent again, from there on."""
        stream = bench.join().stream
        bench.fill(10)
        bench.take()
        bench.now_s += 1
        assert [entry.index for entry in bench.say(ReplayRequest(stream, 7))] == [7, 8, 9]

    def test_refused_send(self, bench):
        """An entry for which the socket has no room is sent when it has."""
        bench.join()
        bench.fill(3)
        bench.outcome = Sent.FULL
        assert bench.take() == []
        bench.outcome = Sent.QUEUED
        assert [entry.index for entry in bench.take()] == [0, 1, 2]
        assert bench.server.counts["refused_sends"] > 0

    def test_gone(self, bench):
        """A viewer whose connection is gone is no longer sent to, and may come back to its stream."""
        stream = bench.join().stream
        bench.fill(3)
        bench.outcome = Sent.GONE
        bench.take()
        bench.outcome = Sent.QUEUED
        bench.server.tick(bench.now_s)
        assert bench.server.viewers == {}
        assert bench.join(resume=(stream, 0)) is not None
        assert bench.server.viewers[VIEWER].cursor == 3

    def test_beat(self, bench):
        """Once a second each viewer is told where its stream stands."""
        bench.join()
        bench.fill(2)
        bench.take()
        bench.now_s += 1
        bench.server.tick(bench.now_s)
        bench.server.tick(bench.now_s + 0.5)
        (beat,) = bench.take()
        assert isinstance(beat, Beat)
        assert (beat.next_index, beat.before, beat.status) == (2, 20, {"seq": 7})

    def test_status_too_large(self, bench):
        """A status that no beat could carry loses its largest parts, and the beat is sent."""
        bench.provider.status = lambda: {"open_spans": {str(n): ["x" * 60] for n in range(1000)}, "seq": 1}
        bench.join()
        bench.now_s += 1
        bench.server.tick(bench.now_s)
        assert bench.take()[-1].status == {"seq": 1}

    def test_parting(self, bench):
        """At the end every viewer is told, and every stream is closed."""
        bench.join()
        bench.server.part("closed")
        assert bench.take() == [Bye("closed")]
        assert bench.provider.closed == [("*",)]


class TestConnecting:
    def test_says_hello(self):
        """An end that made the connection says hello until it is answered, and again when it is not known any more."""
        bench = Bench(connects=True)
        bench.server.tick(1.0)
        bench.server.tick(1.5)
        bench.server.tick(2.5)
        assert [type(message) for message in bench.take(b"")] == [Hello, Hello]
        bench.say(Welcome(2, "viewer", "collector", ""), b"")
        bench.say(subscription(), b"")
        bench.server.tick(bench.now_s + 9.0)
        assert {type(message) for message in bench.take(b"")} == {Beat}
        bench.say(Reset(), b"")
        bench.server.tick(bench.now_s + 9.1)
        assert [type(message) for message in bench.take(b"")] == [Hello]

    def test_welcomed_and_forgotten(self):
        """An end that was welcomed, and then asked for nothing because the connection broke, says hello again."""
        bench = Bench(connects=True)
        bench.say(Welcome(2, "viewer", "collector", ""), b"")
        bench.server.tick(bench.now_s + 2.9)
        assert bench.take(b"") == []
        bench.server.tick(bench.now_s + 3.1)
        assert [type(message) for message in bench.take(b"")] == [Hello]

    def test_not_drained_before_it_was_asked(self):
        """An end that was welcomed has delivered nothing before it was asked for its stream, and that acknowledged."""
        bench = Bench(connects=True)
        assert not bench.server.is_drained
        bench.say(Welcome(2, "viewer", "collector", ""), b"")
        assert not bench.server.is_drained
        bench.say(subscription(), b"")
        bench.fill(1)
        (entry,) = bench.take(b"")
        assert not bench.server.is_drained
        bench.say(Ack(entry.stream, 1), b"")
        assert bench.server.is_drained

    def test_not_drained_before_it_was_answered(self):
        """A collector that asks anew, as after it was started again, lacks what it was sent, until that is known."""
        bench = Bench(connects=True)
        bench.say(Welcome(2, "viewer", "collector", ""), b"")
        bench.say(subscription(), b"")
        bench.fill(3)
        bench.take(b"")
        bench.provider.snapshot = None  # it takes a while
        bench.say(subscription(request=2, resume=(OLDEST, 0)), b"")
        assert not bench.server.is_drained


def test_chunk_is_of_the_request(bench):
    """Chunks of a snapshot that was not asked for are not sent."""
    bench.join()
    assert bench.say(Fetch(7, 0, 4)) == []
    assert [type(message) for message in bench.say(Fetch(1, 0, 4))] == [Chunk]
