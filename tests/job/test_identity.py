"""The identity of processes whose rank torch.distributed alone knows, in real processes."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import types

import pytest

import trackside
from trackside.events import IterationEnded
from trackside.handlers.eventlog import outline
from trackside.instruments.torch import is_distributed
from trackside.report import read_runs

pytest.importorskip("torch")

PROGRAM = """
import os, sys, time
import torch.distributed as dist
import torch.multiprocessing as mp
import trackside

def work(rank, directory, begins):
    os.environ.update(MASTER_ADDR="localhost", MASTER_PORT=sys.argv[3])
    if begins == "after":
        dist.init_process_group("gloo", rank=rank, world_size=2)
    interval_s = 3600 if begins == "shortly before" else 0.05
    with trackside.start(directory, report=False, heartbeat_interval_s=interval_s) as job:
        if begins == "shortly before":
            dist.init_process_group("gloo", rank=rank, world_size=2)
        if begins == "before":
            dist.init_process_group("gloo", rank=rank, world_size=2)
            until = time.monotonic() + 300
            while job.source.world_size == 1 and time.monotonic() < until:
                time.sleep(0.02)
        with trackside.training_iteration(rank):
            pass
    dist.barrier()
    dist.destroy_process_group()

if __name__ == "__main__":
    mp.spawn(work, (sys.argv[1], sys.argv[2]), nprocs=2)
"""


@pytest.fixture(scope="module")
def spawned(request, tmp_path_factory):
    """
    Run two ranks under mp.spawn, where telemetry begins after the process group or before; return their log.

    Shortly before is a job without a heartbeat after its first one.
    """
    directory = tmp_path_factory.mktemp(request.param)
    program = directory / "program.py"
    program.write_text(PROGRAM)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TRACKSIDE")}
    with socket.socket() as found:
        found.bind(("localhost", 0))
        port = found.getsockname()[1]
    command = [sys.executable, str(program), str(directory / "runs"), request.param, str(port)]
    subprocess.run(command, check=True, timeout=600, env=environment)
    return directory / "runs"


@pytest.mark.torch
@pytest.mark.hang_guard(700)
class TestSpawned:
    @pytest.mark.parametrize("spawned", ["after", "before"], indirect=True)
    def test_ranks(self, spawned):
        """Ranks that mp.spawn started are two ranks of one run, whether telemetry starts after the group or before."""
        steps = [event for event in trackside.replay(spawned) if isinstance(event, IterationEnded)]
        found = sorted((event.source.rank, event.source.world_size, event.step) for event in steps)
        assert found == [(0, 2, 0), (1, 2, 1)]
        assert len({event.source.run_id for event in steps}) == 1

    @pytest.mark.parametrize("spawned", ["after", "before", "shortly before"], indirect=True)
    def test_processes(self, spawned):
        """Each process has one source that ended, also where its rank was known at its end, and no other rank."""
        assert sorted((one.source.rank, one.source.world_size) for one in outline(spawned).sources) == [(0, 2), (1, 2)]
        (session,) = read_runs(spawned).sessions
        (run,) = session.runs
        (attempt,) = run.attempts
        assert [(one.rank, one.state) for one in attempt.processes] == [(0, "ended"), (1, "ended")]


RIVAL = """
import sys, time
import trackside

job = trackside.JobConfig(application_name="a", run_id="job-7", rank=3)
with trackside.start(sys.argv[1], job=job, report=False, heartbeat_interval_s=0.1):
    print("on", flush=True)
    sys.stdin.readline()
    time.sleep(float(sys.argv[2]))
"""


@pytest.mark.hang_guard(120)
def test_rivals(tmp_path):
    """
    Of two processes that write as one rank of one run, the later reports it; a process that is over does not count.
    """

    def start(lasts_s):
        command = [sys.executable, "-c", RIVAL, str(tmp_path), str(lasts_s)]
        pipe = subprocess.PIPE
        process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
        process.stdout.readline()
        return process

    over = start(0)
    assert over.communicate("\n", timeout=60)[1] == ""
    first = start(1)
    second = start(1)
    error = second.communicate("\n", timeout=60)[1]
    first.communicate("\n", timeout=60)
    assert f"process {first.pid} on " in error
    assert "writes as rank 3 of run job-7, too; give each process its own: JobConfig(rank=…)" in error
    assert error.count("writes as rank") == 1


def test_while_torch_is_imported(monkeypatch):
    """A module of torch that another thread is importing has not all of its names: no process has joined others."""
    half = types.ModuleType("torch.distributed")
    half.is_available = lambda: True
    monkeypatch.setitem(sys.modules, "torch.distributed", half)
    assert not is_distributed()
