"""Verbs: requests to a job or a collector, passed on to its ranks, and the results on their way back."""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import attrs

from trackside.events import ConfigError, ControlUsed, DecodeError, Event, UnreadableError, clock
from trackside.handlers.eventlog import is_stream, stream_module
from trackside.handlers.zeromq._connection import Connection, Safety, check_endpoint
from trackside.handlers.zeromq._keys import CONTROL
from trackside.handlers.zeromq._protocol import (
    VERBS,
    Bye,
    Message,
    Refused,
    Result,
    Verb,
    encode,
)
from trackside.handlers.zeromq._receiver import Producer, Receiver, SourceRegistry, SourceState
from trackside.handlers.zeromq._session import Action, Role, Sessions

_MOST_S: Final = 60.0
_SHARE: Final = 0.8
"""The share of the asker's waiting time after which every source without a result is reported as failed."""
_FIRST_NUMBER: Final = 1 << 32
"""The first number of verbs that are passed on. `Refused` has a verb's or a `Subscribe`'s number; these begin at 1."""
_MOST_WAITING: Final = 1024
_RANK: Final = "rank:"
_COLLECTOR: Final = "collector"


def may_command(safety: Safety, user: str) -> bool:
    """
    Return whether *user* may use verbs on an endpoint of that *safety*.

    Args:
        safety: The protection of the endpoint. If it is the file system, only this user can reach it.
        user: Role and fingerprint of a key, as in ``control:0123abcd``; empty for none.
    """
    return safety is Safety.PRIVATE or (safety is Safety.KEYED and user.partition(":")[0] == CONTROL)


def is_target(source_id: str, rank: int, targets: list[str]) -> bool:
    """Return whether a source is among *targets*; without targets, every source is."""
    return not targets or source_id in targets or f"{_RANK}{rank}" in targets


def meant_sources(registry: SourceRegistry, targets: list[str], now_s: float) -> list[SourceState]:
    """Return the sources that a verb is meant for, also those that cannot be reached now."""
    states = [state for state in registry.states.values() if state.source.role != _COLLECTOR]
    attempts: dict[tuple[str, int], int] = {}
    for state in states:
        rank = (state.source.run_id, state.source.rank)
        attempts[rank] = max(state.source.attempt, attempts.get(rank, 0))
    return [
        state
        for state in states
        if state.ended is None
        and state.source.attempt >= attempts[state.source.run_id, state.source.rank]
        and is_target(state.source.id, state.source.rank, targets)
        and (targets or not registry.is_gone(state, now_s))
    ]


@attrs.define
class _Waiting:
    """A verb that was passed on."""

    address: bytes
    verb: Verb
    until_s: float
    pending: dict[str, SourceState]
    """The sources whose result is still to come, by id."""


