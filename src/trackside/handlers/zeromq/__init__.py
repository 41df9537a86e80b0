"""
The stream over ZeroMQ: out of a job, into other processes, through collectors.

Importing this loads no zmq: `_zmq` does when the first socket is made, and every module here takes the library from
there. `docs/remote-protocol.md` says what is sent when.
"""

from trackside.handlers.zeromq._attach import attach
from trackside.handlers.zeromq._attachment import Attachment, Gap, Joined
from trackside.handlers.zeromq._collector import Collector
from trackside.handlers.zeromq._command import Outcome, command
from trackside.handlers.zeromq._dispatch import is_target, may_command
from trackside.handlers.zeromq._filter import ALWAYS, Filter
from trackside.handlers.zeromq._forwarder import Forwarder
from trackside.handlers.zeromq._keys import ROLES as KEY_ROLES
from trackside.handlers.zeromq._keys import new_keys
from trackside.handlers.zeromq._notes import Note, find_endpoints
from trackside.handlers.zeromq._protocol import VERBS, Result, Verb
from trackside.handlers.zeromq._publisher import Publisher
from trackside.handlers.zeromq._quota import Quota
from trackside.handlers.zeromq._ring import RING_BYTES
from trackside.handlers.zeromq._snapshot import names_of

__all__ = [
    "ALWAYS",
    "KEY_ROLES",
    "RING_BYTES",
    "VERBS",
    "Attachment",
    "Collector",
    "Filter",
    "Forwarder",
    "Gap",
    "Joined",
    "Note",
    "Outcome",
    "Publisher",
    "Quota",
    "Result",
    "Verb",
    "attach",
    "command",
    "find_endpoints",
    "is_target",
    "may_command",
    "names_of",
    "new_keys",
]
