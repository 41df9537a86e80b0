"""
Nouns: what happened.

The event and its envelope, the vocabulary, the source, the clock, values, rows and frames. Imports nothing of ours.
"""

from trackside.events import span_names
from trackside.events._ambient import NOWHERE, Ambient, ambient
from trackside.events._compared import Compared, Value
from trackside.events._detail import ITERATION, LIFECYCLE, PROFILE, Detail
from trackside.events._encoder import RowEncoder, Schema
from trackside.events._errors import (
    ConfigError,
    DecodeError,
    DuplicateEventError,
    TracksideError,
    UnreadableError,
)
from trackside.events._event import Event, event
from trackside.events._export import fields_of, to_json, value_to_json, wire_name_of
from trackside.events._fields import own_fields
from trackside.events._frames import Frame, FrameDecoder, encode_frame
from trackside.events._handler import (
    FRAMES,
    INLINE,
    PORTER,
    SIDING,
    FrameHandler,
    Handler,
    Publish,
    RunsOn,
)
from trackside.events._registry import declared, is_declared, lookup
from trackside.events._source import Parent, Source, follow_process_source, process_source, set_process_source
from trackside.events._version import __version__
from trackside.events.goodput import GoodputUpdated, RecordFaulted, SlicesCounted, StepStarted
from trackside.events.metrics import (
    CheckpointMetricsUpdated,
    EvaluationMetricsUpdated,
    ProductiveWorkSaved,
    TestingMetricsUpdated,
    TrainingMetricsUpdated,
    ValidationMetricsUpdated,
)
from trackside.events.remote import (
    ClockCompared,
    ControlUsed,
    EventsLost,
    PeerCut,
    RankFellSilent,
    RankSpokeAgain,
)
from trackside.events.sections import GpuTimingUnavailable, KernelWindow, SectionWindow, StragglerReport
from trackside.events.sketch import RELATIVE_ERROR, Sketch
from trackside.events.system import SystemSamplingStarted
from trackside.events.training import (
    CheckpointSaveFailed,
    CheckpointSaveSucceeded,
    JobConfigured,
    SpanMisplaced,
    TrainingConfigured,
)
from trackside.events.vocabulary import (
    ClockAnchored,
    CounterWindow,
    EventsShed,
    HandlerRested,
    Heartbeat,
    IterationEnded,
    IterationSpanEnded,
    ProfileSpanEnded,
    SourceEnded,
    SourceStarted,
    SpanEnded,
    SpanEventAdded,
    SpanStarted,
    UnknownEvent,
)

__all__ = [
    "FRAMES",
    "INLINE",
    "ITERATION",
    "LIFECYCLE",
    "NOWHERE",
    "PORTER",
    "PROFILE",
    "RELATIVE_ERROR",
    "SIDING",
    "Ambient",
    "CheckpointMetricsUpdated",
    "CheckpointSaveFailed",
    "CheckpointSaveSucceeded",
    "ClockAnchored",
    "ClockCompared",
    "Compared",
    "ConfigError",
    "ControlUsed",
    "CounterWindow",
    "DecodeError",
    "Detail",
    "DuplicateEventError",
    "EvaluationMetricsUpdated",
    "Event",
    "EventsLost",
    "EventsShed",
    "Frame",
    "FrameDecoder",
    "FrameHandler",
    "GoodputUpdated",
    "GpuTimingUnavailable",
    "Handler",
    "HandlerRested",
    "Heartbeat",
    "IterationEnded",
    "IterationSpanEnded",
    "JobConfigured",
    "KernelWindow",
    "Parent",
    "PeerCut",
    "ProductiveWorkSaved",
    "ProfileSpanEnded",
    "Publish",
    "RankFellSilent",
    "RankSpokeAgain",
    "RecordFaulted",
    "RowEncoder",
    "RunsOn",
    "Schema",
    "SectionWindow",
    "Sketch",
    "SlicesCounted",
    "Source",
    "SourceEnded",
    "SourceStarted",
    "SpanEnded",
    "SpanEventAdded",
    "SpanMisplaced",
    "SpanStarted",
    "StepStarted",
    "StragglerReport",
    "SystemSamplingStarted",
    "TestingMetricsUpdated",
    "TracksideError",
    "TrainingConfigured",
    "TrainingMetricsUpdated",
    "UnknownEvent",
    "UnreadableError",
    "ValidationMetricsUpdated",
    "Value",
    "__version__",
    "ambient",
    "declared",
    "encode_frame",
    "event",
    "fields_of",
    "follow_process_source",
    "is_declared",
    "lookup",
    "own_fields",
    "process_source",
    "set_process_source",
    "span_names",
    "to_json",
    "value_to_json",
    "wire_name_of",
]
