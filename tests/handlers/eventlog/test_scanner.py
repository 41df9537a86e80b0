"""Finding the sound records in damaged bytes."""

from __future__ import annotations

import tracemalloc
import zlib

import pytest

from trackside.handlers.eventlog import _scanner
from trackside.handlers.eventlog._format import (
    HEADER,
    HEADER_BYTES,
    MAGIC,
    MAX_PAYLOAD_BYTES,
    MAX_STORED_BYTES,
    Kind,
    Record,
    encode_record,
)
from trackside.handlers.eventlog._scanner import DAMAGED, DUPLICATE, OUT_OF_ORDER, TORN, Damage, Scanner

pytestmark = pytest.mark.once

BLOCK = 4096


class Bytes:
    """A file in memory that records how it was read."""

    def __init__(self, data):
        self.data = data
        self.read_bytes = 0
        self.largest_bytes = 0

    def __call__(self, offset, size):
        """Read as from a file."""
        piece = bytes(self.data[offset : offset + size])
        self.read_bytes += len(piece)
        self.largest_bytes = max(self.largest_bytes, len(piece))
        return piece


def found_in(data, **options):
    scanner = Scanner(Bytes(data), **options)
    return [*scanner.scan(), *scanner.finish()]


def records_of(found):
    return [(item.sequence, item.payload) for item in found if isinstance(item, Record)]


def damage_of(found):
    return [item for item in found if isinstance(item, Damage)]


def numbered(count, *, first=0, stream=5):
    """Return records with numbered payloads."""
    return [encode_record(Kind.FRAME, b"record %d" % n, sequence=n, stream=stream) for n in range(first, first + count)]


class Log:
    """Random records, and where each begins and ends."""

    def __init__(self, rng, count=200, most_bytes=1500):
        self.payloads = [rng.randbytes(rng.randrange(most_bytes)) for _ in range(count)]
        records = [encode_record(Kind.FRAME, payload, sequence=n, stream=5) for n, payload in enumerate(self.payloads)]
        self.data = b"".join(records)
        self.spans = []
        end = 0
        for record in records:
            self.spans.append((end, end + len(record)))
            end += len(record)

    def without(self, start, end):
        """Return the records that no byte from *start* to *end* belongs to."""
        return [(n, self.payloads[n]) for n, (first, last) in enumerate(self.spans) if last <= start or first >= end]

    def all(self):
        """Return all records."""
        return list(enumerate(self.payloads))


class TestWhole:
    def test_all(self):
        """Every record of a sound file is found, with its place."""
        data = b"".join(numbered(3))
        assert found_in(data) == [
            Record(Kind.FRAME, 0, b"record 0", 0, 32, 5),
            Record(Kind.FRAME, 1, b"record 1", 32, 64, 5),
            Record(Kind.FRAME, 2, b"record 2", 64, 96, 5),
        ]

    def test_nothing(self):
        """An empty file has no record and no damage."""
        assert found_in(b"") == []

    @pytest.mark.parametrize("block_bytes", [1, 23, 24, 25, 33, 100, 1000, 1 << 18])
    def test_any_block_size(self, block_bytes, rng):
        """The size of reads makes no difference."""
        log = Log(rng, count=20, most_bytes=200)
        assert records_of(found_in(log.data, block_bytes=block_bytes)) == log.all()

    def test_largest(self):
        """Records of the largest size are read, marks and all."""
        payload = (MAGIC[:3] * MAX_PAYLOAD_BYTES)[:MAX_PAYLOAD_BYTES]
        data = encode_record(Kind.FRAME, payload, sequence=0) + encode_record(Kind.FRAME, payload, sequence=1)
        assert records_of(found_in(data)) == [(0, payload), (1, payload)]

    def test_memory(self):
        """Of 16 records of 1 MiB no more than three are ever in memory: as read, as payload, and the one before."""
        data = b"".join(encode_record(Kind.FRAME, bytes(MAX_PAYLOAD_BYTES), sequence=n) for n in range(16))
        scanner = Scanner(Bytes(memoryview(data)))
        tracemalloc.start()
        try:
            count = sum(1 for _ in scanner.scan())
            _, peak_bytes = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert count == 16
        assert peak_bytes < 3.1 * (1 << 20)

    def test_any_start(self):
        """A later part of a series begins with a later number."""
        assert records_of(found_in(b"".join(numbered(2, first=90)))) == [(90, b"record 90"), (91, b"record 91")]

    def test_unknown_kind(self):
        """A record of a kind that this release does not know is passed on."""
        assert [item.kind for item in found_in(encode_record(99, b"", sequence=0))] == [99]


