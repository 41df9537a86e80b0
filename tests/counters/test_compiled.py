"""Compiled recording against pure Python: the same samples give the same counts, sums and errors."""

from __future__ import annotations

import gc
import inspect
import math
import sys
import threading
from unittest import mock

import hypothesis.strategies as st
import pytest
from hypothesis import given

from blocks import least_growth
from implementations import needs_core, pure
from trackside.counters import _instruments as compiled
from trackside.counters._window_collector import CollectorWindow

pytestmark = needs_core

PURE = pure("trackside.counters._instruments")
RECORDING = [("Counter", "add"), ("Stat", "record"), ("Gauge", "set")]

plain = st.one_of(
    st.floats(),
    st.integers(-(2**70), 2**70),
    st.integers(-3, 3),
    st.sampled_from([2**52, 2**52 + 1, -(2**52), -(2**52) - 1, 2**63, -0.0, math.inf, -math.inf, math.nan, 0.1]),
)
foreign = st.sampled_from([True, None, "1", 10**400, 1j, [1.0]])


def recorded(cls, method, samples, **options):
    """Return the snapshot and the windows of an instrument after *samples*."""
    instrument = cls("x", aggregations=options.pop("aggregations", None))
    closed = []
    window = CollectorWindow(instrument, put=closed.append, **options)
    instrument.attach(window, 0)
    for sample in samples:
        getattr(instrument, method)(sample)
    instrument.detach(window, 1, timeout_s=1.0)
    windows = [(each.summary.count, each.total_count, each.total_sum, each.raw) for each in closed]
    values = [each.summary.values(tuple(compiled.Aggregation)) for each in closed]
    snapshot = instrument.snapshot()
    return repr([[getattr(snapshot, name) for name in fields(snapshot)], windows, values])


def fields(snapshot):
    return [field for field in type(snapshot).__slots__ if not field.startswith("_")]


@pytest.mark.parametrize(("kind", "method"), RECORDING)
class TestSame:
    @given(
        samples=st.lists(st.one_of(plain, plain, plain, foreign), max_size=60),
        repeated=st.sampled_from([1, 1, 50]),
        options=st.fixed_dictionaries(
            {"limit": st.sampled_from([None, None, 7]), "needs": st.integers(0, 7), "keeps_raw": st.booleans()}
        ),
    )
    def test_any_samples(self, kind, method, *, samples, repeated, options):
        """For any samples, totals, windows and counts of invalid samples are equal to the last bit."""
        results = [
            recorded(getattr(module, kind), method, samples * repeated, **options) for module in (compiled, PURE)
        ]
        assert results[0] == results[1]

    @pytest.mark.parametrize("count", [1023, 1024, 1025, 20_000])
    @pytest.mark.parametrize("scale", [1, 0.1])
    def test_long(self, kind, method, count, scale):
        """Folds come after the same samples, so that sums of thousands are equal to the last bit."""
        samples = [(place * 7919) % 1000 * scale for place in range(count)]
        options = {"limit": None, "needs": 1, "keeps_raw": False}
        results = [recorded(getattr(module, kind), method, samples, **options) for module in (compiled, PURE)]
        assert results[0] == results[1]

    @pytest.mark.parametrize(
        ("args", "keywords"), [((), {}), ((1, 2), {}), ((), {"nonsense": 1}), ((1,), {"amount": 1, "value": 1})]
    )
    def test_wrong_calls(self, kind, method, args, keywords):
        """A wrong call raises the same TypeError."""
        said = []
        for module in (compiled, PURE):
            with pytest.raises(TypeError) as raised:
                getattr(getattr(module, kind)("x"), method)(*args, **keywords)
            said.append(str(raised.value))
        assert said[0] == said[1]

    def test_by_keyword(self, kind, method):
        """A sample given by its keyword comes after those before it."""
        instrument = getattr(compiled, kind)("x")
        (name,) = inspect.signature(getattr(instrument, method)).parameters
        getattr(instrument, method)(3.0)
        getattr(instrument, method)(**{name: 2.0})

        assert (instrument.count, instrument.snapshot().last) == (2, 2.0)

    def test_looks_the_same(self, kind, method):
        """Name, documentation and parameters are those of the Python method; types stand in the sources alone."""
        ours, theirs = (getattr(getattr(module, kind), method) for module in (compiled, PURE))

        assert (ours.__name__, ours.__qualname__, ours.__doc__) == (
            theirs.__name__,
            theirs.__qualname__,
            theirs.__doc__,
        )
        assert list(inspect.signature(ours).parameters) == list(inspect.signature(theirs).parameters)


