"""Events that no handler accepts do not pile up."""

from __future__ import annotations

import pytest

EVENTS = 10_000_000
OF_300_BYTES_MIB = 64.0


class TestMemory:
    @pytest.mark.hang_guard(300)
    def test_dead_and_deaf(self, run_script, scaled):
        """
        With a handler that blocks for ever and a frame sink that refuses all frames, ten million events of 300 bytes
        make the process grow by 64 MiB at most, and the dropped events are counted exactly.
        """
        count = scaled(EVENTS)
        outcome = run_script("overload.py", count, timeout_s=2000)
        assert (outcome.code, outcome.err) == (0, "")
        (printed,) = outcome.printed
        assert printed["grown_mib"] <= OF_300_BYTES_MIB
        logged = count + 1000
        for handler in ("blocked", "refused", "read"):
            assert (printed[handler]["logged"], printed[handler]["balance"]) == (logged, 0)
        at_the_queue = sum(printed["dropped_by_type"].values())
        # The blocked one is inside its first event; 16,384 wait, that one included.
        assert printed["blocked"] == {
            "logged": logged,
            "handled": 0,
            "dropped": logged - 16_384,
            "in_queue": 16_384,
            "balance": 0,
        }
        assert (printed["refused"]["handled"], printed["refused"]["dropped"]) == (0, logged)
        assert (printed["read"]["handled"], printed["read"]["dropped"]) == (logged - at_the_queue, at_the_queue)
        assert printed["model"] == [logged - at_the_queue, at_the_queue]
