"""Hostile bytes are read or refused, quickly, within bounded memory."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
import time
from pathlib import Path

import msgpack
import pytest

from trackside.events import DecodeError, own_fields
from trackside.events.vocabulary import CounterWindow
from trackside.wire import FrameDecoder
from trackside.wire import _values as values

MOST = 640 << 10
FUZZING = Path(__file__).with_name("fuzzing.py")
HEAD = b"\x97\x02\xa1s\x00\x00\x80"
"""A frame of one source, up to its list of types."""


def assert_refused(data):
    """Return why *data* is refused."""
    with pytest.raises(DecodeError) as caught:
        FrameDecoder().decode(data)
    return str(caught.value)


def in_rows(value):
    """Return a frame of one row of an unknown type, with the packed *value* in it."""
    return HEAD + msgpack.packb([[0, "acme.x", 1, ["a"]]]) + b"\x91\x96\x00\x00\x00\x00\x00" + value


class TestClaims:
    """Claimed sizes without the bytes."""

    @pytest.mark.parametrize(
        "claim",
        [b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\xdb\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff",
         b"\xdc\xff\xff", b"\xde\xff\xff", b"\xda\xff\xff", b"\xc5\xff\xff"],
        ids=["array 32", "map 32", "text 32", "bytes 32", "array 16", "map 16", "text 16", "bytes 16"],
    )  # fmt: skip
    @pytest.mark.parametrize(
        "wrap", [bytes, in_rows, lambda claim: HEAD + claim], ids=["alone", "in a row", "as types"]
    )
    def test_claim(self, claim, wrap):
        """Four billion elements that do not follow take no memory."""
        began = time.thread_time()
        assert_refused(wrap(claim))
        assert time.thread_time() - began < 1

    def test_many_claims(self):
        """Nor do claims within claims."""
        assert_refused(b"\xdc\xff\xff" * 1000)
        assert_refused(b"\xdd\x00\x00\xff\xff" * 100)


class TestDepth:
    @pytest.mark.parametrize("depth", [1000, 100_000])
    @pytest.mark.parametrize(
        "place",
        [
            lambda deep: deep,
            lambda deep: b"\x97" + deep + b"\xa1s\x00\x00\x80\x90\x90",
            lambda deep: b"\x97\x02" + deep + b"\x00\x00\x80\x90\x90",
            lambda deep: b"\x97\x02\xa1s" + deep + b"\x00\x80\x90\x90",
            lambda deep: b"\x97\x02\xa1s\x00\x00" + deep + b"\x90\x90",
            lambda deep: b"\x97\x02\xa1s\x00\x00\x81\xa1a" + deep + b"\x90\x90",
            lambda deep: HEAD + deep + b"\x90",
            lambda deep: HEAD + b"\x91" + deep + b"\x90",
            lambda deep: HEAD + b"\x91\x94" + deep + b"\xa6acme.x\x01\x91\xa1a\x90",
            lambda deep: HEAD + b"\x91\x94\x00" + deep + b"\x01\x91\xa1a\x90",
            lambda deep: HEAD + b"\x91\x94\x00\xa6acme.x" + deep + b"\x91\xa1a\x90",
            lambda deep: HEAD + b"\x91\x94\x00\xa6acme.x\x01" + deep + b"\x90",
            lambda deep: HEAD + b"\x91\x94\x00\xa6acme.x\x01\x91" + deep + b"\x90",
            lambda deep: HEAD + b"\x91\x94\x00\xa6acme.x\x01\x91\xa1a" + deep,
            lambda deep: HEAD + b"\x91\x94\x00\xa6acme.x\x01\x91\xa1a\x91" + deep,
            lambda deep: HEAD + b"\x91\x94\x00\xa6acme.x\x01\x91\xa1a\x91\x96" + deep + b"\x00\x00\x00\x00\x00",
            lambda deep: HEAD + b"\x91\x94\x00\xa6acme.x\x01\x91\xa1a\x91\x96\x00" + deep + b"\x00\x00\x00\x00",
            lambda deep: HEAD + b"\x91\x94\x00\xa6acme.x\x01\x91\xa1a\x91\x96\x00\x00" + deep + b"\x00\x00\x00",
            in_rows,
        ],
        ids="alone version source first dropped count types type number name schema-version names field rows row "
        "row-type offset time value".split(),
    )
    @pytest.mark.parametrize("kind", [b"\x91", b"\x81\xa1k"], ids=["lists", "maps"])
    def test_nested(self, depth, place, kind):
        """Lists and maps nested a thousand or a hundred thousand deep are refused, wherever they are."""
        assert_refused(place(kind * depth + b"\xc0"))

    def test_learned(self):
        """The same holds where a row's number was a list before, and a shallow one."""
        decoder = FrameDecoder()
        for depth in (1, 1, 900):
            deep = b"\x91" * depth + b"\xc0"
            data = HEAD + b"\x91\x94\x00\xa6acme.x\x01\x91\xa1a\x91\x96\x00" + deep + b"\x00\x00\x00\xc0"
            with pytest.raises(DecodeError):
                decoder.decode(data)


