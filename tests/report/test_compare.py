"""The changes between two sets of runs."""

from __future__ import annotations

import json
import re

import pytest

from trackside.cli import main
from trackside.events import ConfigLogged, IterationEnded, Source, UnreadableError
from trackside.report import BETTER, SAME, WORSE, Selected, compare

pytestmark = pytest.mark.once


@pytest.fixture
def compared(made_up):
    """Give a function that compares the usual job with a changed one."""

    def run(before=None, **changes):
        usual = {"ranks": 1, "steps": 200}
        here = made_up("a", run_id="a", session_tag="a", **{**usual, **(before or {})})
        there = made_up("b", run_id="b", session_tag="b", **{**usual, "seed": 2, **changes})
        return compare(Selected("a", [here]), Selected("b", [there]))

    return run


def row(found, name):
    (one,) = [one for one in [*found.judged, *found.buckets, *found.parts] if one.name == name]
    return one


def test_settings(write_events, tmp_path, capsys):
    """Hyper-parameters that differ are named with the values of all runs of each side; equal ones are not."""
    for name, rates in (("a", (0.1, 0.2)), ("b", (0.3,))):
        for number, rate in enumerate(rates):
            values = {"lr": rate, "layers": 3} | ({"clip": 1.0} if name == "b" else {})
            events = [ConfigLogged(at_ns=1, values=values), IterationEnded(at_ns=2, step=0, duration_ns=1)]
            write_events(tmp_path / name / str(number), Source(id=f"{name}{number}", run_id=f"{name}{number}"), events)
    sides = [str(tmp_path / name) for name in "ab"]
    main(["compare", *sides])

    assert compare(*(Selected(path, [path]) for path in sides)).settings == {
        "clip": ((), ("1.0",)),
        "lr": (("0.1", "0.2"), ("0.3",)),
    }
    wanted = ["hyper-parameters that differ", "  clip: not set in A, 1.0 in B", "  lr: 0.1, 0.2 in A, 0.3 in B", ""]
    assert capsys.readouterr().out.splitlines()[-4:] == wanted


class TestVerdict:
    def test_same(self, compared):
        """Of two runs of one job no difference is shown."""
        assert compared().verdict == SAME

    def test_slower(self, compared):
        """Steps that take 3 % longer are found over a thousand, and in which part of the step: 112 ms and 3.4 ms."""
        found = compared(before={"steps": 1_000}, steps=1_000, backward_s=0.0634)
        assert (found.verdict, row(found, "step time, typical").verdict) == (WORSE, WORSE)
        assert row(found, "step time, typical").difference.change == pytest.approx(0.03, abs=0.005)
        assert {one.name for one in found.parts if one.verdict == WORSE} == {"model_backward"}

    def test_faster(self, compared):
        """Improvements are found as well."""
        assert compared(backward_s=0.05).verdict == BETTER

    def test_goodput(self, compared):
        """Time in another bucket is worse, though steps are as they were, and the bucket is named."""
        found = compared(save_every=10, save_s=1.0)
        assert (found.verdict, row(found, "step time, typical").verdict) == (WORSE, SAME)
        assert row(found, "UNPRODUCTIVE_CHECKPOINT_SAVE_TIME").verdict == WORSE

    def test_little_matters(self, compared):
        """A change that is certain and small does not matter."""
        found = compared(backward_s=0.0605, noise=0.001, before={"noise": 0.001})
        reported = row(found, "step time, typical")
        assert (reported.difference.is_shown, reported.verdict) == (True, SAME)

    def test_few_steps(self, compared):
        """Too few steps for a comparison are reported as such."""
        found = compared(steps=10, backward_s=0.2)
        assert found.verdict == SAME
        assert found.notes == ("b has 10 steps: too few to know what is chance",)


class TestNotes:
    def test_longer_for_good(self, compared):
        """Steps of 112 ms that take 224 ms from step 100 on are named with that step."""
        found = compared(noise=0.2, factor=lambda rank, step, part: 1 + (step >= 100))
        (note,) = found.notes
        grew, since = re.fullmatch(r"b: steps of run b take ([\d.]+) % longer since step (\d+)", note).groups()
        assert float(grew) == pytest.approx(100, abs=10)
        assert int(since) == pytest.approx(100, abs=2)


