"""A run read from its files: types of its fields, pandas frames, and the messages of its events.

A file whose checksum fits may have been written by another program. The analysis relies on the types checked here.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from hpcdl.trace.files import JsonMapping, JsonObject, from_json, parse_json, spelled_now
from hpcdl.trace.link_counters import Growth
from hpcdl.trace.quantities import QUANTITIES, TrainingNumbers
from hpcdl.trace.quantity import JSON_TYPES, declared
from hpcdl.trace.recorder import TABLES, Rows, Scalar

if TYPE_CHECKING:
    import pandas as pd


MAX_RANKS: Final = 1 << 17
MAX_INTEGER: Final = 1 << 63

RANK_ENTRIES: Final = {**dict.fromkeys(("hostname", "slurm_node", "affinity"), str), "threads": int}
ENVIRONMENT: Final[JsonObject] = {
    **dict.fromkeys(("date", "key", "kernel"), str),
    **dict.fromkeys(("ranks", "failed_cases", "cases_not_run"), list[JsonObject]),
    **dict.fromkeys(("counters", "counters_after"), JsonObject),  # of older records
    **dict.fromkeys(("network", "infiniband"), dict[str, dict[str, str]]),
    **dict.fromkeys(("variables", "software"), dict[str, str]),
    "link_counters": dict[str, Growth | None],
    "libraries": dict[str, list[str]],
    "cpu": {**dict.fromkeys(("model", "smt", "governor"), str), "physical_cores": int, "quota_cores": float},
    "mpi": {"library": str, "version": str, "nodes": int},
    "gpu": {"driver": str, "devices": list[dict[str, str]]},
    "git": {"commit": str, "changed_files": int},
    "emulated": {
        "hosts": int,
        **dict.fromkeys(("rate", "trunk"), str),
        "slow": dict[str, str],
        **dict.fromkeys(("bytes_per_second", "slow_cpu"), dict[str, float]),
        **dict.fromkeys(("trunk_bytes_per_second", "latency"), float),
    },
    "repeated_draws": int,
}
"""Types of the entries of an environment that are not ``"unknown"``, a table of them for a table."""
READ: Final = ("steps", "evaluations", "updates", "ranks")
"""Tables of a run that are read with its file; events are read later."""
IDENTIFYING: Final = ("steps", "evaluations", "ranks")
"""Tables of which a case's identity is made: each reader reads them."""
OF_POOLING: Final = {"launch", "environment_key"}
"""Fields that pooling changes."""
NATIVE: Final = "native "
"""Begin of the label of a collective of the library."""
DIVERGING: Final = {quantity.name for quantity in declared(TrainingNumbers) if not quantity.unit}
"""Fields of a training that are not finite if it diverges."""
AFFINITY: Final = re.compile(r"\d{1,5}(-\d{1,5})?(,\d{1,5}(-\d{1,5})?)*|unknown|")


def check_fields(fields: Mapping[str, Scalar]) -> None:
    """Raise ValueError, naming the field, for a value that is not of its declared type or range."""
    for name, value in fields.items():
        if isinstance(value, int) and not -1 <= value < MAX_INTEGER:
            raise ValueError(f"field {name!r}: {value!a:.40} is out of range")
        if isinstance(value, float) and not math.isfinite(value) and name not in DIVERGING:
            raise ValueError(f"field {name!r}: {value!a:.40} is not a finite number")
        if name in QUANTITIES and name != "settings":  # text here, an object in --json
            QUANTITIES[name].check(value)
        elif type(value) not in JSON_TYPES:
            raise ValueError(f"field {name!r}: {value!a:.40} is not a scalar")
    if not 0 <= int(fields["ranks"] or 0) <= MAX_RANKS:
        raise ValueError(f"no case has {fields['ranks']} ranks")
    if not isinstance(json.loads(str(fields.get("settings") or "{}")), dict):
        raise ValueError("field 'settings': not an object of JSON")  # noqa: TRY004 - as for all fields


def environment_of(text: str | bytes) -> JsonObject:
    """Return the description of an environment in JSON. Raises ValueError as :func:`check_environment`."""
    text = spelled_now(text.decode() if isinstance(text, bytes) else text)
    environment = from_json(JsonObject, parse_json(text, "environment"), "environment")
    check_environment(environment)
    return environment