class VerbForwarder:
    """
    Passes verbs on, and their results back: exactly one for each source that a verb is meant for.

    If a source cannot be reached, or does not answer in time, its result is made here and says so.

    Args:
        receiver: The connections over which verbs are passed on.
        registry: The known sources.
        answer: Sends a result to an address.
        publish: Publishes an event in this process's own stream.
        source_id: The id of this process's source; its own result comes first and gives the number of the others.
    """

    def __init__(
        self,
        receiver: Receiver,
        registry: SourceRegistry,
        *,
        answer: Callable[[bytes, Result], object],
        publish: Callable[[Event], object],
        source_id: str,
    ) -> None:
        self._receiver = receiver
        self._registry = registry
        self._answer = answer
        self._publish = publish
        self._source_id = source_id
        self._numbers = itertools.count(_FIRST_NUMBER)
        self._waiting: dict[int, _Waiting] = {}

    def pass_on(self, address: bytes, verb: Verb, by: str, now_s: float, totals: dict[str, Any]) -> None:
        """
        Pass *verb* on, and report to *address* how many results to expect.

        Args:
            address: The address of the asker.
            verb: The request.
            by: The asker's name, for people.
            now_s: The time now.
            totals: This process's own answer to ``status``.
        """
        if verb.verb not in VERBS:
            self._refuse(address, verb, by, f"there is no verb {verb.verb[:40]!r}; there are {', '.join(VERBS)}")
            return
        if len(self._waiting) >= _MOST_WAITING:
            self._refuse(address, verb, by, "too many verbs are waiting for their results")
            return
        meant = meant_sources(self._registry, verb.targets, now_s)
        self._record(verb, by, done=True, outcome=f"passed on to {len(meant)} source(s)")
        values = {"expected": len(meant), **(totals if verb.verb == "status" else {})}
        self._answer(address, Result(verb.request, self._source_id, done=True, values=values))
        within_s = min(verb.within_ms / 1000, _MOST_S) * _SHARE
        waiting = _Waiting(address, verb, now_s + within_s, {state.source.id: state for state in meant})
        number = next(self._numbers)
        self._waiting[number] = waiting
        passed_on = attrs.evolve(verb, request=number, within_ms=round(within_s * 1000))
        producers = {state.producer.id: state.producer for state in meant if state.producer is not None}
        reached = [producer for producer in producers.values() if self._receiver.command(passed_on, producer)]
        for state in meant:
            if state.producer not in reached:
                heard = "" if state.producer is None else f"; it was last heard {now_s - state.heard_s:.0f} s ago"
                self._fail(waiting, state, f"it is not connected{heard}")
        self._finish(number)

    def on_result(self, producer: Producer, message: Result | Refused) -> None:
        """Pass the result of *producer* on to the viewer that asked for it."""
        waiting = self._waiting.get(message.request)
        if waiting is None:
            return
        if isinstance(message, Refused):
            self._fail_all(waiting, producer, message.text)
        elif message.source_id in waiting.pending:
            if waiting.pending[message.source_id].producer is producer:
                del waiting.pending[message.source_id]
                self._answer(waiting.address, attrs.evolve(message, request=waiting.verb.request))
        elif not message.done and self._is_relay(message.source_id):
            self._fail_all(waiting, producer, str(message.values.get("error", "")))
        self._finish(message.request)

    def tick(self, now_s: float) -> None:
        """Report a failure for every source whose result did not come in time."""
        for number in [number for number, waiting in self._waiting.items() if waiting.until_s <= now_s]:
            waiting = self._waiting[number]
            for state in list(waiting.pending.values()):
                self._fail(waiting, state, "no result in time; it may have been done")
            self._finish(number)

    def refuse(self, address: bytes, verb: Verb, by: str) -> None:
        """Refuse *verb*, because the asker may not use verbs."""
        self._refuse(address, verb, by, "it takes the control key; this is not it")

    def _is_relay(self, source_id: str) -> bool:
        state = self._registry.states.get(source_id)
        return state is not None and state.source.role == _COLLECTOR

    def _fail_all(self, waiting: _Waiting, producer: Producer, error: str) -> None:
        for state in [state for state in waiting.pending.values() if state.producer is producer]:
            self._fail(waiting, state, error)

    def _fail(self, waiting: _Waiting, state: SourceState, error: str) -> None:
        del waiting.pending[state.source.id]
        values = {"rank": state.source.rank, "error": error}
        self._answer(waiting.address, Result(waiting.verb.request, state.source.id, done=False, values=values))

    def _finish(self, number: int) -> None:
        if not self._waiting[number].pending:
            del self._waiting[number]

    def _refuse(self, address: bytes, verb: Verb, by: str, outcome: str) -> None:
        self._record(verb, by, done=False, outcome=outcome)
        self._answer(address, Result(verb.request, self._source_id, done=False, values={"error": outcome}))

    def _record(self, verb: Verb, by: str, *, done: bool, outcome: str) -> None:
        self._publish(
            ControlUsed(
                verb=verb.verb[:40],
                arguments=verb.arguments,
                targets=verb.targets,
                by=by,
                done=done,
                outcome=outcome,
                span_id=0,
                step=-1,
            )
        )


TIMEOUT_S: Final = 5.0
_LOOK_S: Final = 0.05
_EXPECTED: Final = "expected"
"""The key, in a collector's or forwarder's own result, of the number of sources that it passed the verb on to."""


