"""What the demo has to say beyond trackside's own vocabulary: two event types of its own."""

from __future__ import annotations

import trackside


@trackside.event("charlm.batch.drawn", detail=trackside.PROFILE)
class BatchDrawn(trackside.Event):
    """A batch was cut out of the text. Published by the data loading process that did it."""

    worker: int
    characters: int
    duration_ns: int


@trackside.event("charlm.sample.written", detail=trackside.LIFECYCLE)
class SampleWritten(trackside.Event):
    """The model was asked to write some Python itself. Published by rank 0, after each validation."""

    prompt: str
    text: str
