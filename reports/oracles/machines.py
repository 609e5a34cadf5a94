"""Fit networks to the collectives that others measured on four real clusters.

    python reports/oracles/machines.py [NAME...]     write networks/NAME.toml and papers/pico_predicted.csv.gz

All jobs count, one rank a node, in host memory. A measured time is the time of the messages and sums on the
network, and of memory, which is no cost of a network: copies of an algorithm, and pages of vectors that a library
allocates anew in each call (from 32 MiB on: the largest ``M_MMAP_THRESHOLD`` of glibc). Each job has a factor if
some have as many nodes, because else it cannot be told from theirs; the network is that of the mean factor. A
held-out time is predicted by a fit without its job, whose factor is unknown; if no other job has a cost on which
it depends, it is not predicted. Equal tables give equal files.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import math
import sys
from collections import Counter
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from hpcdl.analysis.network.clusters import DAY, PREDICTED, Measurement, Predicted, comparable, predicted
from hpcdl.analysis.run.record import Record
from hpcdl.fabric.network import SHARED_MEMORY, Link, Network
from hpcdl.prediction.fitting import linearised, solve, summary, with_costs
from hpcdl.prediction.network_file import COSTS, Certainty, NetworkEstimate, format_network
from hpcdl.prediction.programs import MeasuredProgram, program_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hpcdl.prediction.network_file import Matrix, Vector

NETWORKS = Path(__file__).resolve().parents[2] / "hpcdl" / "networks"
LINKS = {
    "leonardo": "HDR100 InfiniBand, two rails of four for long messages",
    "lumi": "Slingshot 11, one of four ports",
    "marenostrum5": "NDR200 InfiniBand, one rail of four",
    "fugaku": "Tofu D, as MPI uses it",
}
GRIDS = {"fugaku": ((2, 2, 2), (4, 4, 4), (8, 8, 8), (64, 64), (32, 256))}
"""Tori of the jobs, as ``fugaku_metadata.csv`` of PICO states them."""
MANY_AT_ONCE = {"direct", "parameter_server"}
"""Schemes that tell for how long a message occupies a port; without them all its time does."""
BEGIN = np.array([2e-6, 1e-10, 1e-10, 0, 0, 3e-7, 1e-7, 1e-12, 1e-9, 2e-10, 1e-10, 1e-11, 1e-11, 1e-11, 1e-11])
"""Costs at which programs are simulated: the longest chain of messages hardly depends on them."""
RATE = COSTS.index("extra from 2097152 B")
"""Bytes that cost a port's rate, beta, and nothing extra: else only the sum of both would be known."""
COPIES = {("allgather", "circulant"): lambda _ranks: 1.0, ("all_to_all", "bruck"): math.log2}
"""Bytes that an algorithm copies by those of the vector."""
TEMPORARY = {
    ("allgather", "circulant"): 1,
    ("all_to_all", "bruck"): 1,
    ("allreduce", "butterfly"): 1,
    ("allreduce", "halving_doubling"): 1,
    ("reduce", "binomial"): 1,
    ("reduce", "tree"): 1,
    ("reduce_scatter", "ring"): 1,
    ("reduce_scatter", "halving_doubling"): 2,
}
"""Vectors as long as the whole one that Open MPI 4.1 allocates in a call, and PICO's own code like it."""
NEW_PAGES = 1 << 25
"""Bytes from which an allocated vector has new pages."""
MAX_MESSAGES = 1 << 20
"""Of a program whose ranks differ; those with more messages are not predicted."""
ROUNDS = 3
"""In which the factors of jobs, and the costs, are found in turn."""


def layout(machine: str) -> Network:
    """Return the network of a machine without its costs."""
    schemes = {each.scheme for each in comparable() if each.machine == machine}
    link = Link(0.0, 0.0, 0.0 if schemes & MANY_AT_ONCE else None)
    return Network(machine, link, LINKS[machine], grids=GRIDS.get(machine, ()))


@cache
def messages_and_sums(machine: str, ranks: int, collective: str, scheme: str, size: int) -> Vector | None:
    """Return the derivatives of a program's time by the costs of a network; None if it is too long."""
    if scheme == "direct" and ranks**2 > MAX_MESSAGES:
        return None
    keys = {"collective": collective, "aggregation": scheme, "dtype": "float32", "ranks": ranks}
    keys["message_bytes"] = size
    record = Record.of({"kind": "collective", **keys, "settings": json.dumps(keys)})
    program = MeasuredProgram(record, program_of(record, ranks))
    slopes = linearised([program], layout(machine), BEGIN).coefficients[0]
    slopes[RATE] = 0
    return slopes


def rows(machine: str) -> tuple[list[Measurement], Matrix]:
    """Return the measurements of a machine, and the derivatives of their times, memory last: copies, new pages."""
    mine = [each for each in comparable() if each.machine == machine and each.scheme != "native"]
    (usual, _), *_ = Counter(each.setting for each in mine).most_common()
    kept, found = [], []
    for each in mine:
        if each.setting != usual:
            continue
        what = each.collective, each.scheme
        size = each.message_bytes
        slopes = messages_and_sums(machine, each.ranks, *what, size)
        if slopes is not None:
            copied = size * COPIES.get(what, lambda _: 0.0)(each.ranks)
            new = size * TEMPORARY.get(what, 0) if size >= NEW_PAGES else 0
            kept.append(each)
            found.append([*slopes, copied, new])
    return kept, np.array(found)


