from __future__ import annotations

import pytest

from trackside.handlers.zeromq import PeerLimits, _receiver
from trackside.handlers.zeromq._protocol import (
    FORGET_AFTER_S,
    PROTOCOL_VERSION,
    SOURCE_END,
    VIEWER_END,
    Beat,
    FrameEntry,
    Hello,
    Ping,
    Subscribe,
    Subscribed,
    decode,
    encode,
)
from trackside.handlers.zeromq._receiver import Receiver
from trackside.handlers.zeromq._session import Sent


class World:
    """A receiver, the entries it got, the messages it sent, and a clock."""

    def __init__(self, **options):
        self.now_s = 0.0
        self.sent, self.entries, self.heard = [], [], []
        # Processor time passes and this clock does not: no allowance would refill.
        options = {"limits": PeerLimits(extra_cpu_s=1e9), **options}
        self.receiver = Receiver(self, self.send, monotonic_s=lambda: self.now_s, **options)

    def send(self, address, parts):
        """Keep the message."""
        self.sent.append((address, decode(parts)))
        return Sent.QUEUED

    def on_entry(self, producer, entry):
        """Keep an entry."""
        self.entries.append(entry.frame)

    def on_introduction(self, producer, snapshot):
        """Ignore it."""

    def on_heard(self, producer, message):
        """Note that a message arrived."""
        self.heard.append(message)

    def say(self, address, message, user=""):
        """Let *address* send *message*; return the kinds of the answers."""
        before = len(self.sent)
        self.receiver.receive([(address, encode(message), user)])
        return [type(answer).__name__ for to, answer in self.sent[before:] if to == address]

    def asked(self, address):
        """Return the last subscription sent to *address*."""
        return next(answer for to, answer in reversed(self.sent) if to == address and type(answer) is Subscribe)

    def begin(self, address, name):
        """Let a sender greet and be subscribed to."""
        self.say(address, hello(name))
        request = self.asked(address).request
        self.say(address, Subscribed(request, f"stream of {name}", 0, 0, False, 1, 0, 0))


def hello(name, end=SOURCE_END, version=PROTOCOL_VERSION):
    """Return a greeting."""
    return Hello(version, end, name, "somebody")


class TestGreeting:
    def test_is_subscribed_to(self):
        """A sender that greets is welcomed and asked for all its events, from the oldest on."""
        world = World()

        assert world.say(b"a", hello("one")) == ["Welcome", "Subscribe"]
        assert (world.asked(b"a").names, world.asked(b"a").resume_stream) == (["*"], "*")

    @pytest.mark.parametrize(
        ("greeting", "user"),
        [
            (hello("one", version=99), ""),
            (hello("one", end=VIEWER_END), ""),
            (hello("one"), "viewer:0123abcd"),
            (hello("one"), "control:0123abcd"),
        ],
    )
    def test_refused(self, greeting, user):
        """
        Other versions, viewers, and keys that may not send are refused.
        """
        world = World()

        assert world.say(b"a", greeting, user) == ["Refused"]
        assert world.receiver.producers == {}

    def test_too_many(self, monkeypatch):
        """Beyond the maximum number of senders, the next is asked to come again later."""
        monkeypatch.setattr(_receiver, "MAX_PRODUCERS", 1)
        world = World()
        world.say(b"a", hello("one"))

        assert world.say(b"b", hello("two")) == ["Refused"]

    def test_unknown_must_greet(self):
        """
        A peer that sends another message first is asked to begin again.
        """
        assert World().say(b"a", Ping(1)) == ["Reset"]

    def test_name_belongs_to_a_key(self):
        """No peer with another key takes over another's stream under the same name."""
        world = World()
        world.say(b"a", hello("one"), "rank:00000000")

        assert world.say(b"b", hello("one"), "rank:11111111") == ["Refused"]


class TestConnections:
    def test_goes_on_over_a_new_connection(self):
        """A sender that comes back from another address is asked for the next entry of the same stream."""
        world = World()
        world.begin(b"a", "one")
        world.say(b"a", FrameEntry("stream of one", 0, 0, 1, b"first"))

        world.say(b"b", hello("one"))

        asked = world.asked(b"b")
        assert (asked.resume_stream, asked.resume_index) == ("stream of one", 1)
        assert list(world.receiver.producers) == [b"b"]

    def test_who_greets_again_has_forgotten(self):
        """A sender that greets again over the same connection lost the request, and is asked again."""
        world = World()
        world.begin(b"a", "one")

        assert world.say(b"a", hello("one")) == ["Welcome", "Subscribe"]

    def test_forgotten_in_time(self):
        """A sender that is silent for long is forgotten completely."""
        world = World()
        world.begin(b"a", "one")
        world.now_s = FORGET_AFTER_S + 1

        for _ in range(10):
            world.receiver.tick()

        assert world.receiver.producers == {}

    def test_thousandth_sender_gets_a_small_window(self):
        """The more senders there are, the less each may have in transit."""
        world = World()
        for number in range(1000):
            world.say(b"%d" % number, hello(f"{number}"))

        assert world.asked(b"0").window_bytes == 4 << 20
        assert world.asked(b"999").window_bytes == 128 << 10


class TestClocks:
    @pytest.mark.parametrize(("senders", "most"), [(1, 16), (2000, 3)])
    def test_thousands_are_asked_less_often(self, senders, most):
        """Each is asked the time sixteen times at first: at once, or one after another if there are many."""
        world = World()
        for number in range(senders):
            world.begin(b"%d" % number, f"{number}")
        for _ in range(90):
            world.now_s += 0.05
            world.receiver.tick()

        asked = [message for to, message in world.sent if to == b"0" and type(message) is Ping]
        assert most - 1 <= len(asked) <= most


class TestLimits:
    def test_cut_sender_is_alive(self):
        """A sender beyond its limits is not read, and does not count as silent."""
        world = World(limits=PeerLimits(messages=1.0))
        world.begin(b"a", "one")
        for index in range(10):
            world.say(b"a", FrameEntry("stream of one", index, index, 1, b"x"))

        assert len(world.entries) < 10
        assert world.heard[-1] is None
        assert world.receiver.producers[b"a"].buckets.cut_messages > 0

    def test_what_was_cut_is_asked_for_again(self):
        """Once there is room again, the skipped entries are asked for."""
        world = World(limits=PeerLimits(messages=1.0))
        world.begin(b"a", "one")
        for index in range(10):
            world.say(b"a", FrameEntry("stream of one", index, index, 1, b"x"))
        world.now_s = 10.0
        world.say(b"a", Beat("stream of one", 10, 10, {}))
        for tick in range(20):
            world.now_s = 10.0 + tick * 0.05
            world.receiver.tick()

        assert "ReplayRequest" in [type(message).__name__ for _, message in world.sent]
