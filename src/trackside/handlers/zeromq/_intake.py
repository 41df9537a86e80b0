"""The viewer end of all links that ranks and forwarders make to one socket."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, Protocol

import attrs

from trackside.events import DecodeError, clock
from trackside.handlers.zeromq._clock_offset import ClockOffset
from trackside.handlers.zeromq._feed import Entry, Feed
from trackside.handlers.zeromq._keys import RANK
from trackside.handlers.zeromq._outlet import Send, describe_process
from trackside.handlers.zeromq._protocol import (
    FORGET_AFTER_S,
    PROTOCOL_VERSION,
    SOURCE_END,
    VIEWER_END,
    WINDOW_BYTES,
    Beat,
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
from trackside.handlers.zeromq._quota import Purse, Quota

MOST_GIVERS: Final = 8192
WAITING_MESSAGES: Final = 32
"""Of one sender, that may wait to be read. There may be thousands of senders: more waits at theirs, in their rings."""
_ALL_WINDOWS_BYTES: Final = 64 << 20
_LEAST_WINDOW_BYTES: Final = 128 << 10
_ROUNDS: Final = 5
_MANY: Final = 256
_ROUNDS_OF_MANY: Final = 20
_FIRST_PINGS: Final = 16
_FIRST_PING_S: Final = 0.1
_MOST_FIRST_PINGS_PER_S: Final = 1000.0
"""To all senders together: thousands that come at once are to be heard, rather than asked the time."""
_PING_S: Final = 5.0
_STRANGERS: Final = Quota(events=1e9, size_bytes=float(16 << 20), messages=20_000.0)


@attrs.define(eq=False)
class Giver:
    """A source end that sends here: a rank's, or a forwarder's with all of its node."""

    address: bytes
    id: str
    text: str
    user: str
    """Role and fingerprint of its key; empty without keys."""
    feed: Feed
    purse: Purse
    heard_s: float
    clock: ClockOffset = attrs.field(factory=ClockOffset)
    sources: set[str] = attrs.field(factory=set)
    """Ids of those who were heard over it."""
    status: dict[str, Any] = attrs.field(factory=dict)
    """What it last said of itself."""
    is_known: bool = False
    """Whether it has said anything of itself: only then is it clear whether others are behind it."""
    has_left: bool = False
    pinged_s: float = -1e9
    pings: int = 0
    cut_told: int = 0
    cut_told_s: float = -1e9
    cut_since_ns: int = 0

    @property
    def name(self) -> str:
        """Who it is, for people."""
        return f"{self.user} {self.text}".strip()


class Listener(Protocol):
    """What an intake tells what it heard."""

    def on_entry(self, giver: Giver, entry: Entry) -> object:
        """Take the next entry of *giver*; entries come in order, each once."""

    def on_introduction(self, giver: Giver, snapshot: bytes) -> object:
        """Learn from a *snapshot* who the sources are."""

    def on_heard(self, giver: Giver, message: Message | None) -> object:
        """Learn that *giver* said something, so it is alive; None for what was not read."""

    def on_result(self, giver: Giver, result: Result) -> object:
        """Take what came of a verb."""


class Intake:
    """
    Takes streams from any number of source ends; does no input or output of its own. For one thread.

    Args:
        listener: Told everything.
        send: Sends to an address: True if it is on its way, False if there is no room now, None if nobody is there.
        quota: What each of them may use.
        most: How many there may be.
        monotonic_s: The clock; for tests.
    """

    def __init__(
        self,
        listener: Listener,
        send: Send,
        *,
        quota: Quota | None = None,
        most: int = MOST_GIVERS,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.id = os.urandom(8).hex()
        self.givers: dict[bytes, Giver] = {}
        self.counts: Counter[str] = Counter()
        """``malformed``, ``refused``, ``cut`` and ``cut_bytes``, and what givers that have left again had repeated."""
        self._by_id: dict[str, Giver] = {}
        self._due: list[Giver] = []
        self._share = 0
        self._restless: set[Giver] = set()
        self._listener = listener
        self._send = send
        self._quota = quota or Quota()
        self._most = most
        self._now = monotonic_s
        self._strangers = Purse(_STRANGERS, monotonic_s())
        self._text = describe_process()

    def receive(self, address: bytes, parts: Sequence[bytes], user: str = "") -> None:
        """
        Take in one message.

        Args:
            address: Whom an answer goes to.
            parts: The message.
            user: Role and fingerprint of the key that its connection was made with: ``rank:0123abcd``.
        """
        now_s, now_ns = self._now(), clock.now_ns()
        giver = self.givers.get(address)
        size = sum(map(len, parts))
        if not (giver.purse if giver is not None else self._strangers).admit(size, now_s):
            self._cut(giver, size, now_s)
            return
        try:
            message = decode(parts)
        except DecodeError:
            self.counts["malformed"] += 1
            return
        if isinstance(message, Hello):
            self._meet(address, message, user, now_s)
        elif giver is None:
            self._post(address, Reset())
        else:
            self._on(giver, message, size, now_s, now_ns)

    def _cut(self, giver: Giver | None, size: int, now_s: float) -> None:
        self.counts["cut"] += 1
        self.counts["cut_bytes"] += size
        if giver is not None:  # it says too much, so it is alive
            giver.heard_s = now_s
            self._listener.on_heard(giver, None)

    def tick(self) -> None:
        """Do what is due whoever says what, every 50 ms or so; each sender has its turn in a second at most."""
        now_s = self._now()
        if not self._due:
            self._due = list(self.givers.values())
            self._share = -(-len(self._due) // (_ROUNDS if len(self._due) <= _MANY else _ROUNDS_OF_MANY))
        turn, self._due = self._due[: self._share], self._due[self._share :]
        restless, self._restless = self._restless, set()
        for giver in {*turn, *restless}:
            if now_s - giver.heard_s > FORGET_AFTER_S:
                self._forget(giver)
            elif not giver.has_left and not giver.purse.is_empty(now_s):
                giver.feed.tick(now_s)
                self._ping(giver, now_s)
                if giver.feed.is_restless:
                    self._restless.add(giver)

    def command(self, verb: Verb, givers: Iterable[Giver]) -> int:
        """Pass *verb* on to *givers*; return to how many."""
        return sum(self._post(giver.address, verb) for giver in list(givers) if not giver.has_left)

    def part(self, reason: str) -> None:
        """Say goodbye to everybody."""
        for giver in list(self.givers.values()):
            self._post(giver.address, Bye(reason))
        self.givers.clear()
        self._by_id.clear()

    def _meet(self, address: bytes, other: Hello, user: str, now_s: float) -> None:
        role = user.partition(":")[0]
        if other.version != PROTOCOL_VERSION:
            self._refuse(address, "version", f"it speaks version {other.version}; here it is {PROTOCOL_VERSION}")
        elif role not in {"", RANK}:
            self._refuse(address, "forbidden", f"a {role} key may not send events")
        elif other.end != SOURCE_END:
            self._refuse(address, "unsupported", "this endpoint takes streams; viewers attach to the other one")
        elif other.id not in self._by_id and len(self.givers) >= self._most:
            self._refuse(address, "busy", f"{self._most} senders are here already")
        else:
            self._welcome(address, other, user, now_s)

    def _welcome(self, address: bytes, other: Hello, user: str, now_s: float) -> None:
        giver = self._by_id.get(other.id)
        if giver is not None and giver.user != user:
            self._refuse(address, "forbidden", "somebody with another key has this name")
            return
        if giver is None:
            giver = self._new(address, other, user, now_s)
        else:
            self.givers.pop(giver.address, None)
            if giver.address != address:  # it has come back over a new link
                giver.address = address
                giver.clock = ClockOffset()
                giver.pings = 0
            giver.feed.restart()  # whoever says hello has forgotten what was asked of it
        giver.heard_s = now_s
        giver.has_left = False
        self.givers[address] = self._by_id[other.id] = giver
        self._post(address, Welcome(PROTOCOL_VERSION, VIEWER_END, self.id, self._text))
        giver.feed.tick(now_s)
        self._restless.add(giver)

    def _new(self, address: bytes, other: Hello, user: str, now_s: float) -> Giver:
        def send(message: Message) -> None:
            self._post(giver.address, message)

        def take(entry: Entry) -> None:
            self._listener.on_entry(giver, entry)

        def introduce(snapshot: bytes) -> None:
            self._listener.on_introduction(giver, snapshot)

        # What the first are sent unacknowledged may be much, what the thousandth is must be little.
        window_bytes = max(_LEAST_WINDOW_BYTES, min(WINDOW_BYTES, _ALL_WINDOWS_BYTES // (len(self.givers) + 1)))
        giver = Giver(
            address,
            other.id,
            other.text,
            user,
            Feed(send, take, introduce, window_bytes),
            Purse(self._quota, now_s),
            now_s,
        )
        return giver

    def _on(self, giver: Giver, message: Message, size: int, now_s: float, now_ns: int) -> None:
        giver.heard_s = now_s
        self._listener.on_heard(giver, message)
        if isinstance(message, Ping):
            self._post(giver.address, Pong(message.sent_ns, now_ns, clock.now_ns()))
        elif isinstance(message, Pong):
            giver.clock.add(message.sent_ns, message.received_ns, message.replied_ns, now_ns)
        elif isinstance(message, Bye):
            giver.has_left = True
        elif isinstance(message, Result):
            self._listener.on_result(giver, message)
        elif isinstance(message, Refused):
            self.counts["refused_by_others"] += 1
        else:
            if isinstance(message, Beat):
                giver.status, giver.is_known = message.status, True
            giver.feed.on(message, size, now_s)
            if giver.feed.is_restless:
                self._restless.add(giver)

    def _ping(self, giver: Giver, now_s: float) -> None:
        first_s = max(_FIRST_PING_S, len(self.givers) / _MOST_FIRST_PINGS_PER_S)
        every_s = first_s if giver.pings < _FIRST_PINGS else _PING_S
        if giver.feed.is_subscribed and now_s - giver.pinged_s >= every_s:
            giver.pinged_s = now_s
            giver.pings += 1
            self._post(giver.address, Ping(clock.now_ns()))

    def _forget(self, giver: Giver) -> None:
        if self.givers.get(giver.address) is giver:
            del self.givers[giver.address]
        self._by_id.pop(giver.id, None)
        self.counts["repeated"] += giver.feed.repeated
        self.counts["replays"] += giver.feed.replays

    def _refuse(self, address: bytes, code: str, text: str) -> None:
        self.counts["refused"] += 1
        self._post(address, Refused(0, code, text))

    def _post(self, address: bytes, message: Message) -> bool:
        return bool(self._send(address, encode(message)))
