"""The source of events: one process of one attempt of one run."""

from __future__ import annotations

import os
import platform
import re
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import attrs

from trackside._implementation import implementation
from trackside._platform import after_fork_in_child
from trackside.events import clock
from trackside.events._ambient import ambient
from trackside.events._errors import ConfigError
from trackside.events._fields import Value
from trackside.events._version import __version__

MAIN, WORKER, COLLECTOR = "main", "worker", "collector"
ROLES = (MAIN, WORKER, COLLECTOR)
_MAX_COUNT: Final = 1 << 31
_MAX_RANKS: Final = 1 << 20
"""The most ranks that readers believe a job to have, because they list the missing ones."""
_LIMITS: Final = {"rank": _MAX_RANKS, "local_rank": _MAX_RANKS, "world_size": _MAX_RANKS + 1}
_WHOLE: Final = r"[0-9]{1,9}"
_FORK_SERVER: Final = "from multiprocessing.forkserver import main"
"""The command that `multiprocessing` starts its fork server with."""


@attrs.frozen(eq=False, repr=False)
class Parent(Value):
    """The span, in another process, under which this one was started."""

    source_id: str
    span_id: int


_made_here: set[str] = set()
"""The ids of sources that this process made; a forked child begins without any."""


def new_id() -> str:
    """Return a new source id, under which a bus of this process may number its events: 16 random hexadecimal digits."""
    made = os.urandom(8).hex()
    _made_here.add(made)
    return made


def is_made_here(source_id: str) -> bool:
    """Return whether this process made *source_id*; otherwise another process may number its events under the id."""
    return source_id in _made_here


def _check_role(_source: object, _field: object, role: str) -> None:
    if role not in ROLES:
        raise ConfigError("role", role, f"give one of {', '.join(ROLES)}")


def _text(given: str) -> str:
    """Return *given* with each lone surrogate escaped, because UTF-8 cannot encode one."""
    return given if given.isascii() else given.encode("utf-8", "backslashreplace").decode()


def _tags(given: str | Iterable[str]) -> tuple[str, ...]:
    return (_text(given),) if isinstance(given, str) else tuple(_text(str(tag)) for tag in given)


def _texts(given: Mapping[Any, Any]) -> dict[str, str]:
    for value in given.values():
        if not isinstance(value, (str, int, float)):
            raise ConfigError("metadata", value, "say of a source texts and numbers only")
    return {_text(str(key)): _text(str(value)) for key, value in given.items()}


