"""Events about the machine that a rank runs on."""

from __future__ import annotations

import attrs

from trackside.events._event import LIFECYCLE, Event, event


@event("trackside.system.sampling_started", priority=LIFECYCLE)
class SystemSamplingStarted(Event):
    """
    CPU, memory and GPU are read from now on. Published once, by the system's sampling.

    What is read comes in `CounterWindow` events.
    """

    sampled: list[str]
    """The names of the gauges that have the readings."""
    absent: dict[str, str] = attrs.field(factory=dict)
    """Why a part (``cpu``, ``gpu``) cannot be read, by its name."""
