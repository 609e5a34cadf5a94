from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from typing import Final

from hpcdl.aggregation import allgather, ring
from hpcdl.aggregation.parts.blocks import bundle, lengths, packed
from hpcdl.aggregation.parts.messages import HEADER, cut, enclose, padded, sender_of
from hpcdl.aggregation.parts.traits import Aggregation, component, nodes, phases
from hpcdl.fabric.comm import Array, Comm
from hpcdl.fabric.task import join
from hpcdl.fabric.vectors import Blocks, Parts, no_bytes, partition

TRAITS: Final = Aggregation(composite=True, parts=("inner", "outer"), autotuned=False, gathers=True)


async def hierarchical(
    comm: Comm, buffer: Array, *, ranks_per_node: int = 2, inner: str = "ring", outer: str = "ring"
) -> None:
    """Reduce-scatter within nodes, allreduce of each chunk across them, allgather within. Any p.

    ::

        node 0   0 - 1 - 2      Nodes are filled rank by rank. ``inner`` reduce-scatters along a row, ``outer``
                 |   |   |      sums each chunk down a column, and ``inner`` allgathers along the row. All ranks
        node 1   3 - 4 - 5      of a node send to other nodes, together no more bytes than one rank would
                                (Horovod's hierarchical allreduce; full lanes, Traff & Hunold 2020).

    The number of chunks is that of the ranks in the smallest node, because each chunk has one owner in every node;
    further ranks own none. An ``inner`` scheme without the two phases sums whole vectors, and a ring allgathers.
    The costs are those of the defaults.

    g = ranks_per_node
    N = ceil(p/g)
    Messages, all ranks: 2*(p//g)*g*(g - 1) + 2*(p%g)*(p%g - 1) + 2*N*(N - 1)*(p%g or g)
    Bytes, all ranks: 2*n*(p - 1)
    Time, p%g == 0 and inner == outer == "ring": 2*(g + N - 2)*alpha + 2*n*(p - 1)/p*beta + n*(p - 1)/p*gamma

    Raises ValueError if ``ranks_per_node`` is less than 1, or a scheme of the two is itself composite.
    """
    inside, allreduce = component("inner", inner), component("outer", outer)
    without_phases = [lambda node, _: inside(node, buffer), ring.allgather]
    reduce_scatter, allgather = phases(inside, "reduce_scatter", "allgather") or without_phases
    node, across = await nodes(comm, ranks_per_node)
    owners = comm.size % ranks_per_node or ranks_per_node
    chunks = Parts(buffer, [*partition(buffer, owners), *[buffer[:0]] * (node.size - owners)])
    await reduce_scatter(node, chunks)
    if node.rank < owners:
        await allreduce(across, chunks[node.rank])
    await allgather(node, chunks)


