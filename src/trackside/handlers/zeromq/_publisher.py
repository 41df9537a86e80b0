"""The publisher: the stream of a job for its viewers or its collector, on a thread of its own."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Protocol

from trackside.events import Source, UnreadableError, clock
from trackside.handlers.eventlog import create_file
from trackside.handlers.zeromq._connection import Connection, is_served
from trackside.handlers.zeromq._limits import BEAT_S, SILENT_AFTER_BEATS
from trackside.handlers.zeromq._protocol import ALWAYS, EVERYTHING, Filter
from trackside.handlers.zeromq._ring import RING_BYTES, Ring, RingBudget
from trackside.handlers.zeromq._server import ReadySnapshot, Stream, StreamServer
from trackside.handlers.zeromq._snapshot import Snapshot, SourcePosition, dump_models, encode_snapshot

if TYPE_CHECKING:
    from typing_extensions import Self

    from trackside.handlers.zeromq._protocol import Verb

_SUFFIX: Final = ".endpoint"
_MAX_FILE_BYTES: Final = 1024
_MAX_FILES: Final = 4096


class EndpointFile:
    """A file that says where a process can be watched; removed when it no longer can."""

    def __init__(self, directory: Path, source: Source, endpoint: str) -> None:
        run = re.sub(r"[^A-Za-z0-9._-]+", "-", source.run_id)[:100].strip("-.") or "run"
        self._path = directory / run / f"rank-{source.rank:05d}.attempt-{source.attempt}.{source.id[:8]}{_SUFFIX}"
        try:
            fd = create_file(directory, f"{run}/{self._path.name}")
        except OSError:  # viewers that were given the endpoint do without
            return
        with open(fd, "w", encoding="utf-8") as file:  # noqa: PTH123  a descriptor
            file.write(endpoint + "\n")

    def remove(self) -> None:
        """Take it away."""
        with contextlib.suppress(OSError):
            self._path.unlink(missing_ok=True)


def find_endpoints(directory: str | os.PathLike[str]) -> list[str]:
    """
    Return where the processes that write below *directory* can be watched now, in the order of runs and ranks.

    Raises:
        UnreadableError: There is no such directory, or nobody who can be.
    """
    where = Path(directory)
    if not where.is_dir():
        raise UnreadableError(
            str(where), "is no directory and no endpoint", "give ipc://…, tcp://… or a run's directory"
        )
    found = [_read_endpoint(path) for path in sorted(where.rglob(f"*{_SUFFIX}"))[:_MAX_FILES]]
    live = [endpoint for endpoint in found if endpoint and (not endpoint.startswith("ipc:") or is_served(endpoint))]
    if not live:
        raise UnreadableError(
            str(where), "no job that publishes runs there", "start it with remote=Remote(publish=True)"
        )
    return live


def _read_endpoint(path: Path) -> str:
    try:
        with path.open("rb") as file:
            text = file.read(_MAX_FILE_BYTES).decode("utf-8", "replace").strip()
    except OSError:
        return ""
    return text if text.startswith(("ipc://", "tcp://")) else ""


_TICK_S: Final = 0.25
_IDLE_S: Final = 2.0
"""As long as nobody is here: a first message wakes the thread, and so does the end."""
_DRAINING_S: Final = 0.005
_ASK_EVERY_S: Final = 0.05
_AT_ONCE: Final = 256
_COMPLAIN_EVERY_S: Final = 60.0

_logger = logging.getLogger("trackside")


class BarrierView(Protocol):
    """What is seen at one place of a bus's stream."""

    source: Source | None
    next_seq: int
    dropped: int
    models: Sequence[Any]


class ViewerStream:
    """Takes the frames of one filter from the dispatcher into a ring. No viewer is promised anything."""

    lost = 0

    def __init__(self, ring: Ring, wake: Callable[[], object]) -> None:
        self._ring = ring
        self._wake = wake

    def open(self, source: Source) -> None:
        """Need not know: each stream holds its sources' own words about themselves."""

    def accept(self, frame: bytes, *, events: int) -> bool:
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


class CollectorStream(ViewerStream):
    """The stream that a collector is promised: what it never acknowledged, and can no longer have, is lost."""

    stream: Stream | None = None
    _is_over = False

    @property
    def lost(self) -> int:  # type: ignore[override]
        """How many events the collector will never have."""
        if self.stream is None:
            return 0
        return self.stream.undelivered if self._is_over else self.stream.lost

    def end(self) -> None:
        """Count as lost what was not acknowledged by now."""
        self._is_over = True


