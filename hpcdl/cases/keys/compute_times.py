"""Times of work: arithmetic over a rate, or measured; shares of stages and of split layers.

Measured times are those of a run, or of a file of the package, by batch: of one core, the default of replays and
predictions, and of GPUs. Such a file begins with date, processor and state of the machine; a row has the
microseconds of a call at each batch. ``tests/gpu/times_file.py`` writes that of a core from a run of the suite
``layer-times``; those of GPUs are of ``make gpu-check``, part ``layers``.
"""

from __future__ import annotations

import csv
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np

from hpcdl.data.parts.sharding import bounds
from hpcdl.fabric.comm import INPUT, SHARD_UPDATE
from hpcdl.models.layers import REST
from hpcdl.nn.geometry import Shape
from hpcdl.nn.layer import Layer, SizedLayer
from hpcdl.nn.split.division import Division
from hpcdl.nn.volumes import by_layer, volumes
from hpcdl.registry import nearest
from hpcdl.trace.run import Run
from hpcdl.training.parts.sections import EXCHANGES

PLACE: Final = ("dataset", "backend", "dtype", "threads_per_rank")
"""Fields of a case that change how long its work takes, besides model and batch."""

FORWARD: Final = 2
"""Floating-point operations of a multiply-add."""
BACKWARD: Final = 4
"""The gradients of the weights and of the inputs, each as much as the forward."""


TIMES: Final = ("device", "flops", "times")
"""Keys that give the times of work."""


@dataclass(frozen=True)
class Device:
    """Processor that trains."""

    flops: float
    """Sustained in training with ``batch`` images, FLOP/s."""
    source: str
    batch: float = math.inf
    half_batch: float = 0.0
    """Images of a batch that reaches half of the rate of a large one (Hockney's n 1/2)."""
    networks: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """Rates and batches of networks with a rate of their own, by model."""

    def rate(self, model: str, images: int) -> float:
        """Return the rate in training ``model`` on a batch of ``images`` (FLOP/s)."""
        flops, batch = self.networks.get(model, (self.flops, self.batch))
        return flops * (1 + self.half_batch / batch) / (1 + self.half_batch / images)


def _third(peak: float, what: str) -> Device:
    return Device(peak / 3, f"a third, assumed, of NVIDIA's {peak / 1e12:g} TFLOP/s in float32 for {what}")


DEVICES: Final[dict[str, Device]] = {
    "k20": Device(
        0.428e12,
        "Iandola et al. 2016: GoogLeNet (9.47 GFLOP an image) on ImageNet (1.28 M images), 64 epochs in 21 days "
        "on one GPU with batches of 32, NiN 47 epochs in 5.8 days with batches of 256; half_batch is fitted to "
        "GoogLeNet's 10.5 hours on 128 GPUs, which have 8 images each",
        batch=32,
        half_batch=7.5,
        networks={"nin": (0.79e12, 256)},
    ),
    "v100": _third(15.7e12, "V100 SXM2"),
    "a100": _third(19.5e12, "A100"),
    "h100": _third(67e12, "H100 SXM5"),
    "h200": Device(
        31.7e12, "GoogLeNet at batch 128 in TF32, reports/gpu.md; networks measured there have their own times"
    ),
    "h200-bf16": Device(37.2e12, "GoogLeNet at batch 128 in bfloat16; see h200"),
}
"""By name, for "what if": say ``flops`` or ``times`` where you know better."""


