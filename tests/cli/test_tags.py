"""
Five possible changes to a training, as in the documentation of the tags.

``session_tag`` says which runs are one task, ``perf_tag`` which are expected to perform alike.
"""

from __future__ import annotations

import contextlib
import json
import re

import pytest

import trackside
from trackside.job import JobConfig, TrainingConfig

pytestmark = pytest.mark.once

WHEN = re.compile(r"from \S+ \S+, for [^,]+")


@pytest.fixture
def train(tmp_path):
    """Give a function that runs a job under its tags, from one step to another; it may fail there."""

    def train(run_id, session_tag, perf_tag, steps, *, world_size=1, attempt=0, fails=False):
        config = JobConfig(
            application_name="charlm",
            run_id=run_id,
            session_tag=session_tag,
            attempt=attempt,
            world_size=world_size,
            training=TrainingConfig(perf_tag=perf_tag),
        )
        with contextlib.suppress(FloatingPointError), trackside.start(tmp_path, job=config, report=False):
            for step in steps:
                with trackside.training_iteration(step=step):
                    if fails and step == steps[-1]:
                        raise FloatingPointError

    return train


@pytest.fixture
def listed(command, tmp_path):
    """
    Give a function that returns what ``trackside runs`` lists as JSON, and its lines without times.

    Of the JSON: by session, by run, its tags, and of each attempt the last step, the state and the reasons.
    """

    def listed():
        report = json.loads(command("runs", tmp_path, "--json").out)
        found = {
            session["session"]: {
                run["run"]: (run["perf_tags"], [_attempt(attempt) for attempt in run["attempts"]])
                for run in session["runs"]
            }
            for session in report["sessions"]
        }
        return found, [WHEN.sub("…", line) for line in command("runs", tmp_path).lines[:-1]]

    return listed


def _attempt(attempt):
    (state,) = attempt["states"]
    return attempt["last_step"], state["state"], state["reason"]


class TestScenarios:
    def test_1_architecture_changes(self, train, listed):
        """The job ends; later the architecture changes and it runs again: another task, and another speed."""
        train("monday", "charlm-rnn", "rnn-1gpu", range(100))
        train("friday", "charlm-transformer", "transformer-1gpu", range(100))
        found, lines = listed()

        assert found == {
            "charlm-rnn": {"monday": (["rnn-1gpu"], [(99, "ended", "closed")])},
            "charlm-transformer": {"friday": (["transformer-1gpu"], [(99, "ended", "closed")])},
        }
        assert lines == [
            "session charlm-rnn: 1 run(s), 1 attempt(s)",
            "  perf rnn-1gpu",
            "    run monday attempt 0, 1 of 1 rank(s), …, last step 99",
            "      ended: closed",
            "session charlm-transformer: 1 run(s), 1 attempt(s)",
            "  perf transformer-1gpu",
            "    run friday attempt 0, 1 of 1 rank(s), …, last step 99",
            "      ended: closed",
        ]

    def test_2_more_resources(self, train, listed):
        """The job ends, and runs again on more ranks: another task, and another speed."""
        train("small", "charlm-1", "1gpu", range(100))
        train("large", "charlm-2", "8gpu", range(100), world_size=8)
        found, lines = listed()

        assert found == {
            "charlm-1": {"small": (["1gpu"], [(99, "ended", "closed")])},
            "charlm-2": {"large": (["8gpu"], [(99, "ended", "closed")])},
        }
        assert [line for line in lines if "run " in line and "rank(s)" in line] == [
            "    run small attempt 0, 1 of 1 rank(s), …, last step 99",
            "    run large attempt 0, 1 of 8 rank(s), …, last step 99",
        ]
        assert [line for line in lines if line.startswith("  perf ")] == ["  perf 1gpu", "  perf 8gpu"]

    def test_3_system_update(self, train, listed):
        """The job ends, and runs again after an update of the system: another task that should perform alike."""
        train("before", "october", "1gpu", range(100))
        train("after", "november", "1gpu", range(100))
        found, lines = listed()

        assert found == {
            "october": {"before": (["1gpu"], [(99, "ended", "closed")])},
            "november": {"after": (["1gpu"], [(99, "ended", "closed")])},
        }
        assert [line for line in lines if not line.startswith("    ")] == [
            "session october: 1 run(s), 1 attempt(s)",
            "  perf 1gpu",
            "session november: 1 run(s), 1 attempt(s)",
            "  perf 1gpu",
        ]

    def test_4_fixed(self, train, listed):
        """It fails at iteration 100, is fixed without effect on its speed and resumes from 90: the same in both."""
        train("first", "charlm", "1gpu", range(101), fails=True)
        train("second", "charlm", "1gpu", range(90, 200))
        found, lines = listed()

        assert found == {
            "charlm": {
                "first": (["1gpu"], [(100, "ended", "FloatingPointError")]),
                "second": (["1gpu"], [(199, "ended", "closed")]),
            }
        }
        assert lines == [
            "session charlm: 2 run(s), 2 attempt(s)",
            "  perf 1gpu",
            "    run first attempt 0, 1 of 1 rank(s), …, last step 100",
            "      ended: FloatingPointError",
            "    run second attempt 0, 1 of 1 rank(s), …, last step 199",
            "      ended: closed",
        ]

    def test_4_restarted_by_the_launcher(self, train, listed):
        """If it is the launcher that starts it again, it is the same run too, and the next attempt."""
        train("job", "charlm", "1gpu", range(101), fails=True)
        train("job", "charlm", "1gpu", range(90, 200), attempt=1)
        found, lines = listed()

        assert found == {
            "charlm": {"job": (["1gpu"], [(100, "ended", "FloatingPointError"), (199, "ended", "closed")])}
        }
        assert lines[0] == "session charlm: 1 run(s), 2 attempt(s)"
        assert lines[2::2] == [
            "    run job attempt 0, 1 of 1 rank(s), …, last step 100",
            "    run job attempt 1, 1 of 1 rank(s), …, last step 199",
        ]

    def test_5_fixed_and_faster(self, train, listed):
        """The fix also makes it faster: the same task, and another speed."""
        train("first", "charlm", "1gpu", range(101), fails=True)
        train("second", "charlm", "1gpu-fused", range(90, 200))
        found, lines = listed()

        assert found == {
            "charlm": {
                "first": (["1gpu"], [(100, "ended", "FloatingPointError")]),
                "second": (["1gpu-fused"], [(199, "ended", "closed")]),
            }
        }
        assert lines == [
            "session charlm: 2 run(s), 2 attempt(s)",
            "  perf 1gpu",
            "    run first attempt 0, 1 of 1 rank(s), …, last step 100",
            "      ended: FloatingPointError",
            "  perf 1gpu-fused",
            "    run second attempt 0, 1 of 1 rank(s), …, last step 199",
            "      ended: closed",
        ]
