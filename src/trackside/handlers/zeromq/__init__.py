"""
Event streams over ZeroMQ, from a job to other processes, directly or through collectors.

Importing this does not load zmq; `_keys` loads it when the first socket is made.
`docs/remote-protocol.md` describes the messages and their order.
"""

from trackside.handlers.zeromq._attachment import Attachment, Gap, Joined, attach
from trackside.handlers.zeromq._collector import Collector, MultiLogWriter
from trackside.handlers.zeromq._control import Outcome, command, is_target, may_command
from trackside.handlers.zeromq._forwarder import Forwarder
from trackside.handlers.zeromq._keys import ROLES as KEY_ROLES
from trackside.handlers.zeromq._keys import new_keys
from trackside.handlers.zeromq._protocol import ALWAYS, VERBS, Filter, PeerLimits, Result, Verb, names_of
from trackside.handlers.zeromq._server import RING_BYTES, EndpointFile, Publisher, find_endpoints

__all__ = [
    "ALWAYS",
    "KEY_ROLES",
    "RING_BYTES",
    "VERBS",
    "Attachment",
    "Collector",
    "EndpointFile",
    "Filter",
    "Forwarder",
    "Gap",
    "Joined",
    "MultiLogWriter",
    "Outcome",
    "PeerLimits",
    "Publisher",
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
