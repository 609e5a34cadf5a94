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

from hpcdl.trace.log import COLLECTIVES, PICO_FILES, Format, Line, Log, Row, lines_of
from hpcdl.trace.log_facts import stated

MARK: Final = re.compile(r"^highest$")
NAME: Final = re.compile(r"(\d+)_(.+)_(int32|int64|float|double|int8|char)\.csv")
SIZES: Final = {"int32": 4, "int64": 8, "float": 4, "double": 8, "int8": 1, "char": 1}


def read(path: Path, _: Sequence[Line]) -> Log:
    """Read a file or the folder of a test. Raises ValueError, led by the line."""
    times, test = sorted(path.glob(PICO_FILES)) if path.is_dir() else [path], path.absolute()
    test = test if path.is_dir() else test.parent
    about, table = dict[str, str](), test.parents[1].with_name(f"{test.parents[1].name}_metadata.csv")
    if table.exists():
        tests = csv.DictReader(line.text for line in lines_of(table))
        about = next(
            (row for row in tests if (row["timestamp"], row["test_id"]) == (test.parent.name, test.name)), {}
        )
    name = about.get("collective_type", "").lower()
    collective = stated("collective", COLLECTIVES.get(name, name))
    if not collective:
        raise ValueError(f"no table {table.name} tells the collective: state it with --log collective=allreduce")
    nodes = prod(map(int, about.get("nnodes", "0").split("x")))
    rows = [_row(file, collective, nodes * int(about.get("tasks_per_node", 0))) for file in times]
    library = " ".join(about[key] for key in ("mpi_lib", "mpi_lib_version") if key in about)
    return Log("pico", "each repetition of the slowest rank", rows, library=library, nodes=nodes)


def _row(file: Path, collective: str, ranks: int) -> Row:
    name = NAME.fullmatch(file.name)
    if name is None:
        raise ValueError(f"a file of PICO is named ELEMENTS_ALGORITHM_TYPE.csv, not {file.name}")
    head, *lines = lines_of(file)
    for line in lines or [head]:
        if not line.text.isdecimal():
            raise line.error(f"{line.text!r} in {file.name} is no time in ns: the file is damaged or cut")
    fields = {"dtype": name[3], "aggregation": name[2].removesuffix("_over")}
    return Row(
        head, collective, int(name[1]) * SIZES[name[3]], [int(line.text) / 1e9 for line in lines], ranks, fields
    )


FORMAT: Final = Format("pico", MARK, read)
