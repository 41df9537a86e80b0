"""
Simulated ranks: many sources in one process, each over a connection of its own or all of a node over one.

Run as a process of its own by `benchmarks.fan_in` and `benchmarks.tree`; prints how many events it sent.
"""

from __future__ import annotations

import argparse
import resource
import secrets
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import attrs
import zmq

from trackside.events import IterationEnded, Source, SourceEnded, SourceStarted, clock
from trackside.handlers.zeromq._connection import new_context, open_socket
from trackside.handlers.zeromq._protocol import Filter, Snapshot, SourcePosition, encode_snapshot
from trackside.handlers.zeromq._server import ReadySnapshot, Ring, RingBudget, StreamServer
from trackside.handlers.zeromq._session import Sent
from trackside.wire import RowEncoder, encode_frame

Rows: TypeAlias = tuple[list[bytes], list[bytes]]
"""Schemas and rows, encoded."""

_AT_ONE_TIME_NS = 5_000_000
_POLL_INTERVAL_S = 0.05
_ROUNDS = 20
"""Each connection is read once a second: no message to a simulated rank is urgent."""
_DEADLINE_S = 300.0


class Writer:
    """
    Encodes events for all ranks of a process.

    Ranks in step with each other log the same events except for their identity and position, so the encoding of one is
    used for the next: the simulation shares two cores with the collector that it measures.
    """

    def __init__(self) -> None:
        self._encoder = RowEncoder()
        self._steps = (-1, 0)
        self._until_ns = 0
        self._rows: Rows = ([], [])

    def rows(self, events: Sequence[Any]) -> Rows:
        """Return the schemas and rows of *events*."""
        schemas, rows = {}, []
        for place, event in enumerate(events):
            schema, row = self._encoder.encode(event, place)
            schemas[schema.number] = schema.entry
            rows.append(row)
        return list(schemas.values()), rows

    def iterations(self, first: int, count: int) -> Rows:
        """Return the schemas and rows of *count* iterations that have just ended, the first of them step *first*."""
        now_ns = clock.now_ns()
        if self._steps != (first, count) or now_ns > self._until_ns:
            self._steps, self._until_ns = (first, count), now_ns + _AT_ONE_TIME_NS
            steps = range(first, first + count)
            self._rows = self.rows(
                [IterationEnded(duration_ns=100, step=step, at_ns=now_ns, parent_span_id=0) for step in steps]
            )
        return self._rows


@attrs.define(eq=False)
class Rank:
    """One source that generates frames."""

    source: Source
    writer: Writer = attrs.field(factory=Writer)
    next_seq: int = 0
    step: int = 0

    def frame(self, events: Sequence[Any]) -> bytes:
        """Return a frame of *events*."""
        return self._framed(self.writer.rows(events))

    def iterations(self, count: int) -> bytes:
        """Return a frame of *count* iterations."""
        first, self.step = self.step, self.step + count
        return self._framed(self.writer.iterations(first, count))

    def _framed(self, encoded: Rows) -> bytes:
        schemas, rows = encoded
        first, self.next_seq = self.next_seq, self.next_seq + len(rows)
        return encode_frame(self.source.id, first, self.next_seq - 1, dropped={}, schemas=schemas, rows=rows)


class Wire:
    """A connection like a job's, but all of a process on one thread of libzmq."""

    def __init__(self, context: zmq.Context[Any], endpoint: str) -> None:
        self._socket = open_socket(context, zmq.DEALER, send_high_water=1024, receive_high_water=1024)
        self._socket.connect(endpoint)

    def send(self, address: bytes, parts: Sequence[bytes]) -> Sent:
        """Send *parts*, if there is room now."""
        del address
        try:
            self._socket.send_multipart(parts, zmq.DONTWAIT)
        except zmq.Again:
            return Sent.FULL
        return Sent.QUEUED

    def receive(self, most: int) -> Iterator[list[bytes]]:
        """Yield the messages that arrived."""
        for _ in range(most):
            try:
                yield self._socket.recv_multipart(zmq.DONTWAIT)
            except zmq.Again:
                return

    def close(self) -> None:
        """Close; messages just sent have a second to leave."""
        self._socket.close(1000)


