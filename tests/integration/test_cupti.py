"""Our assumptions about cupti-python, checked against it; no GPU is needed for that."""

from __future__ import annotations

import inspect

import pytest

from trackside.instruments.cupti import KernelRecorder, kernel_recorder

pytestmark = pytest.mark.integration
cupti = pytest.importorskip("cupti.cupti")

CALLED = """
    subscribe unsubscribe activity_register_callbacks activity_enable activity_disable activity_flush_all
    activity_get_num_dropped_records
""".split()
READ = "kind name start end block_x block_y block_z grid_x grid_y grid_z".split()


class TestInterface:
    @pytest.mark.parametrize("name", CALLED)
    def test_functions(self, name):
        """Each function that is called is there."""
        assert callable(getattr(cupti, name))

    @pytest.mark.parametrize(
        ("name", "arguments"),
        [
            ("subscribe", ["callback", "userdata"]),
            ("activity_register_callbacks", ["func_buffer_requested", "func_buffer_completed"]),
            ("activity_get_num_dropped_records", ["context", "stream_id", "dropped"]),
        ],
    )
    def test_arguments(self, name, arguments):
        """Those that take several take them in this order."""
        assert list(inspect.signature(getattr(cupti, name)).parameters) == arguments

    def test_records(self):
        """Every kind of kernel record has the fields that are read."""
        kinds = [
            cls for name, cls in vars(cupti).items() if name.startswith("ActivityKernel") and isinstance(cls, type)
        ]
        assert kinds
        assert [(cls.__name__, field) for cls in kinds for field in READ if not hasattr(cls, field)] == []

    def test_errors(self):
        """An error tells its number, by which one that means another profiler is known."""
        taken = cupti.Result.ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED
        assert cupti.cuptiError(int(taken)).status == taken


class TestWithoutDriver:
    def test_reason(self):
        """Where there is no driver CUPTI's own words are the reason, and nothing is held on to."""
        for _ in range(2):
            try:
                recorder = kernel_recorder()
            except RuntimeError as error:
                assert str(error).startswith("CUPTI: ")  # noqa: PT017  there is a driver, or there is none
            else:
                assert isinstance(recorder, KernelRecorder)
                recorder.close()
