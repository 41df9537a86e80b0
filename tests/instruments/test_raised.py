"""Exceptions that leave spans are recorded where they were raised, and passed on unchanged."""

from __future__ import annotations

import asyncio
import builtins
import concurrent.futures
import contextlib
import gc
import weakref

import pytest

from interrupting import Interruption, raising_signals
from trackside.events import ExceptionRaised, IterationEnded, SpanEnded, SpanEventAdded, ambient
from trackside.instruments import (
    application,
    checkpoint_load,
    data_loading,
    model_forward,
    record_exception,
    span,
    training_iteration,
    training_loop,
)

# The blocks of a job, as they are nested.
BLOCKS = [application, training_loop, training_iteration, model_forward, lambda: span("attention")]


def ended(captured, name):
    (found,) = [event for event in captured.of(SpanEnded) if event.name == name]
    return found


def run(blocks, raised, where):
    """Open *blocks* inside each other and raise at depth *where*, counted from the outside."""
    with contextlib.ExitStack() as stack:
        for depth, block in enumerate(blocks):
            if depth == where:
                raise raised
            stack.enter_context(block())
        raise raised


class TestNested:
    @pytest.mark.parametrize("depth", range(1, len(BLOCKS) + 1))
    def test_unchanged(self, captured, depth):
        """Through any number of spans, the caller gets the same exception, with its arguments and no more."""
        raised = ValueError("bad batch", 7)
        with pytest.raises(ValueError) as caught:
            run(BLOCKS, raised, depth)
        assert caught.value is raised
        assert (raised.args, raised.__dict__, raised.__cause__, raised.__context__) == (
            ("bad batch", 7),
            {},
            None,
            None,
        )

    @pytest.mark.parametrize("depth", range(1, len(BLOCKS) + 1))
    def test_everything_closes(self, captured, depth):
        """Every open span ends, and afterwards no span is open."""
        with pytest.raises(ValueError):
            run(BLOCKS, ValueError("bad batch"), depth)
        assert len(captured.of(SpanEnded)) + len(captured.of(IterationEnded)) == depth
        assert ambient.get() == (0, -1)

    @pytest.mark.parametrize("depth", range(1, len(BLOCKS) + 1))
    def test_one_origin(self, captured, depth):
        """The traceback is recorded once, with the innermost span."""
        with pytest.raises(ValueError):
            run(BLOCKS, ValueError("bad batch"), depth)
        names = ["application", "training_loop", "(iteration)", "model_forward", "attention"]
        origins = [event.name for event in captured.of(SpanEnded) if event.error and "traceback" in event.error]
        origins += ["(iteration)" for event in captured.of(SpanEventAdded) if event.name == "error"]
        assert origins == [names[depth - 1]]

    @pytest.mark.parametrize("depth", range(1, len(BLOCKS) + 1))
    def test_those_around(self, captured, depth):
        """Every span around it names the one it was raised in."""
        with pytest.raises(ValueError):
            run(BLOCKS, ValueError("bad batch"), depth)
        ids = [event.span_id for event in captured if isinstance(event, (SpanEnded, IterationEnded))]
        errors = [event.error for event in captured.of(SpanEnded) if event.error and "traceback" not in event.error]
        assert all(
            error == {"type": "ValueError", "message": "bad batch", "raised_in": str(ids[0])} for error in errors
        )

    def test_type_message_traceback(self, captured):
        """Type, message and the line that raised are recorded."""
        with pytest.raises(ZeroDivisionError), span("divide"):
            1 / 0  # noqa: B018  the line in question
        error = ended(captured, "divide").error
        assert (error["type"], error["message"]) == ("ZeroDivisionError", "division by zero")
        assert "1 / 0  # noqa: B018  the line in question" in error["traceback"]

    def test_qualified_type(self, captured):
        """A class that is not built in is named with its module."""
        with pytest.raises(concurrent.futures.CancelledError), span("x"):
            raise concurrent.futures.CancelledError
        assert ended(captured, "x").error["type"].endswith("CancelledError")
        assert "." in ended(captured, "x").error["type"]

    def test_caught_inside(self, captured):
        """An exception that is caught inside a span is not recorded on it."""
        with span("outer"), pytest.raises(ValueError), span("inner"):
            raise ValueError
        assert ended(captured, "outer").error is None
        assert ended(captured, "inner").error["type"] == "ValueError"

    def test_raised_from(self, captured):
        """An exception raised from another is recorded by itself."""

        def fail():
            try:
                with span("inner"):
                    raise ValueError("first")
            except ValueError as error:
                raise RuntimeError("second") from error

        with pytest.raises(RuntimeError), span("outer"):
            fail()
        assert "traceback" in ended(captured, "inner").error
        assert ended(captured, "outer").error["message"] == "second"
        assert "traceback" in ended(captured, "outer").error

    def test_raised_again(self, captured):
        """An exception that is caught and raised again counts as raised where it was first."""

        def fail():
            try:
                with span("inner"):
                    raise ValueError("first")
            except ValueError:
                raise

        with pytest.raises(ValueError), span("outer"):
            fail()
        assert ended(captured, "outer").error["raised_in"] == str(ended(captured, "inner").span_id)

    def test_same_address(self, captured):
        """An exception at the address of a forgotten one is not taken for it."""
        for _ in range(100):
            with contextlib.suppress(ValueError), span("outer"):
                with contextlib.suppress(ValueError), span("inner"):
                    raise ValueError("first")
                raise ValueError("second")
        outer = [event.error for event in captured.of(SpanEnded) if event.name == "outer"]
        assert [error for error in outer if error["message"] != "second" or "traceback" not in error] == []

    def test_same_line(self, captured):
        """The same holds if both were raised by the same line of the same function."""

        def fail():
            raise ValueError("no")

        for _ in range(100):
            with contextlib.suppress(ValueError), span("outer"):
                with contextlib.suppress(ValueError), span("inner"):
                    fail()
                fail()
        outer = [event.error for event in captured.of(SpanEnded) if event.name == "outer"]
        assert [error for error in outer if "traceback" not in error] == []

    def test_again_and_again(self, captured):
        """The same holds if both left a span of the same block: each was raised in its own."""
        for _ in range(100):
            with contextlib.suppress(ValueError), span("outer"), span("inner"):
                raise ValueError("no")
        inner = [event.error for event in captured.of(SpanEnded) if event.name == "inner"]
        assert [error for error in inner if "traceback" not in error] == []

    def test_is_not_kept(self, captured):
        """Nothing of an exception is kept alive: its frames may hold a model's memory."""

        class Held:
            pass

        def fail():
            held = Held()
            watched.append(weakref.ref(held))
            raise ValueError

        watched = []
        with contextlib.suppress(ValueError), span("outer"), span("inner"):
            fail()
        gc.collect()
        assert watched[0]() is None

    def test_through_a_decorator(self, captured):
        """The same holds for decorated functions, however deep."""

        @span("descend")
        def descend(depth):
            if not depth:
                raise ValueError("bottom")
            descend(depth - 1)

        with pytest.raises(ValueError):
            descend(5)
        errors = [event.error for event in captured.of(SpanEnded)]
        assert ["traceback" in error for error in errors] == [True, False, False, False, False, False]

    def test_through_tasks(self, captured):
        """The same holds where an exception passes from a task to the awaiting one."""

        async def fail():
            with span("inner"):
                await asyncio.sleep(0)
                raise ValueError

        async def main():
            with span("outer"):
                await asyncio.create_task(fail())

        with pytest.raises(ValueError):
            asyncio.run(main())
        assert ended(captured, "outer").error["raised_in"] == str(ended(captured, "inner").span_id)

    def test_through_threads(self, captured):
        """The same holds where an exception passes from a thread to the waiting one."""

        def fail():
            with span("inner"):
                raise ValueError

        with pytest.raises(ValueError), concurrent.futures.ThreadPoolExecutor(1) as pool, span("outer"):
            pool.submit(fail).result()
        assert ended(captured, "outer").error["raised_in"] == str(ended(captured, "inner").span_id)


