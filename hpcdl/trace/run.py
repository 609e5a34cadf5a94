"""A run read from its files, as pandas frames, and the messages of its events."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from hpcdl.trace.recorder import Scalar

if TYPE_CHECKING:
    import pandas as pd


Table = dict[str, npt.NDArray[Any]]
"""Columns of equal length."""


@dataclass(frozen=True, repr=False)
class Run:
    """Contents of a run folder.

    All frames except ``cases`` have the column ``case_index``, an index into ``cases``. Times are in ns on rank
    0's clock: clock offsets of the ranks are already added.
    """

    path: Path
    cases: pd.DataFrame
    """One row per case and launch, one column per field; NaN where a case does not have the field."""
    steps: pd.DataFrame
    """case_index, rank, and the columns of :data:`hpcdl.trace.recorder.STEP`."""
    evaluations: pd.DataFrame
    """case_index, rank, and the columns of :data:`hpcdl.trace.recorder.EVALUATION`."""
    updates: pd.DataFrame
    """case_index, rank, and the columns of :data:`hpcdl.trace.recorder.UPDATE`."""
    residuals: pd.DataFrame
    """case_index, rank, and the columns of :data:`hpcdl.trace.recorder.RESIDUAL`."""
    ranks: pd.DataFrame
    """case_index, and the columns of :data:`hpcdl.trace.recorder.RANK`."""
    environment: dict[str, Any]
    """Environment of the run, or of its last part."""
    environments: dict[str, dict[str, Any]]
    """All environments of its cases, by key; a case refers to one by its field ``environment_key``."""
    suite: str
    """Text of the suite file."""
    complete: bool
    """False while the run is in progress, or if it was interrupted."""
    described: Sequence[Mapping[str, Scalar]]
    """Fields of the cases as recorded: ``described[case_index]``, with None where None was recorded."""
    _load: Callable[[int], tuple[Table, list[str]]]

    def __repr__(self) -> str:
        """Return three lines: where it is, what it has, and when and where it ran."""
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

    def environment_of(self, case_index: int) -> dict[str, Any]:
        """Return the environment of a case."""
        return self.environments.get(str(self.described[case_index].get("environment_key")), self.environment)

    def hosts_of(self, case_index: int) -> list[str]:
        """Return the host of each rank of a case; empty if not recorded for all ranks."""
        ranks = int(self.described[case_index].get("ranks") or 1)
        hosts = [str(rank.get("hostname", "")) for rank in self.environment_of(case_index).get("ranks") or ()]
        return hosts[:ranks] if len(hosts) >= ranks else []

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
