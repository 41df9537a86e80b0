"""The compiled decoder beside the one in Python: the same events, or a refusal, for the same bytes."""

from __future__ import annotations

import gc
import random
import sys
from itertools import chain
from pathlib import Path

import attrs
import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

import trackside
from blocks import least_growth
from implementations import needs_core
from trackside.events import (
    DecodeError,
    IterationEnded,
    IterationSpanEnded,
    ProfileSpanEnded,
    SpanEnded,
    UnknownEvent,
    own_fields,
)
from trackside.events._event import declared
from trackside.handlers.eventlog._format import Kind
from trackside.handlers.eventlog._scanner import Record, Scanner
from trackside.wire import FrameDecoder

sys.path.insert(0, str(Path(__file__).parent))

import fuzzing

pytestmark = needs_core

DATA = Path(__file__).parents[1] / "data"
RANDOM = st.randoms(use_true_random=False)


@trackside.event("tests.compiled.decoded")
class Decoded(trackside.Event):
    """An event whose fields admit several types."""

    number: float = 0.5
    either: int | str | None = None
    texts: list[str] = attrs.field(factory=list)
    totals: dict[str, float] | None = None
    whatever: object = None


@trackside.event("tests.compiled.doubled")
class Doubled(trackside.Event):
    """An event whose class has an initializer of its own."""

    number: int

    def __init__(self, number, **envelope):
        self.__attrs_init__(number=2 * number, **envelope)


def both(data):
    """Return the outcomes of the compiled decoder and of the one in Python."""
    return fuzzing.outcome(FrameDecoder(), data), fuzzing.outcome(fuzzing.pure_decoder(), data)


def checked_same(data):
    """Assert that both decoders return the same for *data*; return whether that is a frame."""
    compiled, pure = both(data)
    assert compiled == pure
    return compiled is not None


def frame(*rows, names=None, name="tests.compiled.decoded"):
    """Return a frame of *rows*, each given by its fields, of events of one type."""
    names = own_fields(declared()[name]) if names is None else names
    numbered = [[0, offset, 9, 0, -1, *fields] for offset, fields in enumerate(rows)]
    return msgpack.packb([2, "s", 0, len(rows) - 1, {}, [[0, name, 1, names]], numbered])


def is_plain(data):
    """Return whether the compiled decoder makes all events of *data* by itself."""
    decoder = FrameDecoder()
    decoder.decode(data)  # learns the type
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("trackside.wire._decoder.RowDecoder.decode_all", None)
        patch.setattr("trackside.wire._decoder._decode_rows", None)
        try:
            decoder.decode(data)
        except TypeError:
            return False
    return True


class TestSame:
    @given(RANDOM)
    def test_valid(self, rng):
        """Both decoders agree on frames of registered types, whose values are nearly all of the declared types."""
        checked_same(fuzzing.plausible(rng))

    @given(RANDOM)
    def test_damaged(self, rng):
        """They agree on frames that were truncated, whose bytes were changed, or that were put together of two."""
        corpus = [fuzzing.plausible(rng), fuzzing.plausible(rng)]
        checked_same(fuzzing.mutated(rng, corpus))
        checked_same(corpus[0][: rng.randrange(len(corpus[0]) + 1)])

    @given(RANDOM)
    def test_composed(self, rng):
        """They agree on data of the shape of a frame, with any value in any place of it."""
        checked_same(fuzzing.composed(rng))

    @given(st.binary(max_size=200))
    def test_bytes(self, data):
        """They agree on any bytes, which are no frame, and on any in the place of rows."""
        assert not checked_same(data)
        checked_same(frame()[:-1] + data)

    @pytest.mark.parametrize("extension", [b"\xd4\x05\0", b"\xd6\xff\0\0\0\7", b"\xca\x3f\x80\0\0"], ids=bytes.hex)
    def test_seldom_written(self, extension):
        """They agree on a row with an extension, a time or a double of single precision."""
        data = frame((0.5, None, [], None, None))
        assert checked_same(data[:-1] + extension)

    @pytest.mark.parametrize("count", [1, 2, 20])
    def test_own_initializer(self, count):
        """They agree on a class with an initializer of its own, which made the value that is read."""
        data = frame(*[(3,)] * count, name="tests.compiled.doubled")
        assert checked_same(data)
        assert [event.number for event in FrameDecoder().decode(data).events] == [3] * count

    def test_golden_frame(self):
        """They agree on the recorded frame."""
        assert checked_same((DATA / "frame-v2.msgpack").read_bytes())

    def test_golden_log(self):
        """They agree on each frame of the recorded log."""
        data = (DATA / "eventlog-v2.tslog").read_bytes()
        scanner = Scanner(lambda offset, size: data[offset : offset + size])
        records = [found for found in chain(scanner.scan(), scanner.finish()) if isinstance(found, Record)]
        frames = [record.payload for record in records if record.kind == Kind.FRAME]

        assert frames
        assert all(checked_same(payload) for payload in frames)

    @pytest.mark.parametrize("name", [name for name in declared() if name.startswith("trackside.")])
    def test_every_type(self, name):
        """
        They agree on each type of events, with a hundred rows of values of the declared types, alone and together.
        """
        rng = random.Random(1)
        cls = declared()[name]
        hints = [fuzzing.hints_of(cls)[field] for field in own_fields(cls)]
        rows = [[fuzzing.fitting(rng, hint) for hint in hints] for _ in range(100)]
        read = [row for row in rows if checked_same(frame(row, name=name))]
        assert len(read) > 10 or name == "trackside.source.started"  # a random identity is none
        assert checked_same(frame(*read, name=name))


