"""What `subscribe` returns."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing_extensions import Self

    from trackside.bus._bus import Bus
    from trackside.bus._inline import InlineSeat
    from trackside.bus._queued import QueuedSeat
    from trackside.bus._stats import HandlerStats


class Subscription:
    """
    A handler's place on a bus; leave it with `close`, or use it as a context manager.

    Dropping the object changes nothing: the handler stays subscribed.
    """

    __slots__ = ("_bus", "_seat", "handler")

    def __init__(self, bus: Bus, seat: InlineSeat | QueuedSeat, handler: Any) -> None:
        self._bus = bus
        self._seat = seat
        self.handler = handler

    def close(self, timeout_s: float = 2.0) -> bool:
        """
        Give the handler no more events; closing twice is harmless.

        A queued handler first gets what was logged before, then its own ``close`` is called if it has one.

        Args:
            timeout_s: How long that may take, in seconds.

        Returns:
            Whether it was done in time. What was not delivered by then is counted as shed.
        """
        return self._bus._unsubscribe(self._seat, timeout_s)  # noqa: SLF001

    @property
    def closed(self) -> bool:
        """Whether the handler has left the bus."""
        return not self._bus._is_seated(self._seat)  # noqa: SLF001

    def stats(self, timeout_s: float = 1.0) -> HandlerStats:
        """Return the handler's counts, also after it left; *timeout_s* is as for `Bus.stats`."""
        return self._bus._stats_of(self._seat, timeout_s)  # noqa: SLF001

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
