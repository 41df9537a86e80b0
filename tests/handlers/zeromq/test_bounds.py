"""Bounds on the damage by one peer: each of these attacks once ended a collector or filled memory."""

from __future__ import annotations

import contextlib
import os
import time

import msgpack
import pytest

from framing import frame_of
from trackside.events import DecodeError, Heartbeat, Source, SourceStarted
from trackside.handlers.zeromq import PeerLimits
from trackside.handlers.zeromq._collector import CollectedStreams, with_rows
from trackside.handlers.zeromq._connection import Connection, origin_of
from trackside.handlers.zeromq._protocol import (
    BURST_S,
    CHUNK_BYTES,
    PROTOCOL_VERSION,
    SOURCE_END,
    VIEWER_END,
    Chunk,
    FrameEntry,
    Hello,
    LossEntry,
    PeerBuckets,
    Ping,
    Refused,
    Snapshot,
    SourcePosition,
    Subscribe,
    Subscribed,
    Verb,
    Welcome,
    decode,
    decode_snapshot,
    dump_models,
    encode,
    encode_snapshot,
)
from trackside.handlers.zeromq._receiver import (
    Producer,
    Receiver,
    SnapshotBudget,
    SourceRegistry,
    SourceState,
    StreamConsumer,
)
from trackside.handlers.zeromq._server import ReadySnapshot, StreamServer
from trackside.handlers.zeromq._session import Sent
from trackside.wire import FrameDecoder, encode_frame
from trackside.wire._sequence import MAX_COUNT

DEADLINE_S = 20.0
MOST = (1 << 62) - 1


def started(source):
    """Return the event with which a source begins."""
    return SourceStarted(identity=source.to_wire(), span_id=0, step=-1)


class FalseRank:
    """A sender that sends a collector any message, over a real socket."""

    def __init__(self, endpoint, **options):
        self.connection = Connection(endpoint, binds=False, role="rank", **options)
        self.index = 0

    def join(self):
        """Greet, and answer the collector's subscription."""
        deadline_s = time.monotonic() + DEADLINE_S
        self.connection.send(b"", encode(Hello(PROTOCOL_VERSION, SOURCE_END, "false", "")))
        while time.monotonic() < deadline_s:
            self.connection.wait(0.1)
            for _, parts, _ in self.connection.receive(100):
                message = decode(parts)
                if isinstance(message, Subscribe):
                    self.connection.send(b"", encode(Subscribed(message.request, "s", 0, 0, False, 1 << 20, 0, 0)))
                    return
        raise AssertionError("nobody subscribed")

    def send(self, frame):
        """Send *frame* as the next entry."""
        self.connection.send(b"", encode(FrameEntry("s", self.index, self.index, 1, frame)))
        self.index += 1


@pytest.fixture
def false_ranks():
    """Give a function that makes such senders; their sockets are closed after the test."""
    with contextlib.ExitStack() as stack:

        def make(endpoint, **options):
            rank = FalseRank(endpoint, **options)
            stack.callback(rank.connection.close)
            return rank

        yield make


