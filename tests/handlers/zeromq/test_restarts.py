"""A collector that is killed again and again, at any moment, has every event in the end."""

from __future__ import annotations

import signal
import time

import pytest

from trackside.handlers import feed, replay
from trackside.handlers.models import ClockOffsets, CounterBoard, SpanBuilder
from trackside.handlers.models.goodput import GoodputAccumulator
from trackside.handlers.models.scores import ScoreAggregator

pytestmark = [pytest.mark.once, pytest.mark.integration]

MODELS = (SpanBuilder, CounterBoard, ClockOffsets, ScoreAggregator, GoodputAccumulator)


class CollectorSite:
    """The port and the log directory of a collector."""

    def __init__(self, port, log, command_line, collectors):
        self.endpoint = f"tcp://127.0.0.1:{port}"
        self.log = log
        self._command_line = command_line
        self._collectors = collectors

    def start(self):
        """Start a collector in a process of its own."""
        return self._command_line("collect", "--bind", self.endpoint, "--log", self.log, "--insecure")

    def serve(self):
        """Run one in this process."""
        return self._collectors(bind=self.endpoint, log=self.log)


@pytest.fixture
def collector_site(free_port, tmp_path, command_line, collectors):
    """Give a place for collectors."""
    return CollectorSite(free_port, tmp_path / "log", command_line, collectors)


def results(models):
    """Return the states of *models*, by name."""
    recorded = {type(model).__name__: model for model in models if isinstance(model, MODELS)}
    goodput = recorded.pop("GoodputAccumulator")
    return {**{name: model.result() for name, model in recorded.items()}, "Goodput": goodput.result(session="test")}


def test_killed_at_any_moment(collector_site, jobs, rng, scaled, until):
    """A collector is killed fifty times, also while it starts: the job reconnects by itself, and losses are counted."""
    job = jobs(publish=False, collector=collector_site.endpoint, insecure=True, models=False)
    job.pace(per_s=2000)

    def sent():
        return job.stats()["remote"][0].get("sent", 0)

    back_s = []
    for turn in range(scaled(50)):
        before = sent()
        collector = collector_site.start()
        if turn % 2:
            time.sleep(rng.uniform(0.0, 1.0))
        else:
            assert collector.stdout.readline()
            start_s = time.monotonic()
            until(lambda before=before: sent() > before)
            back_s.append(time.monotonic() - start_s)
            time.sleep(rng.uniform(0.0, 2.0))
        collector.send_signal(signal.SIGKILL)
        collector.communicate()
    last = collector_site.serve()
    logged = job.stop_logging()
    job.end()
    _, done = job.close(timeout_s=60)
    assert done
    assert last.end()

    events, totals = list(replay(collector_site.log)), last.totals()
    of_job = [event for event in events if event.source.role == "main"]
    seqs = [event.seq for event in of_job]
    assert seqs == sorted(set(seqs))
    assert len(seqs) + totals["lost"] == logged + 2  # with its beginning and its end
    numbers = [event.fields["number"] if hasattr(event, "fields") else event.number for event in of_job[1:-1]]
    assert numbers == [seq - 1 for seq in seqs[1:-1]]
    fresh = feed((event for event in events if not event.derived), *(make() for make in MODELS))
    assert results(fresh) == results(last.models)
    back_s.sort()
    print(f"{logged:,} events, lost {totals['lost']:,}; restored at last {last.restored.events:,}")
    print(f"back after {back_s[len(back_s) // 2]:.2f} s, at most {back_s[-1]:.2f} s")
