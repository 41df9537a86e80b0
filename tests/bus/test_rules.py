"""Rules are values: each start has fresh state, and most of them can cross the wire."""

from __future__ import annotations

import collections
import itertools
import random
import threading
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from children import in_child
from racing import in_threads
from trackside.events import ConfigError, DecodeError, Event
from trackside.rules import (
    all_of,
    any_of,
    at_most,
    every,
    fraction,
    only_spans,
    rule_from_wire,
    scattered,
    where,
    without_spans,
)

SECOND = 10**9

# SplitMix64 gives 0xe220a8397b1dcdaf for seed 0, as published; these are the seeds whose first number is below
# 2**64 / 10.
KEPT_OF_100 = [10, 18, 21, 41, 48, 68, 82, 83]


def at(at_ns=0, step=-1):
    return Event(at_ns=at_ns, span_id=0, step=step)


def kept(rule, events):
    decide = rule.start()
    return [event for event in events if decide(event) is None]


def kept_steps(rule, steps):
    return [event.step for event in kept(rule, [at(step=step) for step in steps])]


def kept_times(rule, times):
    return [event.at_ns for event in kept(rule, [at(time) for time in times])]


def count_in_threads(rule, event, threads=16, rounds=2000):
    decide = rule.start()
    results = in_threads(threads, lambda _: sum(decide(event) is None for _ in range(rounds)))
    return sum(results)


class TestEvery:
    def test_keeps_the_first_of_every_n(self):
        """Of ten events, every(3) keeps the first, fourth, seventh and tenth."""
        assert kept_steps(every(3), range(10)) == [0, 3, 6, 9]

    def test_one_keeps_all(self):
        """every(1) drops nothing."""
        assert kept_steps(every(1), range(5)) == [0, 1, 2, 3, 4]

    def test_fresh_state(self):
        """Two subscriptions with the same rule count for themselves."""
        rule = every(2)
        first, second = rule.start(), rule.start()
        first(at())

        assert second(at()) is None

    def test_drop_is_sampling(self):
        """Events that every(n) drops count as sampled."""
        decide = every(2).start()
        decide(at())

        assert decide(at()) == "sampled"

    def test_exact_in_threads(self):
        """Of 32,000 events from 16 threads, every(100) keeps 320."""
        assert count_in_threads(every(100), at()) == 320

    @pytest.mark.parametrize("n", [0, -1, 1.5, "3", None, True, 2**53 + 1])
    def test_wrong_n(self, n):
        """A value that is no whole number from 1 is refused with the field's name and the value given."""
        with pytest.raises(ConfigError, match="whole number from 1") as raised:
            every(n)

        assert (raised.value.field, raised.value.given) == ("every(n)", n)


