"""The buckets of a job's time as people see them: a name, a colour and a word on what it is."""

from __future__ import annotations

from typing import Final

import attrs


@attrs.frozen
class Shown:
    """How a bucket is shown."""

    name: str
    light: str
    dark: str
    """Colours, on light and on dark ground; chosen to be told apart by people who see fewer of them."""
    terminal: str


PRODUCTIVE: Final = "PRODUCTIVE"
_SHOWN: Final = {
    PRODUCTIVE: Shown("productive", "#1f8a5b", "#35b27b", "green"),
    "WASTED_PROGRESS_FROM_DISRUPTION": Shown("steps done again", "#c8322b", "#e5655c", "red"),
    "INFRASTRUCTURE_RECOVERY_FROM_DISRUPTION": Shown("until it was back", "#8e2c66", "#c45f9c", "magenta"),
    "UNPRODUCTIVE_CHECKPOINT_SAVE_TIME": Shown("saving checkpoints", "#3566c0", "#6f9bf0", "blue"),
    "UNPRODUCTIVE_CHECKPOINT_RESTORE_TIME": Shown("loading checkpoints", "#6aa3e8", "#9cc4f5", "bright_blue"),
    "DATA_LOADING_SYNC": Shown("waiting for data", "#d98a00", "#f0b03f", "yellow"),
    "VALIDATION": Shown("validation", "#0f8f9e", "#3fbdca", "cyan"),
    "ACCELERATOR_INITIALIZATION": Shown("starting accelerators", "#8a6d3b", "#b99a62", "bright_yellow"),
    "TRAINING_PREP": Shown("preparing", "#a58d5f", "#cdb88a", "bright_cyan"),
    "PROGRAM_STARTUP": Shown("the first step", "#bfae8e", "#8d7f63", "bright_magenta"),
    "OTHER": Shown("nothing says what", "#9aa0a6", "#6d747b", "bright_black"),
}
_ELSE: Final = Shown("", "#5b4fb3", "#958af0", "white")


def shown(bucket: str) -> Shown:
    """Return how *bucket* is shown; custom and elastic ones have one colour and their own name."""
    return _SHOWN.get(bucket) or attrs.evolve(_ELSE, name=bucket.lower().replace("_", " "))
