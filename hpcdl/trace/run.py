"""A run read from its files: types of its fields, pandas frames, and the messages of its events.

A file whose checksum fits may have been written by another program. The analysis relies on the types checked here.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from hpcdl.trace.files import JsonMapping, JsonObject, from_json, parse_json
from hpcdl.trace.link_counters import Growth
from hpcdl.trace.older_names import spelled_now
from hpcdl.trace.recorder import TABLES, Rows, Scalar

if TYPE_CHECKING:
    import pandas as pd


FIELD_TYPES: Final = {
    "string": "suite case kind model dataset dataset_source dataset_digest image_shape backend device dtype "
    "training system aggregation compression optimizer schedule parallelism shares collective concurrent start "
    "placement scaling pattern network times compute_times straggler failure process_failure settings "
    "environment_key digest tuned chosen error",
    "integer": "ranks ranks_per_host nodes threads_per_rank launch seed draw global_batch batch_per_rank steps "
    "planned_steps warmup_steps message_bytes bucket_bytes stages microbatches gradients_in_flight "
    "communicators parameters tuning tuning_images residual_bytes activation_bytes_per_rank simulated_ranks "
    "late_rank",
    "number": "learning_rate epochs target_accuracy flops jitter time_scale straggler_factor "
    "straggler_pause_seconds straggler_pause_share compression_ratio encode_seconds decode_seconds "
    "bits_per_entry entropy_bits_per_entry discarded_share noise_scale_q1 noise_scale_q2 noise_scale_q3 "
    "noise_scale_q4 test_loss test_accuracy train_accuracy sharpness smallest_eigenvalue replica_drift "
    "staleness_mean staleness_max operations bytes_sent_per_host predicted_seconds modelled_compute_seconds "
    "simulation_seconds late_seconds clock_error_seconds start_error_seconds start_lead_seconds starts_late "
    "from_first_arrival_seconds from_last_arrival_seconds alone_p50_seconds alone_p99_seconds "
    "beside_p50_seconds beside_p99_seconds concurrent_alone_p50_seconds concurrent_alone_p99_seconds "
    "concurrent_beside_p50_seconds concurrent_beside_p99_seconds",
    "boolean": "lockstep independent served correct copied same_bits",
    "integer string": "straggler_rank",
}
"""Types of the fields that kinds of cases record, by JSON's names: None too, but for :data:`NEEDED`.

A field that is not here, such as that of a user's kind, may be any scalar.
"""
NEEDED: Final = {"kind", "ranks"}
CHOICES: Final = {"scaling": ("strong", "weak"), "pattern": ("pair", "all_pairs", "bisection")}
DECLARED: Final[dict[str, list[str]]] = {
    name: [*kinds.split(), *(() if name in NEEDED else ("null",))]
    for kinds, names in FIELD_TYPES.items()
    for name in names.split()
}
TYPES: Final = {str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null"}
MAX_RANKS: Final = 1 << 17
MAX_INTEGER: Final = 1 << 63

ENVIRONMENT: Final[JsonObject] = {
    **dict.fromkeys(("date", "key"), str),
    **dict.fromkeys(("ranks", "failed_cases", "cases_not_run"), list[JsonObject]),
    **dict.fromkeys(("counters", "counters_after"), JsonObject),  # of older records
    "link_counters": dict[str, Growth | None],
    "variables": dict[str, str],
    "emulated": JsonObject | None,
    "repeated_draws": int,
}
"""Types of the entries of an environment that are not ``"unknown"``."""
READ: Final = ("steps", "evaluations", "updates", "residuals", "ranks")
"""Tables of a run that are read with its file; events are read later."""
IDENTIFYING: Final = ("steps", "evaluations", "ranks")
"""Tables of which a case's identity is made: each reader reads them."""
OF_POOLING: Final = {"launch", "environment_key"}
"""Fields that pooling changes."""
AFFINITY: Final = re.compile(r"\d{1,5}(-\d{1,5})?(,\d{1,5}(-\d{1,5})?)*|unknown|")


def check_fields(fields: Mapping[str, Scalar]) -> None:
    """Raise ValueError, naming the field, for a value that is not of its declared type or range."""
    for name, value in fields.items():
        kind, allowed = TYPES.get(type(value)), DECLARED.get(name)
        fits = kind in allowed or (kind == "integer" and "number" in allowed) if allowed else kind is not None
        if not fits or (isinstance(value, int) and not -1 <= value < MAX_INTEGER):
            raise ValueError(f"field {name!r}: {value!a:.40} is not {allowed or 'a scalar'}")
        choices = [*CHOICES.get(name, [value]), None]
        if value not in choices:
            raise ValueError(f"field {name!r}: {value!a:.40} is not one of {choices}")
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
    for name, kind in ENVIRONMENT.items():
        if environment.get(name, "unknown") != "unknown":
            from_json(kind, environment[name], f"environment: {name}")
    for rank in environment.get("ranks", []):
        if not AFFINITY.fullmatch(str(rank.get("affinity", ""))):
            raise ValueError("environment: affinity: not ranges of cores")


