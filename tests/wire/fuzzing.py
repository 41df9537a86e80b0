"""
Feed a decoder bytes that no writer writes, in a process with little memory; started by `test_hostile.py`.

Prints one line of JSON: how many inputs were read and refused, which other errors were raised, the slowest input and
the growth.
"""

from __future__ import annotations

import json
import math
import random
import resource
import sys
import time
import types
import typing
from pathlib import Path

import attrs
import msgpack

from trackside.events import (
    CounterWindow,
    DecodeError,
    Heartbeat,
    IterationEnded,
    SourceStarted,
    SpanEnded,
    own_fields,
    process_source,
)
from trackside.events._event import declared
from trackside.events._fields import hints_of
from trackside.wire import FrameDecoder, RowEncoder, encode_frame, to_json

ROOM_BYTES = 160 << 20
MIB = 1 << 20
LEADS = bytes([0x00, 0x7F, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, *range(0xC0, 0xE0), 0xFF])
NAMES = ["trackside.iteration.ended", "trackside.source.started", "trackside.span.ended", "acme.x", "", "x" * 200]


def frame_of(*happened):
    encoder = RowEncoder()
    schemas, rows = {}, []
    for offset, one in enumerate(happened):
        schema, row = encoder.encode(one, offset)
        schemas[schema.number] = schema.entry
        rows.append(row)
    return encode_frame("s", 0, len(rows) - 1, dropped={}, schemas=schemas.values(), rows=rows)


def seeds():
    """Return well-formed frames to start from."""
    iteration = IterationEnded(duration_ns=7, loss=0.5)
    span = SpanEnded(span_id=3, parent_span_id=2, name="forward", duration_ns=7, attributes={"a": [1, {"b": None}]})
    window = CounterWindow(
        name="x", start_ns=0, end_ns=1, count=1, values={"p99": 0.5}, sketch=b"\0\1", total_count=1, total_sum=0.5
    )
    started = SourceStarted(identity=process_source().to_wire())
    golden = Path(__file__).parents[1] / "data" / "frame-v2.msgpack"
    small = [frame_of(iteration), frame_of(span, iteration), frame_of(window), frame_of(Heartbeat(sequence=1))]
    return [*small, *small, *small, frame_of(started), golden.read_bytes()]


def mutated(rng, corpus):
    """Return a frame with some bytes changed, moved, doubled or lost."""
    data = bytearray(rng.choice(corpus))
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        at, kind = rng.randrange(len(data) + 1), rng.randrange(7)
        if kind == 0 and at < len(data):
            data[at] = rng.randrange(256)
        elif kind == 1 and at < len(data):
            data[at] = rng.choice(LEADS)
        elif kind == 2:
            data[at:at] = rng.randbytes(rng.randrange(1, 6))
        elif kind == 3:
            del data[at : at + rng.randrange(1, 6)]
        elif kind == 4:
            data[at:at] = data[at : at + rng.randrange(1, 40)]
        elif kind == 5:
            data[at : at + 1] = rng.choice((b"\x91", b"\x81\xa1k")) * rng.choice((31, 33, 1000)) + b"\xc0"
        else:
            other = rng.choice(corpus)
            data[at:] = other[rng.randrange(len(other)) :]
    return bytes(data)


def nested(depth):
    """Return *depth* lists within one another."""
    value = None
    for _ in range(depth):
        value = [value]
    return value


def anything(rng, depth=0):
    """Return a random value."""
    kind = rng.randrange(11 if depth < 4 else 8)
    if depth == 0 and rng.random() < 0.02:
        return nested(rng.choice((31, 32, 33)))
    if kind < 3:
        return rng.choice((0, 1, 2, -1, 5, 127, 2**31, 2**62, 2**63, 2**64 - 1, -(2**63)))
    if kind < 8:
        return (None, True, rng.random(), "trackside", rng.randbytes(3))[kind - 3]
    if kind < 10:
        return [anything(rng, depth + 1) for _ in range(rng.randrange(4))]
    keys = ("a", "id", "rank", "metadata", b"x", 1, "perf_tags", "parent", "anchor", "source_id", "mono_ns")
    return {rng.choice(keys): anything(rng, depth + 1) for _ in range(rng.randrange(4))}


def composed(rng):
    """Return bytes of the shape of a frame, whose parts are mostly valid."""

    def mostly(value):
        return value if rng.random() < 0.97 else anything(rng)

    names = rng.choice((own_fields(IterationEnded), own_fields(SpanEnded), ("identity",), ("a", "b"), ()))
    schema = [mostly(0), mostly(rng.choice(NAMES)), mostly(1), mostly(list(names))]
    rows = [
        mostly([mostly(0), mostly(offset), mostly(9), mostly(0), mostly(-1), *(anything(rng) for _ in names)])
        for offset in range(rng.randrange(4))
    ]
    return msgpack.packb([mostly(2), mostly("s"), mostly(0), mostly(5), mostly({}), mostly([schema]), mostly(rows)])


WHOLE = (0, 1, -1, 127, 128, -32, -33, 255, 256, 2**31, 2**32, 2**53 + 1, 2**62, 2**63 - 1, 2**63, 2**64 - 1, -(2**63))
DOUBLES = (0.0, -0.0, 0.5, 1e308, 5e-324, math.inf, -math.inf, math.nan)
TEXTS = ("", "a", "forward", "p99", "\0", "é", "\u20ac" * 9, "\U0001f600", "x" * 31, "x" * 32, "x" * 33, "y" * 300)