@dataclass(frozen=True)
class ComputeTimes:
    """Seconds that work takes, by label."""

    per_image: Mapping[str, float]
    per_call: Mapping[str, float] = field(default_factory=dict)
    source: str = ""
    """The measured case that they are from."""
    jitter: float = 0.0
    """Coefficient of variation of a rank's computing per step, as measured."""

    def seconds(self, label: str, images: int) -> float:
        """Return the time of the work called ``label`` on a batch of ``images``. ValueError: an unknown label."""
        labels = {*self.per_image, *self.per_call}
        if label not in labels:
            raise ValueError(f"no time is known for work labelled {label!r}{nearest(label, labels)}")
        return self.per_image.get(label, 0.0) * images + self.per_call.get(label, 0.0)

    def of_network(self, layers: Sequence[Layer], shape: Shape) -> ComputeTimes:
        """Return these times with those of updates of the whole network of ``layers`` and of each layer.

        What the update of the whole takes beyond the updates of layers, its layers share by their parameters.
        """
        calls = {"evaluation": 0.0, **self.per_call}
        if self.per_call:
            parameters = dict.fromkeys((layer.name for layer in layers), 0)
            parameters |= {name: sizes.parameters for name, _, sizes in by_layer(layers, shape, 1)}
            stated = {label: seconds for label, seconds in calls.items() if label.startswith("update ")}
            calls["update"] = self._update_seconds
            shared = max(0.0, calls["update"] - sum(stated.values())) / max(1, sum(parameters.values()))
            for name, own in parameters.items():
                calls[f"update {name}"] = stated.get(f"update {name}", 0.0) + shared * own
        return replace(self, per_call=calls)

    def of_stages(self, layers: Sequence[Layer], parts: Sequence[slice]) -> tuple[ComputeTimes, ...]:
        """Return the times of ranks that have only a part of ``layers`` each; see :meth:`of_network`."""
        if len(parts) == 1:
            return (self,)
        calls, stages = self.per_call, list[ComputeTimes]()
        for part in parts:
            update = sum(calls.get(f"update {layer.name}", 0.0) for layer in layers[part])
            others = {layer.name for layer in layers} - {layer.name for layer in layers[part]}
            own = {label: time for label, time in self.per_image.items() if label.partition(" ")[2] not in others}
            stages.append(replace(self, per_image=own, per_call={**calls, "update": update}))
        return tuple(stages)

    def scaled(self, factor: float) -> ComputeTimes:
        """All of them times ``factor``."""
        per_image = {label: factor * seconds for label, seconds in self.per_image.items()}
        per_call = {label: factor * seconds for label, seconds in self.per_call.items()}
        return replace(self, per_image=per_image, per_call=per_call)

    def step_seconds(self, images: int, *, updates: bool = True) -> float:
        """Return the time of one step, with one update or without."""
        return sum(self.per_image.values()) * images + updates * self._update_seconds

    def update_costs(self, parameter_bytes: int, *, by_ranks: bool = False) -> dict[str, float]:
        """Return the time of updating a part of the parameters by its bytes (s), by label; empty if unknown.

        ``parameter_bytes``: those of the whole network. ``by_ranks``: ranks update parts, not servers. If updates
        of the whole take no time, theirs take none.
        """
        seconds = self._update_seconds
        return {SHARD_UPDATE: seconds / parameter_bytes} if seconds or by_ranks else {}

    @property
    def _update_seconds(self) -> float:
        return self.per_call["update"] if "update" in self.per_call else sum(self.per_call.values())


def at_rate(layers: Sequence[Layer], shape: Shape, flops: float | None) -> ComputeTimes:
    """Times of a network that sustains ``flops`` FLOP/s in the work of :func:`flop_of`; None: as its table states.

    Updates take the times that a table states; those of :data:`REST` and of rows without parameters are shared.
    Input, loss, layers without multiply-adds and other updates take no time. ValueError: a layer that cannot take
    the shape it gets, or whose table has no FLOP.
    """
    per_image, updates, given = {INPUT: 0.0, "loss": 0.0}, {"update": 0.0}, shape
    for layer in layers:
        if isinstance(layer, SizedLayer) and layer.update_seconds is not None:
            if layer.parameters and layer.name != REST:
                updates[f"update {layer.name}"] = layer.update_seconds
            updates["update"] += layer.update_seconds
        if flops is None and isinstance(layer, SizedLayer):
            forward, backward = layer.seconds
        else:
            forward, backward = (flop / (flops or 1.0) for flop in flop_of(layer, shape))
        per_image[f"forward {layer.name}"] = forward
        per_image[f"backward {layer.name}"] = backward
        shape = layer.output(shape)
    return ComputeTimes(per_image, updates).of_network(layers, given)


def flop_of(layer: Layer, shape: Shape) -> tuple[int, int]:
    """Return the FLOP of a layer's forward and backward for one image: those of a table, or its multiply-adds."""
    if isinstance(layer, SizedLayer):
        if layer.forward_flop is None or layer.backward_flop is None:
            raise ValueError(f"the table of layers has no FLOP of {layer.name!r}; leave this key out")
        return layer.forward_flop, layer.backward_flop
    multiply_adds = volumes([layer], shape, 1).multiply_adds_per_image
    return FORWARD * multiply_adds, BACKWARD * multiply_adds


