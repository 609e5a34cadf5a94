"""What a train case's settings name, as objects: dataset, layers, schedule, and a session of them all."""

from __future__ import annotations

import inspect
import math
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from hpcdl import registry
from hpcdl.analysis.compute_times import DEVICES, ComputeTimes, at_rate, recorded
from hpcdl.data.sharding import EQUAL, Shares
from hpcdl.fabric import nccl
from hpcdl.nn.backend import backend
from hpcdl.nn.replica import Replica
from hpcdl.optim.scaled import LossScaling
from hpcdl.optim.schedules import schedule
from hpcdl.strategy import aggregates
from hpcdl.suite import about, label
from hpcdl.training.session import Session

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from hpcdl.data.dataset import Dataset
    from hpcdl.fabric.comm import Array
    from hpcdl.nn.backend import Backend
    from hpcdl.nn.geometry import Shape
    from hpcdl.nn.layer import Layer
    from hpcdl.training.journal import Journal

USUAL: Final = {"aggregation": {"name": "ring"}, "optimizer": {"name": "sgd"}}
"""What keys stand for that are left out, where a check asks whether they are."""


def session(
    settings: Mapping[str, Any], journal: Journal, allocate: Callable[[int, str], Array] | None = None
) -> Session:
    """One rank's side of the training; ``allocate`` is where the host's vectors are to lie, see Replica."""
    kernels = backend(**settings["backend"])
    data = dataset(settings["dataset"])
    replica = Replica(
        layers(settings, data),
        data.shape,
        backend=kernels,
        dtype=settings["dtype"],
        seed=settings["seed"],
        allocate=allocate if kernels.on_host else None,
    )
    update = made("optim", optimizer(settings))
    if settings["dtype"] == "float16":  # bfloat16 has float32's exponents
        update = LossScaling(update, replica)
    return Session(
        replica=replica,
        optimizer=update,
        aggregate=named("aggregation", aggregation(settings)),
        dataset=data,
        journal=journal,
        learning_rate=learning_rate(settings),
        global_batch=global_batch(settings),
        steps=steps(settings),
        seed=settings["seed"],
        shares=shares(settings),
        independent=aggregates(settings) and aggregation(settings)["name"] == "none",
        target_accuracy=settings["target_accuracy"],
        stop_at_target=settings["stop_at_target"],
        evaluate_every=settings["evaluate_every"],
        prefetch=settings["prefetch"],
    )