class TestOdd:
    @pytest.mark.parametrize("over", [StopIteration, GeneratorExit, StopAsyncIteration])
    def test_no_errors(self, captured, over):
        """Exceptions that signal an end are no errors."""
        with contextlib.suppress(over), data_loading():
            raise over
        assert ended(captured, "data_loading").error is None

    @pytest.mark.parametrize("raised", [KeyboardInterrupt, SystemExit, asyncio.CancelledError])
    def test_endings(self, captured, raised):
        """Exceptions that end a program or a task are recorded as any other, and passed on."""
        with pytest.raises(raised), span("x"):
            raise raised
        assert ended(captured, "x").error["type"].endswith(raised.__name__)

    def test_long_message(self, captured):
        """A long message is cut."""
        with contextlib.suppress(ValueError), span("x"):
            raise ValueError("y" * 1_000_000)
        error = ended(captured, "x").error
        assert (len(error["message"]), len(error["traceback"])) == (2_000, 16_000)

    def test_deep_recursion(self, captured):
        """A traceback of a thousand frames is cut."""

        def descend():
            descend()

        with contextlib.suppress(RecursionError), span("x"):
            descend()
        assert ended(captured, "x").error["type"] == "RecursionError"
        assert len(ended(captured, "x").error["traceback"]) <= 16_000

    def test_broken_message(self, captured):
        """An exception whose str raises is recorded all the same."""

        class Mute(Exception):
            def __str__(self):
                raise RuntimeError

        with pytest.raises(Mute), span("x"):
            raise Mute
        assert ended(captured, "x").error["message"] == "(no message: str() raised RuntimeError)"

    def test_interrupted(self, captured):
        """An exception of the program's signal handler in the str of another comes out; the span has ended once."""

        class Slow(Exception):
            def __str__(self):
                if moments:
                    moments.pop()()
                return ""

        with raising_signals() as interrupt:
            moments = [interrupt]
            with pytest.raises(Interruption), span("x"):
                raise Slow
        with span("y"):
            pass
        assert [event.parent_span_id for event in captured.of(SpanEnded) if event.name == "y"] == [0]

    def test_group(self, captured):
        """An exception group is recorded with its members."""
        group = getattr(builtins, "ExceptionGroup", None)
        if group is None:
            pytest.skip("this Python has no exception groups")
        with pytest.raises(group), span("x"):
            raise group("several", [ValueError("one"), KeyError("two")])
        assert "ValueError: one" in ended(captured, "x").error["traceback"]


