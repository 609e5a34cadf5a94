"""Division of a network's layers into the stages of a pipeline, balanced by their times."""

import math
from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from math import inf

from hpcdl.cases.keys.compute_times import ComputeTimes, at_rate
from hpcdl.nn.geometry import Shape
from hpcdl.nn.layer import Layer


def partition(times: Sequence[float], parts: int, volumes: Sequence[float]) -> tuple[slice, ...]:
    """Return ``parts`` consecutive, non-empty slices of the layers; the longest takes the least time possible.

    ``times`` are those of the layers. ``volumes`` are the sizes of their outputs: of all such partitions the one
    is returned that passes the least from stage to stage. Dynamic programming, O(parts x layers^2); PipeDream's
    partition (Narayanan et al. 2019, section 3.1) without replicated stages. Exact.

    ValueError: more parts than layers, or none.
    """
    layers = len(times)
    if not 1 <= parts <= layers:
        raise ValueError(f"{layers} layers make 1 to {layers} stages, not {parts}")
    until = [*accumulate(times, initial=0.0)]

    def time(begin: int, end: int) -> float:
        return until[end] - until[begin]

    longest, _ = _best(layers, parts, lambda before, begin, end: max(before, time(begin, end)))

    def passed(before: float, begin: int, end: int) -> float:
        if time(begin, end) > longest:
            return inf
        return before + (volumes[begin - 1] if begin else 0.0)

    _, cuts = _best(layers, parts, passed)
    return tuple(slice(begin, end) for begin, end in pairwise(cuts))


def _best(layers: int, parts: int, cost: Callable[[float, int, int], float]) -> tuple[float, list[int]]:
    """Return the least cost of a partition and its cuts, (parts + 1,).

    ``cost(before, begin, end)`` is the cost of a partition of the first ``end`` layers whose last part begins at
    ``begin`` and whose other parts cost ``before``.
    """
    least = [[inf] * (layers + 1) for _ in range(parts + 1)]
    chosen = [[0] * (layers + 1) for _ in range(parts + 1)]
    least[0][0] = 0.0
    for part in range(1, parts + 1):
        for end in range(part, layers + 1):
            for begin in range(part - 1, end):
                total = cost(least[part - 1][begin], begin, end)
                if total < least[part][end]:
                    least[part][end], chosen[part][end] = total, begin
    cuts = [layers]
    for part in range(parts, 0, -1):
        cuts.append(chosen[part][cuts[-1]])
    return least[parts][layers], cuts[::-1]


def balanced(
    layers: Sequence[Layer], shape: Shape, stages: int, times: ComputeTimes | None = None
) -> tuple[slice, ...]:
    """Return the layers of each stage; ``times`` are those of layers, by default in proportion to multiply-adds.

    ValueError: more stages than layers, or a layer without a time.
    """
    if stages == 1:
        return (slice(0, len(layers)),)
    of = times or at_rate(layers, shape, 1.0)
    seconds = [
        of.seconds(f"forward {layer.name}", 1) + of.seconds(f"backward {layer.name}", 1) for layer in layers
    ]
    _, *shapes = accumulate(layers, lambda shape, layer: layer.output(shape), initial=shape)
    return partition(seconds, stages, [*map(math.prod, shapes)])
