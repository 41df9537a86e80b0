"""Attaching to a job in another process: the events, the filters, and the effect on the job."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import zmq

import trackside
from trackside.events import ConfigError, SourceEnded, UnknownEvent, UnreadableError
from trackside.handlers.models import SpanBuilder, TrainingMetrics
from trackside.handlers.models.counters import CounterBoard
from trackside.handlers.models.goodput import GoodputAccumulator
from trackside.handlers.models.scores import ScoreAggregator
from trackside.handlers.zeromq._protocol import Refused, encode
from trackside.wire import fields_of, wire_name_of

pytestmark = pytest.mark.once

STEP = "test.step.taken"
MODELS = (SpanBuilder, CounterBoard, GoodputAccumulator, ScoreAggregator, TrainingMetrics)


def numbers(events):
    fields = [event.fields if isinstance(event, UnknownEvent) else fields_of(event) for event in events]
    names = map(wire_name_of, events)
    return [recorded["number"] for recorded, name in zip(fields, names, strict=True) if name == STEP]


class TestWhatComes:
    def test_from_now_on(self, here, attached, read_until):
        """A viewer gets the events logged after it came, in order, each once."""
        job = here()
        job.log(count=10)
        viewer = attached(job.endpoint)
        assert viewer.wait(60)
        job.log(count=100)

        assert numbers(read_until(viewer, lambda events: len(numbers(events)) == 100)) == list(range(10, 110))

    def test_whose_it_is(self, jobs, attached, read_until):
        """
        Events carry the job's identity and their numbers there, though the job's SourceStarted was sent long before.
        """
        job = jobs(rank=3)
        job.log(count=5)
        viewer = attached(job.endpoint)
        assert viewer.wait(60)
        job.log(count=2)
        events = read_until(viewer, lambda events: len(numbers(events)) == 2)

        assert {(event.source.rank, event.source.run_id, event.source.pid) for event in events} == {
            (3, "test", job.pid)
        }
        assert [event.seq for event in events] == [6, 7]  # 0 is SourceStarted

    def test_until_the_end(self, here, attached):
        """The iteration ends when the job has ended, with its last event."""
        job = here()
        viewer = attached(job.endpoint)
        assert viewer.wait(60)
        job.log(count=10)
        job.end(reason="done")
        job.close()

        events = list(viewer)
        assert numbers(events) == list(range(10))
        assert isinstance(events[-1], SourceEnded)
        assert viewer.lost == 0

    def test_no_time_to_close(self, here, attached, monkeypatch):
        """A job that has no time left when it closes still sends its viewers once what waits for them."""
        job = here()
        viewer = attached(job.endpoint)
        assert viewer.wait(60)
        is_held, is_free = threading.Event(), threading.Event()
        monkeypatch.setattr(job.remote._publishers[0], "_status", lambda: is_held.set() or (is_free.wait(60) and {}))
        assert is_held.wait(60)
        job.log(count=10)
        job.end(reason="done")
        job.close(0)
        is_free.set()

        assert isinstance(list(viewer)[-1], SourceEnded)

    def test_two_jobs(self, here, attached, read_until):
        """One viewer can watch several jobs."""
        both = [here(rank=rank) for rank in range(2)]
        viewer = attached(*(job.endpoint for job in both))
        assert viewer.wait(60)
        for job in both:
            job.log(count=20)
        events = read_until(viewer, lambda events: len(numbers(events)) == 40)

        assert {event.source.rank for event in events} == {0, 1}

    def test_by_directory(self, here, attached, socket_directory, read_until):
        """A job is found by the directory it writes to, and no longer when it has left."""
        job = here()
        viewer = attached(str(socket_directory))
        assert viewer.wait(60)
        job.log(count=1)
        read_until(viewer, lambda events: numbers(events) == [0])
        job.close()

        with pytest.raises(UnreadableError, match="no publishing job"):
            trackside.attach(socket_directory.as_posix())

    def test_left_by_a_killed_job(self, jobs, socket_directory):
        """The endpoint file of a killed job is not taken for a job."""
        job = jobs(models=False)
        job.kill()

        with pytest.raises(UnreadableError, match="no publishing job"):
            trackside.attach(socket_directory.as_posix())


class TestWhatIsAskedFor:
    def test_nobody_asked(self, here, attached, until):
        """A type that no viewer asked for is not wanted in the job, before, during and after a visit."""
        job = here()
        assert not job.wants(name="step")
        viewer = attached(job.endpoint, to="test.rare.*")
        assert viewer.wait(60)
        assert job.wants(name="rare")
        assert not job.wants(name="step")
        viewer.close()
        until(lambda: not job.wants(name="rare"))

    def test_by_name(self, here, attached, read_until):
        """Only the named types come, and events of the sources themselves only if asked for."""
        job = here()
        viewer = attached(job.endpoint, to=("test.rare.noted", SourceEnded))
        assert viewer.wait(60)
        job.log(count=50)
        job.note(count=3)
        job.end()
        events = read_until(viewer, lambda events: any(isinstance(event, SourceEnded) for event in events))

        assert [type(event).__name__ for event in events] == ["RareNoted"] * 3 + ["SourceEnded"]
        assert {wire_name_of(event) for event in events[:3]} == {"test.rare.noted"}

    def test_declared_later(self, here, attached, read_until):
        """A type that the job declares after a viewer asked for it by a glob comes."""
        job = here()
        viewer = attached(job.endpoint, to="acme.*")
        assert viewer.wait(60)
        job.declare(name="acme.late.came", count=2)

        events = read_until(viewer, lambda events: len(events) == 2)
        assert {wire_name_of(event) for event in events} == {"acme.late.came"}

    def test_derived_types(self, here, attached, read_until):
        """A class stands for the classes derived from it."""
        job = here()
        viewer = attached(job.endpoint, to=trackside.events.SpanEnded)
        assert viewer.wait(60)
        job.work(seed=1, steps=20)
        job.end()
        job.close()

        assert {type(event).__name__ for event in viewer} == {"SpanEnded", "IterationSpanEnded", "ProfileSpanEnded"}

    def test_by_min_priority(self, here, attached, read_until):
        """Events below the priority that was asked for do not leave the job."""
        job = here()
        viewer = attached(job.endpoint, min_priority=trackside.LIFECYCLE)
        assert viewer.wait(60)
        assert not job.wants(name="step")
        job.log(count=10)
        job.note(count=2)
        events = read_until(viewer, lambda events: len(events) >= 2)

        assert {"RareNoted"} == {type(event).__name__ for event in events} - {"SourceStarted"}

    def test_rule_in_the_job(self, here, attached, read_until):
        """A rule is applied in the job: events that it drops do not cross the socket, and are no loss."""
        job = here()
        viewer = attached(job.endpoint, to=STEP, keep=trackside.every(10))
        assert viewer.wait(60)
        job.log(count=100)

        assert numbers(read_until(viewer, lambda events: len(events) >= 10)) == list(range(0, 100, 10))
        assert sum(line.consumer.before for line in viewer._lines) == 11  # with SourceStarted
        assert viewer.lost == 0

    def test_predicate_here(self, here, attached, read_until):
        """A predicate is applied by the viewer."""
        job = here()
        viewer = attached(job.endpoint, to=STEP, keep=trackside.where(lambda event: event.step % 7 == 0))
        assert viewer.wait(60)
        job.log(count=50)

        assert numbers(read_until(viewer, lambda events: len(events) >= 8)) == list(range(0, 50, 7))

    def test_equal_filters(self, here, attached, read_until):
        """Viewers with equal filters share one ring."""
        job = here()
        viewers = [attached(job.endpoint, to="test.*") for _ in range(3)]
        assert all(viewer.wait(60) for viewer in viewers)
        job.log(count=10)

        assert [len(read_until(viewer, lambda events: len(events) == 10)) for viewer in viewers] == [10, 10, 10]
        assert job.stats()["handlers"] == ["ViewerStream"]

    @pytest.mark.parametrize(
        "wrong",
        [
            {"to": 3},
            {"to": ()},
            {"to": "step"},
            {"min_priority": 9},
            {"keep": len},
            {"models": [SpanBuilder(), SpanBuilder()]},
        ],
        ids=["type", "nothing", "word", "min_priority", "rule", "models"],
    )
    def test_wrong(self, socket_directory, wrong):
        """An invalid filter is refused before anything is connected."""
        with pytest.raises(ConfigError):
            trackside.attach(f"ipc://{socket_directory}/x", **wrong)

    def test_refused(self, socket_directory, attached):
        """A job that refuses a viewer, as one of a release before does, is an error of the reading in its words."""
        endpoint = f"ipc://{socket_directory}/x"
        with zmq.Context() as context, context.socket(zmq.ROUTER) as source:
            source.bind(endpoint)
            viewer = attached(endpoint)
            viewer.read(0)
            assert source.poll(60_000)
            address, *_ = source.recv_multipart()
            source.send_multipart([address, *encode(Refused(0, "version", "it speaks version 2; here it is 1"))])

            with pytest.raises(UnreadableError, match=f"{endpoint}: version: it speaks version 2; here it is 1; "):
                viewer.read(60)

    def test_models_over_several(self, socket_directory):
        """Models over several ranks need a process that has the events of all."""
        with pytest.raises(ConfigError, match="collector"):
            trackside.attach(f"ipc://{socket_directory}/x", f"ipc://{socket_directory}/y", models=[SpanBuilder()])


class TestModels:
    def test_live_is_remote(self, jobs, attached, seed, states):
        """Every model ends in the same state in the job and at a viewer that was there from the beginning."""
        job = jobs()
        models = [make() for make in MODELS]
        viewer = attached(job.endpoint, models=models)
        assert viewer.wait(60)
        job.work(seed=seed, steps=200)
        job.end()
        dumps = job.dumps()
        job.close()
        list(viewer)

        assert states(models) == states(dumps)
        assert viewer.lost == 0

    def test_late_join(self, here, attached, seed, scaled, states):
        """Whenever a viewer comes, the snapshot and the stream from there make the job's state."""
        rounds = scaled(100)
        for first in range(0, rounds, 20):
            job = here(models=True)
            job.pace(per_s=5000)
            viewers = []
            for number in range(first, min(first + 20, rounds)):
                job.work(seed=seed + number, steps=20)
                viewers.append((attached(job.endpoint, models=(models := [make() for make in MODELS])), models))
                assert viewers[-1][0].wait(60)
            job.stop_logging()
            job.work(seed=seed, steps=20)
            job.end()
            dumps = states(job.dumps())
            job.close()
            for viewer, models in viewers:
                count = sum(1 for _ in viewer)
                assert count > 0
                assert states(models) == dumps
                assert all(joined.complete for joined in viewer.models.values())
                assert viewer.lost == 0

    def test_not_run_by_the_job(self, here, attached):
        """A model that the job does not run reports since when it has events, and that these are not all."""
        job = here()
        job.log(count=1)
        viewer = attached(job.endpoint, models=[SpanBuilder()])
        assert viewer.wait(60)

        joined = viewer.models["SpanBuilder"]
        assert not joined.complete
        assert joined.reason == "it is not run there"
        assert abs(joined.since_ns - trackside.events.clock.now_ns()) < 60e9

    def test_nothing_derived(self, here, attached):
        """Derived events of the job are shown, and not read by models here: they would be counted twice."""

        class Kept:
            def __init__(self):
                self.events = []

            def __call__(self, event):
                self.events.append(event)

        job, model = here(models=True), Kept()
        viewer = attached(job.endpoint, models=[model])
        assert viewer.wait(60)
        job.work(seed=1, steps=50)
        job.end()
        job.close()
        shown = list(viewer)

        assert model.events == [event for event in shown if not event.derived]
        assert len(model.events) < len(shown)

    def test_what_is_shown_besides(self, here, attached):
        """Models read all events, and the iteration still yields only those that were asked for."""
        job = here(models=True)
        model = TrainingMetrics()
        viewer = attached(job.endpoint, to="trackside.source.*", models=[model])
        assert viewer.wait(60)
        job.work(seed=1, steps=50)
        job.end()
        job.close()

        assert {type(event).__name__ for event in viewer} == {"SourceStarted", "SourceEnded"}
        assert model.result().sources

    def test_types_not_known_here(self, jobs, attached):
        """Of the types that this process does not know those are shown that were asked for, alone or among others."""
        job = jobs(models=False)
        viewer = attached(job.endpoint, to=("acme.asked.*", "acme.too.came"), models=[TrainingMetrics()])
        assert viewer.wait(60)
        for name, count in (("acme.asked.came", 3), ("acme.other.came", 2), ("acme.too.came", 1)):
            job.declare(name=name, count=count)
        job.end()
        job.close(timeout_s=10.0)

        assert [wire_name_of(event) for event in viewer] == ["acme.asked.came"] * 3 + ["acme.too.came"]


