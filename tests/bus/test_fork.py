"""A forked child has a bus of its own, whatever the parent's threads were doing."""

from __future__ import annotations

import os

import pytest

from trackside.events import SourceEnded, SourceStarted, UnknownEvent
from trackside.wire import FrameDecoder

FORKS = 200
MOMENTS = [
    "idle",
    "inside log",
    "dispatcher drains",
    "dispatcher starts",
    "handlers leave",
    "counters",
    "windows",
    "sink",
    "all log",
    "all flush",
    "all subscribe",
    "all read",
]

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")


def streams_in(directory):
    """Return the decoded frames of each file."""
    streams = {}
    for path in directory.glob("*.frames"):
        data, decoder, frames = path.read_bytes(), FrameDecoder(), []
        while data:
            size = 4 + int.from_bytes(data[:4], "big")
            frames.append(decoder.decode(data[4:size]))
            data = data[size:]
        streams[path.stem] = frames
    return streams


class TestWorstMoments:
    @pytest.mark.parametrize("moment", MOMENTS)
    def test_children_and_parent(self, run_script, tmp_path, scaled, moment):
        """
        200 children, forked while other threads are inside the bus or hold its locks, each log a hundred events to
        their own file as themselves and end well; the parent's stream is as if nothing had been.
        """
        forks = scaled(FORKS)
        outcome = run_script("forking.py", moment, forks, tmp_path, timeout_s=110, PYTHONWARNINGS="ignore")
        assert outcome.err == ""
        (printed,) = outcome.printed
        assert outcome.code == 0
        assert printed["codes"] == [0] * forks
        assert printed["balances"] == [0] * len(printed["balances"])
        streams = streams_in(tmp_path)
        assert len(streams) == 1 + forks
        for name, frames in streams.items():
            events = [one for frame in frames for one in frame.events]
            assert type(events[0]) is SourceStarted
            assert type(events[-1]) is SourceEnded
            assert [frame.first_seq for frame in frames[1:]] == [frame.last_seq + 1 for frame in frames[:-1]]
            assert (tmp_path / f"{name}.closed").exists()
            assert {one.source.id for one in events} == {name}
            # The script's event class is not known here.
            ticked = [one.fields for one in events if isinstance(one, UnknownEvent) and one.fields["pid"]]
            numbers = [fields["number"] for fields in ticked]
            if name == printed["source"]:
                assert numbers == list(range(printed["logged"]))
                assert events[0].source.role == printed["role"] == "main"
            else:
                assert numbers == list(range(100))
                assert events[0].source.role == "worker"
                assert events[0].source.parent.source_id == printed["source"]
                assert {fields["pid"] for fields in ticked} == {events[0].source.pid}


class TestVariants:
    @pytest.fixture
    def printed_by(self, run_script):
        """Give a function that runs a variant and returns the values that its processes printed, in order."""

        def run(variant):
            outcome = run_script("forking_variants.py", variant, PYTHONWARNINGS="ignore")
            assert (outcome.code, outcome.err) == (0, "")
            return outcome.printed

        return run

    def test_dropped_buses(self, printed_by):
        """A thousand buses that were made and dropped leave nothing behind that breaks a fork."""
        assert printed_by("many_dropped") == [{"forked": True}]

    def test_switched_off(self, printed_by):
        """With ``TRACKSIDE_FORK=off`` the bus is closed in the child, its sinks untouched; the parent's goes on."""
        child, parent = printed_by("switched_off")
        assert child == {
            "got": 1,
            "wants": False,
            "after_close": 1,
            "closed": True,
            "untouched": True,
            "close": True,
        }
        assert parent == {"got": 2, "wants": True, "after_close": 0}

    def test_lazily(self, printed_by):
        """A child that logs nothing opens no file and records nothing."""
        assert printed_by("lazily") == [{"opened": 0, "new_frames": 0, "after_forks": 1}]

    def test_identity(self, printed_by):
        """A child's source names its parent, also if the parent had logged nothing yet."""
        assert printed_by("identity") == [
            {"role": "worker", "parent": True, "run": True, "other_id": True, "pid": True}
        ]

    def test_own_source(self, printed_by):
        """A bus with a source of its own goes on as that source's child."""
        assert printed_by("own_source") == [{"run": "mine", "role": "worker", "parent": True, "same": True}]

    def test_subscriptions(self, printed_by):
        """Subscriptions from before the fork can be read and closed in the child, and models do not die there."""
        printed = printed_by("subscriptions")
        assert printed[0] == {
            "before": [0, 0],
            "after": [1, 1],
            "closed": [False, True, False],
            "got": 4,
            "wanted": False,
        }
        assert {"dropped_in_child": True} not in printed

    def test_within_a_handler(self, printed_by):
        """A plain callable may fork: the child's bus works inside of it, and the parent goes on."""
        child, parent = printed_by("within_a_handler")
        assert child == {"numbers": [2], "balance": 0}
        assert parent == {"parent": [1], "balance": 0}

    def test_broken_sink(self, run_script):
        """A frame sink whose ``after_fork`` raises is left behind and reported; the others work."""
        outcome = run_script("forking_variants.py", "broken_sink", PYTHONWARNINGS="ignore")
        assert outcome.code == 0
        assert outcome.printed == [{"flushed": True, "frames": 1, "handlers": 1}]
        assert "ValueError: not me" in outcome.err

    def test_generations(self, printed_by):
        """A grandchild's parent is the child."""
        assert printed_by("generations") == [{"flushed": True, "parent": True}]