Table = dict[str, Rows]
"""Columns of equal length."""


def no_events() -> tuple[Table, list[str]]:
    """Return the table of events, and their labels, of a case that has none."""
    events = TABLES["events"]
    return {name: np.empty(0, events[name]) for name in events.names or ()}, []


@dataclass(frozen=True, repr=False)
class Run:
    """Contents of a run folder.

    All frames except ``cases`` have the column ``case_index``, an index into ``cases``, and the columns of their
    table in :data:`hpcdl.trace.recorder.TABLES`. Times are in ns on rank 0's clock: clock offsets of the ranks are
    already added.
    """

    path: Path
    cases: pd.DataFrame
    """One row per case and launch, one column per field; NaN where a case does not have the field."""
    steps: pd.DataFrame
    evaluations: pd.DataFrame
    updates: pd.DataFrame
    residuals: pd.DataFrame
    ranks: pd.DataFrame
    environment: JsonObject
    """Environment of the run, or of its last part."""
    environments: dict[str, JsonObject]
    """All environments of its cases, by key; a case refers to one by its field ``environment_key``."""
    suite: str
    """Text of the suite file."""
    complete: bool
    """False while the run is in progress, or if it was interrupted."""
    described: Sequence[Mapping[str, Scalar]]
    """Fields of the cases as recorded: ``described[case_index]``, with None where None was recorded."""
    _load: Callable[[int], tuple[Table, list[str]]]
    copies: Sequence[str] = ()
    """One line per run that was given twice, in any form: its cases count once."""

    def __repr__(self) -> str:
        env = self.environment
        mpi = env["mpi"] if isinstance(env.get("mpi"), dict) else {}
        hosts = {rank.get("hostname") for rank in env.get("ranks") or ()}
        return (
            f"Run of hpcdl: {self.path}{'' if self.complete else ' (incomplete)'}\n"
            f"{len(self.cases)} cases, {len(self.steps)} steps; evaluations, updates, residuals, ranks\n"
            f"{env.get('date', 'unknown date')}, {mpi.get('library', 'unknown MPI')}, {len(hosts)} hosts"
        )

    @cached_property
    def events(self) -> pd.DataFrame:
        """Events of all cases, read on first use: case_index, rank, task, label, begin, end, peer, bytes.

        ``label`` is categorical. Raises TraceError if the file is missing or damaged.
        """
        return self._events(range(len(self.described)))

    @cached_property
    def identities(self) -> list[str]:
        """Digest of what each case measured: equal in all forms and copies of a run, and in no other run.

        Times in ns are never measured twice. A case without steps, or with simulated ones, has the digest of its
        launch's other cases; if none is measured, that of its environment, which has a date.
        """
        tables = {name: by_case(getattr(self, name)) for name in IDENTIFYING}
        digests = [
            _digest(fields, *(table.get(index, {}) for table in tables.values()))
            for index, fields in enumerate(self.described)
        ]
        measured: dict[object, list[str]] = {}
        timed = {index for index in tables["steps"] if not self.described[index].get("network")}
        for index in sorted(timed):
            measured.setdefault(self.described[index].get("launch"), []).append(digests[index])
        for index, fields in enumerate(self.described):
            if index not in timed:
                others = measured.get(fields.get("launch")) or self.environment_of(index)
                digests[index] = _digest({**fields, "measured": json.dumps(others, sort_keys=True)})
        return digests

    def only(self, indices: Sequence[int]) -> Run:
        """Return the run with some of its cases, by ascending index."""
        places = {index: place for place, index in enumerate(indices)}

        def kept(rows: pd.DataFrame) -> pd.DataFrame:
            rows = rows[rows["case_index"].isin(places)]
            return rows.assign(case_index=rows["case_index"].map(places)).reset_index(drop=True)

        tables: dict[str, Any] = {name: kept(getattr(self, name)) for name in READ}
        return replace(
            self,
            cases=self.cases.iloc[list(indices)].reset_index(drop=True),
            described=[self.described[index] for index in indices],
            _load=lambda index: self._load(indices[index]),
            **tables,
        )

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
        """Return the rows of one case in the frame ``table``, such as "steps"; frames have the cases in order."""
        rows: pd.DataFrame = getattr(self, table)
        begin, end = np.searchsorted(rows["case_index"].to_numpy(), (case_index, case_index + 1))
        return rows.iloc[begin:end]

    def events_of(self, case_index: int) -> pd.DataFrame:
        """Return the events of one case, reading only that case."""
        return self._events([case_index])

    def _events(self, indices: Sequence[int]) -> pd.DataFrame:
        import pandas as pd

        numbers: dict[str, int] = {}
        tables = []
        for index in indices:
            table, labels = self._load(index)
            here = np.array([numbers.setdefault(label, len(numbers)) for label in labels], np.int32)
            table["label"] = here[table["label"]] if len(table["label"]) else table["label"]
            tables.append(table)
        events = frame(tables, indices)
        if "label" in events:
            codes = events["label"].to_numpy(np.int32)
            events["label"] = pd.Categorical.from_codes(codes, pd.Index(list(numbers), dtype="str"))
        return events


