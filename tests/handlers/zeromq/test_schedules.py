"""
The protocol under every schedule that chance finds: real sessions, streams and receivers over a simulated network.

A rank sends to a collector, another one through a forwarder; a viewer watches the collector, and an intruder with the
key of a rank tries to. Messages are lost, repeated and reordered, connections are cut or fall silent, keys are
replaced, the collector and the forwarder are started again. Then the network is good until everything has come, a
minute at most.
"""

from __future__ import annotations

import itertools
import random

import hypothesis
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

import trackside
from trackside.events import Source, SourceStarted
from trackside.handlers.zeromq import _attachment, _receiver
from trackside.handlers.zeromq._attachment import ViewerSession
from trackside.handlers.zeromq._collector import Collection
from trackside.handlers.zeromq._connection import SilenceTimer
from trackside.handlers.zeromq._protocol import (
    PROTOCOL_VERSION,
    RENEW_AFTER_S,
    VIEWER_END,
    WINDOW_BYTES,
    Beat,
    Chunk,
    Filter,
    FrameEntry,
    Hello,
    LossEntry,
    Ping,
    Result,
    Skipped,
    Snapshot,
    SourcePosition,
    Subscribe,
    Subscribed,
    Welcome,
    decode,
    encode,
    encode_snapshot,
)
from trackside.handlers.zeromq._receiver import Receiver, SourceRegistry
from trackside.handlers.zeromq._server import LostRange, ReadySnapshot, RingBudget, StreamServer
from trackside.handlers.zeromq._session import Sent
from trackside.wire import RowEncoder, encode_frame

TURN_S = 0.1
LAST_TURNS_S = 0.25
RECOVERY_S = 60.0
CONFIDENTIAL = (Subscribed, Chunk, FrameEntry, LossEntry, Skipped, Beat, Result)


@trackside.event("test.schedules.tick")
class Tick(trackside.Event):
    """Something that happens on a rank."""


class Clock:
    """The one clock of the simulation; stands in for the module `time` where a viewer or a receiver looks at it."""

    def __init__(self):
        self.now_s = 1000.0

    def monotonic(self):
        """Return the time."""
        return self.now_s

    def thread_time(self):
        """Return the processor time, of which a simulated peer uses none."""
        return 0.0


class Wire:
    """One connection: what is on its way in each direction. Its address changes whenever it is made anew."""

    numbers = itertools.count()

    def __init__(self, network, target, user):
        self.network, self.target, self.user = network, target, user
        self.up, self.down = [], []
        self.is_dead = False
        self.silence = SilenceTimer(network.clock.now_s)
        self.cut()

    def cut(self):
        """Lose what is on its way, and connect anew."""
        self.up.clear()
        self.down.clear()
        self.is_dead = False
        self.address = b"%d" % next(self.numbers)

    def send(self, _, parts):
        """Send *parts* to the end that was connected to."""
        if not self.is_dead:
            self.up.append(parts)
        return Sent.QUEUED

    def renew(self, now_s):
        """Make the connection anew if nothing was heard for too long, as a real one does."""
        if not self.silence.is_due(now_s):
            return False
        self.cut()
        return True

    def receive(self, most):
        """Yield what has come to the end that connected."""
        while self.down and most:
            most -= 1
            self.silence.end()
            yield b"", self.down.pop(0), ""


class Network:
    """All wires of the simulation, and its clock."""

    def __init__(self):
        self.clock = Clock()
        self.wires = []

    def connect(self, target, user=""):
        """Return a new wire to *target*."""
        wire = Wire(self, target, user)
        self.wires.append(wire)
        return wire

    def sender_of(self, target):
        """Return what sends from *target* to an address."""

        def send(address, parts):
            wire = next((wire for wire in self.wires if wire.target == target and wire.address == address), None)
            if wire is None:
                return Sent.GONE
            if not wire.is_dead:
                wire.down.append(parts)
            return Sent.QUEUED

        return send

    def deliver(self, target, receive):
        """Give everything that has come to *target* to *receive*."""
        for wire in [wire for wire in self.wires if wire.target == target]:
            while wire.up:
                receive([(wire.address, wire.up.pop(0), wire.user)])


