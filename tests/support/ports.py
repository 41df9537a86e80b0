"""Ports for servers that a test starts."""

from __future__ import annotations

import contextlib
import os
import random
import socket
from pathlib import Path

LOCAL_PORTS = Path("/proc/sys/net/ipv4/ip_local_port_range")
_returned: set[int] = set()


def free_port() -> int:
    """
    Return a port of this machine that is free now, and stays free while a test's server is down: the kernel gives it
    to no connection, and neither this worker nor another one of this run returns it again.
    """
    first_local = int(LOCAL_PORTS.read_text().split()[0]) if LOCAL_PORTS.exists() else 49152
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    ports = range(10_000 + worker, first_local, int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")))
    while True:
        port = random.choice(ports)
        if port in _returned:
            continue
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            _returned.add(port)
            return port
