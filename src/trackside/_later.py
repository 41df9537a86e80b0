"""Names of a package whose modules are imported at the names' first use (PEP 562)."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping


def load_later(package: str, modules: Mapping[str, str]) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """
    Return the ``__getattr__`` and the ``__dir__`` of a package whose import leaves some of its names out.

    A loaded name is stored in the package, so that only its first use calls ``__getattr__``.

    Args:
        package: The package's ``__name__``.
        modules: The names of each module, separated by blanks; a module's own name stands for the module itself.
    """
    names = vars(sys.modules[package])
    module_of = {name: module for module, found in modules.items() for name in found.split()}

    def load(name: str) -> object:
        if name not in module_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}", name=name, obj=sys.modules[package])
        module = importlib.import_module(module_of[name])
        names[name] = found = module if module.__name__ == f"{package}.{name}" else getattr(module, name)
        return found

    def list_names() -> list[str]:
        return sorted({*names, *module_of})

    return load, list_names


def load_all(package: str) -> None:
    """
    Load the names that the import of *package* left out; stop at the first module that cannot be imported.

    Without a ``__getattr__`` the interpreter caches where it found a name in the package: each ``trackside.span`` in a
    training loop then takes a tenth of the instructions.
    """
    module = sys.modules[package]
    try:
        for name in dir(module):
            getattr(module, name)
    except ImportError:
        return
    vars(module).pop("__getattr__", None)
