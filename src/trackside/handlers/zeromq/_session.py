"""
The session state machine: greeting, welcome, reset, ping, refusal and goodbye, for every kind of end.

One table gives the action upon a message, by the role of the end, the state of the session, and the kind of the
message. A message that is not in the table is ignored and counted.
"""

from __future__ import annotations

import enum
import os
import socket as network
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final, Generic, Protocol, TypeAlias, TypeVar

from trackside.core import RateLimitedLog, described, is_from_signal_handler
from trackside.events import clock
from trackside.handlers.zeromq._keys import CONTROL, RANK, VIEWER
from trackside.handlers.zeromq._protocol import (
    BEAT_S,
    PROTOCOL_VERSION,
    SOURCE_END,
    VIEWER_END,
    Ack,
    Beat,
    Bye,
    Chunk,
    Fetch,
    FrameEntry,
    Hello,
    LossEntry,
    Message,
    Ping,
    Pong,
    Refused,
    ReplayRequest,
    Reset,
    Result,
    Skipped,
    Subscribe,
    Subscribed,
    Verb,
    Welcome,
    decode,
    encode,
)


class Sent(enum.Enum):
    """The outcome of sending a message; no send ever waits."""

    QUEUED = "queued"
    FULL = "full"
    """There is no room now; the message is not sent."""
    GONE = "gone"
    """The other end is not there."""
    INVALID = "invalid"
    """The message cannot be encoded within the limits of a message."""


Send: TypeAlias = Callable[[bytes, Sequence[bytes]], Sent]
"""Sends the parts of a message to the address of a peer; the address is empty over a connection that this end made."""


class Role(enum.Enum):
    """The kind of an end."""

    SERVER = "server"
    """A source end that viewers connect to: a publisher, or the viewers' side of a collector."""
    PRODUCER = "producer"
    """A source end that connects out: a job, or a forwarder, to its collector."""
    RECEIVER = "receiver"
    """A viewer end that producers connect to: a collector, or the lower side of a forwarder."""
    VIEWER = "viewer"
    """A viewer end that connects out: `attach`, `trackside ctl`."""

    @property
    def connects(self) -> bool:
        """Whether it makes the connection, and so greets first."""
        return self is Role.PRODUCER or self is Role.VIEWER  # no set: each message reads this, and hashing takes longer

    @property
    def end(self) -> str:
        """`SOURCE_END` or `VIEWER_END`."""
        return SOURCE_END if self in {Role.SERVER, Role.PRODUCER} else VIEWER_END

    def admits(self, user: str) -> bool:
        """
        Return whether a peer that proved to be *user* may connect.

        *user* is for example ``rank:0123abcd``; without keys it is empty.
        """
        return not user or user.partition(":")[0] in _KEYS.get(self, ())


_KEYS: Final[Mapping[Role, Iterable[str]]] = {Role.SERVER: (VIEWER, CONTROL), Role.RECEIVER: (RANK,)}
"""The roles whose keys an end admits. An end that connects knows its peer by the server's key alone."""


class State(enum.Enum):
    """The state of a session, as one end sees it."""

    UNMET = "unmet"
    """They have not greeted each other, or the peer was forgotten."""
    MET = "met"
    OVER = "over"
    """The peer refused, or left in good order."""


class Action(enum.Enum):
    """The action of an end upon a message."""

    IGNORE = "ignore"
    MEET = "meet"
    """Accept the greeting, or the answer to one's own greeting."""
    ASK_TO_GREET = "ask to greet"
    """Answer with `Reset`."""
    GREET_AGAIN = "greet again"
    REPLY = "reply"
    """Answer with `Pong`."""
    NOTE_REFUSAL = "note refusal"
    PART = "part"
    DELIVER = "deliver"
    """Pass the message to the streams."""


_FROM_VIEWERS: Final = (Subscribe, Fetch, Ack, ReplayRequest, Verb)
_FROM_SOURCES: Final = (Subscribed, Chunk, FrameEntry, LossEntry, Skipped, Beat, Result)

