"""Asking something of a running job, or of all ranks behind a collector."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

import attrs

from trackside.events import ConfigError, DecodeError, UnreadableError, clock
from trackside.handlers.zeromq._endpoints import Safety
from trackside.handlers.zeromq._keys import CONTROL
from trackside.handlers.zeromq._link import Link
from trackside.handlers.zeromq._outlet import describe_process
from trackside.handlers.zeromq._protocol import (
    PROTOCOL_VERSION,
    VERBS,
    VIEWER_END,
    Bye,
    Hello,
    Message,
    Ping,
    Pong,
    Refused,
    Reset,
    Result,
    Verb,
    Welcome,
    decode,
    encode,
)

TIMEOUT_S: Final = 5.0
_ASK_AGAIN_S: Final = 0.5
_LOOK_S: Final = 0.05
_EXPECTED: Final = "expected"
"""In what a collector or forwarder itself says: how many sources it passed the verb on to."""


@attrs.frozen
class Outcome:
    """What one source, or a collector on the way, said to a verb."""

    source_id: str
    done: bool
    values: dict[str, Any]


def command(
    endpoint: str,
    verb: str,
    arguments: Mapping[str, Any] | None = None,
    *,
    targets: Sequence[str] = (),
    keys: str | os.PathLike[str] | None = None,
    timeout_s: float = TIMEOUT_S,
) -> list[Outcome]:
    """
    Have *verb* done, and return what each source that it reached said.

    Args:
        endpoint: Where a job publishes, or a collector does.
        verb: ``status``, ``detail``, ``sample``, ``pause``, ``resume`` or ``flush``.
        arguments: ``{"level": "ITERATION"}`` for ``detail``, ``{"every": 10}`` for ``sample``; ``{"seconds": 60}`` for
            how long either, or ``pause``, holds at most.
        targets: Ids of sources, or ``rank:N``; all unless given.
        keys: A directory of keys with the control key; the viewing key does not do.
        timeout_s: How long to wait for results, in seconds. Ranks that do not answer are missing in what is returned.

    Raises:
        ConfigError: The verb does not exist, or the endpoint is not safe.
        UnreadableError: Nobody answers there, or it is refused.
    """
    if verb not in VERBS:
        raise ConfigError("verb", verb, f"give one of {', '.join(VERBS)}")
    link = Link(endpoint, binds=False, role=CONTROL, keys=keys)
    try:
        if link.safety is Safety.INSECURE:
            raise ConfigError("endpoint", endpoint, "verbs need keys, or a socket of this user's own")
        return _Asking(link, endpoint, verb, dict(arguments or {}), list(targets)).ask(timeout_s)
    finally:
        link.send(b"", encode(Bye("done")))
        link.close()


class _Asking:
    """One verb, from the greeting to the last result."""

    def __init__(self, link: Link, endpoint: str, verb: str, arguments: dict[str, Any], targets: list[str]) -> None:
        self._link = link
        self._endpoint = endpoint
        self._hello = Hello(PROTOCOL_VERSION, VIEWER_END, os.urandom(8).hex(), describe_process())
        self._verb = Verb(1, verb, targets, arguments)
        self._is_met = False
        self._is_asked = False
        self._expected: int | None = None
        self._outcomes: list[Outcome] = []

    def ask(self, timeout_s: float) -> list[Outcome]:
        """Ask, and return the outcomes."""
        deadline_s = time.monotonic() + timeout_s
        greeted_s = -1e9
        while (now_s := time.monotonic()) < deadline_s and not self._is_complete():
            if not self._is_met and now_s - greeted_s >= _ASK_AGAIN_S:
                greeted_s = now_s
                self._link.send(b"", encode(self._hello))
            self._link.wait(_LOOK_S)
            for _, parts, _ in self._link.receive(64):
                try:
                    self._on(decode(parts))
                except DecodeError:
                    continue
        if not self._is_met:
            raise UnreadableError(self._endpoint, "nobody answers", "see that it runs, and that the keys belong to it")
        if not self._outcomes:
            raise UnreadableError(self._endpoint, f"no answer within {timeout_s:g} s", "ask again later")
        return self._outcomes

    def _is_complete(self) -> bool:
        answers = sum(_EXPECTED not in outcome.values for outcome in self._outcomes)
        return self._expected is not None and answers >= self._expected

    def _on(self, message: Message) -> None:
        if isinstance(message, Welcome):
            self._is_met = True
            if not self._is_asked:  # once: what is asked twice would be done twice
                self._is_asked = True
                self._link.send(b"", encode(self._verb))
        elif isinstance(message, Ping):
            now_ns = clock.now_ns()
            self._link.send(b"", encode(Pong(message.sent_ns, now_ns, now_ns)))
        elif isinstance(message, Refused):
            raise UnreadableError(self._endpoint, f"it refuses: {message.text}", "see docs/security.md")
        elif isinstance(message, Reset):
            self._is_met = False
        elif isinstance(message, Result) and message.request == self._verb.request:
            self._take(message)

    def _take(self, result: Result) -> None:
        self._outcomes.append(Outcome(result.source_id, result.done, result.values))
        if len(self._outcomes) == 1:
            # A collector says first to how many it passed the verb on; a job itself has nobody behind it.
            expected = result.values.get(_EXPECTED, 1)
            self._expected = expected if type(expected) is int else 1
