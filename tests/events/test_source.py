"""The source of events: the identity that a process finds out about itself and passes on."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import textwrap
import threading

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trackside._implementation import implementation
from trackside.events import (
    ConfigError,
    Parent,
    Source,
    SourceStarted,
    __version__,
    ambient,
    clock,
    process_source,
    set_process_source,
)
from trackside.wire import RowEncoder

TORCHRUN = {
    "RANK": "5",
    "LOCAL_RANK": "1",
    "WORLD_SIZE": "8",
    "GROUP_WORLD_SIZE": "2",
    "MASTER_ADDR": "10.0.0.7",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_RESTART_COUNT": "2",
    "TORCHELASTIC_RUN_ID": "job-17",
}
SLURM = {
    "SLURM_JOB_ID": "4711",
    "SLURM_PROCID": "3",
    "SLURM_LOCALID": "1",
    "SLURM_NTASKS": "16",
    "SLURM_RESTART_COUNT": "1",
}
# As torchrun sets it: its log directory, one made for the job, the attempt, the local rank.
ERROR_FILE = "/tmp/torchelastic_k1kg7vbf/none_txq9uldw/attempt_{attempt}/{local_rank}/error.json"


class TestDetect:
    def test_torchrun(self):
        """Under torchrun a process knows its run, attempt and ranks."""
        source = Source.detect(TORCHRUN)
        assert (source.run_id, source.attempt) == ("job-17", 2)
        assert (source.rank, source.local_rank, source.world_size) == (5, 1, 8)

    def test_slurm(self):
        """The same holds under SLURM."""
        source = Source.detect(SLURM)
        assert (source.run_id, source.attempt) == ("slurm-4711", 1)
        assert (source.rank, source.local_rank, source.world_size) == (3, 1, 16)

    def test_torchrun_in_slurm(self):
        """If torchrun runs in a SLURM job, its ranks take precedence."""
        source = Source.detect({**SLURM, **TORCHRUN})
        assert (source.run_id, source.rank) == ("job-17", 5)

    def test_nothing(self):
        """Without a launcher a process is rank 0 of one, of a run of its own."""
        one, other = Source.detect({}), Source.detect({})
        assert (one.rank, one.local_rank, one.world_size, one.attempt) == (0, 0, 1, 0)
        assert re.fullmatch(r"run-[0-9a-f]{12}", one.run_id)
        assert one.run_id != other.run_id

    def test_id(self):
        """Each process has an id of 16 hexadecimal digits of its own, also within one run."""
        one, other = Source.detect(TORCHRUN), Source.detect(TORCHRUN)
        assert re.fullmatch(r"[0-9a-f]{16}", one.id)
        assert one.id != other.id

    def test_process(self):
        """Host, process, Python and the release of trackside are recorded, and that it is a main process."""
        source = Source.detect({})
        assert (source.pid, source.role) == (os.getpid(), "main")
        assert source.host == os.uname().nodename
        python = ".".join(map(str, sys.version_info[:3]))
        assert source.versions == {"python": python, "trackside": __version__, "core": implementation}

    def test_no_utf8(self):
        """A text that has no UTF-8, as the name of a file may be, has an escape, as readers get it."""
        source = Source(application="a\udcff", perf_tags=["b\udcff"], metadata={"c\udcff": "d\udcff"})
        assert (source.application, source.perf_tags, source.metadata) == (
            r"a\udcff",
            (r"b\udcff",),
            {r"c\udcff": r"d\udcff"},
        )

    def test_environment(self, monkeypatch):
        """By default the variables are the process's own."""
        for name, value in TORCHRUN.items():
            monkeypatch.setenv(name, value)
        assert Source.detect().run_id == "job-17"

    def test_given(self):
        """Given values take precedence over detected ones."""
        source = Source.detect(TORCHRUN, run_id="mine", rank=6, application="gpt")
        assert (source.run_id, source.rank, source.application) == ("mine", 6, "gpt")
        assert source.world_size == 8

    @pytest.mark.parametrize("variable", ["RANK", "LOCAL_RANK", "WORLD_SIZE", "TORCHELASTIC_RESTART_COUNT"])
    @pytest.mark.parametrize("value", ["x", "1.5", "-1", " ", "٣", "1_0", "9" * 5000])
    def test_malformed(self, variable, value):
        """A launcher's variable that is no whole number is refused by name."""
        with pytest.raises(ConfigError) as caught:
            Source.detect({**TORCHRUN, variable: value})
        assert (caught.value.field, caught.value.given) == (variable, value)

    def test_empty_world(self):
        """A world of no process is no world."""
        with pytest.raises(ConfigError, match="WORLD_SIZE"):
            Source.detect({**TORCHRUN, "WORLD_SIZE": "0"})

    @pytest.mark.parametrize("variable", sorted(TORCHRUN))
    def test_empty(self, variable):
        """An empty variable counts as not set."""
        kept = {name: value for name, value in TORCHRUN.items() if name != variable}
        empty, missing = Source.detect({**TORCHRUN, variable: ""}), Source.detect(kept)
        assert (empty.rank, empty.local_rank, empty.world_size) == (
            missing.rank,
            missing.local_rank,
            missing.world_size,
        )

    def test_bad_role(self):
        """A role is one of the three."""
        with pytest.raises(ConfigError, match="main, worker, collector"):
            Source.detect({}, role="boss")


