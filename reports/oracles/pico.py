"""Condense the measurements of PICO into the table that hpcdl compares its predictions with.

    python reports/oracles/pico.py CHECKOUT     write hpcdl/papers/pico.csv.gz

CHECKOUT is a work tree of github.com/HLC-Lab/pico (MIT licence, De Sensi and Pasqualoni 2025). Archives of
``results`` of more than MAX_BYTES are left out. Equal archives give equal bytes.

A file of a test is named COUNT_ALGORITHM_int32.csv: COUNT elements of four bytes of the whole array, that is of
all ranks' parts together (``test_loop`` of ``pico_core_utils.c``); NCCL's files lack the type, and count bytes.
Each line is the time of the slowest rank of a repetition (ns). The first fifth is warm-up, except on Fugaku, whose
program leaves it out itself (``summarize_data.py``).
"""

from __future__ import annotations

import csv
import gzip
import io
import re
import statistics
import sys
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

COMMIT = "413bc5d"
"""Of PICO, for which the table was made."""
MAX_BYTES = 4 << 20
"""Of an archive: the larger ones hold more of the same kinds of jobs."""
HERE = Path(__file__).resolve().parents[2] / "hpcdl" / "papers"
MACHINES = {"leonardo": "leonardo", "lumi": "lumi", "mare_nostrum": "marenostrum5", "fugaku": "fugaku"}
COLLECTIVES = {
    "ALLREDUCE": "allreduce",
    "ALLGATHER": "allgather",
    "REDUCE_SCATTER": "reduce_scatter",
    "ALLTOALL": "all_to_all",
    "BCAST": "broadcast",
    "REDUCE": "reduce",
    "GATHER": "gather",
    "SCATTER": "scatter",
}
FILE = re.compile(r"[^/]+/(?P<test>\d+)/(?P<count>\d+)_(?P<algorithm>.+?)(?P<type>_int32)?\.csv")
TABLE = f"""# Measured by others: github.com/HLC-Lab/pico, commit {COMMIT}, MIT (De Sensi, Pasqualoni 2025).
# Times (ns) of the slowest rank: quartiles and median over repetitions, without warm-up, four digits.
# message_bytes: of the whole array. nodes: all of the job. memory: of the buffers. From reports/oracles/pico.py.
"""


class Cell(NamedTuple):
    """A row of the table."""

    machine: str
    job: str
    nodes: int
    ranks: int
    library: str
    memory: str
    notes: str
    collective: str
    algorithm: str
    message_bytes: int
    repetitions: int
    low_ns: int
    median_ns: int
    high_ns: int


def rounded(nanoseconds: float) -> int:
    """Return four significant digits."""
    return int(float(f"{nanoseconds:.4g}"))


def times(text: str, machine: str) -> list[int]:
    """Return the repetitions of a file after warm-up (ns); NCCL's first line is 0, its last one a remark."""
    lines = [int(line) for line in text.splitlines() if line.isdigit() and line != "0"]
    return lines if machine == "fugaku" else lines[len(lines) // 5 :]


def nodes(shape: str) -> int:
    """Return the number of nodes, on Fugaku of the product of sides such as 2x2x2."""
    product = 1
    for side in shape.split("x"):
        product *= int(side)
    return product


def listed(archive: tarfile.TarFile) -> list[str]:
    """Return the node of each rank, as the first list of the archive has it; none if it has no list."""
    lists = sorted(name for name in archive.getnames() if re.fullmatch(r"[^/]+/alloc(_\d+)?\.csv", name))
    text = archive.extractfile(lists[0]).read().decode() if lists else ""
    return [line.partition(",")[2].strip() for line in text.splitlines()[1:]]


def cells(archive: tarfile.TarFile, machine: str, job: str, tests: dict[str, dict[str, str]]) -> Iterator[Cell]:
    """Yield the rows of a job: those of all tests that its machine's metadata describe.

    If all tests have equally many ranks, the list of ranks counts them: of two jobs the metadata are wrong.
    """
    listed_ranks = len(listed(archive)) if len({test["tasks_per_node"] for test in tests.values()}) == 1 else 0
    for member in archive:
        file = FILE.fullmatch(member.name)
        test = tests.get(file["test"]) if file else None
        if file is None or test is None:
            continue
        measured = times(archive.extractfile(member).read().decode(), machine)
        if len(measured) < 2:
            continue
        low, median, high = statistics.quantiles(measured, method="inclusive")
        notes = "" if test["notes"] == "null" else test["notes"].strip().removesuffix("^M")  # a typed line end
        yield Cell(
            machine,
            job,
            nodes(test["nnodes"]),
            listed_ranks or nodes(test["nnodes"]) * int(test["tasks_per_node"]),
            f"{test['mpi_lib']} {test['mpi_lib_version']}",
            "gpu" if test["gpu_awareness"] == "yes" else "host",
            notes,
            COLLECTIVES[test["collective_type"]],
            file["algorithm"],
            int(file["count"]) * (4 if file["type"] else 1),
            len(measured),
            *map(rounded, (low, median, high)),
        )


def main(checkout: Path, to: Path = HERE) -> None:
    """Write the table of a checkout's archives, without a time, so that equal rows give an equal file."""
    rows = list[Cell]()
    for folder, machine in MACHINES.items():
        tests: dict[str, dict[str, dict[str, str]]] = {}
        with (checkout / f"results/{folder}_metadata.csv").open(newline="") as metadata:
            for test in csv.DictReader(metadata):
                tests.setdefault(test["timestamp"], {})[test["test_id"]] = test
        for path in sorted((checkout / "results" / folder).glob("*.tar.gz")):
            job = path.name.removesuffix(".tar.gz")
            if path.stat().st_size > MAX_BYTES or job not in tests:
                continue
            with tarfile.open(path) as archive:
                rows += cells(archive, machine, job, tests[job])
    text = io.StringIO(TABLE)
    text.seek(0, io.SEEK_END)
    table = csv.writer(text, lineterminator="\n")
    table.writerow(Cell._fields)
    table.writerows(sorted(rows))
    (to / "pico.csv.gz").write_bytes(gzip.compress(text.getvalue().encode(), mtime=0))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