def fitting(rng, hint, depth=0):
    """Return a random value of the type *hint*, as it is on the wire, or another value now and then."""
    if rng.random() < 0.03 or depth > 4:
        return anything(rng, depth)
    kind, arguments = typing.get_origin(hint) or hint, typing.get_args(hint)
    if kind in (typing.Union, types.UnionType):
        return fitting(rng, rng.choice(arguments), depth)
    if kind in (list, tuple, set, frozenset):
        return [fitting(rng, (arguments or (typing.Any,))[0], depth + 1) for _ in range(rng.choice((0, 1, 2, 3, 20)))]
    if kind is dict:
        wanted = (arguments or (str, typing.Any))[1]
        return {rng.choice(TEXTS): fitting(rng, wanted, depth + 1) for _ in range(rng.choice((0, 1, 2, 3, 20)))}
    scalars = {int: WHOLE, float: DOUBLES, str: TEXTS, bool: (True, False), bytes: (b"", b"\0\xff" * 20)}
    if kind in scalars:
        return rng.choice(scalars[kind])
    return None if kind is type(None) else anything(rng, depth)


OURS = ("trackside.", "tests.compiled.")
"""
The prefixes of the names of types that frames are made of: classes of other tests may keep references to their values.
"""


def plausible(rng):
    """Return a frame of a few rows of registered types, nearly all of whose values are of the declared types."""
    classes = rng.sample([cls for name, cls in declared().items() if name.startswith(OURS)], rng.randrange(1, 4))
    schemas, fields = [], []
    for number, cls in enumerate(classes):
        names = list(own_fields(cls))
        if rng.random() < 0.1:  # as another version may write it
            names = rng.sample(names, rng.randrange(len(names) + 1)) + ["new"] * rng.randrange(2)
        schemas.append([number, cls.wire_name, 1 if rng.random() < 0.1 else cls.version, names])
        fields.append([hints_of(cls).get(name, typing.Any) for name in names])
    rows, first = [], rng.choice((0, 1, 1000, 2**62 - 100))
    for offset in range(rng.choice((0, 1, 2, 3, 40))):
        number = rng.randrange(len(classes))
        envelope = [rng.choice((*WHOLE, 1_700_000_000_000_000_000)) for _ in range(3)]
        rows.append([number, offset, *envelope, *(fitting(rng, hint) for hint in fields[number])])
    dropped = {"trackside.counter.window": 3} if rng.random() < 0.2 else {}
    return msgpack.packb([2, "s", first, first + len(rows) - 1, dropped, schemas, rows])


def outcome(decoder, data):
    """Return all results of *decoder* for *data*, such that equal results are equal to the bit."""
    try:
        frame = decoder.decode(data)
    except DecodeError:
        return None
    events = []
    for event in frame.events:
        fields = [getattr(event, field.name) for field in attrs.fields(type(event))]
        events.append((type(event), event.source is frame.source, event.seq, repr(fields)))
    return repr(frame.source), frame.first_seq, frame.last_seq, frame.dropped, events


def pure_decoder():
    """Return a decoder that makes no use of the compiled core."""
    decoder = FrameDecoder()
    decoder._native = None
    return decoder


def huge(rng, corpus):
    """Return up to 1 MiB of one pattern."""
    pattern = rng.choice((rng.choice(LEADS).to_bytes(1, "big"), rng.randbytes(3), mutated(rng, corpus)))
    head = rng.choice((b"", b"\x97\x02\xa1s\x00\x00\x80\x90\xdc\xff\xff", b"\x97\x02\xa1s\x00\x00\x80\xdc\x04\x00"))
    return (head + pattern * (MIB // len(pattern)))[: rng.randrange(MIB)]


def inputs(seed, count):
    """Yield *count* inputs, the same for the same *seed*."""
    rng = random.Random(seed)
    corpus = seeds()
    for number in range(count):
        if number % 5000 == 4999:
            yield huge(rng, corpus)
        elif number % 10 == 0:
            yield rng.randbytes(rng.randrange(100))
        elif number % 10 < 5:
            yield composed(rng)
        else:
            yield mutated(rng, corpus)


def limit_memory():
    """Leave the process a little more memory than it has."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + ROOM_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def main(seed, count):
    """Decode the inputs, and print the results."""
    decoder = FrameDecoder()
    for data in seeds():
        decoder.decode(data)
    limit_memory()
    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    outcome = {"read": 0, "refused": 0, "starved": 0, "errors": [], "slowest_s": 0.0}
    for number, data in enumerate(inputs(seed, count)):
        began = time.perf_counter()
        try:
            frame = decoder.decode(data)
            outcome["read"] += 1
        except DecodeError as error:
            frame = None
            outcome["refused"] += 1
            outcome["starved"] += isinstance(error.__cause__, MemoryError)
        except BaseException as error:
            frame = None
            outcome["errors"].append(f"input {number}: {type(error).__name__}: {error!s:.100}: {data[:200].hex()}")
        outcome["slowest_s"] = max(outcome["slowest_s"], time.perf_counter() - began)
        if frame is not None and number % 8 == 0:
            show(frame, number, outcome)
        if len(outcome["errors"]) > 5:
            break
    outcome["growth_kib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib
    print(json.dumps(outcome))


def show(frame, number, outcome):
    """Encode a decoded event again: any event that was read must be writable."""
    encoder = RowEncoder()
    for happened in frame.events:
        try:
            to_json(happened)
            encoder.encode(happened, 0)
        except Exception as error:
            outcome["errors"].append(f"input {number}, written again: {type(error).__name__}: {error!s:.100}")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
