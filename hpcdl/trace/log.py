"""Logs of other benchmarks as runs: each module of :mod:`hpcdl.trace.logs` reads one format.

Most logs have means over repetitions, so that a case of theirs has one step. A user states what a log does not
(``facts``, by key): the ranks and the collective must be known, the rest may stay unknown.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import importlib
import json
import pkgutil
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Final, TypeAlias

import numpy as np

from hpcdl.trace import files
from hpcdl.trace.files import JsonMapping, JsonObject
from hpcdl.trace.recorder import TABLES, Rows, Scalar, TraceError, analysed
from hpcdl.trace.run import READ, RecordedCase, Run

Facts: TypeAlias = Sequence[tuple[str, str]]
"""What a user states about logs: keys and values of ``--log``."""
PING_PONG: Final = "ping-pong"
"""Program of an exchange whose time is half of a message and its answer."""
STREAM: Final = "stream"
"""Program of an exchange whose time is a message's share of a window of messages."""
COLLECTIVES: Final = {
    **{name: name for name in ("allreduce", "allgather", "reduce", "reduce_scatter", "broadcast", "all_to_all")},
    "all_reduce": "allreduce",
    "all_gather": "allgather",
    "reducescatter": "reduce_scatter",
    "bcast": "broadcast",
    **dict.fromkeys(("alltoall", "all-to-all personalized exchange"), "all_to_all"),
}
"""Collectives by the names of all tools, in lower case."""
TAG: Final = re.compile(r"^(?:\[[^][\s]*\d\](?:<\w+>:?|:? )|\d{1,6}: )")
"""Rank before a line, as mpirun and srun tag it: ``[1,0]<stdout>:``, ``[0] `` or ``0: ``."""
DATE: Final = re.compile(r"(?<!\d)(20\d\d)[-_]?([01]\d)[-_]?([0-3]\d)(?:[-_T]*([0-2]\d)[-_:]?([0-5]\d))?(?!\d)")
"""Date, and perhaps hour and minute, in the name of a file or folder."""
PICO_FILE: Final = re.compile(r"(\d+)_(.+)_(int32|int64|float|double|int8|char)\.csv")
"""Name of a file in the folder of a PICO test: elements, algorithm and type."""
SUFFIXES: Final = (".log", ".txt", ".out", ".json", ".csv")
"""Names of files that a search for logs opens."""
SEARCHED: Final = 1 << 18
"""Bytes of a file in which a search looks for a tool's mark."""
SUITE: Final = '[suite]\nname = "{}"\nquestion = "How long do messages take, by size?"\nanswer = "bus_bandwidth"\n'


@dataclass(frozen=True)
class Line:
    """A line without the tag of its rank; ``is_cut``: the file ends within it."""

    number: int
    text: str
    is_cut: bool = False

    def error(self, reason: str) -> ValueError:
        """Return an error about this line."""
        return ValueError(f"line {self.number}: {reason}")

    def cells(self, columns: Sequence[str]) -> dict[str, str]:
        """Return the words of a row by column, the last one with its spaces. Raises ValueError for a cut row."""
        words = self.text.split(maxsplit=len(columns) - 1)
        if self.is_cut or len(words) != len(columns):
            counts = f"{len(words)} of {len(columns)} columns"
            raise self.error(f"cut within this row, damaged, or under an unknown heading: {counts}")
        return dict(zip(columns, words, strict=True))

    def number_of(self, word: str, decimals: str = "") -> float:
        """Return a number of a row. Raises ValueError for one without so many ``decimals``: it may be cut."""
        if not re.fullmatch(rf"\d+\.\d{{{decimals}}}" if decimals else r"\d+(\.\d*)?(e[-+]\d+)?", word):
            raise self.error(f"{word!r} is no number as the tool prints it: the log is damaged or cut")
        return float(word)


@dataclass(frozen=True)
class Row:
    """Measured time of a collective, :data:`PING_PONG` or :data:`STREAM`; ``fields``: more of the case's."""

    line: Line
    operation: str
    size: int
    seconds: Sequence[float]
    ranks: int = 0
    fields: Mapping[str, Scalar] = field(default_factory=dict)


