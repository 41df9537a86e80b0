"""
The frameworks that trackside watches: one module, and one callback, for each.

`pytorch` is for a hand-written loop, `lightning` and `pytorch_lightning` for a ``Trainer`` of either package, `fabric`
for Lightning Fabric, `transformers` for the ``Trainer`` of Hugging Face, and `accelerate` for a loop under Accelerate.
Each module imports its framework, and is itself imported at its first use.
"""

from __future__ import annotations

from trackside._later import load_later

__all__ = ["accelerate", "fabric", "lightning", "pytorch", "pytorch_lightning", "transformers"]

__getattr__, __dir__ = load_later(__name__, {f"{__name__}.{name}": name for name in __all__})
