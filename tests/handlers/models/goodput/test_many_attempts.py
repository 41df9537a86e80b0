"""A job that was restarted very often."""

from __future__ import annotations

from framing import frame_of
from trackside.events import IterationEnded, Source, SourceStarted
from trackside.handlers import feed
from trackside.handlers.models import GoodputAccumulator
from trackside.handlers.models.goodput._account import Timeline
from trackside.wire import FrameDecoder

S = 10**9
ATTEMPTS = 50


def test_one_of_many(monkeypatch):
    """The answer for one attempt adds up the time of that attempt and its neighbours, and not of all others again."""
    model = GoodputAccumulator()
    for attempt in range(ATTEMPTS):
        source = Source(run_id="run", rank=0, attempt=attempt)
        at_ns = (1_000 + 10 * attempt) * S
        started = SourceStarted(at_ns=at_ns, span_id=0, step=-1, identity=source.to_wire())
        step = IterationEnded(at_ns=at_ns + 5 * S, span_id=1, step=attempt, duration_ns=5 * S)
        feed(FrameDecoder().decode(frame_of(source.id, [started, step])).events, model)
    looked = []
    between = Timeline.between
    monkeypatch.setattr(Timeline, "between", lambda line, *at: looked.append(at) or between(line, *at))
    attempt = model.attempts()[20]
    looked.clear()
    result = model.result(start_ns=attempt.start_ns, end_ns=attempt.end_ns)
    assert (result.start_ns, result.productive_s) == (1_200 * S, 5.0)
    assert 0 < len(looked) < ATTEMPTS
