"""Logs of nccl-tests and rccl-tests: tables, the JSON of ``-J``, and the JSON and CSV of rccl-tests' ``-x``.

Tables of older versions do not name the collective: the program in a line before tells it, or the operation and
the bandwidths. Lists of devices may be cut off; then the ranks are unknown.
"""

import csv
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from hpcdl.trace.files import JsonMapping, JsonObject, from_json, parse_json
from hpcdl.trace.log import COLLECTIVES, Line, Log, Row
from hpcdl.trace.recorder import Scalar

TOOL: Final = "nccl-tests"
HEADER: Final = re.compile(r"^\s*#\s+size\s+count\s.*\salgbw\s")
DOCUMENT: Final = re.compile(r'^\{"version":.*"nccl_version":')
OBJECT: Final = re.compile(r'^\s*\{"(?:numCycle":|#wrong":.*"busBw":)')
TABLE: Final = re.compile("^numCycle,collective,")
MARK: Final = re.compile("|".join(each.pattern for each in (HEADER, DOCUMENT, OBJECT, TABLE)) + r"|^# nThread \d")
PROGRAM: Final = re.compile(r"\b(all_reduce|all_gather|reduce_scatter|broadcast|reduce|alltoall)_perf")
DEVICE: Final = re.compile(r"^\s*#\s+Rank\s+(\d+)\s+(?:Group\s+\d+\s+)?Pid\s+\d+\s+on\s+(\S+)\s+device")
VERSION: Final = re.compile(r"^(?:# )?(?:nccl-tests version |rccl-tests: Version )(\S+)(?:.*nccl-library=(\d+))?")
LIBRARY: Final = re.compile(r"^\s*(?:NCCL version |RCCL version ?: ?)(\S+)")
END: Final = re.compile(r"^\s*#\s*Avg bus bandwidth\s*:")
TYPES: Final = {"float": "float32", "double": "float64", "half": "float16"}
PLACEMENTS: Final = ("out_of_place", "in_place")
TIMES: Final = "means over repetitions and ranks"


def read(_: Path, lines: Sequence[Line]) -> Log:
    """Read a log. Raises ValueError, led by the line."""
    if DOCUMENT.match(lines[0].text):
        return _of_document(lines[0])
    if TABLE.match(lines[0].text) or any(OBJECT.match(line.text) for line in lines):
        return _of_records(lines)
    cells, hosts, version, code, program = list[tuple[Line, dict[str, str]]](), dict[int, str](), "", "", ""
    columns, ended, library = list[str](), False, "NCCL"
    for line in lines:
        if found := PROGRAM.search(line.text):
            program = found[1]
        library = "RCCL" if "rccl" in line.text.lower() else library
        if HEADER.match(line.text):
            if columns:
                raise line.error("a second table; split the log")
            names = line.text.strip().lstrip("# ").split()
            columns = [f"in place {name}" if name in names[:place] else name for place, name in enumerate(names)]
        elif device := DEVICE.match(line.text):
            hosts[int(device[1])] = device[2]
        elif found := VERSION.match(line.text):
            version, code = found[1], _version(found[2] or "")
        elif found := LIBRARY.match(line.text):
            code = found[1]
        elif columns and re.match(r"\s*\d+\s+\d+\s", line.text):
            cells.append((line, line.cells(columns)))
        ended = ended or bool(END.match(line.text))
    if not ended:
        raise lines[-1].error("the log ends before 'Avg bus bandwidth': it is cut")
    listed = [*hosts.values()] * ([*hosts] == [*range(len(hosts))])  # a list may be cut
    collective = _collective(program, [row for _, row in cells])
    about = {"collective": collective, "ranks": len(listed), "library": library}
    rows = list[Row]()
    for line, row in cells:
        for placement, prefix in zip(PLACEMENTS, ("", "in place "), strict=True):
            half = {name: row.get(prefix + name) for name in ("time", "#wrong")}
            if half["time"] not in {None, "N/A"}:
                rows.append(_row(line, row | half | about | {"placement": placement}))
    named = f"{library} {code}".strip()
    return Log(f"{library.lower()}-tests", TIMES, rows, version, library=named, hosts=listed)