class Streams:
    """Rings that one end fills."""

    def __init__(self, sources):
        self.rings, self.sources = [], sources

    def open_stream(self, wanted, ring):
        """Begin to fill *ring*."""
        self.rings.append(ring)
        return lambda: self.rings.remove(ring)

    def take_snapshot(self, models, ring, done):
        """Tell who the sources are."""
        places = [SourcePosition(source, 0, 0) for source in self.sources()]
        done(ReadySnapshot(encode_snapshot(Snapshot(places, {}, 0)), ring.next_index, ring.before))

    def status(self):
        """Say nothing."""
        return {}

    def append(self, content, events):
        """Add an entry to every stream."""
        for ring in self.rings:
            ring.append(content, events)


class Rank:
    """A job: a stream of its own, offered to the end that it connects to."""

    def __init__(self, network, target):
        self.wire = network.connect(target, "rank:1")
        self.source = Source.detect({}, run_id="run")
        self.streams = Streams(lambda: [self.source])
        budget = RingBudget(1 << 30, 1e9, monotonic_s=network.clock.monotonic)
        self.server = StreamServer(self.streams, self.wire.send, connects=True, budget=budget)
        self.server.hold(Filter())
        self.encoder = RowEncoder()
        self.logged = 0
        self._append([SourceStarted(identity=self.source.to_wire(), span_id=0, step=-1)])

    def log(self, count):
        """Log so many events, in one frame."""
        self._append([Tick() for _ in range(count)])

    def _append(self, events):
        schemas, rows = {}, []
        for offset, event in enumerate(events):
            schema, row = self.encoder.encode(event, offset)
            schemas[schema.number] = schema.entry
            rows.append(row)
        first, last = self.logged, self.logged + len(events) - 1
        frame = encode_frame(self.source.id, first, last, dropped={}, schemas=schemas.values(), rows=rows)
        self.streams.append(frame, len(events))
        self.logged += len(events)

    def turn(self, now_s):
        """Do what is due."""
        if self.wire.renew(now_s):
            self.server.begin_again()
        for address, parts, _ in self.wire.receive(1000):
            self.server.receive(address, parts, now_s, 0)
        self.server.tick(now_s)
        self.server.pump()


class Forwarder:
    """What `Forwarder` does between its two sockets."""

    def __init__(self, network, name, target, wire=None):
        self.network, self.name = network, name
        self.wire = wire or network.connect(target, "rank:1")
        self.sources = {}
        self.streams = Streams(lambda: self.sources.values())
        budget = RingBudget(1 << 30, 1e9, monotonic_s=network.clock.monotonic)
        self.server = StreamServer(self.streams, self.wire.send, connects=True, budget=budget)
        self.server.hold(Filter())
        self.receiver = Receiver(self, network.sender_of(name), monotonic_s=network.clock.monotonic)

    def on_entry(self, producer, entry):
        """Send it on."""
        if isinstance(entry, LossEntry):
            self.streams.append(LostRange(entry.source_id, entry.first_seq, entry.last_seq, entry.reason), 0)
        else:
            self.streams.append(entry.frame, entry.events)

    def on_introduction(self, producer, snapshot):
        """Need not know: the streams say it."""

    def on_heard(self, producer, message):
        """Need not know."""

    def turn(self, now_s):
        """Do what is due."""
        if self.wire.renew(now_s):
            self.server.begin_again()
        self.network.deliver(self.name, self.receiver.receive)
        for address, parts, _ in self.wire.receive(1000):
            self.server.receive(address, parts, now_s, 0)
        self.receiver.tick()
        self.server.tick(now_s)
        self.server.pump()


class Collector:
    """What `Collector` does between its two sockets; its log is the list of frames that it wrote."""

    def __init__(self, network, log):
        self.network, self.log, self.events = network, log, []
        self.collection = Collection(
            Source.detect({}, run_id="collectors", role="collector"),
            [self.events.append],
            None,
            SourceRegistry(),
            read_rule=None,
            monotonic_s=network.clock.monotonic,
        )
        for frame in log:  # as `restore` does
            decoded = self.collection._decoder.decode(frame)
            self.collection._learn(decoded, self.collection._state(decoded, network.clock.now_s))
        streams = self.collection.relay
        forward = streams.add

        def add(frame, data, events):
            if frame.source.role != "collector":
                log.append(data)
            forward(frame, data, events)

        streams.add = add
        self.receiver = Receiver(self.collection, network.sender_of("ranks"), monotonic_s=network.clock.monotonic)
        budget = RingBudget(1 << 30, 1e9, monotonic_s=network.clock.monotonic)
        self.server = StreamServer(streams, network.sender_of("viewers"), budget=budget)

    def turn(self, now_s):
        """Do what is due."""
        self.network.deliver("ranks", self.receiver.receive)
        self.network.deliver("viewers", lambda came: [self.server.receive(*one[:2], now_s, 0, one[2]) for one in came])
        self.receiver.tick()
        self.collection.tick(self.receiver.producers.values())
        self.server.tick(now_s)
        self.server.pump()