class TestFraction:
    def test_is_about_the_share(self):
        """Of 100,000 steps fraction(0.1) keeps 10,000, give or take five standard deviations (475)."""
        assert abs(len(kept_steps(fraction(0.1), range(100_000))) - 10_000) < 475

    @pytest.mark.parametrize("stride", [2, 8, 10, 100, 1000, 1024, 987])
    def test_of_every_stride(self, stride):
        """A job that logs each n-th step gets its share too: 2,000 of 10,000, give or take five deviations (200)."""
        steps = range(0, stride * 10_000, stride)

        assert abs(len(kept_steps(fraction(0.2), steps)) - 2000) < 200

    def test_evenly_in_each_part(self):
        """The steps' numbers are spread evenly: chi-squared of 64 cells over 64,000 steps is below 120 (p = 2e-5)."""
        cells = collections.Counter(scattered(step) >> 58 for step in range(64_000))

        assert sum((cells[cell] - 1000) ** 2 / 1000 for cell in range(64)) < 120

    def test_as_published(self):
        """The first number that SplitMix64 gives for seed 0 is the published one."""
        assert scattered(0) == 0xE220A8397B1DCDAF

    def test_known_steps(self):
        """The steps kept are part of the format: the same in every release."""
        assert kept_steps(fraction(0.1), range(100)) == KEPT_OF_100

    def test_same_in_another_process(self):
        """Another interpreter with another hash seed keeps the same steps."""
        program = (
            "from trackside.rules import fraction; from trackside.events import Event;"
            "decide = fraction(0.1).start();"
            "print([s for s in range(100) if decide(Event(at_ns=0, span_id=0, step=s)) is None])"
        )
        answers = [in_child(program, PYTHONHASHSEED=hash_seed)[0] for hash_seed in ("1", "2")]

        assert answers == [f"{KEPT_OF_100}\n"] * 2

    def test_same_for_all_events_of_a_step(self):
        """All events of a step share its fate, in any order and from any subscription."""
        steps = list(range(50)) * 3
        random.Random(7).shuffle(steps)

        once = kept_steps(fraction(0.3), range(50))

        assert sorted(kept_steps(fraction(0.3), steps)) == sorted(once * 3)

    def test_smaller_within_larger(self):
        """The steps that fraction(0.1) keeps, fraction(0.3) keeps too."""
        assert set(kept_steps(fraction(0.1), range(1000))) <= set(kept_steps(fraction(0.3), range(1000)))

    def test_without_a_step(self):
        """An event that belongs to no step is kept, also by fraction(0)."""
        assert kept_steps(fraction(0.0), [-1, 0, 1, 2]) == [-1]

    def test_one_keeps_all(self):
        """fraction(1) drops nothing."""
        assert kept_steps(fraction(1), [0, 1, 2**63, 2**70]) == [0, 1, 2**63, 2**70]

    def test_same_in_threads(self):
        """16 threads that ask about the same steps at once get the same answers."""
        decide = fraction(0.25).start()
        events = [at(step=step) for step in range(1000)]
        alone = [fraction(0.25).start()(event) for event in events]

        assert in_threads(16, lambda _: [decide(event) for event in events]) == [alone] * 16
        assert set(alone) == {None, "sampled"}

    @pytest.mark.parametrize("p", [-0.1, 1.1, float("nan"), "0.5", None, True, 10**400])
    def test_wrong_p(self, p):
        """A value that is not from 0 to 1 is refused with the field's name."""
        with pytest.raises(ConfigError, match=r"fraction\(p\): .*from 0 to 1"):
            fraction(p)


