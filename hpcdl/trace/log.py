"""Logs of other benchmarks as runs: each module of :mod:`hpcdl.trace.logs` reads one format.

Most logs have means over repetitions, so that a case of theirs has one step. What they do not state stays unknown,
unless a user states it (:mod:`hpcdl.trace.log_facts`): ranks are 0 then, and other fields are absent.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import importlib
import json
import pkgutil
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Final

import numpy as np

from hpcdl.trace import files
from hpcdl.trace.files import JsonObject
from hpcdl.trace.log_facts import stated
from hpcdl.trace.recorder import TABLES, Rows, Scalar, TraceError, analysed
from hpcdl.trace.run import READ, RecordedCase, Run

PING_PONG: Final = "ping-pong"
"""Program of an exchange whose time is half of a message and its answer."""
STREAM: Final = "stream"
"""Program of an exchange whose time is a message's share of a window of messages."""
COLLECTIVES: Final = {
    **{name: name for name in ("allreduce", "allgather", "reduce", "reduce_scatter", "broadcast")},
    "all_reduce": "allreduce",
    "all_gather": "allgather",
    "bcast": "broadcast",
    **dict.fromkeys(("alltoall", "all-to-all personalized exchange"), "all_to_all"),
}
"""Collectives by the names of all tools, in lower case."""
BY_PARTS: Final = ("allgather", "all_to_all")
"""Collectives of which MPI's benchmarks state the bytes of a rank's part, hpcdl those of the whole vector."""
TAG: Final = re.compile(r"\[[^][\s]*\d\](?:<\w+>:?|:? )|\d{1,6}: ")
"""Rank before a line, as mpirun and srun tag it: ``[1,0]<stdout>:``, ``[0] `` or ``0: ``."""
DATE: Final = re.compile(r"(?<!\d)(20\d\d)[-_]?([01]\d)[-_]?([0-3]\d)(?:[-_T]*([0-2]\d)[-_:]?([0-5]\d))?(?!\d)")
"""Date, and perhaps hour and minute, in the name of a file or folder."""
PICO_FILES: Final = "[0-9]*_*.csv"
"""Files in the folder of a PICO test."""
SUITE: Final = '[suite]\nname = "{}"\nquestion = "How long do messages take, by size?"\nanswer = "bus_bandwidth"\n'


@dataclass(frozen=True)
class Line:
    """A line without the tag of its rank."""

    number: int
    text: str

    def error(self, reason: str) -> ValueError:
        """Return an error about this line."""
        return ValueError(f"line {self.number}: {reason}")

    def cells(self, columns: Sequence[str]) -> dict[str, str]:
        """Return the words of a row by column. Raises ValueError for more or fewer words."""
        words = self.text.split()
        if len(words) != len(columns):
            raise self.error(f"{len(words)} columns instead of {len(columns)}: the log is damaged or cut")
        return dict(zip(columns, words, strict=True))

    def number_of(self, word: str, decimals: str = "") -> float:
        """Return a number of a row. Raises ValueError for one without so many ``decimals``: it may be cut."""
        if not re.fullmatch(rf"\d+\.\d{{{decimals}}}" if decimals else r"\d+(\.\d*)?(e[-+]\d+)?", word):
            raise self.error(f"{word!r} is no number as the tool prints it: the log is damaged or cut")
        return float(word)


@dataclass(frozen=True)
class Row:
    """A measured time of a log."""

    line: Line
    operation: str
    """A collective, :data:`PING_PONG` or :data:`STREAM`."""
    size: int
    seconds: Sequence[float]
    """The mean, or the time of each repetition."""
    ranks: int = 0
    """0: not stated."""
    fields: Mapping[str, Scalar] = field(default_factory=dict)
    """More fields of the case: ``placement``, ``correct``, other times of the row."""


@dataclass(frozen=True)
class Log:
    """What a log states; empty: it does not."""

    tool: str
    times: str
    """What its times are, in words."""
    rows: Sequence[Row]
    version: str = ""
    date: str = ""
    """ISO 8601, without an offset, as of UTC."""
    library: str = ""
    hosts: Sequence[str] = ()
    """Of each rank."""
    nodes: int = 0
    of_parts: bool = False
    """True if sizes of collectives in :data:`BY_PARTS` are those of a rank's part."""


@dataclass(frozen=True)
class Format:
    """Declaration ``FORMAT`` of a module in :mod:`hpcdl.trace.logs`."""

    tool: str
    mark: re.Pattern[str]
    """Matches lines that only logs of this tool have."""
    read: Callable[[Path, Sequence[Line]], Log]
    """Read the lines of a file. Raises ValueError, led by the line."""


@cache
def formats() -> tuple[Format, ...]:
    """Return the declarations of the folder."""
    from hpcdl.trace import logs

    names = [module.name for module in pkgutil.iter_modules(logs.__path__)]
    return tuple(importlib.import_module(f"{logs.__name__}.{name}").FORMAT for name in names)


def lines_of(path: Path) -> list[Line]:
    """Return the lines of a text, of a PICO test those of one file. Raises ValueError."""
    texts = files.read_text(min(path.glob(PICO_FILES)) if path.is_dir() else path).splitlines()
    return [Line(number, TAG.sub("", text, count=1).rstrip()) for number, text in enumerate(texts, 1)]


def is_log(path: Path) -> bool:
    """Return True if a path may be a log: a file that is neither trace nor records, or a folder of a PICO test."""
    if path.is_dir():
        return not any((path / name).exists() for name in ("run.h5", "parts")) and any(path.glob(PICO_FILES))
    return path.is_file() and path.suffix not in {".h5", ".xz", ".gz"}


def has_mark(path: Path) -> bool:
    """Return True if a file has a line of a known tool."""
    with suppress(ValueError):
        return is_log(path) and any(form.mark.search(line.text) for line in lines_of(path) for form in formats())
    return False


