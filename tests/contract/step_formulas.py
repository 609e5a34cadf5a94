"""Time of a training step on a mesh by closed forms, without simulation."""

from __future__ import annotations

from itertools import accumulate, pairwise, permutations
from math import inf
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from hpcdl.aggregation.parts.cost import time
from hpcdl.data.parts.sharding import bounds
from hpcdl.nn.split.layout import intersection, volume
from hpcdl.nn.volumes import volumes
from hpcdl.training.parts.passes import EXCHANGES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hpcdl.cases.simulation.step_simulation import Training
    from hpcdl.cases.spec.compute_times import ComputeTimes
    from hpcdl.fabric.network import Link, Network
    from hpcdl.nn.split.division import Division
    from hpcdl.nn.split.layout import Layout, Range

Ports = npt.NDArray[np.float64]


def closed_form_seconds(
    training: Training, ranks: int, images: int, network: Network, times: ComputeTimes, bucket: int | None
) -> float:
    """Return the time of a step by closed forms (s), with ``images`` for each copy of the network.

    Computing, activations, and the sum of gradients over P_c groups, as in Gholami et al. 2018, section 2.
    Gradients of activations are half of theirs, because each rank needs its own part only. The sum of a bucket
    of at least ``bucket`` bytes begins when its backward is complete, and overlaps with the backward of earlier
    layers; None: one bucket. Pipelines: :func:`_pipeline`.
    """
    if len(training.parts) > 1:
        return _pipeline(training, ranks, images, network, times)
    divisions = training.divisions(ranks)
    if not divisions:
        sizes = _parameters(training, slice(None))
        seconds = _seconds(training, slice(None), times, images)
        work = [(one, size, ranks, 0.0) for one, size in zip(seconds, sizes, strict=True)]
        done = _overlapped(work, training, ranks, network, bucket)
        return done + _rest(times, images)
    return _divided(training, divisions, ranks, images, network, times, bucket)


def _divided(
    training: Training,
    divisions: Sequence[Division],
    ranks: int,
    images: int,
    network: Network,
    times: ComputeTimes,
    bucket: int | None,
) -> float:
    own = training.rank_times(times, ranks, images)
    slowest = max(range(len(own)), key=lambda rank: own[rank].step_seconds(images))
    division, work = divisions[slowest], own[slowest]
    shares = [*pairwise(bounds(images, len(divisions)))]
    link = _link(network, len(divisions))
    size = np.dtype(training.dtype).itemsize
    boundaries = division.boundaries
    forward, layers = 0.0, []

    def moved(boundary: int, images_of: Sequence[Range], *, back: bool) -> float:
        given, taken = boundaries[boundary][::-1] if back else boundaries[boundary]
        return moved_seconds(given, taken, images_of, link, network.gamma, size)

    among = EXCHANGES[training.mesh.exchange] if training.mesh else None
    split = len(division.parts) if among is None else division.first_split
    for number, (part, shape) in enumerate(zip(division.parts, division.shapes, strict=True)):
        sums = ranks // len(divisions) if part.cuts else ranks
        count = volumes([part.layer], shape, 1).parameters
        backward, back = 0.0, 0.0
        if number < split:
            forward += work.seconds(f"forward {part.name}", images)
            backward = work.seconds(f"backward {part.name}", images)
            if number:
                forward += moved(number, shares, back=False)
                back = moved(number, shares, back=True)
        layers.append(((0.0, backward), count, sums, back))
    if among is None:
        forward += moved(len(division.parts), shares, back=False) + moved(len(division.parts), shares, back=True)
    else:
        ours = [[among(shares, rank, number) for rank in range(len(shares))] for number in range(len(shares))]
        passes = [[*pairwise(accumulate((high - low for low, high in one), initial=0))] for one in ours]
        given, taken = boundaries[split]
        arriving = [port_seconds(given, taken, one, link, size) for one in passes]
        returning = [port_seconds(taken, given, one, link, size) for one in passes]
        inner = [
            sum(
                moved(number, one, back=back)
                for number in range(split + 1, len(boundaries))
                for back in (False, True)
            )
            for one in passes
        ]
        names = [part.name for part in division.parts[split:]]
        computing = sum(
            work.seconds(f"{direction} {name}", images) for name in names for direction in ("forward", "backward")
        )
        forward += _passes(computing + work.seconds("loss", images), arriving, inner, returning)
        layers[split] = (*layers[split][:3], float(returning[-1].max()))
    rest = _rest(work, images) - (0.0 if among is None else images * work.per_image.get("loss", 0.0))
    return forward + _overlapped(layers, training, ranks, network, bucket) + rest


def _passes(
    computing: float, arriving: Sequence[Ports], inner: Sequence[float], returning: Sequence[Ports]
) -> float:
    """Return the time of split layers in passes, up to the return of the last one's gradients.

    While a pass computes, the images of the next one arrive and the gradients of the last one return
    (:mod:`hpcdl.training.parts.passes`). ``inner``: activations between the split layers of each pass.
    """
    total = float(arriving[0].max())
    for number, within in enumerate(inner):
        busy = np.zeros_like(arriving[0])
        busy += arriving[number + 1] if number + 1 < len(inner) else 0.0
        busy += returning[number - 1] if number else 0.0
        total += within + max(computing, float(busy.max()))
    return total


