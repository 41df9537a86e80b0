"""Whose numbered streams those of a bus are."""

from __future__ import annotations

import os

import attrs

from trackside.events import Source, process_source, set_process_source


class Identity:
    """
    The source that a bus was given, else this process's.

    Args:
        given: The bus's own source, if it has one.
    """

    def __init__(self, given: Source | None) -> None:
        self._given = given

    def find(self) -> Source:
        """Return whose the next stream is."""
        return self._given or process_source()

    def renew(self, ended: Source) -> Source:
        """
        Return *ended* under another id: ``(source, number)`` is one event for ever, so who begins once more is another.

        If it was who the bus or the process is, it is the other from now on: what looks for a parent finds that.
        """
        fresh = attrs.evolve(ended, id=os.urandom(8).hex())
        if self._given is ended:
            self._given = fresh
        elif self._given is None:
            set_process_source(fresh, instead_of=ended)
        return fresh

    def become_child(self) -> None:
        """In a forked child: be the child of the bus's own source."""
        if self._given is not None:
            self._given = self._given.child()
