"""Checkpoints that are either whole or not there."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch


def checkpoint_path(directory: Path, step: int) -> Path:
    """Return the path of the checkpoint of *step*."""
    return directory / f"step-{step:06d}.pt"


def save_checkpoint(path: Path, state: dict[str, Any]) -> None:
    """Write *state*; if the process is killed meanwhile, an earlier file at *path* stays whole."""
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
