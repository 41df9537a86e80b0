"""
The rules of docs/design.md on imports and class names, enforced on every import statement of the package.

The checker works on source text alone, so it sees imports inside functions and under TYPE_CHECKING too.
"""

from __future__ import annotations

import ast
import importlib.metadata
import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest

pytestmark = pytest.mark.once

PACKAGE = Path(__file__).resolve().parents[1] / "src" / "trackside"

# The layers that each layer may import besides itself; the package root is the layer without a name.
_LOWEST = {"events", "wire", "core", "rules"}
MAY_IMPORT = {
    "events": _LOWEST,
    "wire": _LOWEST,
    "core": _LOWEST,
    "rules": _LOWEST,
    "counters": _LOWEST,
    "bus": {"counters", *_LOWEST},
    "instruments": {"bus", "counters", *_LOWEST},
    "handlers": _LOWEST,
    "report": {"handlers", *_LOWEST},
    "job": {"bus", "counters", "handlers", "instruments", *_LOWEST},
    "integrations": {"instruments", "job", "bus", "counters", "handlers", *_LOWEST},
    "compat": {"integrations", "job", "bus", "counters", "handlers", "instruments", *_LOWEST},
    "cli": {"", "compat", "report", "integrations", "job", "bus", "counters", "handlers", "instruments", *_LOWEST},
    "": {"integrations", "job", "bus", "counters", "handlers", "instruments", *_LOWEST},
    "testing": {"bus", "handlers", *_LOWEST},
    "_pytest_plugin": {"testing", "bus"},
    "__main__": {"cli"},
    "_free_threading": set(),
    "_implementation": set(),
    "_later": set(),
    "_platform": set(),
}
# Below all layers, so that events can have a compiled part too.
BELOW_ALL = {"_free_threading", "_implementation", "_later", "_platform"}
MAY_IMPORT = {layer: BELOW_ALL | others for layer, others in MAY_IMPORT.items()}
# The lazy names of the root and the dispatch of the commands: the only imports of ours inside functions.
MAY_IMPORT_LATE = {"trackside", "trackside.cli"}

FIXED_LIBRARIES = {"attrs", "cattrs", "msgpack", "zmq", "numpy"}
# Of distributions that are imported under another name.
IMPORT_NAMES = {
    "google-cloud-logging": "google",
    "google-cloud-monitoring": "google",
    "mlflow-skinny": "mlflow",
    "nats-py": "nats",
    "nvidia-ml-py": "pynvml",
    "opentelemetry-exporter-otlp-proto-http": "opentelemetry",
    "opentelemetry-sdk": "opentelemetry",
    "pyzmq": "zmq",
}
# Only pytest loads the module that imports it; One Logger's module is called after another package of Lightning; and
# what signs with keys is of an extra of nats-py's own, which few need and not every Python has wheels for.
NAMED_OTHERWISE = {
    ("trackside.handlers.nats._stream", "nkeys"),
    ("trackside._pytest_plugin", "pytest"),
    ("trackside.compat.one_logger.training_telemetry.integration.pytorch_lightning", "lightning"),
}
# Its types are the type checkers' own; nothing may need it when the package runs.
FOR_TYPES_ALONE = {"typing_extensions"}
# In the standard library only of later Pythons than the oldest one: imported under this condition alone.
LATER_STDLIB = {"tomllib": "sys.version_info >= (3, 11)"}


@attrs.frozen
class Import:
    """
    An imported module: the importing one, the line, and whether at once, late, for types alone or on later Pythons.
    """

    importer: str
    target: str
    where: str
    late: bool
    for_types: bool
    condition: str
    """The test of the Python's version that must be true for it; empty if there is none."""


