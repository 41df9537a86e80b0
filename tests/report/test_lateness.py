"""The ranks that are late, and the probability that they are late by chance."""

from __future__ import annotations

import itertools
import math
import random

import pytest

from trackside.report._lateness import (
    ALLOWANCE,
    _best_stretch,
    _pulls,
    aligned_scores,
    dependence,
    find_late,
    late_in_turn,
    student,
)

pytestmark = pytest.mark.once

MS = 1e6
STEP_MS = 50.0


def simulate(seed, *, ranks, steps, late=0.0, since=0, noise=0.1, stalls=0.02, lasts=0.0, part=1.0):
    """
    Return each rank's time in a *part* of its steps, all of them unless given, in ns.

    The machine's speed wanders for all ranks together. Each rank has lognormal *noise* of its own, of which the share
    *lasts* is that of the step before, and stalls of random length (Pareto, up to 20 steps) in the share *stalls*.
    Rank 1 is longer by the share *late* of a step.
    """
    rng = random.Random(seed)
    rows = [[] for _ in range(ranks)]
    machine, own = 0.0, [0.0] * ranks
    for step in range(steps):
        machine = 0.9 * machine + rng.gauss(0, 0.13)
        for rank, row in enumerate(rows):
            own[rank] = lasts * own[rank] + rng.gauss(0, noise * math.sqrt(1 - lasts**2))
            took_ms = part * STEP_MS * math.exp(machine + own[rank])
            took_ms += STEP_MS * min(20.0, rng.paretovariate(1.2)) * (rng.random() < stalls)
            row.append(MS * (took_ms + STEP_MS * late * (rank == 1 and step >= since)))
    return rows


SHARES = (0.05, 0.25, 0.5, 0.2)
"""Of a step, its four parts."""


def in_parts(seed, *, late=0.0, stalls=0.02, **job):
    """Return the parts of each rank's steps, each with noise of its own; rank 1 is longer in the first one alone."""
    return [
        simulate(4 * seed + at, part=share, late=0.0 if at else late, stalls=stalls / len(SHARES), **job)
        for at, share in enumerate(SHARES)
    ]


def whole_of(parts):
    """Return each rank's steps of these *parts*."""
    return [[sum(step) for step in zip(*own, strict=True)] for own in zip(*parts, strict=True)]


def late_in(rows, parts=()):
    """Return the late ranks."""
    return find_late(rows, [1.0] * len(rows[0]), STEP_MS * MS, parts)


def late_in_parts(parts):
    """Return the late ranks by all of their *parts*."""
    return late_in(whole_of(parts), parts)