class TestIteration:
    def test_event(self, captured):
        """An exception raised in an iteration is an event on it, under One Logger's names."""
        with pytest.raises(ValueError), training_iteration(3) as iteration:
            raise ValueError("bad batch")
        (event,) = captured.of(SpanEventAdded)
        assert (event.span_id, event.step, event.name) == (iteration.id, 3, "error")
        assert event.attributes["exception_type"] == "ValueError"
        assert event.attributes["exception_message"] == "bad batch"
        assert event.attributes["error_message"] == "ValueError: bad batch"
        assert 'raise ValueError("bad batch")' in event.attributes["exception_traceback"]

    def test_fails(self, captured):
        """An iteration that an exception left has failed."""
        with pytest.raises(ValueError), training_iteration(3):
            raise ValueError
        assert [event.failed for event in captured.of(IterationEnded)] == [True]

    def test_exhausted_loader(self, captured):
        """
        An iteration that StopIteration leaves has failed too: there was no such iteration, and no exception event.
        """
        with contextlib.suppress(StopIteration), training_iteration(3):
            next(iter([]))
        assert [event.failed for event in captured.of(IterationEnded)] == [True]
        assert captured.of(SpanEventAdded) == []

    def test_passing_through(self, captured):
        """An exception that was raised in a span inside is that span's."""
        with pytest.raises(ValueError), training_iteration(3), model_forward():
            raise ValueError
        assert captured.of(SpanEventAdded) == []
        assert [event.failed for event in captured.of(IterationEnded)] == [True]

    def test_load(self, captured):
        """A checkpoint that cannot be loaded has the reason recorded."""
        with pytest.raises(FileNotFoundError), checkpoint_load(path="/nowhere"):
            raise FileNotFoundError("/nowhere")
        assert ended(captured, "checkpoint_load").error["type"] == "FileNotFoundError"


