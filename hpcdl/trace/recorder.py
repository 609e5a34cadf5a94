"""Recorder of one rank and one case: events, steps, evaluations and updates, in memory until the case ends.

Worker ranks import this module; it needs only numpy and the standard library.
"""

from __future__ import annotations

import io
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from traceback import walk_tb
from typing import Any, Final, NamedTuple, TypeAlias, get_type_hints

import numpy as np
import numpy.typing as npt

Scalar = str | int | float | bool | None


@dataclass
class CaseRecord:
    """One launch of a case.

    ``case`` maps field names to scalars. ``hpcdl/trace/README.md`` lists the fields that the analysis reads; other
    fields are kept. ``ranks[r]`` is the result of :meth:`hpcdl.trace.recorder.Recorder.pack` on rank r.
    """

    case: dict[str, Scalar]
    ranks: list[Packed] = field(default_factory=list)


class TraceError(Exception):
    """A trace cannot be read or written; the message is one line and names the file."""


UNEXPECTED: Final = (ArithmeticError, AttributeError, LookupError, MemoryError, RecursionError, TypeError)


@contextmanager
def analysed(record: object, *more: type[Exception]) -> Iterator[None]:
    """Turn unexpected errors in the analysis of a record into a TraceError with their place.

    A file whose checksum fits may hold any values. ``more``: further exceptions that are unexpected here.
    """
    types: tuple[type[Exception], ...] = (*UNEXPECTED, *more)
    try:
        yield
    except types as error:
        frame, line = list(walk_tb(error.__traceback__))[-1]
        place, reason = Path(frame.f_code.co_filename).name, " ".join(f"{type(error).__name__}: {error}".split())
        raise TraceError(f"{record}: the record cannot be analysed: {reason} ({place}, line {line})") from error


Rows: TypeAlias = npt.NDArray[Any]
"""Table of records, or one of its columns."""
Row: TypeAlias = tuple[Any, ...]
Packed = dict[str, Rows]
"""Trace of one rank as arrays, see :meth:`Recorder.pack`."""

EVENT_LIMIT: Final = 200_000
"""Default limit of events per rank and case (7.2 MB packed)."""
SIMULATED_EVENT_LIMIT: Final = 2_000_000
"""Limit of events of all ranks of a simulated collective or replay (72 MB packed)."""
UPDATE_LIMIT: Final = 200_000
"""Limit of updates per rank and case (7.2 MB packed); simulated ranks each have it, because few record updates."""
PIECE: Final = 4096
"""Steps that are packed at a time."""

Event = tuple[int, str, int, int, int, int]
"""(task, label, begin ns, end ns, peer or -1, bytes)."""


class Step(NamedTuple):
    """One step of one rank: a training step, or one repetition of a collective."""

    step: int
    """Number of the step, from 0, including warm-up."""
    epoch: int
    begin: int
    end: int
    """ns on this rank's clock, as ``begin``."""
    loss: float = float("nan")
    """Mean loss of this rank's images."""
    correct: int = 0
    """Number of this rank's images that were classified correctly."""
    images: int = 0
    """Number of images that this rank consumed."""
    compute_ns: int = 0
    """Time of local work: input, forward, backward, update; without communication and waiting for peers."""
    messages: int = 0
    bytes: int = 0
    """Messages and bytes that this rank sent in this step."""
    learning_rate: float = float("nan")
    input_ns: int = 0
    """Part of ``compute_ns`` spent waiting for images and copying them to the device."""


class Evaluation(NamedTuple):
    """One evaluation on the test set."""

    step: int
    """Training steps before it."""
    epoch: float
    """Epochs before it."""
    training_seconds: float
    """Training time before it, without evaluations."""
    loss: float
    accuracy: float
    """From 0 to 1."""
    samples: int
    """Training images consumed by all ranks before it."""
    consensus: float = math.nan
    """Root mean square over ranks of the distance between a rank's parameters and their average. NaN where all
    ranks hold equal parameters by construction, or none of their own."""
    residual_norm: float = math.nan
    """Root mean square over ranks of the norm of what compression has not sent. NaN without residuals."""
    gradient_cosine: float = math.nan
    """Cosine of the angle between the last sum of compressed gradients and the dense sum. NaN if dense."""
    gradient_error: float = math.nan
    """Norm of the difference of these sums, divided by the norm of the dense one. NaN if dense."""


class Update(NamedTuple):
    """One gradient, or sum of gradients, that this rank applied to parameters it serves."""

    time: int
    """ns on this rank's clock."""
    worker: int
    """Rank that computed the gradient."""
    version: int
    """Number of updates applied to the parameters before this one."""
    staleness: int
    """``version`` minus the version of the parameters that the gradient was computed from."""
    learning_rate: float


STEP, EVALUATION, UPDATE = (np.dtype([*get_type_hints(row).items()]) for row in (Step, Evaluation, Update))
EVENT: Final = np.dtype(
    [
        ("task", np.int32),  # number of the started task, 0 = main
        ("label", np.int32),  # index into labels
        ("begin", np.int64),  # ns, this rank's clock
        ("end", np.int64),  # ns, this rank's clock
        ("peer", np.int32),  # -1: none
        ("bytes", np.int64),
    ]
)

