"""Attaching to a job from another process."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from trackside.events import Detail, Event
from trackside.handlers.zeromq._attachment import Attachment
from trackside.handlers.zeromq._notes import find_endpoints


def attach(
    *endpoints: str,
    to: type[Event] | str | tuple[type[Event] | str, ...] = Event,
    detail: Detail | None = None,
    keep: Any = None,
    models: Sequence[Any] = (),
    keys: str | os.PathLike[str] | None = None,
    insecure: bool = False,
) -> Attachment:
    """
    Watch a running job: iterate over its events as they happen, each with its ``source`` and its ``seq``.

    ::

        with trackside.attach("ipc:///run/user/1000/trackside/demo.0") as events:
            for event in events:
                print(event)

    It may begin at any time and never slows the job. What is not asked for does not leave the job, and is not even
    built there if nobody else wants it. The iteration ends when the job does.

    Args:
        endpoints: Of a job's publisher, of several, or of a collector, which has them all; or the directory that a job
            on this machine writes to, for all its ranks.
        to: The event type, or several; or their wire names, or globs of such.
        detail: The lowest level of detail wanted; all unless given.
        keep: The rule that says which to keep. It is applied in the job, a `where` here.
        models: Models to bring into the state that they have in the job, and to keep there.
        keys: A directory of keys, where the endpoint asks for such.
        insecure: Do without keys where they would be needed.

    Raises:
        ConfigError: An argument is wrong, or the endpoint is not safe.
        UnreadableError: Nobody can be watched in that directory.
    """
    found = [one for given in endpoints for one in ([given] if "://" in given else find_endpoints(given))]
    return Attachment(found, to=to, detail=detail, keep=keep, models=tuple(models), keys=keys, insecure=insecure)
