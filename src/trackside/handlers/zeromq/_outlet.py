"""The source end of all links of one socket: who is there, what each asked for, what each is sent."""

from __future__ import annotations

import os
import queue
import socket as network
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, Protocol, TypeAlias

import msgpack

from trackside.events import DecodeError, TracksideError, clock
from trackside.handlers.zeromq._filter import Filter
from trackside.handlers.zeromq._keys import RANK
from trackside.handlers.zeromq._peer import Peer, Ready, Stream
from trackside.handlers.zeromq._protocol import (
    BEAT_S,
    FORGET_AFTER_S,
    MAX_PEERS,
    MAX_SNAPSHOT_BYTES,
    MIN_WINDOW_BYTES,
    PROTOCOL_VERSION,
    SILENT_AFTER_BEATS,
    SOURCE_END,
    WINDOW_BYTES,
    Ack,
    Beat,
    Bye,
    Fetch,
    Hello,
    Message,
    Ping,
    Pong,
    Refused,
    Replay,
    Reset,
    Result,
    Subscribe,
    Verb,
    Welcome,
    decode,
    encode,
)
from trackside.handlers.zeromq._ring import Ring, Room

OLDEST: Final = "*"
"""As the stream to resume: all that is still here of what is asked for, from the oldest entry on."""
_ALL_WINDOWS_BYTES: Final = 8 << 20
_LEAST_WINDOW_BYTES: Final = 128 << 10
_PUMP_ROUNDS: Final = 16
_MOST_STATUS_BYTES: Final = 48 << 10

Send: TypeAlias = Callable[[bytes, Sequence[bytes]], "bool | None"]
"""Sends parts to a peer's address: True if they are on their way, False if there is no room now, None if it is gone."""


class Supply(Protocol):
    """Where a source end has its streams from."""

    def open_stream(self, wanted: Filter, ring: Ring) -> Callable[[], object]:
        """
        Begin to fill *ring* with what is wanted; return what ends it.

        Raises:
            TracksideError: if this cannot be had.
        """

    def take_snapshot(self, models: Sequence[str], ring: Ring, done: Callable[[Ready | None], None]) -> None:
        """Have *done* called, on any thread, with a snapshot and *ring*'s place then; or with None."""

    def status(self) -> dict[str, Any]:
        """Return what to say in a beat."""


