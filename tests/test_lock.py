"""The lock meets pyproject.toml, for everybody: with hashes, and without an index or a file."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from packaging.markers import default_environment
from packaging.requirements import Requirement

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
LOCK = (ROOT / "requirements.lock").read_text(encoding="utf-8")
LINES = LOCK.splitlines()
BLOCKS = [line for line in LOCK.replace("\\\n", "").splitlines() if line.strip() and not line.lstrip().startswith("#")]
PINS = [Requirement(block.partition(" --hash=")[0]) for block in BLOCKS]
ASKED = [
    Requirement(text)
    for texts in [
        PROJECT["build-system"]["requires"],
        PROJECT["project"]["dependencies"],
        *PROJECT["project"]["optional-dependencies"].values(),
        *PROJECT["dependency-groups"].values(),
    ]
    for text in texts
    if isinstance(text, str)
]
PYTHONS = ("3.10.0", "3.11.0", "3.12.0", "3.13.0", "3.14.0")


class TestLock:
    @pytest.mark.parametrize("python", PYTHONS)
    @pytest.mark.parametrize("asked", ASKED, ids=str)
    def test_pins_what_is_asked_for(self, asked, python):
        """Every requirement has one pinned version, and it satisfies the requirement, on every Python."""
        minor = python.rpartition(".")[0]
        there = {**default_environment(), "python_version": minor, "python_full_version": python, "extra": ""}
        pins = [
            pin for pin in PINS if pin.name == asked.name.lower() and (not pin.marker or pin.marker.evaluate(there))
        ]
        assert len(pins) == 1
        (exact,) = pins[0].specifier
        assert exact.operator == "=="
        assert asked.specifier.contains(exact.version)

    def test_torch(self):
        """One version of torch is used throughout, and any build of that version is accepted."""
        assert [str(pin) for pin in PINS if pin.name == "torch"] == ["torch==2.13.0"]

    def test_hashes(self):
        """Everything but torch has hashes, of 256 bits each."""
        hashes = re.compile(r"( +--hash=sha256:[0-9a-f]{64})+ *")
        unhashed = [block for block in BLOCKS if not hashes.fullmatch(block[block.find(" --hash") :])]
        assert [block.strip() for block in unhashed] == ["torch==2.13.0"]

    @pytest.mark.parametrize("sign", ["://", "--index", "--find-links", "@"])
    def test_names_no_place(self, sign):
        """The lock gives the version, and leaves the index to pip's configuration."""
        assert [line for line in LINES if sign in line] == []
