"""The code of the documentation runs: the checks for any page, and the pages that no other test runs."""

from __future__ import annotations

import ast
import contextlib
import importlib
import importlib.util
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from trackside.bus import Bus
from trackside.cli._main import build_parser
from trackside.events import ConfigError, IterationEnded, Source
from trackside.handlers import EventLog

pytestmark = pytest.mark.once

ROOT = Path(__file__).resolve().parents[1]
PAGES = {path.name: path.read_text(encoding="utf-8") for path in [ROOT / "README.md", *sorted(ROOT.glob("docs/*.md"))]}
SHELLS = ("sh", "shell", "console", "bash")
MAIN = "import sys; from trackside.cli._main import main; sys.exit(main())"
TRAIN = """
import trackside

def train():
    with trackside.application(), trackside.training_loop(train_iterations_start=0):
        for step in range(5):
            with trackside.training_iteration(step=step):
                pass
"""
LOSS = """
class Loss:
    def backward(self):
        print("back")

batches, model = "ab", lambda batch: Loss()
"""
RUN_BY = {
    "README.md": "test_readme.py",
    "bridges.md": "compat/test_torchtitan.py",
    "cli.md": "cli/test_page.py",
    "coming-from-one-logger.md": "compat/test_one_logger_names.py",
    "compare.md": "integration/test_tutorial.py",
    "goodput.md": "job/test_goodput.py",
    "google-cloud-monitoring.md": "integration/test_watched_pages.py",
    "index.md": "integration/test_front_door.py",
    "lightning.md": "integration/test_framework_pages.py",
    "many-nodes.md": "test_pages.py",
    "metrics.md": "test_pages.py",
    "mlflow.md": "integration/test_mlflow.py",
    "nats-quickstart.md": "integration/test_nats_quickstart.py",
    "nats.md": "integration/test_watched_pages.py",
    "opentelemetry.md": "integration/test_watched_pages.py",
    "parquet.md": "integration/test_parquet.py",
    "prometheus.md": "integration/test_watched_pages.py",
    "pytorch.md": "integrations/test_pytorch_page.py",
    "reading-logs.md": "handlers/eventlog/test_reading_page.py",
    "recipes.md": "test_recipes.py",
    "quickstart.md": "integration/test_tutorial.py",
    "report.md": "integration/test_tutorial.py",
    "security.md": "test_pages.py",
    "spans.md": "instruments/test_one_logger_names.py",
    "stragglers.md": "job/test_stragglers.py",
    "system.md": "integration/test_watched_pages.py",
    "tensorboard.md": "integration/test_tensorboard.py",
    "transformers.md": "integration/test_framework_pages.py",
    "trace.md": "test_pages.py",
    "tutorial.md": "integration/test_tutorial.py",
    "wandb.md": "integration/test_wandb.py",
    "watching.md": "test_watching.py",
    "write-a-handler.md": "handlers/test_extension_pages.py",
    "write-a-model.md": "handlers/test_extension_pages.py",
    "write-a-rule.md": "handlers/test_extension_pages.py",
    "write-an-extension.md": "examples/test_extension.py",
    "write-an-integration.md": "integrations/test_integration_page.py",
}
"""The test that runs the code of each page."""
NOT_RUN = {"development.md", "benchmarks.md"}
"""Pages that only call make: what they name is looked for below."""


def blocks(page, *languages):
    """Return the code blocks of a page that are in one of *languages*."""
    found = re.findall(r"^ *```(\w+)\n(.*?)^ *```$", PAGES[page], re.DOTALL | re.MULTILINE)
    return [code for language, code in found if language in languages]


def typed(page):
    """Return the command lines of a page, without their output."""
    lines = []
    for code in blocks(page, *SHELLS):
        own = [line[2:] for line in code.splitlines() if line.startswith("$ ")]
        lines += own or [line for line in code.splitlines() if line and not line.startswith("#")]
    return lines