@attrs.frozen(kw_only=True, eq=False, repr=False)
class Source(Value):
    """
    One process's identity; constant for its life and carried by every file and stream.

    ``(id, seq)`` names one event for ever and costs nothing per event.
    """

    id: str = attrs.field(factory=new_id)
    """
    16 random hexadecimal digits: new for each process, so for each attempt and each forked child.

    An id that is given describes the source of other events: a bus numbers events only under ids that its process made.
    """
    run_id: str = attrs.field(default="", converter=_text)
    """The same on all ranks and attempts that the launcher calls one run."""
    session_tag: str = attrs.field(default="", converter=_text)
    """Groups the runs that are one logical task."""
    perf_tags: tuple[str, ...] = attrs.field(default=(), converter=_tags)
    """Runs with equal tags are expected to perform alike."""
    baseline: bool = False
    """Whether this run is a reference for others."""
    attempt: int = 0
    """The number of times that the launcher has restarted the run before this process."""
    role: str = attrs.field(default=MAIN, validator=_check_role)
    """``main``, ``worker`` (a DataLoader's or other child process) or ``collector``. Only main ones count as ranks."""
    host: str = attrs.field(default="", converter=_text)
    pid: int = 0
    rank: int = 0
    """The global rank; a worker has its main process's."""
    local_rank: int = 0
    world_size: int = 1
    application: str = attrs.field(default="", converter=_text)
    versions: dict[str, str] = attrs.field(factory=dict, converter=_texts, hash=False)
    """Versions of what may matter later: ``trackside``, ``python``; and ``core``: ``compiled`` or ``pure``."""
    metadata: dict[str, str] = attrs.field(factory=dict, converter=_texts, hash=False)
    """Texts that the user wants to keep with the run."""
    parent: Parent | None = None
    before_start_s: float = 0.0
    """The age of the process when the job was started, imports included, in seconds; 0 if not known."""
    anchor: clock.Anchor = attrs.field(factory=lambda: clock.process_anchor)
    """
    The clock reading from which this process's ``at_ns`` is computed. Of a second job in one process it is moved to
    the start of that job.
    """

    @classmethod
    def detect(cls, environ: Mapping[str, str] | None = None, **given: Any) -> Source:
        """
        Describe this process by the values *given*, else by its launcher's variables, else with a random run id.

        Reads torchrun's variables, else SLURM's; no other part of the environment, and no command line.

        Raises:
            ConfigError: if a launcher's variable that should be a whole number is not.
        """
        env = os.environ if environ is None else environ
        found = _torchrun(env) or _slurm(env)
        found.setdefault("run_id", f"run-{os.urandom(6).hex()}")
        found.update(
            host=platform.node(),
            pid=os.getpid(),
            versions={"python": platform.python_version(), "trackside": __version__, "core": implementation},
        )
        found.update(given)
        return cls(**found)

    def child(self) -> Source:
        """Describe a process just forked from this one: the same, except that it is a worker with its own id."""
        return attrs.evolve(
            self,
            id=new_id(),
            role=WORKER,
            pid=os.getpid(),
            parent=Parent(self.id, ambient.get()[0]),
            before_start_s=0.0,
        )

    def to_wire(self) -> dict[str, Any]:
        """Return the identity as plain data."""
        return attrs.asdict(self)

    @classmethod
    def from_wire(cls, data: object) -> Source:
        """
        Read an identity that any version wrote.

        Never raises: unknown keys are ignored; a field that is missing, of a wrong type or impossible gets its default.
        """
        given: dict[str, Any] = data if isinstance(data, dict) else {}
        kept: dict[str, Any] = {"id": ""}
        for name, kind in _PLAIN.items():
            value = given.get(name)
            if type(value) is kind and _is_possible(name, value):
                kept[name] = value
        tags = given.get("perf_tags")
        if isinstance(tags, (list, tuple)):
            kept["perf_tags"] = tuple(tag for tag in tags if isinstance(tag, str))
        for name in ("versions", "metadata"):
            table = given.get(name)
            if isinstance(table, dict):
                kept[name] = {
                    key: text for key, text in table.items() if isinstance(key, str) and isinstance(text, str)
                }
        if kept.get("role") not in ROLES:
            kept.pop("role", None)
        if kept.get("world_size") == 0:
            del kept["world_size"]
        kept["parent"] = _rebuilt(Parent, given.get("parent"), source_id=str, span_id=int)
        numbers = {"mono_ns": int, "wall_ns": int, "uncertainty_ns": int}
        kept["anchor"] = _rebuilt(clock.Anchor, given.get("anchor"), **numbers) or clock.Anchor(0, 0, 0)
        return cls(**kept)

    @classmethod
    def unknown(cls, source_id: str) -> Source:
        """Return a placeholder for a source of which only the id is known."""
        return cls.from_wire({"id": source_id})


_PLAIN: dict[str, type] = {
    "id": str,
    "run_id": str,
    "session_tag": str,
    "baseline": bool,
    "attempt": int,
    "role": str,
    "host": str,
    "pid": int,
    "rank": int,
    "local_rank": int,
    "world_size": int,
    "application": str,
    "before_start_s": float,
}


def _is_possible(name: str, value: Any) -> bool:
    return type(value) not in {int, float} or 0 <= value < _LIMITS.get(name, _MAX_COUNT)


def _rebuilt(cls: type[Any], data: object, **kinds: type) -> Any:
    """Return the object of *cls* that *data* describes, or None if it describes none."""
    if isinstance(data, dict) and all(type(data.get(name)) is kind for name, kind in kinds.items()):
        return cls(**{name: data[name] for name in kinds})
    return None


def _torchrun(env: Mapping[str, str]) -> dict[str, Any]:
    if not env.get("RANK"):
        return {}
    found: dict[str, Any] = _ranks(
        env, rank="RANK", local_rank="LOCAL_RANK", world_size="WORLD_SIZE", attempt="TORCHELASTIC_RESTART_COUNT"
    )
    run_id = env.get("TORCHELASTIC_RUN_ID", "none")
    if run_id not in {"", "none"}:
        found["run_id"] = run_id
    else:
        found.update(_anonymous_run(env))
    return found