def fitted(slopes: Matrix, seconds: Vector, jobs: Sequence[tuple[str, int]]) -> Vector:
    """Return the costs, (costs,), of a job with the mean factor; ``jobs``: of each time, with its nodes."""
    names = sorted(set(jobs))
    places = np.array([names.index(job) for job in jobs])
    factors = np.zeros(len(names))
    can_tell = len({nodes for _, nodes in names}) < len(names)
    for _ in range(ROUNDS if can_tell else 1):
        costs = solve(slopes, seconds / np.exp(factors[places]))
        off = np.log(seconds / (slopes @ costs))
        factors = np.array([np.median(off[places == place]) for place in range(len(names))])
        factors -= factors.mean()
    return costs


def held_out(slopes: Matrix, seconds: Vector, jobs: Sequence[tuple[str, int]]) -> Vector:
    """Return the times (s), each from a fit without its job; not a number if no other job has one of its costs."""
    times = np.full(len(seconds), np.nan)
    for job in dict.fromkeys(jobs):
        mine = np.array([other == job for other in jobs])
        known = slopes[~mine].sum(axis=0) > 0
        if known.any():
            costs = fitted(slopes[~mine], seconds[~mine], [other for other in jobs if other != job])
            times[mine] = np.where(slopes[mine][:, ~known].any(axis=1), np.nan, slopes[mine] @ costs)
    return times


def margins(measured: Sequence[Measurement], times: Vector, offs: Vector) -> Vector:
    """Return half the 95 % intervals of the logarithms of held-out times, by the errors of all other jobs."""
    half = np.full(len(times), np.nan)
    for place in np.flatnonzero(np.isfinite(offs)):
        mine = measured[place]
        rows_of_others = [
            (str(each.scheme), time, off)
            for each, time, off in zip(measured, times.tolist(), offs.tolist(), strict=True)
            if each.job != mine.job and math.isfinite(off)
        ]
        half[place] = Certainty(np.zeros(0), np.zeros((0, 0)), times=rows_of_others).error_of(
            str(mine.scheme), times[place]
        )
    return half


def estimate(machine: str) -> tuple[NetworkEstimate, list[Predicted]]:
    """Return the network of a machine with its errors, and the times predicted for its jobs."""
    measured, slopes = rows(machine)
    seconds, jobs = np.array([each.seconds for each in measured]), [(each.job, each.nodes) for each in measured]
    costs = fitted(slopes, seconds, jobs)
    costs, memory = costs[: len(COSTS)], costs[len(COSTS) :]
    times = held_out(slopes, seconds, jobs)
    offs = np.log(times / seconds)
    known = np.isfinite(offs)
    fit_times = slopes @ np.concatenate([costs, memory])
    links = slopes[:, : len(COSTS)] / seconds[:, None]
    usual = float(np.median(np.abs(fit_times / seconds - 1))) / 0.6745
    library = measured[0].library
    months = sorted({each.job[:7].replace("_", "-") for each in measured})
    dates = months[0] if len(months) == 1 else f"{months[0]} to {months[-1]}"
    count, days = len(set(jobs)), len({job[:DAY] for job, _ in jobs})
    notes = [
        f"Rests on {len(measured)} times in {count} jobs on {days} days, one rank a node, host memory.",
        "Measured by others (PICO) while other jobs ran. Intervals are of a job that is not in the fit.",
        f"Beside the network: {memory[0]:.2g} s per byte copied, {memory[1]:.2g} per byte of new pages.",
    ]
    errors = {
        "fitted": summary(fit_times / seconds - 1),
        "job_left_out": summary(np.exp(offs) - 1, margins(measured, times, offs)),
    }
    left_out = [
        (str(each.scheme), time, off)
        for each, time, off in zip(measured, times.tolist(), offs.tolist(), strict=True)
        if math.isfinite(off)
    ]
    certainty = Certainty(costs, links.T @ links / usual**2, errors, left_out, notes)
    source = f"{LINKS[machine]}; fitted to {len(measured)} times in {count} jobs, {library}, {dates}"
    network = replace(with_costs(layout(machine), costs.tolist()), source=source, inside=SHARED_MEMORY)
    most = max(each.nodes for each in measured)
    origin = {"machine": machine, "date": dates, "library": library, "times": len(measured), "jobs": count}
    origin |= {"source": "github.com/HLC-Lab/pico", "most_ranks": most}
    table = [
        Predicted(*each.key, round(1e9 * fit, 1), round(1e9 * time, 1) if is_known else math.nan)
        for each, fit, time, is_known in zip(measured, fit_times, times, known, strict=True)
    ]
    return NetworkEstimate(network, most, certainty, origin), table


def main(names: Sequence[str]) -> None:
    """Write the files of the machines named, or of all, and their rows of the table."""
    table = [row for row in predicted().values() if names and row.machine not in names]
    for name in names or LINKS:
        found, own = estimate(name)
        table += own
        (NETWORKS / f"{name}.toml").write_text(format_network(found), encoding="utf-8")
    text = io.StringIO(
        "# Times (ns) predicted for measurements of pico.csv.gz: by a network fitted to all jobs of the machine,\n"
        "# and by that fitted to all other jobs. From reports/oracles/machines.py.\n"
    )
    text.seek(0, io.SEEK_END)
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(Predicted._fields)
    writer.writerows(sorted(table))
    PREDICTED.write_bytes(gzip.compress(text.getvalue().encode(), mtime=0))


if __name__ == "__main__":
    main(sys.argv[1:])
