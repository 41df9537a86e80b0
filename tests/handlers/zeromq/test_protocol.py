"""The messages: encoding, decoding and validation."""

from __future__ import annotations

import attrs
import msgpack
import pytest

from trackside.events import DecodeError
from trackside.handlers.zeromq import _protocol as protocol
from trackside.handlers.zeromq._protocol import (
    Ack,
    Beat,
    Chunk,
    FrameEntry,
    Hello,
    LossEntry,
    Ping,
    Reset,
    Subscribe,
    Verb,
    decode,
    encode,
)

MESSAGES = [
    Hello(2, "viewer", "0123", "top on node-1"),
    protocol.Welcome(2, "source", "4567", "train.py on node-2"),
    Reset(),
    protocol.Refused(3, "busy", "64 viewers are here already"),
    protocol.Bye("closed"),
    Ping(-5),
    protocol.Pong(1, 2, 3),
    Beat("s", 3, 40, {"counts": {"dropped": 0}, "open_spans": {"main": [1, "load", 5]}}),
    Subscribe(1, ["*"], 1, ["every", 10], ["SpanBuilder"], "s", 2, 1 << 20),
    protocol.Subscribed(1, "s", 2, 3, True, 1 << 20, 600_000, 2),
    protocol.Fetch(1, 0, 4),
    Chunk(1, 0, b"\x00\xff"),
    FrameEntry("s", 5, 100, 64, b"frame"),
    LossEntry("s", 5, 100, "source", 7, 9, "the ring was too small"),
    protocol.Skipped("s", 5, 9, 300),
    Ack("s", 5),
    protocol.ReplayRequest("s", 5),
    Verb(1, "priority", ["rank:3"], {"level": "PROFILE"}),
    protocol.Result(1, "source", True, {"published": 4}),
]


class TestThereAndBack:
    @pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
    def test_same(self, message):
        """An encoded message is decoded unchanged."""
        assert decode(encode(message)) == message

    def test_all(self):
        """Every kind of message is among these."""
        assert {type(message) for message in MESSAGES} == set(protocol.Message.__subclasses__())

    def test_lone_surrogate(self):
        """A text with a lone surrogate, as of a file name that is no UTF-8, arrives with an escape in its place."""
        assert decode(encode(Hello(2, "viewer", "0123", "train\udcff.py"))).text == r"train\udcff.py"


class TestNotBelieved:
    @pytest.mark.parametrize(
        "parts",
        [
            [],
            [b""],
            [b"\xc1"],
            [b"a", b"b", b"c"],
            [msgpack.packb({})],
            [msgpack.packb([])],
            [msgpack.packb([99])],
            [msgpack.packb([True])],
            [msgpack.packb([3, "more"])],
            [msgpack.packb([6, "soon"])],
            [msgpack.packb([6, 1 << 62])],
            [msgpack.packb([16, "s", -1])],
            [msgpack.packb([16, "s" * 1025, 1])],
            [msgpack.packb([8, "s", 0, 0, {1: 2}])],
            [msgpack.packb([8, "s", 0, 0, []])],
            [msgpack.packb([9, 1, ["*"] * 65, 1, None, [], "", 0, 0])],
            [msgpack.packb([9, 1, [3], 1, None, [], "", 0, 0])],
            [msgpack.packb([10, 1, "s", 0, 0, 1, 0, 0, 0])],
            [msgpack.packb([13, "s", 0, 0, 1])],
            [msgpack.packb([12, 1, 0]), bytes((1 << 20) + 1)],
            [*encode(Ping(1)), b"a body that it has not"],
            [msgpack.packb([5, "x" * (64 << 10)])],
            [msgpack.packb([5, msgpack.ExtType(1, b"")])],
        ],
        ids=lambda parts: f"{len(parts)} parts of {sum(map(len, parts))} bytes",
    )
    def test_refused(self, parts):
        """Anything but a valid message is a DecodeError, and no other error."""
        with pytest.raises(DecodeError):
            decode(parts)

    def test_mutated(self, rng, scaled):
        """A message with bytes changed, cut or added is another message, or refused."""
        for _ in range(scaled(20_000)):
            parts = [bytearray(part) for part in encode(rng.choice(MESSAGES))]
            part = rng.choice(parts)
            for _ in range(rng.randrange(1, 4)):
                index = rng.randrange(len(part) + 1)
                part[index : index + rng.randrange(2)] = rng.randbytes(rng.randrange(3))
            try:
                message = decode([bytes(part) for part in parts])
            except DecodeError:
                continue
            assert attrs.asdict(message) == attrs.asdict(decode(encode(message)))

    def test_too_large_to_send(self):
        """A message that no reader would accept is not encoded."""
        with pytest.raises(ValueError, match="FrameEntry"):
            encode(FrameEntry("s", 0, 0, 1, bytes((1 << 20) + 1)))
