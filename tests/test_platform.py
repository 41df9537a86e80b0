"""Only one module uses functions that other systems lack, and a job runs without them."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1] / "src" / "trackside"

MODULES = {"fcntl", "grp", "posix", "pwd", "resource", "termios", "tty"}
NAMES = {
    "os": """
        O_CLOEXEC O_DIRECTORY O_NOFOLLOW O_NONBLOCK fchmod fork forkpty geteuid getloadavg getpgid getuid kill killpg
        mkfifo pread pwrite register_at_fork sched_getaffinity setsid statvfs sysconf uname wait wait4
    """.split(),
    "signal": "SIGALRM SIGCHLD SIGHUP SIGKILL SIGUSR1 SIGUSR2 SIGWINCH alarm setitimer pthread_kill".split(),
    "socket": "AF_UNIX SO_PEERCRED SCM_RIGHTS".split(),
    "network": ["AF_UNIX", "SO_PEERCRED", "SCM_RIGHTS"],
    "sys": ["platform"],
    "time": "CLOCK_BOOTTIME CLOCK_MONOTONIC clock_gettime clock_gettime_ns pthread_getcpuclockid".split(),
}
# Called for a path that the caller has checked to be a socket's, which no other system has.
ELSEWHERE = {("handlers/zeromq/_connection.py", "network.AF_UNIX")}

SYSTEMS = {
    "darwin": {"modules": [], "os": ["O_DIRECT"], "time": ["CLOCK_BOOTTIME"], "socket": []},
    "win32": {
        "modules": sorted(MODULES - {"posix"}),
        "os": [name for name in NAMES["os"] if name != "kill"],
        "signal": NAMES["signal"],
        "time": NAMES["time"],
        "socket": NAMES["socket"],
    },
}
SIMULATE = """
    # The standard library and the dependencies get all that they need of this system before it goes.
    import argparse, asyncio, concurrent.futures, ctypes, json, logging, multiprocessing.util, os, pathlib, platform
    import queue, select, shutil, signal, socket, subprocess, sys, tempfile, threading, time, urllib.request, uuid
    import attrs, cattrs, msgpack, zmq, zmq.auth

    taken = json.loads(sys.argv[1])
    sys.platform = sys.argv[2]
    for name in [*taken.pop("modules"), "rich"]:  # which calls Windows itself
        sys.modules[name] = None
    for module, names in taken.items():
        for name in names:
            vars(sys.modules[module]).pop(name, None)
    if sys.platform == "win32":
        os.supports_dir_fd.clear()

        def kill(pid, number):
            raise AssertionError("on Windows this ends the process")

        os.kill = kill
"""


def simulated(system, program, cwd):
    """Return the output of *program* where this Python resembles one of *system*."""
    source = textwrap.dedent(SIMULATE) + textwrap.dedent(program)
    command = [sys.executable, "-c", source, json.dumps(SYSTEMS[system]), system]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120, cwd=cwd)
    assert done.returncode == 0, done.stderr
    return done.stdout


def used_elsewhere(path):
    """Yield the uses of `MODULES` and `NAMES` in the module at *path*."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
            yield from (name for name in names if name.partition(".")[0] in MODULES)
        elif isinstance(node, ast.Attribute) and node.attr in NAMES.get(getattr(node.value, "id", ""), ()):
            yield f"{node.value.id}.{node.attr}"


@pytest.mark.once
class TestOneModule:
    def test_nothing_else(self):
        """Of the functions that other systems lack, only `trackside._platform` uses any."""
        paths = [path for path in sorted(PACKAGE.rglob("*.py")) if path.name != "_platform.py"]
        found = {(str(path.relative_to(PACKAGE)), name) for path in paths for name in used_elsewhere(path)}
        assert found == ELSEWHERE

    def test_finds(self, tmp_path):
        """An import and an attribute are both found."""
        path = tmp_path / "module.py"
        path.write_text("import fcntl\nfrom resource import getrlimit\nimport os\nos.getuid()\nos.getpid()\n")
        assert sorted(used_elsewhere(path)) == ["fcntl", "os.getuid", "resource"]


@pytest.mark.parametrize("system", SYSTEMS)
class TestSimulated:
    def test_job(self, system, tmp_path):
        """A job starts, records a step, and is reported on and printed."""
        printed = simulated(
            system,
            """
            import trackside
            from trackside.cli import main

            with trackside.start("runs"):
                for step in range(3):
                    with trackside.training_iteration(step=step) as iteration:
                        iteration.set(loss=1.0, samples=8)
                trackside.counter("tokens").add(7)
            assert main(["report", "runs"]) == 0
            assert main(["tail", "runs"]) == 0
            assert main(["info", "runs"]) == 0
            """,
            tmp_path,
        )
        words = " ".join(printed.split())
        assert "training_single_iteration 3" in words
        assert [f"step {step} iteration.ended" in words for step in range(4)] == [True, True, True, False]
        assert len(list(tmp_path.glob("runs/**/*.tslog"))) == 1

    def test_unwatched(self, system, tmp_path):
        """A job with remote access trains on a system without its sockets, and reports that."""
        printed = simulated(
            system,
            """
            import logging
            import trackside

            logging.basicConfig(stream=sys.stdout, format="%(message)s")
            with trackside.start("runs", remote=trackside.Remote(publish=True)):
                pass
            """,
            tmp_path,
        )
        said = "this job cannot be watched: "
        assert (said in printed) is (system == "win32")
        assert (f"there are no such sockets on {system}; give tcp://host:port" in printed) is (system == "win32")


def refused(system, call, cwd):
    """Return the error that *call* raises there."""
    program = f"""
        import trackside
        from trackside.handlers.zeromq import new_keys

        try:
            {call}
        except trackside.ConfigError as error:
            print(error)
    """
    return simulated(system, program, cwd)


class TestAbsent:
    @pytest.mark.parametrize(
        ("system", "endpoint"),
        [("win32", "ipc:///tmp/trackside/job"), ("win32", "ipc://@job"), ("darwin", "ipc://@job")],
    )
    def test_sockets(self, system, endpoint, tmp_path):
        """An endpoint that the system lacks is refused, with an alternative."""
        said = refused(system, f"trackside.attach({endpoint!r})", tmp_path)
        assert f"there are no such sockets on {system}; give tcp://host:port, with keys" in said

    def test_keys(self, tmp_path):
        """Without owners of files no key is made that others could read."""
        said = refused("win32", "new_keys('keys')", tmp_path)
        assert "keys need a system whose files have owners" in said
        assert not list(tmp_path.rglob("*.secret"))
