"""
The frameworks that trackside watches: one module, and one callback, for each.

`pytorch` is for a loop of one's own, `lightning` and `pytorch_lightning` for a ``Trainer`` of either package, `fabric`
for Lightning Fabric, `transformers` for the ``Trainer`` of Hugging Face, and `accelerate` for a loop under Accelerate.
Each module imports its framework, and is itself imported when it is first asked for.
"""

from __future__ import annotations

import importlib
from types import ModuleType

__all__ = ["accelerate", "fabric", "lightning", "pytorch", "pytorch_lightning", "transformers"]


def __getattr__(name: str) -> ModuleType:
    if name in __all__:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), *__all__]
