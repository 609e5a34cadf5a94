"""A run that was read back, as pandas frames."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    import pandas as pd

    from hpcdl.trace.record import Scalar

Table = dict[str, npt.NDArray[Any]]
"""Columns of equal length."""


@dataclass(frozen=True)
class Run:
    """What a run folder holds.

    Every frame but ``cases`` has the column ``case_index``, the index of ``cases``. Times are in ns on
    rank 0's clock: the ranks' offsets have been added.
    """

    path: Path
    cases: pd.DataFrame
    """One row per case and launch, one column per field; a missing value is a field this case has not."""
    steps: pd.DataFrame
    """case_index, rank, and the columns of :data:`hpcdl.trace.recorder.STEP`."""
    evaluations: pd.DataFrame
    """case_index, rank, and the columns of :data:`hpcdl.trace.recorder.EVALUATION`."""
    updates: pd.DataFrame
    """case_index, rank, and the columns of :data:`hpcdl.trace.recorder.UPDATE`."""
    ranks: pd.DataFrame
    """case_index, rank, dropped and dropped_updates (not kept), clock_offset_ns, memory_bytes."""
    environment: dict[str, Any]
    suite: str
    """The text of the suite file."""
    complete: bool
    """False while the run is under way, or when it was interrupted."""
    described: Sequence[Mapping[str, Scalar]] = field(repr=False)
    """The cases' fields as they were written: ``described[case_index]``, None where the runner said None."""
    _load: Callable[[int], tuple[Table, list[str]]] = field(repr=False)

    @classmethod
    def of(
        cls,
        path: Path,
        described: Sequence[Mapping[str, Scalar]],
        tables: Mapping[str, Sequence[Table]],
        load: Callable[[int], tuple[Table, list[str]]],
        environment: dict[str, Any],
        suite: str,
        complete: bool,
    ) -> Run:
        """Build the frames.

        ``described[i]`` holds case i's fields; ``tables[name][i]`` its steps, evaluations, updates and ranks;
        ``load(i)`` its events and their labels.
        """
        import pandas as pd

        names = list(dict.fromkeys(name for one in described for name in one))
        columns = {name: pd.Series([one.get(name) for one in described], dtype=object) for name in names}
        return cls(
            path,
            cases=pd.DataFrame({name: column.infer_objects() for name, column in columns.items()}),
            steps=_frame(tables["steps"]),
            evaluations=_frame(tables["evaluations"]),
            updates=_frame(tables["updates"]),
            ranks=_frame(tables["ranks"]),
            environment=environment,
            suite=suite,
            complete=complete,
            described=described,
            _load=load,
        )

    @cached_property
    def events(self) -> pd.DataFrame:
        """Events of all cases, read at the first use: case_index, rank, task, label, begin, end, peer, bytes.

        ``label`` is categorical. Raises TraceError when the file has gone or is damaged.
        """
        return self._events(range(len(self.described)))

    def events_of(self, case_index: int) -> pd.DataFrame:
        """The same for one case, reading that case only."""
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
        frame = _frame(tables, indices)
        if "label" in frame:
            codes = frame["label"].to_numpy(np.int32)
            frame["label"] = pd.Categorical.from_codes(codes, pd.Index(list(numbers), dtype="str"))
        return frame


def _frame(tables: Sequence[Table], indices: Sequence[int] | None = None) -> pd.DataFrame:
    """One frame of all tables, each row led by the index of its table."""
    import pandas as pd

    names = list(dict.fromkeys(name for table in tables for name in table))
    if not names:
        return pd.DataFrame({"case_index": np.empty(0, np.int64)})
    lengths = [len(next(iter(table.values()))) for table in tables]
    index = np.repeat(np.arange(len(tables)) if indices is None else np.asarray(indices), lengths)
    columns = {name: np.concatenate([table[name] for table in tables]) for name in names}
    return pd.DataFrame({"case_index": index, **columns})