def port_seconds(given: Layout, taken: Layout, shares: Sequence[Range], link: Link, itemsize: int) -> Ports:
    """Return how long activations keep each rank's port busy (s), (ranks, 2): sending, receiving."""
    have, want = given.boxes(shares), taken.boxes(shares)
    found = np.zeros((len(shares), 2))
    for source, dest in permutations(range(len(shares)) if given != taken else (), 2):
        if count := volume(intersection(have[source], want[dest])):
            found[[source, dest], [0, 1]] += link.alpha + itemsize * count * link.beta
    return found


def moved_seconds(
    given: Layout, taken: Layout, shares: Sequence[Range], link: Link, gamma: float, itemsize: int
) -> float:
    """Return the time in which a model group brings activations from one layout to another (s).

    A port sends its messages in turn, and the busiest port counts. gamma: parts are packed and put in place, and
    summands of the whole are added.
    """
    if given == taken:
        return 0.0
    have, want = given.boxes(shares), taken.boxes(shares)
    leaving = np.zeros(len(shares))
    for source, dest in permutations(range(len(shares)), 2):
        leaving[source] += volume(intersection(have[source], want[dest]))
    packed = min(float(leaving.max()), max(map(volume, have)))
    placed = max(map(volume, have if given.replicated else want))
    return float(port_seconds(given, taken, shares, link, itemsize).max()) + gamma * itemsize * (packed + placed)


def _pipeline(training: Training, ranks: int, images: int, network: Network, times: ComputeTimes) -> float:
    """Return the time of a step of a pipeline, whose stages have 1, 2, ... microbatches in flight from its end.

    With S equal stages, M microbatches and free messages, (M + S - 1)/M of a stage's computing (Huang et al.
    2019). The first microbatch passes all stages in both directions. The others follow at the pace of the busiest
    stage or port. A stage with w microbatches in flight begins the next w when a round trip to the last stage is
    over.
    """
    stages, link = training.parts, _link(network, len(training.parts))
    microbatch = -(-images // training.microbatches)
    size, shape, sums = np.dtype(training.dtype).itemsize, training.shape, 0.0
    work, sent = [], [0.0]
    for number, part in enumerate(stages):
        for layer in training.layers[part]:
            shape = layer.output(shape)
        work.append(sum(sum(one) for one in _seconds(training, part, times, microbatch)))
        last = number == len(stages) - 1
        sent.append(0.0 if last else link.alpha + size * microbatch * int(np.prod(shape)) * link.beta)
        gradient = sum(_parameters(training, part))
        sums = max(sums, _sum_seconds(training, ranks // len(stages), gradient, network, len(stages)))
    ports = [before + after for before, after in pairwise(sent)]
    pace = max(*work, *ports)
    fill = sum(work) + 2 * sum(sent)
    longest = 0.0
    for number in range(len(stages)):
        trips, rest = divmod(training.microbatches - 1, min(training.microbatches, len(stages) - number))
        trip = sum(work[number:]) + 2 * sum(sent[number + 1 :])
        longest = max(longest, trips * trip + rest * pace)
    return fill + longest + sums + _rest(times, images)


def _overlapped(
    layers: Sequence[tuple[tuple[float, float], int, int, float]],
    training: Training,
    ranks: int,
    network: Network,
    bucket: int | None,
) -> float:
    """Return the time of forward and backward, with sums of gradients that overlap with backward.

    ``layers``: seconds of forward and backward, parameters, ranks of the sum, seconds of activations in backward.
    Gradients wait until a ``bucket`` is full, or until other ranks sum. Activations wait for the message of a sum
    that is under way.
    """
    now = sum(forward for (forward, _), _, _, _ in layers)
    smallest = inf if not bucket else bucket / np.dtype(training.dtype).itemsize
    free = under_way = 0.0
    waiting, together = 0, 1

    def begin_sum() -> None:
        nonlocal free, under_way, waiting
        pieces = max(1, int(waiting // smallest)) if waiting else 0
        stride = ranks // together
        took = pieces * _sum_seconds(training, together, -(-waiting // pieces), network, stride) if pieces else 0.0
        if took:
            free = max(free, now) + took
            under_way = took / pieces / (2 * (together - 1))
        waiting = 0

    for (_, backward), count, among, back in reversed(layers):
        if count and among != together:
            begin_sum()
            together = among
        now += backward
        waiting += count
        if waiting >= smallest:
            begin_sum()
        if back:
            busy = free > now
            now += back + (min(free - now, under_way) if busy else 0.0)  # a port sends one message at a time
            free += back if busy else 0.0
    begin_sum()
    return max(now, free)


def _sum_seconds(training: Training, ranks: int, count: int, network: Network, stride: int = 1) -> float:
    """Return the time in which ``ranks`` ranks, each the ``stride``-th, sum ``count`` elements."""
    if ranks < 2 or not count:
        return 0.0
    link, scheme = _link(network, (ranks - 1) * stride + 1), training.aggregate
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
