"""Files of measured times of layers, as ``hpcdl/cases/keys/compute_times.py`` reads them.

``PYTHONPATH=tests python -m gpu.times_file RUN "quiet machine"`` writes that of a core from a run of the suite
``layer-times``.
"""

import sys
from pathlib import Path

from hpcdl.cases.keys.compute_times import CORE, FILES, measured_trainings
from hpcdl.trace.schema import read


def text_of(heading, table):
    """Return a file of microseconds by model, shape of images and label, and by batch."""
    batches = sorted({batch for by_batch in table.values() for batch in by_batch})
    lines = [f"# {heading}", ",".join(["model", "shape", "label", *map(str, batches)])]
    for key, by_batch in table.items():
        cells = (f"{by_batch[batch]:.4g}" if batch in by_batch else "" for batch in batches)
        lines.append(",".join([*key, *cells]))
    return "\n".join(lines) + "\n"


def write(path, state):
    """Write the times of the trainings in a run, and the ``state`` of its machine."""
    run, table = read(path), {}
    for model, shape, images, times in measured_trainings(run, range(len(run.described))):
        for label in (*times.per_image, *times.per_call):
            table.setdefault((model, shape, label), {})[images] = 1e6 * times.seconds(label, images)
    heading = f"{run.environment['date'][:10]}, one core of {run.environment['cpu']['model']}, {state}"
    FILES[CORE].write_text(text_of(heading, table), encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]), sys.argv[2])