class TestCompiled:
    def test_plain_samples_are_no_objects(self):
        """Ten thousand floats recorded leave no block allocated but the first ones."""
        stat = compiled.Stat("x")

        def record():
            for _ in range(10_000):
                stat.record(1.0)
            stat.fold()

        assert least_growth(record) < 50

    def test_instruments_are_freed(self):
        """Instruments that are dropped leave nothing allocated, their samples included."""

        def make():
            for index in range(100):
                stat = compiled.Stat("x")
                stat.record(float(index))
                stat.record("foreign")

        assert least_growth(make) < 20

    def test_strict(self):
        """On a strict bus an invalid sample raises where it is recorded, and valid ones count."""
        counter = compiled.Counter("x", strict=True)
        counter.add(2.0)
        with pytest.raises(ValueError, match="a counter only grows"):
            counter.add(-1.0)

        assert counter.sum == 2.0

    def test_subclass(self):
        """A subclass records too."""

        class Own(compiled.Stat):
            pass

        own = Own("x")
        own.record(1.5)
        assert own.sum == 1.5

    def test_foreign_object(self):
        """The method of one class refuses the object of another."""
        with pytest.raises(TypeError):
            compiled.Stat.record(object(), 1.0)

    def test_threads(self):
        """Four threads that record floats, whole numbers and others lose none."""
        stat = compiled.Stat("x")
        samples = [1.0, 1.0, 1, True] * 1000
        sys.setswitchinterval(1e-5)

        def record():
            for sample in samples * 15:
                stat.record(sample)

        threads = [threading.Thread(target=record) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

        assert (stat.count, stat.sum, stat.snapshot().invalid) == (240_000, 240_000, 0)

    def test_figures_without_python(self):
        """Seventeen thousand floats of which nobody needs more than the figures are recorded without Python code."""
        stat, called = compiled.Stat("x"), []
        samples = [0.1] * 17 * 1024

        def note(frame, what, _):
            if what == "call":
                called.append(frame.f_code.co_name)

        sys.setprofile(note)
        for sample in samples:
            stat.record(sample)
        sys.setprofile(None)

        assert (called, stat.count, stat.sum) == ([], 17_408, pytest.approx(1740.8))

    def test_samples_of_a_window_that_begins(self):
        """A window that keeps the samples has all those that were recorded as it began, more than one chunk."""
        stat, closed = compiled.Stat("x"), []
        window = CollectorWindow(stat, put=closed.append, limit=None, needs=0, keeps_raw=True)
        begin = window.begin

        def record(*started):
            for sample in range(1_100):
                stat.record(float(sample))
            begin(*started)

        with mock.patch.object(CollectorWindow, "begin", side_effect=record):
            stat.attach(window, 0)
        stat.detach(window, 1, timeout_s=1.0)

        assert [list(each.raw) for each in closed] == [[float(sample) for sample in range(1_100)]]

    def test_recorded_by_a_finalizer(self):
        """A finalizer that records while the instrument is being folded loses nothing."""
        stat = compiled.Stat("x")

        class Recording:
            def __init__(self):
                self.self = self

            def __del__(self):
                stat.record(1.0)

        threshold = gc.get_threshold()
        gc.set_threshold(1)
        try:
            for _ in range(3000):
                Recording()
                stat.record(1.0)
                stat.record(1)
            gc.collect()
        finally:
            gc.set_threshold(*threshold)

        assert stat.count == 9000
