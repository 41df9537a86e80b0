"""
The bounds on what one peer can make the others hold, compute, send and record.

`docs/security.md` states them; a message or peer that goes beyond one is dropped or refused, and counted.
"""

from __future__ import annotations

from typing import Final

import attrs

# --- messages ---------------------------------------------------------------------------------------------------------

MAX_PARTS: Final = 2
MAX_HEAD_BYTES: Final = 64 << 10
MAX_VERB_BYTES: Final = 4 << 10
"""Of the head of a verb: every job that it reaches records it."""
MAX_BODY_BYTES: Final = 1 << 20
"""Of one part of a message; every socket refuses larger ones."""
MAX_TEXT: Final = 1024
"""Characters of one text in a message."""
MAX_NAMES: Final = 64
"""Type names in a filter, models in a request, sources in a verb's target."""
MAX_RULE_BYTES: Final = 16 << 10
"""Of a filter's rule."""
MAX_COUNT: Final = 1 << 62
"""The largest count or sequence number that is believed; sums saturate there."""

# --- time -------------------------------------------------------------------------------------------------------------

BEAT_S: Final = 1.0
"""Between two beats of a source end, and between two pings of a viewer end."""
SILENT_AFTER_BEATS: Final = 3
FORGET_AFTER_S: Final = 30.0
"""A peer that was not heard for so long is forgotten, and what was kept for it with it."""
RENEW_AFTER_S: Final = 8.0
"""A connection over which nothing was heard for eight beats is made anew."""
RENEW_AT_MOST_S: Final = 30.0
"""The longest time between two such attempts."""

# --- connections ------------------------------------------------------------------------------------------------------

MAX_VIEWERS: Final = 64
"""Of one publisher."""
MAX_COLLECTOR_VIEWERS: Final = 256
MAX_PRODUCERS: Final = 8192
"""Ranks and forwarders that one collector or forwarder serves."""
SEND_MESSAGES: Final = 1024
"""Messages that may wait for one peer. Their bytes are bounded by the window."""
RECEIVE_MESSAGES: Final = 1024
"""Messages of one peer that may wait to be read."""
WAITING_MESSAGES: Final = 32
"""The same, where there may be thousands of producers: more waits at their ends, in their rings."""

# --- streams ----------------------------------------------------------------------------------------------------------

WINDOW_BYTES: Final = 4 << 20
"""What may be on its way to one viewer and not yet acknowledged."""
MIN_WINDOW_BYTES: Final = 1 << 20
LEAST_WINDOW_BYTES: Final = 128 << 10
ALL_WINDOWS_BYTES: Final = 8 << 20
"""What may be on its way to all viewers of a source end."""
ALL_RECEIVE_WINDOWS_BYTES: Final = 64 << 20
"""What may be on its way from all producers of a receiver."""
MAX_IN_FLIGHT: Final = 900
"""Entries sent and not acknowledged; the socket has room for more, so that it refuses none of them."""
MAX_OUT_OF_ORDER: Final = 4096
"""Entries that came before their turn, of one stream."""
VIEWER_MESSAGES_PER_S: Final = 1000.0
NEW_STREAMS_PER_S: Final = 16.0
"""Each stream is one of the job's handlers: a viewer that wants another one all the time has to wait."""
VERBS_PER_S: Final = 2.0
"""Of one key: each verb is recorded, whether it was allowed or not."""
VERBS_AT_ONCE: Final = 20.0
MAX_ANSWERS: Final = 1 << 16
"""Results of verbs that wait for room on the way to their viewers."""

# --- snapshots --------------------------------------------------------------------------------------------------------

CHUNK_BYTES: Final = 512 << 10
"""Of a snapshot, in one message."""
MAX_CHUNKS: Final = 4
"""Chunks that are sent for one request."""
MAX_SNAPSHOT_BYTES: Final = 64 << 20
"""Of one snapshot, and of all that wait at a source end or are fetched by a viewer end."""
MAX_SOURCES_BYTES: Final = 32 << 20
"""Of the snapshot of one producer, which lists the sources behind it; enough for 60,000 of them."""
DISTRUSTED_SNAPSHOT_BYTES: Final = 1 << 20
"""Of the snapshot of a producer that announced one before and did not send it."""
SNAPSHOT_WITHIN_S: Final = 30.0
"""In which a snapshot is to be fetched; then its room is given back."""

# --- sources ----------------------------------------------------------------------------------------------------------

