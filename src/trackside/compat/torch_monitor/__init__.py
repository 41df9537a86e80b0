"""
The names of ``torch.monitor`` over trackside's bus, and a bridge between the two.

With ``from trackside.compat import torch_monitor as monitor`` in place of ``from torch import monitor``, stats and
events go to trackside, and torch is not needed. Where the import cannot be changed, the bridge connects the two::

    from_torch_monitor()  # what others report through torch.monitor goes to trackside
    trackside.subscribe(ToTorchMonitor())  # handlers registered with torch.monitor get trackside's events
"""

from trackside.compat.torch_monitor._names import (
    Aggregation,
    Event,
    EventHandlerHandle,
    Stat,
    TensorboardEventHandler,
    _WaitCounter,  # noqa: F401  private in torch.monitor too, and imported by its tests
    log_event,
    register_event_handler,
    unregister_event_handler,
)
from trackside.compat.torch_monitor._tap import STAT_EVENT, TorchMonitorEvent, ToTorchMonitor, from_torch_monitor

__all__ = [
    "STAT_EVENT",
    "Aggregation",
    "Event",
    "EventHandlerHandle",
    "Stat",
    "TensorboardEventHandler",
    "ToTorchMonitor",
    "TorchMonitorEvent",
    "from_torch_monitor",
    "log_event",
    "register_event_handler",
    "unregister_event_handler",
]
