"""Presets select the spans of a job that a handler gets."""

from __future__ import annotations

import pytest

from trackside.bus import Bus
from trackside.events import (
    PROFILE,
    ConfigError,
    Event,
    Heartbeat,
    IterationEnded,
    IterationSpanEnded,
    ProfileSpanEnded,
    SpanEnded,
    SpanStarted,
    event,
)
from trackside.handlers import Capture
from trackside.job import preset
from trackside.rules import where


@event("test.job.profiled", priority=PROFILE)
class Profiled(Event):
    """An event that comes several times a step."""


LONG = ["application", "training_loop", "checkpoint_save_sync"]
KINDS = ["training", "validation", "testing"]
WITHIN = [
    *["data_loading", "model_forward", "zero_grad", "model_backward"],
    *["gradient_synchronization", "optimizer_update"],
]


def everything():
    """Return events of every kind, by a name for each."""
    named = {"span_id": 1, "parent_span_id": 0}
    for name in LONG:
        yield f"+{name}", SpanStarted(**named, name=name)
        yield name, SpanEnded(**named, name=name, duration_ns=1)
    for kind in KINDS:
        yield kind, IterationEnded(span_id=1, kind=kind, duration_ns=1)
    for name in WITHIN:
        yield name, ProfileSpanEnded(**named, name=name, duration_ns=1)
    yield "mine", IterationSpanEnded(**named, name="mine", duration_ns=1)
    yield "my priority", ProfileSpanEnded(**named, name="mine", duration_ns=1)
    yield "heartbeat", Heartbeat(sequence=0)
    yield "profiled", Profiled()


def kept(name, **more):
    """Return the names of the events that a handler gets under the preset *name*."""
    found = Capture()
    events = dict(everything())
    with Bus() as bus:
        bus.subscribe(found, **preset(name).arguments(**more))
        for one in events.values():
            bus.log(one)
    return [label for label, one in events.items() if any(one is event for event in found)]


LIFECYCLE_ONES = [label for name in LONG for label in (f"+{name}", name)]


class TestPresets:
    def test_default(self):
        """
        The default preset exports what One Logger exports by default: neither iterations nor the spans within them.
        """
        assert kept("default") == [*LIFECYCLE_ONES, "mine", "heartbeat"]

    def test_per_step(self):
        """The preset per_step adds iterations."""
        assert kept("per_step") == [*LIFECYCLE_ONES, *KINDS, "mine", "heartbeat"]

    def test_profiling(self):
        """The preset profiling adds every span within iterations."""
        assert kept("profiling") == [*LIFECYCLE_ONES, *KINDS, *WITHIN, "mine", "my priority", "heartbeat"]

    def test_all(self):
        """The preset all adds everything else."""
        assert kept("all") == [label for label, _ in everything()]

    @pytest.mark.parametrize("name", ["default", "per_step"])
    def test_costs_nothing(self, name):
        """Events that come several times a step are not even built while no other handler wants them."""
        with Bus() as bus:
            bus.subscribe(Capture(), **preset(name).arguments())
            assert bus.wants(ProfileSpanEnded) is False

    @pytest.mark.parametrize("name", ["default", "all"])
    def test_with_a_rule(self, name):
        """A rule of the handler's own must keep the event too."""
        with_a_rule = kept(name, keep=where(lambda event: not isinstance(event, Heartbeat)))
        assert with_a_rule == [label for label in kept(name) if label != "heartbeat"]

    @pytest.mark.parametrize("wrong", ["everything", "", None, []])
    def test_wrong(self, wrong):
        """An unknown name is refused, with a list of the known ones."""
        with pytest.raises(ConfigError, match='give one of "default", "per_step", "profiling", "all"'):
            preset(wrong)
