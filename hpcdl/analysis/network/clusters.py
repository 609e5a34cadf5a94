"""Times of collectives on four real clusters, measured by others with PICO (github.com/HLC-Lab/pico).

``reports/oracles/pico.py`` makes the table. A job is a submission at a time: between jobs of one machine nodes
differ, and so does the traffic of others. A measurement is the median over the repetitions in one job. Its unit is
the job: how far its repetitions differ does not tell how far another job does.
"""

import math
from dataclasses import dataclass, replace
from functools import cache
from itertools import combinations, starmap
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

from hpcdl.analysis.run.record import Record, group_by_key

Key: TypeAlias = tuple[str, str, int, str, str, int]
"""Machine, job, ranks, collective, PICO's algorithm and bytes of a measurement."""

TABLE, PREDICTED = (Path(__file__).parents[2] / "papers" / f"{name}.csv.gz" for name in ("pico", "pico_predicted"))

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
    "broadcast": {"binomial": "binomial"},
    "reduce": {"binomial": "binomial", "binary": "tree", "linear": "parameter_server"},
    "all_to_all": {"modified_bruck": "bruck", "linear": "direct"},
}
"""Schemes whose messages an algorithm sends, by collective and PICO's name without the library.

Rabenseifner's begins with the nearest partner, ``halving_doubling`` with the farthest; Bruck's allgather of a
power of two is that of ``circulant``. Left out is Open MPI's binary tree, which broadcasts in segments; how
Fujitsu divides its own is not stated. Cray's allreduces are not what their names say: in one job its recursive
doubling of 64 KiB and more takes a quarter to two thirds of the time of PICO's, and its Rabenseifner less than
PICO's for short messages. With fewer elements than ranks some ranks have none, and rings are another algorithm; so
are two others if the number of ranks is no power of two.
"""
LIBRARIES: Final = ("_over", "_ompi", "_mpich", "default-")
"""PICO's own code over send and receive, and the library's algorithms; Fujitsu MPI's word stands first."""
BY_PARTS: Final = ("allgather", "reduce_scatter", "all_to_all")
"""Collectives in which each rank has a part of the vector."""
DAY: Final = len("2025_03_28")
"""Characters of the date in the name of a job."""
FAMILIES: Final = ("bine", "rabenseifner")
"""Words in the names of algorithms of which a claim takes the fastest."""
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
    def key(self) -> Key:
        """Columns that identify it."""
        return self.machine, self.job, self.ranks, self.collective, self.algorithm, self.message_bytes

    @property
    def setting(self) -> str:
        """Setting of its job that changes times: a number of rails. Jobs with different ones are no pair."""
        return self.notes.strip() if "rail" in self.notes.lower() else ""

    @property
    def by_pico(self) -> bool:
        """True for PICO's own code over send and receive, False for an algorithm of the library."""
        return "_over" in self.algorithm

    @property
    def is_misnamed(self) -> bool:
        """True for an algorithm that is not what its name says."""
        is_binary_of_fujitsu = self.library.startswith("FJMPI") and self._name == "binary"
        is_of_cray = self.library.startswith("CRAY") and self.collective == "allreduce" and not self.by_pico
        return self.library.startswith("custom") or is_binary_of_fujitsu or is_of_cray

    @property
    def _name(self) -> str:
        """PICO's name without the library."""
        name = self.algorithm
        for word in LIBRARIES:
            name = name.removeprefix(word).removesuffix(word)
        return name.replace("-", "_")

    @property
    def scheme(self) -> str | None:
        """The scheme with these messages, ``native`` for the library's own choice; None if there is none."""
        name = self._name
        if name == "default":
            return "native"
        elements = self.message_bytes // 4
        two_only = (self.collective, name) in POWERS_OF_TWO and self.ranks & (self.ranks - 1)
        short = (name == "ring" or self.collective in BY_PARTS) and elements < self.ranks
        short |= self.collective == "all_to_all" and elements % self.ranks > 0
        return None if two_only or short or self.is_misnamed else SCHEMES.get(self.collective, {}).get(name)


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

    The settings have ``machine``, ``job`` and PICO's ``algorithm``. One job has no bounds: its unit is the job.
    A tree's allreduce, algorithm ``reduce, broadcast``, is the sum of both by a binomial tree in one job. A family
    in place of an algorithm is the fastest of it in a job, on any number of ranks a node.
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
            both = replace(
                last, collective="allreduce", algorithm="reduce, broadcast", seconds=first.seconds + last.seconds
            )
            made.append(_record(both).but(aggregation="binomial"))
    slowest_first = sorted(measurements(), key=lambda each: -each.seconds)
    fastest = {
        (each.job, each.ranks, each.collective, family, each.message_bytes): replace(each, algorithm=family)
        for each in slowest_first
        for family in FAMILIES
        if family in each.algorithm and each.memory == "host" and not each.is_misnamed
    }
    return made + [_record(each) for each in fastest.values()]


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
        settings={"machine": measured.machine, "job": measured.job, "algorithm": measured.algorithm},
    )


class Predicted(NamedTuple):
    """Times (ns) that a network predicts for a measurement; fields are the columns of the table, in order."""

    machine: str
    job: str
    ranks: int
    collective: str
    algorithm: str
    message_bytes: int
    fitted_ns: float
    """By the network fitted to all jobs."""
    held_out_ns: float
    """By a network fitted to all other jobs; not a number if they do not determine one of its costs."""


@cache
def predicted() -> dict[Key, Predicted]:
    """Return the predicted times by what identifies a measurement; made by ``reports/oracles/machines.py``."""
    import pandas as pd

    table = pd.read_csv(PREDICTED, comment="#", keep_default_na=False, na_values=["nan"])
    return {row[:6]: row for row in starmap(Predicted, table.itertuples(index=False, name=None))}


class Pair(NamedTuple):
    """Two measurements, and by how much the longer time exceeds the shorter one, as a share of it."""

    first: Measurement
    other: Measurement
    difference: float


@cache
def pairs() -> dict[str, dict[str, list[Pair]]]:
    """Return pairs of measurements by kind and machine.

    ``same nodes``: two jobs with equal settings, and as many nodes, measured the same algorithm and size. ``any
    nodes``: so did two jobs on different days, on any number of nodes; compared are measured / predicted times, by
    the network fitted to all jobs. ``own code and library``: one job measured PICO's own code and the library's
    with the same messages.
    """
    alike = group_by_key(
        ((each.machine, each.collective, each.scheme, each.message_bytes), each) for each in comparable()
    )
    found: dict[str, dict[str, list[Pair]]] = {"same nodes": {}, "any nodes": {}, "own code and library": {}}
    for first, other in (pair for some in alike.values() for pair in combinations(some, 2)):
        ratio = first.seconds / other.seconds
        is_one_job, is_as_many = first.job == other.job, first.nodes == other.nodes
        kinds = {
            "same nodes": not is_one_job and is_as_many,
            "any nodes": first.job[:DAY] != other.job[:DAY] and {first.key, other.key} <= predicted().keys(),
            "own code and library": is_one_job and is_as_many and first.by_pico != other.by_pico,
        }
        if first.setting == other.setting and (first.by_pico == other.by_pico or is_one_job):
            for kind in (kind for kind, belongs in kinds.items() if belongs):
                expected = 1.0
                if kind == "any nodes":
                    expected = predicted()[first.key].fitted_ns / predicted()[other.key].fitted_ns
                difference = math.expm1(abs(math.log(ratio / expected)))
                found[kind].setdefault(first.machine, []).append(Pair(first, other, difference))
    return found