def on_one_node(attempt, local_rank):
    return {
        **TORCHRUN,
        "TORCHELASTIC_RUN_ID": "none",
        "GROUP_WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1",
        "TORCHELASTIC_ERROR_FILE": ERROR_FILE.format(attempt=attempt, local_rank=local_rank),
    }


class TestAnonymousRun:
    def test_one_node(self):
        """On one node the run is named after torchrun's own directory, since its port is always the same."""
        assert Source.detect(on_one_node(0, 0)).run_id == "none_txq9uldw"

    def test_attempts(self):
        """All ranks and attempts of it have the same run id."""
        run_ids = {Source.detect(on_one_node(attempt, rank)).run_id for attempt in range(3) for rank in range(3)}
        assert run_ids == {"none_txq9uldw"}

    @pytest.mark.parametrize("run_id", ["none", ""])
    def test_several_nodes(self, run_id):
        """Over several nodes it has the rendezvous's address."""
        assert Source.detect({**TORCHRUN, "TORCHELASTIC_RUN_ID": run_id}).run_id == "10.0.0.7-29500"

    def test_no_torchrun(self):
        """So has a run of a launcher that sets only the variables that torch.distributed needs."""
        env = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "master-0", "MASTER_PORT": "23456"}
        assert Source.detect(env).run_id == "master-0-23456"

    def test_no_address(self):
        """Without even those, the id is random, and not "none"."""
        assert Source.detect({"RANK": "0"}).run_id.startswith("run-")


class TestPrivacy:
    def test_no_secrets(self):
        """No variable but the launcher's ids is recorded, nor any argument."""
        script = """
import sys
from trackside.wire import RowEncoder, to_json
from trackside.events import SourceStarted, process_source
event = SourceStarted(identity=process_source().to_wire())
sys.stdout.buffer.write(RowEncoder().encode(event, 0)[1] + to_json(event).encode())
"""
        env = {
            **os.environ,
            **TORCHRUN,
            "API_KEY": "s3cr3t-in-env",
            "RANKING": "s3cr3t-in-env",
            "SLURM_JWT": "s3cr3t-in-env",
            "TORCHELASTIC_TOKEN": "s3cr3t-in-env",
        }
        child = subprocess.run(
            [sys.executable, "-c", script, "--password=s3cr3t-in-argv"], env=env, capture_output=True, check=True
        )
        assert b"job-17" in child.stdout
        assert b"s3cr3t" not in child.stdout


class TestConstruction:
    def test_one_tag(self):
        """A single tag need not be in a list."""
        assert Source(perf_tags="fast").perf_tags == ("fast",)

    def test_tags(self):
        """Several tags may be any sequence."""
        assert Source(perf_tags=["a", "b"]).perf_tags == ("a", "b")

    def test_numbers(self):
        """Numbers in the metadata become texts."""
        assert Source(metadata={"seed": 7, "lr": 0.5}).metadata == {"seed": "7", "lr": "0.5"}

    def test_no_objects(self):
        """Any other type is refused where it is given, not when it is written."""
        with pytest.raises(ConfigError, match="metadata"):
            Source(metadata={"model": object()})

    def test_own_copy(self):
        """A table that changes later does not change the source."""
        table = {"a": "b"}
        source = Source(metadata=table)
        table["a"] = "c"
        assert source.metadata == {"a": "b"}

    def test_key(self):
        """A source can be the key of a map."""
        source = Source(metadata={"a": "b"}, versions={"python": "3"})
        assert {source: 1}[source] == 1

    def test_anchor(self):
        """A source has the clock reading of its process."""
        assert Source().anchor is clock.process_anchor