@attrs.frozen
class Outcome:
    """The answer of one source, or of a collector on the way, to a verb."""

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
    Have *verb* performed, and return the answer of each source that it reached.

    Args:
        endpoint: The endpoint of a job or of a collector; or a run in a stream, ``nats://HOST:PORT/STREAM/RUN``.
        verb: ``status``, ``priority``, ``sample``, ``pause``, ``resume`` or ``flush``.
        arguments: ``{"level": "ITERATION"}`` for ``priority``, ``{"every": 10}`` for ``sample``. ``{"seconds": 60}``
            is the longest time for which either of them, or ``pause``, is in effect.
        targets: Ids of sources, or ``rank:N``; all unless given.
        keys: A directory of keys with the control key; a viewer's key is not enough.
        timeout_s: The time to wait for results, in seconds. A collector reports a rank that has not answered by then.

    Raises:
        ConfigError: The verb does not exist, the endpoint is not safe, or *timeout_s* is not above 0 and finite.
        UnreadableError: No job or collector answers there, or it refuses.
    """
    if verb not in VERBS:
        raise ConfigError("verb", verb, f"give one of {', '.join(VERBS)}")
    if not 0 < timeout_s < math.inf:
        raise ConfigError("timeout_s", timeout_s, "give seconds above 0")
    if is_stream(endpoint):
        if keys is not None:
            raise ConfigError("keys", str(keys), "leave them out: a stream has users, and its address names one")
        outcomes: list[Outcome] = stream_module().command(endpoint, verb, arguments, targets, timeout_s)
        return outcomes
    if not check_endpoint(endpoint, has_keys=keys is not None, insecure=True).takes_control:
        raise ConfigError("endpoint", endpoint, "verbs need keys, or a socket of this user's own")
    connection = Connection(endpoint, binds=False, role=CONTROL, keys=keys)
    try:
        return _VerbSession(connection, endpoint, verb, dict(arguments or {}), list(targets)).ask(timeout_s)
    finally:
        connection.send(b"", encode(Bye("done")))
        connection.close()


class _VerbSession:
    """One verb, from the greeting to the last result."""

    def __init__(
        self, connection: Connection, endpoint: str, verb: str, arguments: dict[str, Any], targets: list[str]
    ) -> None:
        self._connection = connection
        self._endpoint = endpoint
        self._sessions: Sessions[Any] = Sessions(Role.VIEWER, connection.send)
        self._verb = Verb(1, verb, targets, arguments)
        self._deadline_s = 0.0
        self._is_asked = False
        self._expected: int | None = None
        self._outcomes: list[Outcome] = []

    def ask(self, timeout_s: float) -> list[Outcome]:
        """Send the verb, and return the outcomes."""
        self._deadline_s = time.monotonic() + timeout_s
        while (now_s := time.monotonic()) < self._deadline_s and not self._is_complete():
            self._sessions.tick(now_s)
            self._connection.wait(_LOOK_S)
            for _, parts, _ in self._connection.receive(64):
                with contextlib.suppress(DecodeError):
                    self._on(*self._sessions.receive(b"", parts, "", clock.now_ns()))
        if not self._is_asked:
            raise UnreadableError(self._endpoint, "no answer", "see that it runs, and that the keys belong to it")
        if not self._outcomes:
            raise UnreadableError(self._endpoint, f"no answer within {timeout_s:g} s", "ask again later")
        return self._outcomes

    def _is_complete(self) -> bool:
        answers = sum(_EXPECTED not in outcome.values for outcome in self._outcomes)
        return self._expected is not None and answers >= self._expected

    def _on(self, action: Action, message: Message) -> None:
        if action is Action.MEET and not self._is_asked:  # once: a verb that is sent twice would be performed twice
            self._is_asked = True
            within_ms = max(0, round((self._deadline_s - time.monotonic()) * 1000))
            self._sessions.post(b"", attrs.evolve(self._verb, within_ms=within_ms))
        elif isinstance(message, Refused) and action is Action.NOTE_REFUSAL:
            raise UnreadableError(self._endpoint, f"it refuses: {message.text}", "see docs/security.md")
        elif isinstance(message, Result) and action is Action.DELIVER and message.request == self._verb.request:
            self._record(message)

    def _record(self, result: Result) -> None:
        self._outcomes.append(Outcome(result.source_id, result.done, result.values))
        if len(self._outcomes) == 1:
            # A collector first reports to how many sources it passed the verb on; a job has no ranks behind it.
            expected = result.values.get(_EXPECTED, 1)
            self._expected = expected if type(expected) is int else 1
