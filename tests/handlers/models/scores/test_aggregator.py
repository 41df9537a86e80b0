from __future__ import annotations

import json

import attrs
import msgpack
import pytest

from trackside.events import (
    ConfigError,
    DecodeError,
    GpuTimingUnavailable,
    Source,
    SpanEnded,
    StragglerReport,
    TrainingConfigured,
)
from trackside.handlers.models.scores import Missing, ScoreAggregator, Thresholds
from trackside.testing import recorded

pytestmark = pytest.mark.once


@pytest.fixture
def published():
    return []


@pytest.fixture
def aggregator(published):
    return ScoreAggregator(publish=published.append, relax=0.0)


@pytest.fixture
def feed(aggregator, source, section_window):
    """Feed one window: the median of each rank's one section, or all its medians."""

    def feed_window(window, medians, world=4, **given):
        for rank, median in medians.items():
            table = median if isinstance(median, dict) else {"s": median}
            aggregator(section_window(source(rank, world=world, **given), window, table))

    return feed_window


def revisions(published):
    return [(event.window, event.revision) for event in published]


class TestClosing:
    def test_all_in(self, feed, published):
        """A window closes with the last rank's."""
        feed(0, {0: 1, 1: 1, 2: 1})
        assert revisions(published) == []
        feed(0, {3: 1})
        assert revisions(published) == [(0, 4)]

    def test_others_past_it(self, feed, published):
        """A dead rank does not delay the report: the window closes when all the others are in the next one."""
        feed(0, {0: 1, 1: 1, 2: 1})
        feed(1, {0: 1, 1: 1})
        assert revisions(published) == []
        feed(1, {2: 1})
        assert revisions(published) == [(0, 3)]

    def test_few_do_not_close(self, feed, published):
        """Less than half of the ranks cannot close a window by going on to the next."""
        feed(0, {0: 1})
        feed(1, {0: 1})
        assert revisions(published) == []

    def test_far_ahead(self, feed, published):
        """A rank that is two windows ahead closes a window with few ranks."""
        feed(0, {0: 1})
        feed(1, {0: 1})
        feed(2, {0: 1})
        assert revisions(published) == [(0, 1)]

    def test_dead_rank_is_named(self, feed, aggregator):
        """A rank that was stopped is reported as silent, and the others are scored without it."""
        feed(0, {0: 1, 1: 1, 2: 2, 3: 1})
        feed(1, {0: 1, 1: 1, 2: 2})
        feed(2, {0: 1, 1: 1, 2: 2})
        report = aggregator.result().windows[1]
        assert report.is_closed
        assert report.relative.sections["s"] == [1.0, 1.0, 0.5, None]
        assert Missing(3, "all", "rank silent") in report.missing

    def test_measured_twice(self, feed, published):
        """A rank that goes through a window twice does not count as two ranks."""
        feed(0, {0: 1}, world=2)
        feed(0, {0: 1}, world=2)
        assert revisions(published) == []

    def test_new_attempt(self, feed, published):
        """The first window of the next attempt closes the open window of the one before."""
        feed(5, {0: 1, 1: 1})
        feed(5, {0: 1}, attempt=1)
        assert revisions(published) == [(5, 2)]


