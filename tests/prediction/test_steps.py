"""Predicted training steps: closed forms, and the origin of compute times."""

import re
from dataclasses import replace
from functools import partial
from itertools import product

import numpy as np
import pytest
from conftest import TRAINING
from contract.records import with_settings
from contract.virtual_time import ring_seconds
from suite.conftest import CASES, text_of

from hpcdl import registry, suite
from hpcdl.analysis.run.launches import launches
from hpcdl.analysis.run.record import Record
from hpcdl.analysis.run.scaling import records as reduced
from hpcdl.cases.keys.compute_times import Recorded
from hpcdl.cases.parts import step_simulation
from hpcdl.cli import main
from hpcdl.compression.parts.protocol import Compression
from hpcdl.fabric.network import NETWORKS, Link
from hpcdl.fabric.vectors import phantom
from hpcdl.fabric.virtual.clocks import simulated
from hpcdl.prediction import steps as predicted_steps
from hpcdl.prediction.network_file import NetworkEstimate, format_network
from hpcdl.prediction.predict import _times, predict
from hpcdl.report.run import predicted_answers
from hpcdl.report.sections.predictions import flags
from hpcdl.trace.recorder import CaseRecord, Recorder, Step
from hpcdl.trace.schema import merge, read, write_part

NETWORK = "ethernet-10g"
SHAPE, PARAMETERS = (8, 8, 1), 131_080
FORWARD, BACKWARD, UPDATE, INPUT = 100_000, 300_000, 50_000, 20_000
"""ns of a layer, and of a step, on 64 images."""
LAYERS = [layer.name for layer in registry.find("models", "lenet5")(SHAPE, 10)]


class Trained:
    """A run made by hand; ``slower`` is the ratio of compute time per image to that on one rank."""

    def __init__(self, folder):
        self.folder = folder
        self.parts = []

    def case(self, ranks=1, slower=1.0, step_ms=10.0, computed=(0, 0, 0, 0), **fields):
        images = 64 if fields.get("scaling") == "weak" else 64 // ranks
        scale = slower * images / 64
        labels = [("input", INPUT), ("loss", 0)] + [(f"forward {name}", FORWARD) for name in LAYERS]
        labels += [(f"backward {name}", BACKWARD) for name in reversed(LAYERS)]
        lengths = [*((label, round(scale * length)) for label, length in labels), ("update", UPDATE)]
        recorder, clock = Recorder(), 0
        for step, worked in enumerate(computed):
            for label, length in lengths:
                recorder.events.append((0, label, clock, clock + length, -1, 0))
                clock += length
            begin = step * 10**9
            row = Step(step, 0, begin, begin + round(step_ms * 1e6), images=images, compute_ns=worked)
            recorder.steps.append(row)
        said = {**TRAINING, "warmup_steps": 0, "case": f"train-{len(self.parts)}", "ranks": ranks, **fields}
        part = self.folder / f"part{len(self.parts)}.h5"
        write_part(part, CaseRecord(with_settings(said), [recorder.pack()] * ranks))
        self.parts.append(part)
        return self

    def merged(self, environment=()):
        merge(self.parts, self.folder / "run.h5", dict(environment), "")
        return self.folder


@pytest.fixture
def trained(tmp_path):
    return Trained(tmp_path)


def computing(images, slower=1.0):
    return 1e-9 * (slower * images / 64 * (INPUT + len(LAYERS) * (FORWARD + BACKWARD)) + UPDATE)


def ring(ranks, size=4 * PARAMETERS):
    """Return the time of a sum of ``size`` bytes, those of the network's parameters."""
    return ring_seconds(NETWORKS[NETWORK], ranks, size)


def steps(folder, *ranks, network=NETWORK):
    found = predict(folder, network, ranks)
    return {(row.training, row.aggregation, row.ranks): row for row in found.steps}, found


AT_ONCE = "synchronous(bucket_bytes=0)"


