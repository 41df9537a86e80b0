"""
``python -m benchmarks.cluster``: the traffic of many ranks through three real NATS servers, and on to workers.

Each rank is a source with a subject, numbers and frames of its own. A plain program with nats-py publishes for all of
them, at a steady rate, over one connection or several. Prints what was acknowledged, stored, read and lost, how far
behind the workers were, and the memory and the processor time of each process. 1 if a frame is missing, or a rank was
called silent.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import pathlib
import resource
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from typing import Any, Final

import nats

from benchmarks.load import peak_mib, processor_s
from benchmarks.simulated import Writer
from benchmarks.streams import EVENTS, STREAM, Rank, server_program
from trackside.events import UnreadableError
from trackside.handlers.export import SourcedDecoder
from trackside.handlers.nats import collected
from trackside.handlers.nats._stream import StreamConnection, StreamMessages, create_stream

_NODES: Final = 3
_WAIT_S: Final = 120.0
_LOOK_INTERVAL_S: Final = 1.0
_LONGEST_PAUSE_S: Final = 50.0
"""Between two frames of a rank: workers rightly name one that sends no heartbeats after a minute."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it; 1 if a frame is missing, or a rank was called silent."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cluster", description=__doc__)
    parser.add_argument("--ranks", type=int, default=16_384)
    parser.add_argument("--jobs", type=int, default=16, help="among which the ranks are divided")
    parser.add_argument("--connections", type=int, default=1, help="among which the ranks are divided (default: 1)")
    parser.add_argument("--workers", type=int, default=2, help="0 to publish alone (default: 2)")
    parser.add_argument("--rate", type=float, default=600.0, help="frames a second, of all ranks")
    parser.add_argument("--seconds", type=float, default=150.0)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args(arguments)
    if options.ranks > _LONGEST_PAUSE_S * options.rate:
        parser.error(f"--rate: give at least {options.ranks / _LONGEST_PAUSE_S:.0f}, or ranks are silent for a minute")
    with tempfile.TemporaryDirectory() as directory, contextlib.ExitStack() as stack:
        ports = _free_ports(2 * _NODES)
        nodes = [stack.enter_context(_node(number, directory, ports)) for number in range(_NODES)]
        servers = [f"nats://127.0.0.1:{port}" for port in ports[:_NODES]]
        found = asyncio.run(_measure(options, servers, nodes, stack))
        found["stored_bytes_per_frame"] = round(_stored_bytes(directory) / found["frames"])
    print(json.dumps(found) if options.json else "\n".join(f"{name}: {value}" for name, value in found.items()))
    counts = {found[name] for name in ("frames", "acknowledged", "stored", "read") if name != "read" or options.workers}
    is_whole = len(counts) == 1
    return 0 if is_whole and not found["said_lost"] and not found["said_silent"] else 1


async def _measure(
    options: argparse.Namespace, servers: list[str], nodes: list[int], stack: contextlib.ExitStack
) -> dict[str, Any]:
    clients = [
        await nats.connect(servers, error_cb=_ignore, max_reconnect_attempts=-1) for _ in range(options.connections)
    ]
    try:
        streams = [client.jetstream(timeout=30) for client in clients]
        jetstream = streams[0]
        await _until_created(jetstream)
        address = f"nats://{','.join(server.partition('//')[2] for server in servers)}/{STREAM}"
        workers = [stack.enter_context(_worker(address)) for _ in range(options.workers)]
        writer = Writer()
        ranks = [Rank(rank, f"job-{rank % options.jobs}", writer) for rank in range(options.ranks)]
        pids = [*nodes, *workers]
        began_s, used_s, own_s = time.monotonic(), [processor_s(pid) for pid in pids], time.process_time()
        behind: list[int] = []
        watching = asyncio.create_task(_watch(jetstream, options.jobs, behind))
        frames, acknowledged, frame_bytes = await _publish(streams, ranks, options.rate, options.seconds)
        took_s, own_s = time.monotonic() - began_s, time.process_time() - own_s
        last_s = time.monotonic()
        jobs, names = [f"{address}/job-{job}" for job in range(options.jobs)], {rank.source.id for rank in ranks}
        read = 0
        while options.workers and (read := await asyncio.to_thread(_read, jobs, names)) < EVENTS * frames:
            if time.monotonic() - last_s > _WAIT_S:
                break
            await asyncio.sleep(0.1)
        caught_up_s = time.monotonic() - last_s
        watching.cancel()
        used_s = [processor_s(pid) - before for pid, before in zip(pids, used_s, strict=True)]
        stored = await _stored(jetstream)
    finally:
        for client in clients:
            await client.close()
    said = await asyncio.to_thread(_said, servers)
    return {
        "ranks": options.ranks,
        "jobs": options.jobs,
        "seconds": round(took_s, 1),
        "frames": frames,
        "frames_per_s": round(frames / took_s, 1),
        "events_per_s": round(EVENTS * frames / took_s, 1),
        "mb_per_s": round(frame_bytes / took_s / 1e6, 3),
        "acknowledged": acknowledged,
        "stored": stored,
        "read": read // EVENTS,
        "said_lost": said.count("EventsLost"),
        "said_silent": said.count("RankFellSilent"),
        "most_unread_frames": max(behind, default=None),
        "most_unread_s": round(max(behind) * took_s / frames, 2) if behind else None,
        "caught_up_s": round(caught_up_s, 2),
        "message_bytes": round(frame_bytes / frames),
        "nodes_us_per_frame": [round(used * 1e6 / frames) for used in used_s[:_NODES]],
        "workers_us_per_frame": round(sum(used_s[_NODES:]) * 1e6 / frames),
        "publisher_us_per_frame": round(own_s * 1e6 / frames),
        "nodes_mib": [peak_mib(pid) for pid in nodes],
        "workers_mib": [peak_mib(pid) for pid in workers],
        "publisher_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10,
    }


