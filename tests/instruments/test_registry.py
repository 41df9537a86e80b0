"""The spans that are open at a moment."""

from __future__ import annotations

import threading

from trackside.instruments import application, open_spans, span, training_iteration


class TestOpenSpans:
    def test_nothing(self, captured):
        """If no span is open the list is empty."""
        assert open_spans() == {}

    def test_innermost(self, captured, ticking):
        """The innermost span of each thread is listed, with id, name and start."""
        with application():
            ticking.now_ns += 5
            with training_iteration(3) as iteration:
                ticking.now_ns += 70
                assert open_spans() == {"MainThread": [iteration.id, "training_single_iteration", 11_000_000_005]}

    def test_after_the_inner_ended(self, captured):
        """After its end the one around it is listed again."""
        with application() as app:
            with span("x"):
                pass
            assert open_spans()["MainThread"][:2] == [app.id, "application"]

    def test_threads(self, captured):
        """Every thread has its own entry."""
        inside, over = threading.Barrier(3), threading.Event()

        def work():
            with span(f"in {threading.current_thread().name}"):
                inside.wait(10)
                over.wait(10)

        threads = [threading.Thread(target=work, name=name) for name in ("a", "b")]
        for thread in threads:
            thread.start()
        inside.wait(10)
        found = {thread: name for thread, (_, name, _) in open_spans().items()}
        over.set()
        for thread in threads:
            thread.join()
        assert found == {"a": "in a", "b": "in b"}

    def test_threads_of_one_name(self, captured):
        """Threads that share a name are distinguished."""
        inside, over = threading.Barrier(3), threading.Event()

        def work():
            with span("x"):
                inside.wait(10)
                over.wait(10)

        threads = [threading.Thread(target=work, name="same") for _ in range(2)]
        for thread in threads:
            thread.start()
        inside.wait(10)
        found = len(open_spans())
        over.set()
        for thread in threads:
            thread.join()
        assert found == 2