class TestAtMost:
    def test_first_of_each_period(self):
        """Of each second, at_most(2, per=1) keeps the first two."""
        times = [0, 1, 2, SECOND - 1, SECOND, SECOND + 1, SECOND + 2, 3 * SECOND]

        assert kept_times(at_most(2, per=1), times) == [0, 1, SECOND, SECOND + 1, 3 * SECOND]

    def test_late_event_counts_in_its_own_period(self):
        """An event that comes late takes a place in its own second, not in the newest."""
        times = [5 * SECOND, 4 * SECOND, 4 * SECOND + 1, 5 * SECOND + 1]

        assert kept_times(at_most(1, per=1), times) == [5 * SECOND, 4 * SECOND]

    def test_one_wild_clock(self):
        """A single event from the far future does not silence those that follow."""
        assert kept_times(at_most(1, per=1), [0, 10**18, SECOND, 2 * SECOND]) == [0, 10**18, SECOND, 2 * SECOND]

    def test_forgets_old_periods(self):
        """Only the last 64 periods are remembered: after 64 others, the first is a new one."""
        others = [period * SECOND for period in range(1, 65)]

        assert kept_times(at_most(1, per=1), [0, *others, 0]) == [0, *others, 0]

    def test_remembers_64_periods(self):
        """After 63 other periods, the first is still known to be full."""
        others = [period * SECOND for period in range(1, 64)]

        assert kept_times(at_most(1, per=1), [0, *others, 0]) == [0, *others]

    def test_part_of_a_second(self):
        """The period may be shorter than a second."""
        assert kept_times(at_most(1, per=0.001), [0, 999_999, 1_000_000]) == [0, 1_000_000]

    def test_exact_in_threads(self):
        """Of 32,000 events of one period from 16 threads, at_most(1000) keeps 1,000."""
        assert count_in_threads(at_most(1000, per=1), at()) == 1000

    def test_exact_in_threads_that_open_periods(self):
        """16 threads that walk through the same 50 periods keep 3 events of each."""
        decide = at_most(3, per=1).start()
        events = [at(second * SECOND) for second in range(50)]
        together = threading.Barrier(16)

        def walk(_):
            kept = []
            for event in events:
                together.wait()
                if decide(event) is None:
                    kept.append(event.at_ns)
            return kept

        results = in_threads(16, walk)

        assert set(collections.Counter(itertools.chain(*results)).values()) == {3}

    def test_drop_is_sampling(self):
        """Events that at_most drops count as sampled."""
        decide = at_most(1, per=1).start()
        decide(at())

        assert decide(at()) == "sampled"

    @given(st.lists(st.integers(0, 60 * SECOND), max_size=200), st.integers(1, 5))
    def test_brute_force(self, times, n):
        """For any order of times, each period keeps its first n arrivals."""
        arrived = collections.Counter()
        expected = []
        for time in times:
            arrived[time // SECOND] += 1
            if arrived[time // SECOND] <= n:
                expected.append(time)

        assert kept_times(at_most(n, per=1), times) == expected

    @pytest.mark.parametrize("per", [0, -1, float("nan"), float("inf"), "1", None])
    def test_wrong_period(self, per):
        """A period that is no positive time is refused with the field's name."""
        with pytest.raises(ConfigError, match=r"at_most\(per\)"):
            at_most(1, per=per)

    def test_wrong_n(self):
        """A count below 1 is refused with the field's name."""
        with pytest.raises(ConfigError, match=r"at_most\(n\)"):
            at_most(0, per=1)


class TestWhere:
    def test_keeps_what_is_true(self):
        """Only events for which the predicate returns something true are kept."""
        assert kept_steps(where(lambda event: event.step % 2), range(5)) == [1, 3]

    def test_drop_is_filtering(self):
        """Events that a predicate drops count as filtered."""
        assert where(lambda event: False).start()(at()) == "filtered"

    def test_stays_here(self):
        """A predicate says that it cannot be sent, and refuses to."""
        rule = where(bool)

        assert not rule.portable
        with pytest.raises(ConfigError, match="stays where it was written"):
            rule.to_wire()

    def test_not_callable(self):
        """An object that cannot be called is refused."""
        with pytest.raises(ConfigError, match="function of one event"):
            where(3)


def odd(event):
    return event.step % 2


class TestAllOf:
    def test_later_rules_see_what_earlier_keep(self):
        """all_of(where(odd), every(2)) keeps every second odd step."""
        assert kept_steps(all_of(where(odd), every(2)), range(10)) == [1, 5, 9]

    def test_order_matters(self):
        """all_of(every(2), where(odd)) keeps the odd ones among the steps 0, 2, 4, …: none."""
        assert kept_steps(all_of(every(2), where(odd)), range(10)) == []

    def test_says_which_part_dropped(self):
        """An event that the predicate drops is filtered, one that passes it and is not drawn is sampled."""
        decide = all_of(where(odd), every(2)).start()

        assert [decide(at(step=step)) for step in (0, 1, 2, 3)] == ["filtered", None, "filtered", "sampled"]

    def test_portable_as_its_parts(self):
        """A single predicate in a combination keeps the whole rule from being sent."""
        assert all_of(every(2), any_of(fraction(0.5))).portable
        assert not all_of(every(2), any_of(where(odd))).portable

    def test_without_rules(self):
        """A combination of no rules is refused."""
        with pytest.raises(ConfigError, match="at least one rule"):
            all_of()

    @pytest.mark.parametrize("rule", [3, None, "every(3)", every, odd])
    def test_of_what_is_no_rule(self, rule):
        """An object that is no rule is refused, including the function that makes one."""
        with pytest.raises(ConfigError, match=r"rules such as every"):
            all_of(rule)


class TestAnyOf:
    def test_keeps_what_any_keeps(self):
        """Every fifth event, and all odd ones."""
        assert kept_steps(any_of(every(5), where(odd)), range(8)) == [0, 1, 3, 5, 7]

    def test_sampled_if_a_draw_could_have_kept_it(self):
        """An event that none keeps is sampled if any part samples, and filtered if all are predicates."""
        sampled, filtered = any_of(every(2), where(odd)).start(), any_of(where(odd), where(odd)).start()
        sampled(at(step=0))

        assert sampled(at(step=2)) == "sampled"
        assert filtered(at(step=2)) == "filtered"


portable_rules = st.recursive(
    st.one_of(
        st.builds(every, st.integers(1, 2**53)),
        st.builds(fraction, st.floats(0, 1)),
        st.builds(lambda n, per: at_most(n, per=per), st.integers(1, 2**53), st.floats(1e-9, 1e9)),
        st.lists(st.text(min_size=1), min_size=1, max_size=3).map(lambda names: only_spans(*names)),
        st.lists(st.text(min_size=1), min_size=1, max_size=3).map(lambda names: without_spans(*names)),
    ),
    lambda rules: st.one_of(
        st.lists(rules, min_size=1, max_size=3).map(lambda parts: all_of(*parts)),
        st.lists(rules, min_size=1, max_size=3).map(lambda parts: any_of(*parts)),
    ),
    max_leaves=8,
)


def nested(levels):
    data = ["every", 2]
    for _ in range(levels - 1):
        data = ["all_of", [data]]
    return data


class TestWire:
    @given(portable_rules)
    def test_there_and_back(self, rule):
        """Every portable rule comes back equal, as lists or as tuples."""
        assert rule_from_wire(rule.to_wire()) == rule

    @given(portable_rules)
    def test_through_msgpack(self, rule):
        """The plain form survives the wire's own encoding."""
        import msgpack

        assert rule_from_wire(msgpack.unpackb(msgpack.packb(rule.to_wire()), use_list=False)) == rule

    def test_the_form(self):
        """The form is a list that starts with the rule's name."""
        rule = all_of(fraction(0.5), any_of(every(3), at_most(2, per=1)))

        assert rule.to_wire() == ["all_of", [["fraction", 0.5], ["any_of", [["every", 3], ["at_most", 2, 1.0]]]]]

    @pytest.mark.parametrize(
        "data",
        [
            None,
            [],
            {},
            "every",
            ["every"],
            ["every", 0],
            ["every", 2, 3],
            ["every", "x" * 100_000],
            ["fraction", 2.0],
            ["at_most", 1],
            ["where", "os.system('x')"],
            ["all_of", []],
            ["all_of", ["every", 3]],
            ["all_of", [["every", 3]] * 64],
            nested(9),
            nested(900),
            [["every", 3]],
            {"every": 3},
            ["all_of", "every"],
            ["only_spans"],
            ["only_spans", "application"],
            ["only_spans", []],
            ["only_spans", ["application", ""]],
            ["only_spans", ["application"], ["model_init"]],
            ["without_spans", [7]],
            ["without_spans", [["application"]]],
            ["only_spans", [str(number) for number in range(1_025)]],
            ["without_spans", [str(number) for number in range(1_025)]],
            ["without_spans", ["application"] * 100_000],
        ],
    )
    def test_malformed(self, data):
        """Data that is no rule within limits is one short DecodeError."""
        with pytest.raises(DecodeError, match="not a rule") as raised:
            rule_from_wire(data)

        assert len(str(raised.value)) < 300

    @pytest.mark.parametrize("name", ["only_spans", "without_spans"])
    def test_as_many_names_as_allowed(self, name):
        """A rule of 1,024 names of spans is read, with all of them."""
        data = [name, [f"span {number:04}" for number in range(1_024)]]

        assert rule_from_wire(data).to_wire() == data

    def test_as_deep_as_allowed(self):
        """Eight levels are read, and can be built here."""
        assert rule_from_wire(nested(8)).to_wire() == nested(8)

    def test_no_deeper_here_either(self):
        """A rule that another process could not read cannot be built here."""
        with pytest.raises(ConfigError, match="at most 8 deep"):
            all_of(rule_from_wire(nested(8)))

    @given(st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(), st.lists, max_leaves=20))
    def test_any_plain_data(self, data):
        """Plain data is either a rule or a DecodeError, never another error."""
        try:
            rule = rule_from_wire(data)
        except DecodeError:
            return
        assert callable(rule.start())


class TestPlainObjects:
    def test_reads_step_and_time_alone(self):
        """A rule that comes with the library looks at nothing but the envelope."""
        rule = all_of(every(1), fraction(1), at_most(1, per=1))

        assert rule.start()(SimpleNamespace(step=1, at_ns=0)) is None
