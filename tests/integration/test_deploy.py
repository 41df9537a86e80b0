"""The files of examples/deploy: they parse, name metrics that exist, and the commands in them run."""

from __future__ import annotations

import configparser
import contextlib
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

import trackside
from ports import free_port
from trackside.events import IterationEnded
from trackside.handlers.export import CATALOGUE

yaml = pytest.importorskip("yaml")
pytest.importorskip("prometheus_client")

pytestmark = pytest.mark.integration

DEPLOY = Path(__file__).resolve().parents[2] / "examples" / "deploy"
PROGRAMS = Path(sys.executable).parent
COMPUTED = {
    "trackside_gauge",
    "trackside_oldest_heartbeat_timestamp_seconds",
    "trackside_ranks",
    "trackside_stat_window",
}
"""Metrics that are not the value of an event's field."""
TRAIN = """
import time
import trackside

with trackside.start("", report=False):
    for step in range(10):
        with trackside.training_iteration(step=step):
            time.sleep(0.01)
"""


def documents():
    """Return the objects in the Kubernetes file, by kind."""
    return {found["kind"]: found for found in yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text("utf-8"))}


class TestFiles:
    def test_kubernetes(self):
        """The service selects the collector's pods, and has a port for each of their containers' ports."""
        found = documents()
        pod = found["StatefulSet"]["spec"]["template"]
        assert found["Service"]["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
        ports = {port["containerPort"] for container in pod["spec"]["containers"] for port in container["ports"]}
        assert {port["port"] for port in found["Service"]["spec"]["ports"]} == ports
        (rank,) = found["PyTorchJob"]["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["containers"]
        environment = {entry["name"]: entry["value"] for entry in rank["env"]}
        assert environment["TRACKSIDE_COLLECTOR"] == f"tcp://{found['Service']['metadata']['name']}:7070"

    def test_jobset(self):
        """A rank of the JobSet has the keys, the variables and the volumes of one of the PyTorchJob."""
        (jobset,) = yaml.safe_load_all((DEPLOY / "jobset.yaml").read_text("utf-8"))
        (workers,) = jobset["spec"]["replicatedJobs"]
        pods = [
            workers["template"]["spec"]["template"]["spec"],
            documents()["PyTorchJob"]["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"],
        ]
        same = [
            (
                pod["volumes"],
                one["env"],
                one["volumeMounts"],
                one["command"],
                one["args"][0].partition("exec torchrun")[0],
            )
            for pod in pods
            for one in pod["containers"]
        ]
        assert same[0] == same[1]
        assert workers["template"]["spec"]["parallelism"] == workers["template"]["spec"]["completions"] == 2

    def test_workers(self):
        """The workers' pods are the deployment's own, several, and get the address from a secret."""
        (found,) = yaml.safe_load_all((DEPLOY / "nats-workers.yaml").read_text("utf-8"))
        pod = found["spec"]["template"]
        assert found["spec"]["selector"]["matchLabels"] == pod["metadata"]["labels"]
        assert found["spec"]["replicas"] > 1
        ((variable,),) = [container["env"] for container in pod["spec"]["containers"]]
        assert variable["valueFrom"]["secretKeyRef"].keys() == {"name", "key"}
        made = "secret generic {name} \\\n#     --from-literal={key}=nats://".format(
            **variable["valueFrom"]["secretKeyRef"]
        )
        assert made in (DEPLOY / "nats-workers.yaml").read_text("utf-8")

    def test_ray(self):
        """Ray's workers get the variables that a rank in Kubernetes has."""
        text = (DEPLOY / "ray_train.py").read_text("utf-8")
        compile(text, "ray_train.py", "exec")
        (rank,) = documents()["PyTorchJob"]["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["containers"]
        assert {entry["name"] for entry in rank["env"]} == set(re.findall(r'"(TRACKSIDE_\w+)"', text))

    def test_prometheus(self):
        """Prometheus's own checker accepts the configuration and the alerts."""
        promtool = shutil.which("promtool")
        if promtool is None:
            pytest.skip("promtool comes with: python3 tools/servers.py prometheus")
        command = [promtool, "check", "config", DEPLOY / "prometheus.yml"]
        checked = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
        assert checked.returncode == 0, checked.stderr

    @pytest.mark.parametrize("name", ["alerts.yml", "grafana-dashboard.json"])
    def test_names_of_metrics(self, name):
        """Every metric in the alerts and in the dashboard exists."""
        known = {metric.prometheus for metric in CATALOGUE} | COMPUTED
        used = set(re.findall(r"\btrackside_\w+(?=[{\[) ])", (DEPLOY / name).read_text("utf-8")))
        plain = {re.sub(r"_(total|bucket|sum|count)$", "", metric) for metric in used}
        assert plain
        assert plain <= known


def command_of_deployment():
    """Return the command of the workers in the Kubernetes file; Kubernetes puts the variable in."""
    (found,) = yaml.safe_load_all((DEPLOY / "nats-workers.yaml").read_text("utf-8"))
    (container,) = found["spec"]["template"]["spec"]["containers"]
    return [part.replace("$(STREAM)", "${STREAM}") for part in container["command"]]


def command_of_unit():
    """Return the command of systemd's unit; systemd puts the variable in."""
    unit = configparser.ConfigParser(interpolation=None)
    unit.optionxform = str
    unit.read(DEPLOY / "trackside-collect@.service")
    assert unit["Service"]["Restart"] == "always"
    program, *arguments = shlex.split(unit["Service"]["ExecStart"])
    return [Path(program).name, *arguments]


class TestCommands:
    @pytest.mark.hang_guard(120)
    @pytest.mark.parametrize("command", [command_of_unit, command_of_deployment])
    def test_of_workers(self, nats_server, command, tmp_path, eventually):
        """The worker's command, with the variable that its file gives it, collects a job, and ends well at SIGTERM."""
        pytest.importorskip("nats")
        from trackside.events import UnreadableError
        from trackside.handlers.nats import collected

        address = f"{nats_server.url}/acme"
        given = [address if part == "${STREAM}" else "1" if part == "3" else part for part in command()]
        assert address in given  # the server is no cluster, so the stream is on one node
        environment = {**os.environ, "PATH": f"{PROGRAMS}{os.pathsep}{os.environ['PATH']}"}
        train = subprocess.Popen(
            [sys.executable, "-c", TRAIN.replace('""', repr(str(tmp_path)))],
            env={**environment, "TRACKSIDE_COLLECTOR": address, "TORCHELASTIC_RUN_ID": "run", "RANK": "0"},
        )
        worker = subprocess.Popen(given, env=environment, stdout=subprocess.PIPE, text=True)
        try:
            assert train.wait(60) == 0

            def last_step():
                try:
                    return collected(f"{address}/run").models[1].result().last_step
                except UnreadableError:
                    return None

            eventually(lambda: last_step() == 9, what="the run is collected")
            worker.terminate()
            printed, _ = worker.communicate(timeout=60)
            assert (worker.returncode, printed.splitlines()[0]) == (0, f"ranks:   TRACKSIDE_COLLECTOR={address}")
        finally:
            for child in (train, worker):
                child.kill()
                child.wait()

    @pytest.mark.hang_guard(120)
    def test_of_the_containers(self, tmp_path, eventually):
        """
        The containers' commands, run on this machine, send a job's events from its ranks to the page for Prometheus.
        """
        ports = {number: str(free_port()) for number in ("7070", "7071", "9464")}
        environment = {**os.environ, "PATH": f"{PROGRAMS}{os.pathsep}{os.environ['PATH']}"}
        subprocess.run(["trackside", "keys", "new", tmp_path / "keys"], check=True, env=environment, timeout=60)
        (tmp_path / "train.py").write_text(TRAIN)

        def local(text, container):
            for path in ("/tmp/keys", "/data"):
                text = text.replace(path, f"{tmp_path}/{container}{path}")
            for number, port in ports.items():
                text = text.replace(number, port)
            text = text.replace("trackside-collector", "127.0.0.1").replace("torchrun train.py", "python train.py")
            return text.replace("/etc/trackside", str(tmp_path / "keys")).replace("/opt/trackside", str(DEPLOY))

        collector = documents()["StatefulSet"]["spec"]["template"]["spec"]["containers"]
        (rank,) = documents()["PyTorchJob"]["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["containers"]
        of_rank = {entry["name"]: local(entry["value"], "rank") for entry in rank["env"]}
        page = f"http://127.0.0.1:{ports['9464']}/metrics"

        def lines():
            with contextlib.suppress(OSError), urllib.request.urlopen(page, timeout=5) as answer:
                return answer.read().decode().splitlines()
            return []

        def listens():
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", int(ports["7070"])), 5):
                return True
            return False

        with contextlib.ExitStack() as stack:

            def start(container, name, **variables):
                command = [local(part, name) for part in [*container["command"], *container.get("args", [])]]
                process = subprocess.Popen(command, env={**environment, **variables}, cwd=tmp_path)
                stack.callback(process.wait, 30)
                stack.callback(process.terminate)
                return process

            for container in collector:
                start(container, "collector")
            eventually(listens, what="the collector listens")
            assert start(rank, "rank", **of_rank).wait(60) == 0
            eventually(
                lambda: [line for line in lines() if line.startswith("trackside_last_step") and line.endswith(" 9.0")],
                what="the last step is on the page",
            )
            assert not (tmp_path / "runs").exists()

    @pytest.mark.hang_guard(180)
    def test_of_the_batch_script(self, tmp_path):
        """
        The batch script, with stand-ins for SLURM's programs, brings a job's two ranks into the collector's log.

        The ranks write no log of their own, and the script ends with the job.
        """
        pytest.importorskip("torch")
        programs = tmp_path / "bin"
        programs.mkdir()
        for name, does in {"scontrol": "echo 127.0.0.1", "srun": 'exec "$@"'}.items():
            (programs / name).write_text(f"#!/bin/sh\n{does}\n")
            (programs / name).chmod(0o755)
        slurm = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "node", "SLURM_NNODES": "1"}
        path = os.pathsep.join((str(programs), str(PROGRAMS), os.environ["PATH"]))
        environment = {**os.environ, **slurm, "HOME": str(tmp_path), "PATH": path}
        subprocess.run(
            ["trackside", "keys", "new", tmp_path / "trackside-keys"], check=True, env=environment, timeout=60
        )
        (tmp_path / "train.py").write_text(TRAIN)
        script = (DEPLOY / "slurm.sbatch").read_text("utf-8")
        for here, there in {"7070": free_port(), "7071": free_port(), "29500": free_port(), "node 8": "node 2"}.items():
            assert here in script
            script = script.replace(here, str(there))
        done = subprocess.run(
            ["bash", "-c", script],
            env=environment,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
            timeout=150,
        )

        assert done.returncode == 0, done.stderr
        ended = [
            (event.source.rank, event.step) for event in trackside.replay(tmp_path / "runs" / "7", to=IterationEnded)
        ]
        assert sorted(ended) == [(rank, step) for rank in (0, 1) for step in range(10)]