class TestEveryPage:
    def test_all_are_run(self):
        """Each page with code to type has a test that runs it, and that test reads the page."""
        with_code = {page for page in PAGES if blocks(page, "python", *SHELLS)}
        assert with_code == set(RUN_BY) | NOT_RUN
        for page, test in RUN_BY.items():
            assert page in (ROOT / "tests" / test).read_text(encoding="utf-8"), page

    @pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "python")])
    def test_names(self, page):
        """Every block of Python is valid, and its imports from trackside exist."""
        for code in blocks(page, "python"):
            for node in ast.walk(ast.parse(code)):
                if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("trackside"):
                    assert importlib.util.find_spec(node.module), code
                    with contextlib.suppress(ImportError, ConfigError):  # an extra that is not in this environment
                        module = importlib.import_module(node.module)
                        there = {*dir(module), *getattr(module, "__all__", ())}
                        lacking = {name.name for name in node.names} - there
                        assert all(importlib.util.find_spec(f"{node.module}.{name}") for name in lacking), code

    @pytest.mark.parametrize("page", [page for page in PAGES if "trackside " in " ".join(typed(page))])
    def test_commands(self, page):
        """Every command line of trackside's is accepted by the parser."""
        for line in typed(page):
            for command in re.findall(r"(?:^|[;&] )(trackside [^#|;&>]*)", line.replace("$(", "")):
                words = shlex.split(command)[1:]
                assert build_parser().parse_args(words).command in words

    def test_make(self):
        """Every make target that a page names exists."""
        lines = [line.partition("#")[0] for page in PAGES for line in typed(page)]
        commands = [shlex.split(line) for line in lines if line.startswith("make ")]
        assert commands
        targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
        assert {part for command in commands for part in command[1:] if "=" not in part} <= targets