def check_environment(environment: JsonMapping) -> None:
    """Raise ValueError, naming the entry, for one of another type than hpcdl writes."""
    _check_entries(environment, ENVIRONMENT, "environment")
    for rank in environment.get("ranks", []):
        _check_entries(rank, RANK_ENTRIES, "environment: ranks")
        if not AFFINITY.fullmatch(rank.get("affinity", "")):
            raise ValueError("environment: affinity: not ranges of cores")
    try:
        json.dumps(environment, allow_nan=False)
    except ValueError:
        raise ValueError("environment: has a number that is not finite") from None


def _check_entries(entries: JsonMapping, kinds: JsonMapping, place: str) -> None:
    for name, kind in kinds.items():
        value, where = entries.get(name, "unknown"), f"{place}: {name}"
        if value != "unknown" and not isinstance(kind, dict):
            from_json(kind, value, where)
        elif value not in ("unknown", None):
            _check_entries(from_json(JsonObject, value, where), kind, where)


def no_events() -> tuple[Rows, list[str]]:
    """Return the rows of events, and their labels, of a case that has none."""
    return np.empty(0, TABLES["events"]), []


@dataclass(frozen=True)
class RecordedCase:
    """One launch of a case, as recorded.

    Tables are arrays with the columns of :data:`hpcdl.trace.recorder.TABLES`. Times are in ns on rank 0's clock:
    clock offsets of the ranks are already added.
    """

    fields: Mapping[str, Scalar]
    """With None where None was recorded."""
    steps: Rows
    evaluations: Rows
    updates: Rows
    ranks: Rows
    read_events: Callable[[], tuple[Rows, list[str]]] = field(default=no_events, kw_only=True)
    """Read the rows of events, whose ``label`` is an index into the labels."""
    identity: str = field(default="", kw_only=True)
    """Digest of the case that records with fewer digits were made of."""

    def digest(self, measured: object = None) -> str:
        """Return the digest of its fields and identifying tables; of the fields and ``measured``, if given."""
        if self.identity and measured is None:
            return self.identity
        about = {name: value for name, value in self.fields.items() if name not in OF_POOLING}
        if measured is not None:
            about["measured"] = json.dumps(measured, sort_keys=True)
        digest = hashlib.sha256(json.dumps(about, sort_keys=True).encode())
        for rows in (getattr(self, name) for name in IDENTIFYING if measured is None):
            for column in sorted(rows.dtype.names):
                values = rows[column]
                digest.update(np.where(np.isnan(values), np.nan, values).tobytes())  # JSON has one NaN
        return digest.hexdigest()[:16]


def _frame_of(table: str) -> cached_property[pd.DataFrame]:
    return cached_property(lambda run: frame(table, [getattr(case, table) for case in run.recorded]))