def _anonymous_run(env: Mapping[str, str]) -> dict[str, str]:
    """
    Return a run id for a job to which torchrun gives its default id, "none", which is the same for every job.

    On one node the agent's log directory is new for each job and the same for its ranks and attempts. With several
    nodes each has its own agent, but the rendezvous has a real address.
    """
    if env.get("GROUP_WORLD_SIZE") == "1":
        for part in env.get("TORCHELASTIC_ERROR_FILE", "").split(os.sep):  # noqa: PTH206  pathlib is loaded by nothing else here
            if part.startswith("none_"):
                return {"run_id": part}
    if env.get("MASTER_PORT"):
        return {"run_id": f"{env.get('MASTER_ADDR', 'local')}-{env['MASTER_PORT']}"}
    return {}


def _slurm(env: Mapping[str, str]) -> dict[str, Any]:
    if not env.get("SLURM_JOB_ID"):
        return {}
    found = _ranks(
        env,
        rank="SLURM_PROCID",
        local_rank="SLURM_LOCALID",
        world_size="SLURM_NTASKS",
        attempt="SLURM_RESTART_COUNT",
    )
    return {"run_id": f"slurm-{env['SLURM_JOB_ID']}", **found}


def _ranks(env: Mapping[str, str], **variables: str) -> dict[str, Any]:
    found = {}
    for field, variable in variables.items():
        text = env.get(variable)
        if text:
            number = int(text) if re.fullmatch(_WHOLE, text) else -1
            if number < (field == "world_size") or not _is_possible(field, number):
                raise ConfigError(variable, text, "the launcher should set a whole number")
            found[field] = number
    return found


_identity: dict[str, Source] = {}


def process_source() -> Source:
    """
    Return this process's identity; the first call detects it.

    Never raises, because it may be called inside the training loop. If the launcher's variables are invalid, the
    identity is detected without them, and its metadata has the reason.
    """
    try:
        return _identity["source"]
    except KeyError:
        # If several threads detect it at the same time, all return what one of them found.
        return _identity.setdefault("source", _detected())


def _detected() -> Source:
    try:
        return Source.detect()
    except ConfigError as error:
        return Source.detect({}, metadata={"launcher": str(error)})


def set_process_source(source: Source | None, *, instead_of: Source | None = None) -> None:
    """
    Make *source* this process's identity.

    Args:
        source: The identity; None detects it again when it is next needed.
        instead_of: Change the identity only if it is this very object, and then call the followers with *source*.
    """
    with _changing:
        if instead_of is not None and _identity.get("source") is not instead_of:
            return
        if source is None:
            _identity.pop("source", None)
        else:
            _identity["source"] = source
    if source is not None and instead_of is not None:
        for follow in _followers:
            follow(source)


_changing = threading.RLock()
_followers: list[Callable[[Source], object]] = []


def follow_process_source(follow: Callable[[Source], object]) -> None:
    """Have *follow* called with the new source whenever it replaces the known identity of this process."""
    _followers.append(follow)


def _become_child() -> None:
    global _changing  # noqa: PLW0603  another thread of the parent's may have held it
    _changing = threading.RLock()
    _made_here.clear()  # else two children of one parent would number events under the same id
    # A parent that never detected its identity may be a launcher: its children detect their own.
    found = _identity.get("source")
    if found is not None:
        child = found.child()
        _identity["source"] = attrs.evolve(child, parent=found.parent) if _is_forked_from_server() else child


def _is_forked_from_server() -> bool:
    """
    Return whether this process was just forked from multiprocessing's fork server.

    The server is a child of the process for which it forks children, and forks for no other process. It has joined the
    job if it imported the main module, which it does by default from Python 3.14 on.
    """
    process = sys.modules.get("multiprocessing.process")
    # A child of the server learns its parent process only after the fork; a child of that child already has it.
    return any(_FORK_SERVER in argument for argument in sys.orig_argv) and (
        process is not None and process.parent_process() is None
    )


after_fork_in_child(_become_child)
