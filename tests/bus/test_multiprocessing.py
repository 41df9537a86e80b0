"""Children of multiprocessing flush at their end, though they run no atexit function."""

from __future__ import annotations

import functools
import multiprocessing
import operator

import pytest

from trackside.events import SourceEnded, SourceStarted, UnknownEvent
from trackside.wire import FrameDecoder

KINDS = {
    "fork": ["process", "exits", "fails", "imported late", "executor", "pool"],
    "spawn": ["process", "exits", "imported late", "pool"],
    "forkserver": ["process", "executor"],
}
ALL = [(method, kind) for method in multiprocessing.get_all_start_methods() for kind in KINDS[method]]


def events_in(path):
    data, decoder, events = path.read_bytes(), FrameDecoder(), []
    while data:
        size = 4 + int.from_bytes(data[:4], "big")
        events += decoder.decode(data[4:size]).events
        data = data[size:]
    return events


class TestChildren:
    @pytest.mark.parametrize(("method", "kind"), ALL)
    def test_complete(self, run_script, tmp_path, method, kind):
        """Each child's stream is complete, from its start to its end, and its sink was closed."""
        outcome = run_script("children.py", method, kind, tmp_path, PYTHONWARNINGS="ignore")
        assert outcome.code == 0
        if kind != "fails":
            assert outcome.err == ""
        streams = {}
        for path in tmp_path.glob("*.frames"):
            events = events_in(path)
            streams[path.stem] = [one.fields["number"] for one in events if isinstance(one, UnknownEvent)]
            assert (type(events[0]), type(events[-1])) == (SourceStarted, SourceEnded)
            assert path.with_suffix(".closed").exists()
        children = [numbers for numbers in streams.values() if numbers[0] == 0]
        # One worker of a pool may have done all the work.
        assert sorted(functools.reduce(operator.iadd, children, [])) == sorted([*range(50), *range(50)])
        assert len(streams) - len(children) == (kind != "imported late")


class TestGuard:
    @pytest.mark.hang_guard(60)
    def test_child_that_outlives_the_script(self, run_script):
        """A script whose child keeps its pipes is found to hang, and the child is ended too: the test goes on."""
        with pytest.raises(pytest.fail.Exception, match="hangs"):
            run_script("outliving.py", timeout_s=1.0)
