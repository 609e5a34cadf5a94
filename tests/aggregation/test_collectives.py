"""Sums and other collectives of all schemes: results as in MPI, at any number of ranks, length and interleaving."""

from functools import partial

import numpy as np
import pytest
from contract.aggregations import (
    IN_SEGMENTS,
    ON_HOSTS,
    OTHERS,
    SCHEMES,
    SEGMENTED,
    called,
    called_out_of_place,
    scheme,
)
from contract.generated import RANKS, generated
from contract.operands import as_wanted, awkward_lengths, operands
from hypothesis import strategies as st

from hpcdl import registry
from hpcdl.aggregation.parts.traits import Aggregation, offered
from hpcdl.commands.parts import contracts
from hpcdl.commands.parts.contracts import check_scheme
from hpcdl.fabric.virtual.clocks import in_process


def aggregate(name, rows, seed, /, **settings):
    """Return the rows after each rank has summed its own; all should equal the sum."""
    in_process(len(rows), seed).run(lambda comm: scheme(name)(comm, rows[comm.rank], **settings))


@pytest.mark.parametrize("name", SCHEMES)
def test_the_contract_of_a_scheme(name, monkeypatch):
    """Exact sums, equal bits, concurrent calls, sub-communicators, and stated costs where a scheme decides them."""
    monkeypatch.setattr(contracts, "SCHEDULES", 2)
    traits = registry.traits("aggregation", name, Aggregation)
    assert [check for check in check_scheme(scheme(name), traits) if check.verdict != "ok"] == []


@pytest.mark.parametrize("name", SCHEMES)
def test_sums_other_types_and_long_vectors_that_no_number_of_ranks_divides(name):
    long = [(ranks, 100_003, "float32") for ranks in (1, 2, 7, 16)]
    for ranks, length, dtype in [*long, (5, 103, "float64"), (5, 103, "int64")]:
        rows, expected = operands(ranks, length, dtype)
        aggregate(name, rows, ranks)
        assert (rows == expected).all(), f"{ranks} ranks, {dtype}"


def test_none_leaves_every_rank_its_own():
    rows, _ = operands(5, 100)
    untouched, world = rows.copy(), in_process(5)
    world.run(lambda comm: scheme("none")(comm, rows[comm.rank]))
    assert (rows == untouched).all()
    assert world.messages == [0] * 5


def settings_of(name, ranks):
    """Yield possible settings of a scheme: parents of any arity, any number of servers or rows, nodes of any size."""
    if name == "tree":
        yield from ({"arity": arity} for arity in (1, 2, 3, 5, 20))
    elif name == "sharded_parameter_server":
        yield from ({"servers": servers} for servers in range(1, min(ranks, 16) + 1))
    elif name == "torus":
        yield from ({"rows": rows} for rows in range(1, ranks + 1) if ranks % rows == 0)
    else:
        yield from ({"ranks_per_node": size} for size in (1, 2, 3, 4, 6, 7, 8, 34))


@pytest.mark.parametrize("name", ["tree", "sharded_parameter_server", "torus", "hierarchical", "leader"])
def test_sums_with_any_settings(name):
    for ranks in (1, 2, 3, 6, 7, 12, 16, 31):
        for settings in settings_of(name, ranks):
            for length in (0, 50):
                rows, expected = operands(ranks, length)
                aggregate(name, rows, 3, **settings)
                assert (rows == expected).all(), f"{ranks} ranks, {settings}, {length} elements"


@pytest.mark.parametrize(
    ("name", "setting", "value"),
    [
        ("tree", "arity", 0),
        *(("sharded_parameter_server", "servers", servers) for servers in (0, 4)),
        *((name, "segment_bytes", value) for name in SEGMENTED for value in (0, 7)),
        *((name, "optimal", "speed") for name in ("bine", "swing")),
        ("swing", "ports", 0),
        *(("torus", "rows", rows) for rows in (0, -1, 2, 6)),
        *((name, "ranks_per_node", 0) for name in ("hierarchical", "leader")),
        *(("hierarchical", "inner", part) for part in ("none", "rng", "torus", "leader", "hierarchical")),
        *((name, "outer", "rng") for name in ("hierarchical", "leader")),
        ("leader", "inner", "rng"),
    ],
)
def test_impossible_settings_are_refused(name, setting, value):
    world = in_process(3)
    with pytest.raises(ValueError, match=f"^{setting} = {value!r}[^\n]*$"):
        world.run(lambda comm: scheme(name)(comm, np.zeros(5), **{setting: value}))
    assert not any(world.messages)


PLAIN = [name for name in SCHEMES if name not in {"hierarchical", "leader", "torus"}]


@pytest.mark.parametrize("scheme", PLAIN)
@pytest.mark.parametrize("name", ["hierarchical", "leader"])
def test_any_scheme_across_nodes_and_inside(name, scheme):
    for where, ranks_per_node in (("outer", 3), ("inner", 4)):
        for ranks in (1, 4, 7, 12):
            rows, expected = operands(ranks, 23)
            aggregate(name, rows, 4, **{where: scheme, "ranks_per_node": ranks_per_node})
            assert (rows == expected).all(), f"{ranks} ranks, {where}"


def test_subcommunicators_are_split_once():
    """Also by concurrent programs, because communicators are scarce."""
    rows, _ = operands(6, 40)

    async def program(comm):
        for _ in range(3):
            tasks = [comm.start(scheme("hierarchical")(comm, piece)) for piece in np.split(rows[comm.rank], 4)]
            await scheme("hierarchical")(comm, rows[comm.rank][:0])
            for task in tasks:
                await task

    world = in_process(6)
    world.run(program)
    assert [len(group.members) for group in world.groups] == [6, 2, 2, 2, 3, 3]


def test_an_allgather_adds_in_the_order_of_the_ranks():
    for ranks in [2, 3, 13]:
        rows = np.random.default_rng(ranks).standard_normal((ranks, 100))
        expected = sum(rows.copy())
        aggregate("allgather", rows, 0)
        assert (rows == expected).all()


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
