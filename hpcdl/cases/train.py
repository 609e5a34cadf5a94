"""``kind = "train"``: train a network on a dataset by a strategy, and see how fast and how well."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from hpcdl import accidents, registry, simulation, strategy
from hpcdl.aggregation.auto import auto
from hpcdl.analysis.compute_times import DEVICES, shape_told
from hpcdl.analysis.fields import OWN
from hpcdl.analysis.volumes import FLOAT_BYTES, volumes
from hpcdl.assembly import (
    USUAL,
    aggregation,
    check_place,
    dataset,
    global_batch,
    layers,
    learning_rate,
    made,
    named,
    optimizer,
    rates,
    session,
    shares,
    steps,
)
from hpcdl.data.dataset import Dataset
from hpcdl.data.sharding import EQUAL, bounds
from hpcdl.fabric.network import NETWORKS
from hpcdl.fabric.straggler import Delays, slowed
from hpcdl.launch.memory import node_memory_bytes, shortage
from hpcdl.measuring.links import fitted_bucket_bytes, multiply, one_host
from hpcdl.measuring.tuning import tune
from hpcdl.nn.backend import backend
from hpcdl.nn.precision import HALF
from hpcdl.strategy import aggregates, ask_strategy, of_strategy
from hpcdl.suite import Key, about, label, try_out
from hpcdl.trace.recorder import STEP

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping

    from hpcdl.fabric.comm import Comm
    from hpcdl.suite import Scalar
    from hpcdl.training.journal import Journal
    from hpcdl.training.session import Session

WARMUP_STEPS: Final = 2
"""Steps at the start whose times are kept but not counted: first touch of memory, first connection of peers."""

LADDER: Final = tuple(1 << power for power in range(12, 31, 3))
"""Bytes at which ``auto`` measures schemes, and at the whole gradient's."""

MOST_STEPS: Final = np.iinfo(STEP["step"]).max

KEYS: Final[dict[str, Key]] = {
    "model": Key((str, dict), folder="models"),
    "dataset": Key((str, dict), folder="datasets"),
    "backend": Key((str, dict), {"name": "numpy"}, folder="backends"),
    "dtype": Key((str,), "float32", choices=("float32", "float64", *HALF)),
    "training": Key((str, dict), {"name": "synchronous"}, folder="training"),
    "aggregation": Key((str, dict), None, folder="aggregation", usual=USUAL["aggregation"]),
    "compression": Key((str,), "none", choices=("none",)),
    "optimizer": Key((str, dict), None, folder="optim", usual=USUAL["optimizer"]),
    "schedule": Key((str, dict), {"name": "constant"}),
    "learning_rate": Key((int, float), least=0),
    "ranks": Key((int,), least=1),
    "global_batch": Key((int,), None, least=1),
    "batch_per_rank": Key((int,), None, least=1),
    "shares": Key((dict,), None),
    "epochs": Key((int, float), None, least=0),
    "steps": Key((int,), None, least=1),
    "target_accuracy": Key((int, float), None, least=0),
    "stop_at_target": Key((bool,), False),
    "evaluate_every": Key((int, float), 1, least=0),
    "seed": Key((int,), 1, least=0),
    "prefetch": Key((int,), 2, least=0),
    "threads": Key((int,), 1, least=1),
    "trace": Key((str,), "events", choices=("events", "steps", "alternating")),
    "straggler": Key((dict,), None),
    "failure": Key((dict,), None),
    "network": Key((str,), None, choices=tuple(NETWORKS)),
    "ranks_per_host": Key((int,), 1, least=1),
    "device": Key((str,), None, choices=tuple(DEVICES)),
    "flops": Key((int, float), None),
    "times": Key((str,), None),
    "jitter": Key((int, float), 0.0, least=0),
}