def _version(code: str) -> str:
    """Return 2.29.7 for 22907."""
    return f"{int(code) // 10000}.{int(code) // 100 % 100}.{int(code) % 100}" if code else ""


def _collective(program: str, rows: Sequence[JsonMapping]) -> str:
    """Return the collective of a program; without one that of sums whose busbw and algbw differ; else empty."""
    sums = all(row.get("redop", "none") != "none" and row.get("root", "-1") == "-1" for row in rows)
    excess = sum(float(row["busbw"]) - float(row["algbw"]) for row in rows if sums)
    return COLLECTIVES.get(program, "allreduce" if excess > 0 else "reduce_scatter" if excess < 0 else "")


def _row(line: Line, row: JsonMapping) -> Row:
    """Return a time; ``row``: size, type, time, #wrong, collective, ranks, library, placement."""
    fields: dict[str, Scalar] = {"placement": row["placement"], "aggregation": row["library"]}
    fields |= {"dtype": TYPES.get(row["type"], row["type"]), "measured_steps": row.get("actual_iterations")}
    if row["#wrong"] not in {"N/A", None}:
        fields["correct"] = float(row["#wrong"]) == 0
    seconds = line.number_of(str(row["time"])) / 1e6
    return Row(line, row["collective"], int(row["size"]), [seconds], row["ranks"], fields)


def _of_document(line: Line) -> Log:
    """Return the log in the JSON of ``-J``, which is one line; it names one device of each process."""
    document = from_json(JsonObject, parse_json(line.text, "line 1"), "line 1")
    config, program = document["config"], PROGRAM.search(" ".join(document["args"]))
    devices = config["nthreads"] * config["ngpus"]
    hosts = [str(process["hostname"]) for process in config["devices"] for _ in range(devices)]
    about = {"collective": COLLECTIVES[program[1]] if program else "", "ranks": len(hosts), "library": "NCCL"}
    rows = list[Row]()
    for result in document["results"]:
        for placement in PLACEMENTS:
            if half := result.get(placement):
                half |= {"#wrong": half["nwrong"], "placement": placement}
                rows.append(_row(line, result | half | about))
    named = f"NCCL {_version(str(document['nccl_version']))}"
    return Log("nccl-tests", TIMES, rows, date=document["start_time"], library=named, hosts=hosts)


def _of_records(lines: Sequence[Line]) -> Log:
    """Return the log in a file of rccl-tests' ``-x``: JSON with an object, or CSV with a row, for each time."""
    if lines[0].text == "[" and lines[-1].text != "]":
        raise lines[-1].error("the log ends before ']': it is cut")
    objects = [line for line in lines if OBJECT.match(line.text)]
    parsed = [parse_json(line.text.strip().rstrip(","), f"line {line.number}") for line in objects]
    table = [] if objects else [*csv.DictReader(line.text for line in lines)]
    rows, nodes = list[Row](), 0
    for line, record in zip(objects or lines[1:], parsed or table, strict=True):
        row = {name.lower(): value for name, value in record.items()}
        nodes = int(row.get("nodes", 0))
        ranks = int(row.get("ranks", 1)) * int(row.get("gpusperrank", row.get("gpus", 1)))
        name = str(row.get("name", row.get("collective"))).lower()
        about = {"collective": COLLECTIVES.get(name, ""), "ranks": ranks, "library": "RCCL"}
        about |= {"placement": PLACEMENTS[int(row["inplace"])], "#wrong": row.get("#wrong", row.get("wrong"))}
        rows.append(_row(line, row | about))
    return Log("rccl-tests", TIMES, rows, nodes=nodes)
