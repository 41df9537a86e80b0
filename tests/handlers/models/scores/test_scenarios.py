"""The scenarios of the report generator's tests in nvidia-resiliency-ext, with its results."""

from __future__ import annotations

import attrs
import pytest

from trackside.handlers.models.scores import ScoreAggregator

pytestmark = pytest.mark.once


def approx(values):
    return [None if value is None else pytest.approx(value, rel=1e-9) for value in values]


@pytest.fixture
def scored(source, kernel_window, section_window):
    """Return the latest report on the kernels of some ranks, given as one table for each window."""

    def score(*windows, world=None, **options):
        aggregator = ScoreAggregator(relax=0.0, **options)
        for number, ranks in enumerate(windows):
            for rank, kernels in enumerate(ranks):
                where = source(rank, world=world or len(ranks))
                aggregator(kernel_window(where, number, kernels))
                aggregator(section_window(where, number, {}))
        return aggregator.result().windows[-1]

    return score


class TestRelativeGpuScores:
    @pytest.mark.parametrize(
        ("ranks", "expected"),
        [
            ([{"k0": 5, "k1": 7}], [1.0]),
            ([{"k0": 10 * (r + 1), "k1": 20 * (r + 1)} for r in range(4)], [1.0, 1 / 2, 1 / 3, 1 / 4]),
            (
                [{"k1": 20 * (r + 1), "ncclDevKernel_AllReduce": 9 - r, "k0": 10 * (r + 1)} for r in (2, 0, 3, 1)],
                [1 / 3, 1.0, 1 / 4, 1 / 2],
            ),
            ([{"k0": 10 * (r + 1), f"own{r}": 5} for r in range(4)], [1.0, 1 / 2, 1 / 3, 1 / 4]),
            ([{f"own{r}": 5} for r in range(4)], [None] * 4),
            ([{"k0": 5}, {"k0": 5}, {}, {"k0": 5}], [None] * 4),
            ([{}, {}], [None, None]),
            ([{"ncclDevKernel_AllReduce": 5}, {"ncclDevKernel_AllReduce": 10}], [None, None]),
        ],
        ids=[
            "one rank",
            "four ranks",
            "nccl, shuffled",
            "some common",
            "none common",
            "one without kernels",
            "all without",
            "nccl alone",
        ],
    )
    def test_scores(self, scored, ranks, expected):
        """A rank's GPU is compared, kernel by kernel, with the fastest of all that have the kernel."""
        assert scored(ranks).relative.gpu == approx(expected)

    def test_order_of_kernels(self, scored):
        """The order in which a rank lists its kernels makes no difference."""
        assert scored([{"a": 1, "b": 2}, {"b": 4, "a": 2}]).relative.gpu == approx([1.0, 0.5])


class TestIndividualGpuScores:
    @pytest.mark.parametrize(
        ("windows", "expected"),
        [
            (({"k": 8},), 1.0),
            (({"k": 8}, {"k": 10}), 0.8),
            (({"k": 8}, {"k": 16}), 0.5),
            (({"k": 8}, {"k": 24}), 1 / 3),
            (({"k": 8, "m": 4}, {"k": 16}), 0.5),
            (({"k": 8}, {}), None),
            (({"k": 8}, {"new": 5}), 1.0),
            (({"k": 8}, {"k": 4}), 1.0),
            (({"k": 8}, {"k": 4}, {"k": 8}), 0.5),
            # (1/2 of 160 + 1 of 50) of 210
            (({"k": 8}, {"k": 16, "new": 5}), 130 / 210),
        ],
        ids=[
            "first",
            "1.25 times",
            "2 times",
            "3 times",
            "one missing",
            "all missing",
            "new alone",
            "new minimum",
            "back",
            "new beside",
        ],
    )
    def test_scores(self, scored, windows, expected):
        """A GPU is compared with its own best; new or missing kernels do not lower its score."""
        assert scored(*([window] for window in windows)).individual.gpu == approx([expected])

    def test_four_ranks(self, scored):
        """Each of four ranks is compared with itself alone."""
        first = [{"k": 10 * (rank + 1)} for rank in range(4)]
        second = [{"k": 10 * (rank + 1) * factor} for rank, factor in enumerate((1, 2, 1, 4))]
        assert scored(first, second).individual.gpu == approx([1.0, 0.5, 1.0, 0.25])

    def test_off(self, scored):
        """Scores that were not requested are empty, and marked as off."""
        report = scored([{"k": 1}], kinds=["individual"])
        assert (report.relative.gpu, report.relative.sections, report.off) == ([], {}, ["relative"])


