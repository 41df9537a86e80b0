"""The locks meet pyproject.toml, for everybody: with hashes, and without an index or a file."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.version import Version

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
LOCKS = [(ROOT / name).read_text(encoding="utf-8") for name in ("requirements.lock", "requirements-floors.lock")]
ASKED = [
    Requirement(text)
    for texts in [
        PROJECT["build-system"]["requires"],
        PROJECT["project"]["dependencies"],
        *PROJECT["project"]["optional-dependencies"].values(),
        *(texts for group, texts in PROJECT["dependency-groups"].items() if group != "floors"),
    ]
    for text in texts
    if isinstance(text, str)
]
FLOORS = [
    Requirement(text)
    for texts in [PROJECT["project"]["dependencies"], *PROJECT["project"]["optional-dependencies"].values()]
    for text in texts
]
PYTHONS = ("3.10.0", "3.11.0", "3.12.0", "3.13.0", "3.14.0")


def blocks(lock: str) -> list[str]:
    """Return the entries of *lock*, each with its hashes in one line."""
    lines = lock.replace("\\\n", "").splitlines()
    return [line for line in lines if line.strip() and not line.lstrip().startswith("#")]


PINS, FLOOR_PINS = ([Requirement(block.partition(" --hash=")[0]) for block in blocks(lock)] for lock in LOCKS)


def pinned(pins: list[Requirement], name: str, python: str) -> str:
    """Return the one version in which *pins* have the package of that *name* on that *python*."""
    minor = python.rpartition(".")[0]
    there = {**default_environment(), "python_version": minor, "python_full_version": python, "extra": ""}
    [pin] = [pin for pin in pins if pin.name == name.lower() and (not pin.marker or pin.marker.evaluate(there))]
    [exact] = pin.specifier
    assert exact.operator == "=="
    return exact.version


class TestLock:
    @pytest.mark.parametrize("python", PYTHONS)
    @pytest.mark.parametrize("asked", ASKED, ids=str)
    def test_pins_what_is_asked_for(self, asked, python):
        """Every requirement has one pinned version, and it satisfies the requirement, on every Python."""
        assert asked.specifier.contains(pinned(PINS, asked.name, python))

    @pytest.mark.parametrize("python", PYTHONS[:2])
    @pytest.mark.parametrize("asked", [asked for asked in FLOORS if asked.name != "torch"], ids=str)
    def test_floors(self, asked, python):
        """The versions that the tests run beside as the lowest are the lower bounds, where all of them have wheels."""
        [bound] = [clause.version for clause in asked.specifier if clause.operator == ">="]
        assert Version(pinned(FLOOR_PINS, asked.name, python)) == Version(bound)

    @pytest.mark.parametrize("pins", [PINS, FLOOR_PINS], ids=["lock", "floors"])
    def test_torch(self, pins):
        """One version of torch is used throughout, and any build of that version is accepted."""
        assert [str(pin) for pin in pins if pin.name == "torch"] == ["torch==2.13.0"]

    @pytest.mark.parametrize("lock", LOCKS, ids=["lock", "floors"])
    def test_hashes(self, lock):
        """Everything but torch has hashes, of 256 bits each."""
        hashes = re.compile(r"( +--hash=sha256:[0-9a-f]{64})+ *")
        unhashed = [block for block in blocks(lock) if not hashes.fullmatch(block[block.find(" --hash") :])]
        assert [block.strip() for block in unhashed] == ["torch==2.13.0"]

    @pytest.mark.parametrize("lock", LOCKS, ids=["lock", "floors"])
    @pytest.mark.parametrize("sign", ["://", "--index", "--find-links", "@"])
    def test_names_no_place(self, lock, sign):
        """A lock gives the version, and leaves the index to pip's configuration."""
        assert [line for line in lock.splitlines() if sign in line] == []