class TestAmending:
    def test_later_revision(self, feed, published):
        """A late rank amends the report under a higher revision, at once when it completes the window."""
        feed(0, {0: 2, 1: 2, 2: 2})
        feed(1, {0: 2, 1: 2, 2: 2})
        feed(0, {3: 1})
        assert revisions(published) == [(0, 3), (0, 4)]

    def test_scores_follow(self, feed, aggregator):
        """The amended scores are those of all ranks."""
        feed(0, {0: 2, 1: 2, 2: 2})
        feed(1, {0: 2, 1: 2, 2: 2})
        feed(0, {3: 1})
        assert aggregator.result().windows[0].relative.sections["s"] == [0.5, 0.5, 0.5, 1.0]

    def test_not_for_each_late_one(self, feed, published):
        """Late ranks that leave the window incomplete are published together, with the next new window."""
        feed(0, {0: 1, 1: 1}, world=8)
        feed(2, {0: 1}, world=8)
        feed(0, {2: 1, 3: 1}, world=8)
        assert revisions(published) == [(0, 2)]
        feed(3, {0: 1}, world=8)
        assert revisions(published) == [(0, 2), (0, 4)]

    def test_too_late(self, feed, aggregator):
        """A rank that comes when its window is no longer kept is counted."""
        for window in range(9):
            feed(window, {0: 1})
        feed(0, {1: 1})
        assert (aggregator.too_late, len(aggregator.result().windows)) == (1, 8)

    def test_leaving(self, source, section_window):
        """A callback gets the last report of each window that is no longer kept."""
        left = []
        aggregator = ScoreAggregator(keep=2, on_leave=left.append)
        for window in range(4):
            for rank, median in enumerate((1, 2)):
                aggregator(section_window(source(rank, world=2), window, {"s": median}))
        assert [(report.window, report.relative.sections["s"]) for report in left] == [(0, [1.0, 0.5]), (1, [1.0, 0.5])]

    def test_measured_again(self, feed, aggregator):
        """A window that a rank goes through again after a roll-back has the values of the second time."""
        feed(0, {0: 1, 1: 1}, world=2)
        feed(0, {1: 2}, world=2)
        report = aggregator.result().windows[0]
        assert (report.relative.sections["s"], report.revision) == ([1.0, 0.5], 3)


class TestPeers:
    def test_groups(self, source, section_window):
        """Ranks are compared with those of their own group."""
        aggregator = ScoreAggregator(group="stage", relax=0.0)
        for rank, (stage, median) in enumerate((("0", 10), ("0", 20), ("1", 100), ("1", 100))):
            aggregator(section_window(source(rank), 0, {"s": median}, groups={"stage": stage}))
        report = aggregator.result().windows[0]
        assert report.relative.sections["s"] == [1.0, 0.5, 1.0, 1.0]
        assert report.peers == ["0", "0", "1", "1"]

    def test_names_of_a_group(self, source, section_window):
        """A section that only one group has is common within it, and missing elsewhere."""
        aggregator = ScoreAggregator(group="stage")
        aggregator(section_window(source(0, world=2), 0, {"embed": 1}, groups={"stage": "0"}))
        aggregator(section_window(source(1, world=2), 0, {"head": 1}, groups={"stage": "1"}))
        report = aggregator.result().windows[0]
        assert report.relative.sections == {"embed": [1.0, None], "head": [None, 1.0]}
        assert Missing(0, "section head", "no samples") in report.missing

    def test_workers_are_no_ranks(self, aggregator, source, section_window):
        """Windows of a rank's worker processes are not the rank's."""
        aggregator(section_window(source(0, role="worker", id="w"), 0, {"s": 1}))
        assert aggregator.result().windows == []


