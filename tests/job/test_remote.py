"""Viewers and collectors of a job, as `start` sets them up."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest

import trackside
from trackside.events import ConfigError, ProfileSpanEnded, Source, SpanStarted
from trackside.handlers.models import SpanBuilder
from trackside.handlers.models.goodput import GoodputMonitor
from trackside.job import Remote, RemoteAccess
from trackside.job._remote_access import socket_name
from trackside.report import Top


class TestStart:
    def test_off(self, socket_directory, tmp_path, bus):
        """Unless asked to, a job binds no socket and prints nothing about it."""
        with trackside.start(tmp_path, bus=bus, report=False) as job:
            assert job.endpoints == []
        assert list(socket_directory.iterdir()) == []

    def test_on(self, socket_directory, tmp_path, bus, capsys):
        """A job that publishes prints the command to type, is found by its directory, and leaves nothing behind."""
        with trackside.start(tmp_path, bus=bus, remote=trackside.Remote(publish=True), report=True) as job:
            assert f"trackside attach {tmp_path}\n" in capsys.readouterr().err
            (endpoint,) = job.endpoints
            assert stat.S_IMODE(Path(endpoint.removeprefix("ipc://")).parent.stat().st_mode) == 0o700
            with trackside.attach(str(tmp_path), to="trackside.span.*") as viewer:
                assert viewer.wait(60)
        assert list(socket_directory.rglob("*")) == [socket_directory / "trackside"]
        assert list(tmp_path.rglob("*.endpoint")) == []

    def test_end_is_seen(self, socket_directory, tmp_path, bus):
        """A viewer gets the last event of the job, and the reason why it ended."""
        with trackside.start(
            tmp_path, bus=bus, remote=trackside.Remote(publish=f"ipc://{socket_directory}/job"), report=False
        ) as job:
            viewer = trackside.attach(*job.endpoints)
            assert viewer.wait(60)
            closing = threading.Thread(target=job.close, kwargs={"timeout_s": 60})
            closing.start()
            with viewer:
                events = list(viewer)
            closing.join()
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
    def test_not_safe(self, socket_directory, tmp_path, bus, options, message):
        """An endpoint that anybody could reach is refused, and nothing is left turned on."""
        with pytest.raises(ConfigError, match=message):
            trackside.start(tmp_path, bus=bus, report=False, remote=Remote(**options))
        assert bus.is_idle

    def test_taken(self, socket_directory, tmp_path, bus):
        """An endpoint that is served already is left to its server."""
        with (
            trackside.start(
                tmp_path, bus=bus, remote=trackside.Remote(publish=f"ipc://{socket_directory}/job"), report=False
            ),
            trackside.Bus() as other,
            pytest.raises(ConfigError, match="it is in use"),
        ):
            trackside.start(
                tmp_path, bus=other, remote=trackside.Remote(publish=f"ipc://{socket_directory}/job"), report=False
            )


class TestKept:
    """The models that a job keeps for viewers that come late."""

    NAMES = ("GoodputAccumulator", "OpenSpans", "CounterBoard", "ScoreAggregator")

    def kept(self, bus):
        """Return the names of all handlers of the bus."""
        return {stats.name.rpartition(".")[2] for stats in bus.stats().handlers}

    def test_all_that_top_shows(self, socket_directory, tmp_path, bus):
        """A viewer that comes late has the whole state of everything that `trackside top` shows."""
        top = Top()
        with trackside.start(tmp_path, bus=bus, remote=trackside.Remote(publish=True), report=False) as job:
            bus.log(SpanStarted(span_id=70, parent_span_id=0, name="before", attributes={}))
            bus.log(trackside.IterationEnded(span_id=71, duration_ns=10, step=41))
            bus.flush()
            with trackside.attach(*job.endpoints, models=top.models) as viewer:
                assert viewer.wait(60)
                assert {name: joined.complete for name, joined in viewer.models.items()} == dict.fromkeys(
                    top.names, True
                )
        assert set(top.names) == set(self.NAMES) - {"ScoreAggregator"}  # kept for viewers of scores
        assert [one.steps[-1][0] for one in top.goodput.lately(1)] == [41]
        assert [one.name for one in top.spans.result().sources[0].open] == ["before"]

    @pytest.mark.parametrize("rank", [0, 1])
    def test_none_unless_watched(self, socket_directory, tmp_path, bus, rank, monkeypatch):
        """A job that no viewer can attach to keeps none of them."""
        monkeypatch.setenv("RANK", str(rank))
        with trackside.start(tmp_path, bus=bus, report=False):
            assert "TrainingMetrics" in self.kept(bus)
            assert not set(self.NAMES) & self.kept(bus)

    def test_none_twice(self, socket_directory, tmp_path, bus, monkeypatch):
        """A model that the job runs anyway, or a better one, is not duplicated."""
        monkeypatch.setenv("RANK", "1")
        given = [SpanBuilder(), GoodputMonitor()]
        with trackside.start(
            tmp_path, bus=bus, remote=trackside.Remote(publish=True), report=False, handlers=given
        ) as job:
            assert {"OpenSpans", "GoodputAccumulator"}.isdisjoint(self.kept(bus))
            assert self.kept(bus) >= {"CounterBoard", "ScoreAggregator"}
            top = Top()
            with trackside.attach(*job.endpoints, models=top.models) as viewer:
                assert viewer.wait(60)
                assert all(joined.complete for joined in viewer.models.values())

    def test_long_spans_alone(self, socket_directory, tmp_path, bus):
        """The model of open spans gets no event of the spans of a step, so it costs a step nothing."""
        with trackside.start(
            tmp_path, bus=bus, remote=trackside.Remote(publish=True), report=False, heartbeat_interval_s=1000
        ):
            for _ in range(10):
                bus.log(ProfileSpanEnded(span_id=1, parent_span_id=0, name="x", duration_ns=1, attributes={}))
                bus.log(trackside.IterationEnded(span_id=2, duration_ns=1, step=1))
            bus.flush()
            (handled,) = (stats.handled for stats in bus.stats().handlers if "OpenSpans" in stats.name)
        assert handled < 5


class TestConfig:
    def test_collector_from_the_environment(self, monkeypatch):
        """The collector's address comes from the environment unless the caller passes one."""
        monkeypatch.setenv("TRACKSIDE_COLLECTOR", "ipc:///run/x")
        assert Remote().with_environment().collector == "ipc:///run/x"
        assert Remote(collector="ipc:///y").with_environment().collector == "ipc:///y"

    def test_collector_is_not_there(self, socket_directory, bus, tmp_path):
        """A collector that does not answer blocks nothing: events wait for it, and are lost when the job ends."""
        config = Remote(collector="tcp://127.0.0.1:9", insecure=True)
        remote = RemoteAccess(config, bus=bus, source=Source.detect({}), directory=tmp_path)
        assert bus.wants(trackside.IterationEnded)
        for step in range(1000):
            bus.log(trackside.IterationEnded(duration_ns=1, step=step))
        assert bus.flush(60)
        assert bus.stats().lost == 0
        assert not remote.close(0.2)
        assert bus.stats().lost == 1001  # the stream's SourceStarted is one of them

    def test_socket_name(self, socket_directory):
        """A socket is named after the run, rank and process, and its path fits into a socket's address."""
        name = socket_name(Source(run_id="a/b c" * 40, rank=3))
        assert name.startswith("a-b-c")
        assert name.endswith(f".3.{os.getpid()}")
        assert len(f"{socket_directory}/trackside/{name}") < 107


