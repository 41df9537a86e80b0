"""Requests to a job from outside, while it ends."""

from __future__ import annotations

import types

import pytest

from trackside.bus import Bus
from trackside.events import IterationEnded, RunsOn, Source
from trackside.job._remote_access import Controls


class TestClose:
    @pytest.mark.parametrize(
        ("verb", "arguments"), [("pause", {}), ("priority", {"level": "LIFECYCLE"}), ("sample", {"every": 2})]
    )
    def test_asked_meanwhile(self, verb, arguments):
        """A request for less detail is refused when the job has begun to close: no thread would be there to end it."""
        with Bus() as bus:
            controls = Controls(bus, Source(run_id="run-1"))
            assert controls.perform(verb, arguments, "somebody")[0]
            controls.close()

            assert controls.perform(verb, arguments, "somebody") == (False, {"error": "the job is closing"})
            assert bus.redact is None


class TestPause:
    def test_holds_from_request_to_request(self):
        """Recorded is what was logged before a pause and after its end, however late the queue is emptied."""
        seen = []
        with Bus() as bus:
            bus.subscribe(seen.append, to=IterationEnded, runs_on=RunsOn.DISPATCHER)
            controls = Controls(bus, Source(run_id="run-1"))
            for step, verb in enumerate(("pause", "resume", "pause")):
                bus.log(IterationEnded(step=step, duration_ns=1))
                assert controls.perform(verb, {}, "viewer")[0]
            bus.log(IterationEnded(step=3, duration_ns=1))
        assert [event.step for event in seen] == [0, 2]


class TestTimedPause:
    def test_is_over(self, monkeypatch):
        """A pause of 5 s is over after 5 s: the status says so, and a later verb does not bring it back."""
        now_s = 100.0
        monkeypatch.setattr("trackside.job._remote_access.time", types.SimpleNamespace(monotonic=lambda: now_s))
        with Bus() as bus:
            controls = Controls(bus, Source(run_id="run-1"))
            assert controls.perform("pause", {"seconds": 5}, "viewer")[0]
            paused = [controls.perform("status", {}, "viewer")[1]["paused"]]
            now_s = 106.0
            paused.append(controls.perform("status", {}, "viewer")[1]["paused"])
            assert controls.perform("sample", {"every": 2}, "viewer")[0]
            paused.append(controls.perform("status", {}, "viewer")[1]["paused"])
        assert paused == [True, False, False]
