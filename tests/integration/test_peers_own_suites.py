"""
The tests that ml-goodput-measurement ships with its package, run over trackside's names.

They are copied into a temporary directory, their imports rewritten, and run there. Files about parts that trackside
lacks are left out; docs/compatibility.md lists those, and each test of the others that fails, with its reason.
"""

from __future__ import annotations

import ast
import csv
import importlib.util
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

pytestmark = pytest.mark.integration

ROOT = Path(__file__).resolve().parents[2]
LISTED = ROOT / "docs" / "compatibility" / "ml-goodput.csv"
FILES = ("checkpoint_badput_calculator", "exclusion_utils", "goodput", "goodput_elastic", "goodput_utils")
"""The others test a private log client, the cache, a client of the cloud, and the processes of the monitor."""
OURS = "trackside.compat.goodput"


def rewritten(text, constants):
    """
    Return a test file of the peer's with trackside's imports, and its private names of keys replaced by their values.
    """
    text = re.sub(r"\b(?:cloud_goodput\.)?ml_goodput_measurement\.src\b", OURS, text)
    assert OURS in text
    assert "ml_goodput_measurement" not in text  # or the test would run the peer itself
    text = text.replace(
        "from google3.testing.pybase import googletest", "from absl.testing import absltest as googletest"
    )
    text = re.sub(r"^import mock$", "from unittest import mock", text, flags=re.MULTILINE)
    return re.sub(
        r"\b(?:goodput|goodput_elastic)\.(_[A-Z_]+)\b",
        lambda found: constants.get(found.group(1), found.group(0)),
        text,
    )


def asking_the_clock(text):
    """Return the names of tests that sleep: the values that they compare to 0.1 % depend on how busy the machine is."""
    return {
        f"{cls.name}.{test.name}"
        for cls in ast.parse(text).body
        if isinstance(cls, ast.ClassDef)
        for test in cls.body
        if isinstance(test, ast.FunctionDef) and "sleep(" in ast.unparse(test)
    }


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    """Run the peer's tests; return by name whether each passed."""
    installed = importlib.util.find_spec("ml_goodput_measurement")
    if installed is None:
        pytest.skip("ml-goodput-measurement is not installed")
    package = Path(installed.submodule_search_locations[0])
    constants = {}
    for name in ("goodput", "goodput_elastic"):
        source = (package / "src" / f"{name}.py").read_text(encoding="utf-8")
        constants |= dict(re.findall(r"^(_[A-Z_]+) = ('[^'\n]*')$", source, flags=re.MULTILINE))
    directory = tmp_path_factory.mktemp("peer")
    left_out = set()
    for name in FILES:
        text = (package / "tests" / f"{name}_test.py").read_text(encoding="utf-8")
        left_out |= asking_the_clock(text)
        (directory / f"{name}_test.py").write_text(rewritten(text, constants), encoding="utf-8")
    # Its temporary directories are flags, which its own runner parses.
    parsed = 'from absl import flags\nfrom absl.testing import absltest\n\nflags.FLAGS(["tests"])\n'
    (directory / "conftest.py").write_text(parsed, encoding="utf-8")
    (directory / "pytest.ini").write_text("[pytest]\npython_files = *_test.py\n", encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--junit-xml=found.xml", str(directory)]
    subprocess.run(command, cwd=directory, capture_output=True, timeout=1_500, check=False)
    cases = ET.parse(directory / "found.xml").getroot().iter("testcase")
    found = {
        f"{case.get('classname').rpartition('.')[2]}.{case.get('name')}": case.find("failure") is None
        and case.find("error") is None
        for case in cases
    }
    return {name: passed for name, passed in found.items() if name not in left_out}


@pytest.mark.hang_guard(1_600)
def test_failures_are_listed(outcomes):
    """The tests that fail are the ones on the page, each with its class and reason."""
    with LISTED.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert sorted(row["test"] for row in rows) == sorted(name for name, passed in outcomes.items() if not passed)
    assert all(row["class"] and row["reason"] for row in rows)


@pytest.mark.hang_guard(1_600)
def test_figures(outcomes):
    """So many pass of so many, as the page says."""
    page = (ROOT / "docs" / "compatibility.md").read_text(encoding="utf-8")
    assert f"{sum(outcomes.values())} of {len(outcomes)} tests of ml-goodput-measurement pass" in page
