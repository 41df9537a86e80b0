"""
The library, loaded when it is first used.

A job's `start` knows how to publish, and importing trackside must not load zmq: every module of this package takes it
from here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import zmq
    from zmq.utils import z85
else:

    class _WhenUsed:
        def __init__(self, load: Any) -> None:
            self._load = load

        def __getattr__(self, name: str) -> Any:
            return getattr(self._load(), name)

    def _load_zmq() -> Any:
        import zmq  # noqa: PLC0415  not before it is used

        return zmq

    def _load_z85() -> Any:
        from zmq.utils import z85  # noqa: PLC0415

        return z85

    zmq = _WhenUsed(_load_zmq)
    z85 = _WhenUsed(_load_z85)

__all__ = ["z85", "zmq"]
