"""The code that the callbacks of all frameworks share; the frameworks themselves are in tests/integration."""

from __future__ import annotations

import collections
import importlib
import sys
import time

import pytest

import trackside
from trackside.events import IterationEnded, ProfileSpanEnded, SectionWindow, SpanEnded
from trackside.instruments import callbacks, section_windows
from trackside.instruments._moments import end_with
from trackside.instruments._span import RunError
from trackside.integrations._parts import Parts, Patches, samples_in, time_loading


class Tensor:
    """The part of a tensor's interface that counting samples needs."""

    def __init__(self, *shape):
        self.shape = shape


def of(kind, events):
    return [event for event in events if isinstance(event, kind)]


class TestMissingExtra:
    @pytest.mark.parametrize("library", ["lightning", "pytorch_lightning", "transformers", "accelerate"])
    def test_is_named(self, library, monkeypatch):
        """Without the library, one line says what to install."""
        monkeypatch.delitem(sys.modules, f"trackside.integrations.{library}", raising=False)
        monkeypatch.setitem(sys.modules, library, None)
        with pytest.raises(ImportError) as raised:
            importlib.import_module(f"trackside.integrations.{library}")
        assert f"pip install 'trackside[{library.replace('_', '-')}]'" in str(raised.value)
        assert isinstance(raised.value, trackside.TracksideError)
        assert "\n" not in str(raised.value)


class TestSamplesIn:
    @pytest.mark.parametrize(
        ("batch", "expected"),
        [
            (Tensor(8, 3), 8),
            (Tensor(), 1),
            ([Tensor(4), Tensor(5)], 4),
            ({"text": "abc", "x": Tensor(6)}, 6),
            (collections.UserDict(x=[["name", Tensor(2)]]), 2),
            ("text", None),
            ([], None),
            (None, None),
            ([[[[[Tensor(7)]]]]], None),
        ],
    )
    def test_is_the_length_of_the_first_tensor(self, batch, expected):
        """
        The size of a batch is the length of the first tensor in it, however it is packed; without one it is unknown.
        """
        assert samples_in(batch) == expected


class TestParts:
    def test_a_part(self, events):
        """A part is a span, and in its window a section of the same name."""
        parts = Parts()
        with trackside.training_iteration(0):
            parts.begin("model_forward")
            parts.end("model_forward")
        trackside.instruments.close_section_window()
        (span,), (window,) = of(ProfileSpanEnded, events), of(SectionWindow, events)
        assert (span.name, span.step) == ("model_forward", 0)
        assert window.counts[window.names.index("model_forward")] == 1

    def test_disorder(self, events):
        """An end without a start, and a start of an open span, do nothing."""
        parts = Parts()
        parts.end("model_forward")
        parts.begin("model_forward")
        parts.begin("model_forward")
        parts.end("model_forward")
        assert [type(event) for event in events] == [ProfileSpanEnded]

    def test_what_is_over(self, events):
        """A part that is recorded afterwards has its given start."""
        began_ns = trackside.events.clock.now_ns() - 5_000_000
        Parts().took("data_loading", began_ns)
        (span,) = of(ProfileSpanEnded, events)
        assert span.at_ns - span.duration_ns == began_ns

    @pytest.mark.parametrize("is_shared", [True, False])
    def test_waiting(self, is_shared, events):
        """A backward pass waits for other ranks, where there are others: then it is timed and not scored."""
        section_windows._sections.close()
        parts = Parts()
        parts.is_shared = is_shared
        with trackside.training_iteration(0):
            for name in ("model_forward", "model_backward"):
                parts.begin(name)
                parts.end(name)
        trackside.instruments.close_section_window()
        (window,) = of(SectionWindow, events)
        assert window.waits == (["model_backward"] if is_shared else [])
        section_windows._sections.close()

    @pytest.mark.torch
    def test_waiting_apart(self, events):
        """If autograd reports when the gradients are computed, the time after that is waiting."""
        import torch

        section_windows._sections.close()
        parts = Parts()
        parts.is_shared = True
        weight = torch.ones((), requires_grad=True)
        engine = torch.autograd.Variable._execution_engine
        # As distributed training does it: when the last gradient comes, it has the engine call it back to wait.
        weight.register_hook(lambda _: (time.sleep(0.02), engine.queue_callback(lambda: time.sleep(0.05)))[0])
        with trackside.training_iteration(0):
            loss = weight * 2
            parts.begin_backward(loss)
            loss.backward()
            parts.end("model_backward")
        trackside.instruments.close_section_window()
        (window,) = of(SectionWindow, events)
        assert window.waits == ["gradient_synchronization"]
        backward, synchronization = of(ProfileSpanEnded, events)
        assert (backward.name, synchronization.name) == ("model_backward", "gradient_synchronization")
        assert backward.duration_ns >= 20e6
        assert synchronization.duration_ns >= 50e6
        assert synchronization.at_ns - synchronization.duration_ns == pytest.approx(backward.at_ns, abs=1_000)
        took = dict(zip(window.names, window.median_ns, strict=True))
        assert took["gradient_synchronization"] == pytest.approx(synchronization.duration_ns, rel=0.1)
        section_windows._sections.close()

    @pytest.mark.torch
    def test_no_gradient_comes(self, events):
        """A backward pass that never reaches its loss is a part like any other."""
        import torch

        parts = Parts()
        parts.is_shared = True
        parts.begin_backward(torch.ones((), requires_grad=True) * 2)
        parts.end("model_backward")
        assert [event.name for event in of(ProfileSpanEnded, events)] == ["model_backward"]

    def test_failing(self, events):
        """A part that an exception ends is not timed."""
        section_windows._sections.close()
        parts = Parts()
        with trackside.training_iteration(0):
            parts.begin("model_forward")
            parts.end_all(ValueError())
            end_with(ValueError())
        trackside.instruments.close_section_window()
        windows = of(SectionWindow, events)
        assert [window.counts for window in windows] in ([], [[]])
        assert of(ProfileSpanEnded, events)[0].error["type"] == "ValueError"