def check(settings: Mapping[str, Any]) -> None:
    """See :class:`hpcdl.suite.Kind`. Opens the dataset and works out every shape."""
    for one, other in (("global_batch", "batch_per_rank"), ("epochs", "steps")):
        if (settings[one] is None) == (settings[other] is None):
            raise ValueError(f"{one}: give exactly one of {one} and {other}")
    for key in ("epochs", "evaluate_every"):
        if settings[key] is not None and settings[key] <= 0:
            raise ValueError(f"{key}: must be more than 0, not {settings[key]}")
    ranks, batch = settings["ranks"], global_batch(settings)
    if batch % ranks:
        below, above = batch // ranks * ranks, -(-batch // ranks) * ranks
        raise ValueError(
            f"global_batch: {batch} is not divisible by ranks = {ranks}; {below or above} and {above} are"
        )
    target = settings["target_accuracy"]
    if target is not None and target > 1:
        raise ValueError(f"target_accuracy: must be at most 1, not {target}")
    if target is None and settings["stop_at_target"]:
        raise ValueError("stop_at_target: there is no target_accuracy to stop at")
    with about("dataset"):
        data = dataset(settings["dataset"])
        if not isinstance(data, Dataset):
            raise TypeError(f"{settings['dataset']['name']!r} makes a {type(data).__name__}, not a Dataset")
        if not len(data.test):
            raise ValueError(f"{data.name} has no test images")
    if batch > len(data.train):
        raise ValueError(f"global_batch: {batch} images a step, but {data.name} has {len(data.train)}")
    with about("epochs" if settings["steps"] is None else "steps"):
        if (length := steps(settings)) > MOST_STEPS:
            raise ValueError(f"{length} steps are more than a trace can count")
    with about("backend"):
        chosen = backend(**settings["backend"])
    strategy.check(settings)
    with about("dtype"):
        chosen.check_precision(settings["dtype"])
    with about("model"):
        shape: tuple[int, ...] = data.shape
        for layer in layers(settings, data):
            layer.declare(shape)
            shape = layer.output(shape)
        if shape != (data.classes,):
            raise ValueError(f"ends in {shape}, but {data.name} has {data.classes} classes")
    with about("optimizer"):
        choice = optimizer(settings)
        rule = made("optim", choice)
        if not hasattr(rule, "update"):
            raise TypeError(f"{choice['name']!r} makes a {type(rule).__name__}, not an optimizer")
    with about("schedule"):
        rates(settings)
    with about("training"):
        ask_strategy(settings, "check")
        ask_strategy(settings, "check_rates", learning_rate(settings), length)
    _check_shares(settings)
    with about("batch_per_rank" if settings["global_batch"] is None else "global_batch"):
        if (line := shortage(memory_bytes(settings), 1, node_memory_bytes())) is not None:
            raise ValueError(f"{_images(settings)} images a rank: {line}")
    if aggregates(settings):
        with about("aggregation"):
            check_place(aggregation(settings)["name"], chosen, settings)
            try_out(aggregation(settings), ranks)
    simulation.check(settings)
    accidents.check(settings)


def _check_shares(settings: Mapping[str, Any]) -> None:
    given = shares(settings)
    if given == EQUAL:
        return
    with about("shares"):
        batch, workers = global_batch(settings), _workers(settings)
        if len(given.weights) > workers:
            raise ValueError(f"weights: {len(given.weights)} of them, but {workers} to share a batch")
        if not np.diff(bounds(batch, workers, given)).all():
            raise ValueError(f"weights: with {given} somebody would have none of {batch} images")


def _workers(settings: Mapping[str, Any]) -> int:
    """How many ranks share a batch."""
    workers = ask_strategy(settings, "workers")
    return settings["ranks"] if workers is None else len(workers)


def _images(settings: Mapping[str, Any]) -> int:
    """In the largest share of a batch."""
    return int(np.diff(bounds(global_batch(settings), _workers(settings), shares(settings))).max())