class TestCounts:
    def test_that_add_up_beyond_64_bits(self, collectors, false_ranks, attached, until, tmp_path):
        """Counts that add up beyond 2**64 end no collector: viewers attach, before and after its restart."""
        collector = collectors(publish="tcp://127.0.0.1:*", log=tmp_path)
        source = Source.detect({}, run_id="run", rank=0)
        rank = false_ranks(collector.endpoint, insecure=True)
        rank.join()
        rank.send(frame_of(source.id, [started(source)], dropped={str(number): MOST for number in range(8)}))
        until(lambda: collector.totals()["sources"] == 1)

        assert attached(collector.viewer_endpoint, insecure=True).wait(DEADLINE_S)
        assert collector.totals()["dropped"] == MAX_COUNT
        collector.end()
        again = collectors(publish="tcp://127.0.0.1:*", log=tmp_path)
        viewer = attached(again.viewer_endpoint, insecure=True)

        assert viewer.wait(DEADLINE_S)
        assert (source.id in viewer.sources, viewer.malformed) == (True, 0)

    def test_of_a_source_saturate_in_a_snapshot(self):
        """
        The largest claim of all, that 2**62 numbers are lost, leaves the snapshot one that viewers read.
        """
        source = Source.detect({}, run_id="run")
        data = encode_snapshot(Snapshot([SourcePosition(source, 1 << 62, 1 << 70)], {}, 0))

        assert decode_snapshot(data).places[0] == SourcePosition(source, 1 << 62, 1 << 62)

    def test_in_a_model_saturate(self):
        """
        A sum of a model's that 64 bits do not hold is sent as the largest number that they do; the others are
        unchanged.
        """
        states = {"one": {"sum": 1 << 70, "of": [-(1 << 70), 1.5]}, "other": {"sum": 3}}

        models = decode_snapshot(encode_snapshot(Snapshot([], states, 0))).models

        assert models == {"one": {"sum": (1 << 64) - 1, "of": [-(1 << 63), 1.5]}, "other": {"sum": 3}}

    def test_texts_that_have_no_utf8(self):
        """
        A lone surrogate in a source's identity or a model's state costs viewers neither: it arrives as an escape.
        """
        position = SourcePosition(Source.detect({}, run_id="run\udcff"), 0, 0)

        snapshot = decode_snapshot(encode_snapshot(Snapshot([position], {"one": {"name": "span\ud800"}}, 0)))

        assert (snapshot.places[0].source.run_id, snapshot.models) == (r"run\udcff", {"one": {"name": r"span\ud800"}})

    def test_model_that_cannot_be_dumped(self):
        """
        A model whose dump fails, or is no plain data, is left out; the others' states arrive.
        """

        class Failing:
            def dump(self):
                raise OverflowError

        class Strange:
            def dump(self):
                return {"value": object()}

        class Sound:
            def dump(self):
                return {"value": 1}

        states = dump_models([Failing(), Strange(), Sound()], [kind.__qualname__ for kind in (Failing, Strange, Sound)])
        models = decode_snapshot(encode_snapshot(Snapshot([], states, 0))).models

        assert list(models.values()) == [{"value": 1}]


class TestRewriting:
    def test_does_not_grow(self):
        """
        A frame of single-precision floats, filtered for a viewer, is no larger than it came: 225 KB stay 225 KB.
        """
        packer = msgpack.Packer(use_single_float=True)
        row = packer.pack([0, 0, 1, 0, -1, [0.5] * 45_000])
        small = packer.pack([0, 1, 1, 0, -1, []])
        schema = packer.pack([0, "test.floats", 1, ["values"]])
        data = encode_frame("a" * 16, 5, 6, dropped={}, schemas=[schema], rows=[row, small])

        kept = with_rows(data, [0])

        assert len(row) < len(kept) <= len(data)
        assert [event.seq for event in FrameDecoder().decode(kept).events] == [5]
        assert [event.seq for event in FrameDecoder().decode(with_rows(data, [1])).events] == [6]
        assert FrameDecoder().decode(with_rows(data, [])).events == []

    def test_of_large_rows_ends_no_collector(self, collectors, false_ranks, attached, until):
        """
        A filtered viewer gets a row that would be too large if it were encoded again, and the collector serves on.
        """
        collector = collectors(publish="tcp://127.0.0.1:*")
        viewer = attached(collector.viewer_endpoint, to="test.floats", insecure=True)
        assert viewer.wait(DEADLINE_S)
        packer = msgpack.Packer(use_single_float=True)
        row = packer.pack([0, 0, 1, 0, -1, [0.5] * 45_000])
        schema = packer.pack([0, "test.floats", 1, ["values"]])
        rank = false_ranks(collector.endpoint, insecure=True)
        rank.join()
        rank.send(encode_frame("a" * 16, 0, 0, dropped={}, schemas=[schema], rows=[row]))

        got = []
        until(lambda: bool(got.extend(viewer.read(0.1)) or [event for event in got if event.source.id == "a" * 16]))


class Streams:
    """A provider of empty streams, for a server."""

    def open_stream(self, wanted, ring):
        """Begin an empty stream."""
        return lambda: None

    def take_snapshot(self, models, ring, done):
        """Be ready at once."""
        done(ReadySnapshot(b"", ring.next_index, ring.before))

    def status(self):
        """Have no status."""
        return {}