MAX_SOURCES: Final = 1 << 18
MAX_SOURCES_OF_ONE: Final = 1 << 15
"""Sources behind one producer: a rank and its workers, or all ranks of a forwarder."""
MAX_UNHEARD_SOURCES: Final = 1024
"""Sources of which nothing but losses has come."""
EVENTS_PER_SOURCE: Final = 200
"""What a new source costs its producer of its events: it is a file, and a line in every snapshot."""
MAX_OPEN_SPANS_BYTES: Final = 4 << 10
"""Of the open spans in a heartbeat, as they are kept for when the source falls silent."""

# --- what one producer may use ----------------------------------------------------------------------------------------

BURST_S: Final = 4.0
"""What may come at once, in seconds of the allowance: what the ring of a rank held while the network was away."""
_USUAL_S_PER_EVENT: Final = 50e-6
_USUAL_S_PER_BYTE: Final = 50e-9
"""Processor time that a message may take for nothing: several times what decoding and a collector's models need."""


@attrs.frozen
class PeerLimits:
    """What one producer may use in each second."""

    events: float = 200_000.0
    size_bytes: float = float(32 << 20)
    messages: float = 2_000.0
    extra_cpu_s: float = 0.1
    """Processor time beyond what messages of their size and number of events take."""


@attrs.define
class TokenBucket:
    """
    An allowance that fills with time, up to *burst*.

    Args:
        per_s: Tokens that come in each second.
        burst: Tokens that there are at most, and in the beginning.
    """

    per_s: float
    burst: float
    tokens: float = attrs.field(init=False)
    _at_s: float | None = None

    def __attrs_post_init__(self) -> None:
        self.tokens = self.burst

    def take(self, now_s: float) -> bool:
        """Take one token; False if there is none."""
        passed_s = 0.0 if self._at_s is None else max(0.0, now_s - self._at_s)
        self._at_s = now_s
        self.tokens = min(self.burst, self.tokens + passed_s * self.per_s)
        if self.tokens < 1:
            return False
        self.tokens -= 1
        return True


STRANGERS: Final = PeerLimits(events=1e9, size_bytes=float(16 << 20), messages=20_000.0)
"""What all who have not greeted may use together."""


@attrs.define
class PeerBuckets:
    """
    What is left of one producer's allowance. It fills with time, and may fall below zero; then nothing is admitted.

    Args:
        limits: What it fills with.
        now_s: The time now, by any clock that only goes forward.
    """

    _limits: PeerLimits
    _at_s: float
    _events: float = attrs.field(init=False)
    _bytes: float = attrs.field(init=False)
    _messages: float = attrs.field(init=False)
    _extra_cpu_s: float = attrs.field(init=False)
    charged_events: float = attrs.field(default=0.0, init=False)
    cut_messages: int = attrs.field(default=0, init=False)
    """Not admitted so far."""
    cut_bytes: int = attrs.field(default=0, init=False)

    def __attrs_post_init__(self) -> None:
        self._events = self._limits.events * BURST_S
        self._bytes = self._limits.size_bytes * BURST_S
        self._messages = self._limits.messages * BURST_S
        self._extra_cpu_s = self._limits.extra_cpu_s * BURST_S

    def admit(self, size_bytes: int, now_s: float) -> bool:
        """Take a message of *size_bytes* out of the allowance; False, and counted, if there is nothing left."""
        if self.is_empty(now_s):
            self.cut_messages += 1
            self.cut_bytes += size_bytes
            return False
        self._bytes -= size_bytes
        self._messages -= 1
        return True

    def charge(self, events: int) -> None:
        """Take *events* that were found in an admitted message out of the allowance."""
        self._events -= events
        self.charged_events += events

    def charge_cpu(self, spent_s: float, size_bytes: int, events: float) -> None:
        """Take the processor time out of the allowance that a message cost beyond what is usual for its size."""
        usual_s = _USUAL_S_PER_EVENT * (1 + events) + _USUAL_S_PER_BYTE * size_bytes
        self._extra_cpu_s -= max(0.0, spent_s - usual_s)

    def is_empty(self, now_s: float) -> bool:
        """Return whether nothing would be admitted."""
        self._fill(now_s)
        return min(self._events, self._bytes, self._messages, self._extra_cpu_s) <= 0

    def _fill(self, now_s: float) -> None:
        passed_s = now_s - self._at_s
        if passed_s > 0:
            limits = self._limits
            self._at_s = now_s
            self._events = min(self._events + limits.events * passed_s, limits.events * BURST_S)
            self._bytes = min(self._bytes + limits.size_bytes * passed_s, limits.size_bytes * BURST_S)
            self._messages = min(self._messages + limits.messages * passed_s, limits.messages * BURST_S)
            self._extra_cpu_s = min(self._extra_cpu_s + limits.extra_cpu_s * passed_s, limits.extra_cpu_s * BURST_S)