class TestTorn:
    def test_every_byte(self, rng):
        """Cut anywhere, a file gives every record before the cut, and the rest is a torn tail of its exact length."""
        log = Log(rng, count=200, most_bytes=60)
        ends = [end for _, end in log.spans]
        for cut in range(len(log.data) + 1):
            whole = sum(end <= cut for end in ends)
            start = ends[whole - 1] if whole else 0
            found = found_in(log.data[:cut])
            assert records_of(found) == log.all()[:whole]
            assert damage_of(found) == ([Damage(start, cut - start, TORN)] if cut > start else [])

    def test_zero_tail(self):
        """A tail of zeros, as a crashed file system leaves it, is damage."""
        data = b"".join(numbered(2))
        assert damage_of(found_in(data + bytes(100))) == [Damage(64, 100, DAMAGED)]


class TestFlips:
    @pytest.mark.hang_guard(300)
    def test_single_bytes(self, rng, scaled):
        """A byte changed anywhere costs the record that holds it and no other, and the damage covers that one."""
        log = Log(rng)
        for _ in range(scaled(10_000)):
            data = bytearray(log.data)
            at = rng.randrange(len(data))
            data[at] ^= rng.randrange(1, 256)
            found = found_in(data)
            assert records_of(found) == log.without(at, at + 1)
            start, end = next(span for span in log.spans if span[0] <= at < span[1])
            damage = damage_of(found)
            assert damage[0].offset == start
            assert sum(item.length_bytes for item in damage) == end - start


class TestBlocks:
    @pytest.mark.hang_guard(300)
    def test_zeroed(self, rng, scaled):
        """A block of zeros costs the records it touches and no other."""
        log = Log(rng)
        for _ in range(scaled(1000)):
            at = rng.randrange(len(log.data) - BLOCK)
            data = log.data[:at] + bytes(BLOCK) + log.data[at + BLOCK :]
            assert records_of(found_in(data)) == log.without(at, at + BLOCK)

    @pytest.mark.hang_guard(300)
    def test_inserted_twice(self, rng, scaled):
        """A block written twice costs at most the record it was put into; no record comes twice or out of order."""
        log = Log(rng)
        for _ in range(scaled(1000)):
            source, at = rng.randrange(len(log.data) - BLOCK), rng.randrange(len(log.data))
            data = log.data[:at] + log.data[source : source + BLOCK] + log.data[at:]
            split = {n for n, (start, end) in enumerate(log.spans) if start < at < end}
            read = records_of(found_in(data))
            assert [record for record in read if record[0] not in split] == [
                record for record in log.all() if record[0] not in split
            ]

    @pytest.mark.hang_guard(300)
    def test_overwritten(self, rng, scaled):
        """A block written over another costs at most the records it covers; no record comes twice or out of order."""
        log = Log(rng)
        for _ in range(scaled(1000)):
            source, at = (rng.randrange(len(log.data) - BLOCK) for _ in range(2))
            data = log.data[:at] + log.data[source : source + BLOCK] + log.data[at + BLOCK :]
            read = records_of(found_in(data))
            kept = log.without(at, at + BLOCK)
            assert [record for record in read if record in kept] == kept
            assert read == sorted(read)
            assert set(read) <= set(log.all())

    def test_duplicates_are_named(self):
        """A record that comes again is skipped as a duplicate."""
        records = numbered(5)
        found = found_in(b"".join([*records, *records[1:3]]))
        assert damage_of(found) == [Damage(160, 32, DUPLICATE), Damage(192, 32, DUPLICATE)]

    def test_out_of_order_are_named(self):
        """A copy from further on is skipped where it is out of order, and read where it belongs."""
        records = numbered(50)
        found = found_in(b"".join([*records[:5], records[40], *records[6:]]))
        assert damage_of(found)[0].reason == OUT_OF_ORDER
        assert [n for n, _ in records_of(found)] == [*range(5), *range(6, 50)]


class TestCut:
    def test_middle_missing(self):
        """If bytes were cut out of a file, the records after them are read."""
        records = numbered(100)
        found = found_in(b"".join(records[:10] + records[60:]))
        assert [n for n, _ in records_of(found)] == [*range(10), *range(60, 100)]

    @pytest.mark.parametrize("count", [3000, 20_000])
    def test_long_sequel(self, count):
        """The same holds if they are longer than a reader holds back."""
        sequel = (encode_record(Kind.FRAME, bytes(100), sequence=10_000 + n, stream=5) for n in range(count))
        found = found_in(b"".join([*numbered(10), *sequel]))
        assert [n for n, _ in records_of(found)] == [*range(10), *range(10_000, 10_000 + count)]

    def test_halves(self, rng):
        """Of a file cut in two within a record the halves hold all the others."""
        log = Log(rng, count=50)
        start, end = log.spans[25]
        cut = (start + end) // 2
        halves = records_of(found_in(log.data[:cut])) + records_of(found_in(log.data[cut:]))
        assert halves == log.without(cut - 1, cut)

    def test_concatenated(self):
        """Two writers' records in one file are both read, though both count from 0."""
        found = found_in(b"".join(numbered(3, stream=1) + numbered(3, stream=2)))
        assert [item.sequence for item in found] == [0, 1, 2, 0, 1, 2]