class TestSizes:
    def test_oversize(self, monkeypatch):
        """Data larger than 640 KiB is refused before it is parsed."""
        monkeypatch.setattr(values.msgpack, "unpackb", None)
        assert assert_refused(b"\xc0" * (MOST + 1)) == "655361 bytes; at most 655360"

    @pytest.mark.parametrize(
        ("value", "limit"),
        [
            (b"\xdb" + (65_537).to_bytes(4, "big") + b"a" * 65_537, 65_536),
            (b"\xc6" + (262_145).to_bytes(4, "big") + b"a" * 262_145, 262_144),
            (b"\xdd" + (65_537).to_bytes(4, "big") + b"\xc0" * 65_537, 65_536),
            (b"\xde\x04\x01" + b"".join(msgpack.packb(str(key)) + b"\xc0" for key in range(1025)), 1024),
        ],
        ids=["text", "bytes", "list", "map"],
    )
    def test_one_more(self, value, limit):
        """A text, some bytes, a list or a map with one more than may be written is refused."""
        assert f"({limit})" in assert_refused(in_rows(value))

    def test_rows(self):
        """So is a frame of more rows than may be written."""
        schemas = msgpack.packb([[0, "acme.x", 1, []]])
        rows = b"\xdc\x40\x01" + b"".join(b"\x95\x00\xcd" + n.to_bytes(2, "big") + b"\0\0\0" for n in range(16_385))
        assert "at most 16384" in assert_refused(b"\x97\x02\xa1s\x00\xcd\xff\xff\x80" + schemas + rows)


class TestTypes:
    @pytest.mark.parametrize(
        ("extension", "read"),
        [(b"\xd4\x05\0", bytes(1)), (b"\xd5\x05\0\0", bytes(2)), (b"\xd6\x05\0\0\0\0", bytes(4)),
         (b"\xd7\x05" + bytes(8), bytes(8)), (b"\xd8\x05" + bytes(16), bytes(16)), (b"\xc7\x00\x05", b""),
         (b"\xc7\x01\x05\0", bytes(1)), (b"\xc8\x00\x01\x05\0", bytes(1)), (b"\xc9\0\0\0\x01\x05\0", bytes(1)),
         (b"\xd6\xff\0\0\0\7", 7.0), (b"\xd7\xff" + bytes(8), 0.0), (b"\xc7\x0c\xff" + bytes(12), 0.0)],
    )  # fmt: skip
    def test_extension(self, extension, read):
        """Of an extension type only the bytes are read, of the one for times the seconds: neither is interpreted."""
        for value, expected in ((extension, read), (b"\x91" + extension, [read])):
            assert FrameDecoder().decode(in_rows(value)).events[0].fields == {"a": expected}

    @pytest.mark.parametrize("extension", [b"\xc7\x00\xff", b"\xd4\xff\0", b"\xc9\0\x04\0\x01\x05" + bytes(262_145)])
    def test_bad_extension(self, extension):
        """A time of an invalid length is refused, and so are bytes beyond the limit."""
        assert_refused(in_rows(extension))
        assert_refused(in_rows(b"\x91" + extension))

    @pytest.mark.parametrize(
        "key", [b"\x01", b"\xc0", b"\xc3", b"\xcb" + bytes(8), b"\x90", b"\xc4\x01a"], ids=bytes.hex
    )
    def test_keys(self, key):
        """Keys of maps are texts: whole numbers could be chosen to collide."""
        assert_refused(in_rows(b"\x81" + key + b"\xc0"))
        assert_refused(in_rows(b"\x91\x81" + key + b"\xc0"))

    def test_text(self):
        """Texts are UTF-8."""
        assert_refused(in_rows(b"\xa2\xff\xff"))
        assert_refused(in_rows(b"\xa3\xed\xa0\x80"))

    def test_never_used(self):
        """The one byte that msgpack does not use is refused."""
        assert_refused(in_rows(b"\xc1"))


