"""Some of many ranks die or stop: they are named, and no rank waits for them."""

from __future__ import annotations

import os
import signal
import time

import pytest

from trackside.events import RankFellSilent, RankSpokeAgain

pytestmark = [pytest.mark.once, pytest.mark.integration]

STEP = "test.step.taken"
SILENT_AFTER_S = 10.0


@pytest.mark.hang_guard(240)
def test_one_killed_and_one_stopped(collectors, jobs, scaled, until):
    """
    Of sixty-four ranks one is killed and one stopped: only these are named; the events of the others arrive meanwhile.
    """
    count = max(6, scaled(64))
    collector = collectors(silent_after_s=SILENT_AFTER_S)
    ranks = [
        jobs(publish=False, collector=collector.endpoint, insecure=True, models=False, rank=rank)
        for rank in range(count)
    ]
    for job in ranks:
        job.log(count=100)
    until(lambda: len(collector.heard(STEP)) == 100 * count)
    collector.events.clear()

    os.kill(ranks[1].pid, signal.SIGKILL)
    os.kill(ranks[-2].pid, signal.SIGSTOP)
    start_s = time.monotonic()
    others = [job for job in ranks if job not in {ranks[1], ranks[-2]}]
    for job in others:
        job.log(count=100)
    until(lambda: len(collector.heard(STEP)) == 100 * len(others))
    flowed_s = time.monotonic() - start_s
    until(lambda: len(collector.heard(RankFellSilent)) >= 2)
    named_s = time.monotonic() - start_s

    recorded = collector.heard(RankFellSilent)
    assert sorted(event.rank for event in recorded) == [1, count - 2]
    assert {event.step for event in recorded} == {99}
    assert all(event.silent_s >= SILENT_AFTER_S for event in recorded)
    os.kill(ranks[-2].pid, signal.SIGCONT)
    until(lambda: collector.heard(RankSpokeAgain))
    assert [event.rank for event in collector.heard(RankSpokeAgain)] == [count - 2]
    assert collector.totals()["silent"] == 1
    print(f"{count} ranks; the others' events came in {flowed_s:.2f} s, the two were named after {named_s:.2f} s")
    print(f"with silences of {[event.silent_s for event in recorded]} s")