class Package:
    """The import statements of a package, read from its source."""

    def __init__(self, root: Path) -> None:
        self.name = root.name
        self.paths = {self._module(path, root): path for path in sorted(root.rglob("*.py"))}
        self.imports = [found for module in self.paths for found in self._imports(module)]

    @staticmethod
    def _module(path: Path, root: Path) -> str:
        parts = path.relative_to(root.parent).with_suffix("").parts
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    def _imports(self, module: str) -> Iterator[Import]:
        path = self.paths[module]
        for node, late, for_types, condition in statements(ast.parse(path.read_text(encoding="utf-8"))):
            for target in self._targets(node, module):
                yield Import(module, target, f"{path.name}:{node.lineno}", late, for_types, condition)

    def _targets(self, node: ast.Import | ast.ImportFrom, module: str) -> list[str]:
        if isinstance(node, ast.Import):
            return [alias.name for alias in node.names]
        base = node.module or ""
        if node.level:
            here = module.split(".")
            # A package is its own level one; a module's is the package that it lies in.
            up = node.level - (self.paths[module].name == "__init__.py")
            base = ".".join([*here[: len(here) - up], *filter(None, [node.module])])
        # `from package import module` imports the module, not the package's table of contents.
        submodules = [f"{base}.{alias.name}" for alias in node.names]
        return [name if name in self.paths else base for name in submodules]

    def is_own(self, module: str) -> bool:
        """Return whether *module* belongs to this package."""
        return top(module) == self.name

    def layer(self, module: str) -> str:
        """Return the layer that *module* of this package lies in."""
        return module.split(".")[1] if "." in module else ""


def top(module: str) -> str:
    return module.partition(".")[0]


def statements(tree: ast.AST, *, late: bool = False, for_types: bool = False, condition: str = "") -> Iterator[tuple]:
    """Yield every import statement with whether a function, TYPE_CHECKING or a test of the version holds it."""
    around = {"late": late, "for_types": for_types, "condition": condition}
    for child in ast.iter_child_nodes(tree):
        test = ast.unparse(child.test) if isinstance(child, ast.If) else ""
        if isinstance(child, (ast.Import, ast.ImportFrom)):
            yield child, late, for_types, condition
        elif test in {"TYPE_CHECKING", "typing.TYPE_CHECKING"}:
            yield from statements(ast.Module(child.body, []), **{**around, "for_types": True})
            yield from statements(ast.Module(child.orelse, []), **around)
        elif test.startswith("sys.version_info "):
            yield from statements(ast.Module(child.body, []), **{**around, "condition": test})
            yield from statements(ast.Module(child.orelse, []), **around)
        else:
            inside = isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
            yield from statements(child, **{**around, "late": late or inside})


def violations(root: Path, *, required: set[str], extras: dict[str, set[str]]) -> list[str]:
    """
    Return the violations of the rules in the package at *root*, a sentence each.

    Args:
        root: The package's directory.
        required: Import names of the libraries that are always installed.
        extras: By extra, the import names of its libraries.
    """
    package = Package(root)
    return [
        *between_layers(package),
        *inside_functions(package, extras),
        *of_libraries(package, required, extras),
        *cycles(package),
    ]


def between_layers(package: Package) -> Iterator[str]:
    for module in package.paths:
        if package.layer(module) not in MAY_IMPORT:
            yield f"{module} is in no layer"
    for found in package.imports:
        if package.is_own(found.target):
            here, there = package.layer(found.importer), package.layer(found.target)
            if there != here and there not in MAY_IMPORT.get(here, set()):
                yield f"{found.importer} ({found.where}) must not import {found.target}"


def inside_functions(package: Package, extras: dict[str, set[str]]) -> Iterator[str]:
    for found in package.imports:
        # A command imports a module that needs an extra when it runs: the others work without the extra.
        is_dispatch = package.layer(found.importer) == "cli" and bool(extras.keys() & set(found.target.split(".")))
        if found.late and package.is_own(found.target) and found.importer not in MAY_IMPORT_LATE and not is_dispatch:
            yield f"{found.importer} ({found.where}) imports {found.target} inside a function"


def last(module: str) -> str:
    """Return the last part of a module's name."""
    return module.rpartition(".")[2]