def recorded(run: Run, model: str, shape: Shape, images: int | None = None) -> ComputeTimes:
    """Return the medians of a training of ``model`` on images of ``shape`` in a run that recorded events.

    The training is the first one whose rank has ``images`` in its batch, or a number nearest to it. An update
    takes the same time whatever the batch; all else is proportional to it. ValueError: a run without such a case.
    """
    by_batch = dict[float, ComputeTimes]()
    for index in _trainings(run, model):
        if run.described[index].get("image_shape") == shape_text(shape) and (times := _medians(run, index)):
            by_batch.setdefault(_images_per_rank(run, index), times)
    if not by_batch:
        wanted = f"training of {model!r} on images of {shape_text(shape)}"
        raise ValueError(f"{run.path} has no measured {wanted} with events")
    return by_batch[min(by_batch, key=lambda batch: abs(batch - (images or batch)))]


def saved(path: str, model: str, layers: Sequence[Layer], shape: Shape, images: int) -> ComputeTimes:
    """Return the times of the run at ``path``: see :func:`recorded`. Raises ValueError."""
    from hpcdl.trace.recorder import TraceError
    from hpcdl.trace.schema import read  # late: h5py is for those who read a run

    try:
        return recorded(read(path), model, shape, images).of_network(layers, shape)
    except (TraceError, OSError) as error:
        raise ValueError(str(error)) from None


def measured_trainings(run: Run, cases: Iterable[int]) -> Iterator[tuple[str, str, int, ComputeTimes]]:
    """Yield model, shape of an image, images of a rank, and times of those cases that trained with events."""
    for index in cases:
        case = run.described[index]
        if index in _trainings(run, str(case.get("model"))) and (times := _medians(run, index)):
            yield str(case["model"]), str(case.get("image_shape")), round(_images_per_rank(run, index)), times


def shape_text(shape: Shape) -> str:
    """Return the shape of an image as in records: ``28x28x1``."""
    return "x".join(map(str, shape))


class Recorded:
    """Times of recorded cases, for any case and number of ranks; each is read once."""

    def __init__(self, run: Run) -> None:
        self._run, self._medians = run, cache(partial(_medians, run))

    def __call__(self, like: Mapping[str, Any], ranks: int) -> ComputeTimes:
        """Return the times of a case with the model and the :data:`PLACE` of ``like``, its strategy if possible.

        They are those on the most ranks below ``ranks``: in them is what ranks on shared cores cost each other,
        and nothing of the predicted case. ValueError: a run without such a case.
        """
        cases = self._run.described

        def distance(index: int) -> tuple[bool, bool, int]:
            measured, other = int(cases[index].get("ranks") or 1), cases[index].get("training")
            return other != like.get("training"), measured >= ranks, abs(measured - ranks)

        fit = [
            index
            for index in _trainings(self._run, str(like["model"]))
            if not cases[index].get("straggler")
            and all(cases[index].get(name) == like.get(name) for name in PLACE)
        ]
        for index in sorted(fit, key=distance):
            if (times := self._medians(index)) is not None:
                return times
        raise ValueError(f"{self._run.path} has no measured training of {like['model']!r} with events")


def _trainings(run: Run, model: str) -> list[int]:
    return [
        index
        for index, case in enumerate(run.described)
        if case.get("kind") == "train"
        # work on a GPU is only started where its time is noted
        and not str(case.get("backend")).startswith("cupy")
        and case.get("model") == model
        and not case.get("network")
        # a rank of a mesh has parts of the layers only, and one of a pipeline computes on microbatches
        and not case.get("parallelism")
    ]


def _images_per_rank(run: Run, index: int) -> float:
    """Of a step; 0 where there is none."""
    steps = run.rows_of("steps", index)
    return float(steps["images"].median()) if len(steps) else 0.0


def _medians(run: Run, index: int) -> ComputeTimes | None:
    events, images = run.events_of(index), _images_per_rank(run, index)
    if not len(events) or not images:
        return None
    ours = events[events["label"].astype(str).str.match(rf"({INPUT}|loss|update|forward .*|backward .*)")]
    medians = (ours["end"] - ours["begin"]).groupby(ours["label"].astype(str)).median() * 1e-9
    update = {str(label): float(time) for label, time in medians.items() if str(label).startswith("update")}
    rest = {str(label): float(time) / images for label, time in medians.items() if str(label) not in update}
    whole, jitter = _computing(run, index)
    times = ComputeTimes(rest, update, str(run.described[index].get("case")), jitter)
    parts = sum(rest.values()) + sum(update.values()) / images
    # where a few of many layers are slow in each step, the median of their sum exceeds the sum of their medians
    return times.scaled(whole / parts) if whole and parts else times


