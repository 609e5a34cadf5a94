"""What one rank remembers of one case: events, steps, evaluations and updates, in memory until the case is over.

Worker ranks import this module; it needs numpy and the standard library only.
"""

from __future__ import annotations

import io
import math
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from collections.abc import Mapping

Packed = dict[str, npt.NDArray[Any]]
"""One rank's trace as arrays: see :meth:`Recorder.pack`."""

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

STEP: Final = np.dtype(
    [
        ("step", np.int32),
        ("epoch", np.int32),
        ("begin", np.int64),  # ns, this rank's clock
        ("end", np.int64),  # ns, this rank's clock
        ("loss", np.float64),
        ("correct", np.int32),
        ("images", np.int32),
        ("compute_ns", np.int64),
        ("messages", np.int64),
        ("bytes", np.int64),
        ("learning_rate", np.float64),
        ("input_ns", np.int64),
    ]
)

EVALUATION: Final = np.dtype(
    [
        ("step", np.int32),
        ("epoch", np.float64),
        ("training_seconds", np.float64),
        ("loss", np.float64),
        ("accuracy", np.float64),
        ("samples", np.int64),
        ("consensus", np.float64),
    ]
)

UPDATE: Final = np.dtype(
    [
        ("time", np.int64),  # ns, this rank's clock
        ("worker", np.int32),
        ("version", np.int64),
        ("staleness", np.int64),
        ("learning_rate", np.float64),
    ]
)

EVENT_LIMIT: Final = 200_000
"""Events kept per rank and case unless told otherwise (7.2 MB packed)."""

UPDATE_LIMIT: Final = 200_000
"""Updates likewise (7.2 MB packed), however many ranks a process simulates: few ranks have any."""

Event = tuple[int, str, int, int, int, int]
"""(task, label, begin ns, end ns, peer or -1, bytes)."""


class Step(NamedTuple):
    """One step of one rank: a training step, or one repetition of a collective."""

    step: int
    """0, 1, ...; warm-up included."""
    epoch: int
    begin: int
    """ns on this rank's clock."""
    end: int
    """ns on this rank's clock."""
    loss: float = float("nan")
    """Mean over this rank's images."""
    correct: int = 0
    """Of this rank's images, how many were classified rightly."""
    images: int = 0
    """How many images this rank consumed."""
    compute_ns: int = 0
    """Local work: input, forward, backward, update; without communication and without waiting for peers."""
    messages: int = 0
    """Sent by this rank in this step."""
    bytes: int = 0
    """Sent by this rank in this step."""
    learning_rate: float = float("nan")
    input_ns: int = 0
    """Of the local work, waiting for images and handing them to the device."""


class Evaluation(NamedTuple):
    """One look at the test set."""

    step: int
    """Training steps done before it."""
    epoch: float
    """Epochs done before it."""
    training_seconds: float
    """Training time so far; the time of evaluations is not in it."""
    loss: float
    accuracy: float
    """0 to 1."""
    samples: int
    """Training images consumed so far, by all ranks together."""
    consensus: float = math.nan
    """Root of the mean over ranks of the squared distance between a rank's parameters and their average; not a
    number where all ranks hold the same parameters by construction, or none of their own."""


class Update(NamedTuple):
    """One gradient (or sum of gradients) that this rank applied to parameters it keeps for others."""

    time: int
    """ns on this rank's clock."""
    worker: int
    """The rank that computed it."""
    version: int
    """Updates that the parameters had seen when it was applied."""
    staleness: int
    """That, less the version of the parameters it was computed from."""
    learning_rate: float


class Recorder:
    """Lists that grow while a case runs.

    ``events`` (None when events are not traced) takes :data:`Event` tuples: interpreters append to it
    directly, since a call would cost more than what it records. ``steps`` takes :class:`Step`,
    ``evaluations`` takes :class:`Evaluation`, ``updates`` takes :class:`Update`, or plain tuples in their order.
    """

    def __init__(self, *, events: bool = True, limit: int = EVENT_LIMIT, update_limit: int = UPDATE_LIMIT) -> None:
        self.events: list[Event] | None = [] if events else None
        self.steps: list[tuple[Any, ...]] = []
        self.evaluations: list[tuple[Any, ...]] = []
        self.updates: list[tuple[Any, ...]] = []
        self.limit = limit
        self.update_limit = update_limit
        self.dropped = 0
        """Events not kept because ``limit`` was reached."""
        self.dropped_updates = 0
        """Updates not kept because ``update_limit`` was reached."""
        self.memory_bytes = 0
        """What this rank holds in vectors as long as the parameters or longer, or parts of such; 0: not stated."""
        self.virtual: list[Recorder] = []
        """Where this process simulates ranks: theirs, which are the trace then."""
        self.clock_offset_ns = 0
        """To be added to this rank's clock to get rank 0's."""

    def trim(self) -> None:
        """Drop and count events and updates beyond their limits; called between steps, it bounds the memory.

        The first ones stay: a trace with a hole in its middle cannot be read. The list stays the same object,
        so whoever holds it may go on appending.
        """
        if self.events is not None and len(self.events) > self.limit:
            self.dropped += len(self.events) - self.limit
            del self.events[self.limit :]
        if len(self.updates) > self.update_limit:
            self.dropped_updates += len(self.updates) - self.update_limit
            del self.updates[self.update_limit :]

    def pack(self) -> Packed:
        """The trace as arrays.

        Keys: ``events`` (n, :data:`EVENT`), ``labels`` (m, UTF-8 bytes), ``steps`` (s, :data:`STEP`),
        ``evaluations`` (e, :data:`EVALUATION`), ``updates`` (u, :data:`UPDATE`), and four scalars of shape (),
        ``dropped``, ``dropped_updates``, ``clock_offset_ns`` and ``memory_bytes`` (int64).
        """
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
            "steps": np.array([Step(*row) for row in self.steps], STEP),
            "evaluations": np.array([Evaluation(*row) for row in self.evaluations], EVALUATION),
            "updates": np.array([Update(*row) for row in self.updates], UPDATE),
            "dropped": np.array(self.dropped, np.int64),
            "dropped_updates": np.array(self.dropped_updates, np.int64),
            "memory_bytes": np.array(self.memory_bytes, np.int64),
            "clock_offset_ns": np.array(self.clock_offset_ns, np.int64),
        }


def to_bytes(packed: Mapping[str, npt.NDArray[Any]]) -> bytes:
    """A packed trace as one string of bytes (numpy's npz, nothing pickled), to be gathered to rank 0."""
    stream = io.BytesIO()
    np.savez(stream, allow_pickle=False, **packed)
    return stream.getvalue()


def from_bytes(data: bytes) -> Packed:
    """The inverse of :func:`to_bytes`. Raises ValueError or zipfile.BadZipFile for anything else."""
    with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
        return dict(arrays)