class TestShort:
    def test_metrics(self, tmp_path):
        """The page's lines run around any training."""
        (code,) = blocks("metrics.md", "python")
        ran = subprocess.run(
            [sys.executable, "-c", TRAIN + code], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
        )
        assert (ran.returncode, ran.stdout) == (0, "None\n"), ran.stderr

    @pytest.mark.parametrize(
        ("page", "first", "given", "expected"),
        [
            ("goodput.md", 0, "from trackside import span\nmodel, evaluate = 'it', print\n", "it\n"),
            (
                "stragglers.md",
                0,
                LOSS,
                "back\nback\n",
            ),
        ],
    )
    def test_excerpt(self, page, first, given, expected, tmp_path):
        """An excerpt runs with the code around it."""
        code = f"{given}\nimport trackside\nwith trackside.start('runs'):\n"
        code += textwrap.indent(blocks(page, "python")[first], "    ")
        ran = subprocess.run(
            [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
        )
        assert (ran.returncode, ran.stdout) == (0, expected), ran.stderr
        assert "lost      nothing" in ran.stderr

    def test_trace(self, tmp_path):
        """The page's commands write a trace that has the steps they name, and a kernel of a profile."""
        with Bus(source=Source(run_id="run")) as bus:
            bus.subscribe(EventLog(tmp_path / "runs"))
            for step in range(120):
                bus.log(IterationEnded(step=step, span_id=step + 1, duration_ns=1000))
        kernel = {"ph": "X", "name": "gemm", "ts": 1.0, "dur": 2.0, "pid": 1, "tid": 1}
        profile = {"baseTimeNanoseconds": time.time_ns(), "traceEvents": [kernel]}
        (tmp_path / "profile.json").write_text(json.dumps(profile))
        plain, merged = [line for code in blocks("trace.md", "sh") for line in code.splitlines()]
        for line, names in ((plain, set()), (merged, {"gemm"})):
            command = [sys.executable, "-c", MAIN, *shlex.split(line)[1:]]
            subprocess.run(command, cwd=tmp_path, check=True, timeout=60)
            shown = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
            assert {event["name"] for event in shown} & {"gemm"} == names
            steps = {event["args"]["step"] for event in shown if "step" in event.get("args", {})}
            assert steps == set(range(100, 111))

    def test_another_key(self, tmp_path):
        """The command that makes another key prints the output on the page."""
        (code,) = blocks("security.md", "console")
        subprocess.run([sys.executable, "-c", MAIN, "keys", "new", "keys"], cwd=tmp_path, check=True, timeout=60)
        said = subprocess.run(
            [sys.executable, "-c", MAIN, *shlex.split(code.splitlines()[0])[2:]],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        assert said.stdout.splitlines() == code.splitlines()[1:]


@pytest.mark.hang_guard(300)
class TestManyNodes:
    """The page on many nodes, typed in its order on one machine; `head` and `node-1` are this one."""

    PAGE = "many-nodes.md"

    @pytest.fixture
    def begin(self, tmp_path):
        """Give a function that starts one of the page's long commands, and returns its first output."""
        children = []

        def start(command, lines):
            child = subprocess.Popen(
                [sys.executable, "-c", MAIN, *shlex.split(command)[1:]], cwd=tmp_path, stdout=subprocess.PIPE, text=True
            )
            children.append(child)
            return [child.stdout.readline().strip() for _ in range(lines)]

        def end():
            while children:
                child = children.pop()
                child.send_signal(signal.SIGTERM)
                child.communicate(timeout=60)

        start.end = end
        yield start
        for child in children:
            child.kill()
            child.communicate()

    def test_all(self, begin, tmp_path):
        """Keys, a collector, a forwarder, a rank that finds it by its environment, control, and the clocks after it."""
        commands = [line for line in typed(self.PAGE) if line.startswith("trackside ")]
        new, collect, forward, *control = commands
        recorded = blocks(self.PAGE, "console")[0].splitlines()
        assert self.typed_here(new, tmp_path).splitlines() == recorded[1:5]

        collect = re.sub(r"tcp://\*:\d+", "tcp://127.0.0.1:*", collect)
        ranks, viewers = begin(collect, 2)
        here = {"tcp://head:7070": ranks.partition("=")[2], "tcp://head:7071": viewers.split()[3]}
        assert ranks.replace(here["tcp://head:7070"], "tcp://head:7070") == recorded[6]
        assert viewers.replace(here["tcp://head:7071"], "tcp://head:7071") == recorded[7]

        forward = re.sub(r"tcp://\*:\d+", "tcp://127.0.0.1:*", forward)
        (near,) = begin(forward.replace("tcp://head:7070", here["tcp://head:7070"]), 1)
        assert near.startswith("ranks: TRACKSIDE_COLLECTOR=tcp://127.0.0.1:")

        environment = {
            **os.environ,
            "TRACKSIDE_COLLECTOR": near.partition("=")[2],
            "TRACKSIDE_KEYS": "keys",
            "RANK": "3",
        }
        job = subprocess.Popen(
            [sys.executable, "-c", f"{TRAIN}\nwith trackside.start('own', report=False):\n    train()\n    input()\n"],
            cwd=tmp_path,
            env=environment,
            stdin=subprocess.PIPE,
            text=True,
        )
        try:
            viewer = [sys.executable, "-c", MAIN, "attach", here["tcp://head:7071"], "--keys", "keys", "-n", "1"]
            subprocess.run(viewer, cwd=tmp_path, check=True, timeout=100, stdout=subprocess.DEVNULL)
            for line in control:
                assert "3" in self.typed_here(line.replace("tcp://head:7071", here["tcp://head:7071"]), tmp_path)
        finally:
            job.communicate("\n", timeout=100)
        begin.end()

        clocks = next(code for code in blocks(self.PAGE, "python") if "ClockOffsets" in code)
        said = subprocess.run(
            [sys.executable, "-c", clocks], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True
        )
        assert re.fullmatch(r"(\w+ -?\d+ ± \d+ ns\n)+", said.stdout)

    @staticmethod
    def typed_here(line, directory):
        """Return the output of a command that ends well."""
        return subprocess.run(
            [sys.executable, "-c", MAIN, *shlex.split(line)[1:]],
            cwd=directory,
            capture_output=True,
            text=True,
            timeout=100,
            check=True,
        ).stdout

    def test_in_a_program(self, tmp_path):
        """The user's own collector serves until it is stopped."""
        code = next(code for code in blocks(self.PAGE, "python") if "Collector(" in code)
        assert code.count("    collector.serve()") == 1
        stopped = code.replace("    collector.serve()", "    Timer(0.1, collector.stop).start()\n    collector.serve()")
        stopped = re.sub(r"tcp://\*:\d+", "tcp://127.0.0.1:*", f"from threading import Timer\n{stopped}")
        self.typed_here("trackside keys new keys", tmp_path)
        subprocess.run([sys.executable, "-c", stopped], cwd=tmp_path, timeout=100, check=True)

    def test_service(self):
        """The command in the service file is accepted by the parser."""
        (unit,) = blocks(self.PAGE, "ini")
        command = re.search(r"^ExecStart=/\S+/trackside (.*)$", unit, re.MULTILINE)[1]
        assert build_parser().parse_args(shlex.split(command)).command == "collect"
