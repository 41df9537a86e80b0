"""
Models: handlers that compute something from events.

Each reads events of any number of sources, in the job, elsewhere or years later, and gives the same answer.
"""

from trackside.handlers.models._model import DerivingModel, Model
from trackside.handlers.models.clocks import ClockOffset, ClockOffsets, ClocksResult
from trackside.handlers.models.counters import CounterBoard, CounterBoardResult, CounterTotals
from trackside.handlers.models.goodput import GoodputAccumulator
from trackside.handlers.models.scores import ScoreAggregator, ScoreReport
from trackside.handlers.models.spans import OpenSpans, SourceSpans, SpanBuilder, SpanReport, SpanView
from trackside.handlers.models.training_metrics import MetricsResult, SourceMetrics, TrainingMetrics

__all__ = [
    "ClockOffset",
    "ClockOffsets",
    "ClocksResult",
    "CounterBoard",
    "CounterBoardResult",
    "CounterTotals",
    "DerivingModel",
    "GoodputAccumulator",
    "MetricsResult",
    "Model",
    "OpenSpans",
    "ScoreAggregator",
    "ScoreReport",
    "SourceMetrics",
    "SourceSpans",
    "SpanBuilder",
    "SpanReport",
    "SpanView",
    "TrainingMetrics",
]
