"""A replayed training exchanges what the training would, takes the modelled time, and notices wrong sums."""

from functools import partial
from itertools import count

import numpy as np
import pytest
from contract.cases import case_of, ran
from contract.virtual_time import ring_seconds

from hpcdl.aggregation.halving_doubling import halving_doubling
from hpcdl.aggregation.none import none
from hpcdl.aggregation.parts.traits import half
from hpcdl.aggregation.ring import ring
from hpcdl.analysis.run.record import Record
from hpcdl.cases.keys.key import Choice
from hpcdl.cases.keys.step_spec import SizedSteps
from hpcdl.cases.parts.operations import sizes
from hpcdl.cases.replay import CheckedSums, ReplaySpec
from hpcdl.fabric.comm import Counters
from hpcdl.fabric.faults import ModelledCompute
from hpcdl.fabric.network import NETWORKS
from hpcdl.fabric.virtual.clocks import in_process
from hpcdl.models.caffe import lenet5
from hpcdl.nn.volumes import volumes
from hpcdl.trace.recorder import Recorder
from hpcdl.training.layerwise import layerwise
from hpcdl.training.parts.journal import Journal
from hpcdl.training.synchronous import synchronous
from hpcdl.training.zero import zero

STRATEGIES = [synchronous, partial(synchronous, bucket_bytes=4096), layerwise]


LAYERS = lenet5((28, 28, 1), 10)


def play(ranks, strategy, aggregate, *, seed=0, steps=3):
    """Return the checked sums of every rank, the labels of its work in order, and its recorder."""
    slept = [[] for _ in range(ranks)]

    async def program(comm):
        sums = CheckedSums(aggregate, summed=aggregate is not none)
        recorder, ticks = Recorder(), count()
        spec = ReplaySpec(model=Choice("models", "lenet5"), ranks=ranks, batch_per_rank=5)
        journal = Journal(recorder, lambda: Counters(next(ticks), 0, 0, 0, 0))
        sized = SizedSteps(5, steps)
        session = await spec.session(comm, journal, sizes(np.zeros), sized=sized, aggregate=sums)

        def seconds(label):
            slept[comm.rank].append(label)
            return 0.0

        await strategy(ModelledCompute(comm, seconds, 0.0), session)
        return sums, recorder

    return in_process(ranks, seed).run(program), slept


@pytest.mark.parametrize("aggregate", [ring, halving_doubling, none])
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
def test_every_sum_is_looked_at_and_right(ranks, strategy, aggregate):
    played, slept = play(ranks, strategy, aggregate, seed=ranks)
    layers = [layer.name for layer in LAYERS]
    for (sums, recorder), labels in zip(played, slept, strict=True):
        assert sums.wrong == 0
        assert sum(size * times for (_, size), times in sums._sums.items()) == 3 * 431_080
        assert [step.images for step in recorder.steps] == [5] * 3
        work = [label for label in labels if not label.startswith("update")]
        forward = [f"forward {name}" for name in layers]
        backward = [f"backward {name}" for name in reversed(layers)]
        assert work == ["input", *forward, "loss", *backward] * 3


def test_parts_of_sharded_replays_are_looked_at():
    """Each step reduces and gathers all parameters once; a lost sum, and a lost part, are noticed."""

    class Lossy:
        def __init__(self, lost):
            self.lost = lost

        async def reduce_scatter(self, comm, parts):
            if self.lost != "sum":
                await half(ring, "reduce_scatter")(comm, parts)

        async def allgather(self, comm, parts):
            if self.lost != "part":
                await half(ring, "allgather")(comm, parts)

    for lost in ("", "sum", "part"):
        for sums, _ in play(3, zero, Lossy(lost), seed=1)[0]:
            assert sum(size * times for (_, size), times in sums._sums.items()) == 6 * 431_080
            assert bool(sums.wrong) == bool(lost)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_wrong_sums_are_noticed(strategy):
    async def forgetful(comm, vector):
        await ring(comm, vector)
        if comm.rank == 1:
            vector[-1] -= 1

    async def lazy(_comm, _vector):
        pass

    for aggregate in (forgetful, lazy):
        played, _ = play(3, strategy, aggregate)
        assert sum(sums.wrong for sums, _ in played) >= 3


case = partial(
    case_of, "replay", flops=1e12, ranks=3, batch_per_rank=4, steps=4, training="layerwise", time_scale=2
)


def test_a_case_runs_is_right_and_says_what_it_models():
    answers, recorders = ran(one := case())
    for found in answers:
        assert found.pop("bucket_bytes") > 0
        assert found == {"parameters": 431_080, "correct": True}
    assert [len(recorder.steps) for recorder in recorders] == [2 + 4] * 3
    fields = one.fields()
    work = volumes(lenet5((28, 28, 1), 10), (28, 28, 1), 4)
    assert fields["modelled_compute_seconds"] == pytest.approx(2 * work.forward_backward_flop / 1e12)
    assert (fields["dataset"], fields["scaling"], fields["global_batch"]) == ("28x28x1", "weak", 12)
    assert Record.of(fields).words == {"replayed": "replayed with 1e+12 FLOP/s x 2"}


@pytest.mark.parametrize(
    ("training", "period", "passes"),
    [({"name": "synchronous", "bucket_bytes": 0}, 1, 0), ({"name": "diloco", "period": 4}, 4, 8)],
)
@pytest.mark.parametrize("ranks", [1, 5])
def test_a_simulated_replay_takes_the_time_of_its_formulas(ranks, training, period, passes):
    """One sum after backward: compute, then a ring's 2(p - 1) messages of n/p bytes, p - 1 of which are added.

    The mean of a period has a part of them, and of the passes over a change of parameters and an outer step.
    """
    one = case(training=training, ranks=ranks, network="gemini")
    assert one.processes == 1
    (found,), (recorder,) = ran(one)
    (step,) = recorder.steps
    network, size = NETWORKS["gemini"], 431_080 * 4
    exchange = ring_seconds(network, ranks, size) + passes * size * network.gamma
    expected = one.fields()["modelled_compute_seconds"] + exchange / period
    assert (step.end - step.begin) * 1e-9 == pytest.approx(expected, rel=1e-3)
    assert step.compute_ns * 1e-9 == pytest.approx(one.fields()["modelled_compute_seconds"], rel=1e-3)
    assert found["nodes"] == ranks
    assert step.bytes == pytest.approx(2 * (ranks - 1) * size / ranks / period, abs=1)


def test_a_compressed_replay_sends_what_a_compressor_makes_and_notices_sums_that_differ(tmp_path, monkeypatch):
    for aggregation, compression in [
        ("ring", "fp16"),
        ("ring", {"name": "power_sgd", "rank": 1}),
        ("allgather", {"name": "top_k", "density": 0.01}),
        ("sparcml", {"name": "dgc", "density": 0.01, "warmup_steps": 1}),
        ("sharded_parameter_server", "one_bit"),
    ]:
        answers, _ = ran(one := case(aggregation=aggregation, compression=compression))
        assert answers[0]["correct"]
        assert {"encode_seconds", "decode_seconds", "compression_ratio", "residual_bytes"} <= set(answers[0])
        assert one.fields()["compression"] == str(one.spec.compression)
    (tmp_path / "forgetful.py").write_text(
        "from hpcdl.aggregation.ring import ring\n"
        "async def forgetful(comm, vector):\n"
        "    await ring(comm, vector)\n"
        "    vector[-1] += comm.rank\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    answers, _ = ran(case(aggregation="forgetful:forgetful", compression="fp16"))
    assert not answers[0]["correct"]