async def _publish(streams: list[Any], ranks: list[Rank], rate: float, seconds: float) -> tuple[int, int, int]:
    """Publish frames of all ranks in turn; return how many, how many were acknowledged as new, and their bytes."""
    began_s, sent, size_bytes = time.monotonic(), 0, 0
    answers: list[asyncio.Future[Any]] = []
    while sent < rate * seconds or sent < len(ranks):
        place = sent % len(ranks)
        rank, jetstream = ranks[place], streams[place % len(streams)]
        frame, headers = rank.frame()
        size_bytes += len(frame) + sum(len(name) + len(value) for name, value in headers.items())
        answers.append(await jetstream.publish_async(rank.subject, frame, wait_stall=_WAIT_S, headers=headers))
        sent += 1
        if (ahead_s := sent / rate - (time.monotonic() - began_s)) > 0:
            await asyncio.sleep(ahead_s)
    found = await asyncio.wait_for(asyncio.gather(*answers, return_exceptions=True), _WAIT_S)
    return sent, sum(not isinstance(answer, BaseException) and not answer.duplicate for answer in found), size_bytes


async def _watch(jetstream: Any, jobs: int, behind: list[int]) -> None:
    """Note again and again how many frames the workers have not read, as soon as they read all jobs."""
    while True:
        consumers = await jetstream.consumers_info(STREAM)
        if len({info.config.filter_subject for info in consumers}) >= jobs:
            behind.append(sum(int(info.num_pending) for info in consumers))
        await asyncio.sleep(_LOOK_INTERVAL_S)


def _read(jobs: list[str], ranks: set[str]) -> int:
    """Return how many events of ranks the workers have stored the results of."""
    found = 0
    for job in jobs:
        with contextlib.suppress(UnreadableError):
            positions = collected(job).cursor["sources"]
            found += sum(next_seq for name, next_seq in positions.items() if name in ranks)
    return found


async def _stored(jetstream: Any) -> int:
    """Return how many messages of ranks the stream has."""
    info = await jetstream.stream_info(STREAM, subjects_filter=f"{STREAM}.*.collector.>")
    return int(info.state.messages - sum((info.state.subjects or {}).values()))


def _said(servers: list[str]) -> list[str]:
    """Return the types of the events that workers published."""
    decoder = SourcedDecoder()
    messages = StreamMessages(StreamConnection(servers, {}), STREAM, f"{STREAM}.*.collector.>", follow=False)
    with contextlib.closing(messages):
        frames = [decoder.decode_with(message.source_json, message.frame) for message in messages.read_from(1)]
    return [type(event).__name__ for frame in frames for event in frame.events]


def _stored_bytes(directory: str) -> int:
    """Return how much the first node has of the stream on its disk."""
    messages = pathlib.Path(directory, "node-0").glob(f"**/streams/{STREAM}/msgs/*.blk")
    return sum(path.stat().st_size for path in messages)


async def _until_created(jetstream: Any) -> None:
    """Create the stream, as soon as the nodes have found each other."""
    deadline_s = time.monotonic() + _WAIT_S
    while True:
        try:
            return await create_stream(jetstream, STREAM, replicas=_NODES)
        except Exception:  # whatever the client raises
            if time.monotonic() > deadline_s:
                raise
            await asyncio.sleep(0.5)


async def _ignore(_: Exception) -> None:
    pass


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        listening = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [one.getsockname()[1] for one in listening]


@contextlib.contextmanager
def _node(number: int, directory: str, ports: Sequence[int]) -> Iterator[int]:
    """Start a node of the cluster, and give the number of its process."""
    routes = [f"nats://127.0.0.1:{port}" for port in ports[_NODES:]]
    name = f"node-{number}"
    command = [server_program(), "-n", name, "-a", "127.0.0.1", "-p", str(ports[number]), "-js"]
    command += ["-sd", f"{directory}/{name}", "--cluster_name", "nodes", "--cluster", routes[number]]
    with _running([*command, "--routes", ",".join(routes)]) as pid:
        yield pid


@contextlib.contextmanager
def _running(command: list[str]) -> Iterator[int]:
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:  # noqa: S603  ours
        try:
            yield process.pid
        finally:
            process.kill()


def _worker(address: str) -> contextlib.AbstractContextManager[int]:
    return _running([sys.executable, "-m", "trackside", "collect", address])


if __name__ == "__main__":
    sys.exit(main())
