"""The priority of events: the order in which a full queue drops them."""

from __future__ import annotations

import enum


class Priority(enum.IntEnum):
    """
    The priority of an event class.

    A property of the class, so it costs nothing per event. A full queue refuses the lowest level first.
    """

    PROFILE = 1
    """Several per training step."""
    ITERATION = 2
    """One per training step or so."""
    LIFECYCLE = 3
    """Job, loops, checkpoints, reports; given up last."""


PROFILE = Priority.PROFILE
ITERATION = Priority.ITERATION
LIFECYCLE = Priority.LIFECYCLE
