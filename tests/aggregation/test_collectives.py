"""Collectives of all schemes: results as in MPI."""

from functools import partial

import numpy as np
import pytest
from contract.aggregations import IN_SEGMENTS, ON_HOSTS, OTHERS, called, called_out_of_place
from contract.generated import RANKS, generated
from contract.operands import as_wanted, awkward_lengths, operands
from hypothesis import strategies as st

from hpcdl.aggregation.parts.collectives import offered
from hpcdl.fabric.virtual.clocks import in_process


def lengths(collective, ranks):
    fitting = ranks if collective == "all_to_all" else 1
    return sorted({length // fitting * fitting for length in (*awkward_lengths(ranks)[:-1], 1009)})


@pytest.mark.parametrize(("collective", "name"), OTHERS)
@generated(3, *({"ranks": ranks, "seed": 1} for ranks in (1, 2, 3, 8)), ranks=RANKS, seed=st.integers(0, 1000))
def test_results_of_several_at_once_are_those_of_mpi(collective, name, ranks, seed):
    given = [operands(ranks, length)[0] for length in lengths(collective, ranks)]
    buffers = [rows.copy() for rows in given]

    async def program(comm):
        first, *others = (called(collective, name, comm, rows[comm.rank]) for rows in buffers)
        tasks = [comm.start(call) for call in others]
        await first
        for task in reversed(tasks):
            await task

    in_process(ranks, seed).run(program)
    for found, rows in zip(buffers, given, strict=True):
        assert as_wanted(collective, found, rows), f"{rows.shape[1]} elements"


@pytest.mark.parametrize("ranks", [1, 2, 5])
@pytest.mark.parametrize(("collective", "name"), ON_HOSTS)
def test_an_out_of_place_operand_does_not_change(collective, name, ranks):
    for length in lengths(collective, ranks):
        rows, _ = operands(ranks, length)
        given, results = rows.copy(), np.full_like(rows, np.nan)
        call = partial(called_out_of_place, collective, name)
        in_process(ranks).run(
            lambda comm, call=call, of=given, to=results: call(comm, of[comm.rank], to[comm.rank])
        )
        assert as_wanted(collective, results, rows), f"{length} elements"
        assert (given == rows).all()


@pytest.mark.parametrize(("collective", "name"), IN_SEGMENTS)
@generated(
    12,
    {"ranks": 1, "segment_bytes": 8},
    {"ranks": 5, "segment_bytes": 8},
    {"ranks": 6, "segment_bytes": 5000},
    {"ranks": 8, "segment_bytes": 408},
    ranks=st.integers(1, 9),
    segment_bytes=st.integers(2, 400).map(lambda elements: 4 * elements),
)
def test_segments_of_any_length(collective, name, ranks, segment_bytes):
    for length in (0, 1, 307):
        rows, _ = operands(ranks, length)
        buffers = rows.copy()
        call = partial(called, collective, name, segment_bytes=segment_bytes)
        in_process(ranks, 1).run(lambda comm, call=call, to=buffers: call(comm, to[comm.rank]))
        assert as_wanted(collective, buffers, rows), f"{length} elements"


def test_the_error_for_a_missing_collective_names_the_schemes_that_have_it():
    with pytest.raises(ValueError, match=r"^'ring' has no broadcast; these have: bine, binomial, [^\n]*native, "):
        offered("broadcast", "ring")
    with pytest.raises(ValueError, match=r"^'allgather' has no allgather; these have: "):
        offered("allgather", "allgather")
    with pytest.raises(ValueError, match=r"^unknown 'rign'; did you mean 'ring'\?$"):
        offered("allgather", "rign")