class TestFindLate:
    @pytest.mark.parametrize(
        ("ranks", "steps", "late", "noise", "stalls"),
        [
            (8, 200, 0.05, 0.05, 0.01),
            (64, 200, 0.05, 0.05, 0.01),
            (2, 200, 0.10, 0.06, 0.01),
            (8, 200, 0.10, 0.1, 0.02),
            (64, 120, 0.10, 0.08, 0.02),
            (2, 200, 0.30, 0.2, 0.05),
            (8, 200, 0.30, 0.3, 0.05),
            (64, 200, 0.30, 0.4, 0.05),
        ],
    )
    def test_late(self, ranks, steps, late, noise, stalls):
        """A rank that is late by a share of a step is named, and no other one, under noise with long tails."""
        found = [
            set(late_in(simulate(seed, ranks=ranks, steps=steps, late=late, noise=noise, stalls=stalls)))
            for seed in range(5)
        ]
        assert found == [{1}] * 5

    @pytest.mark.parametrize("ranks", [2, 3, 5, 8, 64])
    def test_healthy(self, ranks, request):
        """
        Of 200 jobs with heavy noise of single ranks, a tenth of them unless --full, none has a rank named.

        Of every other one the parts of the steps are known.
        """
        rng = random.Random(ranks)
        named = {}
        for seed in range(round(200 * request.config.option.scale)):
            job = {
                "steps": rng.choice((60, 120, 200)),
                "noise": rng.choice((0.1, 0.3, 0.5)),
                "stalls": rng.choice((0.0, 0.03, 0.1)),
                "lasts": rng.choice((0.0, 0.5)),
            }
            found = (
                late_in_parts(in_parts(seed, ranks=ranks, **job))
                if seed % 2
                else late_in(simulate(seed, ranks=ranks, **job))
            )
            if found:
                named[seed] = job, found
        assert named == {}

    @pytest.mark.parametrize("ranks", [2, 8])
    def test_not_in_turn(self, ranks):
        """Noise of single ranks, and stalls of up to 20 steps, are no ranks that are late in turn."""
        jobs = [simulate(seed, ranks=ranks, steps=120, noise=0.5, stalls=0.1, lasts=0.5) for seed in range(20)]
        assert [late_in_turn(rows, [1.0] * 120, STEP_MS * MS)[0] for rows in jobs] == [{}] * 20

    @pytest.mark.parametrize(
        ("ranks", "steps", "late", "noise", "stalls"),
        [(2, 200, 0.25, 0.8, 0.02), (8, 200, 0.15, 0.8, 0.05), (64, 120, 0.15, 0.8, 0.05)],
    )
    def test_part(self, ranks, steps, late, noise, stalls):
        """A rank that is longer in a part of its steps is named, though noise of the others hides that it is late."""
        jobs = [
            in_parts(seed, ranks=ranks, steps=steps, late=late, noise=noise, stalls=stalls)
            for seed in range(2 if ranks > 8 else 8)
        ]
        assert [set(late_in_parts(parts)) for parts in jobs] == [{1}] * len(jobs)
        assert sum(len(late_in(whole_of(parts))) for parts in jobs) <= len(jobs) / 2

    def test_since_in_a_part(self):
        """The part in which a rank became slow says when, where the noise of the others does not."""
        jobs = [in_parts(seed, ranks=2, steps=200, late=0.3, since=120, noise=0.5) for seed in range(10)]
        late = [late_in_parts(parts)[1] for parts in jobs]
        assert [one.first for one in late] == [pytest.approx(120, abs=4)] * 10

    def test_arrives_no_later(self):
        """A rank that is longer in one part and as much shorter in another one is not late."""
        loading, computing = (simulate(seed, ranks=2, steps=200, noise=0.1, stalls=0, part=0.5) for seed in (1, 2))
        loading[1] = [took + 0.3 * STEP_MS * MS for took in loading[1]]
        computing[0] = [took + 0.3 * STEP_MS * MS for took in computing[0]]
        assert late_in_parts([loading, computing]) == {}

    def test_cost_of_a_part(self):
        """If noise hides the lateness, the saved time is less than the excess of the part, and more than the mean."""
        steps = 400
        noise = [20 * MS * (1 if step % 2 else -1) for step in range(steps)]
        loading = [[MS] * steps, [11 * MS] * steps]
        computing = [[50 * MS + own for own in noise], [42 * MS - own for own in noise]]
        late = late_in_parts([loading, computing])[1]
        # It arrives later by 2 ms on average: by 42 ms in half of the steps, which 10 ms less would shorten by 10 ms.
        assert (late.by_part, late.level_ns, late.cost_ns) == (True, pytest.approx(2 * MS), pytest.approx(5 * MS))

    def test_since(self):
        """The blocks in which it was late begin where it became slow, within a few steps."""
        late = late_in(simulate(1, ranks=8, steps=200, late=0.3, since=120, noise=0.1))
        assert (set(late), late[1].first, late[1].last) == ({1}, pytest.approx(120, abs=4), 199)
        assert late[1].level_ns == pytest.approx(0.3 * STEP_MS * MS, rel=0.2)

    @pytest.mark.parametrize(
        ("ranks", "late", "since", "most_steps"), [(2, 0.4, 150, 15), (2, 0.3, 150, 25), (8, 0.2, 150, 25)]
    )
    def test_since_in_noise(self, ranks, late, since, most_steps):
        """In noise of 30 % the step since which a rank is late is found about, and it is in the range that is said."""
        found = [
            late_in(simulate(seed, ranks=ranks, steps=400, late=late, since=since, noise=0.3)).get(1)
            for seed in range(30)
        ]
        named = [one for one in found if one is not None]
        assert len(named) >= 28
        assert sum(abs(one.first - since) <= most_steps for one in named) >= 0.75 * len(named)
        # Without a range it is known to a twentieth of the steps, here 20.
        ranges = [one.began or (one.first - 20, one.first + 20) for one in named]
        assert sum(low <= since <= high for low, high in ranges) >= 0.85 * len(named)
        assert any(one.began for one in named)

    def test_ends_in_noise(self):
        """In noise of 30 % a rank that is late to the end is mostly so to the last step, one that recovers never."""
        lasts = {False: [], True: []}
        for seed, recovers in itertools.product(range(20), lasts):
            rows = simulate(seed, ranks=2, steps=400, late=0.4, since=100, noise=0.3)
            for step in range(250, 400 if recovers else 250):
                rows[1][step] -= 0.4 * STEP_MS * MS
            lasts[recovers] += [one.last for at, one in late_in(rows).items() if at == 1]
        assert lasts[False].count(399) >= 0.8 * len(lasts[False]) >= 10
        assert sum(abs(last - 249) <= 15 for last in lasts[True]) >= 0.8 * len(lasts[True]) >= 10
        assert 399 not in lasts[True]

    def test_since_without_a_range(self):
        """If noise is small, or a rank was late from the beginning, it is known when it began."""
        small = [late_in(simulate(seed, ranks=8, steps=200, late=0.3, since=120, noise=0.1))[1] for seed in range(8)]
        always = [late_in(simulate(seed, ranks=2, steps=400, late=0.4, noise=0.3))[1] for seed in range(8)]
        assert {one.began for one in small} == {None}
        assert {one.first: one.began for one in always} == {0: None}

    def test_since_of_windows(self):
        """Of 40 windows of 20 steps three are more than a twentieth: where noise leaves so many open, it says so."""
        ranges = []
        for seed in range(30):
            rows = simulate(seed, ranks=2, steps=40, late=0.4, since=20, noise=0.18, stalls=0.0)
            ranges += [one.began for at, one in find_late(rows, [20.0] * 40, STEP_MS * MS).items() if at == 1]
        said = [one for one in ranges if one is not None]
        assert len(said) >= len(ranges) / 2 >= 6
        assert min(high - low for low, high in said) >= 3
        assert sum(low <= 20 <= high for low, high in said) >= 0.85 * len(said)

    def test_far_values(self):
        """Few steps that are longer by far, before a rank became late, are no part of the steps in which it was."""
        rows = simulate(5, ranks=2, steps=200, late=0.3, since=120, noise=0.05, stalls=0.0)
        for step in range(60, 110, 10):
            rows[1][step] += 20 * STEP_MS * MS
        late = late_in(rows)
        assert {at: (one.first, one.last) for at, one in late.items()} == {1: (pytest.approx(120, abs=1), 199)}

    def test_begins_under_load(self):
        """Of two ranks in noise that lasts, the one which is late from a quarter of the steps on is mostly named."""
        job = {"steps": 400, "late": 0.4, "since": 100, "noise": 0.3, "lasts": 0.5, "stalls": 0.05}
        found = [set(late_in(simulate(seed, ranks=2, **job))) for seed in range(40)]
        assert found.count({1}) >= 30
        assert {0} not in found

    def test_late_for_a_while(self):
        """A rank late in the second quarter is named, though small noise before it has another level than after it."""
        named = []
        for seed in range(10):
            rng = random.Random(seed)
            before = [rng.gauss(15.8, 0.3) for _ in range(60)]
            late = [rng.gauss(25.0, 0.3) for _ in range(60)]
            after = [rng.gauss(14.8, 0.3) for _ in range(120)]
            peer = [rng.gauss(15.0, 0.3) for _ in range(240)]
            rows = [[MS * took for took in row] for row in (peer, [*before, *late, *after])]
            named += [(rank, one.first, one.last) for rank, one in late_in(rows).items()]
        assert named == [(1, 60, 119)] * 10

    def test_one_after_the_other(self):
        """Of three ranks two are named that are late one after the other, each with its steps."""
        rows = simulate(1, ranks=3, steps=200, noise=0.05, stalls=0.0)
        for step in range(200):
            rows[1 + (step >= 100)][step] += 40 * MS
        found = late_in(rows)
        assert {at: (one.first, one.last) for at, one in found.items()} == {1: (0, 99), 2: (100, 199)}

    @pytest.mark.parametrize("ranks", [2, 4])
    def test_grossly_late(self, ranks):
        """A rank that is late by most of a step in every second stretch of 30 steps is named with these steps."""
        rows = simulate(2, ranks=ranks, steps=200, noise=0.05, stalls=0.0)
        for step in range(200):
            rows[1][step] += 40 * MS * (step // 30 % 2)
        ((at, found),) = late_in(rows).items()
        assert (at, found.first, found.last) == (1, 30, pytest.approx(179, abs=2))

    def test_late_in_turn(self):
        """Of two ranks that are late in turn by 40 ms neither is the late one: both are given, with what that costs."""
        rows = simulate(3, ranks=2, steps=240, noise=0.05, stalls=0.0)
        for step in range(240):
            rows[step // 30 % 2][step] += 40 * MS
        shares, cost_ns = late_in_turn(rows, [1.0] * 240, STEP_MS * MS)
        assert late_in(rows) == {}
        assert (shares, cost_ns) == (
            {0: pytest.approx(0.5, abs=0.05), 1: pytest.approx(0.5, abs=0.05)},
            pytest.approx(40 * MS, rel=0.05),
        )

    def test_two(self):
        """Two of eight ranks that are late are both named."""
        rows = simulate(1, ranks=8, steps=120, late=0.3)
        rows[5] = [took + 0.2 * STEP_MS * MS for took in rows[5]]
        assert set(late_in(rows)) == {1, 5}

    @pytest.mark.parametrize("ranks", [2, 3, 4, 5, 6])
    def test_all_of_them_or_none(self, ranks):
        """Equally slow ranks are named, all of them, if they are at most half, rounded up; never others, or some."""
        wrong = {}
        for slow in itertools.chain.from_iterable(itertools.combinations(range(ranks), n) for n in range(ranks + 1)):
            rows = simulate(len(slow), ranks=ranks, steps=60, noise=0.03, stalls=0.0)
            rows = [[took + 0.4 * STEP_MS * MS * (at in slow) for took in row] for at, row in enumerate(rows)]
            named = late_in(rows)
            expected = set(slow) if 2 * len(slow) <= ranks + 1 else set()
            levels_ms = {round(one.level_ns / MS) for one in named.values()}
            if set(named) != expected or not levels_ms <= {19, 20, 21}:
                wrong[slow] = named
        assert wrong == {}

    def test_floor(self):
        """Two ranks that differ by a twentieth of a step, however surely, are as fast as each other."""
        steady = [STEP_MS * MS] * 200
        assert late_in([steady, [1.05 * took for took in steady]]) == {}

    def test_one_stall(self):
        """One long step is an event, and no lateness."""
        rows = simulate(1, ranks=2, steps=100, noise=0.05, stalls=0)
        rows[1][40] += 100 * STEP_MS * MS
        assert late_in(rows) == {}

    def test_few_windows(self):
        """Six windows of sections are enough where they say so clearly."""
        rows = [[10 * MS, 10.2 * MS, 9.9 * MS, 10.1 * MS, 10 * MS, 10 * MS] for _ in range(2)]
        rows[1] = [took + 5 * MS + 0.1 * MS * place for place, took in enumerate(rows[1])]
        assert set(find_late(rows, [20.0] * 6, 10 * MS)) == {1}

    def test_chance(self):
        """The probability of a named rank by chance is below the limit for a job, over all comparisons together."""
        (episode,) = late_in(simulate(1, ranks=8, steps=200, late=0.3)).values()
        assert 0 < episode.chance <= ALLOWANCE == 0.001


class TestBestStretch:
    def test_sums(self):
        """No other stretch has a larger sum: all of those of random courses of up to 12 whole numbers were compared."""
        rng = random.Random(1)
        for _ in range(300):
            values = [rng.randint(-5, 5) for _ in range(rng.randint(1, 12))]
            first, last = _best_stretch(values)
            stretches = itertools.combinations(range(len(values) + 1), 2)
            assert sum(values[first : last + 1]) == max(sum(values[low:high]) for low, high in stretches), values

    @pytest.mark.parametrize(
        ("lateness", "first"),
        [
            ([0, 0, 90, 80] + [1] * 10 + [20] * 40, 14),  # two long steps before it began
            ([0, 0] + [20] * 40, 2),
            ([0, 0, 20, 0, 20, 20, 0, 20] + [20] * 40, 2),  # single steps that are not late are no other beginning
            # A lock that is held half of the time: from the start it costs 10 to 40 ms or nothing, by chance.
            ([30, 10, 0, 20, 40, 10, 40, 0, 30, 0, 0, 30, 0, 0, 0, 40, 0, 0, 30, 0, 0, 0] + [20] * 80, 0),
        ],
    )
    def test_level(self, lateness, first):
        """Lateness of 20 ms begins where most of the steps from there on are late, however long earlier ones were."""
        assert _best_stretch(_pulls(lateness, 20)) == (first, len(lateness) - 1)


class TestChance:
    @pytest.mark.parametrize(
        ("t", "freedom", "chance"), [(6.314, 1, 0.05), (3.169, 10, 0.005), (4.785, 7, 0.001), (0.0, 5, 0.5)]
    )
    def test_student(self, t, freedom, chance):
        """The chance of a mean is that of the tables of Student's distribution."""
        values = [math.cos(math.pi * index) for index in range(freedom + 1)]
        mean = sum(values) / len(values)
        error = math.sqrt(sum((one - mean) ** 2 for one in values) / freedom / len(values))
        assert student([one - mean + t * error for one in values], []) == pytest.approx(chance, rel=0.002)

    def test_aligned_scores(self):
        """Of two rows that differ by 1 to 4, the longer one has the ranks 5 to 8 of 8, counted from 0.5."""
        scores = aligned_scores([[1.0, 2.0, 3.0, 4.0], [0.0] * 4])
        assert scores.rows[0] == [4.5, 5.5, 6.5, 7.5]
        # The mean of each column is 4; its halves are apart by 0.5, 1.5, 2.5 and 3.5.
        assert scores.surplus(0, 0, 4) == pytest.approx(8.0 / math.sqrt(0.25 + 2.25 + 6.25 + 12.25))

    def test_dependence(self):
        """Noise of which 0.8 lasts from step to step counts as a ninth of its steps; independent noise as all."""
        rng, last, values = random.Random(1), 0.0, []
        for _ in range(20_000):
            last = 0.8 * last + rng.gauss(0, 1)
            values.append(last)
        assert dependence(values, []) == pytest.approx(1.8 / 0.2, rel=0.1)
        assert dependence([rng.gauss(0, 1) for _ in range(20_000)], []) == pytest.approx(1.0, abs=0.05)