@dataclass(frozen=True)
class Log:
    """What a log states; empty: it does not. :mod:`hpcdl.trace.logs` describes the fields."""

    tool: str
    times: str
    rows: Sequence[Row]
    version: str = ""
    date: str = ""
    library: str = ""
    hosts: Sequence[str] = ()
    nodes: int = 0
    of_parts: bool = False


@cache
def formats() -> tuple[ModuleType, ...]:
    """Return the modules of the folder, which describes what they declare."""
    from hpcdl.trace import logs

    names = [module.name for module in pkgutil.iter_modules(logs.__path__)]
    return tuple(importlib.import_module(f"{logs.__name__}.{name}") for name in names)


def _lines(text: str) -> list[Line]:
    texts = text.split("\n")
    lines = [Line(n, TAG.sub("", text, count=1).rstrip(), n == len(texts)) for n, text in enumerate(texts, 1)]
    return lines if texts[-1] else lines[:-1]


def lines_of(path: Path) -> list[Line]:
    """Return the lines of a text, of a PICO test those of one file. Raises ValueError."""
    return _lines(files.read_text(pico_files(path)[0] if path.is_dir() else path))


def pico_files(folder: Path) -> list[Path]:
    """Return the files of a PICO test in their order."""
    return sorted(path for path in folder.glob("*.csv") if PICO_FILE.fullmatch(path.name))


def is_log(path: Path) -> bool:
    """Return True if a path may be a log: a file that is neither trace nor records, or a folder of a PICO test."""
    if path.is_dir():
        return not any((path / name).exists() for name in ("run.h5", "parts")) and bool(pico_files(path))
    return path.is_file() and path.suffix not in {".h5", ".xz", ".gz"}


def has_mark(path: Path) -> bool | None:
    """Return True if the begin of a file has a line of a known tool; None: by name or size it is not opened."""
    if path.suffix not in SUFFIXES or not path.is_file() or path.stat().st_size > files.MAX_TEXT:
        return None
    with suppress(OSError), path.open("rb") as file:
        lines = _lines(file.read(SEARCHED).decode("utf-8", "replace"))
        return any(form.MARK.search(line.text) for line in lines for form in formats())
    return None


def described(lines: Sequence[Line]) -> str:
    """Return that a text is of no known tool, with its first line."""
    texts = [f"line {line.number} is {line.text.strip()!r:.70}" for line in lines if line.text.strip()]
    tools = ", ".join(form.TOOL for form in formats())
    return f"not a trace of hpcdl, nor a log of {tools}: {texts[0] if texts else 'it is empty'}"


def read_log(path: Path, facts: Facts) -> Run:
    """Read a log, and what a user states about it, as a run of one launch.

    Raises TraceError, in one line that names file and line.
    """
    try:
        lines = lines_of(path)
        marked = [(line, form) for line in lines for form in formats() if form.MARK.search(line.text)]
        if not marked:
            raise ValueError(described(lines))  # noqa: TRY301
        first, form = marked[0]
        for line, other in marked:
            if other is not form:
                raise line.error(f"a log of {other.TOOL} in one of {form.TOOL}, line {first.number}: split it")
        with analysed(path):
            return _run(path, lines, form.read(path, lines), dict(facts))
    except ValueError as error:
        raise TraceError(f"{path}: {str(error).removeprefix(f'{path}: ')}") from None


def _date(path: Path, date: str) -> str:
    """Return the date of a log, its own, of its name or folder, or of the file: UTC, ISO 8601."""
    named = [found for name in (path.stem, path.parent.name) for found in DATE.findall(name)]
    dates = [f"{year}-{month}-{day}T{hour or '00'}:{minute or '00'}" for year, month, day, hour, minute in named]
    for text in filter(None, (date, *dates)):
        with suppress(ValueError):  # other numbers of a name
            return dt.datetime.fromisoformat(text).replace(tzinfo=dt.UTC).isoformat()
    return dt.datetime.fromtimestamp(int(path.stat().st_mtime), dt.UTC).isoformat()


def _stated(facts: JsonMapping, name: str, known: object) -> str:
    """Return what a log states, else a user; empty if neither does. Raises ValueError if they differ."""
    if known and facts.get(name, str(known)) != str(known):
        raise ValueError(f"--log {name}={facts[name]}: the log states {known}")
    return str(known or facts.get(name, ""))


