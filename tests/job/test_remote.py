"""Being watched, as `start` turns it on."""

from __future__ import annotations

import shutil
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

import trackside
from trackside.events import ConfigError, ProfileSpanEnded, Source, SpanStarted
from trackside.handlers.models import SpanBuilder
from trackside.handlers.models.goodput import GoodputMonitor
from trackside.job import Remote, RemoteConfig
from trackside.job._remote import own_endpoint
from trackside.views import Top


@pytest.fixture
def place(monkeypatch):
    """Give a runtime directory of this user's alone, with a name short enough for sockets."""
    directory = tempfile.mkdtemp(prefix="ts-")
    monkeypatch.setenv("XDG_RUNTIME_DIR", directory)
    yield Path(directory)
    shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture
def bus():
    with trackside.Bus() as bus:
        yield bus


class TestStart:
    def test_off(self, place, tmp_path, bus):
        """Unless asked to, a job binds nothing and says nothing."""
        with trackside.start(tmp_path, bus=bus, report=False) as job:
            assert job.endpoints == []
        assert list(place.iterdir()) == []

    def test_on(self, place, tmp_path, bus, capsys):
        """A job that publishes says what to type, is found by its directory, and leaves nothing behind."""
        with trackside.start(tmp_path, bus=bus, publish=True, report=True) as job:
            assert f"trackside attach {tmp_path}\n" in capsys.readouterr().err
            (endpoint,) = job.endpoints
            assert stat.S_IMODE(Path(endpoint.removeprefix("ipc://")).parent.stat().st_mode) == 0o700
            with trackside.attach(str(tmp_path), to="trackside.span.*") as viewer:
                assert viewer.wait()
        assert list(place.rglob("*")) == [place / "trackside"]
        assert list(tmp_path.rglob("*.endpoint")) == []

    def test_end_is_seen(self, place, tmp_path, bus):
        """A viewer gets the last event of the job, and the reason why it ended."""
        with trackside.start(tmp_path, bus=bus, publish=f"ipc://{place}/job", report=False) as job:
            viewer = trackside.attach(*job.endpoints)
            assert viewer.wait()
        with viewer:
            events = list(viewer)
        assert (type(events[-1]).__name__, events[-1].reason) == ("SourceEnded", "closed")

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"publish": "tcp://127.0.0.1:*"}, "give keys"),
            ({"publish": "udp://x"}, "ipc:///"),
            ({"publish": 3}, "publish"),
            ({"collector": "tcp://127.0.0.1:9"}, "give keys"),
        ],
        ids=repr,
    )
    def test_not_safe(self, place, tmp_path, bus, options, message):
        """An endpoint that anybody could reach is refused, and nothing is left turned on."""
        with pytest.raises(ConfigError, match=message):
            trackside.start(tmp_path, bus=bus, report=False, **options)
        assert bus.is_idle

    def test_taken(self, place, tmp_path, bus):
        """An endpoint that somebody serves already is not taken away from them."""
        with (
            trackside.start(tmp_path, bus=bus, publish=f"ipc://{place}/job", report=False),
            trackside.Bus() as other,
            pytest.raises(ConfigError, match="somebody is there"),
        ):
            trackside.start(tmp_path, bus=other, publish=f"ipc://{place}/job", report=False)