class Viewing:
    """A server, and its answers."""

    def __init__(self, provider=None, **options):
        self.sent = []
        self.server = StreamServer(provider or Streams(), self._send, own_id="here", **options)

    def _send(self, address, parts):
        self.sent.append((address, decode(parts)))
        return Sent.QUEUED

    def say(self, address, message, user=""):
        """Let *address* send *message* with the key of *user*; return the kinds of the answers."""
        before = len(self.sent)
        self.server.receive(address, encode(message), 0.0, 0, user)
        self.server.pump()
        return [type(answer).__name__ for to, answer in self.sent[before:] if to == address]


SUBSCRIBE = Subscribe(1, ["*"], 1, None, [], "", 0, 1 << 20)


class TestRoles:
    @pytest.mark.parametrize("greeting", [Hello, Welcome])
    def test_rank_cannot_watch(self, greeting):
        """
        A rank's key is refused at the viewers' endpoint, whichever way it greets, and gets nothing it subscribes to.
        """
        viewing = Viewing()

        answers = viewing.say(b"a", greeting(PROTOCOL_VERSION, VIEWER_END, "x", ""), "rank:01234567")
        answers += viewing.say(b"a", SUBSCRIBE, "rank:01234567")

        assert set(answers) == {"Refused"}
        assert viewing.server.viewers == {}

    def test_welcome_is_no_greeting(self):
        """At the end to which others connect, a Welcome makes no peer known: only Hello does."""
        viewing = Viewing()

        viewing.say(b"a", Welcome(PROTOCOL_VERSION, VIEWER_END, "x", ""), "viewer:01234567")

        assert viewing.server.viewers == {}

    def test_address_of_another(self):
        """
        A rank whose connection has taken over the address of a viewer that left is not served as that viewer.
        """
        viewing = Viewing()
        viewing.say(b"a", Hello(PROTOCOL_VERSION, VIEWER_END, "x", ""), "viewer:01234567")

        assert viewing.say(b"a", SUBSCRIBE, "rank:01234567") == ["Refused"]
        assert viewing.server.viewers == {}


class TestGuards:
    def test_supply_that_fails(self):
        """
        A request that fails in an unforeseen way costs its sender the session, and no other peer theirs.
        """

        class Failing(Streams):
            def open_stream(self, wanted, ring):
                raise ZeroDivisionError

        viewing = Viewing()
        viewing.say(b"b", Hello(PROTOCOL_VERSION, VIEWER_END, "y", ""))
        viewing.say(b"b", SUBSCRIBE)
        viewing.server._provider = Failing()
        viewing.say(b"a", Hello(PROTOCOL_VERSION, VIEWER_END, "x", ""))
        viewing.say(b"a", Subscribe(1, ["other.*"], 1, None, [], "", 0, 1 << 20))

        assert list(viewing.server.viewers) == [b"b"]
        assert viewing.server.counts["failed"] == 1

    def test_listener_that_fails(self):
        """
        An entry that fails in an unforeseen way costs its sender the session, and no other peer theirs.
        """
        receiving = Receiving(fails=True)
        receiving.begin(b"a", "one")
        receiving.begin(b"b", "two")
        receiving.say(b"a", FrameEntry("stream of one", 0, 0, 1, b"x"))

        assert list(receiving.receiver.producers) == [b"b"]
        assert receiving.receiver.counts["failed"] == 1

    def test_verb_that_grows_as_it_is_passed_on(self):
        """
        A verb that is too large once its number is another one is not passed on, and nothing is raised.
        """
        receiving = Receiving()
        receiving.begin(b"a", "one")

        (producer,) = receiving.receiver.producers.values()

        assert not receiving.receiver.command(Verb(1 << 40, "status", [], {"x": "y" * 65_600}), producer)