class TestProcessSource:
    def test_once(self):
        """A process has one identity."""
        assert process_source() is process_source()

    def test_set(self):
        """The identity can be set."""
        source = Source(rank=3)
        set_process_source(source)
        assert process_source() is source

    def test_forget(self):
        """It can be detected anew."""
        first = process_source()
        set_process_source(None)
        assert process_source().id != first.id

    def test_malformed(self, monkeypatch):
        """It never raises: if the launcher's variables are invalid the identity records that."""
        monkeypatch.setenv("RANK", "zero")
        source = process_source()
        assert (source.rank, source.world_size) == (0, 1)
        assert "RANK: got 'zero'" in source.metadata["launcher"]

    def test_threads(self):
        """Threads that ask at the same time get the same answer."""
        sys.setswitchinterval(1e-6)
        for _ in range(100):
            set_process_source(None)
            barrier, found = threading.Barrier(8), []

            def ask(barrier=barrier, found=found):
                barrier.wait()
                found.append(process_source())

            threads = [threading.Thread(target=ask) for _ in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert len({id(source) for source in found}) == 1


def in_fork(ask):
    """Return what *ask* returns in a forked child."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            os.write(writer, json.dumps(ask()).encode())
            status = 0
        finally:
            os._exit(status)
    os.close(writer)
    with os.fdopen(reader) as answer:
        text = answer.read()
    _, status = os.waitpid(pid, 0)
    assert status == 0
    return json.loads(text)


def identity():
    return process_source().to_wire()


class TestFork:
    def test_identity(self):
        """A forked child is a worker, with an id and a process of its own."""
        parent = process_source()
        child = in_fork(identity)
        assert child["role"] == "worker"
        assert re.fullmatch(r"[0-9a-f]{16}", child["id"])
        assert child["id"] != parent.id
        assert child["pid"] != os.getpid()

    def test_parent(self):
        """It has its parent's id, and the span under which it was started."""
        token = ambient.set((7, 42))
        try:
            parent = process_source()
            child = in_fork(identity)
        finally:
            ambient.reset(token)
        assert child["parent"] == {"source_id": parent.id, "span_id": 7}

    def test_kept(self):
        """It is of the same run, attempt and rank, and on the same clock."""
        set_process_source(Source.detect(TORCHRUN))
        child = in_fork(identity)
        assert (child["run_id"], child["attempt"], child["rank"], child["world_size"]) == ("job-17", 2, 5, 8)
        assert child["anchor"]["mono_ns"] == clock.process_anchor.mono_ns

    def test_parent_unchanged(self):
        """The parent keeps its identity."""
        parent = process_source()
        in_fork(identity)
        assert process_source() is parent

    def test_grandchild(self):
        """A child's child has the child for a parent."""
        child, grandchild = in_fork(lambda: [identity(), in_fork(identity)])
        assert grandchild["parent"]["source_id"] == child["id"]
        assert grandchild["role"] == "worker"

    def test_unasked(self):
        """The child of a launcher that never asked for its identity detects its own."""
        code = """
            import os
            from trackside.events import process_source
            if os.fork() == 0:
                os.environ.update(RANK="5", WORLD_SIZE="8")
                source = process_source()
                print(source.role, source.rank, source.parent)
            else:
                os.wait()
        """
        # A process of its own: a bus that another test left to the garbage collector asks in the child.
        command = [sys.executable, "-c", textwrap.dedent(code)]
        assert subprocess.run(command, check=True, capture_output=True, text=True).stdout == "main 5 None\n"


texts = st.text(max_size=20)
plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | texts | st.binary(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts | st.integers() | st.none(), inner, max_size=4),
    max_leaves=10,
)
KEYS = [field.name for field in Source.__attrs_attrs__]


