"""The surroundings of every test: a hang guard, a seed, a scale, and a process as a user would find it."""

from __future__ import annotations

import faulthandler
import importlib.util
import os
import random
import secrets
import shutil
import sys
import tempfile
import time
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import hypothesis
import pytest

import trackside
from racing import in_threads
from trackside import implementation
from trackside.bus import Bus, Subscription
from trackside.events import Event, _event, set_process_source
from trackside.job import Job
from trackside.testing import FakeClock

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

T = TypeVar("T")

HANG_GUARD_S = 300.0
PATIENCE_S = 60.0
"""
The default timeouts of a bus, a subscription and a job in the tests: a busy machine may need longer than the 2 s that
these give themselves.
"""
FULL_GUARD_FACTOR = 10.0

# Variables that a launcher, a scheduler or pytest-xdist around the tests would pass to the processes under test.
FOREIGN_VARIABLES = tuple(
    "TRACKSIDE_ TRACEPARENT SLURM_ TORCHELASTIC_ MASTER_ RANK LOCAL_RANK WORLD_SIZE COLUMNS".split()
)

# Times are written in the machine's zone: the tests, and the processes that they start, are in UTC.
os.environ["TZ"] = "UTC"
time.tzset()

_stderr_copy = pytest.StashKey[int]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("trackside")
    group.addoption("--seed", type=int, help="0 unless given; with --full a new one, which the run's first lines name")
    group.addoption("--scale", type=float, default=0.1, help="the share of the long recipes to run (default: 0.1)")
    group.addoption("--full", dest="scale", action="store_const", const=1.0, help="as --scale=1")


def pytest_configure(config: pytest.Config) -> None:
    # Set here, the seed travels to pytest-xdist's workers with the other options.
    is_full = config.option.scale >= 1
    if config.option.seed is None:
        config.option.seed = secrets.randbelow(2**32) if is_full else 0
    hypothesis.settings.register_profile(
        "trackside",
        deadline=None,  # a busy machine is no failure; the hang guard is for what never ends
        derandomize=not is_full,
        print_blob=True,
        suppress_health_check=[hypothesis.HealthCheck.too_slow],
    )
    hypothesis.settings.load_profile("trackside")
    for call in (Bus.flush, Bus.close, Bus.stats, Subscription.close):
        call.__defaults__ = (PATIENCE_S,)
    Job.close.__kwdefaults__ = {**(Job.close.__kwdefaults__ or {}), "timeout_s": PATIENCE_S}
    assert sys.__stderr__ is not None
    # A copy, because text that a test writes to stderr is captured and would be lost with the process.
    config.stash[_stderr_copy] = os.dup(sys.__stderr__.fileno())


def pytest_unconfigure(config: pytest.Config) -> None:
    os.close(config.stash[_stderr_copy])


def pytest_report_header(config: pytest.Config) -> str:
    return f"seed: {config.option.seed}, scale: {config.option.scale}, trackside: {implementation}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Print every thread's stack and end the process if the test, its fixtures included, takes too long."""
    mark = item.get_closest_marker("hang_guard")
    seconds = mark.args[0] if mark else HANG_GUARD_S
    if item.config.option.scale >= 1.0:
        seconds *= FULL_GUARD_FACTOR
    faulthandler.dump_traceback_later(seconds, exit=True, file=item.config.stash[_stderr_copy])
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()


def pytest_runtest_setup(item: pytest.Item) -> None:
    needs_gpu = item.get_closest_marker("gpu") is not None
    if (needs_gpu or item.get_closest_marker("torch")) and importlib.util.find_spec("torch") is None:
        pytest.skip("torch is not installed in this environment")
    if needs_gpu:
        import torch

        if not torch.cuda.is_available():
            pytest.skip("there is no CUDA device here")


@pytest.fixture
def ids_as_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let buses number under the ids that the test gives, though they were not made here, or for another bus."""
    monkeypatch.setattr("trackside.bus._dispatcher.StreamIdentity.claim", lambda *_: True)


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """
    Give the test a seed of its own; a failure shows it, and ``--seed`` with the run's first lines repeats it.
    """
    own = zlib.crc32(f"{request.config.option.seed}:{request.node.nodeid}".encode())
    print(f"seed of this test: {own} (repeat with --seed={request.config.option.seed})")
    return own


@pytest.fixture
def rng(seed: int) -> random.Random:
    """Give the test a random generator of its own, seeded by `seed`."""
    return random.Random(seed)


@pytest.fixture
def bus() -> Iterator[Bus]:
    """Give a bus of the test's own."""
    with Bus() as given:
        yield given


@pytest.fixture
def events() -> Iterator[list[Event]]:
    """Give the list that every event is appended to."""
    found: list[Event] = []
    with trackside.subscribe(found.append):
        yield found


@pytest.fixture
def fake_clock() -> Iterator[FakeClock]:
    """Give the clock of this process, monotonic and wall, which only the test moves."""
    with FakeClock().installed() as clock:
        yield clock


@pytest.fixture
def socket_directory(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Give a directory of this user's alone, with a name short enough for sockets."""
    directory = tempfile.mkdtemp(prefix="ts-")
    monkeypatch.setenv("XDG_RUNTIME_DIR", directory)
    yield Path(directory)
    shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture
def scale(request: pytest.FixtureRequest) -> float:
    """
    Give the share of a long recipe to run: 0.1, less on further interpreters, 1.0 with ``--full``.

    Durations are multiplied by it; counts go through `scaled`.
    """
    share: float = request.config.option.scale
    return share


@pytest.fixture
def scaled(scale: float) -> Callable[[int], int]:
    """
    Give a function that scales a count, down to one and not to nothing.

        def test_survives_kills(self, scaled):
            for _ in range(scaled(300)):
                ...
    """
    return lambda count: max(1, round(count * scale))


@pytest.fixture(autouse=True)
def untouched_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Hide the environment of the tests, and undo after each the changes it made to the whole process."""
    for name in [name for name in os.environ if name.startswith(FOREIGN_VARIABLES)]:
        if name != "TRACKSIDE_PURE_PYTHON":  # so that the processes that tests start run what the tests run
            monkeypatch.delenv(name)
    set_process_source(None)
    switch_interval = sys.getswitchinterval()
    yield
    sys.setswitchinterval(switch_interval)
    set_process_source(None)


@pytest.fixture
def forgetful(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget after the test which event classes it declared."""
    monkeypatch.setattr(_event, "_classes", dict(_event._classes))


@pytest.fixture(name="in_threads")
def _in_threads() -> Callable[[int, Callable[[int], T]], list[T]]:
    """Give a function that runs work on many threads at once."""
    return in_threads
