"""The tables of contents: the public names, their order, and their existence."""

from __future__ import annotations

import ast
import importlib
import pkgutil
from pathlib import Path

import pytest

import trackside
from trackside.events import MissingExtraError

# Names that users may rely on; a name leaves this list only with a major version.
PROMISED = """
    Event event log wants subscribe Bus every fraction at_most where all_of any_of counter stat gauge
    flush close stats start replay feed EventLog JsonlSink LIFECYCLE ITERATION PROFILE
""".split()

PACKAGES = sorted(found.name for found in pkgutil.walk_packages(trackside.__path__, prefix="trackside.") if found.ispkg)


def by_kind(name):
    """Order names as Ruff does (RUF022): CONSTANTS, then Classes, then functions, each alphabetically."""
    return (0 if name.isupper() else 1 if name[0].isupper() else 2, name)


def find(package, name):
    """Return the attribute *name* of *package*; skip the test if its library is not installed."""
    try:
        return getattr(package, name)
    except ImportError as error:
        if error.name in {None, "trackside"} or error.name.startswith("trackside."):
            raise
        pytest.skip(f"{error.name} is not installed in this environment")


def load(package):
    """Return the module of *package*; skip the test if the library of its extra is not installed."""
    try:
        return importlib.import_module(package)
    except MissingExtraError as error:
        pytest.skip(str(error))


class TestRoot:
    @pytest.mark.parametrize("name", PROMISED)
    def test_promised(self, name):
        """A promised name is public."""
        assert name in trackside.__all__

    @pytest.mark.parametrize("name", trackside.__all__)
    def test_importable(self, name):
        """A public name can be imported, the lazy ones included."""
        assert find(trackside, name) is not None

    @pytest.mark.parametrize("name", trackside.__all__)
    def test_listed(self, name):
        """A public name is offered by completion before its first use."""
        assert name in dir(trackside)

    def test_sorted(self):
        """The names stand in order."""
        assert trackside.__all__ == sorted(trackside.__all__, key=by_kind)

    def test_unknown(self):
        """A name that does not exist is the usual error, and names the name."""
        with pytest.raises(AttributeError, match="no_such_name"):
            trackside.no_such_name  # noqa: B018

    def test_misspelt(self):
        """The error carries what the interpreter needs to suggest the nearest name."""
        with pytest.raises(AttributeError) as caught:
            trackside.training_iteraton  # noqa: B018
        assert (caught.value.name, caught.value.obj) == ("training_iteraton", trackside)


class TestPackages:
    @pytest.mark.parametrize("package", PACKAGES)
    def test_sorted(self, package):
        """Each package's names stand in order."""
        names = load(package).__all__
        assert list(names) == sorted(names, key=by_kind)

    @pytest.mark.parametrize("package", PACKAGES)
    def test_importable(self, package):
        """Each package has the names that it lists."""
        module = load(package)
        missing = [name for name in module.__all__ if find(module, name) is None]
        assert missing == []


def names_for_checkers(path):
    """Return the names that a package's file imports for type checkers alone."""
    blocks = [node for node in ast.parse(path.read_text()).body if isinstance(node, ast.If)]
    imports = [one for block in blocks for one in block.body if isinstance(one, ast.ImportFrom)]
    return {alias.asname or alias.name for one in imports for alias in one.names}


@pytest.mark.parametrize("package", ["trackside", "trackside.events", "trackside.wire"])
def test_types_of_later_names(package):
    """A name that is loaded at its first use has its type for type checkers: it is imported for them."""
    module = importlib.import_module(package)
    modules = {found.name for found in pkgutil.iter_modules(module.__path__)}
    assert set(" ".join(module._LATER.values()).split()) - modules <= names_for_checkers(Path(module.__file__))
