from collections.abc import Sequence
from functools import partial
from itertools import accumulate, pairwise
from typing import Final

import numpy as np

from hpcdl.aggregation.parts import entries as sparse
from hpcdl.aggregation.parts.messages import doubling, gather_vectors, transfer
from hpcdl.aggregation.parts.patterns import doubled, folded, nearest_first
from hpcdl.aggregation.parts.traits import Aggregation
from hpcdl.compression.parts.protocol import Sparse
from hpcdl.fabric.comm import Array, Comm


async def table(comm: Comm, *numbers: int) -> Array:
    """Return the ``numbers`` of all ranks, (p, numbers), int32."""
    mine = np.array(numbers, np.int32)
    rows = await concatenated(comm, mine, [len(mine)] * comm.size)
    return rows.reshape(comm.size, len(mine))


async def concatenated(comm: Comm, mine: Array, lengths: Sequence[int]) -> Array:
    """Return the vectors of all ranks one after the other; ``lengths`` are those of the ranks (Bruck et al. 1997).

    Messages: ceil(log2(p)). Bytes: those of all vectors but one, at most.
    """
    size, rank = comm.size, comm.rank
    turned = [lengths[(rank + distance) % size] for distance in range(size)]
    edges = list(accumulate(turned, initial=0))
    whole = np.empty_like(mine, shape=edges[-1])
    whole[: len(mine)] = mine
    await gather_vectors(comm, whole, edges, doubling(size))
    begin = edges[size - rank]  # where rank 0's vector is
    return np.concatenate((whole[begin:], whole[:begin])) if rank else whole


TRAITS: Final = Aggregation(sparse=True, memory="host", autotuned=False)

BINS_PER_RANK: Final = 8
"""Bins of the histogram of positions: a region is even to about an eighth."""
UNEVEN: Final = 4
"""Times the mean share beyond which shares are balanced, as in the paper."""


async def ok_topk(
    comm: Comm, entries: Sparse, series: sparse.Series, *, threshold_steps: int = 32, region_steps: int = 64
) -> sparse.Reduced:
    """Ok-Topk: sum the entries of a region on its owner, then gather the largest (Li & Hoefler 2022). Any p.

    ::

        rank 0  [ 0 | 1 |   2   | 3 ]     Regions hold about equally many entries. Each rank sends the entries of
        rank 1  [ 0 | 1 |   2   | 3 ]     region r to rank r, which sums them. A threshold for all regions selects
          ...                             the k largest sums. Shares are balanced, then gathered by all ranks.

    k is the largest number of entries that a rank has. The regions are computed every ``region_steps`` sums from
    a histogram of all ranks' positions. The threshold is computed every ``threshold_steps`` sums, and whenever it
    selects a quarter more or fewer than k, exactly, by histograms of the magnitudes' bytes; the paper gathers sums
    to compute it. In between, all ranks exchange three numbers each.

    The paper counts the words that a rank sends, 2 for each entry; as many arrive. They are 2k (p - 1)/p in each
    of three parts, so 6k (p - 1)/p: the regions' sums, the balancing, done if a share is over 4 times the mean,
    and the gathering. The numbers that ranks agree on come on top; they are few for k well above 100 p.

    n: bytes of a rank's entries. The formulas are for sums after the first, with equally many entries of each rank
    in each region, equal shares, and disjoint positions.

    Messages, busiest rank: p - 1 + 2*ceil(log2(p))
    Bytes, busiest rank: 2*n*(p - 1)/p + 12*(p - 1)
    Time: (p - 1 + 2*ceil(log2(p)))*alpha + (2*n*(p - 1)/p + 12*(p - 1))*beta + 5*n*gamma
    """
    state = series.state
    step = state.setdefault("step", np.zeros(1, np.int64))
    if step[0] % region_steps == 0:
        state["bounds"] = await _regions(comm, entries, series.size)
    mine = await _region_sum(comm, entries, state["bounds"].tolist(), series.most)
    renew = step[0] % threshold_steps == 0
    step += 1
    kept, shares = await _select(comm, mine, len(entries.values), state, renew=bool(renew))
    kept, shares = await _balance(comm, kept, shares, series.size)
    total = await _gather(comm, kept, shares, series.size)
    rest = await comm.apply("rest", partial(sparse.absent, entries, total), sparse.nbytes(entries))
    return sparse.Reduced(total, rest)


async def _regions(comm: Comm, entries: Sparse, size: int) -> Array:
    """Return the bounds of the regions, (p + 1,): of equally many entries of all ranks, nearly."""
    bins = BINS_PER_RANK * comm.size
    edges = np.arange(bins + 1) * size // bins
    counts = sparse.histogram(entries, edges)
    await folded(comm, counts, partial(doubled, nearest_first))
    # Without entries there is nothing to balance: regions are equally long.
    if not counts.any():
        counts[:] = 1
    below = np.concatenate(([0.0], np.cumsum(counts, dtype=np.float64)))
    evenly = np.arange(comm.size + 1) * (below[-1] / comm.size)
    bounds: Array = np.interp(evenly, below, edges).astype(np.int64)
    bounds[[0, -1]] = 0, size
    return bounds


