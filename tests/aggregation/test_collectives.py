"""Every collective of every scheme does what MPI says it does, at the cost that its docstring states."""

from math import ceil

import numpy as np
import pytest
from contract.aggregations import OF_A_LIBRARY, ON_HOSTS, OTHERS, called, called_apart
from contract.operands import as_wanted, awkward_lengths, operands

from hpcdl import registry
from hpcdl.aggregation.collectives import COLLECTIVES, offered, operand, schemes
from hpcdl.analysis import cost
from hpcdl.fabric.inprocess import in_process
from hpcdl.fabric.network import NETWORKS, Link, Network
from hpcdl.fabric.phantom import phantom
from hpcdl.fabric.simulated import simulated

RANKS = [*range(1, 10), 16]
COSTED = [(collective, name) for collective, name in OTHERS if name not in OF_A_LIBRARY]
SEGMENTED = {"chain", "double_tree"}
OF = {"busiest rank": max, "all ranks": sum}
SLOW_ADDER = Network("slow adder", Link(alpha=0.0, beta=1e-9), source="none", gamma=1e-7)
MODELS = [NETWORKS["ethernet-1g"], NETWORKS["nvlink-4"], SLOW_ADDER]


def lengths(collective, ranks):
    fitting = ranks if collective == "all_to_all" else 1
    return sorted({length // fitting * fitting for length in (*awkward_lengths(ranks)[:-1], 1009)})


def counted(collective, name, ranks, length, **settings):
    world = in_process(ranks)
    rows = np.zeros((ranks, length), np.float32)
    world.run(lambda comm: called(collective, name, comm, rows[comm.rank], **settings))
    return {"Messages": world.messages, "Bytes": world.bytes}


def volumes(collective, name):
    """(what, of which ranks, formula); bytes of powers of two are checked apart."""
    lines = cost.costs(offered(collective, name)).items()
    return [(*line.partition(", ")[::2], formula) for line, formula in lines if not line.startswith("Time")]


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize(("collective", "name"), OTHERS)
def test_does_what_mpi_says(collective, name, ranks):
    for length in lengths(collective, ranks):
        rows, _ = operands(ranks, length)
        for seed in range(5):
            buffers = rows.copy()
            in_process(ranks, seed).run(
                lambda comm, buffers=buffers: called(collective, name, comm, buffers[comm.rank])
            )
            assert as_wanted(collective, buffers, rows), f"{length} elements, seed {seed}"


def test_a_librarys_schemes_are_named_so():
    names = [name for name in registry.names("aggregation") if name.startswith(("native", "nccl"))]
    assert names == sorted(OF_A_LIBRARY)


@pytest.mark.parametrize("ranks", [1, 2, 5])
@pytest.mark.parametrize(("collective", "name"), ON_HOSTS)
def test_a_librarys_operand_apart_stays_as_it_is(collective, name, ranks):
    for length in lengths(collective, ranks):
        rows, _ = operands(ranks, length)
        given, results = rows.copy(), np.full_like(rows, np.nan)
        in_process(ranks).run(
            lambda comm, given=given, results=results: called_apart(
                collective, name, comm, given[comm.rank], results[comm.rank]
            )
        )
        assert as_wanted(collective, results, rows), f"{length} elements"
        assert (given == rows).all()


@pytest.mark.parametrize("ranks", [2, 3, 8])
@pytest.mark.parametrize(("collective", "name"), OTHERS)
def test_several_at_once(collective, name, ranks):
    rows, _ = operands(ranks, 40 * ranks)
    vectors = [rows[:, : 8 * ranks], rows[:, 8 * ranks : 24 * ranks], rows[:, 24 * ranks :]]

    async def program(comm):
        tasks = [comm.start(called(collective, name, comm, vector[comm.rank])) for vector in buffers[1:]]
        await called(collective, name, comm, buffers[0][comm.rank])
        for task in reversed(tasks):
            await task

    for seed in range(10):
        buffers = [vector.copy() for vector in vectors]
        in_process(ranks, seed).run(program)
        for found, given in zip(buffers, vectors, strict=True):
            assert as_wanted(collective, found, given), f"seed {seed}"


@pytest.mark.parametrize("ranks", [1, 2, 5, 6, 9])
@pytest.mark.parametrize(("collective", "name"), [(c, n) for c, n in OTHERS if n in SEGMENTED])
def test_segments_of_any_length(collective, name, ranks):
    for segment_bytes in (8, 100, 5000):
        rows, _ = operands(ranks, 307)
        buffers = rows.copy()
        in_process(ranks, 1).run(
            lambda comm, buffers=buffers, most=segment_bytes: called(
                collective, name, comm, buffers[comm.rank], segment_bytes=most
            )
        )
        assert as_wanted(collective, buffers, rows), segment_bytes


@pytest.mark.parametrize(("collective", "name"), COSTED)
def test_the_docstring_states_what_it_costs(collective, name):
    stated = {line.partition(", ")[0] for line in cost.costs(offered(collective, name))}
    assert stated == {"Messages", "Bytes", "Time"}


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize(("collective", "name"), COSTED)
def test_messages_and_bytes(collective, name, ranks):
    """Exact where everything divides; else a rank's bytes are right to one chunk, all ranks' to p of them."""
    for length in (64 * ranks, 1009 // ranks * ranks if collective == "all_to_all" else 1009):
        sent = counted(collective, name, ranks, length)
        chunk = 4 * ceil(length / ranks) if length % ranks else 0
        for what, which, formula in volumes(collective, name):
            if which == "p a power of two":
                if ranks & (ranks - 1):
                    continue
                which = "busiest rank"  # noqa: PLW2901 - that is whose bytes they are
            slack = 0 if what == "Messages" else chunk * (1 if which == "busiest rank" else ranks)
            assert abs(OF[which](sent[what]) - cost.cost(formula, ranks, 4 * length)) <= slack, f"{what}, {which}"


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize(("collective", "name"), COSTED)
def test_simulated_time(collective, name, ranks):
    payload = phantom(64 * ranks * 100)
    for network in MODELS:
        for settings in ({"segment_bytes": 3200}, {"segment_bytes": 1 << 30}) if name in SEGMENTED else ({},):
            world = simulated(ranks, network)
            world.run(lambda comm, given=settings: called(collective, name, comm, payload, **given))
            link, function = network.link, offered(collective, name)
            stated = cost.time(function, ranks, payload.nbytes, link.alpha, link.beta, network.gamma, settings)
            if stated is not None:
                assert world.now == pytest.approx(stated, rel=1e-9), network.name


@pytest.mark.parametrize(("collective", "name"), COSTED)
def test_time_is_stated_for_some_number_of_ranks(collective, name):
    times = [cost.time(offered(collective, name), p, 1e6, 1e-6, 1e-9, 1e-10) for p in RANKS[1:]]
    assert any(time is not None for time in times)


def test_what_a_scheme_lacks_is_said_with_those_that_have_it():
    with pytest.raises(ValueError, match=r"^'ring' has no broadcast; these have: binomial, chain, [^\n]*native, "):
        offered("broadcast", "ring")
    with pytest.raises(ValueError, match=r"^'allgather' has no allgather; these have: "):
        offered("allgather", "allgather")
    with pytest.raises(ValueError, match=r"^unknown 'rign'; did you mean 'ring'\?$"):
        offered("allgather", "rign")


def test_every_collective_has_a_native_and_two_schemes():
    for collective in COLLECTIVES:
        assert "native" in schemes(collective)
        assert len(schemes(collective)) >= 3


@pytest.mark.parametrize("ranks", [2, 3])
def test_an_all_to_all_exchanges_equal_parts(ranks):
    with pytest.raises(ValueError, match=f"^7 elements make no {ranks} equal parts"):
        operand("all_to_all", np.zeros(7), ranks)


def test_a_library_s_own_state_no_cost():
    for collective, name in OTHERS:
        if name in OF_A_LIBRARY:
            assert cost.costs(offered(collective, name)) == {}
