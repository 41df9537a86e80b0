"""The names of nvidia-resiliency-ext's straggler package, one by one beside trackside's."""

from __future__ import annotations

import dataclasses
import enum
import inspect
import math
import warnings

import attrs
import pytest

from trackside.compat import straggler as ours

pytestmark = [pytest.mark.integration, pytest.mark.torch]

NAMES = ("CallableId", "Detector", "Report", "Statistic", "StragglerId")
METHODS = """
    initialize shutdown generate_report generate_report_if_interval_elapsed is_interval_elapsed detection_section
    wrap_callables restore_original_callables
""".split()


@pytest.fixture(scope="module")
def theirs():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its dependency pynvml calls itself deprecated when torch looks for it
        from nvidia_resiliency_ext import straggler

        return straggler


def parameters(function):
    """Return names, kinds and defaults; an integer and a float that are equal are one default."""
    return [(one.name, one.kind, one.default) for one in inspect.signature(function).parameters.values()]


class Outer:
    class Inner:
        """A class within a class."""

        def method(self):
            """Do nothing."""


class TestNames:
    @pytest.mark.parametrize("name", NAMES)
    def test_there(self, theirs, name):
        """Each name that they export exists in trackside's module."""
        assert hasattr(theirs, name)
        assert hasattr(ours, name)

    def test_no_more(self, theirs):
        """They export no class that trackside's lacks."""
        given = {name for name, value in vars(theirs).items() if inspect.isclass(value)}
        assert given == set(NAMES)

    def test_methods(self, theirs):
        """The public methods of their detector are those compared here."""
        given = {
            name
            for name, value in vars(theirs.Detector).items()
            if isinstance(value, (classmethod, staticmethod)) and not name.startswith("_")
        }
        assert given == set(METHODS)


class TestSignatures:
    @pytest.mark.parametrize("method", METHODS)
    def test_detector(self, theirs, method):
        """Each method has the same parameters by the same names, with the same defaults."""
        assert parameters(getattr(ours.Detector, method)) == parameters(getattr(theirs.Detector, method))

    def test_identify_stragglers(self, theirs):
        """So does a report's one method."""
        assert parameters(ours.Report.identify_stragglers) == parameters(theirs.Report.identify_stragglers)

    def test_report(self, theirs):
        """A report has their fields in their order, and one more with a default."""
        fields = [field.name for field in attrs.fields(ours.Report)]
        assert fields[:-1] == [field.name for field in dataclasses.fields(theirs.Report)]
        assert fields[-1] == "missing"

    def test_callable_id(self, theirs):
        """An id of a callable has the same parameters."""
        assert parameters(ours.CallableId) == parameters(theirs.CallableId)

    def test_straggler_id(self, theirs):
        """So does a straggler's."""
        names = [field.name for field in dataclasses.fields(theirs.StragglerId)]
        assert list(ours.StragglerId._fields) == names

    def test_statistics(self, theirs):
        """The statistics have the same names and texts."""
        assert issubclass(theirs.Statistic, enum.Enum)
        assert [(one.name, str(one), repr(one)) for one in ours.Statistic] == [
            (one.name, str(one), repr(one)) for one in theirs.Statistic
        ]


class TestBehaviour:
    @pytest.mark.parametrize(
        "obj",
        [math, Outer, Outer(), Outer.Inner, Outer.Inner()],
        ids=["module", "class", "object", "nested class", "nested object"],
    )
    def test_callable_text(self, theirs, obj):
        """A callable's text, the name of its section, is the same."""
        name = "sqrt" if obj is math else "method"
        assert str(ours.CallableId(obj, name)) == str(theirs.CallableId(obj, name))

    @pytest.mark.parametrize(
        "call",
        [lambda detector: detector.generate_report(), lambda detector: detector.generate_report_if_interval_elapsed()],
        ids=["report", "if due"],
    )
    def test_before_initialize(self, theirs, call):
        """Before it is initialized a detector refuses with the same error."""
        for package in (theirs, ours):
            with pytest.raises(AssertionError):
                call(package.Detector)

    def test_section_before_initialize(self, theirs):
        """So does a section."""
        for package in (theirs, ours):
            with pytest.raises(RuntimeError, match="not initialized"), package.Detector.detection_section("s"):
                pass

    def test_initialized(self, theirs):
        """Both report whether they are initialized."""
        assert theirs.Detector.initialized is ours.Detector.initialized is False
        ours.Detector.initialize(scores_to_compute=["relative_perf_scores"])
        try:
            assert ours.Detector.initialized is True
            assert ours.Detector.scores_to_compute == ["relative_perf_scores"]
        finally:
            ours.Detector.shutdown()
        assert ours.Detector.initialized is False

    def test_no_object(self, theirs):
        """No object of it can be made."""
        for package in (theirs, ours):
            with pytest.raises(RuntimeError, match="should not be instantiated"):
                package.Detector()
