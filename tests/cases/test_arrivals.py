"""Late ranks: they are named from their own work, and a collective is timed from the first and the last arrival."""

import pytest
from contract.cases import case_of

from hpcdl.cases.parts.measuring import from_arrivals
from hpcdl.cases.parts.step_simulation import Conditions, late_rank, virtual_step
from hpcdl.fabric.comm import INPUT
from hpcdl.fabric.faults import Delays, Straggler
from hpcdl.fabric.virtual.clocks import in_process

SCHEMES = (
    *("ring", "tree", "binomial", "butterfly", "direct"),
    *("double_tree", "chain", "circulant", "parameter_server"),
)


def step(straggler=None, **keys):
    """Return a simulated step of a replay, and the late rank that it shows, with its lateness."""
    spec = case_of("replay", **{"dataset": "digits", "ranks": 5, "network": "ethernet-1g", **keys}).spec
    found = virtual_step(spec, Conditions(spec.cluster, spec.compute_times, spec.images, straggler=straggler))
    return found, tuple(late_rank(found.delays, found.seconds).values())


def test_a_delay_in_backward_names_its_rank_in_20_of_20_replays():
    replays = [(scheme, "synchronous", rank) for rank, scheme in enumerate((*SCHEMES, *SCHEMES))]
    replays += [("ring", "layerwise", 3), ("tree", "layerwise", 0)]
    assert len(replays) == 20
    for scheme, training, number in replays:
        keys = {"aggregation": scheme, "training": training}
        delayed, late = step(Straggler(rank=number % 5, seconds=0.2, at="backward"), **keys)
        assert delayed.seconds == pytest.approx(step(**keys)[0].seconds + 0.2, rel=0.1), (
            "all ranks show the same step"
        )
        assert late == (number % 5, pytest.approx(0.2))


def test_equal_delays_name_no_rank_and_a_list_the_latest():
    assert not step(Straggler(rank="all", seconds=0.2))[1]
    assert step(Straggler(by_rank=(0.1, 0, 0.3, 0, 0)))[1] == (2, pytest.approx(0.2))
    stages = {"ranks": 4, "network": "gemini", "training": "pipeline", "mesh": {"pipeline": 2}}
    assert not step(**stages)[1], "stages differ by design"
    assert step(Straggler(rank=3, factor=3), **stages)[1][0] == 3


def test_times_count_from_the_first_and_the_last_arrival():
    async def rank(comm):
        return await from_arrivals(comm, [(100 * comm.rank, 1000 + comm.rank)] * 3)

    found = in_process(3).run(rank)[0]
    assert found["from_first_arrival_seconds"] == pytest.approx(1002e-9)
    assert found["from_last_arrival_seconds"] == pytest.approx(802e-9)
    assert found["late_rank"] == 2


def test_a_pause_before_a_layer_is_not_before_another_whose_name_begins_alike():
    delays = Delays(Straggler(rank=0, seconds=1, at="backward fc1"), 0, 0)
    labels = [INPUT, "forward fc1", "backward fc12", "backward fc1", "backward fc1"]
    assert [delays.before(label) for label in labels] == [0, 0, 0, 1, 0]
