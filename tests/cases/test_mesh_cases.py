"""Cases whose layers are split among ranks, or divided into stages: simulated, predicted and replayed."""

import math
from functools import partial

import pytest
from contract.cases import case_of, ran

from hpcdl.analysis.run.record import Record
from hpcdl.cases.keys.step_spec import balanced
from hpcdl.fabric.network import NETWORKS
from hpcdl.fabric.virtual.clocks import in_process
from hpcdl.prediction.network_file import NetworkEstimate
from hpcdl.prediction.steps import predicted_steps

NETWORK, FLOPS = "infiniband-ndr", 1e8
MESHES = [
    (2, {"data": 1}, "lenet5"),
    (3, {"data": 1, "linear": "inputs"}, "lenet5"),
    (3, {"data": 1, "split": "space"}, "lenet5"),
    (2, {"data": 1, "split": "space"}, "resnet20"),
    (4, {"data": 2, "model": 2, "split": "hybrid"}, "lenet5"),
    (3, {"data": 1, "split": "hybrid", "exchange": "turns"}, "lenet5"),
    (4, {"data": 2, "split": "hybrid", "exchange": "slices"}, "lenet5"),
    (3, {"pipeline": 3}, "lenet5"),
    (4, {"data": 2, "pipeline": 2}, "lenet5"),
]
OF_KIND = {
    "simulated": ("train", {"learning_rate": 0.05, "flops": FLOPS, "network": NETWORK}),
    "train": ("train", {"learning_rate": 0.05}),
    "replay": ("replay", {"dataset": "digits", "flops": 1e4 * FLOPS, "warmup": 1, "batch_per_rank": None}),
}


def case(kind, ranks, mesh, steps=4, model="lenet5", **settings):
    name, usual = ("pipeline", {"microbatches": 4}) if "pipeline" in mesh else ("synchronous", {"bucket_bytes": 0})
    kind, keys = OF_KIND[kind]
    keys = {**keys, "training": {"name": name, **usual, **settings}, "global_batch": 48}
    return case_of(kind, **keys, model=model, ranks=ranks, mesh=mesh, steps=steps)


@pytest.mark.parametrize(
    ("ranks", "mesh", "model", "settings"),
    [*((*mesh, {}) for mesh in MESHES), *((*mesh, {"schedule": "gpipe"}) for mesh in MESHES[-2:])],
)
def test_a_prediction_is_the_simulation_of_a_training(ranks, mesh, model, settings):
    """Of a pipeline, too: its exchanges and its bubble. It is left out for ranks that make no whole pipelines."""
    one = case("simulated", ranks, mesh, model=model, **settings)
    predicted = partial(
        predicted_steps,
        [Record.of(one.fields())],
        lambda *_: one.spec.compute_times,
        NetworkEstimate(NETWORKS[NETWORK]),
    )
    _, (recorder,) = ran(one)
    spans = [[step.end - step.begin for step in rank.steps] for rank in recorder.virtual]
    slowest = [max(step) * 1e-9 for step in zip(*spans, strict=True)]
    rows, left_out = predicted()
    assert not left_out
    assert rows[0].predicted_seconds == pytest.approx(slowest[-1], rel=1e-3)
    assert rows[0].parallelism == str(one.spec.mesh)
    if mesh == {"pipeline": 3} and not settings:
        reason = "4 ranks do not fit pipeline 3; data x pipeline must be 4"
        assert predicted(ranks=[4])[1] == [f"pipeline(microbatches=4) with ring on 4 ranks: {reason}"]


@pytest.mark.parametrize(("ranks", "mesh", "model"), MESHES)
def test_a_replay_sends_the_bytes_of_the_training(ranks, mesh, model):
    """Split layers exchange activations; each part of the gradient is summed over the ranks that have it."""

    def sent(kind, steps):
        world = in_process(ranks)
        found, _ = ran(case(kind, ranks, mesh, steps, model), world)
        assert kind != "replay" or all(rank["correct"] for rank in found)
        return sum(world.bytes)

    replayed, trained = (sent(kind, 2) - sent(kind, 1) for kind in ("replay", "train"))
    assert replayed == trained > 0


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["replay", "train"])
@pytest.mark.parametrize("mesh", [{"data": 1}, {"data": 1, "linear": "inputs"}, {"data": 1, "split": "hybrid"}])
def test_unequal_parts_have_the_same_buckets_of_whole_layers(kind, mesh):
    """Ten classes among three ranks: parts of 4, 3 and 3."""
    one = case(kind, 3, mesh, bucket_bytes=4096)
    for seed in range(3):
        found, _ = ran(one, in_process(3, seed))
        assert kind != "replay" or all(rank["correct"] for rank in found)


def test_stages_are_balanced_by_the_times_of_their_layers():
    spec = case("simulated", 3, {"pipeline": 3}).spec
    times, layers = spec.compute_times, spec.layers

    def seconds(part):
        return sum(
            times.seconds(f"{kind} {one.name}", 1) for one in layers[part] for kind in ("forward", "backward")
        )

    cuts = range(1, len(layers))
    others = [(slice(0, a), slice(a, b), slice(b, None)) for a in cuts for b in cuts if a < b]
    assert max(map(seconds, spec.parts)) == pytest.approx(min(max(map(seconds, other)) for other in others))
    assert balanced(layers, spec.data.shape, 3) == spec.parts
    assert math.isclose(sum(map(seconds, spec.parts)), seconds(slice(None)))


def simulated(**keys):
    """Return the specification of a replay of one step, and the seconds of its step and of computing."""
    one = case_of("replay", flops=1e12, steps=1, batch_per_rank=None, **keys)
    _, (recorder,) = ran(one)
    (step,) = recorder.steps
    return one.spec, (step.end - step.begin) * 1e-9, step.compute_ns * 1e-9


def test_inception_modules_divided_by_rows_are_simulated():
    """A branch ends with a share of the images; before, the switch to the next one forgot the others."""
    common = {"model": "googlenet", "global_batch": 4, "network": "infiniband-edr"}
    _, step, _ = simulated(**common, mesh={"data": 1, "split": "space"})
    _, alone, _ = simulated(**common)
    assert 0.9 * alone < step < 3 * alone  # both ranks compute; activations move in place of gradients


def test_the_wait_of_a_simulated_pipeline_is_of_its_ranks():
    """Before, each rank was said to compute all layers, which took longer than the step."""
    keys = {"global_batch": 32, "network": NETWORK, "ranks": 4, "mesh": {"pipeline": 4}}
    spec, step, computed = simulated(model="vgg11", **keys, training={"name": "pipeline", "microbatches": 8})
    assert computed == pytest.approx(spec.compute_times.step_seconds(32) / 4, rel=1e-6)
    assert 3 / 11 < 1 - computed / step < 0.7  # the bubble of equal stages, at least
