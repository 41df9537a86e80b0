"""The hang guard, the seed and the scale of the tests."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

# Three processes that import pytest, one after another, take a minute on a machine that is busy with other work.
pytestmark = [pytest.mark.once, pytest.mark.hang_guard(400)]

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def run_tests(tmp_path):
    """Return a function that runs generated tests under this conftest, in a process of their own."""
    (tmp_path / "conftest.py").write_text((ROOT / "tests" / "conftest.py").read_text())

    def run(source, *arguments):
        (tmp_path / "test_made_up.py").write_text(textwrap.dedent(source))
        config = ("-c", ROOT / "pyproject.toml", "--rootdir", tmp_path, "-p", "no:cacheprovider")
        command = (sys.executable, "-m", "pytest", *config, tmp_path, *arguments)
        return subprocess.run(command, check=False, capture_output=True, text=True, timeout=300)

    return run


class TestHangGuard:
    SLEEPER = """
        import time, pytest

        @pytest.mark.hang_guard(0.5)
        def test_that_hangs():
            time.sleep(1000)
    """

    def test_ends_the_process(self, run_tests):
        """A test that hangs ends its process long before the test would."""
        assert run_tests(self.SLEEPER).returncode == 1

    def test_shows_where_it_hung(self, run_tests):
        """The stack that the guard prints names the function that hung."""
        assert "in test_that_hangs" in run_tests(self.SLEEPER).stderr

    def test_under_xdist(self, run_tests):
        """With several processes, the one that hangs is replaced and the others' tests still pass."""
        source = self.SLEEPER + "\n        def test_that_passes():\n            pass\n"
        done = run_tests(source, "--numprocesses", "1")
        assert "1 failed, 1 passed" in done.stdout


class TestSeed:
    SHOWS = """
        def test_a(seed, rng):
            assert not print(f"drawn {seed} {rng.random()}")
            raise ValueError
    """

    def test_is_shown_by_a_failure(self, run_tests):
        """A failing test shows the seed that repeats it."""
        assert "--seed=17)" in run_tests(self.SHOWS, "--seed=17").stdout

    def test_repeats(self, run_tests):
        """The same seed on the command line draws the same numbers."""
        first, second = (self.drawn(run_tests(self.SHOWS, "--seed=17")) for _ in range(2))
        assert first == second

    @pytest.mark.parametrize(("options", "is_same"), [((), True), (("--full",), False)])
    def test_without_a_seed(self, run_tests, options, is_same):
        """Runs without a seed draw the same numbers; with the long recipes in full they draw new ones."""
        first, second = (self.drawn(run_tests(self.SHOWS, *options)) for _ in range(2))
        assert (first == second) is is_same

    @staticmethod
    def drawn(done):
        """Return the line with the drawn numbers."""
        (line,) = {line for line in done.stdout.splitlines() if line.startswith("drawn")}
        return line


class TestScale:
    SHOWS = """
        def test_a(scale, scaled):
            print(f"scale {scale}: {scaled(200)}, {scaled(1)}")
            raise ValueError
    """

    @pytest.mark.parametrize(
        ("arguments", "shown"),
        [((), "scale 0.1: 20, 1"), (("--full",), "scale 1.0: 200, 1"), (("--scale=0.01",), "scale 0.01: 2, 1")],
    )
    def test_scales(self, run_tests, arguments, shown):
        """Recipes run at a tenth unless the command line says otherwise, and never at nothing."""
        assert shown in run_tests(self.SHOWS, *arguments).stdout


class TestTorchMark:
    def test_skips_by_name(self, run_tests):
        """Without torch, a test that needs it is skipped and says so."""
        source = """
            import importlib.util, pytest

            find_spec = importlib.util.find_spec
            importlib.util.find_spec = lambda name: None if name == "torch" else find_spec(name)

            @pytest.mark.torch
            def test_a():
                pass
        """
        assert "torch is not installed in this environment" in run_tests(source).stdout


class TestUntouchedProcess:
    def test_hides_the_launcher(self, run_tests, monkeypatch):
        """A test does not see the variables of a launcher around the tests."""
        monkeypatch.setenv("RANK", "3")
        monkeypatch.setenv("TRACKSIDE_PARENT", "x")
        source = """
            import os

            def test_a():
                assert "RANK" not in os.environ
                assert "TRACKSIDE_PARENT" not in os.environ
        """
        assert "1 passed" in run_tests(source).stdout