class TestUnknownVersion:
    def test_named(self):
        """Records of another version are skipped and counted by version; the others are read."""
        new = encode_record(Kind.FRAME, b"new", sequence=2, stream=5, version=7)
        found = found_in(b"".join([*numbered(2), new, *numbered(2, first=3)]))
        assert damage_of(found) == [Damage(64, 27, "unknown version 7")]
        assert [n for n, _ in records_of(found)] == [0, 1, 3, 4]

    def test_flipped(self):
        """A version number that was damaged is no other version: its checksum is wrong."""
        data = bytearray(b"".join(numbered(2)))
        data[4] = 7
        assert damage_of(found_in(data)) == [Damage(0, 32, DAMAGED)]


class TestNeverWritten:
    def test_record_in_payload(self):
        """A record within a record's payload is not read as one when the outer header is damaged."""
        inner = encode_record(Kind.FRAME, b"from elsewhere", sequence=1, stream=5)
        outer = bytearray(encode_record(Kind.FRAME, b"see: " + inner, sequence=1, stream=5))
        outer[8] ^= 1
        data = numbered(1)[0] + outer + numbered(1, first=2)[0]
        assert [n for n, _ in records_of(found_in(data))] == [0, 2]

    def test_noise(self, rng):
        """Bytes at random hold no record."""
        assert records_of(found_in(rng.randbytes(1 << 20))) == []


class TestHostile:
    """A file made to be slow to read takes work in proportion to its size."""

    @pytest.fixture
    def read(self, monkeypatch):
        """Give a function that reads bytes, and fails if any of them are read or summed too often."""
        summed = []

        def counting(data, start=0):
            summed.append(len(data))
            return zlib.crc32(data, start)

        monkeypatch.setattr(_scanner, "crc32", counting)

        def read(data):
            source = Bytes(data)
            scanner = Scanner(source)
            count = sum(1 for _ in scanner.scan()) + sum(1 for _ in scanner.finish())
            assert sum(summed) < 8 * len(data)
            assert source.read_bytes < 16 * len(data)
            return count

        return read

    def fake(self, length):
        """Return a header without a valid record."""
        return HEADER.pack(MAGIC, 1, Kind.FRAME, 5, length, 1, 0)

    def test_overlapping_lengths(self, read):
        """A megabyte of headers, each of which claims the next megabyte."""
        assert read(self.fake(MAX_STORED_BYTES) * (1 << 15)) == 1

    @pytest.mark.parametrize("length", [250, 5000, 200_000, 900_000])
    def test_overlapping_after_each_record(self, read, length):
        """The same holds with a record after each header, which ends the search each time."""
        pairs = (self.fake(length) + encode_record(Kind.FRAME, b"", sequence=n, stream=5) for n in range(20_000))
        assert read(b"".join(pairs)) > 0

    def test_sparse_claims(self, read):
        """Headers that claim the largest length, each just beyond the bytes read."""
        assert read((self.fake(MAX_STORED_BYTES) + bytes(300_000)) * 20) == 1

    def test_magic_only(self, read):
        """A file of nothing but magic."""
        assert read(MAGIC * (1 << 18)) == 1


class TestFollow:
    def test_growing(self, rng):
        """A file that grows byte by byte gives each record once, as soon as it is whole."""
        log = Log(rng, count=30, most_bytes=40)
        source = Bytes(b"")
        scanner = Scanner(source, block_bytes=64)
        read = []
        for size in range(len(log.data) + 1):
            source.data = log.data[:size]
            read += records_of(scanner.scan())
            assert len(read) == sum(end <= size for _, end in log.spans)
        assert read == log.all()
        assert list(scanner.finish()) == []

    def test_cut_back(self):
        """Bytes that a writer takes back and writes differently are read as they are in the end."""
        first, second, third = numbered(3)
        source = Bytes(first + third[:20])
        scanner = Scanner(source)
        assert len(list(scanner.scan())) == 1
        source.data = first + second
        assert records_of(scanner.scan()) == [(1, b"record 1")]

    def test_unproven_damage(self):
        """Bytes that are no record are not called damaged before there is a record after them."""
        first, second = numbered(2)
        source = Bytes(first + b"?" * 40)
        scanner = Scanner(source)
        assert len(list(scanner.scan())) == 1
        source.data += second
        assert next(scanner.scan()) == Damage(32, 40, DAMAGED)

    def test_interrupted(self):
        """A consumer that stops in the middle gets the rest from the next call."""
        scanner = Scanner(Bytes(b"".join(numbered(5))))
        first = next(scanner.scan())
        assert [first.sequence, *(n for n, _ in records_of(scanner.scan()))] == [0, 1, 2, 3, 4]

    def test_offset(self):
        """The scanner reports its position."""
        scanner = Scanner(Bytes(b"".join(numbered(5)) + b"rest"))
        list(scanner.scan())
        assert scanner.offset == 5 * (HEADER_BYTES + 8)
