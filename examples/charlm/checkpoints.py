"""Checkpoints that are either whole or not there."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch


def checkpoint_path(directory: Path, step: int) -> Path:
    """Return where the checkpoint of *step* belongs."""
    return directory / f"step-{step:06d}.pt"


def save_checkpoint(path: Path, state: dict[str, Any]) -> None:
    """Write *state*; whatever kills the process meanwhile, what was at *path* before stays whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".unfinished")
    with unfinished.open("wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    unfinished.replace(path)


def latest_checkpoint(directory: Path) -> Path | None:
    """Return the newest whole checkpoint; None if there is none."""
    return max(directory.glob("step-*.pt"), default=None)