class Receiving:
    """A receiver, and the messages it sent."""

    def __init__(self, *, fails=False, spends_s=0.0, **options):
        self.now_s = 0.0
        self.fails = fails
        self.spends_s = spends_s
        self.entries = []
        self.sent = []
        self.origin = "192.0.2.1"
        self.gone = set()
        self.receiver = Receiver(
            self, self._send, origin_of=lambda: self.origin, monotonic_s=lambda: self.now_s, **options
        )

    @property
    def producers(self):
        """Return the known senders."""
        return list(self.receiver.producers.values())

    def _send(self, address, parts):
        self.sent.append((address, decode(parts)))
        return Sent.GONE if address in self.gone else Sent.QUEUED

    def on_entry(self, producer, entry):
        """Raise, or use processor time, as the test sets it."""
        if self.fails:
            raise ZeroDivisionError
        until_s = time.thread_time() + self.spends_s
        while time.thread_time() < until_s:
            pass
        self.entries.append(producer.address)

    def on_introduction(self, producer, snapshot):
        """Ignore it."""

    def on_heard(self, producer, message):
        """Ignore it."""

    def say(self, address, message, user=""):
        """Let *address* send *message*."""
        self.receiver.receive([(address, encode(message), user)])

    def begin(self, address, name):
        """Let a sender greet and be subscribed to."""
        self.say(address, Hello(PROTOCOL_VERSION, SOURCE_END, name, ""))
        request = next(answer for to, answer in reversed(self.sent) if to == address and type(answer) is Subscribe)
        self.say(address, Subscribed(request.request, f"stream of {name}", 0, 0, False, 1, 0, 0))


NO_CLOCK = PeerLimits(extra_cpu_s=1e9)
"""Limits without a bound on processor time: exact counts do not depend on the speed of the machine."""


