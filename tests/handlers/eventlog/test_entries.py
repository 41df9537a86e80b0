"""Headers, gaps and endings."""

from __future__ import annotations

import contextlib
import time

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trackside.events import ConfigError, DecodeError, Source, clock
from trackside.handlers.eventlog._format import (
    Ending,
    Loss,
    decode_ending,
    decode_header,
    decode_loss,
    encode_ending,
    encode_header,
    encode_loss,
)

DECODERS = (decode_header, decode_loss, decode_ending)


class TestHeader:
    def test_identity(self):
        """A header gives back the source and the part."""
        source = Source(run_id="r", rank=7, metadata={"owner": "me"}, perf_tags=("a", "b"))
        header = decode_header(encode_header(source, 4))
        assert (header.source, header.part) == (source, 4)

    def test_clocks(self):
        """It holds a reading of both clocks at the time it was written."""
        with clock.installed(lambda: 500):
            before_ns = time.time_ns()
            anchor = decode_header(encode_header(Source(), 0)).anchor
        assert anchor.mono_ns == 500
        assert before_ns <= anchor.wall_ns <= time.time_ns()

    def test_no_clocks(self):
        """A header without them is read all the same."""
        entry = msgpack.unpackb(encode_header(Source(), 0))
        entry["anchor"] = {"mono_ns": "soon"}
        assert decode_header(msgpack.packb(entry)).anchor == clock.Anchor(0, 0, 0)

    def test_too_large(self):
        """An identity that no reader would accept is refused when it is given."""
        with pytest.raises(ConfigError, match="metadata"):
            encode_header(Source(metadata={"note": "x" * 70_000}), 0)

    def test_not_plain(self):
        """So is one that holds objects that are no data."""
        with pytest.raises(ConfigError, match="source"):
            encode_header(Source(metadata={"note": object()}), 0)

    def test_of_something_else(self):
        """Another writer's record is not taken for a header."""
        with pytest.raises(DecodeError):
            decode_header(msgpack.packb({"format": "other", "part": 0, "source": {}}))


class TestLoss:
    def test_round(self):
        """A gap record gives back the number of lost events, why they were lost and since when."""
        loss = Loss(12, 345, "No space left on device", 678)
        assert decode_loss(encode_loss(loss)) == loss

    def test_incomplete(self):
        """A gap record without a number is malformed."""
        with pytest.raises(DecodeError):
            decode_loss(msgpack.packb({"events": "many"}))

    @pytest.mark.parametrize("field", ["events", "bytes", "since_ns"])
    @pytest.mark.parametrize("value", [-1, 1 << 63, True, 1.0, "1", None], ids=repr)
    def test_out_of_range(self, field, value):
        """So is one that claims more losses than possible."""
        entry = {"events": 1, "bytes": 1, "since_ns": 1, "reason": "", field: value}
        with pytest.raises(DecodeError):
            decode_loss(msgpack.packb(entry))


class TestEnding:
    @pytest.mark.parametrize("is_continued", [True, False])
    def test_round(self, is_continued):
        """An end says whether another part follows."""
        assert decode_ending(encode_ending(Ending(is_continued))) == Ending(is_continued)


class TestHostile:
    @given(st.binary(max_size=200))
    def test_bytes(self, payload):
        """Bytes at random raise nothing but DecodeError."""
        for decode in DECODERS:
            with contextlib.suppress(DecodeError):  # any other error fails the test
                decode(payload)

    @pytest.mark.parametrize(
        "payload",
        [
            msgpack.packb([]),
            msgpack.packb(msgpack.ExtType(1, b"")),
            b"\x91" * 100_000,
            b"\xdf\xff\xff\xff\xff",
            b"\xa1\xff",
            bytes(70_000),
        ],
        ids=["list", "extension", "deep", "endless map", "not text", "large"],
    )
    def test_named(self, payload):
        """A value that msgpack allows and an entry does not is a DecodeError."""
        for decode in DECODERS:
            with pytest.raises(DecodeError):
                decode(payload)