class TestReasons:
    def test_gpu_off(self, aggregator, source, section_window):
        """The reason that a rank gives for lacking GPU times is quoted."""
        aggregator(recorded(GpuTimingUnavailable(reason="there is no GPU"), source=source(0, world=1)))
        aggregator(section_window(source(0, world=1), 0, {"s": 1}))
        assert aggregator.result().windows[0].missing == [Missing(0, "gpu", "off: there is no GPU")]

    def test_something_else_is_timed(self, aggregator, source, section_window):
        """A rank that times other work under the kernels' names has GPU times."""
        aggregator(
            recorded(
                GpuTimingUnavailable(reason="CUPTI is taken", instead="the sections' stretches of the stream"),
                source=source(0, world=1),
            )
        )
        aggregator(section_window(source(0, world=1), 0, {"a": 1.0}))
        assert aggregator.result().windows[0].missing == [Missing(0, "gpu", "no samples")]

    def test_excluded(self, aggregator, source, kernel_window):
        """A rank all of whose kernels are excluded has that as the reason."""
        aggregator(kernel_window(source(0, world=1), 0, {"ncclDevKernel": 5}))
        assert aggregator.result().windows[0].missing == [Missing(0, "gpu", "excluded")]

    def test_no_samples(self, aggregator, source, section_window):
        """A rank without kernels has no GPU score, for lack of samples."""
        aggregator(section_window(source(0, world=1), 0, {"s": 1}))
        assert aggregator.result().windows[0].missing == [Missing(0, "gpu", "no samples")]

    def test_not_common(self, aggregator, source, kernel_window):
        """Kernels that no peer has only lack a relative score."""
        aggregator(kernel_window(source(0, world=2), 0, {"a": 1}))
        aggregator(kernel_window(source(1, world=2), 0, {"b": 1}))
        assert aggregator.result().windows[0].missing == [
            Missing(0, "relative gpu", "not common to the peers"),
            Missing(1, "relative gpu", "not common to the peers"),
        ]

    @pytest.mark.parametrize("median", [0.0, -1.0, float("nan"), float("inf")])
    def test_impossible_median(self, aggregator, source, section_window, median):
        """A median that is no possible duration is no sample."""
        aggregator(section_window(source(0, world=1), 0, {"s": median, "t": 1}))
        assert aggregator.result().windows[0].relative.sections == {"t": [1.0]}

    def test_coverage(self, aggregator, source, kernel_window):
        """The coverage is the share of a rank's kernel time, NCCL's aside, in kernels that all peers have."""
        shared = {"k": (10, 10, 3), "ncclDevKernel": (1000, 1000, 1)}
        aggregator(kernel_window(source(0, world=2), 0, {**shared, "own": (10, 10, 1)}))
        aggregator(kernel_window(source(1, world=2), 0, shared))
        assert aggregator.result().windows[0].coverage == [0.75, 1.0]


class TestHistory:
    def test_relaxes(self, source, section_window):
        """A rank's best grows by the given share before each window."""
        aggregator = ScoreAggregator(relax=0.1)
        for window, median in enumerate((100, 200, 200)):
            aggregator(section_window(source(0, world=1), window, {"s": median}))
        scores = [report.individual.sections["s"][0] for report in aggregator.result().windows]
        assert scores == pytest.approx([1.0, 110 / 200, 121 / 200], rel=1e-12)

    def test_survives_restarts(self, feed, aggregator):
        """The next attempt is compared with the rank's best of the one before."""
        feed(0, {0: 10}, world=1)
        feed(1, {0: 20}, world=1, attempt=1)
        assert aggregator.result().windows[-1].individual.sections["s"] == [0.5]

    @pytest.mark.parametrize("best", [0, 1, 3])
    def test_survives_many_restarts(self, feed, aggregator, best):
        """The same holds after more attempts than are kept separately, whichever was the best."""
        for attempt in range(9):
            feed(attempt, {0: 10 if attempt == best else 20}, world=1, attempt=attempt)
        assert aggregator.result().windows[-1].individual.sections["s"] == [0.5]

    def test_many_restarts_under_another_tag(self, feed, aggregator):
        """Attempts that are no longer kept separately do not affect another kind of work."""
        for attempt in range(9):
            feed(attempt, {0: 20 if attempt else 10}, world=1, attempt=attempt, perf_tags=("b",) if attempt else ("a",))
        assert aggregator.result().windows[-1].individual.sections["s"] == [1.0]

    def test_relaxes_across_restarts(self, source, section_window):
        """The best of an earlier attempt decays with the windows of the later one."""
        aggregator = ScoreAggregator(relax=0.1)
        for attempt, window, median in ((0, 0, 100), (1, 1, 200), (1, 2, 200)):
            aggregator(section_window(source(0, world=1, attempt=attempt), window, {"s": median}))
        scores = [report.individual.sections["s"][0] for report in aggregator.result().windows]
        assert scores == pytest.approx([1.0, 110 / 200, 121 / 200], rel=1e-12)

    def test_earlier_attempt_comes_late(self, feed, aggregator):
        """Late windows of an earlier attempt change the published scores of a later one."""
        feed(1, {0: 20}, world=1, attempt=1)
        before = aggregator.result().windows[-1].individual.sections["s"]
        feed(0, {0: 10}, world=1)
        after = aggregator.result().windows[-1].individual.sections["s"]
        assert (before, after) == ([1.0], [0.5])

    def test_another_perf_tag(self, feed, aggregator):
        """Under another performance tag the work is another, and the history begins anew."""
        feed(0, {0: 10}, world=1, perf_tags=("small",))
        feed(1, {0: 20}, world=1, attempt=1, perf_tags=("large",))
        assert aggregator.result().windows[-1].individual.sections["s"] == [1.0]

    def test_perf_tag_of_the_training(self, feed, aggregator, source):
        """A training that is configured under another tag resets the history as well."""
        feed(0, {0: 10}, world=1)
        aggregator(recorded(TrainingConfigured(perf_tag=["large"]), source=source(0, world=1)))
        feed(1, {0: 20}, world=1)
        assert aggregator.result().windows[-1].individual.sections["s"] == [1.0]

    def test_names_come_and_go(self, feed, aggregator):
        """A section keeps its history through windows in which it did not run."""
        for window, table in enumerate(({"a": 10, "b": 5}, {"b": 5}, {"c": 1, "a": 20})):
            feed(window, {0: table}, world=1)
        assert aggregator.result().windows[-1].individual.sections == {"a": [0.5], "c": [1.0]}