def frame(schemas, rows):
    return msgpack.packb([2, "s", 0, 1 << 40, {}, schemas, rows])


def takes_no_longer(data):
    """Decode *data*, which is well-formed, in five seconds of a processor."""
    assert len(data) <= MOST
    gc.freeze()  # the garbage of other tests is not traversed again and again
    try:
        began = time.thread_time()
        FrameDecoder().decode(data)
        assert time.thread_time() - began < 5
    finally:
        gc.unfreeze()


class TestTime:
    """No frame takes long, whatever other load the machine has."""

    def test_not_events(self):
        """The same holds if no row fits its class."""
        names = own_fields(CounterWindow)
        row = [0, 0, 0, *({"a": "x"} if name == "values" else 0 for name in names)]
        schema = [0, "trackside.counter.window", 1, names]
        takes_no_longer(frame([schema], [[0, offset, *row] for offset in range(16_384)]))

    def test_combinations(self):
        """The same holds if no two rows have values of the same types."""
        rows = [[0, n, 0, 0, 0, *(1 if n >> bit & 1 else "" for bit in range(14))] for n in range(16_384)]
        takes_no_longer(frame([[0, "acme.x", 1, [str(bit) for bit in range(14)]]], rows))

    def test_types(self):
        """The same holds with as many types as there may be, of a class that is known."""
        schemas = [[n, "trackside.source.ended", 1, ["reason", f"x{n}"]] for n in range(1024)]
        takes_no_longer(frame(schemas, [[n % 1024, n, 0, 0, 0, "", 1] for n in range(16_384)]))

    def test_sources(self):
        """The same holds if every row introduces its source."""
        rows = [[0, n, 0, 0, 0, {"rank": n}] for n in range(16_384)]
        takes_no_longer(frame([[0, "trackside.source.started", 1, ["identity"]]], rows))

    def test_nested(self):
        """The same holds if every value is as deep as may be."""
        deep = []
        for _ in range(31):
            deep = [deep]
        takes_no_longer(frame([[0, "acme.x", 1, ["a"]]], [[0, n, 0, 0, 0, deep] for n in range(16_384)]))

    def test_empties(self):
        """The same holds for half a million empty lists."""
        takes_no_longer(in_rows(b"\x99" + (b"\xdc\xff\xff" + b"\x90" * 65_535) * 9))


def fuzzed(*, seed, count, timeout_s):
    """Return the results of decoding *count* inputs in a process of its own, of bounded memory."""
    child = subprocess.run(
        [sys.executable, FUZZING, str(seed), str(count)], capture_output=True, text=True, timeout=timeout_s, check=False
    )
    assert child.returncode == 0, child.stderr[-2000:]
    return json.loads(child.stdout)


class TestMemory:
    @pytest.mark.parametrize("element", [b"\x80", b"\x90", b"\x81\xa0\x80", b"\x81\xa0\xc0", b"\xc0"], ids=bytes.hex)
    def test_empties(self, element):
        """A frame of empty maps, or of any other values, takes at most 64 MiB while it is decoded."""
        script = """
import resource, sys
sys.path.insert(0, sys.argv[1])
import fuzzing
from trackside.events import DecodeError
from trackside.wire import FrameDecoder
element = bytes.fromhex(sys.argv[2])
array = b"\\xdc\\xff\\xff" + element * 65535
data = bytes([0x90 + (640 << 10) // len(array)]) + array * ((640 << 10) // len(array))
fuzzing.limit_memory()
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    FrameDecoder().decode(data)
except DecodeError as error:
    assert "not a frame" in str(error), error
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
        child = subprocess.run(
            [sys.executable, "-c", script, FUZZING.parent, element.hex()], capture_output=True, text=True, check=False
        )
        assert child.returncode == 0, child.stderr[-2000:]
        assert int(child.stdout) < 64 << 10


class TestFuzz:
    @pytest.mark.hang_guard(240)
    def test_decoder(self, seed, scaled):
        """
        Of a million inputs, random, composed and mutated, each is read or refused with a DecodeError, in bounded time
        and memory; and events that were read can be written again.
        """
        count = scaled(1_000_000)
        outcome = fuzzed(seed=seed, count=count, timeout_s=2000)
        assert outcome["errors"] == []
        assert outcome["read"] + outcome["refused"] == count
        assert outcome["read"] > count // 20  # the inputs are no mere noise
        assert outcome["refused"] > count // 5
        assert outcome["starved"] == 0
        assert outcome["slowest_s"] < 5
        assert outcome["growth_kib"] < 128 << 10
