"""Spans opened and closed out of order: named, and tolerated unless the bus is strict."""

from __future__ import annotations

from trackside.bus import default_bus
from trackside.events import ConfigError, SpanOutOfOrder, TracksideError


class SpanOrderError(TracksideError):
    """A span was opened or closed out of order, and the bus is strict."""

    def __init__(self, name: str, problem: str) -> None:
        super().__init__(name, problem)
        self.name = name
        self.problem = problem

    def __str__(self) -> str:
        return f"span {self.name!r} {self.problem}"


class RunError(TracksideError):
    """A framework's run ended with an exception that it did not pass on."""

    def __str__(self) -> str:
        return "the run ended with an exception that the framework did not pass on"


def report_out_of_order(name: str, problem: str, *, span_id: int = 0, may_raise: bool = True) -> None:
    """
    Publish that the span *name* was opened or closed out of order.

    Raises:
        SpanOrderError: if the default bus is strict and nothing else is being raised, as *may_raise* says.
    """
    if default_bus.wants(SpanOutOfOrder):
        default_bus.log(SpanOutOfOrder(name=name, problem=problem, span_id=span_id))
    if default_bus.strict and may_raise:
        raise SpanOrderError(name, problem)


def tolerated(name: str, error: ConfigError) -> None:
    """
    Publish that the span *name* was given something wrong, which is passed over.

    A training script must not end at its thousandth step because of a wrong word to its telemetry.

    Raises:
        ConfigError: *error*, if the default bus is strict.
    """
    if default_bus.strict:
        raise error
    report_out_of_order(name, f"was given something wrong: {error}")