class TestLimits:
    def test_new_names_give_no_new_allowance(self):
        """A sender that greets under ten thousand names is one sender, with one limit, and leaves nothing behind."""
        receiving = Receiving()
        for number in range(10_000):
            receiving.say(b"a", Hello(PROTOCOL_VERSION, SOURCE_END, f"{number}", ""))

        assert len(receiving.producers) == len(receiving.receiver._by_id) == 1
        assert receiving.receiver.counts["cut"] > 1000

    def churn(self, receiving, count):
        """Let an address connect so often under new names, with three messages each; return how many were read."""
        before = receiving.receiver.counts["cut"]
        for number in range(count):
            address = b"churn %d" % number
            for message in (Hello(PROTOCOL_VERSION, SOURCE_END, f"churn {number}", ""), Ping(1), Ping(2)):
                receiving.say(address, message)
            receiving.gone.add(address)
        return 3 * count - (receiving.receiver.counts["cut"] - before)

    def test_new_connections_give_no_new_allowance(self):
        """
        Of one address that connects again and again under new names as many messages are read as of one sender: 2,000 a
        second.
        """
        receiving = Receiving(limits=NO_CLOCK)

        assert self.churn(receiving, 10_000) == 8000  # the burst allowance
        receiving.now_s = 1.0
        assert self.churn(receiving, 10_000) == 2000

    def test_new_connections_leave_nothing_behind(self):
        """
        A peer that left before it settled is forgotten at the first sign of that, and a silent address after 30 s.
        """
        receiving = Receiving(limits=NO_CLOCK)
        self.churn(receiving, 1000)
        for _ in range(40):
            receiving.now_s += 0.05
            receiving.receiver.tick()
        assert receiving.producers == []
        receiving.now_s += 61.0
        receiving.receiver.tick()

        assert receiving.receiver._origins == {}

    def test_other_addresses_and_settled_senders_go_on(self):
        """
        While an address is flooding, its peers that were known for three seconds are read, and those of other
        addresses.
        """
        receiving = Receiving(limits=NO_CLOCK)
        receiving.begin(b"a", "one")
        receiving.now_s = 3.0
        receiving.say(b"a", Ping(1))
        self.churn(receiving, 10_000)
        receiving.say(b"a", FrameEntry("stream of one", 0, 0, 1, b"x"))
        receiving.origin = "192.0.2.2"
        receiving.begin(b"b", "two")
        receiving.say(b"b", FrameEntry("stream of two", 0, 0, 1, b"x"))

        assert receiving.entries == [b"a", b"b"]

    def test_ranks_behind_one_address(self):
        """
        A thousand ranks that come at once from one address lose nothing: none is cut, then or later.
        """
        receiving = Receiving(limits=NO_CLOCK)
        for second in range(5):
            for number in range(1000):
                address = b"rank %d" % number
                if second == 0:
                    receiving.begin(address, f"rank {number}")
                for _ in range(3 if second else 2):
                    receiving.say(address, Ping(1))
                receiving.now_s += 0.001

        assert receiving.receiver.counts["cut"] == 0
        assert all(producer.is_settled for producer in receiving.producers)

    def test_senders_of_one_address(self):
        """
        Of one address 4,096 senders are known at a time, and others are admitted; when those are forgotten, more may
        come.
        """
        receiving = Receiving(limits=NO_CLOCK.times(1e9, 1e9, 1))
        for number in range(4098):
            receiving.say(b"rank %d" % number, Hello(PROTOCOL_VERSION, SOURCE_END, f"rank {number}", ""))
        receiving.origin = "192.0.2.2"
        receiving.say(b"other", Hello(PROTOCOL_VERSION, SOURCE_END, "other", ""))

        busy = [address for address, message in receiving.sent if isinstance(message, Refused)]
        assert (busy, len(receiving.producers)) == ([b"rank 4096", b"rank 4097"], 4097)

        receiving.now_s = 61.0
        for _ in range(40):
            receiving.receiver.tick()
        receiving.origin = "192.0.2.1"
        receiving.say(b"rank 4097", Hello(PROTOCOL_VERSION, SOURCE_END, "rank 4097", ""))

        assert [producer.id for producer in receiving.producers] == ["rank 4097"]

    def test_coming_back_gives_no_burst(self):
        """
        A sender that has settled begins with one second of its allowance, not four: waiting and bursting gains nothing.
        """
        receiving = Receiving(limits=NO_CLOCK)
        receiving.begin(b"a", "one")
        receiving.now_s = 3.0
        for _ in range(10_000):
            receiving.say(b"a", Ping(1))

        assert receiving.receiver.counts["cut"] == 8000

    def test_of_an_address(self):
        """
        All senders of an address together have sixteen times the allowance of one, however many have settled there.
        """
        receiving = Receiving(limits=PeerLimits(messages=100.0, extra_cpu_s=1e9))
        for number in range(100):
            receiving.begin(b"%d" % number, f"{number}")
        receiving.now_s = 3.0
        for number in range(100):
            for _ in range(100):
                receiving.say(b"%d" % number, Ping(1))

        assert 10_000 - receiving.receiver.counts["cut"] == 16 * 100 * BURST_S

    def test_address_is_known_while_somebody_is_there(self):
        """
        The used allowance of an address is kept while one of its senders is there, however long nobody else comes.
        """
        receiving = Receiving(limits=NO_CLOCK)
        receiving.begin(b"a", "one")
        (origin,) = receiving.receiver._origins.values()
        for _ in range(50):
            receiving.now_s += 2.0
            receiving.say(b"a", Ping(1))
            receiving.receiver.tick()

        assert list(receiving.receiver._origins.values()) == [origin]

    def test_what_is_cut_costs_nobody_else(self):
        """The processor time between messages that are not read is not charged to the sender of the next one."""
        receiving = Receiving()
        receiving.begin(b"a", "one")
        receiving.origin = "192.0.2.2"
        receiving.begin(b"b", "two")
        receiving.receiver.producers[b"a"].buckets.charge(10**9)

        def messages():
            yield b"a", encode(Ping(1)), ""
            until_s = time.thread_time() + 0.6
            while time.thread_time() < until_s:
                pass
            yield b"b", encode(Ping(1)), ""
            yield b"b", encode(FrameEntry("stream of two", 0, 0, 1, b"x")), ""

        receiving.receiver.receive(messages())

        assert receiving.entries == [b"b"]

    @pytest.mark.parametrize(
        ("peer", "origin"),
        [
            ("::ffff:192.0.2.1", "192.0.2.1"),
            ("192.0.2.1", "192.0.2.1"),
            ("2001:db8::1:2", "2001:db8::/64"),
            ("fe80::1%eth0", "fe80::/64"),
            ("localhost:1000:1001:4711", "localhost:1000:1001"),
            ("", ""),
        ],
    )
    def test_origin(self, peer, origin):
        """
        An IPv4 address, the network of an IPv6 address, or a user of this machine is one origin; processes are not.
        """
        assert origin_of(peer) == origin

    @pytest.mark.parametrize("endpoint", ["tcp://127.0.0.1:*", "ipc"])
    def test_origin_of_a_connection(self, endpoint, tmp_path):
        """The origin of a message is read off its connection."""
        tmp_path.chmod(0o700)
        bound = Connection(f"ipc://{tmp_path}/s" if endpoint == "ipc" else endpoint, binds=True, insecure=True)
        with (
            contextlib.closing(bound),
            contextlib.closing(Connection(bound.endpoint, binds=False, insecure=True)) as end,
        ):
            assert bound.origin() == ""
            end.send(b"", [b"x"])
            bound.wait(DEADLINE_S)
            assert list(bound.receive(1))
            user = f"localhost:{os.getuid()}:{os.getgid()}"
            assert bound.origin() == (user if endpoint == "ipc" else "127.0.0.1")

    def test_frames_that_are_expensive(self):
        """
        A sender whose messages take far more time than others of their size is not read for a while; another one is.
        """
        receiving = Receiving(spends_s=0.25)
        receiving.begin(b"a", "one")
        for index in range(6):
            receiving.say(b"a", FrameEntry("stream of one", index, index, 1, b"x"))
        receiving.spends_s = 0.0
        receiving.origin = "192.0.2.2"
        receiving.begin(b"b", "two")
        receiving.say(b"b", FrameEntry("stream of two", 0, 0, 1, b"x"))

        assert receiving.entries == [b"a", b"a", b"b"]  # of 0.4 s in hand each costs 0.25 s
        receiving.now_s += 3.0
        receiving.say(b"a", FrameEntry("stream of one", 2, 2, 1, b"x"))
        assert receiving.entries == [b"a", b"a", b"b", b"a"]

    def test_new_source_costs_its_sender(self):
        """A sender that makes up sources is limited after some four thousand, and goes on at a thousand a second."""
        collection = CollectedStreams(Source.detect({}), [], None, SourceRegistry(), monotonic_s=lambda: 0.0)
        buckets = PeerBuckets(PeerLimits(), 0.0)
        producer = Producer(b"a", "one", "", "", None, buckets, 0.0)
        made = 0
        while buckets.admit(100, 0.0):
            frame = frame_of(Source.detect({}).id, [])
            collection.on_entry(producer, FrameEntry("s", made, 0, 0, frame))
            made += 1

        assert 3000 < made < 5000
        assert len(collection.registry.states) == made


