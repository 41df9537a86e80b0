"""A cluster of three real NATS servers that loses a machine while 64 ranks publish."""

from __future__ import annotations

import contextlib
import json
import math
import os
import shutil
import subprocess
import sys
import threading
from collections import defaultdict
from pathlib import Path

import pytest

from trackside.events import IterationEnded, clock

pytest.importorskip("nats")

from trackside.handlers.nats import NatsReader

pytestmark = pytest.mark.integration

STREAM = "runs"
RANKS, PROCESSES = 64, 4
LAG_S = 5.0
"""Logged events are read within this time, unless a machine has just been lost."""
WITHIN_S = 120.0
BACK_WITHIN_S = 60.0
"""Events logged after the loss are read within this time; 12 to 18 s were measured, on a busy machine."""
AFTER_NS = 5 * 10**9
"""Events logged so long after the loss are to be read before the machine comes back."""
LONGEST_S = 2.0
"""A step that waited for a server that is away would take as long as the sink waits: 5 s."""


def has_no_namespaces():
    """Return whether no network namespaces can be made here."""
    if os.geteuid() != 0 or shutil.which("ip") is None or shutil.which("unshare") is None:
        return True
    return subprocess.run(["unshare", "-n", "true"], check=False, capture_output=True).returncode != 0


def ip(*arguments, check=True):
    """Run a command of iproute2."""
    done = subprocess.run(["ip", *arguments], check=False, capture_output=True, text=True)
    assert done.returncode == 0 or not check, f"ip {' '.join(arguments)}: {done.stderr}"


class Network:
    """Three machines: network namespaces behind a bridge, to which this one is connected as well."""

    def __init__(self):
        self._name = f"ts{os.getpid()}"
        self._net = f"198.18.{os.getpid() % 256}"
        self.machines = [f"{self._name}-{number}" for number in range(3)]
        self.hosts = [f"{self._net}.{number + 1}" for number in range(3)]
        self.inside = [("ip", "netns", "exec", machine) for machine in self.machines]

    def __enter__(self):
        try:
            self._build()
        except AssertionError:
            self.__exit__()
            raise
        return self

    def _build(self):
        ip("link", "add", self._name, "type", "bridge")
        ip("addr", "add", f"{self._net}.254/24", "dev", self._name)
        ip("link", "set", self._name, "up")
        for machine, host in zip(self.machines, self.hosts, strict=True):
            ip("netns", "add", machine)
            ip("link", "add", machine, "type", "veth", "peer", "name", "eth0", "netns", machine)
            ip("link", "set", machine, "master", self._name, "up")
            ip("-n", machine, "addr", "add", f"{host}/24", "dev", "eth0")
            ip("-n", machine, "link", "set", "eth0", "up")
            ip("-n", machine, "link", "set", "lo", "up")

    def __exit__(self, *_):
        for machine in self.machines:
            ip("link", "del", machine, check=False)  # the kernel does it only after the last process in there
            ip("netns", "del", machine, check=False)
        ip("link", "del", self._name, check=False)

    def cut(self, number):
        """Cut a machine off from all others."""
        ip("link", "set", self.machines[number], "down")

    def mend(self, number):
        """Connect it again."""
        ip("link", "set", self.machines[number], "up")

    def part(self, number):
        """Cut a machine off from the other two, and from nobody else."""
        self._route_to_nowhere("add", number)

    def join(self, number):
        """Connect it to the other two again."""
        self._route_to_nowhere("del", number)

    def _route_to_nowhere(self, verb, number):
        for other in {0, 1, 2} - {number}:
            ip("-n", self.machines[number], "route", verb, "blackhole", self.hosts[other])
            ip("-n", self.machines[other], "route", verb, "blackhole", self.hosts[number])


@pytest.fixture
def network():
    """Return three machines."""
    if has_no_namespaces():
        pytest.skip("no network namespaces can be made here")
    with Network() as found:
        yield found


@pytest.fixture
def ranks():
    """Return a function that starts the ranks; they end with the test."""
    with contextlib.ExitStack() as stack:

        def start(servers):
            each = RANKS // PROCESSES
            script = str(Path(__file__).with_name("nats_ranks.py"))
            found = []
            for number in range(PROCESSES):
                command = [sys.executable, script, ",".join(servers), STREAM, str(number * each), str(each)]
                process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
                found.append(stack.enter_context(process))
                stack.callback(process.kill)
            return found

        yield start