def _computing(run: Run, index: int) -> tuple[float, float]:
    """Return the median of a rank's computing per step (s per image), and its coefficient of variation.

    The latter is that of a fitted lognormal, median over ranks; both are 0 where computing was not measured.
    """
    steps = run.rows_of("steps", index)
    warm = steps["step"] >= int(run.described[index].get("warmup_steps") or 0)
    rows = steps[warm & (steps["images"] > 0) & (steps["compute_ns"] > 0)]
    logarithms = (rows["compute_ns"] / rows["images"]).transform(np.log)
    if logarithms.empty:
        return 0.0, 0.0
    deviation = float(logarithms.groupby(rows["rank"]).std().median())
    jitter = 0.0 if math.isnan(deviation) else math.sqrt(math.expm1(deviation**2))
    return 1e-9 * math.exp(float(logarithms.median())), jitter


def times_of_ranks(
    whole: ComputeTimes, layers: Sequence[Layer], divisions: Sequence[Division], images: int, exchange: str
) -> tuple[ComputeTimes, ...]:
    """Return the times of each rank of a model group, per image of the group's batch of ``images``.

    ``whole`` are the times of all ``layers``, with updates (:meth:`ComputeTimes.of_network`). The ranks' parts of
    a layer share its time by their multiply-adds, or by their outputs if the layer has none. A data-parallel part
    counts with the rank's own images. With ``exchange`` in passes, split layers work once per pass, on an equal
    part of the images.
    """
    shares = [(high - low) / images for low, high in pairwise(bounds(images, len(divisions)))]
    passes = 1 if EXCHANGES[exchange] is None else len(divisions)
    takes, times, calls, of_ranks = divisions[0].parts[0].takes, whole.per_image, whole.per_call, []
    parameters = {name: sizes.parameters for name, _, sizes in by_layer(layers, takes.shape, 1)}
    for division, factors, share in zip(divisions, _weights(divisions, shares), shares, strict=True):
        first = division.parts[0]
        reads = share if first.takes.by_images else math.prod(division.shapes[0]) / math.prod(first.takes.shape)
        loss = times.get("loss", 0.0) * share / (passes if division.passes_end == len(division.parts) else 1)
        per_image = {INPUT: times.get(INPUT, 0.0) * reads, "loss": loss}
        updates = {}
        parts = zip(division.parts, division.shapes, division.layers, factors, strict=True)
        for number, (part, shape, name, whole_factor) in enumerate(parts):
            factor = whole_factor / (passes if division.first_split <= number < division.passes_end else 1)
            for direction in ("forward", "backward"):
                per_image[f"{direction} {part.name}"] = times.get(f"{direction} {name}", 0.0) * factor
            own = volumes([part.layer], shape, 1).parameters
            updates[f"update {part.name}"] = calls.get(f"update {name}", 0.0) * own / parameters.get(name, 1)
        calls_of_rank = {**calls, **updates, "update": sum(updates.values())}
        of_ranks.append(replace(whole, per_image=per_image, per_call=calls_of_rank))
    return tuple(of_ranks)


def _weights(divisions: Sequence[Division], shares: Sequence[float]) -> list[list[float]]:
    """Return each rank's parts' shares of the time of the layers that they belong to."""
    work: list[list[tuple[str, float, float]]] = []
    multiply_adds, outputs = defaultdict[str, float](float), defaultdict[str, float](float)
    for division, share in zip(divisions, shares, strict=True):
        work.append([])
        for part, shape, name in zip(division.parts, division.shapes, division.layers, strict=True):
            images = share if part.takes.by_images else 1.0
            products = images * volumes([part.layer], shape, 1).multiply_adds_per_image
            elements = images * math.prod(part.output(shape))
            multiply_adds[name] += products
            outputs[name] += elements
            work[-1].append((name, products, elements))
    return [
        [
            products / multiply_adds[name] if multiply_adds[name] else elements / outputs[name]
            for name, products, elements in parts
        ]
        for parts in work
    ]


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


def devices_with_times(model: str) -> list[str]:
    """Return the devices for which the package has times of a network, whatever its settings."""
    return [device for device, file in FILES.items() if any(name.startswith(model) for name, _ in _rows(file))]


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
