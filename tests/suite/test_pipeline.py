"""Settings of pipelines, checked before anything runs."""

import pytest

PIPELINE = {"training": {"name": "pipeline", "microbatches": 4}, "mesh": {"pipeline": 2}}


def microbatches(number):
    return {"training": {"name": "pipeline", "microbatches": number}}


def test_impossible_pipelines_are_refused(refused, written):
    for changed, message in [
        ({"mesh": {"pipeline": 3}}, "mesh: 2 ranks do not fit pipeline 3; data x pipeline must be 2"),
        (
            {"mesh": {"pipeline": 2, "data": 2}},
            "mesh: 2 ranks do not fit data 2 pipeline 2; data x pipeline must be 2",
        ),
        ({"mesh": {"pipeline": 0}}, "mesh: pipeline: must be at least 1, not 0"),
        (
            {"mesh": {"pipeline": 2, "model": 2}, "ranks": 4},
            "mesh: model 2 pipeline 2: layers of a pipeline are not split; leave out model",
        ),
        ({"mesh": {"pipeline": 12}, "ranks": 12}, "mesh: lenet5 has 7 layers, too few for 12 stages"),
        (microbatches(65), "training: microbatches: must be at most 64, the images of a batch, not 65"),
        (
            {**microbatches(9), "ranks": 4, "shares": {"weights": [7, 1]}},
            "training: microbatches: must be at most 8, the images of a batch, not 9",
        ),
        (
            {**microbatches(33), "mesh": None},
            "training: microbatches: must be at most 32, the images of a batch, not 33",
        ),
        (
            {"ranks": 6, "global_batch": 64},
            "global_batch: 64 is not divisible by the 3 workers among 6 ranks; 63 and 66 are",
        ),
    ]:
        assert refused(written(**{**PIPELINE, **changed})) == f"[[case]] 1: {message}"


def test_a_batch_per_rank_is_that_of_a_pipeline(parsed):
    (case,) = parsed(**PIPELINE, ranks=6, global_batch=None, batch_per_rank=16)
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