class TestRanks:
    def test_late(self, compared):
        """The rank that became late is named, as the report names it: twice 40 ms of forward from step 100 on."""
        found = compared(ranks=3, factor=lambda rank, step, part: 1 + (rank == 1 and step > 99 and "forward" in part))
        (note,) = found.notes
        assert re.fullmatch(r"b: rank 1 of run b is slow in model_forward: \d+(\.\d+)? ms a step, since step 100", note)


class TestSelection:
    def test_wanted(self, made_up):
        """Each side takes its own runs from one directory."""
        made_up("all/a", ranks=1, steps=100, run_id="a", session_tag="x")
        directory = made_up("all/b", ranks=1, steps=100, run_id="b", session_tag="x", seed=1).parent
        sides = [Selected(name, [directory], lambda source, name=name: source.run_id == name) for name in "ab"]
        found = compare(*sides)
        assert (found.before.runs, found.after.runs) == (("a",), ("b",))

    def test_nothing(self, made_up):
        """A side without runs is an error that names it."""
        with pytest.raises(UnreadableError, match="nobody"):
            compare(Selected("nobody", [made_up(ranks=1, steps=20)], lambda _: False), Selected("b", []))

    def test_json(self, compared):
        """The comparison is JSON, with a verdict for each row."""
        reported = json.loads(json.dumps(compared(steps=10).to_json(), allow_nan=False))
        assert reported["verdict"] == SAME
        assert {one["unit"] for one in reported["judged"]} == {"s", "share"}


class TestCommand:
    """As CI calls it: the marked run and the one that is judged are in one directory."""

    def test_mixed(self, made_up, capsys):
        """If steps are longer and more of the time is productive, the first line names both."""
        usual = {"ranks": 1, "steps": 1_000, "noise": 0.01, "stumbles": 0}
        before = made_up("a", run_id="a", save_every=20, save_s=2.0, **usual)
        after = made_up("b", run_id="b", forward_s=0.08, save_every=1_000, **usual)
        assert main(["compare", str(before), str(after)]) == 1
        said = capsys.readouterr().out.splitlines()[3]
        assert said == "B is worse (step time, typical; step time, mean) and better (goodput)"

    def test_bad_end(self, made_up, capsys):
        """A bad end of one side is reported beside the verdict: half of rank 1's log is missing."""
        usual = {"ranks": 2, "steps": 3_000, "noise": 0.01, "stumbles": 0}
        before = made_up("a", run_id="a", **usual)
        after = made_up("b", run_id="b", **usual)
        path = max(after.rglob("*rank-00001*.tslog"))
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
        main(["compare", str(before), str(after)])
        assert re.search(r"rank 1 of run b died after step \d+\n", capsys.readouterr().out)

    def test_columns(self, made_up, capsys):
        """Figures of any length are apart: loading that takes ten thousand times as long is in its column."""
        usual = {"ranks": 1, "steps": 100, "noise": 0.02, "stumbles": 0}
        before = made_up("a", run_id="a", loading_s=0.000_001, **usual)
        after = made_up("b", run_id="b", loading_s=0.01, **usual)
        main(["compare", str(before), str(after)])
        lines = capsys.readouterr().out.splitlines()
        (row,) = [line for line in lines if line.startswith("  data_loading")]
        (head,) = [line for line in lines if line.startswith("a step's parts")]
        name, *figures, verdict = re.split(r"\s{2,}", row.strip())
        assert (name, figures[0].split()[1], figures[1].split()[1], verdict) == ("data_loading", "ns", "ms", "worse")
        assert head.index("between") == row.index(figures[3])

    @pytest.mark.parametrize(
        ("factor", "code", "said"), [(1.03, 1, "worse"), (0.9, 0, "better"), (1.0, 0, "no difference")]
    )
    def test_exit_code(self, made_up, capsys, factor, code, said):
        """Exit code 1 means that the job got worse, 3 % over a thousand steps; otherwise it is 0."""
        usual = {"ranks": 1, "steps": 1_000, "noise": 0.02}
        made_up("all/a", run_id="a", session_tag="x", baseline=True, **usual)
        slower = {"backward_s": 0.06 + 0.112 * (factor - 1)}
        directory = made_up("all/b", run_id="b", session_tag="x", seed=1, **usual, **slower).parent
        assert main(["compare", "--baseline", str(directory), "--json"]) == code
        reported = json.loads(capsys.readouterr().out)
        assert (reported["before"]["runs"], reported["after"]["runs"]) == (["a"], ["b"])
        assert said in reported["verdict"]
