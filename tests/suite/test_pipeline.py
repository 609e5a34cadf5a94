"""Settings of pipelines, checked before anything runs."""

import pytest

PIPELINE = {"name": "pipeline", "microbatches": 4}


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"training": {**PIPELINE, "stages": 3}}, "training: stages: 2 ranks make no whole pipelines of 3 stages"),
        ({"training": {**PIPELINE, "stages": 0}}, "training: stages: 2 ranks make no whole pipelines of 0 stages"),
        (
            {"training": {**PIPELINE, "stages": 12}, "ranks": 12},
            "training: stages: lenet5 has 7 layers, too few for 12 stages",
        ),
        (
            {"training": {**PIPELINE, "microbatches": 65}},
            "training: microbatches: 65 of 64 images would leave some without any",
        ),
        (
            {"training": {**PIPELINE, "microbatches": 9}, "ranks": 4, "shares": {"weights": [7, 1]}},
            "training: microbatches: 9 of 8 images would leave some without any",
        ),
        ({"training": {**PIPELINE, "microbatches": 0}}, "training: microbatches: must be at least 1, not 0"),
        (
            {"training": {**PIPELINE, "schedule": "1fb1"}},
            "training: schedule: unknown '1fb1'; did you mean '1f1b'?",
        ),
        (
            {"training": PIPELINE, "aggregation": "auto"},
            "training: stages: 'auto' measures sums over all ranks; name another scheme",
        ),
        (
            {"training": PIPELINE, "ranks": 6, "global_batch": 64},
            "global_batch: 64 is not divisible by the 3 workers among 6 ranks; 63 and 66 are",
        ),
        (
            {"training": PIPELINE, "dtype": "float16"},
            "dtype: 'pipeline' has no loss scaling, which float16 needs; bfloat16 and float32 need none",
        ),
    ],
)
def test_impossible_pipelines_are_refused(refused, written, changed, message):
    assert refused(written(**changed)) == f"[[case]] 1: {message}"


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"microbatches": 9}, "microbatches: 9 of 8 images would leave some without any"),
        ({"stages": 3}, "stages: 2 ranks make no whole pipelines of 3 stages"),
    ],
)
def test_impossible_replays_are_refused(refused, written, changed, message):
    assert refused(written("replay", training={**PIPELINE, **changed})) == f"[[case]] 1: training: {message}"


def test_a_batch_per_rank_is_that_of_a_pipeline(parsed):
    (case,) = parsed(training=PIPELINE, ranks=6, global_batch=None, batch_per_rank=16)
    fields = case.fields()
    assert (fields["global_batch"], fields["stages"], fields["microbatches"]) == (48, 2, 4)


def test_activations_in_flight_are_stated(parsed):
    """The first of three stages has 8 microbatches in flight with gpipe, 3 with 1f1b; alone it has whole batches."""

    def stated(**training):
        (case,) = parsed(training=training, model="nin_cifar", dataset="synthetic", ranks=3, global_batch=96)
        return case.fields()["activation_bytes_per_rank"]

    keys = {"name": "pipeline", "stages": 3, "microbatches": 8}
    assert stated(**keys, schedule="gpipe") == pytest.approx(8 / 3 * stated(**keys, schedule="1f1b"))
    assert stated(**keys, schedule="gpipe") < 3 * stated(name="synchronous")
