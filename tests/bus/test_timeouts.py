"""flush() and close() take no longer than their timeout."""

from __future__ import annotations

import math
import threading
import time

import pytest

from ticking import Ticked
from trackside.events import RunsOn


class TestTimeouts:
    @pytest.mark.parametrize("timeout_s", [5, 60.0, 1e300, math.inf, threading.TIMEOUT_MAX])
    @pytest.mark.parametrize("method", ["flush", "close"])
    def test_long(self, make_bus, model, method, timeout_s):
        """With a timeout of any length, both succeed quickly."""
        bus = make_bus()
        bus.subscribe(model, to=Ticked)
        bus.subscribe(lambda _event: None, to=Ticked, runs_on=RunsOn.WORKER)
        bus.log(Ticked())
        started = time.monotonic()
        assert getattr(bus, method)(timeout_s)
        assert time.monotonic() - started < 10
        assert len(model.events) == 1

    @pytest.mark.parametrize("timeout_s", [0, -1, -math.inf])
    @pytest.mark.parametrize("method", ["flush", "close"])
    def test_none(self, make_bus, gate, method, timeout_s):
        """Without time neither waits, and neither raises."""
        bus = make_bus()
        bus.subscribe(gate, to=Ticked, runs_on=RunsOn.WORKER)
        bus.log(Ticked())
        started = time.monotonic()
        assert not getattr(bus, method)(timeout_s)
        assert time.monotonic() - started < 5
        assert bus.stats().total("balance") == 0

    @pytest.mark.parametrize("timeout_s", [0, -1, 5, math.inf])
    def test_subscription(self, bus, timeout_s):
        """The same holds for a subscription."""
        subscription = bus.subscribe(lambda _event: None, to=Ticked, runs_on=RunsOn.WORKER)
        bus.log(Ticked())
        started = time.monotonic()
        assert subscription.close(timeout_s) is (timeout_s > 0) or timeout_s <= 0
        assert time.monotonic() - started < 10

    def test_stuck_dispatcher(self, bus, make_model, gate):
        """A model that blocks, against the rules, blocks neither flush() nor close() nor the counts for long."""
        bus.subscribe(make_model(gate), to=Ticked)
        for _ in range(3):
            bus.log(Ticked())
        assert gate.entered.wait(10)
        started = time.monotonic()
        assert not bus.flush(0.2)
        assert bus.stats(0.2).handlers[0].in_queue == 3
        assert not bus.close(0.2)
        assert time.monotonic() - started < 10

    def test_by_a_second_thread(self, bus, gate):
        """A thread that flushes while another waits for a stuck handler waits no longer than it wants."""
        bus.subscribe(gate, to=Ticked, runs_on=RunsOn.WORKER)
        bus.log(Ticked())
        other = threading.Thread(target=bus.flush, args=(5.0,))
        other.start()
        assert gate.entered.wait(10)
        started = time.monotonic()
        assert not bus.flush(0.1)
        assert time.monotonic() - started < 3
        gate.go_on.set()
        other.join()