class TestSections:
    @pytest.fixture
    def scored(self, source, section_window):
        """Return the latest report on the sections of some ranks, given as one table for each window."""

        def score(*windows):
            aggregator = ScoreAggregator(relax=0.0)
            for number, ranks in enumerate(windows):
                for rank, medians in enumerate(ranks):
                    aggregator(section_window(source(rank, world=len(ranks)), number, medians))
            return aggregator.result().windows[-1]

        return score

    @pytest.mark.parametrize(
        ("slow", "sections"),
        [
            ((), ()),
            ((2,), ("one",)),
            ((1, 3), ("one",)),
            ((0, 1), ("one", "two")),
        ],
    )
    def test_relative(self, scored, slow, sections):
        """Ranks that take 15 ms where others take 10 are found, in the sections where they do, and no others."""
        ranks = [
            {name: 15e6 if rank in slow and name in sections else 10e6 for name in ("one", "two")} for rank in range(4)
        ]
        found = scored(ranks).identify_stragglers()
        assert {name: {one.rank for one in ids} for name, ids in found["straggler_sections_relative"].items()} == {
            name: set(slow) for name in sections
        }
        assert found["straggler_sections_individual"] == {}

    @pytest.mark.parametrize(
        ("slow", "sections"),
        [
            ((), ()),
            ((2,), ("one",)),
            ((1, 3), ("two",)),
            ((0, 1), ("one", "two")),
        ],
    )
    def test_individual(self, scored, slow, sections):
        """Ranks whose second half is slower than their first are found by their own past, even if all four are."""
        before = [dict.fromkeys(("one", "two"), 10e6) for _ in range(4)]
        after = [
            {name: 15e6 if rank in slow and name in sections else 10e6 for name in ("one", "two")} for rank in range(4)
        ]
        found = scored(before, after).identify_stragglers()
        assert {name: {one.rank for one in ids} for name, ids in found["straggler_sections_individual"].items()} == {
            name: set(slow) for name in sections
        }

    def test_missing_on_one(self, scored):
        """A section that one rank lacks has no relative score on any rank, and the reason is given."""
        report = scored([{"a": 1, "b": 1}, {"a": 2}])
        assert report.relative.sections == {"a": approx([1.0, 0.5]), "b": [None, None]}
        assert [attrs.astuple(recorded) for recorded in report.missing if "section" in recorded.what] == [
            (0, "relative section b", "not common to the peers"),
            (1, "section b", "no samples"),
        ]


class TestIdentifyStragglers:
    def test_four_keys(self, scored):
        """All four keys are there, with or without stragglers."""
        assert scored([{"k": 1}]).identify_stragglers() == {
            "straggler_gpus_relative": set(),
            "straggler_gpus_individual": set(),
            "straggler_sections_relative": {},
            "straggler_sections_individual": {},
        }

    def test_strictly_below(self, scored):
        """A score at the threshold is no straggler's; one below is."""
        report = scored([{"k": 3}, {"k": 4}])
        assert report.relative.gpu == [1.0, 0.75]
        assert report.identify_stragglers(gpu_rel_threshold=0.75)["straggler_gpus_relative"] == set()
        assert report.identify_stragglers(gpu_rel_threshold=0.76)["straggler_gpus_relative"] == {(1, "node0")}

    def test_missing_is_never_one(self, scored):
        """A missing score is below no threshold."""
        report = scored([{"a": 1}, {"b": 1}])
        assert report.identify_stragglers(gpu_rel_threshold=9.0)["straggler_gpus_relative"] == set()
