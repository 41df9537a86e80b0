"""The wire format: how events become rows, frames and JSON, and how they are read back within limits."""

from trackside.wire._encoder import RowEncoder, Schema
from trackside.wire._frames import Frame, FrameDecoder, encode_frame
from trackside.wire._json import fields_of, to_json, value_to_json, wire_name_of
from trackside.wire._selection import EventSelection, EventTypes
from trackside.wire._sequence import Ranges, SequenceTracker
from trackside.wire._values import pack
from trackside.wire._view import EventColumns, FrameView, deliver, views

__all__ = [
    "EventColumns",
    "EventSelection",
    "EventTypes",
    "Frame",
    "FrameDecoder",
    "FrameView",
    "Ranges",
    "RowEncoder",
    "Schema",
    "SequenceTracker",
    "deliver",
    "encode_frame",
    "fields_of",
    "pack",
    "to_json",
    "value_to_json",
    "views",
    "wire_name_of",
]