@dataclass(frozen=True, repr=False)
class Run:
    """Contents of a run folder.

    Frames are made on first use. All except ``cases`` have the column ``case_index``, an index into ``cases``,
    and the columns of their table in :class:`RecordedCase`.
    """

    path: Path
    recorded: Sequence[RecordedCase]
    environment: JsonObject
    """Environment of the run, or of its last part."""
    environments: dict[str, JsonObject]
    """All environments of its cases, by key; a case refers to one by its field ``environment_key``."""
    suite: str
    """Text of the suite file."""
    complete: bool
    """False while the run is in progress, or if it was interrupted."""
    copies: Sequence[str] = ()
    """One line per run that was given twice, in any form: its cases count once."""
    predictions: JsonObject = field(default_factory=dict)
    """As :func:`hpcdl.prediction.predict.document` makes them; empty if none were made."""

    steps = _frame_of("steps")
    evaluations = _frame_of("evaluations")
    updates = _frame_of("updates")
    ranks = _frame_of("ranks")

    def __repr__(self) -> str:
        env = self.environment
        mpi = env["mpi"] if isinstance(env.get("mpi"), dict) else {}
        hosts = {rank.get("hostname") for rank in env.get("ranks") or ()}
        return (
            f"Run of hpcdl: {self.path}{'' if self.complete else ' (incomplete)'}\n"
            f"{len(self.recorded)} cases, {len(self.steps)} steps; evaluations, updates, ranks\n"
            f"{env.get('date', 'unknown date')}, {mpi.get('library', 'unknown MPI')}, {len(hosts)} hosts"
        )

    @cached_property
    def described(self) -> Sequence[Mapping[str, Scalar]]:
        """Fields of the cases as recorded."""
        return [case.fields for case in self.recorded]

    @cached_property
    def cases(self) -> pd.DataFrame:
        """One row per case and launch, one column per field; NaN where a case does not have the field."""
        import pandas as pd

        names = dict.fromkeys(name for fields in self.described for name in fields)
        columns = {name: pd.Series([case.get(name) for case in self.described], dtype=object) for name in names}
        return pd.DataFrame({name: column.infer_objects() for name, column in columns.items()})

    @cached_property
    def events(self) -> pd.DataFrame:
        """Events of all cases, read on first use: case_index, rank, task, label, begin, end, peer, bytes.

        ``label`` is categorical. Raises TraceError if the file is missing or damaged.
        """
        return self._events(range(len(self.recorded)))

    @cached_property
    def identities(self) -> list[str]:
        """Digest of what each case measured: equal in all forms and copies of a run, and in no other run.

        Times in ns are never measured twice. A case without steps, or with simulated ones, has the digest of its
        launch's other cases; if none is measured, that of its environment, which has a date.
        """
        timed = {
            index: case.digest()
            for index, case in enumerate(self.recorded)
            if len(case.steps) and not case.fields.get("network")
        }
        by_launch: dict[object, list[str]] = {}
        for index, digest in timed.items():
            by_launch.setdefault(self.described[index].get("launch"), []).append(digest)
        return [
            timed.get(index) or case.digest(by_launch.get(case.fields.get("launch")) or self.environment_of(index))
            for index, case in enumerate(self.recorded)
        ]

    def only(self, indices: Iterable[int]) -> Run:
        """Return the run with some of its cases, by ascending index."""
        return replace(self, recorded=[self.recorded[index] for index in indices])

    def environment_of(self, case_index: int) -> JsonObject:
        """Return the environment of a case."""
        return self.environment_with(self.described[case_index].get("environment_key"))

    def environment_with(self, key: object) -> JsonObject:
        """Return the environment of that key; the run's without one."""
        return self.environments.get(str(key), self.environment)

    def hosts_of(self, case_index: int) -> list[str]:
        """Return the host of each rank of a case; empty if not recorded for all ranks."""
        ranks = int(self.described[case_index].get("ranks") or 1)
        hosts = [str(rank.get("hostname", "")) for rank in self.environment_of(case_index).get("ranks") or ()]
        return hosts[:ranks] if len(hosts) >= ranks else []

    def rows_of(self, table: str, case_index: int) -> pd.DataFrame:
        """Return the rows of one case in ``table``, such as "steps"."""
        return frame(table, [getattr(self.recorded[case_index], table)], [case_index])

    def events_of(self, case_index: int) -> pd.DataFrame:
        """Return the events of one case, reading only that case."""
        return self._events([case_index])

    def _events(self, indices: Sequence[int]) -> pd.DataFrame:
        import pandas as pd

        numbers: dict[str, int] = {}
        tables = []
        for index in indices:
            rows, labels = self.recorded[index].read_events()
            of_run = np.array([numbers.setdefault(label, len(numbers)) for label in labels], np.int32)
            rows["label"] = of_run[rows["label"]] if len(rows) else rows["label"]
            tables.append(rows)
        events = frame("events", tables, indices)
        labels_of_run = pd.Index(list(numbers), dtype="str")
        return events.assign(label=pd.Categorical.from_codes(events["label"].to_numpy(), labels_of_run))


def frame(table: str, rows: Sequence[Rows], indices: Sequence[int] | None = None) -> pd.DataFrame:
    """Concatenate the rows of cases; the column ``case_index`` has the cases' ``indices``, by default from 0."""
    import pandas as pd

    joined = np.concatenate([np.empty(0, TABLES[table]), *rows])
    index = np.repeat(np.arange(len(rows)) if indices is None else np.array(indices, np.int64), [*map(len, rows)])
    return pd.DataFrame({"case_index": index, **{name: joined[name] for name in joined.dtype.names or ()}})


LINK: Final = ["source", "dest"]
CHANNEL: Final = [*LINK, "bytes", "task"]
AGREEING: Final = 0.75
"""Share of the messages from one rank to another that numbers of tasks must match to be followed."""
BY_CHANCE: Final = 0.1
"""Share of measured messages whose ends have equal times, at most; those of simulated ones all have."""
IMPOSSIBLE: Final = 1e12
"""Cost (ns) of a pair whose receive ended before its send began."""


