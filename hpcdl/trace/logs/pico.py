"""Tests of PICO (https://github.com/HLC-Lab/pico): one file, or the folder of all sizes and algorithms of a test.

A file has the time of the slowest rank in each repetition (ns), and its name elements, algorithm and type.
Collective, library and nodes are in the table beside the machine's folder, ``MACHINE_metadata.csv``.
"""

import csv
import re
from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import Final

from hpcdl.trace.log import COLLECTIVES, PICO_FILE, Line, Log, Row, lines_of, pico_files

TOOL: Final = "pico"
MARK: Final = re.compile(r"^highest$")
SIZES: Final = {"int32": 4, "int64": 8, "float": 4, "double": 8, "int8": 1, "char": 1}


def read(path: Path, _: Sequence[Line]) -> Log:
    """Read a file or the folder of a test. Raises ValueError, led by the line."""
    times, test = pico_files(path) if path.is_dir() else [path], path.absolute()
    test = test if path.is_dir() else test.parent
    table = test.parents[1].with_name(f"{test.parents[1].name}_metadata.csv")
    tests = csv.DictReader(line.text for line in lines_of(table)) if table.exists() else ()
    names = (test.parent.name, test.name)
    about = next((row for row in tests if (row["timestamp"], row["test_id"]) == names), {})
    nodes = prod(map(int, about.get("nnodes", "0").split("x")))
    collective, ranks = about.get("collective_type", "").lower(), nodes * int(about.get("tasks_per_node", 0))
    library = " ".join(about[key] for key in ("mpi_lib", "mpi_lib_version") if key in about)
    rows = [_row(file, COLLECTIVES.get(collective, ""), ranks) for file in times]
    return Log("pico", "each repetition of the slowest rank", rows, library=library, nodes=nodes)


def _row(file: Path, collective: str, ranks: int) -> Row:
    name = PICO_FILE.fullmatch(file.name)
    if name is None:
        raise ValueError(f"a file of PICO is named ELEMENTS_ALGORITHM_TYPE.csv, not {file.name}")
    head, *lines = lines_of(file) or [Line(1, "")]
    try:
        times = [line.number_of(line.cells(["ns"])["ns"]) / 1e9 for line in lines or [head]]
    except ValueError as error:
        raise ValueError(f"{file.name}: {error}") from None
    fields = {"dtype": name[3], "aggregation": name[2].removesuffix("_over"), "measured_steps": len(times)}
    return Row(head, collective, int(name[1]) * SIZES[name[3]], times, ranks, fields)
