"""Leases: who works on which job, with a store in memory and a clock that the test turns."""

from __future__ import annotations

import random

import attrs
import pytest

from trackside.core.leases import Lease, LeaseTable, LeaseWrite

LEASE_S = 8.0


class Store:
    """Keys and values that are written by compare-and-set, and everything that was ever written."""

    def __init__(self):
        self.revision = 0
        self.values = {}
        self.history = []

    def write(self, write):
        """Return the new revision, or None if the key has another than the write names."""
        if self.values.get(write.key, (0, None))[0] != write.revision:
            return None
        self.revision += 1
        self.values[write.key] = (self.revision, write.lease)
        self.history.append((write.key, self.revision, write.lease))
        return self.revision


@attrs.define(eq=False)
class Worker:
    """A table, and how much of the store's history it has seen."""

    store: Store
    table: LeaseTable
    seen: int = 0
    is_cut_off: bool = False

    def tick(self, jobs, now_s):
        """See what is new, and try what is due."""
        if self.is_cut_off:
            self.table.plan({}, now_s)  # its clock goes on, and it reaches nobody
            return
        for key, revision, lease in self.store.history[self.seen :]:
            self.table.see(key, revision, lease, now_s)
        self.seen = len(self.store.history)
        for write in self.table.plan(jobs, now_s):
            self.attempt(write, now_s)
        for job in self.table.excess:
            self.attempt(self.table.release(job), now_s)

    def attempt(self, write, now_s):
        """Try one write."""
        revision = self.store.write(write)
        if revision is None:
            self.table.refused(write)
        else:
            self.table.wrote(write, revision, now_s)


class Site:
    """Some workers, a store, and the time."""

    def __init__(self, *names):
        self.store = Store()
        self.now_s = 100.0
        self.workers = {name: self.worker(name) for name in names}

    def worker(self, name, most=1000):
        """Return a new worker, which is not at work yet."""
        return Worker(self.store, LeaseTable(name, lease_s=LEASE_S, most=most))

    def run(self, jobs, for_s, order=sorted):
        """Let all workers work for some seconds."""
        end_s = self.now_s + for_s
        while self.now_s < end_s:
            self.now_s += 0.5
            for name in order(self.workers):
                self.workers[name].tick(jobs, self.now_s)

    def held(self):
        """Return the jobs of each worker."""
        return {name: sorted(worker.table.held) for name, worker in self.workers.items()}

    def sizes(self):
        """Return how many jobs the workers have, the fewest first."""
        return sorted(len(jobs) for jobs in self.held().values())

    def is_divided(self, jobs):
        """Whether each job has exactly one worker."""
        return sorted(job for held in self.held().values() for job in held) == sorted(jobs)


JOBS = {f"run-{number}": 10 for number in range(6)}


def test_one_worker_takes_all():
    """A worker that is alone holds every job."""
    site = Site("a")
    site.run(JOBS, 1)
    assert site.held() == {"a": sorted(JOBS)}


def test_shares():
    """Three workers hold two of six jobs each, and a fourth that comes later gets its share."""
    site = Site("a", "b", "c")
    site.run(JOBS, 10)
    assert site.sizes() == [2, 2, 2]
    site.workers["d"] = site.worker("d")
    site.run({**JOBS, "run-6": 1, "run-7": 1}, 10)
    assert site.sizes() == [2, 2, 2, 2]
    assert site.is_divided([*JOBS, "run-6", "run-7"])


def test_most_jobs_of_one_worker():
    """Workers hold no more jobs than they may, and say how many wait; one that is done makes room for the next."""
    site = Site()
    site.workers = {name: site.worker(name, most=2) for name in "ab"}
    site.run(JOBS, 10)
    assert site.sizes() == [2, 2]
    assert [worker.table.waiting for worker in site.workers.values()] == [2, 2]
    done = site.held()["a"][0]
    site.workers["a"].attempt(site.workers["a"].table.release(done, JOBS[done]), site.now_s)
    site.run(JOBS, 10)
    assert site.sizes() == [2, 2]
    assert [worker.table.waiting for worker in site.workers.values()] == [1, 1]
    assert done not in {*site.held()["a"], *site.held()["b"]}