class TestPlain:
    """The rows that become events without the decoder in Python."""

    @pytest.mark.parametrize(
        "fields",
        [
            (0.5, None, [], None, None),
            (float("nan"), 2**64 - 1, ["a", "\u20ac"], None, {"a": [1, {"b": b""}]}),
            (-0.0, "x" * 65_536, [""], {"a": 0.5}, fuzzing.nested(32)),
        ],
    )
    def test_plain(self, fields):
        """A row whose values are of the declared types, or any values where Any is declared."""
        assert is_plain(frame(fields))

    @pytest.mark.parametrize(
        "fields",
        [
            (1, None, [], None, None),
            (0.5, 0.5, [], None, None),
            (0.5, True, [], None, None),
            (0.5, None, ["a", 1], None, None),
            (0.5, None, None, None, None),
            (0.5, None, [], {"a": 1}, None),
        ],
        ids="whole-for-float float-for-whole truth element missing-list entry".split(),
    )
    def test_not_plain(self, fields):
        """A row with a value of another type is left to Python, and those around it stay in their order."""
        plain = (0.5, None, [], None, None)
        assert not is_plain(frame(fields))
        assert checked_same(frame(plain, fields, plain, plain, fields))

    @pytest.mark.parametrize("names", [("number",), ("either", "number", "new"), ()])
    def test_other_version(self, names):
        """Fields of another version of the class: missing ones have their defaults, and new ones are ignored."""
        assert checked_same(frame(*[[7, 0.5, 8][: len(names)]] * 3, names=names))

    def test_lacking(self):
        """A field that a row lacks has its default."""
        (event,) = FrameDecoder().decode(frame((7,), names=["duration_ns"], name="trackside.iteration.ended")).events
        assert (event.at_ns, event.step, event.duration_ns, event.kind, event.loss) == (9, -1, 7, "training", None)

    def test_too_deep(self):
        """A value nested more than 32 deep makes the frame invalid."""
        with pytest.raises(DecodeError, match="deeper"):
            FrameDecoder().decode(frame((0.5, None, [], None, fuzzing.nested(33))))

    def test_unknown(self):
        """Rows of a type that was not declared are unknown events."""
        (event,) = FrameDecoder().decode(frame((1,), names=["a"], name="acme.unheard")).events
        assert (type(event), event.fields) == (UnknownEvent, {"a": 1})

    def test_untracked(self):
        """The garbage collector tracks no event of scalars, and each that holds a list."""
        (holder,) = FrameDecoder().decode(frame((0.5, None, [], None, None))).events
        (scalars,) = FrameDecoder().decode(frame((7,), names=["duration_ns"], name="trackside.iteration.ended")).events
        assert (gc.is_tracked(holder), gc.is_tracked(scalars)) == (True, False)


@pytest.mark.skipif(msgpack.version < (1, 2, 1), reason="msgpack keeps what it read of malformed bytes until 1.2.1")
def test_leaks_nothing():
    """A thousand frames, read and refused, leave no block of memory behind."""
    rng = random.Random(2)
    corpus = [fuzzing.plausible(rng) for _ in range(300)]
    corpus += [fuzzing.mutated(rng, corpus) for _ in range(700)]
    decoder = FrameDecoder()

    def read():
        for data in corpus:
            fuzzing.outcome(decoder, data)

    # The compiled core keeps the memory of up to 1,024 events of each of these classes for the next ones.
    for cls in (IterationEnded, SpanEnded, IterationSpanEnded, ProfileSpanEnded):
        given = {} if cls is IterationEnded else {"name": "x"}
        assert len([cls(duration_ns=1, **given) for _ in range(1_100)]) == 1_100
    # Numbers are kept, too, a few more with each reading until there is no room for more: 45 of them where spans ended.
    assert least_growth(read, rounds=100) < 50
