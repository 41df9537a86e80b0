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
from trackside.events import ConfigError, Source
from trackside.job import Remote, RemoteConfig
from trackside.job._remote import own_endpoint


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