def described(lines: Sequence[Line]) -> str:
    """Return that a text is of no known tool, with its first line."""
    texts = [f"line {line.number} is {line.text.strip()!r:.70}" for line in lines if line.text.strip()]
    tools = ", ".join(form.tool for form in formats())
    return f"not a trace of hpcdl, nor a log of {tools}: {texts[0] if texts else 'it is empty'}"


def read_log(path: Path) -> Run:
    """Read a log as a run of one launch. Raises TraceError, in one line that names file and line."""
    try:
        lines = lines_of(path)
        marked = [(line, form) for line in lines for form in formats() if form.mark.search(line.text)]
        if not marked:
            raise ValueError(described(lines))  # noqa: TRY301
        first, form = marked[0]
        for line, other in marked:
            if other is not form:
                raise line.error(f"a log of {other.tool} in one of {form.tool}, line {first.number}: split it")
        with analysed(path):
            log = form.read(path, lines)
            return _run(path, log, hashlib.sha256("\n".join(line.text for line in lines).encode()))
    except ValueError as error:
        raise TraceError(f"{path}: {str(error).removeprefix(f'{path}: ')}") from None


def _date(path: Path, date: str) -> str:
    """Return the date of a log, its own, of its name or folder, or of the file: UTC, ISO 8601."""
    changed = dt.datetime.fromtimestamp(path.stat().st_mtime, dt.UTC).replace(microsecond=0).isoformat()
    named = [found for name in (path.stem, path.parent.name) for found in DATE.findall(name)]
    dates = [f"{year}-{month}-{day}T{hour or '00'}:{minute or '00'}" for year, month, day, hour, minute in named]
    for text in filter(None, (date, *dates, changed)):
        with suppress(ValueError):  # other numbers of a name
            return dt.datetime.fromisoformat(text).replace(tzinfo=dt.UTC).isoformat()
    return changed


def _run(path: Path, log: Log, digest: hashlib._Hash) -> Run:
    """Return a log as a run; ``digest``: of its text. Raises ValueError."""
    if not log.rows:
        raise ValueError(f"has no times of {log.tool}: it is cut, or the tool failed")
    library, date = stated("library", log.library), _date(path, log.date)
    tool = f"{log.tool} {log.version}".strip()
    nodes = int(stated("nodes", log.nodes or len(set(log.hosts))) or 0)
    ranks = max(int(stated("ranks", row.ranks) or 0) for row in log.rows)
    # as launchers place them: consecutive ranks share a node
    hosts = log.hosts or [f"node-{rank * nodes // ranks}" for rank in range(ranks) if nodes]
    environment: JsonObject = {
        "date": date,
        "key": ", ".join(filter(None, (tool, library))),
        "library": library,
        "software": {log.tool: log.version or "unknown"},
        "mpi": {**({"library": library} if library else {}), **({"nodes": nodes} if nodes else {})},
        "ranks": [{"hostname": host} for host in hosts],
    }
    digest.update(date.encode())
    operations = {row.operation for row in log.rows}
    suite = f"{log.tool} {min(operations)}" if len(operations) == 1 else log.tool
    about: dict[str, Scalar] = {"suite": suite, "nodes": nodes or None, "environment_key": environment["key"]}
    about |= {"warmup_steps": 0, "log": f"{tool}: {log.times}"}
    lines, recorded = dict[Scalar, int](), []
    for row in log.rows:
        fields = about | _fields(row, of_parts=log.of_parts)
        first = lines.setdefault(fields["case"], row.line.number)
        if first != row.line.number:
            raise row.line.error(f"{fields['case']} again, as in line {first}: split the log, one launch a file")
        identity = digest.copy()
        identity.update(str(fields["case"]).encode())
        tables = _steps(row.seconds), *(np.empty(0, TABLES[table]) for table in READ[1:])
        recorded.append(RecordedCase(fields, *tables, identity=identity.hexdigest()[:16]))
    environments = {environment["key"]: environment}
    return Run(path, recorded, environment, environments, SUITE.format(suite), complete=True)


def _fields(row: Row, *, of_parts: bool) -> dict[str, Scalar]:
    """Return the fields of a case. Raises ValueError."""
    ranks, size, name = int(stated("ranks", row.ranks) or 0), row.size, row.operation
    settings: JsonObject = {"ranks": ranks} if ranks else {}
    fields = {**row.fields, "ranks": ranks}
    if name in {PING_PONG, STREAM}:
        fields |= {"kind": "pairwise", "pattern": "pair", "aggregation": name}
    else:
        if of_parts and name in BY_PARTS:
            if not ranks:
                raise row.line.error(f"the bytes of an {name} are those of a rank's part: give --log ranks=N")
            size *= ranks
        placement = stated("placement", fields.get("placement"))
        algorithm = stated("algorithm") or fields.get("aggregation", "native")
        fields |= {"kind": "collective", "collective": name, "aggregation": algorithm}
        fields["placement"] = placement or None
        settings |= {"collective": name, "aggregation": {"name": algorithm}}
        settings |= {"placement": placement} if placement else {}
        name = "-".join(filter(None, (name, str(algorithm), f"p{ranks}" if ranks else "", placement)))
    settings["message_bytes"] = size
    return {**fields, "case": f"{name}-{size}B", "message_bytes": size, "settings": json.dumps(settings)}


def _steps(seconds: Sequence[float]) -> Rows:
    """Return rows of steps of one rank that take as long."""
    steps = np.zeros(len(seconds), TABLES["steps"])
    steps["step"] = np.arange(len(seconds))
    steps["end"] = np.rint(np.array(seconds) * 1e9)
    steps["loss"] = steps["learning_rate"] = np.nan
    return steps