def of_libraries(package: Package, required: set[str], extras: dict[str, set[str]]) -> Iterator[str]:
    users: dict[str, set[str]] = {}
    for found in package.imports:
        library = top(found.target)
        if library in LATER_STDLIB:
            if found.condition != LATER_STDLIB[library]:
                yield f"{found.importer} ({found.where}) must import {library} under: if {LATER_STDLIB[library]}"
            continue
        if package.is_own(library) or library in sys.stdlib_module_names or library in required:
            continue
        if found.for_types and library in FOR_TYPES_ALONE:
            continue
        # A package that is named after an extra is one module, as far as libraries go.
        parent = found.importer.rpartition(".")[0]
        place = next((place for place in (parent, found.importer) if library in extras.get(last(place), ())), "")
        if (found.importer, library) in NAMED_OTHERWISE:
            continue
        if place:
            users.setdefault(last(place), set()).add(place)
        else:
            yield f"{found.importer} ({found.where}) must not import {library}: it is no module of such an extra"
    for extra, modules in users.items():
        if len(modules) > 1:
            yield f"the extra {extra} has several modules: {', '.join(sorted(modules))}"


def cycles(package: Package) -> Iterator[str]:
    """Yield each import cycle once; what is imported for types alone is never run and makes none."""
    edges: dict[str, set[str]] = {module: set() for module in package.paths}
    for found in package.imports:
        if found.target in edges and not found.for_types:
            edges[found.importer].add(found.target)
    done: set[str] = set()

    def follow(module: str, path: list[str]) -> Iterator[str]:
        if module in path:
            yield " -> ".join([*path[path.index(module) :], module]) + " is a cycle"
        elif module not in done:
            for target in sorted(edges[module]):
                yield from follow(target, [*path, module])
            done.add(module)

    for module in edges:
        yield from follow(module, [])


def installed_libraries() -> tuple[set[str], dict[str, set[str]]]:
    """Return the import names of trackside's own requirements, and of each extra's."""
    required: set[str] = set()
    extras: dict[str, set[str]] = {}
    for requirement in importlib.metadata.requires("trackside"):
        distribution = re.match(r"[\w.-]+", requirement)[0].lower()
        extra = re.search(r"extra == ['\"]([\w.-]+)['\"]", requirement)
        libraries = extras.setdefault(extra[1].replace("-", "_"), set()) if extra else required
        libraries.add(IMPORT_NAMES.get(distribution, distribution.replace("-", "_")))
    return required, extras


class TestTrackside:
    def test_keeps_the_rules(self):
        """No import statement of the package breaks a rule."""
        required, extras = installed_libraries()
        assert violations(PACKAGE, required=required, extras=extras) == []

    def test_is_read(self):
        """The checker reads the package: it finds imports that are known to exist."""
        found = {(found.importer, found.target) for found in Package(PACKAGE).imports}
        assert ("trackside.events._event", "attrs") in found

    def test_requires_only_the_fixed_libraries(self):
        """No further package is installed with trackside unless an extra is asked for."""
        required, _ = installed_libraries()
        assert required - FIXED_LIBRARIES == set()


# Classes of compat that have another class's name, because the peer's class has it.
NAMED_BY_PEERS = {"Aggregation", "CallableId", "Event", "GoodputMonitor", "Recorder", "Report", "Span", "Stat", "Timer"}


def class_names(root: Path) -> dict[str, list[str]]:
    """Return the paths of the modules that define each class, nested ones too, by the class's name."""
    defined: dict[str, list[str]] = {}
    for path in sorted(root.rglob("*.py")):
        inside = path.relative_to(root)
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            is_peers = inside.parts[0] == "compat" and getattr(node, "name", "") in NAMED_BY_PEERS
            if isinstance(node, ast.ClassDef) and not is_peers:
                defined.setdefault(node.name, []).append(inside.as_posix())
    return defined


