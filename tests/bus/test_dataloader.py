"""`log()` in the workers of torch's DataLoader."""

from __future__ import annotations

import collections
import itertools

import pytest

from trackside import replay
from trackside.events import SourceEnded, SourceStarted, UnknownEvent

pytestmark = pytest.mark.torch
ITEMS = 40


METHODS = ("fork", "spawn", "forkserver")
WORKERS = ("persistent", "passing")
FIRST = ("torch", "trackside")
# Each worker that is not forked imports torch anew: without --full, one of each kind, and each order of imports once.
SHORT = {
    ("fork", "persistent", "torch"),
    ("fork", "passing", "trackside"),
    ("spawn", "persistent", "trackside"),
    ("forkserver", "passing", "torch"),
}


class TestWorkers:
    @pytest.mark.parametrize("combination", list(itertools.product(METHODS, WORKERS, FIRST)), ids=" ".join)
    def test_attributed(self, run_script, tmp_path, scale, combination):
        """
        Two workers, started in any way and with torch or trackside imported first: neither hangs, and every event is
        recorded as that of its worker, a child of the main process.
        """
        if scale < 1.0 and combination not in SHORT:
            pytest.skip("with --full")
        method, persistent, first = combination
        epochs = 2 if method == "fork" or persistent == "persistent" or scale >= 1.0 else 1
        outcome = run_script(
            "dataloading.py", method, persistent, epochs, first, tmp_path, timeout_s=110, PYTHONWARNINGS="ignore"
        )
        assert (outcome.code, outcome.err) == (0, "")
        (main,) = outcome.printed
        by_source = collections.defaultdict(list)
        for one in replay(tmp_path):
            by_source[one.source].append(one)
        loaded = {
            source: [one.fields for one in events if isinstance(one, UnknownEvent)]
            for source, events in by_source.items()
        }
        workers = {source: fields for source, fields in loaded.items() if source.id != main["id"]}
        assert len(workers) == (2 if persistent == "persistent" else 2 * epochs)
        for source, fields in workers.items():
            assert source.role == "worker"
            assert (source.parent.source_id, source.run_id) == (main["id"], main["run_id"])
            assert len({one["worker"] for one in fields}) == 1
            assert type(by_source[source][0]) is SourceStarted
            assert type(by_source[source][-1]) is SourceEnded
        numbers = [one["number"] for fields in workers.values() for one in fields]
        assert sorted(numbers) == sorted([*range(ITEMS)] * epochs)
        (own,) = [fields for source, fields in loaded.items() if source.id == main["id"]]
        assert [one["number"] for one in own] == [-1] * epochs
