"""Tiny fits with either of Lightning's packages; a module that imports this is skipped where one is missing."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pathlib import Path

PACKAGES = ("lightning", "pytorch_lightning")

for _name in PACKAGES:
    pytest.importorskip(_name)

import frameworks  # noqa: E402  after what may skip all of this


def callback_of(package: str, *args: Any, **options: Any) -> Any:
    return importlib.import_module(f"trackside.integrations.{package}").TracksideCallback(*args, **options)


def framework(package: str) -> Any:
    return importlib.import_module("lightning.pytorch" if package == "lightning" else package)


def fit(
    package: str, directory: Path, *callbacks: Any, module: Any = None, ckpt_path: Any = None, **options: Any
) -> Any:
    """Train; return the module."""
    trainer = frameworks.lightning_trainer(package, directory, *callbacks, **options)
    module = module or frameworks.lightning_module(package)
    trainer.fit(module, frameworks.loader(), frameworks.loader(), ckpt_path=ckpt_path)
    return module