def memory_bytes(settings: Mapping[str, Any]) -> int:
    """See :class:`hpcdl.suite.Kind`: parameters, gradients, activations, of all ranks where they are simulated.

    0 where they are on a device.
    """
    if not backend(**settings["backend"]).on_host:
        return 0
    data = dataset(settings["dataset"])
    simulated = bool(settings["network"])
    images = global_batch(settings) // settings["ranks"] if simulated else _images(settings)
    weight = volumes(layers(settings, data), data.shape, images)
    size = np.dtype(settings["dtype"]).itemsize
    here = settings["ranks"] if simulated else 1
    return here * int(size * 2 * weight.parameters + weight.activation_bytes * size // FLOAT_BYTES)


def identity(settings: Mapping[str, Any]) -> list[str]:
    """See :class:`hpcdl.suite.Kind`."""
    names = [label(settings[key]) for key in ("model", "dataset", "training")]
    names += [label(aggregation(settings))] if aggregates(settings) else []
    batch, each = settings["global_batch"], settings["batch_per_rank"]
    length = f"{settings['epochs']:g}ep" if settings["steps"] is None else f"{settings['steps']}st"
    return [*names, f"p{settings['ranks']}", f"b{batch}" if each is None else f"b{each}each", length]


def fields(settings: Mapping[str, Any]) -> dict[str, Scalar]:
    """See :class:`hpcdl.suite.Kind`."""
    called = ("model", "dataset", "backend", "training", "schedule")
    plain = ("dtype", "compression", "learning_rate", "epochs", "target_accuracy", "batch_per_rank", "network")
    straggler, failure = accidents.straggler(settings), accidents.failure(settings)
    unequal = None if shares(settings) == EQUAL else str(shares(settings))
    told = [
        simulation.told(settings) if settings["network"] else f"trace={settings['trace']}",
        f"shares {unequal}" if unequal else "",
        f"straggler {straggler}" if straggler else "",
        f"failure {failure}" if failure else "",
    ]
    return {
        **{key: label(settings[key]) for key in called},
        "image_shape": shape_told(dataset(settings["dataset"]).shape),
        "optimizer": of_strategy(settings, "OPTIMIZER") or label(optimizer(settings)),
        **{key: settings[key] for key in plain},
        "aggregation": label(aggregation(settings)) if aggregates(settings) else OWN,
        "global_batch": global_batch(settings),
        "shares": unequal,
        "scaling": "strong" if settings["batch_per_rank"] is None else "weak",
        "threads_per_rank": settings["threads"],
        "steps": steps(settings),
        "warmup_steps": 0 if settings["network"] else min(WARMUP_STEPS, steps(settings) - 1),
        **{key: settings[key] for key in ("ranks_per_host", "jitter", *simulation.TIMES) if settings["network"]},
        **(straggler.fields if straggler else {"straggler": None}),
        "failure": str(failure) if failure else None,
        "system": ask_strategy(settings, "title"),
        "configuration": ", ".join(filter(None, told)),
    }


def program(
    settings: Mapping[str, Any], journal: Journal
) -> Callable[[Comm], Coroutine[Any, Any, dict[str, Scalar]]]:
    """See :class:`hpcdl.suite.Kind`."""
    run = named("training", settings["training"])
    measured = aggregates(settings) and aggregation(settings)["name"] == "auto" and not settings["network"]
    straggler, failure = accidents.straggler(settings), accidents.failure(settings)

    async def train(comm: Comm, mine: Session) -> dict[str, Scalar]:
        chosen = await _choose(comm, mine) if measured else None
        cuts = "bucket_bytes" in registry.settings_of(run.func)
        if cuts and not settings["network"] and not await one_host(comm):
            mine.bucket_bytes = await fitted_bucket_bytes(comm, multiply)
        try:
            await run(comm, mine)
        finally:
            mine.close()
        mine.journal.memory(mine.memory_bytes)
        return {
            "parameters": mine.replica.parameters.size,
            "bucket_bytes": mine.bucket_bytes,
            "chosen": chosen,
            "dataset_source": mine.dataset.source,
            "dataset_digest": mine.dataset.digest,
        }

    if settings["network"]:
        return partial(simulation.simulate, settings, train, journal, straggler, failure)

    def train_here(comm: Comm) -> Coroutine[Any, Any, dict[str, Scalar]]:
        if straggler is not None and comm.rank == straggler.rank:
            comm = slowed(comm, Delays(straggler, settings["seed"]))
        return train(comm, session(settings, journal, comm.memory.allocate))

    return train_here


async def _choose(comm: Comm, mine: Session) -> str:
    """Measure which scheme is best for pieces of the gradient, and let the session use those; tell which."""
    gradients = mine.replica.gradients
    sizes = [size for size in LADDER if size < gradients.nbytes]
    choices = await tune(comm, [*sizes, gradients.nbytes], dtype=gradients.dtype)
    mine.aggregate = partial(auto, choices=choices)
    return ", ".join(f"{size} B: {choices.name(size)}" for size in (*sizes, gradients.nbytes))
