"""Mechanisms that several layers share. No module here knows of a subscriber or a file."""

from trackside.core._circuit_breaker import CircuitBreaker
from trackside.core._closing import Closing, Once, deadline_in, left_s
from trackside.core._count import CountByLane, ThreadSafeCount
from trackside.core._logging import LOGGER, RateLimitedLog, complain, described, is_power_of_two
from trackside.core._signal_handlers import is_from_signal_handler
from trackside.core._worker import LateThread, Mailbox, StopEvent, Work, Worker, wait_until_set

__all__ = [
    "LOGGER",
    "CircuitBreaker",
    "Closing",
    "CountByLane",
    "LateThread",
    "Mailbox",
    "Once",
    "RateLimitedLog",
    "StopEvent",
    "ThreadSafeCount",
    "Work",
    "Worker",
    "complain",
    "deadline_in",
    "described",
    "is_from_signal_handler",
    "is_power_of_two",
    "left_s",
    "wait_until_set",
]