class Publisher:
    """
    Sends a bus's stream to its viewers, each what it asked for and no more.

    Its thread does all input and output; the dispatcher leaves its frames in a ring and never waits. Without a viewer
    it is subscribed to nothing. A forked child publishes nothing.

    Args:
        endpoint: Where viewers find it: ``ipc:///path``, in a directory that is this user's alone, or
            ``tcp://host:port`` with *keys*. With *connects*, the collector to connect to.
        subscribe: Subscribes a taker of frames for a filter, and returns what ends that.
        look: Has the dispatcher call a function at one place of the stream, as `Bus.at_barrier` does.
        connects: Connect out, and offer everything from the beginning, instead of binding.
        keys: A directory of keys, as `trackside keys new` makes it.
        insecure: Do without keys where they are needed.
        status: Returns what to say of the job each second: plain data, by name.
        on_verb: Does what verbs say; see `StreamServer`.
        ring_bytes: What is kept for viewers that are slow or come back.

    Raises:
        ConfigError: The endpoint is not safe, not free or malformed.
    """

    def __init__(
        self,
        endpoint: str,
        *,
        subscribe: Callable[[ViewerStream, Filter], Callable[[], object]],
        look: Callable[[Callable[[Any], object]], object],
        connects: bool = False,
        keys: str | os.PathLike[str] | None = None,
        insecure: bool = False,
        status: Callable[[], dict[str, Any]] = dict,
        on_verb: Callable[[bytes, Verb, str], object] | None = None,
        ring_bytes: int = RING_BYTES,
    ) -> None:
        self._subscribe = subscribe
        self._look = look
        self._status = status
        self._pid = os.getpid()
        self._connection = Connection(endpoint, binds=not connects, role="rank", keys=keys, insecure=insecure)
        self.endpoint = self._connection.endpoint
        """Where it can be reached; with the port that was found."""
        self.safety = self._connection.safety
        self.connects = connects
        """Whether it connected out, to a collector."""
        self.server = StreamServer(
            self,
            self._connection.send,
            own_id=os.urandom(8).hex(),
            connects=connects,
            wake=self._connection.wake,
            budget=RingBudget(ring_bytes),
            on_verb=on_verb,
        )
        self._promised: CollectorStream | None = None
        self._is_closing = threading.Event()
        self._close_by_s = 0.0
        self._drained = False
        self._complained_s = -1e9
        if connects:
            stream = self.server.hold(Filter())
            if self._promised is not None:
                self._promised.stream = stream
        self._thread = threading.Thread(target=self._run, name="trackside-publisher", daemon=True)
        self._thread.start()

    # --- what the server is supplied with, on the thread --------------------------------------------------------------

    def open_stream(self, wanted: Filter, ring: Ring) -> Callable[[], object]:
        """Subscribe to what is *wanted*; see `StreamProvider`."""
        if EVERYTHING not in wanted.names:
            names = tuple(dict.fromkeys((*wanted.names, *ALWAYS)))
            wanted = Filter(names, wanted.min_priority, wanted.rule_bytes)
        kind = ViewerStream
        if self.connects and self._promised is None and not self._is_closing.is_set():
            kind = CollectorStream
        taker = kind(ring, self._connection.wake)
        if isinstance(taker, CollectorStream):
            self._promised = taker
        return self._subscribe(taker, wanted)

    def take_snapshot(self, models: Sequence[str], ring: Ring, done: Callable[[ReadySnapshot | None], None]) -> None:
        """Have the dispatcher dump the models; see `StreamProvider`."""
        names = list(models)

        def act(view: BarrierView) -> None:  # on the dispatcher, which alone appends to the ring
            try:
                places = [SourcePosition(view.source, view.next_seq, view.dropped)] if view.source is not None else []
                states = dump_models(view.models, names)
                data = encode_snapshot(Snapshot(places, states, clock.now_ns()))
            except Exception as error:
                self._complain("a snapshot could not be taken: %s: %s", error)
                done(None)
            else:
                done(ReadySnapshot(data, ring.next_index, ring.before))

        self._look(act)

    def status(self) -> dict[str, Any]:
        """Return what the job says of itself; see `StreamProvider`."""
        try:
            return self._status()
        except Exception as error:
            self._complain("the status could not be read: %s: %s", error)
            return {}

    # --- the thread ---------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._is_closing.is_set():
            try:
                self._serve(_TICK_S if self.connects or self.server.viewers else _IDLE_S)
            except Exception as error:
                self._complain("the publisher stumbled over %s: %s", error)
                self._is_closing.wait(_TICK_S)
        with contextlib.suppress(Exception):
            self._finish()
        self._connection.close()

    def _serve(self, timeout_s: float) -> None:
        more = self.server.pump()
        self._connection.wait(0.0 if more else timeout_s)
        for address, parts, user in self._connection.receive(_AT_ONCE):
            self.server.receive(address, parts, time.monotonic(), clock.now_ns(), user)
        if self._connection.renew(time.monotonic()):
            self.server.begin_again()
        self.server.tick(time.monotonic())

    def _finish(self) -> None:
        """Send what is left to those who take it, and say goodbye."""
        beat_s = 0.0
        while time.monotonic() < self._close_by_s:
            if time.monotonic() - beat_s >= _ASK_EVERY_S:
                beat_s = time.monotonic()
                self.server.pump()
                self.server.beat()
            self._serve(_DRAINING_S)
            is_awaited = self.connects and not self.server.viewers  # a collector that is being started again
            if self.server.is_drained and not is_awaited:
                self._drained = True
                break
        if self._promised is not None:
            self._promised.end()
            if self._promised.lost:
                self._drained = False
        self.server.part("closed")

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
            Whether everybody has everything; a collector, whether it has acknowledged it.
        """
        if os.getpid() != self._pid:
            return True
        if not self._is_closing.is_set():
            self._close_by_s = time.monotonic() + timeout_s
            self._is_closing.set()
            self._connection.wake()
        self._thread.join(timeout_s + 1.0)
        return self._drained

    @property
    def is_watched(self) -> bool:
        """Whether somebody gets a stream now, and was heard in the last three seconds."""
        heard_s = time.monotonic() - SILENT_AFTER_BEATS * BEAT_S
        return any(peer.is_live and peer.heard_s >= heard_s for peer in list(self.server.viewers.values()))

    def stats(self) -> dict[str, int]:
        """Return the counts: viewers that are here, entries sent, refusals, messages that were malformed or ignored."""
        return {"viewers": len(self.server.viewers), **self.server.counts}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
