"""The peer's module of the recorder and the calculator of elastic jobs."""

from trackside.compat.goodput._calculator import ElasticGoodputCalculator
from trackside.compat.goodput._records import ElasticGoodputRecorder

__all__ = ["ElasticGoodputCalculator", "ElasticGoodputRecorder"]