class Viewer:
    """A viewer that wants everything, and what it got of each stream."""

    def __init__(self, network):
        self.wire = network.connect("viewers", "viewer:1")
        self.wire.endpoint = "simulated"
        self.taken = {}
        self.session = ViewerSession(
            self.wire, wanted=Filter(), models=(), take=self._take, introduce=lambda snapshot: None
        )

    def _take(self, entry):
        self.taken.setdefault(entry.stream, []).append(entry.index)

    def turn(self, now_s):
        """Do what is due."""
        self.session.tick()
        while self.session.receive():
            pass


class Protocol(RuleBasedStateMachine):
    """Chance plays the network and the operator."""

    @initialize()
    def start(self):
        """Start everything."""
        self.network = Network()
        self.time_before = _attachment.time
        _attachment.time = _receiver.time = self.network.clock
        self.log = []
        self.collector = Collector(self.network, self.log)
        self.forwarder = Forwarder(self.network, "node", "ranks")
        self.ranks = [Rank(self.network, "ranks"), Rank(self.network, "node")]
        self.viewer = Viewer(self.network)
        self.intruder = self.network.connect("viewers", "rank:1")
        self.stolen = []
        self.forwarders = 1

    def teardown(self):
        """Let the network be good; within a minute everything must have come, once and in order."""
        if not hasattr(self, "network"):
            return
        try:
            for _ in range(int(RECOVERY_S / LAST_TURNS_S)):
                self._turn(LAST_TURNS_S)
                if self._is_settled():
                    break
            for rank in self.ranks:
                state = self.collector.collection.registry.states[rank.source.id]
                seqs = [event.seq for event in self.collector.events if event.source.id == rank.source.id]
                assert seqs == list(range(rank.logged))
                assert (state.tracker.missing, state.tracker.next_seq) == (0, rank.logged)
                assert rank.server.is_drained
            assert self.viewer.session.consumer.is_introduced
            (stream,) = [stream.ring for stream in self.collector.server._streams.values()]
            assert self.viewer.session.consumer.due == stream.next_index
        finally:
            _attachment.time = _receiver.time = self.time_before

    def _is_settled(self):
        states, rings = self.collector.collection.registry.states, list(self.collector.server._streams.values())
        ends = [states[rank.source.id].tracker.next_seq for rank in self.ranks if rank.source.id in states]
        return (
            ends == [rank.logged for rank in self.ranks]
            and all(rank.server.is_drained for rank in self.ranks)
            and self.viewer.session.consumer.is_introduced
            and [self.viewer.session.consumer.due] == [stream.ring.next_index for stream in rings]
        )

    def _turn(self, length_s=TURN_S):
        clock = self.network.clock
        clock.now_s += length_s
        for node in (*self.ranks, self.forwarder, self.collector, self.viewer):
            node.turn(clock.now_s)
        for parts in self.intruder.down:
            self.stolen.append(decode(parts))
        self.intruder.down.clear()

    wires = st.integers(0, 4)
    places = st.integers(0, 15)

    def _wire(self, number):
        return self.network.wires[number % len(self.network.wires)]

    @rule(rank=st.integers(0, 1), count=st.integers(1, 5))
    def log_events(self, rank, count):
        """Let a rank log a few events."""
        self.ranks[rank].log(count)

    @rule(turns=st.integers(1, 20))
    def time_passes(self, turns):
        """Let up to two seconds pass."""
        for _ in range(turns):
            self._turn()

    def _queue(self, wire, *, is_up):
        return self._wire(wire).up if is_up else self._wire(wire).down

    @rule(wire=wires, is_up=st.booleans(), place=places)
    def message_is_lost(self, wire, is_up, place):
        """Lose one message."""
        queue = self._queue(wire, is_up=is_up)
        if queue:
            del queue[place % len(queue)]

    @rule(wire=wires, is_up=st.booleans(), place=places, again=places)
    def message_is_repeated(self, wire, is_up, place, again):
        """Send one message again, at any place."""
        queue = self._queue(wire, is_up=is_up)
        if queue:
            queue.insert(again % (len(queue) + 1), queue[place % len(queue)])

    @rule(wire=wires, is_up=st.booleans(), place=places)
    def message_is_overtaken(self, wire, is_up, place):
        """Let one message be overtaken by the others."""
        queue = self._queue(wire, is_up=is_up)
        if queue:
            queue.append(queue.pop(place % len(queue)))

    @rule(wire=wires)
    def connection_is_cut(self, wire):
        """Lose what is on its way, and connect again under another address."""
        self._wire(wire).cut()

    @rule(wire=wires)
    def connection_dies(self, wire):
        """Let nothing pass any more, and tell nobody."""
        self._wire(wire).is_dead = True

    @rule(wire=wires, generation=st.integers(1, 3))
    def key_is_replaced(self, wire, generation):
        """Connect again with another key of the same role."""
        wire = self._wire(wire)
        if wire is not self.intruder:
            wire.user = f"{wire.user.partition(':')[0]}:{generation}"
            wire.cut()

    @rule()
    def collector_restarts(self):
        """Start the collector again with its log; the connections to it are made anew."""
        self.collector = Collector(self.network, self.log)
        for wire in self.network.wires:
            if wire.target in {"ranks", "viewers"}:
                wire.cut()

    @rule()
    def forwarder_restarts(self):
        """Start the forwarder again, with an empty ring."""
        self.forwarders += 1
        self.forwarder.wire.cut()
        self.forwarder = Forwarder(self.network, "node", "ranks", self.forwarder.wire)
        for wire in self.network.wires:
            if wire.target == "node":
                wire.cut()

    @rule(first=st.sampled_from([Hello, Welcome, Ping]))
    def intruder_tries(self, first):
        """Use the key of a rank to watch, by any beginning."""
        greeting = first(1) if first is Ping else first(PROTOCOL_VERSION, VIEWER_END, "intruder", "")
        for message in (greeting, Subscribe(1, ["*"], 1, None, [], "*", 0, 1 << 20)):
            self.intruder.up.append(encode(message))

    @invariant()
    def each_once_and_in_order(self):
        """Check that a collector hears each event of a source once, in order, without a hole."""
        if not hasattr(self, "network"):
            return
        for rank in self.ranks:
            seqs = [event.seq for event in self.collector.events if event.source.id == rank.source.id]
            assert seqs == list(range(len(seqs)))
        for indexes in self.viewer.taken.values():
            assert indexes == list(range(indexes[0], indexes[0] + len(indexes)))

    @invariant()
    def nobody_is_served_beyond_its_role(self):
        """Check that the intruder was sent nothing of the stream."""
        if hasattr(self, "network"):
            assert not [message for message in self.stolen if isinstance(message, CONFIDENTIAL)]
            assert all(viewer.user.startswith("viewer:") for viewer in self.collector.server.viewers.values())

    @invariant()
    def memory_is_bounded(self):
        """Check the bounds of what is held out of order and of the peers that are remembered."""
        if not hasattr(self, "network"):
            return
        consumers = [
            producer.consumer
            for end in (self.collector, self.forwarder)
            for producer in end.receiver.producers.values()
        ]
        assert all(consumer._held_bytes <= WINDOW_BYTES for consumer in consumers)
        assert len(self.collector.receiver._by_id) <= 1 + self.forwarders
        assert len(self.forwarder.receiver._by_id) <= 1


