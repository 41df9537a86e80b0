"""Verbs over NATS: a request to the processes of a run, and their answers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from nats.js.api import DeliverPolicy

from trackside.events import ConfigError, DecodeError, UnreadableError
from trackside.handlers.export import SourcedDecoder
from trackside.handlers.nats._stream import (
    StreamAddress,
    StreamPull,
    control_subject,
    reading,
    subject_token,
    user_of,
    with_client,
)
from trackside.handlers.zeromq import Outcome, Result, Verb
from trackside.handlers.zeromq._control import meant_sources
from trackside.handlers.zeromq._protocol import MAX_ANSWERS, decode, encode
from trackside.handlers.zeromq._receiver import SourceRegistry, SourceState

_LOOK_S: Final = 0.1
_NO_USER: Final = "anybody"
"""The word in a subject in place of the user's name, if there is no user."""


def command(
    address: str, verb: str, arguments: Mapping[str, Any] | None, targets: Sequence[str], timeout_s: float
) -> list[Outcome]:
    """
    Have the processes of the run at *address* perform *verb*, and return the answer of each.

    The arguments are those of `trackside.handlers.zeromq.command`. Each process that published to the stream and has
    neither ended nor been replaced has an outcome, even if it does not answer.

    Raises:
        ConfigError: *address* is not the address of a run.
        UnreadableError: The server does not answer or refuses, or no process of the run is running.
    """
    parsed = StreamAddress.parse(address)
    if not parsed.run:
        raise ConfigError("run", str(parsed), "give nats://HOST:PORT/STREAM/RUN; `trackside runs` lists the runs")
    of_rank = [f"rank:{parsed.rank}"] if parsed.rank else []
    within_ms = max(0, round(timeout_s * 1000))
    request = Verb(1, verb, [*targets, *of_rank], dict(arguments or {}), within_ms=within_ms)
    deadline_s = time.monotonic() + timeout_s

    async def use(client: Any, refusals: list[str]) -> list[Outcome]:
        return await _ask(client, refusals, parsed, request, deadline_s)

    with reading(parsed, timeout_s):
        return with_client(parsed, use, timeout_s / len(parsed.servers))


async def _ask(
    client: Any, refusals: list[str], address: StreamAddress, verb: Verb, deadline_s: float
) -> list[Outcome]:
    timeout_s = deadline_s - time.monotonic()
    looking = _meant(client.jetstream(timeout=timeout_s), address, verb.targets)
    states, now_s = await asyncio.wait_for(looking, max(0.0, timeout_s))
    inbox = client.new_inbox()
    answers = await client.subscribe(inbox)
    user = subject_token(user_of(address.servers).name or _NO_USER)
    await client.publish(control_subject(address.stream, address.run, user), encode(verb)[0], reply=inbox)
    outcomes: dict[str, Outcome] = {}
    is_heard = True
    while is_heard and not refusals and time.monotonic() < deadline_s:
        if outcomes and states.keys() <= outcomes.keys():
            break
        try:
            answer = await answers.next_msg(timeout=_LOOK_S)
        except (TimeoutError, asyncio.TimeoutError):
            continue
        is_heard = bool(answer.data)  # if nobody listens, the server itself answers without data
        _record(answer.data, outcomes)
    if refusals:
        remedy = f"it takes a user who may publish to {address.stream}-control.>; see docs/nats.md"
        raise UnreadableError(str(address), f"refused ({refusals[0]})", remedy)
    for name in states.keys() - outcomes.keys():
        error = f"no answer; it last published {now_s - states[name].heard_s:.0f} s before the newest of the run"
        outcomes[name] = Outcome(name, done=False, values={"rank": states[name].source.rank, "error": error})
    if not outcomes:
        raise UnreadableError(str(address), "no process of the run answers", "does it run, with this stream?")
    return list(outcomes.values())


def _record(data: bytes, outcomes: dict[str, Outcome]) -> None:
    try:
        result = decode([data]) if data else None
    except DecodeError:  # anybody who knows the subject may have sent it
        return
    if isinstance(result, Result) and len(outcomes) < MAX_ANSWERS:
        outcomes.setdefault(result.source_id, Outcome(result.source_id, result.done, result.values))


async def _meant(jetstream: Any, address: StreamAddress, targets: list[str]) -> tuple[dict[str, SourceState], float]:
    """Return the sources that *targets* mean, by id, from the last message of each; and when the newest was stored."""
    registry = SourceRegistry(unasked_interval_s=None)
    decoder = SourcedDecoder()
    newest_s = 0.0
    pull = StreamPull(address.stream, address.subject, begin={"deliver_policy": DeliverPolicy.LAST_PER_SUBJECT})
    while True:
        messages = await pull.fetch(jetstream)
        for message in messages:
            newest_s = max(newest_s, message.stored_s)
            try:
                frame = decoder.decode_with(message.source_json, message.frame)
            except DecodeError:
                continue
            state = registry.state_of(frame.source, message.stored_s)
            for event in frame.events:
                state.signs.read(event)
        if messages[-1].pending == 0 if messages else await pull.is_at_end():
            break
    await pull.close(jetstream)
    list(registry.silent(newest_s, 0))  # this marks the silent ones
    found = meant_sources(registry, targets, newest_s)
    return {state.source.id: state for state in found}, newest_s