async def _region_sum(comm: Comm, entries: Sparse, bounds: list[int], most: int) -> Sparse:
    """Return the sum of all ranks' entries in this rank's region, added in the order of the ranks."""
    size, rank = comm.size, comm.rank
    parts = sparse.cut(entries, bounds)
    theirs = [parts[rank]] * size
    bound = min(bounds[rank + 1] - bounds[rank], most) * sparse.entry_bytes(entries)
    with comm.scratch(bound, sparse.message(parts[rank])) as inbox:
        for distance in range(1, size):
            to, source = (rank + distance) % size, (rank - distance) % size
            status = await comm.exchange(sparse.message(parts[to]), to, inbox, source)
            theirs[source] = sparse.opened(inbox[: status.count], entries, source, bounds[-1])
    return await comm.apply("add", partial(sparse.summed, theirs), sparse.PASSES * sparse.nbytes(*theirs))


async def _select(
    comm: Comm, mine: Sparse, count: int, state: dict[str, Array], *, renew: bool
) -> tuple[Sparse, list[int]]:
    """Return this rank's share of the largest sums, and the lengths of all ranks' shares.

    ``mine``: sum of the rank's region; ``count``: entries of the rank before.
    """
    above, equal = _counts(mine, state)
    numbers = await table(comm, count, above, equal)
    k, reaching, equals = int(numbers[:, 0].max()), int(numbers[:, 1].sum()), int(numbers[:, 2].sum())
    if renew or 4 * reaching > 5 * k or 4 * (reaching + equals) < 3 * k:
        state["threshold"] = await _threshold(comm, mine, k)
        above, equal = _counts(mine, state)
        numbers = await table(comm, count, above, equal)
        reaching = int(numbers[:, 1].sum())
    # sums equal to the threshold fill up to k, from all ranks alike
    below = np.cumsum([0, *numbers[:, 2]], dtype=np.int64)
    fill = min(max(0, k - reaching), int(below[-1]))
    quotas = np.diff(below * fill // max(1, int(below[-1])))
    shares = numbers[:, 1] + quotas
    select = partial(sparse.at_least, mine, int(state["threshold"][0]), int(quotas[comm.rank]))
    return await comm.apply("select", select, sparse.nbytes(mine)), shares.tolist()


def _counts(mine: Sparse, state: dict[str, Array]) -> tuple[int, int]:
    """Return the numbers of sums above the threshold, and of sums equal to it; 0 without a threshold."""
    if "threshold" not in state:
        return 0, 0
    size = sparse.magnitudes(mine)
    return int(np.count_nonzero(size > state["threshold"])), int(np.count_nonzero(size == state["threshold"]))


async def _threshold(comm: Comm, mine: Sparse, k: int) -> Array:
    """Return the k-th largest magnitude of all ranks' sums, (1,): one byte of it after the other."""
    size = sparse.magnitudes(mine)
    threshold = 0
    # Radix selection: sums of histograms tell the byte of the k-th largest; lower bytes follow among equal ones.
    for byte in reversed(range(size.itemsize)):
        digits = size >> size.dtype.type(8 * byte)
        same = digits[digits >> size.dtype.type(8) == threshold] & size.dtype.type(255)
        counts = np.bincount(same, minlength=256).astype(np.int32)
        await folded(comm, counts, partial(doubled, nearest_first))
        from_top = np.cumsum(counts[::-1], dtype=np.int64)
        digit = int(np.searchsorted(from_top, k))
        k -= int(from_top[digit - 1]) if digit else 0
        threshold = threshold << 8 | 255 - digit
    return np.array([threshold], size.dtype)


async def _balance(comm: Comm, kept: Sparse, shares: list[int], size: int) -> tuple[Sparse, list[int]]:
    """Return equal shares of the sums, in their order, if one share is much longer than the mean."""
    ranks, rank = comm.size, comm.rank
    if max(shares) * ranks <= UNEVEN * sum(shares):
        return kept, shares
    begins = list(accumulate(shares, initial=0))
    edges = [begins[-1] * place // ranks for place in range(ranks + 1)]
    places = [min(max(edge - begins[rank], 0), shares[rank]) for edge in edges]
    parts = [sparse.between(kept, begin, end) for begin, end in pairwise(places)]
    arriving = [max(0, min(end, edges[rank + 1]) - max(begin, edges[rank])) for begin, end in pairwise(begins)]
    theirs = [parts[rank]] * ranks
    with comm.scratch(max(arriving) * sparse.entry_bytes(kept), sparse.message(parts[rank])) as inbox:
        for distance in range(1, ranks):
            to, source = (rank + distance) % ranks, (rank - distance) % ranks
            sent, received = sparse.message(parts[to]), inbox[: arriving[source] * sparse.entry_bytes(kept)]
            await transfer(comm, sent if len(sent) else None, to, received if len(received) else None, source)
            theirs[source] = sparse.opened(received, kept, source, size)
    return sparse.joined(theirs), [end - begin for begin, end in pairwise(edges)]


async def _gather(comm: Comm, kept: Sparse, shares: list[int], size: int) -> Sparse:
    """Return all shares, in the order of the ranks: positions rise."""
    lengths = [sparse.entry_bytes(kept) * share for share in shares]
    whole = await concatenated(comm, sparse.message(kept), lengths)
    ends = list(accumulate(lengths, initial=0))
    parts = enumerate(pairwise(ends))
    return sparse.joined([sparse.opened(whole[begin:end], kept, sender, size) for sender, (begin, end) in parts])
