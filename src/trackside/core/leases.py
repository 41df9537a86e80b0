"""
The division of jobs among workers that come and go: a lease for each, in a store that writes by compare-and-set.

No clock is compared with another's: a lease is over if, by the reader's own clock, it was not renewed for as long as it
lasts. The store alone decides what a worker may do: each write names the revision that it replaces.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Final

import attrs
from attrs.validators import instance_of

_RENEWALS: Final = 4
"""The number of times that a lease is renewed while it lasts."""
_FORGET_AFTER: Final = 10
"""A worker is forgotten after so many lease times without news of it."""
_JOB: Final = "job."
_WORKER: Final = "worker."


@attrs.frozen
class Lease:
    """The entry in the store under the key of a job or of a worker; a worker's key has itself as the owner."""

    owner: str = ""
    """The worker that has it; empty if nobody has."""
    done: int = attrs.field(default=-1, validator=instance_of(int))
    """The size of the job when all of it was done; -1 while a worker has it."""
    mark: str = attrs.field(default="", validator=instance_of(str))
    """The position to which the worker that had it has read; it means something to the workers only."""


@attrs.frozen
class LeaseWrite:
    """A write that is to be tried: accepted only if the key still has the revision."""

    key: str
    """The key in the store: ``job.JOB`` or ``worker.NAME``."""
    lease: Lease | None
    """None to remove the key."""
    revision: int
    """The revision that it replaces; 0 for none."""


@attrs.frozen
class _Seen:
    revision: int
    lease: Lease | None
    """None if it was removed; that has a revision too."""
    since_s: float
    """The time when this revision was seen first."""


class LeaseTable:
    """
    Decides which jobs a worker takes, renews and hands over. It does no input or output, and is for one thread.

    Each worker renews a key of its own, so that all know the number of workers, and holds no more jobs than its share.

    Args:
        worker: The name of this worker, which no other worker ever has.
        lease_s: The time for which a lease lasts without renewal, in seconds.
        most: The most jobs that it holds, however few workers there are.
    """

    def __init__(self, worker: str, *, lease_s: float, most: int) -> None:
        self.worker = worker
        self.waiting: int = 0
        """Jobs beyond what all workers may hold, as of the latest plan, if the others have the same bound."""
        self._lease_s = lease_s
        self._most = most
        self._jobs: dict[str, _Seen] = {}
        self._workers: dict[str, _Seen] = {}
        self._renewed_s: dict[str, float] = {}
        """By job that is held, the time of its last renewal: when its writing began."""
        self._share = 0

    @property
    def held(self) -> frozenset[str]:
        """The jobs that this worker holds."""
        return frozenset(self._renewed_s)

    @property
    def excess(self) -> list[str]:
        """The jobs held beyond this worker's share, which are to be released."""
        return sorted(self._renewed_s, key=self._rank)[self._share :]

    def see(self, key: str, revision: int, lease: Lease | None, now_s: float) -> None:
        """Note what the store has under *key*, None if it was removed; older news than what is known is ignored."""
        name = key.partition(".")[2]
        known = self._jobs if key.startswith(_JOB) else self._workers
        if name in known and revision <= known[name].revision:
            return
        known[name] = _Seen(revision, lease, now_s)
        if known is self._jobs and (lease is None or lease.owner != self.worker):
            self._renewed_s.pop(name, None)

    def plan(self, jobs: Mapping[str, int], now_s: float) -> list[LeaseWrite]:
        """
        Return the writes that are due, and drop the jobs that were not renewed in time.

        Args:
            jobs: The size of each job.
            now_s: The time, by this worker's clock.
        """
        for job in [job for job, at_s in self._renewed_s.items() if now_s - at_s >= self._lease_s]:
            del self._renewed_s[job]
        renew_s = self._lease_s / _RENEWALS
        writes = []
        mine = self._workers.get(self.worker)
        if mine is None or mine.lease is None or now_s - mine.since_s >= renew_s:
            writes.append(LeaseWrite(_WORKER + self.worker, Lease(self.worker), mine.revision if mine else 0))
        others = [
            (name, now_s - seen.since_s, seen)
            for name, seen in self._workers.items()
            if name != self.worker and seen.lease is not None
        ]
        for name, silent_s, seen in others:
            if silent_s >= _FORGET_AFTER * self._lease_s:
                writes.append(LeaseWrite(_WORKER + name, None, seen.revision))
        writes += [self._claim(job) for job, at_s in self._renewed_s.items() if now_s - at_s >= renew_s]
        undone = [job for job, amount in jobs.items() if not self._is_done(job, amount)]
        alive = 1 + sum(silent_s < self._lease_s for _, silent_s, _ in others)
        self._share = min(-(-len(undone) // alive), self._most)
        self.waiting = max(0, len(undone) - alive * self._most)
        free = sorted((job for job in undone if self._is_free(job, now_s)), key=self._rank)
        writes += [self._claim(job) for job in free[: max(0, self._share - len(self._renewed_s))]]
        return writes

    def lease_of(self, job: str) -> Lease | None:
        """Return what the store has under the key of *job*, as far as is known; None for nothing."""
        seen = self._jobs.get(job)
        return seen.lease if seen else None

    def release(self, job: str, done: int = -1, mark: str = "") -> LeaseWrite:
        """Return the write that hands over a *job* that is held: at once, or when it has another amount than *done*."""
        return attrs.evolve(self._claim(job), lease=Lease(done=done, mark=mark))

    def drop(self, job: str) -> None:
        """Drop *job* without a write: its lease ends by itself."""
        self._renewed_s.pop(job, None)

    def wrote(self, write: LeaseWrite, revision: int, began_s: float) -> None:
        """Note that *write*, which began at *began_s*, was accepted, and is *revision* now."""
        self.see(write.key, revision, write.lease, began_s)
        name = write.key.partition(".")[2]
        seen = self._jobs.get(name) if write.key.startswith(_JOB) else None
        if seen is not None and seen.revision == revision and seen.lease == Lease(self.worker):
            self._renewed_s[name] = began_s

    def refused(self, write: LeaseWrite) -> None:
        """Note that another worker wrote first; `see` will be called with its entry."""
        if write.key.startswith(_JOB):
            self.drop(write.key.partition(".")[2])

    def _claim(self, job: str) -> LeaseWrite:
        seen = self._jobs.get(job)
        return LeaseWrite(_JOB + job, Lease(self.worker), seen.revision if seen else 0)

    def _is_done(self, job: str, amount: int) -> bool:
        lease = self.lease_of(job)
        return lease is not None and not lease.owner and lease.done == amount

    def _is_free(self, job: str, now_s: float) -> bool:
        if job in self._renewed_s:
            return False
        seen = self._jobs.get(job)
        if seen is None or seen.lease is None or not seen.lease.owner:
            return True
        return now_s - seen.since_s >= self._lease_s

    def _rank(self, job: str) -> bytes:
        """Return a job's sort key, another for each worker, so that two of them rarely try the same job."""
        return hashlib.blake2b(f"{self.worker} {job}".encode(), digest_size=8).digest()
