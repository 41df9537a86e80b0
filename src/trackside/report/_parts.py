"""The parts of a step, and the kind of work that each is."""

from __future__ import annotations

import re
from typing import Final

from trackside.events import span_names

KINDS: Final = (
    (
        "waiting",
        re.compile(
            r"wait|barrier|gradient_sync|all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|collective|nccl|comm"
        ),
    ),
    ("input", re.compile(r"data|load|fetch|input|batch|tokeni[sz]|augment|prefetch")),
    ("compute", re.compile(r"forward|backward|optim|update|zero_grad|comput|matmul|attention|attn|mlp|gpu|step|grad")),
)
"""The first whose pattern a name holds is its kind."""
OTHER: Final = "other"


def kind_of(name: str, waits: set[str]) -> str:
    """Return ``input``, ``compute``, ``waiting`` or ``other``: what *name* says, unless it is known to wait."""
    # A backward pass contains waiting where gradients are exchanged in it, and computes all the same.
    if name in waits and name not in span_names.WITHIN_STEP:
        return "waiting"
    low = name.lower()
    return next((kind for kind, pattern in KINDS if pattern.search(low)), OTHER)