def play(seed):
    """Play the schedule of *seed*: up to thirty steps that chance chooses, then the recovery."""
    rng = random.Random(seed)
    machine = Protocol()
    machine.start()
    try:
        for _ in range(rng.randint(1, 30)):
            step, arguments = rng.choice(STEPS)
            getattr(machine, step)(*(rng.choice(values) for values in arguments))
            machine.each_once_and_in_order()
            machine.nobody_is_served_beyond_its_role()
            machine.memory_is_bounded()
    finally:
        machine.teardown()


WIRES, PLACES, FLAGS = range(5), range(16), (False, True)
STEPS = [
    ("log_events", [range(2), range(1, 6)]),
    ("time_passes", [range(1, 21)]),
    ("message_is_lost", [WIRES, FLAGS, PLACES]),
    ("message_is_repeated", [WIRES, FLAGS, PLACES, PLACES]),
    ("message_is_overtaken", [WIRES, FLAGS, PLACES]),
    ("connection_is_cut", [WIRES]),
    ("connection_dies", [WIRES]),
    ("key_is_replaced", [WIRES, range(1, 4)]),
    ("collector_restarts", []),
    ("forwarder_restarts", []),
    ("intruder_tries", [(Hello, Welcome, Ping)]),
]


class TestSchedules:
    """Whatever the schedule, each event comes once and in order, nobody is served beyond its role, and all return."""

    @pytest.mark.hang_guard(900)
    def test_of_seeds(self, scale, seed):
        """Holds for schedules of a seeded generator, which cost little: each failure names its seed."""
        for number in range(seed, seed + max(200, round(10_000 * scale))):
            try:
                play(number)  # checks all of it after every step
            except Exception as error:
                raise AssertionError(f"play({number}) failed") from error

    @pytest.mark.hang_guard(300)
    def test_of_chance(self, scale):
        """Holds for schedules that Hypothesis chooses, and makes shorter where one fails."""
        settings = hypothesis.settings(max_examples=max(20, round(300 * scale)), stateful_step_count=30, deadline=None)
        run_state_machine_as_test(Protocol, settings=settings)  # fails by the machine's invariants


