"""Training steps on a network: the strategy itself in virtual time, its gradients sizes only.

What a step computes takes the time that a measured run says, or arithmetic over a rate; see
:mod:`hpcdl.analysis.compute_times`. Input, forward and backward scale with the images per rank, so that the times
of one batch predict strong scaling as well as weak.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from hpcdl import registry
from hpcdl.analysis.cells import chosen, of_a_library
from hpcdl.analysis.fields import LOCKSTEP, configuration
from hpcdl.assembly import architecture
from hpcdl.data.dataset import DataError
from hpcdl.fabric.comm import Gauge
from hpcdl.fabric.simulated import simulated
from hpcdl.replay import Session, outline
from hpcdl.trace.recorder import Recorder, Step
from hpcdl.training.bucketing import bucket_bytes
from hpcdl.training.journal import Journal

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from hpcdl.analysis.compute_times import ComputeTimes
    from hpcdl.analysis.scaling import Record
    from hpcdl.fabric.network import Network
    from hpcdl.nn.geometry import Shape
    from hpcdl.nn.layer import Layer

    Times = Callable[[Record, int, Sequence[Layer], Shape], ComputeTimes]
    """How long the work of a case takes on so many ranks. Raises ValueError where nothing says it."""

STEPPING: Final = ("train", "replay")
"""Kinds of case whose steps are a training's."""

STRATEGIES: Final = (*LOCKSTEP, "parameter_averaging")
"""Those whose messages depend on sizes and counts alone."""

CYCLES: Final = 4
"""Cycles of steps that are simulated."""

UNSETTLED: Final = 2
"""Of those the first, which are not counted: nothing precedes one, and by it the next one orders its pieces."""

KEPT: Final = (
    *("suite", "case", "kind", "model", "dataset", "backend", "dtype", "training", "aggregation", "compression"),
    *("optimizer", "threads_per_rank", "scaling"),
)
"""What a row says of its case."""


@dataclass(frozen=True)
class Training:
    """What decides how long a step takes."""

    strategy: Callable[..., Any]
    aggregate: Callable[..., Any]
    layers: Sequence[Layer]
    shape: Shape
    dtype: str
    cycle: int = 1
    """Steps after which all is as before."""
    independent: bool = False
    """Whether ranks exchange nothing."""


def predicted_steps(
    records: Sequence[Record], times: Times, network: Network, ranks: Sequence[int] = (), most: int | None = None
) -> tuple[list[Record], list[str]]:
    """Rows for the training cases among ``records`` on ``ranks`` ranks, each case's own unless given.

    Also what could not be predicted, and why. ``most``: ranks that the network was fitted to.
    """
    groups: dict[Any, dict[int, list[Record]]] = {}
    for record in records:
        if record["kind"] in STEPPING:
            # on one rank too the aggregation tells cases apart: more ranks may be asked for
            key = configuration({**record, "ranks": None})
            groups.setdefault(key, {}).setdefault(record["ranks"], []).append(record)
    rows: list[Record] = []
    left_out: list[str] = []
    for known in groups.values():
        first = known[min(known)][0]
        name = f"{first['training']} with {first['aggregation']}"
        try:
            training = _training(first)
        except (ValueError, TypeError, DataError, OSError) as error:
            left_out.append(f"{name}: {error}")
            continue
        farthest = most or max((p for p in known if _measured(known[p], "step_seconds")), default=None)
        for p in ranks or sorted(known):
            try:
                work = times(first, p, training.layers, training.shape)
                row = _row(known.get(p, []), first, p, training, work, network)
            except ValueError as error:
                left_out.append(f"{name} on {p} ranks: {error}")
            else:
                rows.append({**row, "times_the_measured_ranks": p / farthest if farthest else None})
    return rows, left_out