class TestEndWith:
    def test_closes_all_but_the_application(self, events):
        """Every span that callbacks left open ends with the error, the innermost first."""
        callbacks.on_app_start()
        callbacks.on_train_start()
        callbacks.on_training_single_iteration_start(step=3)
        end_with(RunError())
        (iteration,), (loop,) = of(IterationEnded, events), of(SpanEnded, events)
        assert (iteration.step, iteration.failed) == (3, True)
        assert (loop.name, loop.error["message"]) == ("training_loop", str(RunError()))
        callbacks.on_app_end()
        assert of(SpanEnded, events)[-1].name == "application"
        assert of(trackside.events.SpanOutOfOrder, events) == []


class TestPatches:
    def test_puts_back(self):
        """A method of a class, or of an object, is replaced and restored; a missing one is skipped."""

        class Owner:
            def method(self):
                return 1

        one, patches = Owner(), Patches()
        patches.replace(one, "method", lambda method: lambda: method() + 1)
        patches.replace(one, "missing", lambda method: method)
        assert one.method() == 2
        patches.remove()
        assert (one.method(), vars(one)) == (1, {})
        patches.replace(Owner, "method", lambda method: lambda self: method(self) + 2)
        assert one.method() == 3
        patches.remove()
        assert one.method() == 1

    def test_leaves_what_others_did(self):
        """A method that others replaced since stays theirs."""

        class Owner:
            def method(self):
                return 1

        one, patches = Owner(), Patches()
        patches.replace(one, "method", lambda method: lambda: method() + 1)
        ours = one.method
        one.method = lambda: ours() + 10
        patches.remove()
        assert one.method() == 12


class Loader:
    """Yields three batches."""

    def __iter__(self):
        return iter([Tensor(1), Tensor(2), Tensor(3)])


class TestTimeLoading:
    def test_waits(self, events):
        """Each batch has its wait, in order, and the object stays the same."""
        loader, seen = Loader(), []
        end = time_loading(loader, Parts(), seen.append)
        batches = list(loader)
        assert isinstance(loader, Loader)
        assert [batch.shape for batch in batches] == [(1,), (2,), (3,)]
        assert seen == batches
        assert [event.name for event in events] == ["data_loading"] * 4  # the fourth finds that there is none
        end()
        assert type(loader) is Loader

    @pytest.mark.parametrize("loader", [[1, 2], (1, 2), range(2)])
    def test_what_cannot_be_changed(self, loader):
        """A loader whose class cannot be another one is left alone."""
        end = time_loading(loader, Parts(), print)
        assert len(list(loader)) == 2
        end()

    def test_hidden_class(self, events):
        """An object that says it is of another class is timed too."""

        class Adapter(Loader):
            @property
            def __class__(self):
                return list

        loader = Adapter()
        end = time_loading(loader, Parts(), lambda _batch: None)
        list(loader)
        assert len(events) == 4
        end()
        assert type(loader) is Adapter
