"""The problems of the input, in the words in which results name them."""

from __future__ import annotations

from typing import Final

IMPOSSIBLE_TIME: Final = "an impossible time"
MALFORMED: Final = "a malformed event"
REPEATED: Final = "a record that was there already"
OUT_OF_ORDER: Final = "a step out of order"
OVERLAPPING_STEPS: Final = "a step that began before the last one ended"
COUNTED_ANEW: Final = "steps counted anew without a checkpoint loaded"
NO_END: Final = "a span without an end"
DROPPED: Final = "an event that was given up for lack of room"
SECOND_WRITER: Final = "a second process of the same rank at the same time"
OVERLAPPING_ATTEMPTS: Final = "an attempt that began before the last one fell silent"
NO_GOOD_END: Final = "an attempt that fell silent without an end"
OTHER_SESSIONS: Final = "another session"
NAME_USED_AGAIN: Final = "a run that began anew after a good end: the session's name may have been used again"
EARLIER_UNREAD: Final = "earlier attempts that were not read"
