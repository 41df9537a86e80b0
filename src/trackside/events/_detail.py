"""How much an event matters when there is not room for all."""

from __future__ import annotations

import enum


class Detail(enum.IntEnum):
    """
    The level of detail of an event class.

    A property of the class, so it costs nothing per event. A full queue refuses the lowest level first.
    """

    PROFILE = 1
    """Several per training step."""
    ITERATION = 2
    """One per training step or so."""
    LIFECYCLE = 3
    """Job, loops, checkpoints, reports; given up last."""


PROFILE = Detail.PROFILE
ITERATION = Detail.ITERATION
LIFECYCLE = Detail.LIFECYCLE
