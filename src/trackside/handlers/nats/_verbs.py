"""Verbs over NATS: a request to the processes of a run, and their answers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from nats.js.api import DeliverPolicy
from nats.js.errors import NotFoundError

from trackside.core import described
from trackside.events import ConfigError, DecodeError, UnreadableError
from trackside.handlers.export import SourcedDecoder
from trackside.handlers.nats._stream import (
    StreamAddress,
    StreamPull,
    connected_client,
    control_subject,
    subject_token,
    user_of,
)
from trackside.handlers.zeromq import Outcome, Result, Verb
from trackside.handlers.zeromq._control import meant_sources
from trackside.handlers.zeromq._protocol import MAX_ANSWERS, decode, encode
from trackside.handlers.zeromq._receiver import SourceRegistry, SourceState

_LOOK_S: Final = 0.1
_NO_USER: Final = "anybody"
"""In a subject, in the place of the user's name."""


def command(
    address: str, verb: str, arguments: Mapping[str, Any] | None, targets: Sequence[str], timeout_s: float
) -> list[Outcome]:
    """
    Have *verb* done by the processes of the run at *address*, and return what each of them said.

    The arguments are those of `trackside.handlers.zeromq.command`. Each process that published to the stream and has
    neither ended nor been replaced has an outcome, also if it does not answer.

    Raises:
        ConfigError: *address* is not the address of a run.
        UnreadableError: The server does not answer or refuses, or no process of the run runs.
    """
    parsed = StreamAddress.parse(address)
    if not parsed.run:
        raise ConfigError("run", str(parsed), "give nats://HOST:PORT/STREAM/RUN; `trackside runs` lists the runs")
    of_rank = [f"rank:{parsed.rank}"] if parsed.rank else []
    within_ms = max(0, round(timeout_s * 1000))
    request = Verb(1, verb, [*targets, *of_rank], dict(arguments or {}), within_ms=within_ms)
    try:
        return asyncio.run(_ask(parsed, request, time.monotonic() + timeout_s))
    except UnreadableError:
        raise
    except NotFoundError as error:
        raise UnreadableError(str(parsed), f"has no stream {parsed.stream}", "is it spelled so?") from error
    except Exception as error:  # whatever the client raises
        remedy = "is a NATS server with JetStream there, and may this user read the stream?"
        raise UnreadableError(str(parsed), f"no answer within {timeout_s:g} s ({described(error)})", remedy) from error


async def _ask(address: StreamAddress, verb: Verb, deadline_s: float) -> list[Outcome]:
    refusals: list[str] = []

    async def note(error: Exception) -> None:
        refusals.append(str(error))

    timeout_s = deadline_s - time.monotonic()
    client = await connected_client(address.servers, connect_timeout=timeout_s, allow_reconnect=False, error_cb=note)
    try:
        looking = _meant(client.jetstream(timeout=timeout_s), address, verb.targets)
        states, now_s = await asyncio.wait_for(looking, max(0.0, deadline_s - time.monotonic()))
        inbox = client.new_inbox()
        answers = await client.subscribe(inbox)
        user = subject_token(user_of(address.servers[0]) or _NO_USER)
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
            is_heard = bool(answer.data)  # the server itself answers without, where nobody listens
            _record(answer.data, outcomes)
    finally:
        refused = refusals.copy()  # to close a connection with TLS may end in an error that is no refusal
        await client.close()
    if refused:
        remedy = f"it takes a user who may publish to {address.stream}-control.>; see docs/nats.md"
        raise UnreadableError(str(address), f"refused ({refused[0]})", remedy)
    for name in states.keys() - outcomes.keys():
        error = f"no answer; it last published {now_s - states[name].heard_s:.0f} s before the newest of the run"
        outcomes[name] = Outcome(name, done=False, values={"rank": states[name].source.rank, "error": error})
    if not outcomes:
        raise UnreadableError(str(address), "no process of the run answers", "does it run, with this stream?")
    return list(outcomes.values())


def _record(data: bytes, outcomes: dict[str, Outcome]) -> None:
    try:
        result = decode([data]) if data else None
    except DecodeError:  # anybody may have sent it who knows the subject
        return
    if isinstance(result, Result) and len(outcomes) < MAX_ANSWERS:
        outcomes.setdefault(result.source_id, Outcome(result.source_id, result.done, result.values))


async def _meant(jetstream: Any, address: StreamAddress, targets: list[str]) -> tuple[dict[str, SourceState], float]:
    """Return by id the sources that *targets* mean, as the last message of each says, and when the newest came."""
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
    list(registry.silent(newest_s, 0))  # it marks them
    found = meant_sources(registry, targets, newest_s)
    return {state.source.id: state for state in found}, newest_s
