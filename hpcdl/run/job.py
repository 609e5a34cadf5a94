"""The ranks of an MPI job: communicators of its cases, agreement among ranks, recovery from failed cases."""

from collections import Counter
from collections.abc import Callable, Sequence
from math import inf
from threading import Timer
from typing import Final, TypeVar

import numpy as np

from hpcdl.exit_codes import UsageError
from hpcdl.fabric.mpi.backoff import sleep_until
from hpcdl.fabric.mpi.comm import Mpi, MpiComm
from hpcdl.fabric.mpi.fault_tolerance import regroup
from hpcdl.launch.counters import Counters, Sensors
from hpcdl.launch.environment import describe_rank
from hpcdl.launch.machine import link_counters
from hpcdl.launch.process import stop_requested
from hpcdl.nn.backend import backend, threads
from hpcdl.run.failed_cases import Failure
from hpcdl.suite import Case
from hpcdl.trace.files import JsonObject
from hpcdl.trace.link_counters import LinkCounters, growth

Value = TypeVar("Value")

LOADING_SECONDS: Final = 3.0
"""Time in which kernels that were compiled before are loaded; a longer preparation is announced."""


class Job:
    """The ranks of this job, and smaller communicators for cases of fewer ranks."""

    def __init__(self, mpi: Mpi) -> None:
        self.mpi = mpi
        self.world = mpi.comm
        self._given = mpi
        # no program uses it, so that messages of a failed program cannot match those that end a case
        self._reserved = mpi.comm.library.Dup()
        self.rank, self.size = self.world.rank, self.world.size
        self._smaller: dict[int, MpiComm] = {self.world.size: self.world}
        self.clock_offset_ns, error_ns = self.world.clock()
        self.clock_error_seconds = max(self.world.library.allgather(error_ns)) / 1e9
        """Greatest error of the clock offsets of all ranks."""
        self.counters = Counters()
        here = describe_rank()
        self.ranks: list[JsonObject] | None = self.world.library.gather(here)
        hosts = self.world.library.allgather((str(here["slurm_node"]), str(here["hostname"])))
        self._leads_node = hosts.index(hosts[self.world.rank]) == self.world.rank
        shared = {name for name, count in Counter(host for _, host in set(hosts)).items() if count > 1}
        self.host_names = [node if host in shared else host for node, host in hosts]
        self._links = link_counters() if self._leads_node else {}
        self.sensors = Sensors() if self._leads_node else None
        """Sensors of the node, on its first rank."""
        self._prepared: set[str] = set()
        self._abandoned: list[Mpi] = []
        self.draw = 0
        """Number of the random compute times and pauses of this launch."""

    def from_first(self, value: Value) -> Value:
        """Return rank 0's value. Collective."""
        return self.world.library.bcast(value)  # type: ignore[no-any-return]

    def refuse(self, reason: str | None) -> None:
        """Raise UsageError on all ranks if rank 0 has a reason why the job cannot run the suite. Collective."""
        if (line := self.from_first(reason)) is not None:
            raise UsageError(line)

    def link_counters(self) -> LinkCounters:
        """Return, on rank 0, how much the counters of each node's links grew since the job began. Collective.

        One rank of each node reads them; a node has none if that rank's process failed.
        """
        devices = growth(self._links, link_counters()) if self._leads_node else None
        gathered = self.world.library.gather((self.host_names[self.rank], devices)) or []
        growths = {host: devices for host, devices in gathered if devices is not None}
        return {host: growths.get(host) for host in self.host_names}

    def communicator(self, ranks: int) -> MpiComm | None:
        """Return a communicator of the first ``ranks`` ranks; None on the others. Collective."""
        if ranks not in self._smaller:
            inside = self.world.rank < ranks
            self._smaller[ranks] = self.mpi.run(self.world.split(0 if inside else 1))
        return self._smaller[ranks] if self.world.rank < ranks else None

    def remove_failed_ranks(self) -> None:
        """Continue with the ranks whose process survived the case. Collective among them."""
        self._given.comm = self.mpi.comm = self.world = regroup(self.world)

    def failed_ranks(self, *, failed: bool) -> int | None:
        """Sleep until all ranks have left a case; return the number of ranks on which it ``failed``. Collective.

        Return None if it failed on this rank and others still run it after 5 s; they may wait for this rank.
        """
        mine, total = np.array([failed], np.int64), np.zeros(1, np.int64)
        arrived = self._reserved.Iallreduce(mine, total)
        ended = sleep_until(arrived.Test, 5 if failed else inf)
        return int(total[0]) if ended else None

    def after_failure(self, failure: Failure | None) -> Sequence[Failure]:
        """Return all ranks' failures, on rank 0, once all have left the case; renew communicators. Collective."""
        failures = self._reserved.gather(failure) or []
        if any(not program.done for program in self.mpi.programs()):
            self._abandoned.append(self.mpi)  # keeps its buffers: messages may still arrive
        self.mpi = Mpi(self._reserved)
        self._given.comm = self.world = self.mpi.comm
        self._smaller = {self.world.size: self.world}
        return [failure for failure in failures if failure is not None]

    def should_stop(self) -> bool:
        """Return True if any rank or its ``hpcdl run`` received SIGUSR1, as before Slurm's limit. Collective."""
        self.world.sleeping_barrier()  # rank 0 may be writing, and ranks that wait in a library's collective spin
        return bool(self.world.library.allreduce(int(stop_requested())))

    def prepare(self, case: Case, show: Callable[[str], None]) -> None:
        """Compile the kernels of ``case`` on one rank of each node, and load them on the others. Collective."""
        chosen, dtype, count = case.setting("backend"), case.setting("dtype"), case.spec.threads
        key = f"{chosen} {dtype} {count}"
        if chosen is None or key in self._prepared:
            return
        self._prepared.add(key)
        kernels = backend(chosen.name, **chosen.settings)
        if (ready := kernels.prepare) is None:
            return
        with threads(count):  # loops over threads are kernels of their own
            if self._leads_node:
                announcement = kernels.announcement(dtype) if kernels.announcement else ""
                timer = Timer(LOADING_SECONDS, show, [announcement])
                timer.start()
                try:
                    ready(dtype)
                finally:
                    timer.cancel()
            self.world.sleeping_barrier()  # the library's own would spin on the cores of the compiler
            if not self._leads_node:
                ready(dtype)
        self.world.sleeping_barrier()

    @property
    def hosts(self) -> list[tuple[str, str]]:
        """Host of each rank; empty except on rank 0."""
        return [(rank["slurm_node"], rank["hostname"]) for rank in self.ranks or ()]
