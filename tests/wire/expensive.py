"""
Decode a frame of 16 KiB that is as expensive for its size as any that is known: ``expensive.py TYPE [COUNT]``.

`test_work.py` counts the instructions. The search was over rows of all types: the smallest, with values of the declared
types, and with values of ever different types.
"""

from __future__ import annotations

import sys

import msgpack

from trackside.events import own_fields
from trackside.events._event import declared
from trackside.events._fields import hints_of
from trackside.wire import FrameDecoder

SIZE_BYTES = 16 << 10
SMALLEST = {int: 1, float: 0.5, str: "a", bool: True, bytes: b""}


def frame_of(name):
    """Return a frame of the smallest rows of a type, whose fields of other types are all None."""
    cls = declared()[name]
    fields = own_fields(cls)
    values = [SMALLEST.get(hints_of(cls).get(field)) for field in fields]
    count = SIZE_BYTES // len(msgpack.packb([0, 255, 9, 0, -1, *values]))
    rows = [[0, number, 9, 0, -1, *values] for number in range(count)]
    return msgpack.packb([2, "s", 0, count - 1, {}, [[0, name, cls.version, list(fields)]], rows])


if __name__ == "__main__":
    frame = frame_of(sys.argv[1])
    print(len(frame))
    for _ in range(int(sys.argv[2])):
        assert len(FrameDecoder().decode(frame).events) > 100
