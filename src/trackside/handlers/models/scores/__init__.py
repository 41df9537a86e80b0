"""
Straggler scores: which rank is slow, where and since when.

`ScoreAggregator` is the model; the formulas are pure functions beside it.
"""

from trackside.handlers.models.scores._aggregator import ScoreAggregator, ScoreResult
from trackside.handlers.models.scores._evaluation import (
    LEAST_WINDOWS,
    gpu_score,
    is_nccl,
    lowest,
    section_scores,
    total_times,
)
from trackside.handlers.models.scores._score_report import (
    INDIVIDUAL,
    KINDS,
    RELATIVE,
    KindScores,
    Missing,
    ScoreReport,
    Straggler,
    StragglerId,
    Thresholds,
    below,
)

__all__ = [
    "INDIVIDUAL",
    "KINDS",
    "LEAST_WINDOWS",
    "RELATIVE",
    "KindScores",
    "Missing",
    "ScoreAggregator",
    "ScoreReport",
    "ScoreResult",
    "Straggler",
    "StragglerId",
    "Thresholds",
    "below",
    "gpu_score",
    "is_nccl",
    "lowest",
    "section_scores",
    "total_times",
]
