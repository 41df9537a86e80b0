"""Verbs on their way through a collector or forwarder: to whom they are meant for, and what came of them back."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from typing import Any, Final

import attrs

from trackside.events import ControlUsed, Event
from trackside.handlers.zeromq._endpoints import Safety
from trackside.handlers.zeromq._intake import Giver, Intake
from trackside.handlers.zeromq._keys import CONTROL
from trackside.handlers.zeromq._protocol import VERBS, Result, Verb
from trackside.handlers.zeromq._roll import Member, Roll

_ANSWER_WITHIN_S: Final = 60.0
_MOST_WAITING: Final = 1024
_RANK: Final = "rank:"
_COLLECTOR: Final = "collector"


def may_command(safety: Safety, user: str) -> bool:
    """
    Return whether *user* may use verbs on an endpoint of that *safety*.

    Args:
        safety: What protects the endpoint. If it is the file system, whoever gets there is this user.
        user: Role and fingerprint of a key, as ``control:0123abcd``; empty for none.
    """
    return safety is Safety.PRIVATE or (safety is Safety.KEYED and user.partition(":")[0] == CONTROL)


def is_target(source_id: str, rank: int, targets: list[str]) -> bool:
    """Return whether a source is among *targets*; all are if there are none."""
    return not targets or source_id in targets or f"{_RANK}{rank}" in targets


@attrs.define
class _Waiting:
    """A verb that was passed on."""

    address: bytes
    request: int
    until_s: float


class Dispatch:
    """
    Passes verbs on and answers back.

    Args:
        intake: The links to pass them on by.
        roll: Who is there.
        answer: Sends a result to an address.
        publish: Says in this process's own stream that a verb was used.
        source_id: Of this process, whose own result comes first and says how many follow.
    """

    def __init__(
        self,
        intake: Intake,
        roll: Roll,
        *,
        answer: Callable[[bytes, Result], object],
        publish: Callable[[Event], object],
        source_id: str,
    ) -> None:
        self._intake = intake
        self._roll = roll
        self._answer = answer
        self._publish = publish
        self._source_id = source_id
        self._numbers = itertools.count(1)
        self._waiting: dict[int, _Waiting] = {}

    def pass_on(self, address: bytes, verb: Verb, by: str, now_s: float, totals: dict[str, Any]) -> None:
        """
        Pass *verb* on, and say to *address* how many results to expect.

        Args:
            address: Who asked.
            verb: What was asked.
            by: Who that is, for people.
            now_s: The time now.
            totals: What this process itself has to say, for ``status``.
        """
        if verb.verb not in VERBS:
            self._refuse(address, verb, by, f"there is no verb {verb.verb[:40]!r}; there are {', '.join(VERBS)}")
            return
        self._forget_old(now_s)
        if len(self._waiting) >= _MOST_WAITING:
            self._refuse(address, verb, by, "too many verbs are waiting for their results")
            return
        meant = [member for member in self._roll.members.values() if self._is_meant(member, verb.targets)]
        number = next(self._numbers)
        self._waiting[number] = _Waiting(address, verb.request, now_s + _ANSWER_WITHIN_S)
        self._intake.command(attrs.evolve(verb, request=number), self._givers_of(meant))
        self._say(verb, by, done=True, outcome=f"passed on to {len(meant)} source(s)")
        values = {"expected": len(meant), **(totals if verb.verb == "status" else {})}
        self._answer(address, Result(verb.request, self._source_id, done=True, values=values))

    def on_result(self, result: Result) -> None:
        """Pass *result* on to whoever asked."""
        waiting = self._waiting.get(result.request)
        if waiting is not None:
            self._answer(waiting.address, attrs.evolve(result, request=waiting.request))

    def refuse(self, address: bytes, verb: Verb, by: str) -> None:
        """Refuse *verb* for lack of the right to use it."""
        self._refuse(address, verb, by, "it takes the control key; this is not it")

    def _is_meant(self, member: Member, targets: list[str]) -> bool:
        source = member.source
        is_there = member.ended is None and member.silent_s is None and member.address in self._intake.givers
        return is_there and source.role != _COLLECTOR and is_target(source.id, source.rank, targets)

    def _givers_of(self, members: Iterable[Member]) -> list[Giver]:
        addresses = {member.address for member in members}
        return [self._intake.givers[address] for address in addresses]

    def _refuse(self, address: bytes, verb: Verb, by: str, outcome: str) -> None:
        self._say(verb, by, done=False, outcome=outcome)
        self._answer(address, Result(verb.request, self._source_id, done=False, values={"error": outcome}))

    def _say(self, verb: Verb, by: str, *, done: bool, outcome: str) -> None:
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

    def _forget_old(self, now_s: float) -> None:
        for number in [number for number, one in self._waiting.items() if one.until_s < now_s]:
            del self._waiting[number]
