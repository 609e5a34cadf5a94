"""Training in virtual time: the numbers of a real one, and times that can be worked out by hand."""

from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
from contract.cases import case_of, ran
from contract.sessions import silent_journal
from contract.virtual_time import ring_seconds

from hpcdl import registry
from hpcdl.analysis.run.record import Record
from hpcdl.cases import train
from hpcdl.cases.keys.compute_times import ComputeTimes, at_rate
from hpcdl.cases.parts.step_simulation import ComputeTimeModel
from hpcdl.fabric.comm import INPUT
from hpcdl.fabric.network import NETWORKS
from hpcdl.fabric.virtual.clocks import in_process
from hpcdl.trace.recorder import Recorder

NETWORK, FLOPS, SHAPE, PARAMETERS = "ethernet-10g", 1e9, (8, 8, 1), 131_080

case = partial(
    case_of, "train", learning_rate=0.05, steps=6, evaluate_every=0.1, flops=FLOPS, ranks=4, network=NETWORK
)


def run(one):
    """The virtual ranks' recorders, and what the record gets."""
    (found,), (recorder,) = ran(one)
    return recorder.virtual, found


def compute_seconds(images):
    layers = registry.find("models", "lenet5")(SHAPE, 10)
    return at_rate(layers, SHAPE, FLOPS).step_seconds(images)


@pytest.mark.parametrize("ranks", [1, 3, 4])
def test_the_numbers_are_those_of_a_training_in_this_process(ranks):
    one = case(ranks=ranks, global_batch=60)
    recorders, _ = run(one)
    strategy = one.spec.training.bind()
    real = [Recorder(events=False) for _ in range(ranks)]

    async def train(comm):
        await strategy(comm, await one.spec.session(comm, silent_journal(real[comm.rank]), one.spec.kernels))

    in_process(ranks, seed=5).run(train)
    for virtual, here in zip(recorders, real, strict=True):
        told = [(row.loss, row.correct, row.images) for row in virtual.steps]
        assert told == [(row.loss, row.correct, row.images) for row in here.steps]
        found = [(row[0], *row[3:6]) for row in virtual.evaluations]
        assert found == [(row[0], *row[3:6]) for row in here.evaluations]
        assert found


def test_a_training_that_diverges_has_no_accuracy_and_reaches_no_target():
    """A compressor cannot send such values, so that training ends there."""
    encoded, broadcast = {"compression": "one_bit"}, {"compression": "threshold"}
    for training, more in [
        ("synchronous", {}),
        ("synchronous", encoded | {"aggregation": "allgather"}),
        ("asynchronous", {}),
        ("asynchronous", encoded),
        ("update_broadcast", broadcast),
        ("pipeline", {"mesh": {"data": 2, "pipeline": 2}}),
    ]:
        spec = case(training=training, target_accuracy=0.05, **more).spec
        recorder = Recorder()
        with np.errstate(all="ignore"):
            in_process(1).run(train.program(replace(spec, learning_rate=1e6), silent_journal(recorder)))
        last = [each.evaluations[-1] for each in recorder.virtual if each.evaluations]
        assert last
        assert all(np.isnan([row.loss, row.accuracy]).all() for row in last)


def test_bytes_of_a_whole_training_are_those_of_all_ranks():
    """Also of a server, which takes no steps: a worker fetches before its first step and with each push."""
    _, ring = run(case())
    assert ring["sent_bytes"] == 6 * 2 * 3 * 4 * PARAMETERS
    _, served = run(case(ranks=5, training={"name": "asynchronous", "dedicated": True}))
    pushes, workers = 6 * 4, 4
    assert served["sent_bytes"] == pytest.approx((pushes + pushes + workers) * 4 * PARAMETERS, rel=1e-3)