@pytest.mark.parametrize("weak", [{}, {"scaling": "weak", "batch_per_rank": 64}])
def test_one_piece_after_backward_takes_computing_and_the_ring(trained, weak):
    """With weak scaling a rank computes as much on any number of ranks."""
    rows, _ = steps(trained.case(training=AT_ONCE, aggregation="ring", **weak).merged(), 1, 2, 4)
    for ranks in (1, 2, 4):
        row, batch = rows[AT_ONCE, "ring", ranks], 64 * ranks if weak else 64
        stated = computing(batch // ranks) + (ring(ranks) if ranks > 1 else 0)
        assert (row.predicted_seconds, row.global_batch) == (pytest.approx(stated, abs=1e-8), batch)
        assert row.predicted_images_per_second == pytest.approx(batch / stated, rel=1e-4)
    assert rows[AT_ONCE, "ring", 1].step_seconds == pytest.approx(0.01)
    assert rows[AT_ONCE, "ring", 2].step_seconds is None


def test_a_compressed_step_takes_computing_messages_and_the_costs_of_its_arithmetic(trained, monkeypatch):
    costs = {"encode": 2e-9, "decode": 1e-9, "add": 3e-9}
    monkeypatch.setattr(step_simulation, "exchange_costs", lambda *_: costs)
    ranks, network = 4, NETWORKS[NETWORK]
    rows, _ = steps(trained.case(training=AT_ONCE, aggregation="ring", compression="bf16").merged(), ranks)
    row = rows[AT_ONCE, "ring", ranks]
    dense, half = 4 * PARAMETERS, 2 * PARAMETERS
    passes = 3 if registry.traits("compression", "bf16", Compression).error_feedback else 1
    exchange = ring_seconds(replace(network, gamma=3e-9), ranks, half)
    stated = computing(64 // ranks) + exchange + dense * (passes * 2e-9 + 1e-9)
    assert row.predicted_seconds == pytest.approx(stated, abs=1e-8)
    assert row.compression == "bf16"


def test_compressed_steps_of_every_kind_of_exchange_are_predicted(trained):
    compressions = ("power_sgd(rank=1)", "dgc(density=0.01)", "one_bit", "qsgd")
    schemes = ("ring", "allgather", "sharded_parameter_server", "allgather")
    for aggregation, compression in zip(schemes, compressions, strict=True):
        trained.case(training=AT_ONCE, aggregation=aggregation, compression=compression)
    _, found = steps(trained.merged(), 3)
    three = [row for row in found.steps if row.ranks == 3]
    assert tuple(row.compression for row in three) == compressions[:3]
    assert [row.compute_seconds for row in three] == pytest.approx([computing(22)] * 3, rel=1e-4)
    assert "compression: message lengths depend on the gradient" in " ".join(found.left_out)


def test_a_run_is_predicted_with_the_buckets_that_it_fitted(trained):
    fitted, given = 60_000, "synchronous(bucket_bytes=60000)"
    trained.case(4, training="synchronous", aggregation="ring", bucket_bytes=fitted)
    trained.case(4, training=given, aggregation="ring")
    rows, _ = steps(trained.merged(), 4, 8)
    assert rows["synchronous", "ring", 4].predicted_seconds == rows[given, "ring", 4].predicted_seconds
    assert rows["synchronous", "ring", 8].predicted_seconds != rows[given, "ring", 8].predicted_seconds


def test_buckets_are_those_of_the_run_that_the_network_is_fitted_to(trained):
    """The fitted latency is 0, which would give empty buckets; the cases used 60 kB on 4 ranks."""
    trained.case(4, training="synchronous", aggregation="ring", bucket_bytes=60_000)
    trained.case(4, training="layerwise", aggregation="ring", bucket_bytes=60_000)
    free = NetworkEstimate(replace(NETWORKS[NETWORK], link=Link(0.0, NETWORKS[NETWORK].link.beta)))
    records = [
        Record.of(with_settings({**row, "training": training, "settings": {}}))
        for record in reduced(launches(read(trained.merged())))
        for row in [{name: value for name, value in record.row.items() if value is not None}]
        for training in ("synchronous", "synchronous(bucket_bytes=120000)")
        if record.training == "synchronous"
    ]
    subject = [record.but(bucket_bytes=None) for record in records]
    times = partial(_times, [Recorded(read(trained.folder))])
    source = [records[0].but(ranks=2, bucket_bytes=10_000), *records]
    rows, left_out = predicted_steps.predicted_steps(subject, times, free, [8], source=source)
    assert left_out == []
    default, given = (row.predicted_seconds for row in rows)
    assert default == given
    assert rows[0].bucket_bytes == 120_000
    assert [row.disturbed for row in rows] == [None, None]
    records[0].disturbed = "by rank 0's neighbour"
    disturbed = {str(records[0].case): records[0].disturbed}
    rows, _ = predicted_steps.predicted_steps(subject, times, free, [8], records[:1], disturbed)
    assert [flags(row) for row in rows] == ["D", "D"], "their compute times are"
    rows, left_out = predicted_steps.predicted_steps(subject, times, free, [8])
    assert [row.training for row in rows] == ["synchronous(bucket_bytes=120000)"]
    assert "its bucket size is unknown" in left_out[0]


@pytest.mark.parametrize(
    ("name", "passes"),
    [("parameter_averaging(period=4)", 1), ("diloco(period=4)", 8), ("diloco(period=4,fragments=2)", 8)],
)
def test_an_exchange_every_fourth_step_costs_a_quarter(name, passes, trained):
    """The sum, and passes over the parameters: weights of an average, a change and an outer step."""
    rows, _ = steps(trained.case(training=name, aggregation="ring").merged(), 2)
    exchange = ring(2) + passes * 4 * PARAMETERS * NETWORKS[NETWORK].gamma
    if "fragments" in name:
        exchange += 2 * NETWORKS[NETWORK].link.alpha  # of a second ring
    assert rows[name, "ring", 2].predicted_seconds == pytest.approx(computing(32) + exchange / 4, abs=1e-8)


def test_computing_is_that_on_the_next_smaller_number_of_ranks(trained):
    for ranks, slower in ((1, 1.0), (2, 1.5), (4, 3.0)):
        trained.case(ranks, slower, training=AT_ONCE, aggregation="none")
    rows, _ = steps(trained.merged(), 1, 2, 4, 8)
    for ranks, slower in ((1, 1.0), (2, 1.0), (4, 1.5), (8, 3.0)):
        found = rows[AT_ONCE, "none", ranks].compute_seconds
        assert found == pytest.approx(computing(64 // ranks, slower), rel=1e-4)


def test_disturbed_computing_is_a_flag_and_a_sentence_although_its_case_is_not_selected(trained, monkeypatch):
    trained.case(1, training=AT_ONCE, aggregation="none").case(2, training=AT_ONCE, aggregation="ring")
    disturbed = lambda _, records: [one.but(disturbed="load" if one.ranks == 1 else None) for one in records]
    monkeypatch.setattr("hpcdl.prediction.predict.marked", disturbed)
    found = predict(trained.merged(), NETWORK, [2], globs=["train-1"])
    assert "computing disturbed by other load" in predicted_answers.badges(found)
    hidden = replace(found, steps=[row.but(step_seconds=None) for row in found.steps])
    (sentence,) = predicted_answers.notes(hidden)
    assert sentence.startswith("Other load disturbed the compute times of 2 of 2 predicted steps (train-0)")


def test_jitter_and_level_of_computing_are_those_of_the_steps_in_the_trace(trained):
    """Logarithms 0.1 above and below twice the sum of the layers' medians."""
    middle = 2e9 * computing(64)
    computed = [middle * np.exp(s) for s in (0.1, -0.1, -0.1, 0.1)]
    rows, _ = steps(trained.case(training=AT_ONCE, aggregation="none", computed=computed).merged(), 1)
    row = rows[AT_ONCE, "none", 1]
    assert row.jitter == pytest.approx(np.sqrt(np.expm1(0.1**2 * 4 / 3)), rel=1e-6)
    assert row.compute_seconds == pytest.approx(2 * computing(64), rel=1e-6)


def test_steps_that_sizes_do_not_determine_are_omitted(trained):
    late = {"straggler": "rank 1 x 4", "settings": {"straggler": {"rank": 1, "factor": 4}}}
    no_cost = "asynchronous with own: compression fp16: its arithmetic between two ranks has no known cost"
    omitted = {
        "sandblaster with own: losses decide the length of its line searches": ("sandblaster", "own", {}),
        no_cost: ("asynchronous", "own", {"compression": "fp16"}),
        "auto chooses its scheme": ("synchronous", "auto", {}),
        "its period changes": ("parameter_averaging(period=4,local_from=9)", "ring", {}),
        "straggler": (AT_ONCE, "ring", late),
        "64 images is less than one per rank": (AT_ONCE, "ring", {}),
    }
    for training, aggregation, more in omitted.values():
        trained.case(training=training, aggregation=aggregation, **more)
    _, found = steps(trained.merged(), 2, 128)
    assert [row.ranks for row in found.steps] == [1, 2]  # efficiencies are against one rank
    reasons = " | ".join(found.left_out)
    assert [reason for reason in omitted if reason not in reasons] == []


def test_compute_times_of_a_suite_come_from_the_run(tmp_path, capsys):
    file = tmp_path / "suite.toml"
    file.write_text(text_of(CASES["train"]))
    assert main(["predict", str(file), "--network", NETWORK]) == 2
    assert "its compute times are unknown" in capsys.readouterr().err


def test_the_page_shows_both_and_warns_of_far_extrapolation(trained, tmp_path, capsys, monkeypatch):
    """Of a network that is the run's own, by its environment; a preset is another one, and has no errors."""
    monkeypatch.setenv("COLUMNS", "80")
    trained.case(2, training=AT_ONCE, aggregation="ring", step_ms=1e3 * (computing(32) + ring(2)))
    folder, own = trained.merged({"key": "k"}), tmp_path / "own.toml"
    own.write_text(f'{format_network(NetworkEstimate(NETWORKS[NETWORK]))}\nenvironment = "k"\n')
    for network, measured in ((own, True), (NETWORK, False)):
        assert main(["predict", str(folder), "--network", str(network), "--ranks", "2,8,16"]) == 0
        page = capsys.readouterr().out
        rows = [line.split() for line in page.splitlines() if re.match(r" +(2|8|16) ", line)]
        assert [row[0] for row in rows] == ["2", "8", "16"]
        assert ("+0.0" in rows[0], rows[2][-1]) == (measured, "E")
        assert ("E: far beyond the measured ranks." in page, "  error" in page) == (True, measured)
        assert ("Predictions of 1 undisturbed time are 0.0 % too" in page) == measured


@pytest.mark.parametrize(("scale", "ranks"), [(1.0, 2), (2.5, 3)])
def test_a_replay_uses_the_times_in_its_settings(tmp_path, scale, ranks):
    """On images of the model's own size: arithmetic at a rate, times the scale, and the ring after it."""
    file = tmp_path / "replay.toml"
    keys = {"training": {"name": "synchronous", "bucket_bytes": 0}, "aggregation": ["ring", "none"], "steps": 5}
    keys |= {"flops": 1e11, "time_scale": scale, "batch_per_rank": 16, "ranks": ranks}
    file.write_text(text_of({**CASES["replay"], **keys}))
    rows, found = steps(file)
    # 2293 k multiply-adds an image (LeCun's shapes with 20 and 50 filters), forward and twice that backward
    multiply_adds = 24 * 24 * 20 * 25 + 8 * 8 * 50 * 500 + 800 * 500 + 500 * 10
    arithmetic = scale * 16 * 6 * multiply_adds / 1e11
    assert rows[AT_ONCE, "none", ranks].predicted_seconds == pytest.approx(arithmetic, abs=1e-8)
    parameters = 20 * 26 + 50 * 501 + 500 * 801 + 10 * 501
    expected = arithmetic + ring(ranks, 4 * parameters)
    assert rows[AT_ONCE, "ring", ranks].predicted_seconds == pytest.approx(expected, rel=1e-4)
    assert found.left_out == []


@pytest.mark.slow
def test_a_step_is_predicted_as_it_is_when_the_order_of_its_pieces_has_settled(tmp_path, monkeypatch):
    """Suite priority, where communication takes about as long as computation."""
    file = tmp_path / "priority.toml"
    case = {"kind": "replay", "model": "googlenet", "device": "k20", "time_scale": 0.4, "batch_per_rank": 64}
    training = ["synchronous", {"name": "layerwise", "bucket_bytes": 0}, "layerwise"]
    file.write_text(text_of({**case, "ranks": 4, "steps": 5, "training": training}))
    rows, _ = steps(file, network="ethernet-1g")
    trainings = ("synchronous", "layerwise(bucket_bytes=0)", "layerwise")
    buckets, whole, first = (rows[training, "ring", 4].predicted_seconds for training in trainings)
    assert first < 0.95 * whole < 0.95 * buckets
    monkeypatch.setattr(step_simulation, "UNSETTLED", 6)
    monkeypatch.setattr(step_simulation, "CYCLES", 8)
    later, _ = steps(file, network="ethernet-1g")
    assert first == pytest.approx(later["layerwise", "ring", 4].predicted_seconds, rel=0.01)


def test_a_runs_replays_are_predicted_by_costs_of_its_collectives(hand, tmp_path):
    """The measured times are simulated on links with known costs."""
    for scheme, ranks, size in product(("ring", "halving_doubling"), (2, 4), (1 << 14, 1 << 18, 1 << 22)):
        world = simulated(ranks, NETWORKS["ethernet-1g"])
        aggregate = registry.find("aggregation", scheme)
        world.run(lambda comm, aggregate=aggregate, size=size: aggregate(comm, phantom(size // 4)))
        what = {"collective": "allreduce", "aggregation": scheme, "message_bytes": size, "correct": True}
        hand.case([[world.now * 1e3] * 3] * ranks, suite="s", kind="collective", dtype="float32", **what)
    file = tmp_path / "replay.toml"
    case = {"kind": "replay", "model": "nin_cifar", "flops": 2e12, "steps": 5, "warmup": 1, "batch_per_rank": 64}
    training = [{"name": "synchronous", "bucket_bytes": 0}, "synchronous", "layerwise"]
    case |= {"ranks": [2, 4], "aggregation": ["ring", "halving_doubling"], "training": training}
    file.write_text(text_of(case))
    took, _ = steps(file, network="ethernet-1g")
    for case in suite.load(file).cases:
        fields = {name: value for name, value in case.fields().items() if value is not None}
        row = took[fields["training"], fields["aggregation"], fields["ranks"]]
        hand.case([[1e3 * row.predicted_seconds] * 5] * fields["ranks"], **fields)
    hand.read({"ranks": [{"hostname": f"host{rank}"} for rank in range(4)]})
    rows, found = steps(hand.folder, network=str(hand.folder))
    assert len(rows) == 12
    for row in rows.values():
        assert row.predicted_seconds == pytest.approx(row.step_seconds, rel=0.01)
    assert found.left_out == []