class TestClassNames:
    def test_are_unique(self):
        """No two classes have one name, but for the peers' and the callback that each framework has."""
        twice = {name: paths for name, paths in class_names(PACKAGE).items() if len(paths) > 1}
        lightning = ["integrations/lightning.py", "integrations/pytorch_lightning.py"]
        assert twice == {
            "StragglerDetectionCallback": lightning,
            "TracksideCallback": ["integrations/fabric.py", *lightning, "integrations/transformers.py"],
        }


# Their modules are named from outside: those of cli after the commands, the public ones of compat after the peers'.
NAMED_FROM_OUTSIDE = {"compat", "cli"}


def module_names(root: Path) -> dict[str, list[str]]:
    """Return the paths of the modules by their name, without the underscore that marks one as private."""
    named: dict[str, list[str]] = {}
    for path in sorted(root.rglob("*.py")):
        inside = path.relative_to(root)
        is_ours = inside.parts[0] not in NAMED_FROM_OUTSIDE or (inside.parts[0] == "compat" and path.stem[0] == "_")
        if is_ours and not path.stem.startswith("__"):
            named.setdefault(path.stem.lstrip("_"), []).append(inside.as_posix())
    return named


class TestModuleNames:
    def test_are_unique(self):
        """No two modules have one name, but for those that other tools and the commands name."""
        assert {name: paths for name, paths in module_names(PACKAGE).items() if len(paths) > 1} == {}

    def test_of_commands(self):
        """A module of the commands that has another module's name is called as a command is."""
        parser = (PACKAGE / "cli" / "_main.py").read_text(encoding="utf-8")
        commands = [
            path.stem for path in (PACKAGE / "cli").glob("_*.py") if path.stem.lstrip("_") in module_names(PACKAGE)
        ]
        assert [name for name in commands if name not in parser] == []


@pytest.fixture
def check(tmp_path):
    """Return a function that checks a generated package, given as a dict of paths and sources."""

    def check(files, *, extras=None):
        for name in ["__init__.py", *(f"{Path(path).parent}/__init__.py" for path in files), *files]:
            path = tmp_path / "trackside" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(textwrap.dedent(files.get(name, "")))
        return violations(tmp_path / "trackside", required={"attrs", "zmq"}, extras=extras or {"torch": {"torch"}})

    return check


