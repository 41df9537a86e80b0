"""Each of Lightning's packages while the other one is not installed: the same line, the same events."""

from __future__ import annotations

import importlib.metadata
import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

import trackside
from trackside.handlers import replay

pytestmark = [pytest.mark.integration, pytest.mark.hang_guard(300)]

# The name of each distribution, the package that is imported, and the name of the other one.
PACKAGES = {"lightning": "pytorch_lightning", "pytorch_lightning": "lightning"}

for package in PACKAGES:
    pytest.importorskip(package)

JOB = """
import importlib, importlib.metadata, json, os, sys
from pathlib import Path

import frameworks

package, other, directory = sys.argv[1], sys.argv[2], Path(sys.argv[3])
said = {}
try:
    importlib.metadata.version(other)
    said["the other one is installed"] = True
except importlib.metadata.PackageNotFoundError:
    said["the other one is installed"] = False
try:
    importlib.import_module(f"trackside.integrations.{other}")
except ImportError as error:
    said["integration"] = [type(error).__name__, str(error).rpartition("; ")[2]]
one_line = importlib.import_module(f"trackside.integrations.{package}")


def ours(trainer):
    return [callback for callback in trainer.callbacks if type(callback).__module__.startswith("trackside.")]


said["unasked"] = len(ours(frameworks.lightning_trainer(package, directory)))
os.environ["TRACKSIDE"] = str(directory / "asked")
said["asked"] = [type(callback).__module__ for callback in ours(frameworks.lightning_trainer(package, directory))]
del os.environ["TRACKSIDE"]
callback = one_line.TracksideCallback(directory / "runs")
pl = importlib.import_module("lightning.pytorch" if package == "lightning" else package)
said["is a callback"] = isinstance(callback, pl.Callback)
said["is one of stragglers"] = issubclass(one_line.StragglerDetectionCallback, pl.Callback)
trainer = frameworks.lightning_trainer(package, directory, callback)
trainer.fit(frameworks.lightning_module(package), frameworks.loader(), frameworks.loader())
print(json.dumps(said))
"""


import framework_checks as checks  # noqa: E402  after what may skip all of this


def without(hidden, directory):
    """Make *directory* a package directory with everything that is installed here, except the one *hidden*."""
    top_levels = {path.parts[0] for path in importlib.metadata.distribution(hidden).files}
    for place in {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}:
        for path in Path(place).iterdir():
            if path.name not in top_levels and path.suffix != ".pth" and not (directory / path.name).exists():
                (directory / path.name).symlink_to(path)
    return directory


@pytest.fixture(scope="module")
def jobs(tmp_path_factory):
    """Run the same job with either package alone, side by side; return by package its directory and its output."""
    running = {}
    for package, other in PACKAGES.items():
        packages, directory = tmp_path_factory.mktemp("packages"), tmp_path_factory.mktemp(package)
        paths = [without(other, packages), Path(trackside.__file__).parents[1], Path(checks.__file__).parent]
        environ = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths)), "OMP_NUM_THREADS": "1"}
        # Without -S the interpreter would find the hidden package in its own site directory.
        command = [sys.executable, "-S", "-W", "ignore", "-c", JOB, package, other, str(directory)]
        running[package] = (
            directory,
            subprocess.Popen(
                command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=directory
            ),
        )
    done = {}
    for package, (directory, process) in running.items():
        said, errors = process.communicate(timeout=240)
        assert process.returncode == 0, errors[-4000:]
        done[package] = directory, json.loads(said.splitlines()[-1])
    return done


@pytest.fixture(params=PACKAGES)
def package(request):
    return request.param


def test_golden(package, jobs):
    """A fit is recorded in the same order as with both packages installed."""
    directory, _ = jobs[package]
    assert checks.lines_of(replay(directory / "runs")) == ["application {", *checks.lightning_golden(), "} application"]


def test_its_own_classes(package, jobs):
    """The callbacks are those of the installed package, which gets one only if asked for."""
    _, said = jobs[package]
    assert (said["is a callback"], said["is one of stragglers"]) == (True, True)
    assert (said["unasked"], said["asked"]) == (0, [f"trackside.integrations.{package}"])


def test_the_other_one(package, jobs):
    """The other package is missing, and its callback is an error that says what to install."""
    _, said = jobs[package]
    extra = PACKAGES[package].replace("_", "-")
    assert said["the other one is installed"] is False
    assert said["integration"] == ["MissingExtraError", f"run pip install 'trackside[{extra}]'"]


def test_leaves_nothing_else(package, jobs):
    """Telemetry is written only where the one line says."""
    directory, _ = jobs[package]
    assert sorted(path.name for path in directory.iterdir()) == ["checkpoints", "runs"]
