"""Requests to a job from outside, while it ends."""

from __future__ import annotations

import pytest

from trackside.bus import Bus
from trackside.events import Source
from trackside.job._control import Controls


class TestClose:
    @pytest.mark.parametrize(
        ("verb", "arguments"), [("pause", {}), ("priority", {"level": "LIFECYCLE"}), ("sample", {"every": 2})]
    )
    def test_asked_meanwhile(self, verb, arguments):
        """Who asks for less when the job has begun to close is refused: no thread would be there to end it."""
        with Bus() as bus:
            controls = Controls(bus, Source(run_id="run-1"))
            assert controls.perform(verb, arguments, "somebody")[0]
            controls.close()

            assert controls.perform(verb, arguments, "somebody") == (False, {"error": "the job is closing"})
            assert bus.redact is None