class Follower:
    """A reader of the stream that knows the age of each rank's newest event when it read it."""

    def __init__(self, servers):
        self.newest_ns = dict.fromkeys(range(RANKS), 0)
        self.until_ns = 0
        self._servers = servers
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._follow)
        self._thread.start()

    def _follow(self):
        with NatsReader(self._servers, stream=STREAM, stop=self._stop, to=IterationEnded) as events:
            for event in events:
                self.newest_ns[event.source.rank] = event.at_ns

    @property
    def lag_s(self):
        """The age of what was read last of the rank farthest behind; without an end before `until_ns`."""
        oldest_ns = min(self.newest_ns.values())
        return (clock.now_ns() - oldest_ns) / 1e9 if oldest_ns >= self.until_ns else math.inf

    def close(self):
        """End."""
        self._stop.set()
        self._thread.join(30)


def leader(nodes):
    """Return the number of the node that leads the stream."""

    async def use(jetstream):
        return (await jetstream.stream_info(STREAM)).cluster.leader

    return int(nodes[0].call(use)[-1])


def read(servers):
    """Return the steps of each rank in the order of the stream, which has no event twice and lacks none before them."""
    steps = defaultdict(list)
    with NatsReader(servers, stream=STREAM, follow=False) as events:
        for event in events:
            if isinstance(event, IterationEnded):
                steps[event.source.rank].append(event.step)
        assert (events.missing, events.repeated) == (0, 0)
    return steps


def check_loses_the_leader(nodes, ranks, eventually, *, lose, give_back):
    """Check what the ranks and a reader of the stream notice when the machine that leads it is lost for a while."""
    servers = [node.url for node in nodes]
    processes = ranks(servers)
    follower = Follower(servers)
    try:
        for process in processes:
            assert process.stdout.readline() == "steps\n"
        eventually(lambda: follower.lag_s < LAG_S, what="all ranks are read", timeout_s=WITHIN_S)
        lost = leader(nodes)
        lose(lost)
        follower.until_ns = clock.now_ns() + AFTER_NS
        eventually(lambda: follower.lag_s < LAG_S, what="the lag is back without the machine", timeout_s=BACK_WITHIN_S)
        give_back(lost)
        for process in processes:
            process.stdin.write("\n")
            process.stdin.flush()
        ends = [json.loads(process.stdout.readline()) for process in processes]
    finally:
        follower.close()
    assert [(end["acknowledged"], end["lost"]) for end in ends] == [(True, 0)] * PROCESSES
    assert max(end["longest_s"] for end in ends) < LONGEST_S
    each = RANKS // PROCESSES
    expected = {rank: list(range(ends[rank // each]["steps"])) for rank in range(RANKS)}
    # A machine that was cut off takes itself for the leader for some seconds more, and answers with what it knew.
    eventually(lambda: read(servers) == expected, what="the stream has each step once", timeout_s=WITHIN_S)


@pytest.mark.hang_guard(360)
class TestLost:
    """
    64 ranks publish while the machine that leads the stream is lost.

    Nothing that was acknowledged is lost, nothing is there twice, no step waits for the server, and who reads is up to
    date again while the machine is still away.
    """

    def test_killed(self, nats_cluster, ranks, eventually):
        """The server is killed, and starts again."""
        check_loses_the_leader(
            nats_cluster,
            ranks,
            eventually,
            lose=lambda number: nats_cluster[number].stop(),
            give_back=lambda number: nats_cluster[number].start(),
        )

    def test_stopped(self, nats_cluster, ranks, eventually):
        """The server keeps its connections and answers nothing, and then goes on with what it knew."""
        check_loses_the_leader(
            nats_cluster,
            ranks,
            eventually,
            lose=lambda number: nats_cluster[number].pause(),
            give_back=lambda number: nats_cluster[number].resume(),
        )

    def test_cut_off(self, network, start_nats_cluster, ranks, eventually):
        """Nothing reaches the machine, and nothing comes from it, until it is connected again."""
        nodes = start_nats_cluster(network.hosts, network.inside)
        check_loses_the_leader(nodes, ranks, eventually, lose=network.cut, give_back=network.mend)

    def test_cut_off_from_the_others(self, network, start_nats_cluster, ranks, eventually):
        """The machine still reaches the ranks, and neither of the other two, until it is connected to them again."""
        nodes = start_nats_cluster(network.hosts, network.inside)
        check_loses_the_leader(nodes, ranks, eventually, lose=network.part, give_back=network.join)