class TestWire:
    full = Source(
        run_id="job-17",
        session_tag="gpt",
        perf_tags=("a", "b"),
        baseline=True,
        attempt=2,
        role="worker",
        host="node-1",
        pid=77,
        rank=5,
        local_rank=1,
        world_size=8,
        application="train",
        versions={"python": "3.11.7"},
        metadata={"note": "ünï"},
        parent=Parent("fedcba9876543210", 7),
        anchor=clock.Anchor(1, 2, 3),
    )

    def test_round_trip(self):
        """A source that was written is read back as it was."""
        assert Source.from_wire(self.full.to_wire()) == self.full

    def test_through_a_stream(self):
        """The same holds in a frame with other events."""
        _, row = RowEncoder().encode(SourceStarted(identity=self.full.to_wire()), 0)
        assert Source.from_wire(msgpack.unpackb(row)[-1]) == self.full

    def test_json(self):
        """The same holds in JSON."""
        assert Source.from_wire(json.loads(json.dumps(self.full.to_wire()))) == self.full

    def test_nothing(self):
        """An unknown source has no facts besides its id."""
        assert Source.from_wire({}) == Source(id="", anchor=clock.Anchor(0, 0, 0))

    def test_newer(self):
        """Fields that a newer release adds are ignored."""
        wire = {**self.full.to_wire(), "quantum_rank": [1], "mood": {}}
        assert Source.from_wire(wire) == self.full

    @pytest.mark.parametrize("name", KEYS)
    def test_older(self, name):
        """Fields that an older release did not have get their defaults."""
        wire = self.full.to_wire()
        del wire[name]
        default = Source(id="", anchor=clock.Anchor(0, 0, 0))
        read = Source.from_wire(wire)
        assert getattr(read, name) == getattr(default, name)
        assert all(getattr(read, other) == getattr(self.full, other) for other in KEYS if other != name)

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("rank", "5"),
            ("rank", True),
            ("rank", 5.0),
            ("rank", -1),
            ("rank", 1 << 20),
            ("world_size", 0),
            ("world_size", (1 << 20) + 1),
            ("local_rank", 1 << 20),
            ("attempt", None),
            ("baseline", 1),
            ("role", "boss"),
            ("host", b"node"),
            ("perf_tags", "ab"),
            ("versions", ["3"]),
            ("parent", {"source_id": 1, "span_id": 1}),
            ("parent", {"source_id": "a", "span_id": "1"}),
            ("parent", {"source_id": "a"}),
            ("anchor", {"mono_ns": "1", "wall_ns": "2", "uncertainty_ns": "3"}),
            ("anchor", {"mono_ns": 1.5, "wall_ns": 2, "uncertainty_ns": 3}),
        ],
    )
    def test_wrong(self, name, value):
        """An impossible value is replaced by the default."""
        read = Source.from_wire({**self.full.to_wire(), name: value})
        assert getattr(read, name) == getattr(Source(id="", anchor=clock.Anchor(0, 0, 0)), name)

    def test_wrong_members(self):
        """Of a list or a table the possible elements are kept."""
        read = Source.from_wire({"perf_tags": ["a", 1, None, "b"], "metadata": {"x": "y", "n": 1, 2: "z"}})
        assert (read.perf_tags, read.metadata) == (("a", "b"), {"x": "y"})

    def test_deep(self):
        """A value too deeply nested to be printed does not raise either."""
        deep = []
        for _ in range(100_000):
            deep = [deep]
        assert Source.from_wire(dict.fromkeys(KEYS, deep)) == Source(id="", anchor=clock.Anchor(0, 0, 0))
        while deep:  # in pieces, for the interpreter too has a limit
            deep = deep.pop()

    @given(plain | st.dictionaries(st.sampled_from(KEYS), plain))
    def test_anything(self, data):
        """Any data is read as a source, and can be written again."""
        source = Source.from_wire(data)
        assert Source.from_wire(source.to_wire()) == source
        RowEncoder().encode(SourceStarted(identity=source.to_wire()), 0)

    def test_unknown(self):
        """A source of which only the id is known has nothing but its id."""
        assert Source.unknown("abc") == Source(id="abc", anchor=clock.Anchor(0, 0, 0))
