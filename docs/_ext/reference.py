"""
The API reference: a page for each public package, written from its docstrings each time the documentation is built.

Public is what a package lists in ``__all__``, and what a module that is imported by its path defines without a leading
underscore. A name that several packages list is described once, where a reader looks first, and named in the others.
"""

from __future__ import annotations

import ast
import functools
import importlib.util
import inspect
import itertools
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from sphinx.application import Sphinx

PACKAGES: Final = {
    "trackside": "what most programs need",
    "trackside.events": "events, their declaration and their source",
    "trackside.rules": "which events a subscription keeps",
    "trackside.counters": "counters, distributions and latest values",
    "trackside.bus": "where events are published and handlers subscribe",
    "trackside.instruments": "what emits events",
    "trackside.integrations": "the callbacks of training frameworks",
    "trackside.handlers": "what subscribes",
    "trackside.job": "telemetry around a job, and its configuration",
    "trackside.report": "what people look at",
    "trackside.testing": "tests against trackside",
    "trackside.compat": "the names of other tools",
}
"""By package, what it is for; in the order in which a name is looked for."""
DIRECTORY: Final = "reference"


def setup(app: Sphinx) -> dict[str, bool]:
    """Have the pages written before Sphinx looks for pages."""
    app.connect("builder-inited", lambda app: write(Path(app.srcdir, DIRECTORY)))
    return {"parallel_read_safe": True}


def write(directory: Path) -> None:
    """Write the pages below *directory*, those that changed, and remove those of packages that are gone."""
    directory.mkdir(exist_ok=True)
    texts = pages()
    for path in directory.glob("*.md"):
        if path.name not in texts:
            path.unlink()
    for name, text in texts.items():
        path = directory / name
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")


def pages() -> dict[str, str]:
    """Return the text of each page by its file's name."""
    described: dict[str, str] = {}
    found = {}
    for package, purpose in PACKAGES.items():
        modules = dict(public_modules(package))
        if modules:
            parts = [f"# {package}\n\n{purpose.capitalize()}.\n"]
            parts += [section(module, names, described) for module, names in modules.items()]
            found[f"{package}.md"] = "\n".join(parts)
    return found


def section(module: str, names: Iterable[str], described: dict[str, str]) -> str:
    """Return the part about *module*; *described* has by origin where a name was described, and gets these."""
    lines = [f"## {module}", "", "```{eval-rst}", f".. automodule:: {module}", "   :no-members:", "   :no-index:", ""]
    elsewhere = []
    for name in names:
        origin, directive, text = origin_of(module, name)
        if origin in described:
            elsewhere.append(f"* {name}: :py:obj:`{described[origin]}`")
            continue
        described[origin] = f"{module}.{name}"
        lines += [f".. {directive}:: {module}.{name}", *(["   :members:"] if directive == "autoclass" else []), ""]
        lines += [textwrap.indent(text, "   "), ""] if text else []
    if elsewhere:
        lines += ["Also here:", "", *elsewhere, ""]
    return "\n".join([*lines, "```", ""])


def public_modules(package: str) -> Iterator[tuple[str, list[str]]]:
    """Yield *package* and the public modules below it, each with its public names; none if there is no such package."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        return
    top = Path(spec.origin)
    paths = sorted(top.parent.rglob("*.py")) if top.name == "__init__.py" and package != "trackside" else [top]
    for path in paths:
        parts = path.relative_to(top.parent).with_suffix("").parts
        module = ".".join([package, *(part for part in parts if part != "__init__")]) if path != top else package
        if not any(part.startswith("_") for part in module.split(".")):
            names = public_names(parsed(path))
            if names:
                yield module, names


def path_of(module: str) -> Path | None:
    """Return the file of *module*; no package around it is imported, as one of an extra needs its library."""
    top, *parts = module.split(".")
    spec = importlib.util.find_spec(module if top != "trackside" else top)
    if spec is None or spec.origin is None:
        return None
    if top != "trackside":
        return Path(spec.origin)
    place = Path(spec.origin).parent.joinpath(*parts)
    return next((path for path in (place / "__init__.py", place.with_suffix(".py")) if path.exists()), None)


@functools.cache
def parsed(path: Path) -> ast.Module:
    """Return the syntax tree of a module."""
    return ast.parse(path.read_text(encoding="utf-8"))


def public_names(tree: ast.Module) -> list[str]:
    """Return the names in a module's ``__all__``; without one, its own names without a leading underscore."""
    defined = []
    for node in tree.body:
        if isinstance(node, (ast.Assign, ast.AnnAssign)):
            names = targets(node)
            if "__all__" in names and isinstance(node.value, (ast.List, ast.Tuple)):
                return [str(ast.literal_eval(item)) for item in node.value.elts]
            defined += names
        elif isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            defined.append(node.name)
    return [name for name in defined if not name.startswith("_")]


def origin_of(module: str, name: str) -> tuple[str, str, str]:
    """
    Return where *name* of *module* is defined, following imports, and the directive that describes it.

    The third is the text of a constant, which stands under it in the module that defines it.
    """
    tree = ast.Module([], [])
    for _ in range(10):
        path = path_of(module)
        if path is None:
            break
        tree = parsed(path)
        imported = imports(tree)
        if name not in imported:
            break
        module, name = imported[name]
    for node, under in itertools.zip_longest(tree.body, tree.body[1:]):
        if isinstance(node, ast.ClassDef) and node.name == name:
            return f"{module}.{name}", "autoclass", ""
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name == name:
            return f"{module}.{name}", "autofunction", ""
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and name in targets(node):
            is_text = isinstance(under, ast.Expr) and isinstance(under.value, ast.Constant)
            return f"{module}.{name}", "py:data", inspect.cleandoc(str(under.value.value)) if is_text else ""
    return f"{module}.{name}", "py:data", ""


def targets(node: ast.Assign | ast.AnnAssign) -> list[str]:
    """Return the names that an assignment binds."""
    found = node.targets if isinstance(node, ast.Assign) else [node.target]
    return [target.id for target in found if isinstance(target, ast.Name)]


def imports(tree: ast.Module) -> Mapping[str, tuple[str, str]]:
    """Return by name the module and the name there that a module's imports bind it to."""
    found = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                found[alias.asname or alias.name] = (node.module, alias.name)
    return found