class Node:
    """Some ranks over one connection."""

    def __init__(self, context: zmq.Context[Any], endpoint: str, ranks: Sequence[Rank]) -> None:
        self.ranks = ranks
        self.connection = Wire(context, endpoint)
        self.server = StreamServer(
            self, self.connection.send, own_id=secrets.token_hex(8), connects=True, budget=RingBudget(32 << 20, 1e6)
        )
        self._rings: list[Ring] = []
        self.server.hold(Filter())
        for rank in ranks:
            self.append(rank.frame([SourceStarted(identity=rank.source.to_wire(), span_id=0, step=-1)]), 1)

    def open_stream(self, wanted: Filter, ring: Ring) -> Callable[[], object]:
        """Begin to fill *ring*."""
        del wanted
        self._rings.append(ring)
        return lambda: self._rings.remove(ring)

    def take_snapshot(self, models: Sequence[str], ring: Ring, done: Callable[[ReadySnapshot | None], None]) -> None:
        """Return the sources."""
        del models
        positions = [SourcePosition(rank.source, rank.next_seq, 0) for rank in self.ranks]
        done(ReadySnapshot(encode_snapshot(Snapshot(positions, {}, clock.now_ns())), ring.next_index, ring.before))

    def status(self) -> dict[str, Any]:
        """Have no status."""
        return {}

    def append(self, frame: bytes, events: int) -> None:
        """Send a frame."""
        for ring in self._rings:
            ring.append(frame, events)

    def turn(self) -> None:
        """Send and receive the messages there are."""
        self.server.pump()
        for parts in self.connection.receive(64):
            self.server.receive(b"", parts, time.monotonic(), clock.now_ns())
        self.server.tick(time.monotonic())


def main() -> int:
    """Send as the command line says, and print the events sent; 1 if the other end did not accept all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("endpoints", nargs="+")
    parser.add_argument("--first", type=int, default=0, help="the first rank")
    parser.add_argument("--nodes", type=int, default=1, help="connections")
    parser.add_argument("--ranks", type=int, default=1, help="on each connection")
    parser.add_argument("--frames", type=int, default=10, help="that each rank sends")
    parser.add_argument("--events", type=int, default=10, help="in each frame")
    parser.add_argument("--every", type=float, default=1.0, help="seconds between a rank's frames")
    options = parser.parse_args()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 16 * options.nodes + 256)), hard))
    context = new_context()
    context.set(zmq.MAX_SOCKETS, options.nodes + 64)
    writer = Writer()
    nodes = [_node(context, options, place, writer) for place in range(options.nodes)]
    _greet(nodes)
    sent = sum(len(node.ranks) for node in nodes) + _send(nodes, options) + _end(nodes)
    print(sent, flush=True)
    is_done = _drain(nodes)
    for node in nodes:
        node.server.part("closed")
        node.connection.close()
    context.term()
    return 0 if is_done else 1


def _node(context: zmq.Context[Any], options: argparse.Namespace, index: int, writer: Writer) -> Node:
    first = options.first + index * options.ranks
    ranks = [
        Rank(Source.detect({}, run_id="load", rank=rank, world_size=1 << 20), writer)
        for rank in range(first, first + options.ranks)
    ]
    return Node(context, options.endpoints[index % len(options.endpoints)], ranks)


def _greet(nodes: Sequence[Node]) -> None:
    deadline_s = time.monotonic() + _DEADLINE_S
    while time.monotonic() < deadline_s and not all(node.server.viewers for node in nodes):
        for node in nodes:
            node.turn()
        time.sleep(_POLL_INTERVAL_S)
    print("ready", flush=True)
    sys.stdin.readline()


def _send(nodes: Sequence[Node], options: argparse.Namespace) -> int:
    """Send every rank's frames, spread evenly over the time; return how many events that were."""
    ranks = [(node, rank) for node in nodes for rank in node.ranks]
    total, done, sent, turn = len(ranks) * options.frames, 0, 0, 0
    start_s = time.monotonic()
    while done < total:
        due = total if not options.every else int((time.monotonic() - start_s) / options.every * len(ranks))
        while done < min(due, total):
            node, rank = ranks[done % len(ranks)]
            node.append(rank.iterations(options.events), options.events)
            node.server.pump()
            done, sent = done + 1, sent + options.events
            if not options.every and not done % 256:
                break
        for node in nodes[turn % _ROUNDS :: _ROUNDS]:
            node.turn()
        turn += 1
        time.sleep(_POLL_INTERVAL_S if options.every else 0.0)
    return sent


def _end(nodes: Sequence[Node]) -> int:
    count = 0
    for node in nodes:
        for rank in node.ranks:
            node.append(rank.frame([SourceEnded(reason="closed", span_id=0, step=-1)]), 1)
            count += 1
    return count


def _drain(nodes: Sequence[Node]) -> bool:
    deadline_s = time.monotonic() + _DEADLINE_S
    while time.monotonic() < deadline_s and not all(node.server.is_drained for node in nodes):
        for node in nodes:
            node.turn()
        time.sleep(_POLL_INTERVAL_S)
    return all(node.server.is_drained for node in nodes)


if __name__ == "__main__":
    sys.exit(main())