def step_seconds(
    training: Training, ranks: int, images: int, network: Network, times: ComputeTimes, bucket: int | None = None
) -> float:
    """Mean over steps of the slowest rank's, in seconds, with ``images`` on each rank.

    ``bucket``: the bytes that were fitted where it ran; otherwise the network's own are, between hosts.
    """
    recorders = [Recorder(events=False) for _ in range(ranks)]
    world = simulated(ranks, network, compute=lambda _rank, label: times.seconds(label, images))
    if bucket is None and len({network.host(rank) for rank in range(ranks)}) > 1:
        bucket = bucket_bytes(network.link.alpha, network.link.beta, ranks)

    async def train(comm: Any) -> None:
        def gauge() -> Gauge:
            return Gauge(round(world.running.time * 1e9), 0, 0, 0, 0)

        session = Session(
            outline(training.layers, training.shape, training.dtype),
            aggregate=training.aggregate,
            journal=Journal(recorders[comm.rank], gauge),
            batch_per_rank=images,
            global_batch=images * ranks,
            steps=CYCLES * training.cycle,
            bucket_bytes=bucket,
            independent=training.independent,
        )
        await training.strategy(comm, session)

    world.run(train)
    spans = np.array([[step.end - step.begin for step in map(Step._make, one.steps)] for one in recorders])
    return float(spans[:, UNSETTLED * training.cycle :].max(axis=0).mean()) * 1e-9


def _training(record: Mapping[str, Any]) -> Training:
    """What the record trained. Raises ValueError for what sizes alone do not decide."""
    name, settings = chosen(str(record["training"]))
    scheme, own = chosen(str(record["aggregation"]))
    if name not in STRATEGIES:
        raise ValueError(f"only steps of {', '.join(STRATEGIES)} are predicted")
    if settings.get("optimizer_state") == "averaged":
        raise ValueError("the optimizer's state, which is averaged too, is of unknown size")
    if settings.get("local_from") or settings.get("post_local"):
        raise ValueError("its period changes on the way")
    for key in ("straggler", "failure", "jitter", "shares"):
        if record.get(key):
            raise ValueError(f"{key}: the case is not like its others")
    if scheme == "auto":
        raise ValueError("auto measures and chooses where it runs")
    # of a replay that names no dataset the record has the shape of its images
    data = None if str(record["dataset"])[0].isdigit() else _table(record["dataset"])
    shape, layers = architecture(_table(record["model"]), data)
    return Training(
        partial(registry.find("training", name), **settings),
        partial(registry.find("aggregation", scheme), **own),
        layers,
        shape,
        {"bfloat16": "float16"}.get(str(record["dtype"]), str(record["dtype"])),
        cycle=int(settings.get("period", 1)),
        independent=scheme == "none",
    )


def _table(label: object) -> dict[str, Any]:
    name, settings = chosen(str(label))
    return {"name": name, **settings}


def _images(record: Mapping[str, Any], ranks: int) -> int:
    """On the rank that has most, in the scaling of the case. ValueError: fewer images than ranks."""
    if record.get("scaling") == "weak":
        return int(record.get("batch_per_rank") or record["global_batch"] // record["ranks"])
    if ranks > record["global_batch"]:
        raise ValueError(f"a global batch of {record['global_batch']} images is less than one a rank")
    return -(-int(record["global_batch"]) // ranks)


def _row(
    here: Sequence[Record], like: Record, ranks: int, training: Training, work: ComputeTimes, network: Network
) -> Record:
    like, images = here[0] if here else like, _images(like, ranks)
    began = perf_counter()
    fitted = _measured(here, "bucket_bytes")
    seconds = step_seconds(training, ranks, images, network, work, int(fitted) if fitted else None)
    weak = like.get("scaling") == "weak"
    batch = images * ranks if weak else int(like["global_batch"])
    return {
        **{name: like.get(name) for name in KEPT},
        "ranks": ranks,
        "global_batch": batch,
        "step_seconds": _measured(here, "step_seconds"),
        "images_per_second": _measured(here, "images_per_second"),
        "predicted_seconds": seconds,
        "predicted_images_per_second": batch / seconds if seconds else None,
        "compute_seconds": work.step_seconds(images),
        "compute_times": work.source or None,
        "network": network.name,
        "library_decides": of_a_library(str(like["aggregation"])),
        "simulation_seconds": perf_counter() - began,
    }


def _measured(records: Sequence[Record], name: str) -> float | None:
    """Median over seeds; None where nothing was measured."""
    found = [one[name] for one in records if one.get(name) and not one.get("network") and not one.get("error")]
    return median(found) if found else None
