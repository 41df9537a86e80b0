"""
The ``trackside`` command, from before the package is imported: an interrupt never shows a traceback.

This module stands beside the package, because importing anything inside of it imports all of its root first.
"""

from __future__ import annotations

# Built in. The module of Python loads enum and its kin, and an interrupt meanwhile shows a traceback.
import _signal as signal  # type: ignore[import-not-found]


def main() -> int:
    """Run the command line of this process, and return its exit code."""
    # A process that was started to ignore interrupts goes on to ignore them.
    hears_interrupts = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if hears_interrupts:  # while it loads there is nothing to clean up: the signal ends the process at once
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from trackside.cli import main as run  # noqa: PLC0415  the import that may take long

    try:
        if hears_interrupts:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        return run()
    finally:
        if hears_interrupts:  # nor is there anything left to clean up
            signal.signal(signal.SIGINT, signal.SIG_DFL)
