"""The README and the landing page for a new reader: a wheel in a new environment, without the repository."""

from __future__ import annotations

import importlib
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.integration, pytest.mark.hang_guard(600)]

ROOT = Path(__file__).resolve().parents[2]
PAGES = {name: (ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "docs/index.md")}


def blocks(page, language):
    return re.findall(rf"^```{language}\n(.*?)^```", PAGES[page], re.DOTALL | re.MULTILINE)


CODE = [(page, number) for page in PAGES for number in range(len(blocks(page, "python")))]


@pytest.fixture(scope="module")
def bin_directory(tmp_path_factory):
    """Install the wheel, and nothing else, into an environment of its own; return the directory of its programs."""
    directory = tmp_path_factory.mktemp("front-door")
    pip = ["-m", "pip", "--disable-pip-version-check", "--no-input"]
    build = [*pip, "wheel", "--quiet", "--no-deps", "--build-constraint", "requirements.lock", "--wheel-dir", directory]
    subprocess.run([sys.executable, *build, "."], check=True, cwd=ROOT)
    (wheel,) = directory.glob("*.whl")
    subprocess.run([sys.executable, "-m", "venv", directory / "venv"], check=True)
    found = directory / "venv" / "bin"
    write = "import pathlib, sys, environment; environment.write_pins(pathlib.Path(sys.argv[1]))"
    pins = directory / "pins.txt"  # for the wheel there is no hash, and with hashes pip would ask for one
    subprocess.run([sys.executable, "-c", write, pins], check=True, cwd=ROOT / "tools")
    install = [*pip, "install", "--quiet", "--constraint", pins, wheel]
    subprocess.run([found / "python", *install], check=True, cwd=directory)
    return found


@pytest.fixture
def typed(bin_directory, tmp_path):
    """Give a function that runs a command line in an empty directory and returns what it prints."""

    def run(line):
        name, *arguments = shlex.split(line, comments=True)
        done = subprocess.run(
            [bin_directory / name, *arguments], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, (line, done.stdout, done.stderr)
        assert "Traceback" not in done.stderr
        return done.stdout

    run.directory = tmp_path
    return run


class TestAsWritten:
    @pytest.mark.parametrize(("page", "number"), CODE)
    def test_code(self, typed, page, number):
        """Each block of Python runs as it stands, without a warning."""
        (typed.directory / "example.py").write_text(blocks(page, "python")[number])
        typed("python -W error example.py")  # fails unless it ends with status 0 and without a traceback

    def test_a_minute(self, typed):
        """The script and the commands after it, typed in their order, end in a report; no command needs an extra."""
        (typed.directory / "train.py").write_text(blocks("README.md", "python")[0])
        (commands,) = [code for code in blocks("README.md", "sh") if "train.py" in code]
        said = {line.split("#")[0].strip(): typed(line) for line in commands.splitlines()}
        assert "1 rank on 1 host" in said["trackside report runs/"]
        assert len((typed.directory / "events.jsonl").read_text().splitlines()) > 100

    def test_install(self):
        """The line that installs it is the one that this test runs, except for the path."""
        assert [code.strip() for page in PAGES for code in blocks(page, "sh")].count("pip install .") == len(PAGES)


class TestFrameworks:
    LINES = re.findall(r"`from (\S+) import (\w+)`", PAGES["README.md"])

    def test_there_are_some(self):
        """Lightning, Transformers and Accelerate have a line each."""
        assert [module.rpartition(".")[2] for module, _ in self.LINES] == ["lightning", "transformers", "accelerate"]

    @pytest.mark.parametrize(("module", "name"), LINES)
    @pytest.mark.filterwarnings("ignore")
    def test_import(self, module, name):
        """The imports in the README work, and accept a directory."""
        pytest.importorskip(module.rpartition(".")[2])
        assert callable(getattr(importlib.import_module(module), name))