async def gather(
    comm: Comm, table: Array, length: int, *, ranks_per_node: int = 2, inner: str = "ring", outer: str = "ring"
) -> list[Array]:
    """Gather messages across nodes, then within: see :mod:`hpcdl.aggregation.parts.messages`. Any p.

    In a node with more ranks than the smallest one the further ranks hand their messages to its owners. Each
    owner gathers the messages of the owners in its place of all nodes; then the ranks of a node gather these
    bundles. So each message enters a node once. Schemes that gather no messages are replaced by a ring.
    """
    (across_nodes,) = phases(component("outer", outer), "gather") or [allgather.gather]
    (within,) = phases(component("inner", inner), "gather") or [allgather.gather]
    number, place = divmod(comm.rank, ranks_per_node)
    node, across = await nodes(comm, ranks_per_node)
    owners = comm.size % ranks_per_node or ranks_per_node
    bound, empty = len(table) // comm.size, no_bytes(table)
    handed = -(-ranks_per_node // owners) * bound
    column = padded(-(-comm.size // ranks_per_node) * padded(handed))
    with (
        comm.scratch(across.size * padded(handed), empty) as bundles,
        comm.scratch(node.size * column, empty) as row,
    ):
        vectors: list[Array] = []
        if place >= owners:
            await node.send(table[:length], place % owners)
        else:
            end = HEADER + length
            await comm.get(bundles[HEADER:end], table[:length], comm.rank)
            for other in range(place + owners, node.size, owners):
                end += (await node.recv(bundles[end : end + bound], other, tag=0)).count
            own = await comm.apply("enclose", partial(enclose, bundles, end - HEADER), HEADER)
            vectors = await across_nodes(across, bundles, own)
        end = HEADER
        for bundle in vectors:
            content = bundle[HEADER:]
            await comm.get(row[end : end + len(content)], content, comm.rank)
            end += len(content)
        own = await comm.apply("enclose", partial(enclose, row, end - HEADER), HEADER)
        messages: list[Array] = []
        for owner, bundle in enumerate((await within(node, row, own))[:owners]):
            held = sum(rank % ranks_per_node % owners == owner for rank in range(comm.size))
            messages += cut(bundle[HEADER:], held, number * ranks_per_node + owner)
        messages.sort(key=sender_of)
        end = 0
        into: list[Array] = []
        for message in messages:
            into.append(table[end : end + len(message)])
            await comm.get(into[-1], message, comm.rank)
            end += len(message)
        return into


async def alltoallv(comm: Comm, blocks: Blocks, *, ranks_per_node: int = 2) -> None:
    """Two-level all-to-all: within nodes to the destination's place, then across nodes to the destination. Any p.

    ::

        node 0   0 - 1 - 2      A block from 0 to 4 goes to 1, which has the place of 4, then to 4, in one message
                 |   |   |      with those of 1 and 2 (2D hierarchical all-to-all of Tutel, Hwang et al. 2023;
        node 1   3 - 4 - 5      Traff & Rougier 2014). Within a node lengths of blocks, 8 bytes each, go first.

    In a node with fewer ranks each of them has several places.

    g = ranks_per_node
    N = ceil(p/g)
    Messages, all ranks: 2*(p//g)*g*(g - 1) + 2*(p%g)*(p%g - 1) + p*(N - 1)

    Raises ValueError if ``ranks_per_node`` is less than 1.
    """
    size, rank, (outgoing, incoming) = comm.size, comm.rank, blocks
    place = (await nodes(comm, ranks_per_node))[0].rank
    members = [range(first, min(first + ranks_per_node, size)) for first in range(0, size, ranks_per_node)]
    number = rank // ranks_per_node
    node = members[number]
    passed_by: dict[int, list[int]] = {member: [] for member in node}
    for to in range(size):
        passed_by[node[to % ranks_per_node % len(node)]].append(to)
    destinations = passed_by[rank]
    with ExitStack() as borrowed:
        held: dict[int, Sequence[Array]] = {rank: [outgoing[to] for to in destinations]}
        for distance in range(1, len(node)):
            to, source = (node[(place + way) % len(node)] for way in (distance, -distance))
            handed = [outgoing[final] for final in passed_by[to]]
            counts = await lengths(comm, handed, to, len(destinations), source)
            held[source] = await bundle(comm, handed, to, counts, source, borrowed)
        of_node = dict(zip(destinations, zip(*(held[member] for member in node), strict=True), strict=True))
        # blocks of one node stand one behind the other, in the order of its ranks
        rooms = [incoming.whole[incoming.begins[ranks[0]] : incoming.begins[ranks[-1] + 1]] for ranks in members]
        await packed(comm, of_node[rank], rooms[number])

        async def pass_on(to: int) -> None:
            with comm.scratch(sum(map(len, of_node[to])), outgoing.whole) as out:
                await packed(comm, of_node[to], out)
                if len(out):
                    await comm.send(out, to)

        for distance in range(1, len(members)):
            to_node, from_node = ((number + way) % len(members) for way in (distance, -distance))
            sent = [comm.start(pass_on(to), shared_tags=True) for to in destinations if to in members[to_node]]
            if len(rooms[from_node]):
                relays = members[from_node]
                await comm.recv(rooms[from_node], relays[place % len(relays)], tag=0)
            await join(sent)