_TABLE: Final[dict[tuple[Role, State], dict[type[Message], Action]]] = {
    # An unknown peer that requests or sends something is asked to greet; its answers are ignored.
    (Role.SERVER, State.UNMET): {
        Hello: Action.MEET,
        **dict.fromkeys((Ping, *_FROM_VIEWERS, *_FROM_SOURCES), Action.ASK_TO_GREET),
    },
    (Role.RECEIVER, State.UNMET): {
        Hello: Action.MEET,
        **dict.fromkeys((Ping, *_FROM_VIEWERS, *_FROM_SOURCES), Action.ASK_TO_GREET),
    },
    (Role.PRODUCER, State.UNMET): {
        Welcome: Action.MEET,
        Reset: Action.GREET_AGAIN,
        Refused: Action.NOTE_REFUSAL,
    },
    (Role.VIEWER, State.UNMET): {
        Welcome: Action.MEET,
        Reset: Action.GREET_AGAIN,
        Refused: Action.NOTE_REFUSAL,
        Bye: Action.PART,
    },
    # A source end accepts messages of viewers, a viewer end those of sources; which end connected makes no difference.
    (Role.SERVER, State.MET): {
        Hello: Action.MEET,
        Ping: Action.REPLY,
        Bye: Action.PART,
        **dict.fromkeys(_FROM_VIEWERS, Action.DELIVER),
    },
    (Role.PRODUCER, State.MET): {
        Reset: Action.GREET_AGAIN,
        Refused: Action.NOTE_REFUSAL,
        Ping: Action.REPLY,
        Bye: Action.PART,
        **dict.fromkeys(_FROM_VIEWERS, Action.DELIVER),
    },
    (Role.RECEIVER, State.MET): {
        Hello: Action.MEET,
        Refused: Action.NOTE_REFUSAL,
        Ping: Action.REPLY,
        Bye: Action.PART,
        **dict.fromkeys((Pong, *_FROM_SOURCES), Action.DELIVER),
    },
    (Role.VIEWER, State.MET): {
        Reset: Action.GREET_AGAIN,
        Refused: Action.NOTE_REFUSAL,
        Ping: Action.REPLY,
        Bye: Action.PART,
        **dict.fromkeys((Pong, *_FROM_SOURCES), Action.DELIVER),
    },
}


def action_for(role: Role, state: State, kind: type[Message]) -> Action:
    """Return the action of an end of *role* for a message of *kind* from a peer in *state*."""
    return _TABLE.get((role, state), {}).get(kind, Action.IGNORE)


class Peer(Protocol):
    """The record of a peer that was met."""

    address: bytes
    id: str
    user: str


P = TypeVar("P", bound=Peer)