MS = 1_000_000
STEPS = 100


@pytest.fixture
def feed_ms(aggregator, source, section_window):
    """
    Feed one window, with the median of each rank's one section in ms, or all its medians; steps take 10 ms.

    Each section has a shortest time of 1 ms, so that no rank is slow each time.
    """

    def feed_window(window, medians, *, shortest_ms=1.0, count=STEPS, **given):
        for rank, median in medians.items():
            table = median if isinstance(median, dict) else {"s": median}
            columns = {"min_ns": [shortest_ms * MS] * len(table), "counts": [count] * len(table)}
            times = {name: ms * MS for name, ms in table.items()}
            of_rank = source(rank, world=max(2, len(medians)), **given)
            aggregator(section_window(of_rank, window, times, **columns))

    return feed_window


@pytest.fixture
def timed(source, section_window):
    """Give a function that makes a rank's window of 100 steps that take so many ms each."""

    def make(rank, ranks, window, times, step_ms):
        bounds = {"start_ns": 0, "at_ns": STEPS * step_ms * MS}
        return section_window(source(rank, world=ranks), window, times, **bounds)

    return make


def relative(report):
    return [(one.rank, one.since_window, one.since_step) for one in report.stragglers if one.kind == "relative"]


class TestStragglers:
    def test_since(self, feed_ms, aggregator):
        """A rank is a straggler from its second slow window on, with the window and step since which it is slow."""
        found = []
        for window, median in enumerate((10, 10, 30, 30, 30)):
            feed_ms(window, {0: 10, 1: median})
            found.append(aggregator.latest().stragglers)
        assert found[:3] == [[], [], []]
        for later in found[3:]:
            assert {(one.rank, one.kind, one.what, one.since_window, one.since_step) for one in later} == {
                (1, "relative", "section s", 2, 200),
                (1, "individual", "section s", 2, 200),
            }

    def test_since_before_what_is_kept(self, feed_ms, aggregator):
        """The onset is known also after its window is gone."""
        for window in range(20):
            feed_ms(window, {0: 10, 1: 10 if window < 3 else 30})
        assert {one.since_window for one in aggregator.latest().stragglers} == {3}

    def test_moves_with_its_streak(self, source, section_window):
        """A model that goes on from another one's state counts the slow windows before, those not kept too."""
        aggregator = ScoreAggregator(keep=1)
        for window in range(3):
            for rank, median in ((0, 10), (1, 30)):
                aggregator(section_window(source(rank, world=2), window, {"s": median * MS}))
            moved = ScoreAggregator(keep=1)
            moved.load(aggregator.dump())
            aggregator = moved
        assert relative(aggregator.latest()) == [(1, 0, 0)]

    def test_recovered(self, feed_ms, aggregator):
        """For a rank that was fast in between, the onset is the later one."""
        for window, median in enumerate((30, 30, 10, 30, 30)):
            feed_ms(window, {0: 10, 1: median})
        assert {one.since_window for one in aggregator.latest().stragglers} == {3}

    def test_slow_each_time(self, feed_ms, aggregator):
        """A rank of which each time is longer than the reference's median is a straggler in its first window."""
        for window, shortest_ms in enumerate((10.0, 10.1)):
            feed_ms(window, {0: 10, 1: 30}, shortest_ms=shortest_ms, attempt=window, host=str(window))
        assert [relative(report) for report in aggregator.result().windows] == [[], [(1, 1, 100)]]

    def test_slow_a_few_times(self, feed_ms, aggregator):
        """Nineteen times are too few for that."""
        for window, count in enumerate((19, 20)):
            feed_ms(window, {0: 10, 1: 30}, shortest_ms=10.1, count=count, attempt=window, host=str(window))
        assert [relative(report) for report in aggregator.result().windows] == [[], [(1, 1, 100)]]

    def test_slower_than_before_each_time(self, feed_ms, aggregator):
        """A rank that is slower than it was is one in its second such window: all ranks may be so for a moment."""
        found = []
        for window, median in enumerate((10, 30, 30)):
            feed_ms(window, {0: median}, shortest_ms=10.1)
            found.append([(one.kind, one.since_window) for one in aggregator.result().windows[-1].stragglers])
        assert found == [[], [], [("individual", 1)]]

    def test_slow_in_turns(self, feed_ms, aggregator):
        """A rank that is slow in every other window is none: noise does that, too."""
        for window, median in enumerate((30, 10, 30, 10, 30)):
            feed_ms(window, {0: 10, 1: median})
            assert aggregator.latest().stragglers == []

    def test_missing_in_between(self, feed_ms, aggregator):
        """A window without a score neither begins nor ends a straggler's stretch."""
        feed_ms(0, {0: 10, 1: 30})
        feed_ms(1, {0: 10})
        assert aggregator.result().windows[1].stragglers == []
        feed_ms(2, {0: 10, 1: 30})
        assert relative(aggregator.latest()) == [(1, 0, 0)]

    def test_name_missing_in_between(self, feed_ms, aggregator):
        """Nor does one in which the section did not run."""
        feed_ms(0, {0: 10, 1: 30})
        feed_ms(1, {0: {"t": 1}, 1: {"t": 1}})
        feed_ms(2, {0: 10, 1: 30})
        assert relative(aggregator.latest()) == [(1, 0, 0)]

    def test_another_node(self, feed_ms, aggregator):
        """A rank that moved to another node has a new history there."""
        for window in range(2):
            feed_ms(window, {0: 10, 1: 30})
        for window in range(2):
            feed_ms(window, {0: 10, 1: 30}, attempt=1, host="elsewhere")
        assert {(one.node, one.since_window) for one in aggregator.latest().stragglers} == {("elsewhere", 0)}
        assert [report.stragglers for report in aggregator.result().windows][2] == []

    def test_moved_away_and_back(self, feed_ms, aggregator):
        """Back on the first node its history begins anew, too."""
        for attempt, host in enumerate(("a", "b", "a")):
            feed_ms(attempt, {0: 10, 1: 30}, attempt=attempt, host=host)
        assert aggregator.latest().stragglers == []

    def test_moved_without_a_score(self, feed_ms, aggregator):
        """If the rank ran elsewhere meanwhile, a missing score does not bridge the gap."""
        for attempt, (host, name) in enumerate((("a", "s"), ("b", "t"), ("a", "s"))):
            feed_ms(attempt, {0: {name: 10}, 1: {name: 30}}, attempt=attempt, host=host)
        assert aggregator.latest().stragglers == []

    def test_lost_seconds(self, aggregator, source, section_window):
        """
        At 3 s instead of 2 s, entered 200 times in 100 steps, a step takes 2 s too long.
        """
        for window in range(2):
            for rank, median in enumerate((2e9, 3e9)):
                aggregator(section_window(source(rank, world=2), window, {"s": median}, entries=200))
        (found,) = aggregator.latest().stragglers
        assert found.lost_s_per_step == pytest.approx(2.0, rel=1e-12)

    def test_lost_seconds_of_a_gpu(self, aggregator, source, kernel_window):
        """
        Ten launches of 2 s instead of 1 s in 100 steps cost 0.1 s a step.
        """
        for window in range(2):
            for rank, median in enumerate((1e9, 2e9)):
                aggregator(kernel_window(source(rank, world=2), window, {"k": median}))
        (found,) = aggregator.result().windows[1].stragglers
        assert found.lost_s_per_step == pytest.approx(0.1, rel=1e-12)

    @pytest.mark.parametrize(
        ("ranks", "lengths_ms", "named"),
        [
            pytest.param(2, (10, 0.9), [], id="less than a millisecond"),
            pytest.param(2, (10, 1.1), [0], id="more than a millisecond, 11 % of a step"),
            pytest.param(2, (100, 7.9), [], id="7.9 % of a step of two ranks"),
            pytest.param(2, (100, 8.1), [0], id="8.1 % of it"),
            pytest.param(8, (100, 3.9), [], id="3.9 % of a step of eight ranks"),
            pytest.param(8, (100, 4.1), [0], id="4.1 % of it"),
        ],
    )
    def test_least_cost(self, timed, aggregator, ranks, lengths_ms, named):
        """A short section that takes five times as long makes no straggler if that costs next to nothing."""
        step_ms, late_ms = lengths_ms
        times_ms = {rank: late_ms / 4 if rank else late_ms * 5 / 4 for rank in range(ranks)}
        for window in range(2):
            for rank, ms in times_ms.items():
                aggregator(timed(rank, ranks, window, {"s": ms * MS}, step_ms))
        assert [one.rank for one in aggregator.latest().stragglers] == named

    def test_all_slower_than_before(self, feed_ms, aggregator):
        """Ranks that all became slower than they were are no stragglers; one that became slower than the others is."""
        feed_ms(0, {0: 10, 1: 10, 2: 10})
        for window in (1, 2):
            feed_ms(window, {0: 20, 1: 20, 2: 24})
        assert aggregator.latest().individual.sections["s"] == [0.5, 0.5, 10 / 24]
        assert aggregator.latest().stragglers == []
        for window in (3, 4):
            feed_ms(window, {0: 20, 1: 21, 2: 40})
        # 10/40 over the middle of 10/20 and 10/21 is 0.51.
        assert [(one.rank, one.kind) for one in aggregator.latest().stragglers] == [(2, "individual"), (2, "relative")]

    def test_exchange_by_its_name(self, feed_ms, aggregator):
        """A rank that is long where ranks wait for each other is no straggler, though no section says that they do."""
        for window in range(2):
            feed_ms(window, {0: {"all_reduce": 26, "forward": 5}, 1: {"all_reduce": 1, "forward": 30}})
        assert [(one.rank, one.what) for one in aggregator.latest().stragglers] == [(1, "section forward")]

    def test_thresholds_while_running(self, feed_ms, aggregator):
        """Thresholds can be changed at any time, and hold from then on."""
        for window in range(2):
            feed_ms(window, {0: 10, 1: 12})
        assert aggregator.latest().stragglers == []
        aggregator.thresholds = Thresholds(section_relative=0.9)
        assert [one.rank for one in aggregator.latest().stragglers] == [1]

    def test_worst_first(self, feed_ms, aggregator):
        """The slowest come first."""
        for window in range(2):
            feed_ms(window, {0: 10, 1: 20, 2: 40, 3: 30})
        assert [one.rank for one in aggregator.latest().stragglers] == [2, 3, 1]