class TestPublished:
    @pytest.mark.parametrize("depth", range(1, len(BLOCKS) + 1))
    def test_once(self, captured, depth):
        """Through any number of spans, an exception is published once, with the innermost of them."""
        with pytest.raises(ValueError):
            run(BLOCKS, ValueError("bad batch"), depth)
        (event,) = captured.of(ExceptionRaised)
        names = ["application", "training_loop", "training_single_iteration", "model_forward", "attention"]
        assert (event.type, event.message, event.span_name) == ("ValueError", "bad batch", names[depth - 1])
        assert "ValueError: bad batch" in event.traceback

    def test_step(self, captured):
        """It carries the step and the span that it was raised in."""
        with pytest.raises(ValueError), training_iteration(150), model_forward() as forward:
            raise ValueError
        (event,) = captured.of(ExceptionRaised)
        assert (event.step, event.span_id) == (150, forward.id)

    def test_before_the_span_ends(self, captured):
        """It comes before the ends of the spans that it leaves."""
        with pytest.raises(ValueError), span("load"):
            raise ValueError
        assert [type(event) for event in captured] == [ExceptionRaised, ended(captured, "load").__class__]

    def test_each(self, captured):
        """Two exceptions are two, also from the same line."""
        for message in ("first", "second"):
            with contextlib.suppress(ValueError), span("load"):
                raise ValueError(message)
        assert [event.message for event in captured.of(ExceptionRaised)] == ["first", "second"]

    def test_caught_inside(self, captured):
        """An exception that leaves no span is not published."""
        with span("load"), contextlib.suppress(ValueError):
            raise ValueError
        assert captured.of(ExceptionRaised) == []

    @pytest.mark.parametrize("error", [StopIteration(), GeneratorExit(), SystemExit(), SystemExit(0)])
    def test_good_end(self, captured, error):
        """Exceptions that end a loop or a program in good order are not published."""
        with contextlib.suppress(BaseException), span("load"):
            raise error
        record_exception(error)
        assert captured.of(ExceptionRaised) == []

    def test_bad_exit(self, captured):
        """An exit with a status other than 0 is published."""
        with contextlib.suppress(SystemExit), span("load"):
            raise SystemExit(3)
        assert [event.message for event in captured.of(ExceptionRaised)] == ["3"]

    def test_recorded_by_hand(self, captured):
        """
        An exception that a framework caught is published once, however often it is recorded and through whichever spans
        it passes.
        """
        with contextlib.suppress(ValueError), span("outer"), span("fit"):
            try:
                raise ValueError("caught")
            except ValueError as error:
                record_exception(error)
                record_exception(error)
                raise
        assert [event.message for event in captured.of(ExceptionRaised)] == ["caught"]
        assert "traceback" in ended(captured, "fit").error

    def test_bounds(self, captured):
        """A long message and a deep traceback are cut."""

        def fall(depth):
            if depth:
                fall(depth - 1)
            raise ValueError("x" * 10_000)

        with pytest.raises(ValueError), span("load"):
            fall(300)
        (event,) = captured.of(ExceptionRaised)
        assert (len(event.message), len(event.traceback) <= 16_000) == (2_000, True)

    @pytest.mark.parametrize(
        ("error", "expected"),
        [
            (MemoryError(), True),
            (type("OutOfMemoryError", (RuntimeError,), {})("Tried to allocate 2 GiB"), True),
            (RuntimeError("CUDA out of memory. Tried to allocate 20.00 MiB"), True),
            (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate"), True),
            (RuntimeError("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 8 bytes"), True),
            (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False),
            (ValueError("out of memory"), False),
        ],
    )
    def test_out_of_memory(self, captured, error, expected):
        """Out-of-memory errors are recognised, whichever library raises them."""
        with contextlib.suppress(Exception), span("load"):
            raise error
        assert [event.is_out_of_memory for event in captured.of(ExceptionRaised)] == [expected]