def aggregation(settings: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the one that was chosen, or the usual one."""
    return settings["aggregation"] or USUAL["aggregation"]


def optimizer(settings: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the one that was chosen, or the usual one."""
    return settings["optimizer"] or USUAL["optimizer"]


def named(folder: str, choice: Mapping[str, Any]) -> partial[Any]:
    """Return a function with its settings bound."""
    return partial(registry.find(folder, choice["name"]), **settings_of(choice))


def made(folder: str, choice: Mapping[str, Any]) -> Any:
    """Return an object made with its settings."""
    return registry.find(folder, choice["name"])(**settings_of(choice))


def settings_of(choice: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is said besides the name."""
    return {key: value for key, value in choice.items() if key != "name"}


def layers(settings: Mapping[str, Any], data: Dataset) -> Sequence[Layer]:
    """Return the model for images of that dataset."""
    model = registry.find("models", settings["model"]["name"])
    return model(data.shape, data.classes, **settings_of(settings["model"]))  # type: ignore[no-any-return]


def architecture(model: Mapping[str, Any], data: Mapping[str, Any] | None) -> tuple[Shape, Sequence[Layer]]:
    """The shape of images and the layers; without a dataset those for which the model is published.

    Raises ValueError for a model that has no images of its own.
    """
    if data is not None:
        found = dataset(data)
        return found.shape, layers({"model": model}, found)
    publish = registry.find("models", model["name"])
    shape, classes = (one.default for one in list(inspect.signature(publish).parameters.values())[:2])
    if shape is inspect.Parameter.empty or classes is inspect.Parameter.empty:
        raise ValueError(f"{model['name']!r} has no image size of its own; name a dataset")
    return shape, publish(shape, classes, **settings_of(model))


def dataset(choice: Mapping[str, Any]) -> Dataset:
    """Return a dataset, each once per process: cases share it."""
    return _open(tuple((key, tuple(v) if isinstance(v, list) else v) for key, v in sorted(choice.items())))


@cache
def _open(choice: tuple[tuple[str, Any], ...]) -> Dataset:
    return made("datasets", dict(choice))  # type: ignore[no-any-return]


def compute_times(settings: Mapping[str, Any], network: Sequence[Layer], shape: Shape) -> ComputeTimes:
    """How long the work of ``network`` takes by the settings times, flops or device, and the time_scale if any.

    Where ``scale_to_batch`` is false, times must be of the case's own batch. Raises ValueError.
    """
    if settings["times"] is not None:
        from hpcdl.trace.record import TraceError
        from hpcdl.trace.schema import read  # late: h5py is for those who read a run

        images = settings["batch_per_rank"] if settings.get("scale_to_batch") is False else None
        try:
            found = recorded(read(Path(settings["times"])), label(settings["model"]), shape, images)
        except (TraceError, OSError) as error:
            raise ValueError(str(error)) from None
    else:
        found = at_rate(network, shape, settings["flops"] or DEVICES[settings["device"]].flops)
    return found.scaled(settings.get("time_scale") or 1)


def times_told(settings: Mapping[str, Any]) -> str:
    """What the record says of where they come from."""
    if settings["flops"] is not None:
        return f"{settings['flops']:g} FLOP/s"
    return f"{settings['times'] or settings['device']}'s times"


def global_batch(settings: Mapping[str, Any]) -> int:
    """Images a step, of all ranks together."""
    return int(settings["global_batch"] or settings["batch_per_rank"] * settings["ranks"])


def shares(settings: Mapping[str, Any]) -> Shares:
    """How a batch is shared out. Raises ValueError, led by the key."""
    choice = settings["shares"]
    if choice is None:
        return EQUAL
    with about("shares"):
        registry.check_settings(Shares, choice)
        return Shares(weights=tuple(registry.in_full(Shares, choice)["weights"]))


def steps(settings: Mapping[str, Any]) -> int:
    """Global batches of the whole training."""
    if settings["steps"] is not None:
        return int(settings["steps"])
    per_epoch = len(dataset(settings["dataset"]).train) // global_batch(settings)
    return max(1, math.ceil(float(settings["epochs"]) * per_epoch - 1e-9))


def learning_rate(settings: Mapping[str, Any]) -> Callable[[int], float]:
    """Return the rate of each step. Raises ValueError, TypeError."""
    factor, length = rates(settings), steps(settings)
    return lambda step: settings["learning_rate"] * factor(step, length)


def rates(settings: Mapping[str, Any]) -> Callable[[int, int], float]:
    """Return the schedule: step and steps to a factor of the learning rate. Raises ValueError, TypeError."""
    choice = settings["schedule"]
    table = {"name": choice} if isinstance(choice, str) else dict(choice)
    if "name" not in table:
        raise ValueError(f'must be a name or a table such as {{name = "polynomial"}}, not {choice!r}')
    return schedule(table.pop("name"), **table, global_batch=global_batch(settings))


def check_place(scheme: str, backend: Backend, settings: Mapping[str, Any]) -> None:
    """Raise ValueError for an aggregation that cannot sum vectors where ``backend`` or the simulation has them.

    Its module says where it can: see :mod:`hpcdl.aggregation`.
    """
    says = partial(registry.says, "aggregation", scheme)
    inside = settings["ranks_per_host"]
    if says("ONE_HOST") and settings["network"] and inside < settings["ranks"]:
        raise ValueError(
            f"{scheme!r} is for ranks of one host, and has {inside} of {settings['ranks']} on one here"
        )
    if says("MEMORY") == "host" and not backend.on_host:
        raise ValueError(f"{scheme!r} sums in the host's memory, and backend {backend.name!r} is not there")
    if says("MEMORY") == "device":
        if backend.on_host:
            raise ValueError(f"{scheme!r} sums vectors on GPUs, and backend {backend.name!r} has none there")
        nccl.library()  # the one that sums there
