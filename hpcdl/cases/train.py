"""``kind = "train"``: train a network on a dataset by a strategy, and see how fast and how well."""

from __future__ import annotations

import math
from functools import cache, partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from hpcdl import registry
from hpcdl.analysis.volumes import FLOAT_BYTES, volumes
from hpcdl.data.dataset import Dataset
from hpcdl.fabric import nccl
from hpcdl.launch.memory import node_memory_bytes, shortage
from hpcdl.nn.backend import backend
from hpcdl.nn.precision import HALF
from hpcdl.nn.replica import Replica
from hpcdl.optim.scaled import LossScaling
from hpcdl.optim.schedules import schedule
from hpcdl.suite import Key, about, label, try_out
from hpcdl.trace.recorder import STEP
from hpcdl.training.session import Session

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping, Sequence

    from hpcdl.fabric.comm import Comm
    from hpcdl.nn.layer import Layer
    from hpcdl.suite import Scalar
    from hpcdl.training.journal import Journal

WARMUP_STEPS: Final = 2
"""Steps at the start whose times are kept but not counted: first touch of memory, first connection of peers."""

OWN: Final = "own"
"""In the place of an aggregation: the strategy moves its messages itself."""

MOST_STEPS: Final = np.iinfo(STEP["step"]).max

KEYS: Final[dict[str, Key]] = {
    "model": Key((str, dict), folder="models"),
    "dataset": Key((str, dict), folder="datasets"),
    "backend": Key((str, dict), {"name": "numpy"}, folder="backends"),
    "dtype": Key((str,), "float32", choices=("float32", "float64", *HALF)),
    "training": Key((str, dict), {"name": "synchronous"}, folder="training"),
    "aggregation": Key((str, dict), None, folder="aggregation"),
    "compression": Key((str,), "none", choices=("none",)),
    "optimizer": Key((str, dict), {"name": "sgd"}, folder="optim"),
    "schedule": Key((str, dict), {"name": "constant"}),
    "learning_rate": Key((int, float), least=0),
    "ranks": Key((int,), least=1),
    "global_batch": Key((int,), None, least=1),
    "batch_per_rank": Key((int,), None, least=1),
    "epochs": Key((int, float), None, least=0),
    "steps": Key((int,), None, least=1),
    "target_accuracy": Key((int, float), None, least=0),
    "stop_at_target": Key((bool,), False),
    "evaluate_every": Key((int, float), 1, least=0),
    "seed": Key((int,), 1, least=0),
    "prefetch": Key((int,), 2, least=0),
    "threads": Key((int,), 1, least=1),
    "trace": Key((str,), "events", choices=("events", "steps", "alternating")),
}