def test_dead_worker_is_replaced():
    """The runs of a worker that fell silent are held by others when its leases are over, and not before."""
    site = Site("a", "b")
    site.run(JOBS, 10)
    lost = site.workers.pop("a").table.held
    assert len(lost) == 3
    site.run(JOBS, LEASE_S - LEASE_S / 4 - 0.5)  # it renewed them up to a quarter of a lease ago
    assert not lost & site.workers["b"].table.held
    site.run(JOBS, LEASE_S / 4 + 1)
    assert site.held() == {"b": sorted(JOBS)}


def test_worker_cut_off_stops_before_it_is_replaced():
    """A worker that reaches nobody gives up when its leases are over: not later than others may take them."""
    site = Site("a", "b")
    site.run(JOBS, 10)
    site.workers["a"].is_cut_off = True
    for _ in range(int(2 * LEASE_S / 0.5)):
        site.run(JOBS, 0.5)
        assert not site.workers["a"].table.held & site.workers["b"].table.held
    assert site.held() == {"a": [], "b": sorted(JOBS)}
    site.workers["a"].is_cut_off = False
    site.run(JOBS, 10)
    assert site.sizes() == [3, 3]


def test_stale_write_is_refused():
    """A write on a revision that another worker replaced changes nothing, and who tried it does not hold the job."""
    site = Site("a", "b")
    site.workers["a"].tick({"run": 1}, 100.0)
    late = LeaseWrite("job.run", Lease("b"), 0)
    site.workers["b"].attempt(late, 100.0)
    assert site.held() == {"a": ["run"], "b": []}
    assert site.store.values["job.run"][1] == Lease("a")


def test_done_job_is_nobodys():
    """A job that is done is held by nobody until there is another amount of it."""
    site = Site("a")
    site.run({"run": 10}, 1)
    worker = site.workers["a"]
    worker.attempt(worker.table.release("run", done=10), site.now_s)
    site.run({"run": 10}, 3 * LEASE_S)
    assert site.held() == {"a": []}
    site.run({"run": 11}, 1)
    assert site.held() == {"a": ["run"]}


def test_mark_of_a_done_job():
    """The worker that has done a job leaves a mark, which the others read; the job is as done as without it."""
    site = Site("a", "b")
    site.run({"run": 10}, 1)
    worker = site.workers["a"]
    worker.attempt(worker.table.release("run", 10, "as far as 7"), site.now_s)
    site.run({"run": 10}, 3 * LEASE_S)
    assert site.workers["b"].table.lease_of("run") == Lease(done=10, mark="as far as 7")
    assert site.held() == {"a": [], "b": []}


def test_forgotten_worker():
    """The key of a worker that was not heard of for ten leases is removed; that of one that works is not."""
    site = Site("a", "b")
    site.run(JOBS, 5)
    del site.workers["a"]
    site.run(JOBS, 10 * LEASE_S)
    assert site.store.values["worker.a"][1] is None
    assert site.store.values["worker.b"][1] == Lease("b")


def test_forgotten_worker_comes_back():
    """A worker that was forgotten while it was cut off gets its share again."""
    site = Site("a", "b")
    site.run(JOBS, 5)
    site.workers["a"].is_cut_off = True
    site.run(JOBS, 11 * LEASE_S)
    assert site.store.values["worker.a"][1] is None
    site.workers["a"].is_cut_off = False
    site.run(JOBS, 5)
    assert site.sizes() == [3, 3]


@pytest.mark.parametrize("number", range(20))
def test_any_course(number):
    """
    Workers die, come and are cut off at random. None writes on what it has not seen, and in the end each job has one
    worker, and no worker more than its share.
    """
    rng = random.Random(number)
    site = Site("a", "b", "c")
    names = iter(range(1000))
    for _ in range(60):
        what = rng.random()
        some = rng.choice(list(site.workers))
        if what < 0.1 and len(site.workers) > 1:
            del site.workers[some]
        elif what < 0.2:
            name = f"late-{next(names)}"
            site.workers[name] = site.worker(name)
        elif what < 0.4:
            site.workers[some].is_cut_off = not site.workers[some].is_cut_off
        site.run(JOBS, rng.choice([0.5, 2, 5]), order=lambda found: rng.sample(sorted(found), len(found)))
        held = [job for worker in site.workers.values() for job in worker.table.held]
        assert len(held) == len(set(held))
    for worker in site.workers.values():
        worker.is_cut_off = False
    site.run(JOBS, 4 * LEASE_S)
    assert site.is_divided(JOBS)
    assert site.sizes()[-1] == -(-len(JOBS) // len(site.workers))