def matched(events: pd.DataFrame, clock_error_seconds: Scalar = 0.0) -> pd.DataFrame:
    """Return the matched messages of one case: columns ``send`` and ``recv``, labels of rows in ``events``.

    A send and a receive match that name each other and the same number of bytes. The ends of a simulated message
    have equal times. Measured ones match in their order, by tasks where those of both ranks agree. Where one side
    lacks ends, the gap has the place at which sends and receives differ least in time. A receive that ends before
    its send begins, by more than twice ``clock_error_seconds``, the greatest error of a clock, does not match;
    None: the error is unknown.
    """
    ends = events[events["label"].isin(["send", "recv"])].sort_values(["end", "task"], kind="stable")
    sent = ends["label"] == "send"
    source, dest = ends["rank"].where(sent, ends["peer"]), ends["peer"].where(sent, ends["rank"])
    ends = ends.assign(row=ends.index, sent=sent, source=source, dest=dest)
    pairs = _in_turn(ends, [*LINK, "bytes", "end"])
    if len(pairs) <= BY_CHANCE * min(sent.sum(), (~sent).sum()):
        tolerance = math.inf if clock_error_seconds is None else 2e9 * float(clock_error_seconds)
        pairs = _in_turn(ends.assign(task=_common_tasks(ends)), CHANNEL, tolerance)
    return pairs.rename(columns={"row_send": "send", "row_recv": "recv"})[["send", "recv"]]


def _in_turn(ends: pd.DataFrame, channel: list[str], tolerance: float | None = None) -> pd.DataFrame:
    """Return the pairs of the sends and receives that agree in the columns ``channel``, in their order.

    With a ``tolerance`` (ns) the order has a gap where one side lacks ends, and impossible pairs are left out.
    """
    ends = ends.assign(channel=ends.groupby(channel, sort=False).ngroup())
    ends["turn"] = ends.groupby(["channel", "sent"], sort=False).cumcount()
    if tolerance is not None:
        share = ends.groupby("channel")["sent"].transform("mean")
        for _, group in ends[~share.isin([0, 0.5, 1])].groupby("channel"):
            sends, receives = group[group["sent"]], group[~group["sent"]]
            later = min(sends, receives, key=len).index[_before_gap(sends, receives, tolerance) :]
            ends.loc[later, "turn"] += abs(len(sends) - len(receives))
    columns = ["channel", "turn", "row", "begin", "end"]
    sends, receives = (ends.loc[side, columns] for side in (ends["sent"], ~ends["sent"]))
    pairs = sends.merge(receives, on=["channel", "turn"], suffixes=("_send", "_recv"))
    return pairs if tolerance is None else pairs[pairs["end_recv"] + tolerance >= pairs["begin_send"]]


def _before_gap(sends: pd.DataFrame, receives: pd.DataFrame, tolerance: float) -> int:
    """Return the number of pairs of a channel before the ends, one after another, that have no partner."""
    count = min(len(sends), len(receives))

    def differences(part: slice) -> Rows:
        columns = sends["begin"], sends["end"], receives["end"]
        begins, ends, arrivals = (column.to_numpy(np.float64)[part] for column in columns)
        costs: Rows = np.abs(arrivals - ends) + IMPOSSIBLE * (arrivals + tolerance < begins)
        return costs

    before = np.append(0, differences(slice(count)).cumsum())
    after = np.append(differences(slice(-count, None))[::-1].cumsum()[::-1], 0)
    return int(np.argmin(before + after))


def _common_tasks(ends: pd.DataFrame) -> pd.Series[int]:
    """Return the tasks' numbers; -1 between ranks whose numbers differ, as those of servers and workers do."""

    def pairs(channel: list[str]) -> pd.Series[int]:
        """Return the number of messages on the link of each end if only ends of equal ``channel`` match."""
        count = ends.groupby(channel, sort=False)["sent"].agg(["sum", "size"])
        count["pairs"] = np.minimum(count["sum"], count["size"] - count["sum"])
        return ends[LINK].join(count["pairs"].groupby(LINK).sum(), on=LINK)["pairs"]

    agree = pairs(CHANNEL) >= AGREEING * pairs(CHANNEL[:-1])
    return ends["task"].where(agree, -1)