class TestWhereNobodyCanBeKeptOut:
    """Directories that other users made first, or that other users own: the job starts, and says which one it uses."""

    @pytest.fixture
    def made_by_others(self, monkeypatch, tmp_path):
        """Give a temporary directory in which the usual one exists already, open to everybody."""
        temporary = tempfile.mkdtemp(prefix="ts-")
        monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
        monkeypatch.setattr(tempfile, "tempdir", temporary)
        taken = Path(temporary) / f"trackside-{os.geteuid()}"
        taken.mkdir()
        taken.chmod(0o777)
        yield Path(temporary)
        shutil.rmtree(temporary, ignore_errors=True)

    def test_directory_made_by_another(self, made_by_others, tmp_path, bus, caplog):
        """A directory that anybody could have made is not used: the job publishes in a new one, and says so."""
        with trackside.start(tmp_path, remote=trackside.Remote(publish=True), bus=bus, report=False) as job:
            (endpoint,) = job.endpoints
            directory = Path(endpoint.removeprefix("ipc://")).parent
            assert directory.parent == made_by_others
            assert stat.S_IMODE(directory.stat().st_mode) == 0o700
            (line,) = [record.message for record in caplog.records if "viewers find this job" in record.message]
            assert "0777" in line
            with trackside.attach(str(tmp_path)) as viewer:
                assert viewer.wait(60)
        assert [path.name for path in made_by_others.iterdir()] == [f"trackside-{os.geteuid()}"]

    def test_runtime_directory_of_another(self, monkeypatch, tmp_path, bus, caplog):
        """A runtime directory that cannot be written to, as after `su`, does not keep a job from starting."""

        def refuse(path, *arguments, **options):
            if str(path) == "/run/user/other/trackside":
                raise PermissionError(13, "Permission denied")
            return mkdir(path, *arguments, **options)

        mkdir, is_dir = Path.mkdir, Path.is_dir
        monkeypatch.setenv("XDG_RUNTIME_DIR", "/run/user/other")
        monkeypatch.setattr(Path, "mkdir", refuse)
        monkeypatch.setattr(Path, "is_dir", lambda path: str(path) == "/run/user/other" or is_dir(path))
        with trackside.start(tmp_path, remote=trackside.Remote(publish=True), bus=bus, report=False) as job:
            assert "/run/user/other" not in job.endpoints[0]
        assert any("Permission denied" in record.message for record in caplog.records)

    def test_nowhere(self, made_by_others, monkeypatch, tmp_path, bus, caplog):
        """If no directory can be made at all the job starts, is not watched, and says so."""

        def refuse(**options):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(tempfile, "mkdtemp", refuse)
        with trackside.start(tmp_path, remote=trackside.Remote(publish=True), bus=bus, report=False) as job:
            assert job.endpoints == []
        assert any("this job cannot be watched" in record.message for record in caplog.records)


def test_importing_loads_no_zmq():
    """Importing trackside loads no zmq, though the root exports `attach` and `start` can publish."""
    code = "import trackside, sys; trackside.attach; sys.exit('zmq' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
