"""The ``trackside`` command: one module for each of its subcommands."""

from trackside.cli._main import main

__all__ = ["main"]