class TestKept:
    """What a job keeps for viewers that come late."""

    NAMES = ("GoodputAccumulator", "OpenSpans", "CounterBoard", "ScoreAggregator")

    def kept(self, bus):
        """Return the names of all that handles the bus's events."""
        return {stats.name.rpartition(".")[2] for stats in bus.stats().handlers}

    def test_all_that_top_shows(self, place, tmp_path, bus):
        """A viewer that comes late has the whole state of everything that `trackside top` shows."""
        top = Top()
        with trackside.start(tmp_path, bus=bus, publish=True, report=False) as job:
            bus.log(SpanStarted(id=70, parent_id=0, name="before", attributes={}))
            bus.log(trackside.IterationEnded(id=71, duration_ns=10, step=41))
            bus.flush()
            with trackside.attach(*job.endpoints, models=top.models) as viewer:
                assert viewer.wait()
                assert {name: joined.complete for name, joined in viewer.models.items()} == dict.fromkeys(
                    top.names, True
                )
        assert set(top.names) == set(self.NAMES)
        assert [one.steps[-1][0] for one in top.goodput.lately(1)] == [41]
        assert [one.name for one in top.spans.result().sources[0].open] == ["before"]

    @pytest.mark.parametrize("rank", [0, 1])
    def test_none_unless_watched(self, place, tmp_path, bus, rank, monkeypatch):
        """A job that nobody can attach to keeps none of them."""
        monkeypatch.setenv("RANK", str(rank))
        with trackside.start(tmp_path, bus=bus, report=False):
            assert "TrainingMetrics" in self.kept(bus)
            assert not set(self.NAMES) & self.kept(bus)

    def test_none_twice(self, place, tmp_path, bus, monkeypatch):
        """What the job runs anyway, or has one that knows the same, is not kept beside it."""
        monkeypatch.setenv("RANK", "1")
        given = [SpanBuilder(), GoodputMonitor()]
        with trackside.start(tmp_path, bus=bus, publish=True, report=False, handlers=given) as job:
            assert {"OpenSpans", "GoodputAccumulator"}.isdisjoint(self.kept(bus))
            assert self.kept(bus) >= {"CounterBoard", "ScoreAggregator"}
            top = Top()
            with trackside.attach(*job.endpoints, models=top.models) as viewer:
                assert viewer.wait()
                assert all(joined.complete for joined in viewer.models.values())

    def test_long_spans_alone(self, place, tmp_path, bus):
        """Of the spans of a step the model of open ones hears nothing, so it costs a step nothing."""
        with trackside.start(tmp_path, bus=bus, publish=True, report=False, heartbeat_s=1000):
            for _ in range(10):
                bus.log(ProfileSpanEnded(id=1, parent_id=0, name="x", duration_ns=1, attributes={}))
                bus.log(trackside.IterationEnded(id=2, duration_ns=1, step=1))
            bus.flush()
            (handled,) = (stats.handled for stats in bus.stats().handlers if "OpenSpans" in stats.name)
        assert handled < 5


class TestConfig:
    def test_collector_from_the_environment(self, monkeypatch):
        """The collector comes from the environment unless it was given."""
        monkeypatch.setenv("TRACKSIDE_COLLECTOR", "ipc:///run/x")
        assert RemoteConfig.resolve(False, None, None, insecure=False).collector == "ipc:///run/x"
        assert RemoteConfig.resolve(False, "ipc:///y", None, insecure=False).collector == "ipc:///y"

    def test_collector_is_not_there(self, place, bus, tmp_path):
        """A collector that does not answer holds nothing up: events are kept for it while there is room."""
        config = RemoteConfig(collector="tcp://127.0.0.1:9", insecure=True)
        remote = Remote(config, bus=bus, source=Source.detect({}), directory=tmp_path)
        assert bus.wants(trackside.IterationEnded)
        for step in range(1000):
            bus.log(trackside.IterationEnded(duration_ns=1, step=step))
        assert bus.flush()
        remote.close(0.2)
        assert bus.stats().lost == 0

    def test_own_endpoint(self, place):
        """A process's own endpoint is in the runtime directory, and fits into a socket's address."""
        endpoint = own_endpoint(Source(run_id="a/b c" * 40, rank=3))
        assert endpoint.startswith(f"ipc://{place}/trackside/a-b-c")
        assert len(endpoint) < 107

    def test_own_endpoint_without_a_runtime_directory(self, monkeypatch):
        """Without one it is in a directory named after the user."""
        monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
        assert "/trackside-" in own_endpoint(Source(run_id="x"))


def test_importing_loads_no_zmq():
    """Nothing but the first socket loads zmq, though the root knows how to attach and `start` how to publish."""
    code = "import trackside, sys; trackside.attach; sys.exit('zmq' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
