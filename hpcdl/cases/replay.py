"""``kind = "replay"``: a training's messages and times without its arithmetic, on the network that is there.

Ranks sleep for as long as a device would compute, and exchange vectors as long as the gradients, when and as the
strategy does: an interconnect is tested under the traffic of a training, with no device and many ranks to a core.
"""

from __future__ import annotations

from functools import partial
from time import sleep
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from hpcdl import registry
from hpcdl.analysis.compute_times import DEVICES, ComputeTimes, shape_told
from hpcdl.analysis.fields import LOCKSTEP
from hpcdl.analysis.volumes import FLOAT_BYTES, volumes
from hpcdl.assembly import architecture, compute_times, named, times_told
from hpcdl.fabric.asleep import asleep, oversleep
from hpcdl.measuring.links import fitted_bucket_bytes
from hpcdl.replay import Session, replica
from hpcdl.suite import Key, about, label, try_out

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping

    from hpcdl.fabric.comm import Comm
    from hpcdl.suite import Scalar
    from hpcdl.training.journal import Journal

TIMES: Final = ("device", "flops", "times")
"""Keys that say how long work takes; a case has exactly one of them."""

KEYS: Final[dict[str, Key]] = {
    "model": Key((str, dict), folder="models"),
    "dataset": Key((str, dict), None, folder="datasets"),
    "training": Key((str, dict), {"name": "synchronous"}, folder="training"),
    "aggregation": Key((str, dict), {"name": "ring"}, folder="aggregation"),
    "ranks": Key((int,), least=1),
    "batch_per_rank": Key((int,), least=1),
    "steps": Key((int,), 20, least=1),
    "warmup": Key((int,), 2, least=0),
    "device": Key((str,), None, choices=tuple(DEVICES)),
    "flops": Key((int, float), None),
    "times": Key((str,), None),
    "time_scale": Key((int, float), 1.0),
    "scale_to_batch": Key((bool,), False),
    "threads": Key((int,), 1, least=1),
    "trace": Key((str,), "events", choices=("events", "steps", "alternating")),
}


def check(settings: Mapping[str, Any]) -> None:
    """See :class:`hpcdl.suite.Kind`. Works out every shape, and reads the run that times are taken from."""
    given = [key for key in TIMES if settings[key] is not None]
    if len(given) != 1:
        raise ValueError(f"{given[1] if given else TIMES[0]}: give exactly one of {', '.join(TIMES)}")
    for key in ("flops", "time_scale"):
        if settings[key] is not None and not settings[key] > 0:
            raise ValueError(f"{key}: must be more than 0, not {settings[key]}")
    if settings["scale_to_batch"] and settings["times"] is None:
        raise ValueError("scale_to_batch: goes with times, which may be of another batch")
    if settings["warmup"] >= settings["steps"]:
        raise ValueError(f"warmup: {settings['warmup']} of {settings['steps']} steps leave none to measure")
    if settings["training"]["name"] not in LOCKSTEP:
        name = settings["training"]["name"]
        raise ValueError(f"training: {name!r} cannot be replayed{registry.nearest(name, LOCKSTEP)}")
    with about("model"):
        shape, layers = architecture(settings["model"], settings["dataset"])
        for layer in layers:
            layer.declare(shape)
            shape = layer.output(shape)
    with about("aggregation"):
        if settings["aggregation"]["name"] == "nccl":
            raise ValueError("nccl sums vectors on GPUs, and a replay's are in the host's memory")
        try_out(settings["aggregation"], settings["ranks"])
    with about(given[0]):
        _times(settings)


def memory_bytes(settings: Mapping[str, Any]) -> int:
    """See :class:`hpcdl.suite.Kind`: gradients, and as much again for a scheme's inbox."""
    shape, layers = architecture(settings["model"], settings["dataset"])
    return 2 * FLOAT_BYTES * volumes(layers, shape, 1).parameters


def identity(settings: Mapping[str, Any]) -> list[str]:
    """See :class:`hpcdl.suite.Kind`."""
    words = [label(settings[key]) for key in ("model", "training", "aggregation")]
    return [*words, f"p{settings['ranks']}", f"b{settings['batch_per_rank']}each", f"{settings['steps']}st"]


def fields(settings: Mapping[str, Any]) -> dict[str, Scalar]:
    """See :class:`hpcdl.suite.Kind`."""
    scale = f" x {settings['time_scale']:g}" if settings["time_scale"] != 1 else ""
    scale += " in proportion to the batch" if settings["scale_to_batch"] else ""
    return {
        **{key: label(settings[key]) for key in ("model", "training", "aggregation")},
        "dataset": label(settings["dataset"])
        if settings["dataset"]
        else shape_told(architecture(settings["model"], settings["dataset"])[0]),
        "dtype": "float32",
        "compression": "none",
        "batch_per_rank": settings["batch_per_rank"],
        "global_batch": settings["batch_per_rank"] * settings["ranks"],
        "scaling": "weak",
        "threads_per_rank": settings["threads"],
        "steps": settings["steps"],
        "warmup_steps": settings["warmup"],
        **{key: settings[key] for key in (*TIMES, "time_scale", "scale_to_batch")},
        "modelled_compute_seconds": _times(settings).step_seconds(settings["batch_per_rank"]),
        "configuration": f"replayed with {times_told(settings)}{scale}, trace={settings['trace']}",
    }


def program(
    settings: Mapping[str, Any], journal: Journal
) -> Callable[[Comm], Coroutine[Any, Any, dict[str, Scalar]]]:
    """See :class:`hpcdl.suite.Kind`."""
    strategy = named("training", settings["training"])
    shape, layers = architecture(settings["model"], settings["dataset"])
    batch = settings["batch_per_rank"]
    seconds = partial(_times(settings).seconds, images=batch)

    async def play(comm: Comm) -> dict[str, Scalar]:
        summed = settings["aggregation"]["name"] != "none"
        stand_in, marks = replica(layers, shape, comm.rank, comm.size, summed=summed)
        session = Session(
            stand_in,
            aggregate=named("aggregation", settings["aggregation"]),
            journal=journal,
            batch_per_rank=batch,
            global_batch=batch * comm.size,
            steps=settings["steps"],
            bucket_bytes=await fitted_bucket_bytes(comm, sleep),
        )
        await strategy(asleep(comm, seconds, oversleep()), session)
        journal.memory(stand_in.gradients.nbytes)
        wrong = np.array([float(marks.wrong)])
        await comm.native("allreduce", wrong)
        found = {"parameters": stand_in.gradients.size, "bucket_bytes": session.bucket_bytes}
        return {**found, "correct": not wrong[0]}

    return play


def _times(settings: Mapping[str, Any]) -> ComputeTimes:
    """How long work takes. Raises ValueError."""
    shape, layers = architecture(settings["model"], settings["dataset"])
    return compute_times(settings, layers, shape)
