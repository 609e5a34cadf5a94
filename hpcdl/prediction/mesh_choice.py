"""Choice of a mesh by closed forms: the step time of every mesh of some ranks, without simulation."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import numpy as np

from hpcdl import registry
from hpcdl.aggregation import direct
from hpcdl.aggregation.parts.cost import time
from hpcdl.cases.parts.stage_balance import balanced
from hpcdl.data.parts.sharding import bounds
from hpcdl.nn.split.layout import intersection, volume
from hpcdl.nn.volumes import volumes
from hpcdl.training.parts.mesh import Mesh

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hpcdl.cases.parts.compute_times import ComputeTimes
    from hpcdl.cases.parts.step_simulation import Training
    from hpcdl.fabric.network import Link, Network
    from hpcdl.nn.split.division import Division
    from hpcdl.nn.split.layout import Layout, Range

MICROBATCHES: Final = 4
"""Microbatches of a candidate pipeline: the default of ``pipeline``."""

WAYS: Final = (("model", "outputs"), ("space", "outputs"), ("hybrid", "outputs"), ("hybrid", "inputs"))
"""Splits of a candidate mesh: of layers of images, and of fully connected layers."""


def candidates(ranks: int) -> list[Mesh]:
    """Return the meshes of ``ranks`` ranks: data parallelism alone, and each split on each grid; pipelines."""
    sizes = [size for size in range(2, ranks + 1) if ranks % size == 0]
    split = [
        Mesh(data=ranks // size, model=size, split=way, linear=linear) for size in sizes for way, linear in WAYS
    ]
    return [Mesh(model=1), *split, *(Mesh(pipeline=size) for size in sizes)]


def label(mesh: Mesh | None, ranks: int) -> str:
    """Return the name of a mesh on ``ranks`` ranks, equal for equal meshes: ``hybrid outputs 2x4``, data first."""
    groups, size = (ranks, 1) if mesh is None else mesh.groups(ranks)
    if mesh is not None and mesh.pipeline > 1:
        return f"pipeline {groups}x{mesh.pipeline}"
    if mesh is None or size == 1:
        return "data"
    exchange = "" if mesh.exchange == "all" else f" {mesh.exchange}"
    return f"{mesh.split} {mesh.linear}{exchange} {groups}x{size}"


def with_mesh(training: Training, mesh: Mesh, times: ComputeTimes) -> Training:
    """Return the training with another mesh; a pipeline's stages are balanced by ``times``."""
    if mesh.pipeline == 1:
        return replace(training, mesh=mesh, parts=(slice(None),))
    parts = balanced(training.layers, training.shape, mesh.pipeline, times)
    strategy = partial(registry.find("training", "pipeline"), microbatches=MICROBATCHES)
    return replace(training, mesh=mesh, parts=parts, strategy=strategy)


def closed_form_seconds(
    training: Training, ranks: int, images: int, network: Network, times: ComputeTimes
) -> float:
    """Return the time of a step by closed forms (s), with ``images`` for each copy of the network.

    Gholami et al. 2018, section 2: computing, activations, and the sum of gradients over P_c groups. Here the sum
    of a layer's gradient begins when its backward is complete, and overlaps with the backward of earlier layers. A
    pipeline passes one microbatch through all stages, and the others follow at the pace of its slowest stage: with
    S equal stages and M microbatches (M + S - 1)/M of their computing (Huang et al. 2019).
    """
    if len(training.parts) > 1:
        return _pipeline(training, ranks, images, network, times)
    divisions = training.divisions(ranks)
    if not divisions:
        sizes = _parameters(training, slice(None))
        seconds = _seconds(training, slice(None), times, images)
        work = [(one, size, ranks, 0.0) for one, size in zip(seconds, sizes, strict=True)]
        done = _overlapped(work, training, network)
        return done + _rest(times, images)
    return _divided(training, divisions, ranks, images, network, times)


def _divided(
    training: Training,
    divisions: Sequence[Division],
    ranks: int,
    images: int,
    network: Network,
    times: ComputeTimes,
) -> float:
    own = training.rank_times(times, ranks, images)
    slowest = max(range(len(own)), key=lambda rank: own[rank].step_seconds(images))
    division, work = divisions[slowest], own[slowest]
    ends = bounds(images, len(divisions))
    shares = [*pairwise(ends)]
    link = _link(network, len(divisions))
    size = np.dtype(training.dtype).itemsize
    forward, layers = 0.0, []
    boundaries = division.boundaries
    for number, (part, shape) in enumerate(zip(division.parts, division.shapes, strict=True)):
        given, taken = boundaries[number]
        forward += work.seconds(f"forward {part.name}", images)
        if number:
            forward += moved_seconds(given, taken, shares, link, network.gamma, size)
        back = moved_seconds(taken, given, shares, link, network.gamma, size) if number else 0.0
        among = ranks // len(divisions) if part.cuts else ranks
        count = volumes([part.layer], shape, 1).parameters
        layers.append(((0.0, work.seconds(f"backward {part.name}", images)), count, among, back))
    given, taken = boundaries[-1]
    forward += moved_seconds(given, taken, shares, link, network.gamma, size)
    forward += moved_seconds(taken, given, shares, link, network.gamma, size)
    return forward + _overlapped(layers, training, network) + _rest(work, images)


