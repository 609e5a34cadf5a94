"""Cases whose layers are split among ranks: simulated, predicted and replayed."""

import pytest

from hpcdl import suite
from hpcdl.analysis.run.record import Record
from hpcdl.fabric.comm import Counters
from hpcdl.fabric.network import NETWORKS
from hpcdl.fabric.virtual.inprocess import in_process
from hpcdl.prediction.network_file import PricedNetwork
from hpcdl.prediction.steps import predicted_steps
from hpcdl.trace.recorder import Recorder, Step
from hpcdl.training.parts.journal import Journal

NETWORK, FLOPS = "ethernet-10g", 1e9
MESHES = [
    (2, "{data = 1}", "lenet5"),
    (3, '{data = 1, linear = "inputs"}', "lenet5"),
    (3, '{data = 1, split = "space"}', "lenet5"),
    (2, '{data = 1, split = "space"}', "resnet20"),
    (4, '{data = 2, model = 2, split = "hybrid"}', "lenet5"),
    (3, '{data = 1, split = "hybrid", exchange = "turns"}', "lenet5"),
    (4, '{data = 2, split = "hybrid", exchange = "slices"}', "lenet5"),
]


OF_KIND = {
    "simulated": f'kind = "train"\nlearning_rate = 0.05\nflops = {FLOPS}\nnetwork = "{NETWORK}"\n',
    "train": 'kind = "train"\nlearning_rate = 0.05\n',
    "replay": f'kind = "replay"\nflops = {FLOPS}\nwarmup = 1\n',
}


def case(kind, ranks, mesh, steps=4, bucket_bytes=0, model="lenet5"):
    text = f'[suite]\nname = "s"\n[[case]]\n{OF_KIND[kind]}model = "{model}"\ndataset = "digits"\n'
    text += f'training = {{name = "synchronous", bucket_bytes = {bucket_bytes}}}\nglobal_batch = 48\n'
    (only,) = suite.parse(f"{text}steps = {steps}\nranks = {ranks}\nmesh = {mesh}\n", "s.toml").cases
    return only


def step_times(recorders):
    spans = [[step.end - step.begin for step in map(Step._make, one.steps)] for one in recorders]
    return [max(step) * 1e-9 for step in zip(*spans, strict=True)]


@pytest.mark.parametrize(("ranks", "mesh", "model"), MESHES)
def test_a_prediction_is_the_simulation_of_a_training(ranks, mesh, model):
    one = case("simulated", ranks, mesh, model=model)
    recorder = Recorder()
    silent = Journal(recorder, lambda: Counters(0, 0, 0, 0, 0))
    in_process(1).run(one.module.program(one.spec, silent))
    rows, left_out = predicted_steps(
        [Record.of(one.fields())], lambda *_: one.spec.compute_times, PricedNetwork(NETWORKS[NETWORK])
    )
    assert not left_out
    assert rows[0].predicted_seconds == pytest.approx(step_times(recorder.virtual)[-1], rel=1e-3)
    assert rows[0].parallelism == str(one.spec.mesh)


@pytest.mark.parametrize(("ranks", "mesh", "model"), MESHES)
def test_a_replay_sends_the_bytes_of_the_training(ranks, mesh, model):
    """Split layers exchange activations; each part of the gradient is summed over the ranks that have it."""

    def sent(kind, steps):
        one, world = case(kind, ranks, mesh, steps, model=model), in_process(ranks)

        async def program(comm):
            silent = Journal(Recorder(), lambda: Counters(0, 0, 0, 0, 0))
            return await one.module.program(one.spec, silent)(comm)

        found = world.run(program)
        assert kind != "replay" or all(rank["correct"] for rank in found)
        return sum(world.bytes)

    replayed, trained = (sent(kind, 2) - sent(kind, 1) for kind in ("replay", "train"))
    assert replayed == trained > 0


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["replay", "train"])
@pytest.mark.parametrize("mesh", ["{data = 1}", '{data = 1, linear = "inputs"}', '{data = 1, split = "hybrid"}'])
def test_unequal_parts_have_the_same_buckets_of_whole_layers(kind, mesh):
    """Ten classes among three ranks: parts of 4, 3 and 3."""
    one = case(kind, 3, mesh, bucket_bytes=4096)

    async def program(comm):
        silent = Journal(Recorder(), lambda: Counters(0, 0, 0, 0, 0))
        return await one.module.program(one.spec, silent)(comm)

    for seed in range(3):
        found = in_process(3, seed).run(program)
        assert kind != "replay" or all(rank["correct"] for rank in found)
