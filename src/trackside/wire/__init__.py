"""
The wire format: how events become rows, frames and JSON, and how they are read back within limits.

Readers' names load their modules when they are first used.
"""

from typing import TYPE_CHECKING

from trackside._later import load_later
from trackside.wire._detached import changeable_fields, detached, detached_event
from trackside.wire._encoder import Encoding, RowEncoder, Schema, encode_frame
from trackside.wire._size import size_of, sized_fields
from trackside.wire._values import pack, saturated
from trackside.wire._view import EventColumns, FrameView, deliver, views

if TYPE_CHECKING:
    from trackside.wire._decoder import Frame, FrameDecoder
    from trackside.wire._json import fields_of, to_json, value_to_json, wire_name_of
    from trackside.wire._sequence import Ranges, SequenceTracker

__all__ = [
    "Encoding",
    "EventColumns",
    "Frame",
    "FrameDecoder",
    "FrameView",
    "Ranges",
    "RowEncoder",
    "Schema",
    "SequenceTracker",
    "changeable_fields",
    "deliver",
    "detached",
    "detached_event",
    "encode_frame",
    "fields_of",
    "pack",
    "saturated",
    "size_of",
    "sized_fields",
    "to_json",
    "value_to_json",
    "views",
    "wire_name_of",
]

_LATER = {
    "trackside.wire._decoder": "Frame FrameDecoder",
    "trackside.wire._json": "fields_of to_json value_to_json wire_name_of",
    "trackside.wire._sequence": "Ranges SequenceTracker",
}

__getattr__, __dir__ = load_later(__name__, _LATER)