def moved_seconds(
    given: Layout, taken: Layout, shares: Sequence[Range], link: Link, gamma: float, itemsize: int
) -> float:
    """Return the time in which a model group brings activations from one layout to another (s).

    Copies of the whole take an allgather, summands a reduce-scatter; otherwise a port sends parts in turn.
    """
    if given == taken:
        return 0.0
    have, want, ranks = given.boxes(shares), taken.boxes(shares), len(shares)
    whole = itemsize * max(*map(volume, have), *map(volume, want))
    if given.replicated or taken.replicated:
        move = direct.reduce_scatter if given.replicated else direct.allgather
        return (time(move, ranks, whole, link.alpha, link.beta, gamma) or 0.0) + gamma * whole
    busiest = 0.0
    for rank in range(ranks):
        for out in (True, False):
            boxes = [
                intersection(have[rank], want[peer]) if out else intersection(have[peer], want[rank])
                for peer in range(ranks)
                if peer != rank
            ]
            sizes = [itemsize * count for count in map(volume, boxes) if count > 0]
            busiest = max(busiest, sum(link.alpha + one * link.beta for one in sizes))
    return busiest + gamma * itemsize * max(map(volume, want))


def _pipeline(training: Training, ranks: int, images: int, network: Network, times: ComputeTimes) -> float:
    stages, link = training.parts, _link(network, len(training.parts))
    microbatch = -(-images // MICROBATCHES)
    size, shape, slowest, sums = np.dtype(training.dtype).itemsize, training.shape, 0.0, 0.0
    fill = 0.0
    for number, part in enumerate(stages):
        for layer in training.layers[part]:
            shape = layer.output(shape)
        work = sum(sum(one) for one in _seconds(training, part, times, microbatch))
        sent = 0.0
        if number < len(stages) - 1:
            elements = microbatch * int(np.prod(shape))
            sent = link.alpha + size * elements * link.beta
        slowest, fill = max(slowest, work, sent), fill + work + 2 * sent
        gradient = sum(_parameters(training, part))
        sums = max(sums, _sum_seconds(training, ranks // len(stages), gradient, network))
    return (MICROBATCHES - 1) * slowest + fill + sums + _rest(times, images)


def _overlapped(
    layers: Sequence[tuple[tuple[float, float], int, int, float]], training: Training, network: Network
) -> float:
    """Return the time of forward and backward, with sums of gradients that overlap with backward.

    ``layers``: seconds of forward and backward, parameters, ranks of the sum, seconds of activations in backward.
    Activations wait for the message of a sum that is under way.
    """
    now = sum(forward for (forward, _), _, _, _ in layers)
    free = under_way = 0.0
    for (_, backward), count, among, back in reversed(layers):
        now += backward
        if count and among > 1:
            free = max(free, now) + _sum_seconds(training, among, count, network)
            under_way = _sum_seconds(training, among, count, network) / (2 * (among - 1))
        if back:
            busy = free > now
            now += back + (min(free - now, under_way) if busy else 0.0)  # a port sends one message at a time
            free += back if busy else 0.0
    return max(now, free)


def _sum_seconds(training: Training, ranks: int, count: int, network: Network) -> float:
    if ranks < 2 or not count:
        return 0.0
    link, scheme = _link(network, ranks), training.aggregate
    size = count * np.dtype(training.dtype).itemsize
    found = time(scheme.func, ranks, size, link.alpha, link.beta, network.gamma, scheme.keywords)
    if found is None:  # no closed form: that of the best schemes for long vectors
        found = 2 * (ranks - 1) * (link.alpha + size / ranks * link.beta)
    return found


def _seconds(training: Training, part: slice, times: ComputeTimes, images: int) -> list[tuple[float, float]]:
    return [
        (times.seconds(f"forward {layer.name}", images), times.seconds(f"backward {layer.name}", images))
        for layer in training.layers[part]
    ]


def _parameters(training: Training, part: slice) -> list[int]:
    shape, found = training.shape, []
    for layer in training.layers:
        found.append(volumes([layer], shape, 1).parameters)
        shape = layer.output(shape)
    return found[part]


def _rest(times: ComputeTimes, images: int) -> float:
    known = times.per_image
    return images * (known.get("input", 0.0) + known.get("loss", 0.0)) + times.per_call.get("update", 0.0)


def _link(network: Network, ranks: int) -> Link:
    return network.link if network.host(ranks - 1) != network.host(0) else network.inside