class TestBetweenRooms:
    ALL_LAYERS = sorted(set(MAY_IMPORT) - {""})
    # Worked out by hand from the drawing in docs/design.md, so that a slip in the table above shows.
    ALLOWED = """
        events>wire events>core events>rules  wire>events wire>core wire>rules
        core>events core>wire core>rules  rules>events rules>wire rules>core
        counters>events counters>wire counters>core counters>rules
        bus>events bus>wire bus>core bus>rules bus>counters
        instruments>events instruments>wire instruments>core instruments>rules instruments>bus instruments>counters
        handlers>events handlers>wire handlers>core handlers>rules
        report>events report>wire report>core report>rules report>handlers
        job>events job>wire job>core job>rules job>bus job>counters job>handlers job>instruments
        integrations>events integrations>wire integrations>core integrations>rules integrations>instruments
        integrations>job integrations>bus integrations>counters integrations>handlers
        compat>events compat>wire compat>core compat>rules compat>bus compat>counters compat>handlers
        compat>instruments compat>job compat>integrations
        cli>events cli>wire cli>core cli>rules cli>bus cli>counters cli>handlers cli>instruments cli>job
        cli>integrations cli>compat cli>report
        testing>events testing>wire testing>core testing>rules testing>bus testing>handlers
        _pytest_plugin>testing _pytest_plugin>bus  __main__>cli
    """.split()

    @pytest.mark.parametrize("there", ALL_LAYERS)
    @pytest.mark.parametrize("here", ALL_LAYERS)
    def test_every_pair(self, check, here, there):
        """Of all pairs of layers, exactly those of the drawing may import each other."""
        files = {f"{here}/_a.py": f"from trackside.{there} import _b", f"{there}/_b.py": ""}
        clean = check(files) == []
        assert clean is (there in {here, *BELOW_ALL} or f"{here}>{there}" in self.ALLOWED)

    @pytest.mark.parametrize("layer", ALL_LAYERS)
    @pytest.mark.parametrize("statement", ["import trackside", "from trackside import log", "from .. import log"])
    def test_the_root(self, check, layer, statement):
        """The root is imported by the commands alone."""
        clean = check({f"{layer}/_a.py": statement}) == []
        assert clean is (layer == "cli")

    @pytest.mark.parametrize("layer", ALL_LAYERS)
    def test_by_the_root(self, check, layer):
        """The root exports names of integrations, the job and the layers below them, and no others."""
        clean = check({"__init__.py": f"from trackside.{layer} import _a", f"{layer}/_a.py": ""}) == []
        above = {"cli", "compat", "report", "testing", "_pytest_plugin", "__main__"}
        assert clean is (layer not in above)

    @pytest.mark.parametrize(
        "statement",
        [
            "from trackside.handlers import Capture",
            "from trackside.handlers._capture import Capture",
            "from trackside import handlers",
            "import trackside.handlers._capture as capture",
            "import os, trackside.handlers",
            "from ..handlers import Capture",
            "from .. import handlers",
            "from ..handlers._capture import *",
            "def f():\n    from trackside.handlers import Capture",
            "class A:\n    import trackside.handlers",
            "try:\n    import trackside.handlers\nexcept ImportError:\n    pass",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import trackside.handlers",
        ],
    )
    def test_every_form(self, check, statement):
        """An import that breaks a rule is found in any form and place."""
        found = check({"bus/_a.py": statement, "handlers/_capture.py": ""})
        assert any(
            "trackside.bus._a (_a.py:" in line and "must not import trackside.handlers" in line for line in found
        )

    def test_from_a_package(self, check):
        """A relative import in a package's __init__ starts at the package itself."""
        assert check({"bus/__init__.py": "from ._a import log\nfrom . import _a", "bus/_a.py": ""}) == []

    def test_from_a_package_upwards(self, check):
        """A relative import that leaves the layer is resolved to its target."""
        found = check({"handlers/models/__init__.py": "from ...bus import log", "bus/_a.py": ""})
        assert found == ["trackside.handlers.models (__init__.py:1) must not import trackside.bus"]

    @pytest.mark.parametrize("path", ["helpers/_a.py", "_extra.py"])
    def test_no_layer(self, check, path):
        """No module is outside the layers."""
        assert "is in no layer" in check({path: ""})[0]


class TestInsideFunctions:
    LATE = "def f():\n    from trackside.events import Event"

    def test_a_layer(self, check):
        """A layer imports trackside's own modules at the top."""
        assert check({"job/_a.py": self.LATE, "events/_b.py": ""}) == [
            "trackside.job._a (_a.py:2) imports trackside.events inside a function"
        ]

    @pytest.mark.parametrize("path", ["__init__.py", "cli/__init__.py"])
    def test_lazy_names_and_dispatch(self, check, path):
        """The root's lazy names and the commands' dispatch may wait with it."""
        assert check({path: self.LATE, "events/_b.py": ""}) == []

    def test_a_command(self, check):
        """A command itself imports at the top."""
        assert "inside a function" in check({"cli/tail.py": self.LATE, "events/_b.py": ""})[0]

    def test_an_extra_by_a_command(self, check):
        """A command may wait with a module that needs an extra."""
        files = {"cli/tail.py": "def f():\n    from trackside.report.torch import g", "report/torch.py": "import torch"}
        assert check(files) == []

    def test_a_method(self, check):
        """A method counts as a function."""
        source = "class A:\n    async def f(self):\n        if self:\n            import trackside.events"
        assert "inside a function" in check({"job/_a.py": source, "events/_b.py": ""})[0]