def _digest(fields: Mapping[str, Scalar], *tables: Table) -> str:
    about = {name: value for name, value in fields.items() if name not in OF_POOLING}
    digest = hashlib.sha256(json.dumps(about, sort_keys=True).encode())
    for name, table in zip(IDENTIFYING, tables, strict=False):
        for column, rows in sorted(table.items()):
            values = np.asarray(rows, TABLES[name][column])
            digest.update(np.where(np.isnan(values), np.nan, values).tobytes())  # JSON has one NaN
    return digest.hexdigest()


def by_case(rows: pd.DataFrame) -> dict[int, Table]:
    """Return the columns of a frame by its ``case_index``; a case without rows is absent."""
    columns = {str(name): rows[name].to_numpy() for name in rows.columns}
    place = columns.pop("case_index")
    cuts = np.flatnonzero(np.diff(place)) + 1  # rows of one case stand together
    bounds = [0, *cuts.tolist(), len(place)] if len(place) else []
    return {
        int(place[begin]): {name: column[begin:end] for name, column in columns.items()}
        for begin, end in itertools.pairwise(bounds)
    }


def frame_of_cases(described: Sequence[Mapping[str, Scalar]]) -> pd.DataFrame:
    """Return one row per case, one column per field."""
    import pandas as pd

    names = list(dict.fromkeys(name for fields in described for name in fields))
    columns = {name: pd.Series([fields.get(name) for fields in described], dtype=object) for name in names}
    return pd.DataFrame({name: column.infer_objects() for name, column in columns.items()})


def frame(tables: Sequence[Table], indices: Sequence[int] | None = None) -> pd.DataFrame:
    """Concatenate tables to one frame; the column ``case_index`` is the index of the table."""
    import pandas as pd

    names = list(dict.fromkeys(name for table in tables for name in table))
    if not names:
        return pd.DataFrame({"case_index": np.empty(0, np.int64)})
    lengths = [len(next(iter(table.values()))) for table in tables]
    index = np.repeat(np.arange(len(tables)) if indices is None else np.asarray(indices), lengths)
    columns = {name: np.concatenate([table[name] for table in tables]) for name in names}
    return pd.DataFrame({"case_index": index, **columns})


_LINK: Final = ["source", "dest"]


def matched(events: pd.DataFrame) -> pd.DataFrame:
    """Return the matched messages of one case: columns ``send`` and ``recv``, labels of rows in ``events``.

    A send and a receive match that name each other and the same number of bytes, in the order of their ends.
    If the tasks of both ranks have sent and received alike, only ends of equal task numbers match. Events that
    were dropped leave their partner unmatched.
    """
    sent, received = (events["label"] == label for label in ("send", "recv"))
    if not (sent.any() and received.any()):
        return events[[]].iloc[:0].assign(send=events.index[:0], recv=events.index[:0])
    sends = _side(events[sent], "rank", "peer").rename(columns={"row": "send"})
    receives = _side(events[received], "peer", "rank").rename(columns={"row": "recv"})
    key = [*_LINK, "bytes", "task"]
    counts = (
        sends.groupby(key).size().to_frame("sent").join(receives.groupby(key).size().to_frame("got"), how="outer")
    )
    alike = (counts["sent"] == counts["got"]).groupby(level=_LINK).all().rename("alike").reset_index()
    sides = []
    for side in (sends, receives):
        merged = side.merge(alike, on=_LINK, how="left")
        merged["task"] = merged["task"].where(merged["alike"], -1)
        merged["turn"] = merged.groupby(key).cumcount()
        sides.append(merged)
    return sides[0].merge(sides[1], on=[*key, "turn"])[["send", "recv"]]


def _side(events: pd.DataFrame, source: str, dest: str) -> pd.DataFrame:
    """Return source, dest, bytes, task and row of sends or of receives, ascending in their ends."""
    ordered = events.sort_values("end", kind="stable")
    columns = {
        "source": ordered[source],
        "dest": ordered[dest],
        "bytes": ordered["bytes"],
        "task": ordered["task"],
    }
    return ordered[[]].assign(**columns, row=ordered.index).reset_index(drop=True)
