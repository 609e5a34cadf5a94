"""Collectives of all schemes: results as in MPI, costs as in the docstring."""

from math import ceil

import numpy as np
import pytest
from contract.aggregations import (
    NATIVE,
    ON_HOSTS,
    OTHERS,
    SPARSE,
    UNCOSTED,
    called,
    called_out_of_place,
)
from contract.generated import RANKS, generated, on_any_ranks
from contract.operands import as_wanted, awkward_lengths, operands
from hypothesis import strategies as st

from hpcdl import registry
from hpcdl.aggregation.parts import cost
from hpcdl.aggregation.parts.collectives import offered, operand
from hpcdl.fabric.network import NETWORKS, Link, Network
from hpcdl.fabric.vectors import phantom
from hpcdl.fabric.virtual.inprocess import in_process
from hpcdl.fabric.virtual.simulated import simulated

COSTED = [(collective, name) for collective, name in OTHERS if name not in NATIVE]
ALLREDUCES = [name for name in registry.names("aggregation") if name not in {*UNCOSTED, *SPARSE}]
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
    """Return (quantity, ranks, formula) of each stated cost without times."""
    lines = cost.costs(offered(collective, name)).items()
    return [(*line.partition(", ")[::2], formula) for line, formula in lines if not line.startswith("Time")]


@pytest.mark.parametrize(("collective", "name"), OTHERS)
@generated(3, *({"ranks": ranks, "seed": 1} for ranks in (1, 2, 3, 8)), ranks=RANKS, seed=st.integers(0, 1000))
def test_result_is_that_of_mpi(collective, name, ranks, seed):
    for length in lengths(collective, ranks):
        rows, _ = operands(ranks, length)
        buffers = rows.copy()
        in_process(ranks, seed).run(
            lambda comm, buffers=buffers: called(collective, name, comm, buffers[comm.rank])
        )
        assert as_wanted(collective, buffers, rows), f"{length} elements"


@pytest.mark.parametrize("ranks", [1, 2, 5])
@pytest.mark.parametrize(("collective", "name"), ON_HOSTS)
def test_an_out_of_place_operand_does_not_change(collective, name, ranks):
    for length in lengths(collective, ranks):
        rows, _ = operands(ranks, length)
        given, results = rows.copy(), np.full_like(rows, np.nan)
        in_process(ranks).run(
            lambda comm, given=given, results=results: called_out_of_place(
                collective, name, comm, given[comm.rank], results[comm.rank]
            )
        )
        assert as_wanted(collective, results, rows), f"{length} elements"
        assert (given == rows).all()


@pytest.mark.parametrize(("collective", "name"), OTHERS)
@generated(3, {"ranks": 3, "seed": 0}, {"ranks": 8, "seed": 1}, ranks=st.integers(2, 9), seed=st.integers(0, 1000))
def test_several_at_once(collective, name, ranks, seed):
    rows, _ = operands(ranks, 40 * ranks)
    vectors = [rows[:, : 8 * ranks], rows[:, 8 * ranks : 24 * ranks], rows[:, 24 * ranks :]]

    async def program(comm):
        tasks = [comm.start(called(collective, name, comm, vector[comm.rank])) for vector in buffers[1:]]
        await called(collective, name, comm, buffers[0][comm.rank])
        for task in reversed(tasks):
            await task

    buffers = [vector.copy() for vector in vectors]
    in_process(ranks, seed).run(program)
    for found, given in zip(buffers, vectors, strict=True):
        assert as_wanted(collective, found, given)


@pytest.mark.parametrize(("collective", "name"), [(c, n) for c, n in OTHERS if n in SEGMENTED])
@generated(
    12,
    {"ranks": 1, "segment_bytes": 8},
    {"ranks": 5, "segment_bytes": 8},
    {"ranks": 6, "segment_bytes": 5000},
    ranks=st.integers(1, 9),
    segment_bytes=st.integers(2, 400).map(lambda elements: 4 * elements),
)
def test_segments_of_any_length(collective, name, ranks, segment_bytes):
    rows, _ = operands(ranks, 307)
    buffers = rows.copy()
    in_process(ranks, 1).run(
        lambda comm: called(collective, name, comm, buffers[comm.rank], segment_bytes=segment_bytes)
    )
    assert as_wanted(collective, buffers, rows)


def test_the_docstring_states_what_it_costs():
    """Its time is stated for some number of ranks."""
    for collective, name in [*COSTED, *(("allreduce", name) for name in ALLREDUCES)]:
        function = offered(collective, name)
        stated = {line.partition(", ")[0] for line in cost.costs(function)}
        assert stated == {"Messages", "Bytes", "Time"}
        assert any(cost.time(function, p, 1e6, 1e-6, 1e-9, 1e-10) is not None for p in range(2, 10))


@pytest.mark.parametrize(("collective", "name"), COSTED)
@on_any_ranks
def test_messages_and_bytes(collective, name, ranks):
    """Exact if p divides the length; otherwise a rank's bytes differ by at most one chunk, all ranks' by p."""
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


@pytest.mark.parametrize(("collective", "name"), COSTED)
@on_any_ranks
def test_simulated_time(collective, name, ranks):
    payload = phantom(1600 * ranks)
    for network in MODELS:
        for settings in ({"segment_bytes": 3200}, {"segment_bytes": 1 << 30}) if name in SEGMENTED else ({},):
            world = simulated(ranks, network)
            world.run(lambda comm, given=settings: called(collective, name, comm, payload, **given))
            link, function = network.link, offered(collective, name)
            stated = cost.time(function, ranks, payload.nbytes, link.alpha, link.beta, network.gamma, settings)
            if stated is not None:
                assert world.now == pytest.approx(stated, rel=1e-9), network.name


def test_the_error_for_a_missing_collective_names_the_schemes_that_have_it():
    with pytest.raises(ValueError, match=r"^'ring' has no broadcast; these have: binomial, chain, [^\n]*native, "):
        offered("broadcast", "ring")
    with pytest.raises(ValueError, match=r"^'allgather' has no allgather; these have: "):
        offered("allgather", "allgather")
    with pytest.raises(ValueError, match=r"^unknown 'rign'; did you mean 'ring'\?$"):
        offered("allgather", "rign")


def test_an_all_to_all_exchanges_equal_parts():
    for ranks in [2, 3]:
        with pytest.raises(ValueError, match=f"^all_to_all: 7 elements cannot be cut into {ranks} equal parts"):
            operand("all_to_all", np.zeros(7), ranks)