SCHEMA: Final = 6

OF_RECORDER: Final = ("dropped", "dropped_updates", "clock_offset_ns", "memory_bytes")
"""Columns of ranks that are attributes of their recorders."""
COUNTERS: Final = (
    *("wall_ns", "busy_ns", "foreign_ns", "foreign_error_ns", "idle_cores", "steal_ns", "involuntary_switches"),
    *("load", "retransmissions"),
)
"""Columns of ranks about the rank's process and cores during the case; -1: unknown."""


def _of_ranks(columns: np.dtype[np.void]) -> np.dtype[np.void]:
    return np.dtype([("rank", np.int64), *columns.descr])


RANK: Final = np.dtype(
    [
        *((name, np.int64) for name in ("rank", *OF_RECORDER)),
        *((name, np.float64 if name == "load" else np.int64) for name in COUNTERS),
    ]
)
TABLES: Final = {
    "steps": _of_ranks(STEP),
    "events": _of_ranks(EVENT),
    "evaluations": _of_ranks(EVALUATION),
    "updates": _of_ranks(UPDATE),
    "ranks": RANK,
}
"""Columns of each dataset, by name."""


class Recorder:
    """Lists that grow while a case runs.

    A step takes 96 bytes once packed, by thousands; events and updates have limits, at which they take about 50 MB
    and 30 MB until the case ends. Nothing else grows.

    ``events`` (None if events are not traced) holds :data:`Event` tuples; interpreters append to it directly,
    because a call would cost more than the event. The other lists hold rows of their tables, or plain tuples.
    """

    def __init__(self, *, events: bool = True, limit: int = EVENT_LIMIT) -> None:
        self.events: list[Event] | None = [] if events else None
        self.steps: list[Step] = []
        self._packed_steps: list[Rows] = []
        self.evaluations: list[Evaluation] = []
        self.updates: list[Update] = []
        self.limit = limit
        self.dropped = self.dropped_updates = 0
        """Events, and updates, dropped because their limit was reached."""
        self.memory_bytes = 0
        """Bytes of vectors as long as the parameters or longer, and of parts of such; 0: not recorded."""
        self.virtual: list[Recorder] = []
        """Recorders of the ranks that this process simulates; they replace this recorder in the trace."""
        self.clock_offset_ns = 0
        """Offset to be added to this rank's clock to get rank 0's."""

    def trim(self) -> None:
        """Pack steps, and drop and count events and updates beyond their limits, to bound the memory.

        Call it between steps. The first ones are kept, so that the trace has no gap. Lists stay the same objects.
        """
        if self.events is not None and len(self.events) > self.limit:
            self.dropped += len(self.events) - self.limit
            del self.events[self.limit :]
        if len(self.updates) > UPDATE_LIMIT:
            self.dropped_updates += len(self.updates) - UPDATE_LIMIT
            del self.updates[UPDATE_LIMIT:]
        if len(self.steps) >= PIECE:
            self._pack_steps()

    def clear_events(self) -> None:
        """Forget all events so far."""
        self.dropped = 0
        if self.events is not None:
            self.events.clear()

    def _pack_steps(self) -> None:
        rows = np.array([Step(*row) for row in self.steps], STEP)
        with np.errstate(over="ignore"):
            rows["loss"] = rows["loss"].astype(np.float32)  # records are half as long; digits beyond it vary
        self._packed_steps.append(rows)
        self.steps.clear()

    def step_table(self) -> Rows:
        """Return all steps so far (s, :data:`STEP`)."""
        self._pack_steps()
        self._packed_steps = [np.concatenate(self._packed_steps)]
        return self._packed_steps[0]

    def pack(self) -> Packed:
        """Return the trace as arrays: tables, ``labels`` (m,), and int64 scalars of shape (), by name."""
        self.trim()
        numbers: dict[str, int] = {}
        rows = [
            (task, numbers.setdefault(label, len(numbers)), begin, end, peer, size)
            for task, label, begin, end, peer, size in self.events or ()
        ]
        labels = [label.encode() for label in numbers]
        return {
            "events": np.array(rows, EVENT),
            "labels": np.array(labels, f"S{max(map(len, labels), default=1)}"),
            "steps": self.step_table(),
            "evaluations": np.array([Evaluation(*row) for row in self.evaluations], EVALUATION),
            "updates": np.array([Update(*row) for row in self.updates], UPDATE),
            **{name: np.array(getattr(self, name), np.int64) for name in OF_RECORDER},
        }


def to_bytes(packed: Mapping[str, Rows]) -> bytes:
    """Serialise a packed trace (numpy's npz without pickles), to be gathered on rank 0."""
    stream = io.BytesIO()
    np.savez(stream, allow_pickle=False, **packed)
    return stream.getvalue()


def from_bytes(data: bytes) -> Packed:
    """Return the packed trace from :func:`to_bytes`; ValueError or zipfile.BadZipFile for other data."""
    with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
        return dict(arrays)
