"""The publisher: a job's stream for whoever is allowed to watch, on a thread of its own."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Protocol

from trackside.events import FRAMES, Source, clock
from trackside.handlers.zeromq._filter import ALWAYS, EVERYTHING, Filter
from trackside.handlers.zeromq._link import Link
from trackside.handlers.zeromq._outlet import Outlet
from trackside.handlers.zeromq._peer import Ready
from trackside.handlers.zeromq._ring import RING_BYTES, RING_S, Ring, Room
from trackside.handlers.zeromq._snapshot import Place, Snapshot, dump_models, encode_snapshot

if TYPE_CHECKING:
    from typing_extensions import Self

    from trackside.handlers.zeromq._protocol import Verb

_TICK_S: Final = 0.25
_IDLE_S: Final = 2.0
"""As long as nobody is here: a first message wakes the thread, and so does the end."""
_DRAINING_S: Final = 0.005
_ASK_EVERY_S: Final = 0.05
_AT_ONCE: Final = 256
_COMPLAIN_EVERY_S: Final = 60.0

_logger = logging.getLogger("trackside")


class View(Protocol):
    """What is seen at one place of a bus's stream."""

    source: Source | None
    next_seq: int
    shed: int
    models: Sequence[Any]


class Tap:
    """Takes the frames of one filter from the porter into a ring."""

    runs_on = FRAMES
    lost = 0

    def __init__(self, ring: Ring, wake: Callable[[], object]) -> None:
        self._ring = ring
        self._wake = wake

    def open(self, source: Source) -> None:
        """Need not know: each stream holds its sources' own words about themselves."""

    def take(self, frame: bytes, *, events: int) -> bool:
        """Keep *frame* while there is room for it."""
        self._ring.append(frame, events)
        self._wake()
        return True

    def flush(self, timeout_s: float) -> bool:  # noqa: ARG002  the protocol's
        """Have nothing to wait for: no viewer is promised anything."""
        return True

    def close(self, timeout_s: float) -> bool:  # noqa: ARG002  the protocol's
        """Have nothing to close."""
        return True

    def after_fork(self, source: Source) -> bool:  # noqa: ARG002  the protocol's
        """Stay with the parent."""
        return False


