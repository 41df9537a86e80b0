"""
Events: what happened in a training job.

The event and its envelope, the vocabulary, the source and the clock. The import defines the core vocabulary; the other
event classes are defined at their first use.
"""

from typing import TYPE_CHECKING

from trackside._later import load_later
from trackside.events import span_names
from trackside.events._ambient import NOWHERE, Ambient, ambient
from trackside.events._errors import (
    ConfigError,
    DecodeError,
    DuplicateEventError,
    MissingExtraError,
    TracksideError,
    UnreadableError,
)
from trackside.events._event import ITERATION, LIFECYCLE, PROFILE, Event, Priority, declared, event, is_declared, lookup
from trackside.events._fields import Compared, Value, own_fields
from trackside.events._handler import (
    FrameConsumer,
    FrameSink,
    Handler,
    Publish,
    RunsOn,
)
from trackside.events._source import Parent, Source, follow_process_source, process_source, set_process_source
from trackside.events._version import __version__
from trackside.events.vocabulary import (
    ClockAnchored,
    CounterWindow,
    EventsDropped,
    HandlerSuspended,
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

if TYPE_CHECKING:
    from trackside.events.goodput import GoodputUpdated, RecordFaulted, SlicesCounted, StepStarted
    from trackside.events.metrics import (
        CheckpointMetricsUpdated,
        EvaluationMetricsUpdated,
        ProductiveWorkSaved,
        TestingMetricsUpdated,
        TrainingFigures,
        TrainingMetricsUpdated,
        TrainingWindowUpdated,
        ValidationMetricsUpdated,
    )
    from trackside.events.remote import (
        ClockCompared,
        ControlUsed,
        EventsLost,
        PeerCut,
        ProcessExited,
        ProgramEnded,
        RankFellSilent,
        RankSpokeAgain,
    )
    from trackside.events.sections import GpuTimingUnavailable, KernelWindow, SectionWindow, StragglerReport
    from trackside.events.training import (
        CheckpointSaveFailed,
        CheckpointSaveSucceeded,
        ConfigLogged,
        ExceptionRaised,
        JobConfigured,
        MetricsLogged,
        SpanOutOfOrder,
        StallDetected,
        SystemSamplingStarted,
        TrainingConfigured,
    )

__all__ = [
    "ITERATION",
    "LIFECYCLE",
    "NOWHERE",
    "PROFILE",
    "Ambient",
    "CheckpointMetricsUpdated",
    "CheckpointSaveFailed",
    "CheckpointSaveSucceeded",
    "ClockAnchored",
    "ClockCompared",
    "Compared",
    "ConfigError",
    "ConfigLogged",
    "ControlUsed",
    "CounterWindow",
    "DecodeError",
    "DuplicateEventError",
    "EvaluationMetricsUpdated",
    "Event",
    "EventsDropped",
    "EventsLost",
    "ExceptionRaised",
    "FrameConsumer",
    "FrameSink",
    "GoodputUpdated",
    "GpuTimingUnavailable",
    "Handler",
    "HandlerSuspended",
    "Heartbeat",
    "IterationEnded",
    "IterationSpanEnded",
    "JobConfigured",
    "KernelWindow",
    "MetricsLogged",
    "MissingExtraError",
    "Parent",
    "PeerCut",
    "Priority",
    "ProcessExited",
    "ProductiveWorkSaved",
    "ProfileSpanEnded",
    "ProgramEnded",
    "Publish",
    "RankFellSilent",
    "RankSpokeAgain",
    "RecordFaulted",
    "RunsOn",
    "SectionWindow",
    "SlicesCounted",
    "Source",
    "SourceEnded",
    "SourceStarted",
    "SpanEnded",
    "SpanEventAdded",
    "SpanOutOfOrder",
    "SpanStarted",
    "StallDetected",
    "StepStarted",
    "StragglerReport",
    "SystemSamplingStarted",
    "TestingMetricsUpdated",
    "TracksideError",
    "TrainingConfigured",
    "TrainingFigures",
    "TrainingMetricsUpdated",
    "TrainingWindowUpdated",
    "UnknownEvent",
    "UnreadableError",
    "ValidationMetricsUpdated",
    "Value",
    "__version__",
    "ambient",
    "declared",
    "event",
    "follow_process_source",
    "is_declared",
    "lookup",
    "own_fields",
    "process_source",
    "set_process_source",
    "span_names",
]

_LATER = {
    "trackside.events.goodput": "GoodputUpdated RecordFaulted SlicesCounted StepStarted",
    "trackside.events.metrics": (
        "CheckpointMetricsUpdated EvaluationMetricsUpdated ProductiveWorkSaved TestingMetricsUpdated "
        "TrainingFigures TrainingMetricsUpdated TrainingWindowUpdated ValidationMetricsUpdated"
    ),
    "trackside.events.remote": (
        "ClockCompared ControlUsed EventsLost PeerCut ProcessExited ProgramEnded RankFellSilent RankSpokeAgain"
    ),
    "trackside.events.sections": "GpuTimingUnavailable KernelWindow SectionWindow StragglerReport",
    "trackside.events.training": (
        "CheckpointSaveFailed CheckpointSaveSucceeded ConfigLogged ExceptionRaised JobConfigured "
        "MetricsLogged SpanOutOfOrder StallDetected SystemSamplingStarted TrainingConfigured"
    ),
}

__getattr__, __dir__ = load_later(__name__, _LATER)
