"""Settings of meshes that split layers or divide networks into stages, checked before anything runs."""

import pytest
from contract.cases import ran

from hpcdl.cases.train import memory_bytes
from hpcdl.nn.volumes import volumes


def test_each_rank_needs_memory_for_its_parts_only(parsed):
    """Half a network and its gradients, and the outputs of the rank's images."""
    dataset = {"name": "synthetic", "shape": [11, 40, 1], "classes": 8192}
    speech = {"model": "distbelief_speech", "dataset": dataset}
    whole, half = (memory_bytes(parsed(**speech, **changed)[0].spec) for changed in ({}, {"mesh": {"model": 2}}))
    assert whole - half == 4 * 41_777_152


def test_equal_meshes_are_one_case(refused, written, parsed):
    """Sizes that are left out follow from the ranks; a mesh that divides nothing has no name."""
    meshes = ({"data": 1}, {"model": 4}, {"data": 1, "model": 4})
    names = {parsed(mesh=mesh, ranks=4)[0].name for mesh in meshes}
    assert len(names) == 1
    assert parsed(mesh={"model": 1}, ranks=4)[0].name == parsed(ranks=4)[0].name
    assert "is there twice" in refused(written(mesh=[*meshes], ranks=4))


@pytest.mark.parametrize("linear", ["outputs", "inputs"])
def test_a_case_trains_the_whole_network(parsed, linear):
    """Layers split by inputs have one part more than the network has layers."""
    (case,) = parsed(mesh={"model": 3, "linear": linear}, ranks=3, global_batch=60, steps=2, epochs=None)
    found, recorders = ran(case)
    whole = volumes(case.spec.layers, case.spec.data.shape, 1).parameters
    assert [one["parameters"] for one in found] == [whole] * 3
    assert all(recorder.memory_bytes < 2 * 4 * whole / 2 for recorder in recorders)
    losses = {recorder.evaluations[-1].loss for recorder in recorders}
    assert len(losses) == 1
    assert losses.pop() < 10


@pytest.mark.parametrize(
    ("compression", "aggregation", "ratio"), [("fp16", "ring", 2), ("top_k", "allgather", None)]
)
def test_the_ratio_of_compression_counts_no_activations(parsed, compression, aggregation, ratio):
    """Messages of varying length are not counted apart from activations, so that they have no ratio."""
    keys = {"compression": compression, "aggregation": aggregation, "steps": 2, "epochs": None}
    (case,) = parsed(mesh={"data": 2, "model": 2}, ranks=4, global_batch=60, **keys)
    assert ran(case)[0][0]["compression_ratio"] == ratio


def test_a_batch_per_rank_is_that_of_a_pipeline(parsed):
    pipeline = {"training": {"name": "pipeline", "microbatches": 4}, "mesh": {"pipeline": 2}}
    (case,) = parsed(**pipeline, ranks=6, global_batch=None, batch_per_rank=16)
    fields = case.fields()
    assert (fields["global_batch"], fields["stages"], fields["microbatches"]) == (48, 2, 4)
    assert fields["parallelism"] == "pipeline(pipeline=2)"


def test_activations_in_flight_are_stated(parsed):
    """The first of three stages has 8 microbatches in flight with gpipe, 3 with 1f1b; alone it has whole batches."""

    def stated(**changed):
        (case,) = parsed(model="nin_cifar", dataset="synthetic", ranks=3, global_batch=96, **changed)
        return case.fields()["activation_bytes_per_rank"]

    def pipeline(schedule):
        training = {"name": "pipeline", "microbatches": 8, "schedule": schedule}
        return stated(training=training, mesh={"pipeline": 3})

    assert pipeline("gpipe") == pytest.approx(8 / 3 * pipeline("1f1b"))
    assert pipeline("gpipe") < 3 * stated()