def check(settings: Mapping[str, Any]) -> None:
    """See :class:`hpcdl.suite.Kind`. Opens the dataset and works out every shape."""
    for one, other in (("global_batch", "batch_per_rank"), ("epochs", "steps")):
        if (settings[one] is None) == (settings[other] is None):
            raise ValueError(f"{one}: give exactly one of {one} and {other}")
    for key in ("epochs", "evaluate_every"):
        if settings[key] is not None and settings[key] <= 0:
            raise ValueError(f"{key}: must be more than 0, not {settings[key]}")
    ranks, batch = settings["ranks"], _global_batch(settings)
    if batch % ranks:
        below, above = batch // ranks * ranks, -(-batch // ranks) * ranks
        raise ValueError(
            f"global_batch: {batch} is not divisible by ranks = {ranks}; {below or above} and {above} are"
        )
    target = settings["target_accuracy"]
    if target is not None and target > 1:
        raise ValueError(f"target_accuracy: must be at most 1, not {target}")
    with about("dataset"):
        dataset = _dataset(settings["dataset"])
        if not isinstance(dataset, Dataset):
            raise TypeError(f"{settings['dataset']['name']!r} makes a {type(dataset).__name__}, not a Dataset")
        if not len(dataset.test):
            raise ValueError(f"{dataset.name} has no test images")
    if batch > len(dataset.train):
        raise ValueError(f"global_batch: {batch} images a step, but {dataset.name} has {len(dataset.train)}")
    with about("epochs" if settings["steps"] is None else "steps"):
        if (steps := _steps(settings)) > MOST_STEPS:
            raise ValueError(f"{steps} steps are more than a trace can count")
    with about("backend"):
        chosen = backend(**settings["backend"])
    with about("dtype"):
        chosen.check_precision(settings["dtype"])
    with about("model"):
        shape: tuple[int, ...] = dataset.shape
        for layer in _layers(settings, dataset):
            layer.declare(shape)
            shape = layer.output(shape)
        if shape != (dataset.classes,):
            raise ValueError(f"ends in {shape}, but {dataset.name} has {dataset.classes} classes")
    with about("batch_per_rank" if settings["global_batch"] is None else "global_batch"):
        if (line := shortage(memory_bytes(settings), 1, node_memory_bytes())) is not None:
            raise ValueError(f"{batch // ranks} images a rank: {line}")
    with about("optimizer"):
        optimizer = _made("optim", settings["optimizer"])
        if not hasattr(optimizer, "update"):
            raise TypeError(
                f"{settings['optimizer']['name']!r} makes a {type(optimizer).__name__}, not an optimizer"
            )
    with about("schedule"):
        _schedule(settings)
    with about("training"):
        if (check_strategy := _of_strategy(settings, "check")) is not None:
            check_strategy(settings["ranks"], **_settings(settings["training"]))
    with about("aggregation"):
        if not _aggregates(settings):
            if settings["aggregation"] is not None:
                raise ValueError(f"{settings['training']['name']!r} moves its messages itself; leave this key out")
        elif _aggregation(settings)["name"] == "nccl":
            _check_nccl(settings["backend"]["name"])
        else:
            try_out(_aggregation(settings), ranks)