class TestConnections:
    def test_restarted_job(self, jobs, attached, read_until, socket_directory):
        """After a job was killed and another took its place, the viewer goes on with that by itself."""
        first = jobs(models=False, publish=f"ipc://{socket_directory}/same")
        viewer = attached(first.endpoint)
        assert viewer.wait(60)
        first.log(count=3)
        read_until(viewer, lambda events: len(numbers(events)) == 3)
        first.kill()
        second = jobs(models=False, publish=f"ipc://{socket_directory}/same")
        second.log(count=4)  # no viewer is there yet
        read_until(viewer, lambda _: second.wants(name="step"))
        second.log(count=5)
        events = read_until(viewer, lambda events: len(numbers(events)) == 5)

        assert numbers(events) == [4, 5, 6, 7, 8]
        assert {event.source.pid for event in events} == {second.pid}

    @pytest.mark.integration  # three seconds of silence cannot be had in less
    def test_stopped_job(self, jobs, attached, read_until):
        """A job that is stopped is called silent, and no longer when it goes on."""
        job = jobs(models=False)
        viewer = attached(job.endpoint)
        assert viewer.wait(60)
        os.kill(job.pid, signal.SIGSTOP)
        read_until(viewer, lambda _: viewer.is_silent)
        os.kill(job.pid, signal.SIGCONT)
        read_until(viewer, lambda _: not viewer.is_silent)
        job.log(count=1)

        assert numbers(read_until(viewer, lambda events: len(events) >= 1)) == [0]

    def test_status(self, here, attached, read_until):
        """Heartbeats carry the job's counts and its open spans."""
        job = here()
        viewer = attached(job.endpoint)
        assert viewer.wait(60)
        job.log(count=7)
        read_until(viewer, lambda _: viewer.status[0].get("seq", 0) == 8)

        assert viewer.status[0]["counts"]["dropped"] == 0
        assert "open_spans" in viewer.status[0]


DROPPED = """
import gc, os, sys, time, trackside

def descriptors():
    return len(os.listdir("/proc/self/fd"))

trackside.attach(sys.argv[1]).close()
before = descriptors()
for _ in range(3):
    viewer = trackside.attach(sys.argv[1])
    viewer.wait(60)
    del viewer
    gc.collect()
deadline_s = time.monotonic() + 60
while descriptors() > before and time.monotonic() < deadline_s:
    time.sleep(0.01)
print(descriptors() - before)
"""


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="descriptors are counted there")
def test_never_closed(here):
    """An attachment that nobody closes is collected like any object: the process goes on, without its descriptors."""
    done = subprocess.run(
        [sys.executable, "-c", DROPPED, here().endpoint], capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout == "0\n"
