"""Logs of nccl-tests and rccl-tests: their tables, and the JSON of ``-J``.

Tables of older versions do not name the collective, and lists of devices may be cut off. The program in a line
before tells the collective; else the operation, and busbw / algbw, whose value also depends on the ranks.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from hpcdl.trace.files import JsonObject, from_json, parse_json
from hpcdl.trace.log import COLLECTIVES, Format, Line, Log, Row
from hpcdl.trace.log_facts import stated
from hpcdl.trace.recorder import Scalar

HEADER: Final = re.compile(r"^\s*#\s+size\s+count\s.*\salgbw\s")
MARK: Final = re.compile(rf'{HEADER.pattern}|^# nThread \d|^\{{"version":.*"nccl_version":')
PROGRAM: Final = re.compile(r"\b(all_reduce|all_gather|reduce_scatter|broadcast|reduce|alltoall)_perf")
DEVICE: Final = re.compile(r"^\s*#\s+Rank\s+(\d+)\s+(?:Group\s+\d+\s+)?Pid\s+\d+\s+on\s+(\S+)\s+device")
VERSION: Final = re.compile(r"^(?:# )?(?:nccl-tests version |rccl-tests: Version )(\S+)(?:.*nccl-library=(\d+))?")
LIBRARY: Final = re.compile(r"^\s*(?:NCCL version |RCCL version ?: ?)(\S+)")
END: Final = re.compile(r"^\s*#\s*Avg bus bandwidth\s*:")
TYPES: Final = {"float": "float32", "double": "float64", "half": "float16"}
PLACEMENTS: Final = ("out_of_place", "in_place")
PER_PLACEMENT: Final = ("time", "#wrong")
MAX_RANKS: Final = 4096
"""Ranks that busbw / algbw may tell."""


def read(_: Path, lines: Sequence[Line]) -> Log:
    """Read a log. Raises ValueError, led by the line."""
    if lines[0].text.startswith("{"):
        return _of_json(lines[0])
    cells, hosts, version, library, program = list[tuple[Line, dict[str, str]]](), dict[int, str](), "", "", ""
    columns, ended, name = list[str](), False, "NCCL"
    for line in lines:
        if found := PROGRAM.search(line.text):
            program = found[1]
        name = "RCCL" if "rccl" in line.text.lower() else name
        if HEADER.match(line.text):
            if columns:
                raise line.error("a second table; split the log")
            names = line.text.strip().lstrip("# ").split()
            columns = [f"in place {name}" if name in names[:place] else name for place, name in enumerate(names)]
        elif device := DEVICE.match(line.text):
            hosts[int(device[1])] = device[2]
        elif found := VERSION.match(line.text):
            version, library = found[1], _version(found[2] or "")
        elif found := LIBRARY.match(line.text):
            library = found[1]
        elif columns and re.match(r"\s*\d+\s+\d+\s", line.text):
            cells.append((line, line.cells(columns)))
        ended = ended or bool(END.match(line.text))
    if columns and not ended:
        raise lines[-1].error("the log ends before 'Avg bus bandwidth': it is cut")
    listed = list(hosts.values()) if [*hosts] == [*range(len(hosts))] else []  # a list may be cut
    collective, ranks = _known(program, len(listed), cells)
    rows = [
        _row(line, collective, ranks, name, placement, row | {key: row[prefix + key] for key in PER_PLACEMENT})
        for line, row in cells
        for placement, prefix in zip(PLACEMENTS, ("", "in place "), strict=True)
        if row.get(f"{prefix}time", "N/A") != "N/A"
    ]
    return _log(f"{name.lower()}-tests", rows, version, library and f"{name} {library}", listed)


def _log(tool: str, rows: Sequence[Row], version: str, library: str, hosts: Sequence[str], date: str = "") -> Log:
    return Log(tool, "means over repetitions and ranks", rows, version, date, library, hosts)


def _version(code: str) -> str:
    """Return 2.29.7 for 22907."""
    return f"{int(code) // 10000}.{int(code) // 100 % 100}.{int(code) % 100}" if code else ""


def _known(program: str, ranks: int, cells: Sequence[tuple[Line, dict[str, str]]]) -> tuple[str, int]:
    """Return the collective and the ranks, 0 if unknown. Raises ValueError for an unknown collective."""
    collective = stated("collective", COLLECTIVES.get(program, ""))
    sums = all(row.get("redop", "none") != "none" and row.get("root", "-1") == "-1" for _, row in cells)
    possible = [collective] if collective else ["allreduce", "reduce_scatter"] if sums else []
    counts = [ranks] if ranks else range(2, MAX_RANKS + 1)
    found = [(name, p) for name in possible for p in counts if all(_fits(name, p, row) for _, row in cells)]
    if len(found) == 1:
        return found[0]
    if not collective:
        raise ValueError("the log does not tell the collective: state it with --log collective=allreduce")
    return collective, ranks


def _fits(collective: str, ranks: int, row: dict[str, str]) -> bool:
    """Return True if busbw / algbw is that of a collective on as many ranks, within rounding."""
    share = (ranks - 1) / ranks
    factor = {"allreduce": 2 * share, "broadcast": 1.0, "reduce": 1.0}.get(collective, share)
    half_units = [0.5 * 10.0 ** -len(row[name].partition(".")[2]) for name in ("algbw", "busbw")]
    return abs(float(row["algbw"]) * factor - float(row["busbw"])) <= half_units[0] * factor + half_units[1] + 1e-9


def _row(line: Line, collective: str, ranks: int, algorithm: str, placement: str, row: JsonObject) -> Row:
    fields: dict[str, Scalar] = {"placement": placement, "dtype": TYPES.get(row["type"], row["type"])}
    if row["#wrong"] not in {"N/A", None}:
        fields["correct"] = float(row["#wrong"]) == 0
    seconds = [line.number_of(str(row["time"])) / 1e6]
    return Row(line, collective, int(row["size"]), seconds, ranks, {**fields, "aggregation": algorithm})


def _of_json(line: Line) -> Log:
    """Return the log in the JSON of ``-J``, which is one line."""
    document = from_json(JsonObject, parse_json(line.text, "line 1"), "line 1")
    program = PROGRAM.search(" ".join(document["args"]))
    hosts = [str(device["hostname"]) for device in document["devices"]]
    collective, _ = _known(program[1] if program else "", len(hosts), ())
    rows = [
        _row(line, collective, len(hosts), "NCCL", placement, {**result, **half, "#wrong": half["nwrong"]})
        for result in document["results"]
        for placement in PLACEMENTS
        if (half := result.get(placement))
    ]
    return _log(
        "nccl-tests", rows, "", f"NCCL {_version(str(document['nccl_version']))}", hosts, document["start_time"]
    )


FORMAT: Final = Format("nccl-tests", MARK, read)
