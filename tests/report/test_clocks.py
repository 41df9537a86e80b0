"""The alignment of many clocks."""

from __future__ import annotations

import random

import pytest

from trackside.events import ClockAnchored, IterationEnded, Parent, Source
from trackside.report._trace import Readings, align

pytestmark = pytest.mark.once

S = 10**9
START_NS = 1_700_000_000 * S
STEP_NS = S // 2
STEPS = 600
OFFSET_NS = 3 * S
DRIFT = 200e-6
MS = 1_000_000


def wrong(true_ns):
    """Return the time of a process that began 3 s ahead, and whose clock is 200 ppm too slow."""
    return round(true_ns + OFFSET_NS - DRIFT * (true_ns - START_NS))


def right(true_ns):
    return true_ns


def readings(rank, own, wall, *, jitter_ns=0, every=120, seed=0, **reported):
    """
    Return the events of a rank that reads *own* for its time and *wall* for the wall clock's; None reads no clock.
    """
    rng = random.Random(seed)
    source = Source(**{"id": str(rank), "run_id": "run", "rank": rank, "world_size": 2, **reported})
    found = Readings(source)
    for step in range(STEPS):
        true_ns = START_NS + (step + 1) * STEP_NS
        if wall is not None and not step % every:
            ahead_ns = wall(true_ns) - own(true_ns)
            anchor = {"wall_ns": wall(true_ns), "offset_ns": ahead_ns, "uncertainty_ns": 50}
            found.add(ClockAnchored(at_ns=own(true_ns), mono_ns=0, **anchor))
        ended_ns = own(true_ns + round(abs(rng.gauss(0, jitter_ns))))
        found.add(IterationEnded(at_ns=ended_ns, step=step, duration_ns=STEP_NS))
    return found


def furthest(found, source_id, own):
    """Return the largest error of the alignment."""
    return max(abs(found[source_id].apply(own(START_NS + at * S)) - (START_NS + at * S)) for at in range(300))


class TestByClock:
    def test_offset_and_drift(self):
        """Three seconds and 200 ppm, which the readings of the wall clock show, are corrected to a microsecond."""
        found = align([readings(0, right, right), readings(1, wrong, right)])
        assert furthest(found, "1", wrong) < 1_000
        assert found["1"].by == "clock"

    def test_set_by_hand(self):
        """If a wall clock was set in between, its earlier readings are corrected by the size of the jump."""

        def set_late(true_ns):
            return true_ns + (OFFSET_NS if true_ns < START_NS + 100 * S else 0)

        found = align([readings(0, lambda true_ns: true_ns + OFFSET_NS, set_late)])
        assert furthest(found, "0", lambda true_ns: true_ns + OFFSET_NS) < MS

    def test_one_reading(self):
        """One reading gives the offset of the process, and no drift."""
        own = readings(0, lambda true_ns: true_ns + OFFSET_NS, right, every=STEPS)
        assert furthest(align([own]), "0", lambda true_ns: true_ns + OFFSET_NS) == 0

    def test_worker(self):
        """A worker that reads no clock has that of the process that started it."""
        worker = readings(0, wrong, None, id="w", role="worker", parent=Parent("1", 0))
        found = align([readings(1, wrong, right), worker])
        assert furthest(found, "w", wrong) < 1_000


class TestBySteps:
    def test_wall_clocks_disagree(self):
        """
        An error that no reading shows, the ends of steps show: a machine whose wall clock itself is off is moved, to 1
        ms.
        """
        first = readings(0, right, right, jitter_ns=300_000, seed=1)
        found = align([first, readings(1, wrong, wrong, jitter_ns=300_000, seed=2)])
        assert furthest(found, "1", wrong) < MS
        assert found["1"].by == "steps"
        assert "+3.000 s off" in found["1"].note

    def test_one_machine(self):
        """Of two ranks on one host, whose steps end 20 ms apart, neither is moved: there is one wall clock."""
        late = readings(1, lambda true_ns: true_ns + 20 * MS, right, host="node1")
        late.ends_ns = {step: at_ns + 20 * MS for step, at_ns in late.ends_ns.items()}
        found = align([readings(0, right, right, host="node1"), late])
        assert (found["1"].by, found["1"].note) == ("clock", "")

    def test_without_readings(self):
        """A rank that reads no clock is aligned by its steps alone."""
        found = align([readings(0, right, right), readings(1, wrong, None)])
        assert furthest(found, "1", wrong) < MS

    def test_late_ranks(self):
        """A rank that always ends its steps 4 ms after the others is late, and its clock is right."""
        late = readings(1, right, right, jitter_ns=4 * MS)
        assert furthest(align([readings(0, right, right), late]), "1", right) == 0

    def test_ranks_that_do_not_wait(self):
        """Ranks that do not train together are not aligned by the ends of their steps."""
        alone = readings(1, lambda true_ns: round(START_NS + 1.1 * (true_ns - START_NS)), None)
        assert align([readings(0, right, right), alone])["1"].by == "none"

    @pytest.mark.parametrize("reported", [{"run_id": "another"}, {"attempt": 1}])
    def test_others(self, reported):
        """Only ranks of one attempt of one run train together."""
        assert align([readings(0, right, right), readings(1, wrong, None, **reported)])["1"].by == "none"