class Publisher:
    """
    Sends a bus's stream to whoever attaches, what each asked for and no more.

    Its thread does all input and output; the porter leaves its frames in a ring and never waits. Without a viewer it
    is subscribed to nothing. A forked child publishes nothing.

    Args:
        endpoint: Where viewers find it: ``ipc:///path``, in a directory that is this user's alone, or
            ``tcp://host:port`` with *keys*. With *connects*, the collector to connect to.
        subscribe: Subscribes a taker of frames for a filter, and returns what ends that.
        look: Has the porter call a function at one place of the stream, as `Bus.look` does.
        connects: Connect out, and offer everything from the beginning, instead of binding.
        keys: A directory of keys, as `trackside keys new` makes it.
        insecure: Do without keys where they are needed.
        status: Returns what to say of the job each second: plain data, by name.
        obey: Does what verbs say; see `Outlet`.
        ring_bytes: What is kept for viewers that are slow or come back.
        ring_s: For how long at most, in seconds.

    Raises:
        ConfigError: The endpoint is not safe, not free or malformed.
    """

    def __init__(
        self,
        endpoint: str,
        *,
        subscribe: Callable[[Tap, Filter], Callable[[], object]],
        look: Callable[[Callable[[Any], object]], object],
        connects: bool = False,
        keys: str | os.PathLike[str] | None = None,
        insecure: bool = False,
        status: Callable[[], dict[str, Any]] = dict,
        obey: Callable[[bytes, Verb, str], object] | None = None,
        ring_bytes: int = RING_BYTES,
        ring_s: float = RING_S,
    ) -> None:
        self._subscribe = subscribe
        self._look = look
        self._status = status
        self._pid = os.getpid()
        self._link = Link(endpoint, binds=not connects, role="rank", keys=keys, insecure=insecure)
        self.endpoint = self._link.endpoint
        """Where it can be reached; with the port that was found."""
        self.safety = self._link.safety
        self.connects = connects
        """Whether it connected out, to a collector."""
        self.outlet = Outlet(
            self,
            self._link.send,
            own_id=os.urandom(8).hex(),
            connects=connects,
            wake=self._link.wake,
            room=Room(ring_bytes, ring_s),
            obey=obey,
        )
        self._is_closing = threading.Event()
        self._close_by_s = 0.0
        self._drained = False
        self._complained_s = -1e9
        if connects:
            self.outlet.hold(Filter())
        self._thread = threading.Thread(target=self._run, name="trackside-publisher", daemon=True)
        self._thread.start()

    # --- what the outlet is supplied with, on the thread --------------------------------------------------------------

    def open_stream(self, wanted: Filter, ring: Ring) -> Callable[[], object]:
        """Subscribe to what is *wanted*; see `Supply`."""
        if EVERYTHING not in wanted.names:
            names = tuple(dict.fromkeys((*wanted.names, *ALWAYS)))
            wanted = Filter(names, wanted.detail, wanted.rule_bytes)
        return self._subscribe(Tap(ring, self._link.wake), wanted)

    def take_snapshot(self, models: Sequence[str], ring: Ring, done: Callable[[Ready | None], None]) -> None:
        """Have the porter dump the models; see `Supply`."""
        names = list(models)

        def act(view: View) -> None:  # on the porter, which alone appends to the ring
            try:
                places = [Place(view.source, view.next_seq, view.shed)] if view.source is not None else []
                states = dump_models(view.models, names)
                data = encode_snapshot(Snapshot(places, states, clock.now_ns()))
            except Exception as error:
                self._complain("a snapshot could not be taken: %s: %s", error)
                done(None)
            else:
                done(Ready(data, ring.next_index, ring.before))

        self._look(act)

    def status(self) -> dict[str, Any]:
        """Return what the job says of itself; see `Supply`."""
        try:
            return self._status()
        except Exception as error:
            self._complain("the status could not be told: %s: %s", error)
            return {}

    # --- the thread ---------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._is_closing.is_set():
            try:
                self._serve(_TICK_S if self.connects or self.outlet.peers else _IDLE_S)
            except Exception as error:
                self._complain("the publisher stumbled over %s: %s", error)
                self._is_closing.wait(_TICK_S)
        with contextlib.suppress(Exception):
            self._finish()
        self._link.close()

    def _serve(self, timeout_s: float) -> None:
        more = self.outlet.pump()
        self._link.wait(0.0 if more else timeout_s)
        for address, parts, user in self._link.receive(_AT_ONCE):
            self.outlet.receive(address, parts, time.monotonic(), clock.now_ns(), user)
        self.outlet.tick(time.monotonic())

    def _finish(self) -> None:
        """Send what is left to those who take it, and say goodbye."""
        beat_s = 0.0
        while time.monotonic() < self._close_by_s:
            if time.monotonic() - beat_s >= _ASK_EVERY_S:
                beat_s = time.monotonic()
                self.outlet.pump()
                self.outlet.beat()
            self._serve(_DRAINING_S)
            is_awaited = self.connects and not self.outlet.peers  # a collector that is being started again
            if self.outlet.is_drained and not is_awaited:
                self._drained = True
                break
        self.outlet.part("closed")

    def _complain(self, text: str, error: BaseException) -> None:
        """Report trouble, once a minute."""
        now_s = time.monotonic()
        if now_s - self._complained_s >= _COMPLAIN_EVERY_S:
            self._complained_s = now_s
            with contextlib.suppress(Exception):  # a logging handler of the job's
                _logger.warning(text, type(error).__name__, error)

    # --- in the job's threads -----------------------------------------------------------------------------------------

    def close(self, timeout_s: float = 0.5) -> bool:
        """
        Send what viewers still lack, say goodbye and stop; safe to call twice, and in a forked child.

        Returns:
            Whether every viewer has taken everything.
        """
        if os.getpid() != self._pid:
            return True
        if not self._is_closing.is_set():
            self._close_by_s = time.monotonic() + timeout_s
            self._is_closing.set()
            self._link.wake()
        self._thread.join(timeout_s + 1.0)
        return self._drained

    @property
    def is_watched(self) -> bool:
        """Whether somebody gets a stream now."""
        return any(peer.is_live for peer in list(self.outlet.peers.values()))

    def stats(self) -> dict[str, int]:
        """Return the counts: viewers that are here, entries sent, refusals, messages that were malformed or ignored."""
        return {"viewers": len(self.outlet.peers), **self.outlet.counts}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