class TestWaiting:
    @pytest.fixture
    def report(self, aggregator, source, section_window):
        """Give a window in which rank 1 is slow, and the others wait for it."""
        for number in range(2):
            for rank, (work, wait) in enumerate(((1e9, 2e9), (3e9, 0.5e9))):
                times = {"work": work, "exchange": wait}
                aggregator(section_window(source(rank, world=2), number, times, waits=["exchange"]))
        return aggregator.latest()

    def test_is_not_scored(self, report):
        """Sections of waiting have no scores: a rank that waits is not slow."""
        assert report.relative.sections == {"work": [1.0, 1 / 3]}
        assert [(one.rank, one.what) for one in report.stragglers] == [(1, "section work")]

    def test_seconds(self, report):
        """The wait of each rank is reported per step: 100 entries in 100 steps."""
        assert report.waited_s_per_step == [2.0, 0.5]

    def test_on_the_gpu(self, aggregator, source, kernel_window):
        """
        The time in NCCL's kernels, which wait on the device, is reported per step: 10 launches of 2 s in 100 steps.
        """
        for rank, nccl_ns in enumerate((2e9, 1e9)):
            aggregator(kernel_window(source(rank, world=2), 0, {"gemm": 5e9, "ncclDevKernel_AllReduce": nccl_ns}))
        assert aggregator.result().windows[0].left_out_s_per_step == [0.2, 0.1]

    def test_no_kernels(self, report):
        """Without kernels the wait is unknown, and not 0."""
        assert report.left_out_s_per_step == [None, None]

    def test_dumped(self, aggregator, report):
        """The wait is part of the state."""
        other = ScoreAggregator(relax=0.0)
        other.load(aggregator.dump())
        assert other.latest() == report


