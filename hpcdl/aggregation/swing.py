from functools import partial
from math import prod
from typing import Final

from hpcdl.aggregation.parts.patterns import allreduce, swings
from hpcdl.aggregation.parts.traits import Aggregation
from hpcdl.fabric.comm import Array, Comm
from hpcdl.fabric.task import join
from hpcdl.fabric.vectors import partition

TRAITS: Final = Aggregation(autotuned=False)  # on one switch as fast as `halving_doubling` or `butterfly`


async def swing(
    comm: Comm, buffer: Array, *, optimal: str = "bandwidth", sides: list[int] | None = None, ports: int = 1
) -> None:
    """Swing: a butterfly with distances of 1, 1, 3, 5, 11, ... in alternate directions (De Sensi et al. 2024).

    ::

        rank      0   1   2   3   4   5   6   7     The distances grow like two thirds of the powers of two: fewer
        step 0    1   0   3   2   5   4   7   6     links of a torus are crossed. Even ranks send to the
        step 1    7   2   1   4   3   6   5   0     distances 1, -1, 3, -5, ..., odd ranks to the opposite ones.
        step 2    3   6   5   0   7   2   1   4

    ``optimal``: "bandwidth" exchanges halves of the vector, then gathers them; "latency" exchanges whole vectors
    in half as many steps. ``sides``: of the torus of the ranks, whose last side is numbered first, powers of two;
    steps take the dimensions in turn. The default is a ring, whose ranks beyond a power of two are folded: see
    parts/patterns.py. ``ports``: parts of the vector that are summed at once, each from another dimension on, the
    second half of them in the opposite direction; the paper has 2*D for D dimensions and as many links of a host.
    The paper's variants for other even sides, and for one odd rank, are left out.

    L = floor(log2(p))
    r = (p & (p - 1) > 0)
    Messages, busiest rank: ports*((L if optimal == "latency" else 2*L) + r)
    Bytes, busiest rank: n*((L if optimal == "latency" else 2 - 2/2**L) + r)
    Time, ports == 1 and optimal == "latency" and p & (p - 1) == 0: L*(alpha + n*beta + n*gamma)
    Time, ports == 1 and optimal == "bandwidth" and p & (p - 1) == 0: 2*L*alpha + n*(p - 1)/p*(2*beta + gamma)

    Raises ValueError for another word, for sides that are not powers of two with the product p, and if ``ports``
    is less than 1.
    """
    lengths = None if sides is None else tuple(sides)
    if lengths is not None and (
        prod(lengths) != comm.size or any(side < 1 or side & side - 1 for side in lengths)
    ):
        raise ValueError(f"sides = {sides} with {comm.size} ranks: must be powers of two with this product")
    if ports < 1:
        raise ValueError(f"ports = {ports}: must be at least 1")
    sums = [
        allreduce(partial(swings, sides=lengths, port=port), optimal, comm, part)
        for port, part in enumerate(partition(buffer, ports))
    ]
    tasks = [comm.start(others) for others in sums[1:]]
    await sums[0]
    await join(tasks)