def test_a_step_takes_its_arithmetic_and_the_ring():
    for ranks in [2, 4]:
        recorders, found = run(case(ranks=ranks, training={"name": "synchronous", "bucket_bytes": 0}))
        assert found["parameters"] == PARAMETERS
        expected = compute_seconds(64 // ranks) + ring_seconds(NETWORKS[NETWORK], ranks, 4 * PARAMETERS)
        for recorder in recorders:
            for row in recorder.steps:
                assert (row.end - row.begin) * 1e-9 == pytest.approx(expected, abs=1e-8)
                assert row.compute_ns * 1e-9 == pytest.approx(compute_seconds(64 // ranks), abs=1e-8)
                assert row.messages == 2 * (ranks - 1)


@pytest.mark.parametrize(
    ("training", "seconds"),
    [
        ("synchronous", 6 * 0.5),
        ({"name": "zero", "stage": 1}, 5 * 0.125),
        ({"name": "zero", "stage": 3, "ranks_per_node": 2}, 5 * 0.25),
        ("asynchronous", 6 * 4 * 0.5),
        ({"name": "softsync", "servers": 2}, 6 * 0.25),
    ],
)
def test_an_update_takes_its_share_of_the_time_whatever_its_state(training, seconds):
    """Four ranks, six steps; with Adam, whose first update makes two vectors. The last step of ZeRO does not wait."""
    one = case(training=training, optimizer="adam")
    times = dict.fromkeys(one.spec.compute_times.per_image, 0.0)
    vars(one.spec)["compute_times"] = ComputeTimes(times, {"update": 0.5, "evaluation": 0.0})
    recorders, _ = run(one)
    assert max(rank.steps[-1].end for rank in recorders) * 1e-9 == pytest.approx(seconds, rel=0.02)


def test_synchronous_steps_wait_for_the_slowed_rank_and_for_a_pause_of_any_rank():
    """Its arithmetic is on every step's path; the ring is what it was.

    Every rank pauses by its own random numbers; simultaneous pauses cost one.
    """
    usual, slow, pausing = (
        run(case(straggler=straggler))[0]
        for straggler in (None, {"rank": 2, "factor": 5.5}, {"rank": "all", "probability": 0.5, "seconds": 0.25})
    )
    lasted, slowed, paused = ([row.end - row.begin for row in ranks[0].steps] for ranks in (usual, slow, pausing))
    assert np.subtract(slowed, lasted) * 1e-9 == pytest.approx(4.5 * compute_seconds(16), abs=1e-8)
    assert [row.loss for row in slow[1].steps] == [row.loss for row in usual[1].steps]
    assert slow[2].steps[0].compute_ns == pytest.approx(5.5 * usual[2].steps[0].compute_ns, abs=1)
    pauses = np.subtract(
        *([[step.compute_ns for step in one.steps] for one in ranks] for ranks in (pausing, usual))
    )
    assert len({tuple(row) for row in pauses}) == 4
    assert np.all((pauses == 0) | (np.abs(pauses - 0.25e9) < 10))
    assert np.subtract(paused, lasted) == pytest.approx(pauses.max(0), abs=10)
    assert [row.input_ns for row in pausing[0].steps] == [row.input_ns for row in usual[0].steps], "of no images"


@pytest.mark.parametrize("training", ["synchronous", "asynchronous"])
def test_the_same_seed_gives_the_same_trace(training):
    def packed(seed):
        keys = {"training": training, "jitter": 0.3, "seed": seed}
        return [{k: v.tobytes() for k, v in one.pack().items()} for one in run(case(**keys))[0]]

    assert packed(1) == packed(1)
    assert packed(1) != packed(2)


def test_a_rank_that_dies_is_missed_and_named():
    for training, steps in [
        ("asynchronous", 6 * 4),
        ({"name": "sandblaster", "servers": 1, "backup": False}, 6 * 2 * 8),
    ]:
        recorders, found = run(case(training=training, failure={"rank": 3, "step": 2}))
        assert found["process_failure"] == "rank 3 at step 2"
        assert len(recorders[3].steps) == 2
        done = sum(len(recorder.steps) for recorder in recorders)
        assert done == steps if training == "asynchronous" else steps <= done <= steps + 2  # others did its share
        assert "process_failure" not in run(case(training=training))[1]
    recorders, found = run(case(training="asynchronous", failure={"rank": [2, 3], "step": 2}))
    assert found["process_failure"].split(", ") == ["rank 2 at step 2", "rank 3 at step 2"]
    assert [len(recorder.steps) for recorder in recorders[2:]] == [2, 2]
    assert sum(len(recorder.steps) for recorder in recorders) == 6 * 4
    # a slow worker is not granted so many mini-batches: it comes to its end before its death
    keys = {"straggler": {"rank": 3, "factor": 50}, "failure": {"rank": 3, "step": 20}}
    assert run(case(training="asynchronous", **keys))[1]["process_failure"] == ""


def test_jitter_has_mean_one_and_the_deviation_asked_for():
    work = ComputeTimeModel([ComputeTimes({"forward": 1.0, INPUT: 0.0})], 1, jitter=0.2, seed=3)
    work.sessions[0] = SimpleNamespace(inputs=SimpleNamespace(group_shares=[(0, 1)]))
    drawn = []
    for _ in range(20_000):
        work.seconds(0, INPUT)
        drawn.append(work.seconds(0, "forward"))
    assert np.mean(drawn) == pytest.approx(1, abs=4 * 0.2 / np.sqrt(len(drawn)))
    assert np.std(drawn) == pytest.approx(0.2, rel=0.05)


def test_the_record_says_that_nothing_was_measured_and_has_the_hosts_of_its_network():
    fields = case(ranks_per_host=2, jitter=0.1, straggler={"rank": 1, "factor": 3}).fields()
    assert fields["network"] == NETWORK
    assert Record.of(fields).words == {
        "simulated": "simulated on ethernet-10g, 2 ranks per node, 1e+09 FLOP/s, jitter 0.1",
        "straggler": "rank 1 3x slower",
    }
    assert fields["warmup_steps"] == 0
    one = case()
    assert one.processes == 1
    assert one.module.memory_bytes(one.spec) == 4 * one.module.memory_bytes(replace(one.spec, network=None))
    assert run(case(ranks_per_host=3))[1]["nodes"] == 2
    for ranks_per_host, nodes in ((1, 8), (3, 3), (8, 1)):
        one = case_of("collective", ranks=8, network=NETWORK, ranks_per_host=ranks_per_host)
        assert ran(one)[0][0]["nodes"] == nodes


@pytest.mark.parametrize("training", ["synchronous", "asynchronous", "parameter_averaging"])
def test_sharpness_is_that_of_the_parameters_tested_last_and_takes_no_virtual_time(training, monkeypatch):
    seen = []

    def measure(_layers, _kernels, _split, parameters, *_):
        seen.append(parameters.copy())
        return {"sharpness": 2.5}

    monkeypatch.setattr(train, "training_gap", measure)
    keys = {"training": training, "dtype": "float64"}
    usual, _ = run(case(**keys))
    recorders, record = run(one := case(**keys, sharpness=100))
    assert [recorder.steps for recorder in recorders] == [recorder.steps for recorder in usual]
    assert record["sharpness"] == 2.5
    replica = one.spec.replica(one.spec.kernels)
    (replica.parameters[:],) = seen
    test = one.spec.data.test
    images, labels = test.batch(np.arange(len(test)), "float64")
    loss, correct, _ = replica.loss(replica.predict(images), labels, 1.0)
    last = recorders[0].evaluations[-1]
    assert (last.loss, last.accuracy) == pytest.approx((loss / len(test), correct / len(test)))
