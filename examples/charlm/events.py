"""The demo's own event types, beyond trackside's vocabulary."""

from __future__ import annotations

import trackside


@trackside.event("charlm.batch.drawn", priority=trackside.PROFILE)
class BatchDrawn(trackside.Event):
    """A batch was cut out of the text. Published by the data loading process that did it."""

    worker: int
    characters: int
    duration_ns: int


@trackside.event("charlm.sample.written", priority=trackside.LIFECYCLE)
class SampleWritten(trackside.Event):
    """The model was asked to write some Python itself. Published by rank 0, after each validation."""

    prompt: str
    text: str
