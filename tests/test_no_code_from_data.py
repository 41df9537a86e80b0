"""
No code comes from data: nothing in the package can turn bytes, names or files into running code.

Read from the source text: a call that is not there cannot be reached, whatever arrives over a wire.
"""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.once

PACKAGE = Path(__file__).resolve().parents[1] / "src" / "trackside"

# Modules that build objects or run code from the data that they read.
MODULES = set(
    """
    pickle _pickle cPickle pickletools cloudpickle dill joblib jsonpickle shelve marshal
    code codeop runpy imp pydoc multiprocessing.connection multiprocessing.managers
    """.split()
)
# Builtins that do so.
BUILTINS = {"eval", "exec", "compile", "__import__"}
# Functions that do so, by the last part of their name, from any module.
FUNCTIONS = set(
    """
    recv_pyobj send_pyobj import_module resolve_name locate module_from_spec exec_module
    unsafe_load full_load make_class make_dataclass
    """.split()
)
# Functions whose name is harmless elsewhere, by their full name.
QUALIFIED = {"torch.load", "yaml.load", "numpy.load", "os.system", "os.popen"}
KEYWORDS = {"allow_pickle", "shell"}
# Modules that are loaded later, names and trackside's own events, are in fixed tables; the modules for streams and for
# Parquet are one name each. The encoder generates a check of types from the number of a class's fields and the names of
# the scalar types. No data reaches any of them.
EXCEPTIONS = {
    ("_implementation.py", "import_module"),
    ("_later.py", "import_module"),
    ("events/_event.py", "import_module"),
    ("handlers/eventlog/_reader.py", "import_module"),
    ("report/_runs.py", "import_module"),
    ("wire/_encoder.py", "compile"),
    ("wire/_encoder.py", "exec"),
}


def dangers(source: str) -> Iterator[tuple[int, str]]:
    """Yield the line and the name of every call in *source* that can make code out of data."""
    tree = ast.parse(source)
    known: dict[str, str] = {}  # the full name of an imported one
    for node in ast.walk(tree):
        for local, full in imported(node):
            known[local] = full
            if any(full == module or full.startswith(f"{module}.") for module in MODULES):
                yield node.lineno, full
            elif full in QUALIFIED or full.rsplit(".", 1)[-1] in FUNCTIONS:
                yield node.lineno, full.rsplit(".", 1)[-1]
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id in BUILTINS:
            yield node.lineno, node.id
        elif isinstance(node, ast.Attribute):
            first, _, rest = ast.unparse(node).partition(".")
            if f"{known.get(first, first)}.{rest}" in QUALIFIED or node.attr in FUNCTIONS or full_builtin(node):
                yield node.lineno, node.attr
        elif isinstance(node, ast.keyword) and node.arg in KEYWORDS and not is_false(node.value):
            yield node.value.lineno, node.arg


def imported(node: ast.AST) -> Iterator[tuple[str, str]]:
    if isinstance(node, ast.Import):
        for alias in node.names:
            # `import a.b` binds a; `import a.b as c` binds a.b.
            yield alias.asname or alias.name.split(".")[0], alias.name
    elif isinstance(node, ast.ImportFrom) and not node.level:
        for alias in node.names:
            yield alias.asname or alias.name, f"{node.module}.{alias.name}"


def full_builtin(node: ast.Attribute) -> bool:
    return isinstance(node.value, ast.Name) and node.value.id in {"builtins", "__builtins__"} and node.attr in BUILTINS


def is_false(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and node.value is False


class TestTrackside:
    @pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: str(path.relative_to(PACKAGE)))
    def test_has_no_way(self, path):
        """No module of the package can make code out of data."""
        name = str(path.relative_to(PACKAGE))
        found = [
            (line, what) for line, what in dangers(path.read_text(encoding="utf-8")) if (name, what) not in EXCEPTIONS
        ]
        assert found == []

    def test_is_read(self):
        """There are modules to read."""
        assert (PACKAGE / "events" / "__init__.py").is_file()


class TestDangers:
    @pytest.mark.parametrize(
        "source",
        [
            "import pickle",
            "import pickle as harmless",
            "from pickle import loads",
            "import os, marshal",
            "from multiprocessing import connection",
            "import multiprocessing.connection",
            "eval(text)",
            "run = exec",
            "compile(text, '', 'exec')",
            "import builtins\nbuiltins.eval(text)",
            "__import__(name)",
            "import importlib\nimportlib.import_module(name)",
            "from importlib import import_module as find",
            "import pkgutil\npkgutil.resolve_name(name)",
            "socket.recv_pyobj()",
            "self._socket.send_pyobj(event)",
            "import torch\ntorch.load(path)",
            "import torch as t\nt.load(path)",
            "from torch import load",
            "import yaml\nyaml.load(text)",
            "import numpy as np\nnp.load(path)",
            "load(path, allow_pickle=True)",
            "run(command, shell=True)",
            "import os\nos.system(command)",
            "import attrs\nattrs.make_class(name, fields)",
            "def f():\n    if text:\n        return eval(text)",
        ],
    )
    def test_found(self, source):
        """Every known way is found, under any name."""
        assert list(dangers(source)) != []

    @pytest.mark.parametrize(
        "source",
        [
            "import re\nre.compile(text)",
            "import json\njson.loads(text)",
            "model.load(state)",
            "import msgpack\nmsgpack.unpackb(data)",
            "from trackside.events import declared\ndeclared()[name]",
            "evaluate(text)",
            "load(path, allow_pickle=False)",
            '"""eval(text) is what this never does."""',
        ],
    )
    def test_harmless(self, source):
        """Code that only resembles one is accepted."""
        assert list(dangers(textwrap.dedent(source))) == []
