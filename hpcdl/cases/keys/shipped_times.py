"""Measured times of layers by batch: of one core, the default of replays and predictions, and of GPUs.

A file begins with date, processor and state of the machine; a row has the microseconds of a call at each batch.
``tests/gpu/times_file.py`` writes that of a core from a run of the suite ``layer-times``; those of GPUs are of
``make gpu-check``, part ``layers``.
"""

import csv
from functools import cache
from pathlib import Path
from typing import Final

import numpy as np

from hpcdl.cases.keys.compute_times import ComputeTimes, shape_text
from hpcdl.nn.geometry import Shape

CORE: Final = "core"

FILES: Final = {
    CORE: Path(__file__).with_name("cpu_times.csv"),
    "h200": Path(__file__).with_name("h200_times.csv"),
    "h200-bf16": Path(__file__).with_name("h200_bf16_times.csv"),
}
"""By the name of a device."""


@cache
def _rows(file: Path) -> dict[tuple[str, str], dict[str, dict[int, float]]]:
    """Return the seconds of a call by model and shape of images, label and batch."""
    seconds: dict[tuple[str, str], dict[str, dict[int, float]]] = {}
    for row in csv.DictReader(file.read_text(encoding="utf-8").splitlines()[1:]):
        model, shape, label = (row.pop(name) for name in ("model", "shape", "label"))
        seconds.setdefault((model, shape), {})[label] = {int(n): 1e-6 * float(row[n]) for n in row if row[n]}
    return seconds


def shipped(device: str, model: str, shape: Shape, images: int | None) -> ComputeTimes | None:
    """Return the times of a batch of ``images`` (None: a large one) on a device; None where there are no times.

    Between two measured batches a call's time is interpolated, above the largest it is proportional to the batch.
    """
    file = FILES.get(device)
    rows = {} if file is None else _rows(file).get((model, shape_text(shape)), {})
    if file is None or not rows:
        return None
    per_image, per_call = {}, {}
    for label, by_batch in rows.items():
        largest = max(by_batch)
        batch = min(images or largest, largest)
        seconds = float(np.interp(batch, sorted(by_batch), [by_batch[size] for size in sorted(by_batch)]))
        if label.startswith("update"):
            per_call[label] = seconds
        else:
            per_image[label] = seconds / batch
    return ComputeTimes(per_image, per_call, file.read_text(encoding="utf-8").partition("\n")[0].lstrip("# "))
