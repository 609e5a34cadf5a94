"""Counts of an alltoallv: the elements that rank i sends to rank j, (p, p), by a law or from a file."""

import csv
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from hpcdl import registry
from hpcdl.cases.keys.key import Choice
from hpcdl.data.parts.dataset import DataError, content, found_file, reading
from hpcdl.trace.files import read_csv
from hpcdl.trace.recorder import Scalar

Counts: TypeAlias = NDArray[np.int64]
MAX_COUNT: Final = (1 << 31) - 1
"""Elements that a rank sends or receives, at most: MPI's counts and displacements have 32 bits."""


def uniform(ranks: int, elements: int | None) -> Counts:
    """Return equal counts for all ranks, as in the OSU benchmarks."""
    return _apportioned(elements, np.full(ranks, 1 / ranks))


def zipf(ranks: int, elements: int | None, *, exponent: float = 1.0, seed: int = 0) -> Counts:
    """Return counts by Zipf's law: all ranks send to the k-th most popular rank in proportion to 1 / k^exponent.

    ``seed`` draws which ranks are popular. Raises ValueError for a negative setting.
    """
    if exponent < 0 or seed < 0:
        raise ValueError(f"exponent and seed must be at least 0, not {exponent} and {seed}")
    weights = np.arange(1.0, ranks + 1) ** -exponent
    return _apportioned(elements, np.random.default_rng(seed).permutation(weights / weights.sum()))


def _apportioned(elements: int | None, shares: NDArray[np.float64]) -> Counts:
    """Return counts of ranks that send ``elements`` each, in ``shares``, rounded by largest remainders."""
    if elements is None:
        raise ValueError("needs message_bytes, the bytes that each rank sends")
    counts = np.floor(elements * shares).astype(np.int64)
    remainders = np.argsort(counts - elements * shares, kind="stable")
    counts[remainders[: elements - counts.sum()]] += 1
    return np.broadcast_to(counts, (len(shares), len(shares)))


def file(ranks: int, _elements: int | None, *, path: str, scale: int = 1) -> Counts:
    """Return the matrix in a CSV file, or in a .npy file, times ``scale``, such as the elements of a token.

    A relative ``path`` that does not exist is searched in $HPCDL_DATA. Raises ValueError, naming the file, for one
    that has other than (ranks, ranks) whole numbers from 0.
    """
    if not 1 <= scale <= MAX_COUNT:
        raise ValueError(f"scale must be from 1 to {MAX_COUNT}, not {scale}")
    source, table = found_file(Path(path)), np.empty(0)
    if source.suffix == ".npy":
        try:
            with reading(source):
                table = np.load(BytesIO(content(source)), allow_pickle=False)
        except DataError as error:
            raise ValueError(str(error)) from None
    else:
        lines = read_csv(source)
        try:
            rows = [[float(cell) for cell in line] for line in lines if line]
        except (csv.Error, ValueError) as error:
            raise ValueError(f"{source}: line {lines.line_num}: {error}") from None
        if len({*map(len, rows)}) > 1:
            raise ValueError(f"{source}: must be square, but its lines have different numbers of counts")
        table = np.array(rows)
    if table.shape != (ranks, ranks) or table.dtype.kind not in "iuf":
        shape = " x ".join(map(str, table.shape))
        raise ValueError(
            f"{source}: must have {ranks} x {ranks} numbers, as many as ranks, not {shape} {table.dtype}"
        )
    most = MAX_COUNT // scale
    for place in np.argwhere(~((table >= 0) & (table <= most) & (table % 1 == 0)))[:1].tolist():
        value = f"{table[*place]:.10g}"
        raise ValueError(f"{source}: entry {tuple(place)} must be a whole number from 0 to {most}, not {value}")
    return table.astype(np.int64) * scale


LAWS: Final[dict[str, Callable[..., Counts]]] = {law.__name__: law for law in (uniform, zipf, file)}


def counts_of(law: Choice, ranks: int, elements: int | None) -> Counts:
    """Return the counts by a law, with which each rank sends ``elements``, or of a file, without ``elements``.

    Raises ValueError for an unknown law or setting, and as the law does.
    """
    if (function := LAWS.get(law.name)) is None:
        raise ValueError(f"unknown {law.name!r}{registry.nearest(law.name, LAWS)}")
    registry.check_settings(function, law.settings)
    return function(ranks, elements, **registry.in_full(function, law.settings))


def totals(counts: Counts) -> tuple[Counts, Counts]:
    """Return the elements that each rank sends, and those that it receives."""
    return counts.sum(axis=1), counts.sum(axis=0)


def count_fields(law: Choice, counts: Counts, itemsize: int) -> dict[str, Scalar]:
    """Return fields of the record: the law, the bytes of the busiest rank, and the imbalance."""
    sent, received = totals(counts)
    busiest, mean = int((np.maximum(sent, received) - counts.diagonal()).max()), received.mean()
    imbalance = float(received.max() / mean) if mean else None
    return {"counts": str(law), "busiest_bytes": busiest * itemsize, "imbalance": imbalance}