class Sessions(Generic[P]):
    """
    The sessions of one socket: with any number of peers that connected to it, or with the one that it connected to.

    It does no input or output of its own. The owner makes the record of a peer when `receive` returns `Action.MEET`,
    and calls `welcome`, which puts it into `peers`. It removes the record when the peer parts or is forgotten.

    Args:
        role: The kind of this end.
        send: Sends to an address.
        own_id: The id of this end, constant while its streams exist; random unless given.
    """

    def __init__(self, role: Role, send: Send, *, own_id: str | None = None) -> None:
        self.role = role
        self.id = own_id or os.urandom(8).hex()
        self.peers: dict[bytes, P] = {}
        """The peers that were met, by address."""
        self.counts: Counter[str] = Counter()
        """``unexpected`` messages, ``refused`` requests, ``refused_sends``, and messages that ``failed``."""
        self._send = send
        self._state = State.UNMET
        self._greeted_s = -1e9
        self._text = describe_process()
        self._trouble = RateLimitedLog()

    def state_of(self, address: bytes) -> State:
        """Return the state of the session with the peer at *address*."""
        if self.role.connects:
            return self._state
        return State.MET if address in self.peers else State.UNMET

    def receive(self, address: bytes, parts: Sequence[bytes], user: str, received_ns: int) -> tuple[Action, Message]:
        """
        Do the session's part of handling a message; return its action, and the message for the owner.

        Raises:
            DecodeError: if the message is malformed.
        """
        message = decode(parts)
        if not self.role.admits(user):
            text = "send events" if self.role is Role.RECEIVER else "watch"
            self.refuse(address, 0, "forbidden", f"a {user.partition(':')[0]} key may not {text}")
            return Action.IGNORE, message
        action = action_for(self.role, self.state_of(address), type(message))
        if action is Action.MEET:
            assert isinstance(message, (Hello, Welcome))  # by the table
            refusal = self._refusal(message)
            if refusal is not None:
                if self.role.connects:
                    return self._note_refusal(refusal), refusal
                self.refuse(address, 0, refusal.code, refusal.text)
                return Action.IGNORE, message
            self._state = State.MET
        elif action is Action.ASK_TO_GREET:
            self.post(address, Reset())
        elif action is Action.GREET_AGAIN:
            self.greet_again()
        elif action is Action.REPLY:
            assert isinstance(message, Ping)  # by the table
            self.post(address, Pong(message.sent_ns, received_ns, clock.now_ns()))
        elif action is Action.NOTE_REFUSAL:
            assert isinstance(message, Refused)  # by the table
            self._note_refusal(message)
        elif action is Action.PART:
            # A job keeps offering its stream to a collector that left, because it may be started again.
            self._state = State.UNMET if self.role is Role.PRODUCER else State.OVER
        elif action is Action.IGNORE:
            self.counts["unexpected"] += 1
        return action, message

    def welcome(self, peer: P) -> None:
        """Remember *peer*, and answer its greeting if it was the one that greeted."""
        self.peers[peer.address] = peer
        if not self.role.connects:
            self.post(peer.address, Welcome(PROTOCOL_VERSION, self.role.end, self.id, self._text))

    def tick(self, now_s: float) -> None:
        """Greet the peer that this end connected to, once a second until it answers."""
        if self.role.connects and self._state is State.UNMET and now_s - self._greeted_s >= BEAT_S:
            self._greeted_s = now_s
            self.post(b"", Hello(PROTOCOL_VERSION, self.role.end, self.id, self._text))

    def greet_again(self) -> None:
        """Begin anew with the peer that this end connected to."""
        self._state = State.UNMET
        self._greeted_s = -1e9

    def post(self, address: bytes, message: Message) -> Sent:
        """Send *message*; if it cannot be encoded, count it instead."""
        try:
            parts = encode(message)
        except (ValueError, TypeError, OverflowError) as error:  # another process may have made it
            self.counts["failed"] += 1
            self._trouble.complain("a message cannot be sent: %s", described(error))
            return Sent.INVALID
        outcome = self._send(address, parts)
        if outcome is Sent.FULL:
            self.counts["refused_sends"] += 1
        return outcome

    def refuse(self, address: bytes, request: int, code: str, text: str) -> None:
        """Refuse a greeting, or the *request* of that number."""
        self.counts["refused"] += 1
        self.post(address, Refused(request, code, text[:1000]))

    def note_failure(self, error: Exception) -> None:
        """Count and report an *error* in handling a message; raise it if it came from a signal handler."""
        if is_from_signal_handler(error):
            raise error
        self.counts["failed"] += 1
        self._trouble.complain("a message could not be dealt with, and its sender is let go: %s", described(error))

    def _refusal(self, other: Hello | Welcome) -> Refused | None:
        if other.version != PROTOCOL_VERSION:
            return Refused(0, "version", f"it speaks version {other.version}; here it is {PROTOCOL_VERSION}")
        if other.end == self.role.end:
            text = (
                "this end has streams to give and takes none"
                if other.end == SOURCE_END
                else "this endpoint takes streams; viewers attach to the other one"
            )
            return Refused(0, "unsupported", text)
        return None

    def _note_refusal(self, refused: Refused) -> Action:
        if self.role is Role.PRODUCER:
            self._trouble.complain("the collector refuses this end: %s: %s", refused.code, refused.text)
        elif self.role is Role.VIEWER and refused.code != "busy":
            self._state = State.OVER
        return Action.NOTE_REFUSAL


def describe_process() -> str:
    """Return a description of this process, for people at the other end."""
    return f"{Path(sys.argv[0] or 'python').name} on {network.gethostname()}, process {os.getpid()}"[:200]