class TestInput:
    def test_derived_events(self, feed, aggregator, published):
        """Derived events are not read."""
        feed(0, {0: 1, 1: 1, 2: 1, 3: 1})
        before = aggregator.result()
        aggregator(published[0])
        assert aggregator.result() == before

    def test_other_events(self, aggregator):
        """Other events change nothing."""
        aggregator(SpanEnded(span_id=1, parent_span_id=0, name="s", duration_ns=1))
        assert aggregator.result().windows == []

    def test_columns_of_unequal_length(self, aggregator, source, section_window):
        """A window whose columns do not fit together is refused, and counted."""
        event = section_window(source(0), 0, {"a": 1, "b": 2})
        event.median_ns = [1.0]
        aggregator(event)
        assert (aggregator.result().windows, aggregator.result().malformed) == ([], 1)

    def test_name_twice(self, aggregator, source, section_window):
        """So is a window that names a section twice."""
        event = section_window(source(0), 0, {"a": 1, "b": 2})
        event.names[1] = "a"
        aggregator(event)
        assert (aggregator.result().windows, aggregator.result().malformed) == ([], 1)

    def test_impossible_rank(self, aggregator, source, section_window):
        """An impossible rank is refused, and counted."""
        aggregator(section_window(source(1 << 30), 0, {"a": 1}))
        assert aggregator.result().malformed == 1

    def test_impossible_world(self, aggregator, source, section_window):
        """A world of two billion ranks does not make a report of two billion."""
        aggregator(section_window(source(1, world=(1 << 31) - 1), 0, {"a": 1}))
        assert aggregator.result().windows[0].ranks == [0, 1]

    def test_missed(self, aggregator):
        """Missed events are in the result."""
        aggregator.missed(Source.unknown(""), 3)
        assert aggregator.result().missed == 3

    @pytest.mark.parametrize(
        "given",
        [{"kinds": ["absolute"]}, {"kinds": "relative"}, {"relax": 1.0}, {"relax": -0.1}, {"keep": 0}],
    )
    def test_settings(self, given):
        """A setting out of its range is refused by name."""
        with pytest.raises(ConfigError, match=next(iter(given))):
            ScoreAggregator(**given)

    @pytest.mark.parametrize("value", [-0.1, float("nan"), True, "0.75"])
    def test_thresholds(self, value):
        """So is a threshold that is no score."""
        with pytest.raises(ConfigError, match="gpu_relative"):
            Thresholds(gpu_relative=value)


