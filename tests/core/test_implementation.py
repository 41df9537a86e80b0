"""The switch between the compiled core and pure Python, and the build of the former."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

import trackside

ROOT = Path(__file__).resolve().parents[2]
SHOW = "import trackside; print(trackside.implementation)"
FREE_THREADED = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))
HAS_COMPILER = (
    shutil.which((sysconfig.get_config_var("CC") or "cc").split()[0]) is not None
    and Path(sysconfig.get_path("include"), "Python.h").exists()
    and not FREE_THREADED
)

pytestmark = pytest.mark.skipif(not (ROOT / "native").is_dir(), reason="the C sources are not here")


@pytest.fixture
def checkout(tmp_path):
    """Give a copy of the package and its C sources, not compiled."""
    shutil.copytree(ROOT / "native", tmp_path / "native")
    ignored = shutil.ignore_patterns("_native*.so", "__pycache__")
    shutil.copytree(ROOT / "src" / "trackside", tmp_path / "src" / "trackside", ignore=ignored)
    return tmp_path


def run(*command, checkout, **variables):
    """Run a Python command with the package of *checkout*; return what it wrote to stdout and stderr."""
    environ = {**os.environ, "PYTHONPATH": str(checkout / "src"), "TRACKSIDE_PURE_PYTHON": "", **variables}
    done = subprocess.run(
        [sys.executable, *command], cwd=checkout, env=environ, check=True, capture_output=True, text=True
    )
    return done.stdout, done.stderr


class TestSwitch:
    def test_says_what_runs(self):
        """The implementation in use is one of two."""
        assert trackside.implementation in {"compiled", "pure"}

    def test_asked_for_python(self):
        """TRACKSIDE_PURE_PYTHON=1 selects pure Python, without a message."""
        assert run("-c", SHOW, checkout=ROOT, TRACKSIDE_PURE_PYTHON="1") == ("pure\n", "")

    def test_never_built(self, checkout):
        """Without a build, trackside runs in pure Python, without a message."""
        assert run("-c", SHOW, checkout=checkout) == ("pure\n", "")


@pytest.mark.skipif(FREE_THREADED, reason="the core is not built where there is no interpreter lock")
class TestWithoutCompiler:
    def test_one_line(self, checkout):
        """If the compiler fails, the build says so in one line, leaves no file, and does not fail."""
        said, problems = run("native/build.py", checkout=checkout, CC="/bin/false")

        assert (said, problems) == (
            "trackside: goes without its compiled core: /bin/false failed: no word\n",
            "",
        )
        assert list(checkout.glob("src/trackside/_native*")) == []

    def test_no_such_program(self, checkout):
        """A compiler that does not exist is named."""
        said, _ = run("native/build.py", checkout=checkout, CC="/no/such/compiler")

        assert said.startswith("trackside: goes without its compiled core: /no/such/compiler: ")


@pytest.mark.skipif(not HAS_COMPILER, reason="there is no compiler here, or no headers of this Python")
class TestBuild:
    def test_runs_compiled(self, checkout):
        """A build without warnings is found, and used."""
        assert run("native/build.py", checkout=checkout, CFLAGS="-Werror") == ("", "")
        assert run("-c", SHOW, checkout=checkout) == ("compiled\n", "")

    def test_of_other_sources(self, checkout):
        """A build is not used once a source has changed, which one line says, until it was built again."""
        run("native/build.py", checkout=checkout)
        source = checkout / "native" / "module.c"
        source.write_text(source.read_text() + "\n/* changed */\n")

        said, problems = run("-c", SHOW, checkout=checkout)
        assert said == "pure\n"
        problem = "it was built from other sources than those here; run python3 native/build.py"
        assert problems == f"trackside runs without its compiled core: {problem}\n"
        run("native/build.py", checkout=checkout)
        assert run("-c", SHOW, checkout=checkout) == ("compiled\n", "")

    def test_same_sources(self, checkout):
        """A second build of the same sources does not touch the first."""
        run("native/build.py", checkout=checkout)
        (built,) = checkout.glob("src/trackside/_native*.so")
        before = built.stat()

        assert run("native/build.py", checkout=checkout, CC="/bin/false") == ("", "")
        assert (built.stat().st_ino, built.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)

    def test_damaged(self, checkout):
        """A build that cannot be loaded is not used, which one line says."""
        run("native/build.py", checkout=checkout)
        (built,) = checkout.glob("src/trackside/_native*.so")
        built.write_bytes(built.read_bytes()[:100])

        said, problems = run("-c", SHOW, checkout=checkout)
        assert said == "pure\n"
        assert len(problems.splitlines()) == 1