def memory_bytes(settings: Mapping[str, Any]) -> int:
    """See :class:`hpcdl.suite.Kind`: parameters, gradients, activations; 0 where they are on a device."""
    if settings["backend"]["name"] not in {"numpy", "numba"}:
        return 0
    dataset = _dataset(settings["dataset"])
    share = _global_batch(settings) // settings["ranks"]
    weight = volumes(_layers(settings, dataset), dataset.shape, share)
    size = np.dtype(settings["dtype"]).itemsize
    return int(size * 2 * weight.parameters + weight.activation_bytes * size // FLOAT_BYTES)


def identity(settings: Mapping[str, Any]) -> list[str]:
    """See :class:`hpcdl.suite.Kind`."""
    names = [label(settings[key]) for key in ("model", "dataset", "training")]
    names += [label(_aggregation(settings))] if _aggregates(settings) else []
    batch, each = settings["global_batch"], settings["batch_per_rank"]
    length = f"{settings['epochs']:g}ep" if settings["steps"] is None else f"{settings['steps']}st"
    return [*names, f"p{settings['ranks']}", f"b{batch}" if each is None else f"b{each}each", length]


def fields(settings: Mapping[str, Any]) -> dict[str, Scalar]:
    """See :class:`hpcdl.suite.Kind`."""
    named = ("model", "dataset", "backend", "training", "optimizer", "schedule")
    plain = (
        "dtype",
        "compression",
        "learning_rate",
        "epochs",
        "target_accuracy",
        "batch_per_rank",
    )
    return {
        **{key: label(settings[key]) for key in named},
        **{key: settings[key] for key in plain},
        "aggregation": label(_aggregation(settings)) if _aggregates(settings) else OWN,
        "global_batch": _global_batch(settings),
        "scaling": "strong" if settings["batch_per_rank"] is None else "weak",
        "threads_per_rank": settings["threads"],
        "steps": _steps(settings),
        "warmup_steps": min(WARMUP_STEPS, _steps(settings) - 1),
        "configuration": f"trace={settings['trace']}",
    }


def program(
    settings: Mapping[str, Any], journal: Journal
) -> Callable[[Comm], Coroutine[Any, Any, dict[str, Scalar]]]:
    """See :class:`hpcdl.suite.Kind`."""
    dataset = _dataset(settings["dataset"])
    replica = Replica(
        _layers(settings, dataset),
        dataset.shape,
        backend=backend(**settings["backend"]),
        dtype=settings["dtype"],
        seed=settings["seed"],
    )
    optimizer = _made("optim", settings["optimizer"])
    if settings["dtype"] == "float16":  # bfloat16 has float32's exponents
        optimizer = LossScaling(optimizer, replica)
    rate, steps = _schedule(settings), _steps(settings)
    session = Session(
        replica=replica,
        optimizer=optimizer,
        aggregate=_named("aggregation", _aggregation(settings)),
        dataset=dataset,
        journal=journal,
        learning_rate=lambda step: settings["learning_rate"] * rate(step, steps),
        global_batch=_global_batch(settings),
        steps=steps,
        seed=settings["seed"],
        independent=_aggregates(settings) and _aggregation(settings)["name"] == "none",
        target_accuracy=settings["target_accuracy"],
        stop_at_target=settings["stop_at_target"],
        evaluate_every=settings["evaluate_every"],
        prefetch=settings["prefetch"],
    )
    strategy = _named("training", settings["training"])

    async def train(comm: Comm) -> dict[str, Scalar]:
        try:
            await strategy(comm, session)
        finally:
            session.close()
        journal.memory(session.memory_bytes)
        return {
            "parameters": replica.parameters.size,
            "dataset_source": dataset.source,
            "dataset_digest": dataset.digest,
        }

    return train


def _of_strategy(settings: Mapping[str, Any], name: str) -> Any:
    """What the strategy's module offers besides the strategy, None if it does not.

    ``check(ranks, **settings)`` raises ValueError for what cannot run. ``AGGREGATES = False`` says that no
    aggregation is used.
    """
    module = registry.find("training", settings["training"]["name"]).__module__
    return getattr(import_module(module), name, None)


def _aggregates(settings: Mapping[str, Any]) -> bool:
    return _of_strategy(settings, "AGGREGATES") is not False


def _aggregation(settings: Mapping[str, Any]) -> Mapping[str, Any]:
    return settings["aggregation"] or {"name": "ring"}


def _check_nccl(backend_name: str) -> None:
    if backend_name != "cupy":
        raise ValueError(f"nccl sums vectors on GPUs, and backend {backend_name!r} has none there")
    nccl.library()


def _named(folder: str, choice: Mapping[str, Any]) -> Callable[..., Any]:
    """A function with its settings bound."""
    return partial(registry.find(folder, choice["name"]), **_settings(choice))


def _made(folder: str, choice: Mapping[str, Any]) -> Any:
    """An object made with its settings."""
    return registry.find(folder, choice["name"])(**_settings(choice))


def _settings(choice: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in choice.items() if key != "name"}


def _layers(settings: Mapping[str, Any], dataset: Dataset) -> Sequence[Layer]:
    model = registry.find("models", settings["model"]["name"])
    return model(dataset.shape, dataset.classes, **_settings(settings["model"]))  # type: ignore[no-any-return]


def _dataset(choice: Mapping[str, Any]) -> Dataset:
    frozen = tuple((key, tuple(v) if isinstance(v, list) else v) for key, v in sorted(choice.items()))
    return _open(frozen)


@cache
def _open(choice: tuple[tuple[str, Any], ...]) -> Dataset:
    """Each dataset once per process: cases share it."""
    return _made("datasets", dict(choice))  # type: ignore[no-any-return]


def _global_batch(settings: Mapping[str, Any]) -> int:
    return int(settings["global_batch"] or settings["batch_per_rank"] * settings["ranks"])


def _steps(settings: Mapping[str, Any]) -> int:
    if settings["steps"] is not None:
        return int(settings["steps"])
    per_epoch = len(_dataset(settings["dataset"]).train) // _global_batch(settings)
    return max(1, math.ceil(float(settings["epochs"]) * per_epoch - 1e-9))


def _schedule(settings: Mapping[str, Any]) -> Callable[[int, int], float]:
    choice = settings["schedule"]
    table = {"name": choice} if isinstance(choice, str) else dict(choice)
    if "name" not in table:
        raise ValueError(f'must be a name or a table such as {{name = "polynomial"}}, not {choice!r}')
    return schedule(table.pop("name"), **table, global_batch=_global_batch(settings))
