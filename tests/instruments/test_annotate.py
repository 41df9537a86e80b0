"""Spans in other libraries' profilers."""

from __future__ import annotations

import importlib.util

import pytest

from trackside.events import ConfigError, MissingExtraError, ambient
from trackside.instruments import annotate, model_forward, span, training_iteration
from trackside.instruments._span import set_annotator


@pytest.fixture(autouse=True)
def no_annotation():
    """Remove the annotator again."""
    yield
    set_annotator(None)


class TestAnnotator:
    def test_nesting(self):
        """Ranges open and close as the spans do, though no handler listens."""
        calls = []

        def note(name):
            calls.append(f"+{name}")
            return lambda: calls.append(f"-{name}")

        set_annotator(note)
        with training_iteration(3), model_forward():
            pass
        assert calls == ["+training_single_iteration", "+model_forward", "-model_forward", "-training_single_iteration"]

    @pytest.mark.parametrize("fails", ["at the start", "at the end"])
    def test_broken(self, captured, caplog, fails):
        """A profiler that fails is no longer called; spans go on."""

        def broken(name):
            if fails == "at the start":
                raise RuntimeError("no profiler")

            def end():
                raise RuntimeError("no profiler")

            return end

        set_annotator(broken)
        with span("outer"), span("inner"):
            pass
        assert len(captured) == 2
        assert ambient.get() == (0, -1)
        assert caplog.messages == ["spans are not shown in the profiler any more: RuntimeError: no profiler"]

    def test_wrong(self):
        """A name that is none of the two is refused."""
        with pytest.raises(ConfigError, match='annotate: got \'perfetto\'; give "record_function", "nvtx" or None'):
            annotate("perfetto")

    @pytest.mark.skipif(importlib.util.find_spec("torch") is not None, reason="torch is installed")
    def test_no_torch(self):
        """If torch is missing, one line says what to install."""
        with pytest.raises(MissingExtraError, match="pip install 'trackside\\[torch\\]'"):
            annotate("record_function")


@pytest.mark.torch
class TestTorch:
    @pytest.mark.filterwarnings("ignore:.*Profiler clears events:UserWarning")
    def test_record_function(self, captured):
        """Spans appear in a trace of torch.profiler, with the operations inside them."""
        import torch

        annotate("record_function")
        profiler = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])
        with profiler, training_iteration(0), model_forward():
            torch.ones(2) + torch.ones(2)
        events = {event.name: event for event in profiler.events()}
        outer, inner, add = (events[name] for name in ("training_single_iteration", "model_forward", "aten::add"))
        assert outer.time_range.start <= inner.time_range.start <= add.time_range.start
        assert add.time_range.end <= inner.time_range.end <= outer.time_range.end

    def test_nvtx_without_cuda(self):
        """If torch has no NVTX, one line says so."""
        import torch

        if torch.cuda.is_available():
            pytest.skip("there is a CUDA device here")
        with pytest.raises(ConfigError, match="built with CUDA"):
            annotate("nvtx")

    def test_loss(self, captured):
        """A loss that is a tensor is detached: the graph behind it is not kept, and the value is right."""
        import torch

        from trackside.events import IterationEnded

        weight = torch.ones(1, requires_grad=True)
        with training_iteration(0) as iteration:
            iteration.set(loss=(weight * 3).sum())
        (event,) = captured.of(IterationEnded)
        assert (event.loss.requires_grad, float(event.loss)) == (False, 3.0)