class TestVerbs:
    def test_are_small(self):
        """A verb of more than 4 KiB is malformed: every job that it reaches would record it."""
        with pytest.raises(DecodeError):
            decode([msgpack.packb([18, 1, "status", [], {"x": "y" * 5000}])])

    def test_are_few(self):
        """
        Of ten thousand verbs at once a key has twenty executed, from any of its peers, and the others refused as busy.
        """
        executed = []
        viewing = Viewing(on_verb=lambda address, verb, user: executed.append(verb))
        for peer in (b"a", b"b"):
            viewing.say(peer, Hello(PROTOCOL_VERSION, VIEWER_END, peer.decode(), ""), "viewer:01234567")
        for number in range(500):
            for peer in (b"a", b"b"):
                viewing.say(peer, Verb(number, "status", [], {}), "viewer:01234567")

        assert len(executed) == 20
        assert viewing.server.counts["refused"] == 980


class TestSnapshots:
    def consumers(self, count):
        """Return so many consumers with one budget of 3 MiB, 2 MiB each, each subscribed to."""
        budget = SnapshotBudget(one_bytes=2 << 20, all_bytes=3 << 20)
        made = [
            StreamConsumer(lambda message: None, lambda entry: None, self.got.append, budget=budget)
            for _ in range(count)
        ]
        for consumer in made:
            consumer.tick(0.0)
        return made

    @pytest.fixture(autouse=True)
    def _snapshots(self):
        self.got = []

    def announce(self, consumer, size_bytes, now_s=0.0):
        """Let the source end of *consumer* announce a snapshot."""
        chunks = -(-size_bytes // CHUNK_BYTES)
        consumer.on(Subscribed(consumer._request, "s", 0, 0, False, 1, size_bytes, chunks), 100, now_s)

    def test_that_are_announced_share_one_bound(self):
        """Of a hundred senders that each announce 2 MiB one is asked for them, where 3 MiB may be in transit."""
        consumers = self.consumers(100)
        for consumer in consumers:
            self.announce(consumer, 2 << 20)

        assert sum(consumer.is_subscribed for consumer in consumers) == 1
        assert consumers[0].budget.reserved_bytes == 2 << 20

    def test_that_never_come(self):
        """After thirty seconds the budget reserved for a snapshot is released, and its sender gets a smaller one."""
        slow, other = self.consumers(2)
        self.announce(slow, 2 << 20)
        slow.tick(31.0)
        self.announce(other, 2 << 20, 31.0)
        self.announce(slow, 2 << 20, 32.0)

        assert (other.is_subscribed, slow.is_subscribed, slow.unfinished_snapshots) == (True, False, 1)

    def test_whose_chunks_have_another_size(self):
        """A chunk of another size than announced is malformed, and so is a wrong number of chunks."""
        (consumer,) = self.consumers(1)
        with pytest.raises(DecodeError):
            consumer.on(Subscribed(consumer._request, "s", 0, 0, False, 1, 100, 128), 100, 0.0)
        self.announce(consumer, CHUNK_BYTES + 10)
        for number, size in ((0, CHUNK_BYTES + 1), (0, 10), (1, CHUNK_BYTES)):
            with pytest.raises(DecodeError):
                consumer.on(Chunk(consumer._request, number, bytes(size)), size, 0.0)
        consumer.on(Chunk(consumer._request, 0, bytes(CHUNK_BYTES)), CHUNK_BYTES, 0.0)
        consumer.on(Chunk(consumer._request, 1, bytes(10)), 10, 0.0)

        assert (self.got, consumer.budget.reserved_bytes) == ([bytes(CHUNK_BYTES + 10)], 0)

    def test_that_no_viewer_fetches(self):
        """A viewer that does not fetch its snapshot within thirty seconds has none any more: others need the memory."""

        class Full(Streams):
            def take_snapshot(self, models, ring, done):
                done(ReadySnapshot(bytes(1000), ring.next_index, ring.before))

        viewing = Viewing(provider=Full())
        viewing.say(b"a", Hello(PROTOCOL_VERSION, VIEWER_END, "x", ""))
        viewing.say(b"a", SUBSCRIBE)
        viewing.server.tick(1.0)
        (peer,) = viewing.server.viewers.values()
        assert peer.snapshot == bytes(1000)
        for second in range(2, 33):
            viewing.server.receive(b"a", encode(Ping(1)), float(second), 0)
            viewing.server.tick(float(second))

        assert peer.snapshot is None


class TestLosses:
    def test_of_unknown_sources(self):
        """Losses of 24,000 sources without any event make no source, no line and no file; they are counted."""
        collection = CollectedStreams(Source.detect({}), [], None, SourceRegistry(), monotonic_s=lambda: 0.0)
        producer = Producer(b"a", "one", "", "", None, PeerBuckets(PeerLimits(), 0.0), 0.0)
        before = collection.own.next_seq
        for number in range(24_000):
            collection.on_entry(producer, LossEntry("s", number, 0, f"{number:016x}", 0, 9, "gone"))

        assert (len(collection.registry.states), collection.own.next_seq) == (0, before)
        assert sum(collection.unheard.values()) == 1024 * 10
        assert collection.counts["excess"] == 24_000 - 1024

    def test_of_a_source_that_comes_later(self):
        """Once such a source does come, its own numbers show the losses, and none is counted twice."""
        collection = CollectedStreams(Source.detect({}), [], None, SourceRegistry(), monotonic_s=lambda: 0.0)
        producer = Producer(b"a", "one", "", "", None, PeerBuckets(PeerLimits(), 0.0), 0.0)
        source = Source.detect({})
        collection.on_entry(producer, LossEntry("s", 0, 0, source.id, 0, 9, "gone"))
        collection.on_entry(producer, FrameEntry("s", 1, 0, 1, frame_of(source.id, [started(source)], first_seq=10)))

        assert (collection.unheard, collection.registry.totals()["lost"]) == ({}, 10)


class TestOpenSpans:
    def test_that_are_many_are_not_kept(self):
        """
        Of a heartbeat with far more open spans than a program has, those of the main thread are kept, or none.
        """
        spans = {"MainThread": [1, "train"], **{f"thread {number}": [2, "x" * 100] for number in range(1000)}}
        state = SourceState(Source.detect({}), 0.0)
        decoder = FrameDecoder()
        for number, found in enumerate((spans, {"MainThread": [1, "x" * 9000]})):
            frame = frame_of(state.source.id, [Heartbeat(sequence=0, open_spans=found)], first_seq=number)
            state.admit(decoder.decode(frame))
            assert state.span == ("train", "")[number]