class TestResult:
    def test_json(self, feed, aggregator):
        """The result is plain data."""
        feed(0, {0: 10, 1: 20}, world=3)
        text = json.dumps(attrs.asdict(aggregator.result()), allow_nan=False)
        assert json.loads(text)["windows"][0]["relative"]["sections"] == {"s": [1.0, 0.5, None]}

    def test_summaries(self, source, section_window, kernel_window):
        """The full statistics of one rank can be kept."""
        aggregator = ScoreAggregator(summaries_of=1)
        for rank in range(2):
            aggregator(kernel_window(source(rank, world=2), 0, {"k": (4, 5, 6)}))
            aggregator(section_window(source(rank, world=2), 0, {"s": 7 + rank}))
        assert aggregator.latest().summaries == {
            "sections": {"s": {"count": 100, "min": 8, "max": 8, "median": 8, "mean": 8, "std": 0}},
            "kernels": {"k": {"count": 6, "min": 4, "max": 4, "median": 4, "mean": 5, "std": 0}},
        }


class TestDump:
    @pytest.fixture
    def full(self, aggregator, feed, source, kernel_window):
        """Give a model that has read every kind of event."""
        for window in range(12):
            for rank in range(4):
                aggregator(kernel_window(source(rank), window, {"k": 10 * (rank + 1), "ncclDev": 3}))
            feed(window, {0: 10, 1: 10, 2: 10 + window, 3: {"s": 10, "t": 5}})
        feed(12, {0: 10}, attempt=1)
        aggregator.missed(Source.unknown(""), 2)
        return aggregator

    def test_same_result(self, full):
        """Loaded elsewhere, the state gives the same result."""
        other = ScoreAggregator(relax=0.0)
        other.load(full.dump())
        assert other.result() == full.result()

    def test_plain_data(self, full):
        """The dumped state is plain data: it survives msgpack."""
        other = ScoreAggregator(relax=0.0)
        other.load(msgpack.unpackb(msgpack.packb(full.dump())))
        assert other.result() == full.result()

    def test_goes_on(self, full, source, section_window):
        """Later events have the same effect on the loaded model."""
        other = ScoreAggregator(relax=0.0)
        other.load(full.dump())
        for rank in range(4):
            event = section_window(source(rank, attempt=1), 13, {"s": 15})
            full(event)
            other(event)
        assert other.result() == full.result()

    def test_not_published_again(self, full):
        """Reports that the first model published are not published again."""
        published = []
        other = ScoreAggregator(publish=published.append, relax=0.0)
        other.load(full.dump())
        assert published == []

    @pytest.mark.parametrize("data", [{}, {"version": 1}, {"version": 2, "ranks": 7}, None, []])
    def test_something_else(self, data):
        """Data that is no dumped state is refused, and leaves an empty model."""
        other = ScoreAggregator()
        with pytest.raises(DecodeError):
            other.load(data)
        assert other.result().windows == []


class TestOnReport:
    def test_without_events(self, source, section_window):
        """A handler that wants reports instead of events gets each when it closes, and when it is amended."""
        recorded = []
        aggregator = ScoreAggregator(on_report=recorded.append)
        for window in range(2):
            aggregator(section_window(source(0, world=2), window, {"a": 1.0}))
        aggregator(section_window(source(1, world=2), 0, {"a": 1.0}))
        assert [(report.window, report.revision) for report in recorded] == [(0, 1), (0, 2)]


class TestReportEvents:
    def test_is_derived(self, feed, published):
        """The report is a derived event."""
        feed(0, {0: 1, 1: 1, 2: 1, 3: 1})
        assert type(published[0]) is StragglerReport
        assert published[0].derived

    def test_time(self, feed, published):
        """Its time is that of the window's last event."""
        feed(0, {0: 1, 1: 1, 2: 1, 3: 1})
        assert published[0].at_ns == 1_000_000_000
