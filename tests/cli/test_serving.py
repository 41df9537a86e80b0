"""The common part of the commands that keep running."""

from __future__ import annotations

import gc

import pytest

from trackside.cli._serving import collecting_rarely


class TestCollecting:
    def test_as_before(self):
        """Garbage collection runs less often inside, and as before afterwards, also after an error."""
        before = gc.get_threshold()
        with collecting_rarely():
            assert gc.get_threshold()[0] > 10_000
        assert gc.get_threshold() == before
        with pytest.raises(ZeroDivisionError), collecting_rarely():
            1 / 0  # noqa: B018  the error
        assert gc.get_threshold() == before

    def test_not_at_all(self):
        """If garbage collection is switched off it stays so."""
        before = gc.get_threshold()
        gc.set_threshold(0)
        try:
            with collecting_rarely():
                assert gc.get_threshold()[0] == 0
        finally:
            gc.set_threshold(*before)
