from collections.abc import Callable

from hpcdl.aggregation.parts.patterns import Place, segmented, send_down, sum_up
from hpcdl.fabric.comm import Array, Comm
from hpcdl.fabric.task import Program


async def double_tree(comm: Comm, buffer: Array, *, segment_bytes: int = 65536) -> None:
    r"""Two binary trees, each of which sums and broadcasts half of the vector in segments. Any p.

    ::

        0____                ____5      An inner node of one tree is a leaf of the other, so all ports are busy.
             4              1           In one tree the leaves' ports are idle half the time (Sanders, Speck &
           /   \          /   \         Traff 2009; NCCL 2.4). Odd nodes are leaves. The second tree is the first
          2     5        0     3        one reversed or, for odd p, shifted by one rank.
         / \                  / \
        1   3                2   4

    Nearly a ring's bandwidth, with a latency that grows with log2(p). For p > 2 no closed form of the time is
    known. Lower bound: 4*k*(p - 1)/p*m, the messages of an average port. Upper bound in simulations of up to 64
    ranks, without proof: (4*ceil(log2(p)) + 6*(k - 1))*(m + g).

    k = max(1, ceil(n/(2*segment_bytes)))
    m = alpha + n/(2*k)*beta
    g = n/(2*k)*gamma
    Messages, all ranks: 4*k*(p - 1)
    Bytes, all ranks: 2*n*(p - 1)
    Time, p == 1: 0
    Time, p == 2: 2*k*m + k*g

    Raises ValueError if ``segment_bytes`` is less than 8.
    """
    await _in_both(comm, buffer, segment_bytes, _sum_in_tree, _second_place)


async def reduce(comm: Comm, buffer: Array, *, segment_bytes: int = 65536) -> None:
    """Sum at rank 0, to which the root of the second tree sends its half; other ranks end with partial sums.

    k = max(1, ceil(n/(2*segment_bytes)))
    m = alpha + n/(2*k)*beta
    g = n/(2*k)*gamma
    Messages, all ranks: 2*k*(p - 1)
    Bytes, all ranks: n*(p - 1)
    Time, p == 1: 0
    Time, p == 2: m + (2*k - 1)*max(m, g) + g
    """
    await _in_both(comm, buffer, segment_bytes, sum_up, _below_rank_0)


async def broadcast(comm: Comm, buffer: Array, *, segment_bytes: int = 65536) -> None:
    """Send rank 0's ``buffer`` to all, one half through the root of the second tree.

    k = max(1, ceil(n/(2*segment_bytes)))
    Messages, all ranks: 2*k*(p - 1)
    Bytes, all ranks: n*(p - 1)
    Time, p == 1: 0
    Time, p == 2: 2*k*alpha + n*beta
    """
    await _in_both(comm, buffer, segment_bytes, send_down, _below_rank_0)


async def _in_both(
    comm: Comm,
    buffer: Array,
    segment_bytes: int,
    half: Callable[..., Program[None]],
    second_place: Callable[[int, int], Place],
) -> None:
    """Run ``half``, a sum, a reduction or a broadcast, in both trees at once; tags tell their messages apart."""
    halves = segmented(buffer, 2, segment_bytes)
    if comm.size == 1:
        return
    second_half = comm.start(half(comm, halves[1], second_place(comm.rank, comm.size), 1), shared_tags=True)
    await half(comm, halves[0], _place(comm.rank, comm.size), 0)
    await second_half


def _place(node: int, size: int) -> Place:
    """Return the place of a node in the first tree: its lowest bit is its height; the root 0 has one child.

    Of two children the one with the deeper subtree is last.
    """
    if node == 0:
        return Place([], [1 << (size - 1).bit_length() - 1])
    height = node & -node
    parent = node - height | 2 * height
    reach = height // 2
    children = [node - reach] if reach else []
    while node + reach >= size:
        reach //= 2  # the child would be beyond p: take its lower subtree
    return Place([parent if parent < size else node - height], [node + reach, *children] if reach else children)


def _second_place(rank: int, size: int) -> Place:
    """Return the place of a rank in the second tree, with ranks instead of nodes."""
    if size % 2:
        return _place((rank - 1) % size, size).renamed(lambda node: (node + 1) % size)
    return _place(size - 1 - rank, size).renamed(lambda node: size - 1 - node)


def _below_rank_0(rank: int, size: int) -> Place:
    """Return the place of a rank in the second tree with its root as a child of rank 0."""
    second, root = _second_place(rank, size), 1 if size % 2 else size - 1
    children = [child for child in second.children if child]
    if rank == 0:
        return Place([], [root, *children])
    return Place([0] if rank == root else second.parents, children)


async def _sum_in_tree(comm: Comm, segments: list[Array], place: Place, tag: int) -> None:
    await sum_up(comm, segments, place, tag)
    await send_down(comm, segments, place, tag)