class TestLibraries:
    def test_required(self, check):
        """A library that is always installed may be imported anywhere."""
        assert check({"events/_a.py": "import attrs\nimport zmq.auth\nimport os.path"}) == []

    def test_in_the_module_of_the_extra(self, check):
        """An extra's library is imported in the module of its name."""
        assert check({"instruments/torch.py": "import torch.cuda\nfrom torch import Tensor"}) == []

    @pytest.mark.parametrize("path", ["instruments/_torch.py", "instruments/kernels.py", "events/_a.py"])
    def test_elsewhere(self, check, path):
        """An extra's library is imported nowhere else, not even inside a function."""
        assert "must not import torch" in check({path: "def f():\n    import torch"})[0]

    def test_two_modules(self, check):
        """An extra has one module."""
        found = check({"instruments/torch.py": "import torch", "handlers/torch.py": "import torch"})
        assert found == ["the extra torch has several modules: trackside.handlers.torch, trackside.instruments.torch"]

    def test_undeclared(self, check):
        """A library that no requirement names is imported nowhere, though the module has its name."""
        assert "must not import rich" in check({"report/rich.py": "import rich"})[0]

    def test_of_another_extra(self, check):
        """A module may import several libraries if its extra brings them."""
        files = {"handlers/tensorboard.py": "from torch.utils import tensorboard"}
        assert check(files, extras={"tensorboard": {"tensorboard", "torch"}}) == []

    def test_for_types(self, check):
        """A module may import types, for type checkers alone, from the library that only they need."""
        source = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from typing_extensions import Self"
        assert check({"events/_a.py": source}) == []

    def test_for_types_when_it_runs(self, check):
        """Running code imports nothing from that library."""
        source = "import typing\nif typing.TYPE_CHECKING:\n    pass\nelse:\n    from typing_extensions import Self"
        assert "must not import typing_extensions" in check({"events/_a.py": source})[0]

    LATER = "import sys\nif sys.version_info >= (3, 11):\n    from tomllib import loads"

    def test_later_standard_library(self, check):
        """A module that only later Pythons have may be imported on those."""
        assert check({"job/_a.py": f"{self.LATER}\nelse:\n    loads = None"}) == []

    @pytest.mark.parametrize(
        "source",
        [
            "from tomllib import loads",
            "try:\n    import tomllib\nexcept ImportError:\n    pass",
            LATER.replace(">=", "<"),
            LATER.replace("3, 11", "3, 10"),
            "import sys\nif sys.version_info >= (3, 11):\n    pass\nelse:\n    import tomllib",
        ],
    )
    def test_later_standard_library_elsewhere(self, check, source):
        """On the oldest Python no other module may import it, whichever Python runs this test."""
        (found,) = check({"job/_a.py": source})
        assert "must import tomllib under: if sys.version_info >= (3, 11)" in found


class TestCycles:
    def test_of_two(self, check):
        """Two modules that import each other are a cycle, named in order."""
        found = check({"bus/_a.py": "from trackside.bus import _b", "bus/_b.py": "import trackside.bus._a"})
        assert found == ["trackside.bus._a -> trackside.bus._b -> trackside.bus._a is a cycle"]

    def test_through_the_table_of_contents(self, check):
        """A module that imports its own package's table of contents is in a cycle with it."""
        found = check(
            {"bus/__init__.py": "from trackside.bus._a import log", "bus/_a.py": "from trackside.bus import x"}
        )
        assert found == ["trackside.bus -> trackside.bus._a -> trackside.bus is a cycle"]

    def test_of_three(self, check):
        """A longer cycle is found too."""
        files = {"bus/_a.py": "from . import _b", "bus/_b.py": "from . import _c", "bus/_c.py": "from . import _a"}
        assert len(check(files)) == 1

    def test_for_types(self, check):
        """A module may name, for type checkers, a type of a module that imports it."""
        back = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from trackside.bus._a import A"
        assert check({"bus/_a.py": "from trackside.bus import _b", "bus/_b.py": back}) == []

    def test_none(self, check):
        """Two ways to the same module are no cycle."""
        files = {"bus/_a.py": "from . import _b, _c", "bus/_b.py": "from . import _c", "bus/_c.py": ""}
        assert check(files) == []
