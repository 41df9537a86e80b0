"""The bytes of a record."""

from __future__ import annotations

import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trackside.handlers.eventlog._format import (
    HEADER_BYTES,
    MAGIC,
    MAX_PAYLOAD_BYTES,
    MAX_STORED_BYTES,
    Kind,
    encode_record,
    stuff,
    unstuff,
)


class TestEncodeRecord:
    def test_layout(self):
        """A record is magic, version, kind, stream, length, sequence and checksum, little-endian, then the payload."""
        summed = bytes.fromhex("c154534c 02 02 3412 03000000 0700000000000000")

        record = encode_record(Kind.FRAME, b"abc", sequence=7, stream=0x1234)

        assert record == summed + zlib.crc32(summed + b"abc").to_bytes(4, "little") + b"abc"

    def test_header_size(self):
        """A header takes 24 bytes."""
        assert HEADER_BYTES == len(encode_record(Kind.FRAME, b"", sequence=0)) == 24

    def test_too_large(self):
        """A payload above 1 MiB is refused."""
        with pytest.raises(ValueError, match="1048577"):
            encode_record(Kind.FRAME, bytes(MAX_PAYLOAD_BYTES + 1), sequence=0)

    def test_largest(self):
        """A payload of 1 MiB is stored within the bound that readers keep, even if it is all marks."""
        stored = stuff(MAGIC[:3] * (MAX_PAYLOAD_BYTES // 3))
        assert len(stored) <= MAX_STORED_BYTES


class TestStuff:
    @pytest.mark.parametrize("before", [0, 1, 98, 99, 100, 101, 1_000])
    @pytest.mark.parametrize("after", [b"", b"x"])
    def test_behind_many_likely_places(self, before, after):
        """The magic is found however often its first byte comes before it; a payload without it stays as it is."""
        payload = b"\xc1T" * before + MAGIC + after
        assert stuff(payload) == b"\xc1T" * before + b"\xc1TS\0L" + after
        assert unstuff(stuff(payload)) == payload
        assert stuff(b"\xc1T" * before + after) == b"\xc1T" * before + after

    @given(st.lists(st.sampled_from([MAGIC, MAGIC[:3], MAGIC[:2], b"\xc1", b"\0", b"L", b"S"])).map(b"".join))
    def test_no_magic(self, payload):
        """For any payload, its stored form does not hold the magic."""
        assert MAGIC not in stuff(payload)

    @given(st.lists(st.sampled_from([MAGIC, MAGIC[:3], MAGIC[:2], b"\xc1", b"\0", b"L", b"S"])).map(b"".join))
    def test_reversible(self, payload):
        """Unstuffing gives the payload back."""
        assert unstuff(stuff(payload)) == payload

    def test_seam(self):
        """A payload that ends like the beginning of the magic forms none with the next record."""
        two = encode_record(Kind.FRAME, MAGIC[:3], sequence=0) + encode_record(Kind.FRAME, b"", sequence=1)
        assert two.count(MAGIC) == 2
