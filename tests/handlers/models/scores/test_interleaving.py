"""The results live, remote and replayed are equal, for any interleaving of the sources."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from children import printed_by
from processes import of
from trackside.bus import Bus
from trackside.events import GpuTimingUnavailable, KernelWindow, SectionWindow, Source, TrainingConfigured
from trackside.handlers import EventLog, replay
from trackside.handlers.models.scores import ScoreAggregator

pytestmark = pytest.mark.once

NAMES = ("a", "b", "c")
KERNELS = ("k", "m", "ncclDevKernel")

medians = st.integers(1, 40).map(float)
sections = st.dictionaries(st.sampled_from(NAMES), medians)
kernels = st.dictionaries(st.sampled_from(KERNELS), medians)
windows = st.tuples(st.integers(0, 3), sections, st.none() | kernels)
steps = windows | st.just("no gpu") | st.sampled_from([("tag", "x"), ("tag", "y")])
# The windows of each rank and attempt, in order.
streams = st.dictionaries(
    st.tuples(st.integers(0, 2), st.integers(0, 1)), st.lists(steps, max_size=6), min_size=1, max_size=6
)


@pytest.fixture(scope="module")
def build(request):
    """Return the events of a stream."""
    from importlib.util import module_from_spec, spec_from_file_location

    spec = spec_from_file_location("scores_windows", request.path.parent / "conftest.py")
    made = module_from_spec(spec)
    spec.loader.exec_module(made)

    def events(rank, attempt, said):
        source = made.make_source(rank, world=3, attempt=attempt)
        for step in said:
            if step == "no gpu":
                yield of(source, GpuTimingUnavailable(reason="none here"))
            elif step[0] == "tag":
                yield of(source, TrainingConfigured(perf_tag=[step[1]]))
            else:
                window, medians, launches = step
                if launches is not None:
                    yield made.make_kernel_window(source, window, launches)
                yield made.make_section_window(source, window, medians)

    return events


def merged(queues, draw):
    """Merge *queues*, keeping the order of each; *draw* chooses the next one."""
    queues = [queue for queue in queues if queue]
    while queues:
        queue = queues[draw(len(queues))]
        yield queue.pop(0)
        queues = [queue for queue in queues if queue]


class TestInterleaving:
    @given(data=st.data(), said=streams)
    def test_any(self, build, data, said):
        """The result depends neither on the interleaving of the sources nor on a transfer of the state."""
        first = ScoreAggregator()
        for (rank, attempt), words in said.items():
            for event in build(rank, attempt, words):
                first(event)
        second = ScoreAggregator(publish=lambda _event: None)
        queues = [list(build(rank, attempt, words)) for (rank, attempt), words in said.items()]
        moves_at = data.draw(st.integers(0, 30), label="moved after")
        for index, event in enumerate(merged(queues, lambda n: data.draw(st.integers(0, n - 1)))):
            if index == moves_at:
                moved = ScoreAggregator(publish=lambda _event: None)
                moved.load(second.dump())
                second = moved
            second(event)
        assert second.result() == first.result()

    def test_long_streams(self, build, rng):
        """The same holds over many more windows than are kept, while no source is that far behind."""
        said = {
            rank: [(window, {"a": float(rng.randint(5, 20))}, None) for window in range(60) if rng.random() < 0.9]
            for rank in range(3)
        }
        in_step, behind = ScoreAggregator(), ScoreAggregator()
        rows = [(step[0], rank, step) for rank, steps in said.items() for step in steps]
        for _, rank, step in sorted(rows, key=lambda row: row[0]):
            for event in build(rank, 0, [step]):
                in_step(event)
        lag = {0: 0, 1: 3, 2: 5}
        for _, rank, step in sorted(rows, key=lambda row: (row[0] + lag[row[1]], row[1])):
            for event in build(rank, 0, [step]):
                behind(event)
        assert behind.too_late == 0
        assert behind.result() == in_step.result()


class TestReplay:
    def test_live_and_replayed(self, tmp_path, rng):
        """The log of some ranks, replayed, gives the result and the reports of a model in the job."""
        live, published = ScoreAggregator(), []
        start_ns = (
            time.time_ns() + 1_000_000_000
        )  # replay merges by time, and each stream begins with its source's start
        for rank in range(3):
            bus = Bus(source=Source(rank=rank, world_size=3, host=f"node{rank}"))
            with bus.subscribe(EventLog(tmp_path)), bus.subscribe(live):
                for window in range(4):
                    values = [rng.uniform(1e6, 2e6) for _ in NAMES]
                    common = {
                        "at_ns": start_ns + (window + 1) * 1_000_000_000 + rank,
                        "window": window,
                        "first_step": window * 10,
                        "last_step": window * 10 + 9,
                        "start_ns": start_ns + window * 1_000_000_000,
                        "names": list(NAMES),
                        "counts": [10] * 3,
                    }
                    common.update(dict.fromkeys(("min_ns", "max_ns", "median_ns", "mean_ns", "std_ns"), values))
                    bus.log(KernelWindow(**common))
                    bus.log(SectionWindow(**common, entries=[10] * 3))
                bus.flush()
            bus.close()
        replayed = ScoreAggregator(publish=published.append)
        for event in replay(tmp_path):
            replayed(event)
        assert replayed.result() == live.result()
        assert len(live.result().windows) == 4
        assert [(event.window, event.revision) for event in published] == [(window, 6) for window in range(4)]


CHILD = """
import sys
import trackside
from trackside.events import SectionWindow, Source
from trackside.handlers.models.scores import ScoreAggregator
aggregator = ScoreAggregator(publish=print)
one = [1.0]
for window in range(3):
    aggregator(SectionWindow(window=window, first_step=0, last_step=1, start_ns=0, names=["s"], counts=[1], entries=[1],
                             min_ns=one, max_ns=one, median_ns=one, mean_ns=one, std_ns=one))
assert aggregator.latest() is not None
assert not any(name == "torch" or name.startswith("torch.") for name in sys.modules), "torch was imported"
"""


class TestNoCollective:
    def test_torch_is_not_even_imported(self):
        """Scores are computed without torch, and so without any of its collectives."""
        printed_by(CHILD)
