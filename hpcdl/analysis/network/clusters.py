"""Times of collectives on four real clusters, measured by others with PICO (github.com/HLC-Lab/pico).

``reports/oracles/pico.py`` makes the table. A job is a submission at a time; between jobs of one machine nodes
differ, and so does the traffic of others. A measurement is the median over the repetitions in one job.
"""

import math
from dataclasses import dataclass, replace
from functools import cache
from itertools import combinations, starmap
from pathlib import Path
from typing import Final

from hpcdl.analysis.run.record import Record, group_by_key

TABLE: Final = Path(__file__).parents[2] / "papers" / "pico.csv.gz"

SCHEMES: Final = {
    "allreduce": {"ring": "ring", "recursive_doubling": "butterfly", "rabenseifner": "halving_doubling"},
    "reduce_scatter": {"ring": "ring", "recursive_halving": "halving_doubling"},
    "allgather": {
        "ring": "ring",
        "recursive_doubling": "halving_doubling",
        "k_bruck": "circulant",
        "brucks": "circulant",
        "bruck": "circulant",
    },
    "broadcast": {"binomial": "binomial", "binary": "tree"},
    "reduce": {"binomial": "binomial", "binary": "tree", "linear": "parameter_server"},
    "all_to_all": {"modified_bruck": "bruck", "linear": "direct"},
}
"""Schemes whose messages an algorithm sends, by collective and PICO's name without the library.

Rabenseifner's begins with the nearest partner, ``halving_doubling`` with the farthest; Bruck's allgather of a
power of two is that of ``circulant``. Open MPI's trees are not segmented here; how Fujitsu's binary tree is, is
not stated. Cray's allreduces are not what their names say: in one job its recursive doubling of 64 KiB and more
takes a quarter to two thirds of the time of PICO's, and its Rabenseifner less than PICO's for short messages.
Rings of fewer elements than ranks are another algorithm, and so are two others if the number of ranks is no power
of two.
"""
FITTED: Final = {"leonardo": (512,), "lumi": (8, 16), "marenostrum5": (32, 60), "fugaku": (8, 64)}
"""Numbers of nodes that each machine's network is fitted to; all others are held out."""
LIBRARIES: Final = ("_over", "_ompi", "_mpich", "default-")
"""PICO's own code over send and receive, and the library's algorithms; Fujitsu MPI's word stands first."""
POWERS_OF_TWO: Final = {("allreduce", "rabenseifner"), ("allgather", "recursive_doubling")}


@dataclass(frozen=True)
class Measurement:
    """A collective of a job: quartiles and median of its repetitions (s), of the slowest rank.

    Fields are the columns of the table, in their order.
    """

    machine: str
    """Name of the network that is fitted to it."""
    job: str
    nodes: int
    ranks: int
    """Of all nodes."""
    library: str
    memory: str
    """``host`` or ``gpu``."""
    notes: str
    collective: str
    algorithm: str
    message_bytes: int
    """Of the whole array."""
    repetitions: int
    low: float
    seconds: float
    high: float

    @property
    def ranks_per_node(self) -> int:
        """Ranks of a node, the most."""
        return -(-self.ranks // self.nodes)

    @property
    def by_pico(self) -> bool:
        """True for PICO's own code over send and receive, False for an algorithm of the library."""
        return "_over" in self.algorithm

    @property
    def scheme(self) -> str | None:
        """The scheme with these messages, ``native`` for the library's own choice; None if there is none."""
        name = self.algorithm
        for word in LIBRARIES:
            name = name.removeprefix(word).removesuffix(word)
        name = name.replace("-", "_")
        if name == "default":
            return "native"
        two_only = (self.collective, name) in POWERS_OF_TWO and self.ranks & (self.ranks - 1)
        short = name == "ring" and self.message_bytes // 4 < self.ranks
        changed = self.library.startswith("custom") or (name == "binary" and self.library.startswith("FJMPI"))
        changed |= self.library.startswith("CRAY") and self.collective == "allreduce" and not self.by_pico
        return None if two_only or short or changed else SCHEMES.get(self.collective, {}).get(name)


@cache
def measurements() -> tuple[Measurement, ...]:
    """Return all measurements, sorted by machine, job, nodes and ranks."""
    import pandas as pd  # late: only claims, and reports on these clusters, need it

    table = pd.read_csv(TABLE, comment="#", keep_default_na=False)
    times = [column for column in table.columns if column.endswith("_ns")]
    table[times] *= 1e-9
    return tuple(starmap(Measurement, table.itertuples(index=False, name=None)))


def comparable() -> list[Measurement]:
    """Return the measurements with a scheme, in host memory and with one rank a node, as networks have them."""
    return [each for each in measurements() if each.scheme and each.memory == "host" and each.ranks == each.nodes]


@cache
def records() -> list[Record]:
    """Return the measurements in host memory with one rank a node as records of run ``pico``, for claims.

    The settings have ``machine``, ``job`` and PICO's ``algorithm``; bounds are the quartiles of the repetitions.
    A tree's allreduce, algorithm ``reduce, broadcast``, is the sum of both by a binomial tree in one job.
    """
    made = [_record(each) for each in measurements() if each.memory == "host" and each.ranks == each.nodes]
    trees = {
        (each.machine, each.job, each.ranks, each.collective, each.message_bytes): each
        for each in comparable()
        if each.scheme == "binomial"
    }
    for (machine, job, ranks, collective, size), last in trees.items():
        first = trees.get((machine, job, ranks, "reduce", size))
        if collective == "broadcast" and first is not None:
            times = {name: getattr(first, name) + getattr(last, name) for name in ("low", "seconds", "high")}
            both = replace(last, collective="allreduce", algorithm="reduce, broadcast", **times)
            made.append(_record(both).but(aggregation="binomial"))
    return made


def _record(measured: Measurement) -> Record:
    """Return a measurement as a record, without the network of a simulation."""
    return Record(
        suite="pico",
        kind="collective",
        collective=measured.collective,
        aggregation=measured.scheme,
        ranks=measured.ranks,
        nodes=measured.nodes,
        message_bytes=measured.message_bytes,
        time_p50_seconds=measured.seconds,
        time_p50_low_seconds=measured.low,
        time_p50_high_seconds=measured.high,
        settings={"machine": measured.machine, "job": measured.job, "algorithm": measured.algorithm},
    )


@cache
def scatter() -> dict[str, dict[str, list[float]]]:
    """Return differences of two measurements of the same thing, by kind and machine: longer / shorter time - 1.

    Two jobs have the same nodes in number, algorithm and size; of one job PICO's own code is compared with the
    library's of the same messages.
    """
    alike = group_by_key(
        ((each.machine, each.nodes, each.collective, each.scheme, each.message_bytes), each)
        for each in comparable()
    )
    kinds: dict[str, dict[str, list[float]]] = {"two jobs": {}, "own code and library": {}}
    for first, other in (pair for some in alike.values() for pair in combinations(some, 2)):
        kind = "two jobs" if first.job != other.job else "own code and library"
        if (kind == "two jobs") == (first.by_pico == other.by_pico):
            difference = abs(math.log(first.seconds / other.seconds))
            kinds[kind].setdefault(first.machine, []).append(math.expm1(difference))
    return kinds
