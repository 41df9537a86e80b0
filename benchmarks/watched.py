"""
The cost of being watched: the whole of `benchmarks.whole`, beside a viewer, one that stops, and a hostile peer.

The viewer reads every event and has a model. The second does too, but is stopped for five seconds of every six. The
third asks for every event, never says that it got one, and sends a thousand messages a second that nobody can read.

``python -m benchmarks.watched STEP_MS PAIRS DIRECTORY KIND`` measures, and prints its figures as JSON; ``python -m
benchmarks.watched KIND ENDPOINT`` is the viewer, until killed.
"""

from __future__ import annotations

import contextlib
import json
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Final

import zmq

import trackside
from benchmarks.measure import Row
from benchmarks.whole import (
    BLOCK_S,
    Budgets,
    Figures,
    Loop,
    alternating,
    bare_block,
    compared_rows,
    instrumented_block,
)
from trackside.handlers.models import SpanBuilder
from trackside.handlers.zeromq._protocol import PROTOCOL_VERSION, Hello, Ping, Subscribe, encode
from trackside.job import Job

PAIRS = 20
_MET_S = 60.0
_STOPPED_S, _AWAKE_S = 5.0, 1.0
_BURST, _BURSTS_PER_S = 50, 20
_WINDOW_BYTES = 1 << 22


def rows() -> list[Row]:
    """Measure, and return the rows."""
    steps = ((10.0, 0.005), (1.0, 0.05))
    return [row for kind in WATCHERS for step_ms, budget in steps for row in _measured(kind, step_ms, budget)]


def _measured(kind: str, step_ms: float, budget: float) -> list[Row]:
    with tempfile.TemporaryDirectory() as directory:
        command = [sys.executable, "-m", "benchmarks.watched", str(step_ms), str(PAIRS), directory, kind]
        found = subprocess.run(command, check=True, capture_output=True, text=True)  # noqa: S603  ours
    figures: Figures = json.loads(found.stdout.splitlines()[-1])
    return compared_rows(f"a step of {step_ms:g} ms, the viewer {kind}", figures, Budgets(budget, budget, budget))


def measure(step_s: float, pairs: int, directory: pathlib.Path, kind: str) -> Figures:
    """Return the nanoseconds of a step as `benchmarks.whole.measure` does, but of one job, which is watched."""
    loop, endpoint = Loop(), f"ipc://{directory}/job"
    loop.calibrate(step_s)
    steps = max(10, round(BLOCK_S / step_s))
    figures: Figures = {"wall with": [], "wall without": [], "CPU of others": []}
    with (
        trackside.start(directory, report=False, remote=trackside.Remote(publish=endpoint)) as job,
        _watcher(kind, endpoint),
    ):
        _wait_for(job)
        with trackside.training_loop(0):
            for pair in range(pairs):
                for is_instrumented in (True, False) if pair % 2 else (False, True):
                    (instrumented_block if is_instrumented else bare_block)(loop, steps, figures)
            return {**figures, **alternating(loop, step_s)}


def _wait_for(job: Job) -> None:
    until_s = time.monotonic() + _MET_S
    while not job.is_watched:
        if time.monotonic() > until_s:
            raise RuntimeError("the viewer never came")
        time.sleep(0.01)


@contextlib.contextmanager
def _watcher(kind: str, endpoint: str) -> Iterator[None]:
    command = [sys.executable, "-m", "benchmarks.watched", kind, endpoint]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as watcher:  # noqa: S603  ours
        try:
            yield
        finally:
            watcher.terminate()


def attach(endpoint: str) -> None:
    """Watch, with a model."""
    while True:
        with trackside.attach(endpoint, models=[SpanBuilder()]) as events:
            events.wait()
            print("attached", flush=True)
            for _ in events:
                pass


def stop(endpoint: str) -> None:
    """Watch, and be stopped most of the time."""
    command = [sys.executable, "-m", "benchmarks.watched", "attached", endpoint]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as viewer:  # noqa: S603  ours
        try:
            assert viewer.stdout is not None
            viewer.stdout.readline()
            while True:
                time.sleep(_AWAKE_S)
                viewer.send_signal(signal.SIGSTOP)
                time.sleep(_STOPPED_S)
                viewer.send_signal(signal.SIGCONT)
        finally:
            viewer.kill()


def harm(endpoint: str) -> None:
    """Ask for everything, read it, never acknowledge it, and send messages that nobody can read."""
    numbers = random.Random(7)
    with zmq.Context() as context, context.socket(zmq.DEALER) as peer:
        peer.linger = 0
        peer.connect(endpoint)
        peer.send_multipart(encode(Hello(PROTOCOL_VERSION, "viewer", "x" * 16, "somebody")))
        peer.send_multipart(encode(Subscribe(1, ["*"], 0, None, [], "", 0, _WINDOW_BYTES)))
        while True:
            with contextlib.suppress(zmq.Again):
                for _ in range(_BURST):
                    peer.send_multipart([numbers.randbytes(100), numbers.randbytes(100)], zmq.NOBLOCK)
                peer.send_multipart(encode(Ping(0)), zmq.NOBLOCK)
            time.sleep(1 / _BURSTS_PER_S)


WATCHERS: Final[dict[str, Callable[[str], None]]] = {"attached": attach, "stopped": stop, "hostile": harm}


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    if len(sys.argv) > 3:  # noqa: PLR2004
        step_ms, pairs, directory, kind = sys.argv[1:]
        print(json.dumps(measure(float(step_ms) / 1e3, int(pairs), pathlib.Path(directory), kind)))
    else:
        WATCHERS[sys.argv[1]](sys.argv[2])
