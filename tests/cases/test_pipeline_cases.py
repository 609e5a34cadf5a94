"""Cases of pipelines: simulated, predicted and recorded."""

import math

import pytest

from hpcdl import suite
from hpcdl.analysis.run.record import Record
from hpcdl.cases.keys.stage_balance import balanced
from hpcdl.fabric.comm import Counters
from hpcdl.fabric.network import NETWORKS
from hpcdl.fabric.virtual.inprocess import in_process
from hpcdl.prediction.network_file import PricedNetwork
from hpcdl.prediction.steps import predicted_steps
from hpcdl.trace.recorder import Recorder, Step
from hpcdl.training.parts.journal import Journal

NETWORK, FLOPS = "infiniband-ndr", 1e8
SUITE = """
[suite]
name = "s"
[[case]]
"""


def case(**keys):
    text = SUITE + "".join(f"{key} = {value}\n" for key, value in keys.items())
    (only,) = suite.parse(text, "s.toml").cases
    return only


def training(mesh="{pipeline = 3}", **settings):
    name = ", ".join(['name = "pipeline"', *(f"{key} = {value}" for key, value in settings.items())])
    return {"training": f"{{{name}}}", "mesh": mesh, "model": '"lenet5"', "flops": FLOPS, "steps": 4}


def simulated(ranks, **keys):
    given = {"kind": '"train"', "dataset": '"digits"', "learning_rate": 0.05, "network": f'"{NETWORK}"', **keys}
    return case(ranks=ranks, **given)


def step_times(one):
    """Return the slowest rank's time of each step of a simulated case (s), and its findings."""
    recorder = Recorder()
    silent = Journal(recorder, lambda: Counters(0, 0, 0, 0, 0))
    (found,) = in_process(1).run(one.module.program(one.spec, silent))
    spans = [[Step(*row).end - Step(*row).begin for row in rank.steps] for rank in recorder.virtual]
    return [max(step) * 1e-9 for step in zip(*spans, strict=True)], found


@pytest.mark.parametrize("schedule", ['"gpipe"', '"1f1b"'])
@pytest.mark.parametrize(("ranks", "mesh"), [(3, "{pipeline = 3}"), (4, "{data = 2, pipeline = 2}")])
def test_a_prediction_is_the_simulation_of_a_training(ranks, mesh, schedule):
    """Microbatches of equal size: a predicted pipeline has its exchanges and its bubble."""
    keys = training(mesh, schedule=schedule, microbatches=4)
    one = simulated(ranks, batch_per_rank=32, **keys)
    times, found = step_times(one)
    assert found["parameters"] == 131_080
    network = NETWORKS[NETWORK]
    rows, left_out = predicted_steps(
        [Record.of(one.fields())], lambda *_: one.spec.compute_times, PricedNetwork(network)
    )
    assert not left_out
    assert rows[0].predicted_seconds == pytest.approx(times[-1], rel=1e-3)


def test_a_prediction_for_ranks_without_whole_pipelines_is_left_out():
    one = simulated(3, batch_per_rank=32, **training(microbatches=4))
    _, left_out = predicted_steps(
        [Record.of(one.fields())], lambda *_: one.spec.compute_times, PricedNetwork(NETWORKS[NETWORK]), ranks=[4]
    )
    reason = "4 ranks do not fit pipeline 3; data x pipeline must be 4"
    assert left_out == [f"pipeline(microbatches=4) with ring on 4 ranks: {reason}"]


def test_a_replay_sums_the_gradients_of_each_stage():
    keys = {**training(microbatches=5), "flops": 1e12, "kind": '"replay"', "batch_per_rank": 8, "warmup": 1}
    one = case(ranks=6, **keys)
    recorders = iter([Recorder(events=False) for _ in range(6)])

    async def play(comm):
        journal = Journal(next(recorders), lambda: Counters(0, 0, 0, 0, 0))
        return await one.module.program(one.spec, journal)(comm)

    for found in in_process(6).run(play):
        assert found["correct"]
        assert found["parameters"] == 431_080


def test_stages_are_balanced_by_the_times_of_their_layers():
    one = simulated(3, batch_per_rank=32, **training())
    times = one.spec.compute_times
    layers = one.spec.layers

    def seconds(part):
        return sum(
            times.seconds(f"{kind} {one.name}", 1) for one in layers[part] for kind in ("forward", "backward")
        )

    longest = max(map(seconds, one.spec.parts))
    cuts = range(1, len(layers))
    others = [(slice(0, a), slice(a, b), slice(b, None)) for a in cuts for b in cuts if a < b]
    assert longest == pytest.approx(min(max(map(seconds, other)) for other in others))
    assert balanced(layers, one.spec.data.shape, 3) == one.spec.parts
    assert math.isclose(sum(map(seconds, one.spec.parts)), seconds(slice(None)))