FAULTS = [
    *[("message_is_lost", (wire, is_up, 0)) for wire in range(2) for is_up in FLAGS],
    *[("message_is_repeated", (wire, is_up, 0, 1)) for wire in range(2) for is_up in FLAGS],
    *[("message_is_overtaken", (wire, is_up, 0)) for wire in range(2) for is_up in FLAGS],
    *[("connection_is_cut", (wire,)) for wire in range(2)],
    *[("connection_dies", (wire,)) for wire in range(2)],
    ("key_is_replaced", (0, 2)),
    ("collector_restarts", ()),
]
"""All that can happen to one rank, one collector and one viewer, whose wires are 0 and 1."""


class Small(Protocol):
    """One rank, one collector and one viewer."""

    def start(self):
        """Start them."""
        self.network = Network()
        self.time_before = _attachment.time
        _attachment.time = _receiver.time = self.network.clock
        self.log, self.stolen, self.forwarders = [], [], 0
        self.collector = self.forwarder = Collector(self.network, self.log)
        self.ranks = [Rank(self.network, "ranks")]
        self.viewer = Viewer(self.network)
        self.intruder = self.network.connect("nowhere")

    def collector_restarts(self):
        """Start the collector again."""
        super().collector_restarts()
        self.forwarder = self.collector

    def _turn(self, length_s=TURN_S):
        self.network.clock.now_s += length_s
        for node in (*self.ranks, self.collector, self.viewer):
            node.turn(self.network.clock.now_s)

    def queues(self):
        """Return what is on its way and which connections are good: what a fault may change."""
        wires = self.network.wires
        return [(wire.address, wire.user, wire.is_dead, list(wire.up), list(wire.down)) for wire in wires]


def play_small(turns, faults):
    """Play *faults*, each after so many of *turns*; return whether each of them changed something."""
    machine = Small()
    machine.start()
    try:
        for count, (step, arguments) in zip(turns, faults, strict=True):
            for turn in range(count):
                machine._turn()
                if turn % 3 == 0:
                    machine.ranks[0].log(1)
            before, collector = machine.queues(), machine.collector
            getattr(machine, step)(*arguments)
            if before == machine.queues() and collector is machine.collector:
                return False
            machine.each_once_and_in_order()
            machine.memory_is_bounded()
    finally:
        machine.teardown()
    return True


class TestSmall:
    """One rank, one collector, one viewer: every schedule of one fault, and of two, at any of the first turns."""

    @pytest.mark.hang_guard(900)
    def test_every_fault_and_every_two(self, scale):
        """
        Every fault at each of the first turns, and every two faults, leave each event once, in order, at both ends.
        """
        most = 12 if scale >= 1 else 2
        played = 0
        for first, second in itertools.product(range(1, most), range(most)):
            for one in FAULTS:
                if second == 0:
                    if not play_small([first], [one]):
                        continue
                    played += 1
                for other in FAULTS:
                    try:
                        played += play_small([first, second], [one, other])
                    except Exception as error:
                        raise AssertionError(f"play_small([{first}, {second}], [{one}, {other}]) failed") from error
        assert played > 50


class TestSilence:
    def test_dead_connection_is_back_within_eight_beats(self):
        """A rank whose connection died is heard again within eight seconds and a greeting."""
        machine = Protocol()
        machine.start()
        try:
            for _ in range(40):
                machine._turn()
            machine.connection_dies(0)
            machine.ranks[0].log(3)
            assert machine.network.wires[0].is_dead or machine.network.wires[1].is_dead
            for _ in range(int((RENEW_AFTER_S + 2) / TURN_S)):
                machine._turn()
            assert sum(event.source.id == machine.ranks[0].source.id for event in machine.collector.events) == 4
        finally:
            machine.teardown()