def _run(path: Path, lines: Sequence[Line], log: Log, facts: JsonMapping) -> Run:
    """Return a log as a run. Raises ValueError."""
    if not log.rows:
        raise ValueError(f"has no times of {log.tool}: it is cut, or the tool failed")
    tool, date = f"{log.tool} {log.version}".strip(), _date(path, log.date)
    library = _stated(facts, "library", log.library)
    nodes = int(_stated(facts, "nodes", log.nodes or len(set(log.hosts))) or 0)
    every = [_fields(row, facts, of_parts=log.of_parts) for row in log.rows]
    ranks = max(int(fields["ranks"] or 0) for fields in every)
    # as launchers place them: consecutive ranks share a node
    hosts = log.hosts or [f"node-{rank * nodes // ranks}" for rank in range(ranks) if nodes]
    environment: JsonObject = {
        "date": date,
        "key": ", ".join(filter(None, (tool, library))),
        "software": {log.tool: log.version or "unknown"},
        "mpi": {name: value for name, value in {"library": library, "nodes": nodes}.items() if value},
        "ranks": [{"hostname": host} for host in hosts],
        "stated": dict(facts),
    }
    operations = {str(fields.get("collective") or fields["aggregation"]) for fields in every}
    suite = f"{log.tool} {min(operations)}" if len(operations) == 1 else log.tool
    about = {"suite": suite, "nodes": nodes or None, "environment_key": environment["key"]}
    about |= {"warmup_steps": 0, "log": f"{tool}: {log.times}"}
    text = "\n".join([date, *(line.text for line in lines)])  # two nights may have equal times
    first, recorded = dict[Scalar, int](), []
    for row, fields in zip(log.rows, every, strict=True):
        case = fields["case"]
        if first.setdefault(case, row.line.number) != row.line.number:
            raise row.line.error(f"{case} again, as in line {first[case]}: split the log, one launch a file")
        tables = _steps(row.seconds), *(np.empty(0, TABLES[table]) for table in READ[1:])
        identity = hashlib.sha256(f"{text}\n{case}".encode()).hexdigest()[:16]
        recorded.append(RecordedCase(about | fields, *tables, identity=identity))
    return Run(path, recorded, environment, {environment["key"]: environment}, SUITE.format(suite), complete=True)


def _fields(row: Row, facts: JsonMapping, *, of_parts: bool) -> dict[str, Scalar]:
    """Return the fields of a case. Raises ValueError."""
    name, size, of_pair = row.operation, row.size, row.operation in {PING_PONG, STREAM}
    ranks = 2 if of_pair else int(_stated(facts, "ranks", row.ranks) or 0)
    if not ranks:
        raise row.line.error("the log does not tell the ranks: state them with --log ranks=N")
    settings: JsonObject = {"ranks": ranks}
    fields = {**row.fields, "ranks": ranks}
    if of_pair:
        fields |= {"kind": "pairwise", "pattern": "pair", "aggregation": name}
    else:
        name = _stated(facts, "collective", name)
        if name not in COLLECTIVES.values():
            raise row.line.error("the log does not tell the collective: state it with --log collective=allreduce")
        size *= ranks if of_parts and name in {"allgather", "all_to_all"} else 1
        placement = _stated(facts, "placement", fields.get("placement"))
        algorithm = facts.get("algorithm") or fields.get("aggregation", "native")
        fields |= {"kind": "collective", "collective": name, "aggregation": algorithm}
        fields["placement"] = placement or None
        settings |= {"collective": name, "aggregation": {"name": algorithm}}
        settings |= {"placement": placement} if placement else {}
        name = "-".join(filter(None, (name, str(algorithm), f"p{ranks}", placement)))
    settings["message_bytes"] = size
    return {**fields, "case": f"{name}-{size}B", "message_bytes": size, "settings": json.dumps(settings)}


def _steps(seconds: Sequence[float]) -> Rows:
    """Return rows of steps of one rank that take as long."""
    steps = np.zeros(len(seconds), TABLES["steps"])
    steps["step"] = np.arange(len(seconds))
    steps["end"] = np.rint(np.array(seconds) * 1e9)
    steps["loss"] = steps["learning_rate"] = np.nan
    return steps