class Outlet:
    """
    Serves any number of viewers; does no input or output of its own. For one thread, but for what says otherwise.

    Args:
        supply: Where streams and snapshots come from.
        send: Sends to an address; the one of a link that this end made is empty.
        own_id: Of this end; random, the same as long as its streams are.
        connects: Whether this end made the link, and so says hello.
        wake: Has the thread look soon; called on any thread.
        room: What the rings may hold together.
        most_peers: More are refused.
        window_bytes: What may be on its way to one viewer.
        obey: Does what a `Verb` says, for an address and its user, and gives each `Result` to `answer`; None refuses.
    """

    def __init__(
        self,
        supply: Supply,
        send: Send,
        *,
        own_id: str,
        connects: bool = False,
        wake: Callable[[], object] = lambda: None,
        room: Room | None = None,
        most_peers: int = MAX_PEERS,
        window_bytes: int = WINDOW_BYTES,
        obey: Callable[[bytes, Verb, str], object] | None = None,
    ) -> None:
        self.id = own_id
        self.peers: dict[bytes, Peer] = {}
        self.counts: Counter[str] = Counter()
        """``malformed``, ``ignored``, ``refused``, ``refused_sends``, ``skips``, ``sent``."""
        self._supply = supply
        self._send = send
        self._connects = connects
        self._wake = wake
        self._room = room or Room()
        self._most_peers = most_peers
        self._window_bytes = window_bytes
        self._obey = obey
        self._streams: dict[Filter, Stream] = {}
        self._inbox: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        self._beat_s = 0.0
        self._now_s = 0.0
        self._greeted_s = -1e9
        self._hello = Hello(PROTOCOL_VERSION, SOURCE_END, own_id, describe_process())

    # --- what others ask of it ----------------------------------------------------------------------------------------

    def hold(self, wanted: Filter) -> None:
        """Begin a stream before anybody asks for it, and keep it: whoever comes first finds its beginning."""
        self._stream(wanted).is_held = True

    def answer(self, address: bytes, result: Result) -> None:
        """Send a verb's result; on any thread."""
        self._inbox.put(lambda: self._post(address, result))
        self._wake()

    def receive(self, address: bytes, parts: Sequence[bytes], now_s: float, received_ns: int, user: str = "") -> None:
        """Take in one message from *address*, whose key says that it is *user*."""
        self._now_s = now_s
        peer = self.peers.get(address)
        if peer is not None and not peer.may_speak(now_s):
            self.counts["ignored"] += 1
            return
        try:
            message = decode(parts)
        except DecodeError:
            self.counts["malformed"] += 1
            return
        if isinstance(message, (Hello, Welcome)):
            self._meet(address, message, user, now_s)
        elif isinstance(message, Reset):
            if self._connects:
                self._forget(address, at_once=False, now_s=now_s)
                self._greeted_s = -1e9
        elif peer is None:
            self._post(address, Reset())
        elif isinstance(message, Ping):
            self._post(address, Pong(message.sent_ns, received_ns, clock.now_ns()))
        else:
            self._on(peer, message, now_s)

    def tick(self, now_s: float) -> None:
        """Do what is due whoever says what: beats, greetings, and forgetting who is silent."""
        self._now_s = now_s
        self._empty_inbox()
        if self._connects:
            self._forget_mute(now_s)
        if self._connects and not self.peers and now_s - self._greeted_s >= BEAT_S:
            self._greeted_s = now_s
            self._post(b"", self._hello)
        if now_s - self._beat_s < BEAT_S:
            return
        self._beat_s = now_s
        for peer in list(self.peers.values()):
            if not self._connects and now_s - peer.heard_s > FORGET_AFTER_S:
                self._forget(peer.address, at_once=True, now_s=now_s)
        for stream in list(self._streams.values()):
            if stream.left_s is not None and now_s - stream.left_s > FORGET_AFTER_S:
                self._drop(stream)
        self.beat()

    def pump(self) -> bool:
        """Send what is due to everybody; return whether there may be more to send at once."""
        self._empty_inbox()
        share = max(_LEAST_WINDOW_BYTES, _ALL_WINDOWS_BYTES // max(1, len(self.peers)))
        for _ in range(_PUMP_ROUNDS):
            sent = sum(peer.pump(min(share, self._window_bytes)) for peer in list(self.peers.values()))
            self.counts["sent"] += sent
            if not sent:
                return False
        return True

    @property
    def is_drained(self) -> bool:
        """Whether every viewer has acknowledged everything; whom this end connected to must have asked for it first."""
        if self._connects and all(peer.stream is None for peer in self.peers.values()):
            return False
        return all(peer.is_drained for peer in self.peers.values())

    def part(self, reason: str) -> None:
        """Say goodbye to everybody and end every stream."""
        for peer in list(self.peers.values()):
            self._post(peer.address, Bye(reason))
        self.peers.clear()
        for stream in list(self._streams.values()):
            self._drop(stream)

    # --- peers --------------------------------------------------------------------------------------------------------

    def _meet(self, address: bytes, other: Hello | Welcome, user: str, now_s: float) -> None:
        if other.version != PROTOCOL_VERSION:
            self._refuse(address, 0, "version", f"it speaks version {other.version}; here it is {PROTOCOL_VERSION}")
            return
        if other.end == SOURCE_END:
            self._refuse(address, 0, "unsupported", "this end has streams to give and takes none")
            return
        if isinstance(other, Hello) and user.startswith(f"{RANK}:"):
            self._refuse(address, 0, "forbidden", "a rank's key may send, and not watch")
            return
        known = self.peers.get(address)
        if known is None or known.id != other.id:
            for peer in [peer for peer in self.peers.values() if peer.id == other.id or peer.address == address]:
                self._forget(peer.address, at_once=False, now_s=now_s)  # it has come back over a new link
            if len(self.peers) >= self._most_peers:
                self._refuse(address, 0, "busy", f"{self._most_peers} viewers are here already")
                return
            self.peers[address] = Peer(
                address, other.id, other.text, user, now_s, lambda message: self._post(address, message)
            )
        if isinstance(other, Hello):
            self._post(address, Welcome(PROTOCOL_VERSION, SOURCE_END, self.id, self._hello.text))

    def _forget(self, address: bytes, *, at_once: bool, now_s: float) -> None:
        """Let a peer go; its stream stays a while, for it to come back to, unless *at_once*."""
        peer = self.peers.pop(address, None)
        if peer is None or peer.stream is None:
            return
        stream = peer.stream
        peer.leave()
        self._leave(stream, now_s, at_once=at_once)

    def _forget_mute(self, now_s: float) -> None:
        """
        Let those go that welcomed us and then asked for nothing: the link broke in between, and they cannot find us.

        Who asked is told of each beat, and says so if it does not know us any more.
        """
        for peer in list(self.peers.values()):
            if peer.stream is None and now_s - peer.heard_s >= SILENT_AFTER_BEATS * BEAT_S:
                self._forget(peer.address, at_once=False, now_s=now_s)

    def _leave(self, stream: Stream, now_s: float, *, at_once: bool) -> None:
        """Drop a stream that has no viewer any more: soon, or *at_once*."""
        if stream.is_held or any(peer.stream is stream for peer in self.peers.values()):
            return
        stream.left_s = now_s
        if at_once:
            self._drop(stream)

    def _on(self, peer: Peer, message: Message, now_s: float) -> None:
        if isinstance(message, Ack):
            if peer.stream is not None and message.stream == peer.stream.ring.id:
                peer.acknowledge(message.next_index)
        elif isinstance(message, Replay):
            if peer.stream is not None and message.stream == peer.stream.ring.id:
                peer.go_back(message.next_index, now_s)
        elif isinstance(message, Subscribe):
            self._subscribe(peer, message, now_s)
        elif isinstance(message, Fetch):
            if message.request == peer.request:
                peer.send_chunks(message.first, message.count)
        elif isinstance(message, Bye):
            self._forget(peer.address, at_once=True, now_s=now_s)
        elif isinstance(message, Verb):
            self._command(peer, message)

    def _command(self, peer: Peer, verb: Verb) -> None:
        if self._obey is None:
            self._refuse(peer.address, verb.request, "forbidden", "no verb is accepted on this endpoint")
        else:
            self._obey(peer.address, verb, peer.user)

    # --- streams ------------------------------------------------------------------------------------------------------

    def _subscribe(self, peer: Peer, asked: Subscribe, now_s: float) -> None:
        if asked.request == peer.request and peer.stream is not None:
            if peer.answer is not None:
                peer.post(peer.answer)  # the first did not arrive
            return
        before = peer.stream
        try:
            wanted = Filter.from_wire(asked.names, asked.detail, asked.rule)
            if wanted not in self._streams and not peer.may_open(now_s):
                self._refuse(peer.address, asked.request, "busy", "it asks for something else too often")
                return
            stream = self._stream(wanted)
        except TracksideError as error:
            self._refuse(peer.address, asked.request, "malformed", str(error))
            return
        peer.expect(asked, stream)
        peer.window_bytes = max(asked.window_bytes, MIN_WINDOW_BYTES // 8)
        if before is not None and before is not stream:
            self._leave(before, now_s, at_once=True)
        if asked.resume_stream == stream.ring.id and asked.resume_index <= stream.ring.next_index:
            index, events = stream.ring.position(asked.resume_index)
            peer.begin(asked.resume_index, events if index == asked.resume_index else 0, resumed=True, snapshot=b"")
            return
        if asked.models:
            if now_s - peer.asked_s < BEAT_S:
                peer.leave()
                self._refuse(peer.address, asked.request, "busy", "ask for models' states once a second")
                return
            peer.asked_s = now_s
        ring, request, oldest = stream.ring, asked.request, asked.resume_stream == OLDEST

        def done(ready: Ready | None) -> None:  # on the thread that took it
            self._inbox.put(lambda: self._begin(peer, request, ready, oldest=oldest))
            self._wake()

        self._supply.take_snapshot(asked.models, ring, done)

    def _begin(self, peer: Peer, request: int, ready: Ready | None, *, oldest: bool) -> None:
        """Answer a subscription whose snapshot is there."""
        if self.peers.get(peer.address) is not peer or peer.request != request or peer.stream is None:
            return
        waiting = sum(len(other.snapshot or b"") for other in self.peers.values())
        if ready is None or waiting + len(ready.data) > MAX_SNAPSHOT_BYTES:
            peer.leave()
            self._refuse(peer.address, request, "busy", "the snapshot cannot be taken now")
            return
        index, before = peer.stream.ring.position(0) if oldest else (ready.next_index, ready.before)
        peer.begin(index, before, resumed=False, snapshot=ready.data)

    def _stream(self, wanted: Filter) -> Stream:
        stream = self._streams.get(wanted)
        if stream is None:
            ring = Ring(self._room)
            try:
                close = self._supply.open_stream(wanted, ring)
            except BaseException:
                ring.close()
                raise
            stream = self._streams[wanted] = Stream(wanted, ring, close)
        return stream

    def _drop(self, stream: Stream) -> None:
        self._streams.pop(stream.wanted, None)
        stream.close()
        stream.ring.close()

    # --- sending ------------------------------------------------------------------------------------------------------

    def beat(self) -> None:
        """Tell every viewer where its stream stands, which it acknowledges at once."""
        if not any(peer.is_live for peer in self.peers.values()):
            return
        status = _fitting(self._supply.status())
        for peer in list(self.peers.values()):
            if peer.is_live and peer.stream is not None:
                index, before = peer.position
                self._post(peer.address, Beat(peer.stream.ring.id, index, before, status))

    def _refuse(self, address: bytes, request: int, code: str, text: str) -> None:
        self.counts["refused"] += 1
        self._post(address, Refused(request, code, text[:1000]))

    def _post(self, address: bytes, message: Message) -> bool:
        outcome = self._send(address, encode(message))
        if outcome is None:
            self._inbox.put(lambda: self._forget(address, at_once=False, now_s=self._now_s))
        elif not outcome:
            self.counts["refused_sends"] += 1
        return bool(outcome)

    def _empty_inbox(self) -> None:
        while True:
            try:
                act = self._inbox.get_nowait()
            except queue.Empty:
                return
            act()


def _fitting(status: dict[str, Any]) -> dict[str, Any]:
    """Return *status* without what makes it too large for a beat."""
    while status:
        try:
            if len(msgpack.packb(status)) <= _MOST_STATUS_BYTES:
                break
        except (TypeError, ValueError, OverflowError):
            return {}
        largest = max(status, key=lambda name: len(msgpack.packb(status[name])))
        status = {name: value for name, value in status.items() if name != largest}
    return status


def describe_process() -> str:
    """Return who this process is, for people at the other end."""
    return f"{Path(sys.argv[0] or 'python').name} on {network.gethostname()}, process {os.getpid()}"[:200]
