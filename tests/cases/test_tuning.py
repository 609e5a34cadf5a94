"""Tuning: every method has the same number of trials, the best one is taken, and no trial reads a test image."""

import os
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from contract.cases import case_of
from contract.sessions import silent_journal

from hpcdl import suite
from hpcdl.cases import train
from hpcdl.cases.keys import key
from hpcdl.cases.parts import rate_grid
from hpcdl.cases.train import program
from hpcdl.data.digits import digits
from hpcdl.data.parts.splits import with_validation
from hpcdl.fabric.virtual.clocks import in_process
from hpcdl.trace.recorder import Evaluation, Recorder
from tests.data.test_validation import Watched


def parsed(**keys):
    usual = {"steps": 20, "learning_rate": 0.001, "global_batch": 60, "ranks": 3, "validation": 0.2}
    usual |= {"evaluate_every": 0.2, "target_accuracy": 0.5, "network": "ethernet-10g", "flops": 1e10}
    return case_of("train", **{**usual, "tune": {"trials": 4, "learning_rate": [0.01, 0.5]}, **keys})


def run(spec, **options):
    recorder = Recorder()
    (found,) = in_process(1).run(program(spec, silent_journal(recorder), **options))
    return found, recorder.virtual[0].evaluations


@pytest.fixture(autouse=True)
def _nothing_found(monkeypatch):
    monkeypatch.setattr(train, "_SEARCHES", {})
    monkeypatch.setattr(rate_grid, "TRIALS", rate_grid.Trials())


@pytest.mark.slow
def test_the_best_trial_is_the_one_that_reaches_the_target_first():
    spec = parsed().spec
    found, evaluations = run(spec)
    best = {}
    for settings in [{}, *spec.tune.points()]:
        trial = replace(train.changed(spec, settings), tune=None, seed=train.SEED)
        seen = run(trial, tests=False)[1]
        reached = [(one.training_seconds, -one.accuracy) for one in seen if one.accuracy >= 0.5]
        assert settings or not reached  # the case's own rate is far too low
        best.setdefault(min(reached, default=(np.inf, 0)), settings)
    wanted = best[min(best)]
    assert wanted
    assert found["tuned"] == ", ".join(f"{name}={value:.4g}" for (_, name), value in wanted.items())
    assert found["tuned"].startswith("learning_rate=")
    assert evaluations[-1].accuracy > 0.5


def test_a_trial_that_is_quick_by_luck_is_not_taken(monkeypatch):
    """The best quarter is judged by three seeds: one that misses the target there loses to a slower one."""
    spec = parsed(tune={"trials": 8, "learning_rate": [0.01, 0.5]}).spec
    rates = [spec.learning_rate, *(point["learning_rate", "learning_rate"] for point in spec.tune.points())]

    async def trial(one, _program, _comm):
        place = rates.index(one.learning_rate)
        lucky = place == 5
        missed = 1 if lucky and one.seed != train.SEED else 0
        return train.Score(missed, 0.1 if lucky else 1 + abs(place - 3), 0, 10)

    monkeypatch.setattr(train, "_trial", trial)
    (found,) = in_process(1).run(lambda comm: train.tuned(spec, spec.tune, None, comm))
    assert found[0].learning_rate == rates[3]
    assert found[1]["tuning_images"] == 8 * 10 + 2 * 2 * 10


SHORT = {"rates": [0.001, 0.003, 0.01], "seed": 101}
BATCHES = {"batches": [30, 60, 120], "seed": 101}
OF_ANOTHER = {**SHORT, "like": {"training": "asynchronous"}, "factor": 0.5}


@pytest.mark.parametrize(
    ("search", "keys"),
    [(train.tuned, {}), *((rate_grid.best_of_grid, {"tune": tune}) for tune in (SHORT, BATCHES, OF_ANOTHER))],
)
def test_tuning_never_reads_a_test_image(monkeypatch, search, keys):
    watched = Watched(digits().test)
    monkeypatch.setattr(key, "_opened", lambda _: digits())
    divided = lambda data, share: replace(with_validation(data, share), test=watched)
    monkeypatch.setattr(key, "with_validation", divided)
    spec = parsed(**keys).spec
    in_process(1).run(lambda comm: search(spec, spec.tune, partial(program, tests=False), comm))
    assert watched.read == 0
    run(spec)
    assert watched.read == len(watched)


def best(monkeypatch, spec, *accuracies):
    """Return what a grid finds if its trainings end with these accuracies (NaN: diverged), and the trainings."""
    trained = []

    async def evaluations(trial, _program, _comm):
        trained.append(trial)
        last = accuracies[spec.tune.grid.index(getattr(trial, spec.tune.grid_key))]
        return [Evaluation(3, 0.5, 1.0, 0.1, 1.0, 600), Evaluation(6, 1.0, 2.0, last, last, 1200)]

    monkeypatch.setattr(rate_grid, "evaluations", evaluations)
    (found,) = in_process(1).run(lambda comm: rate_grid.best_of_grid(spec, spec.tune, None, comm))
    return getattr(found[0], spec.tune.grid_key), found[1], trained


@pytest.mark.parametrize(
    ("tune", "accuracies", "taken", "edge"),
    [
        (SHORT, (0.5, 0.7, 0.6), 0.003, None),  # not the best on the way, which is 1
        (SHORT, (0.5, 0.6, 0.6), 0.003, None),  # of equal ones the smallest
        (SHORT, (0.5, 0.6, 0.8), 0.01, "HIGH: add 0.03333"),
        (SHORT, (0.5, np.nan, np.nan), 0.001, "LOW: add 0.0003333"),
        (SHORT, (0.09, np.nan, 0.08), 0.003, None),  # chance
        (BATCHES, (0.5, 0.7, 0.6), 60, None),
        (BATCHES, (0.5, 0.6, 0.8), 120, "HIGH: add 240"),
        (BATCHES, (0.9, 0.6, 0.8), 30, "LOW: add 15"),
    ],
)
def test_the_rate_or_batch_of_the_highest_final_accuracy_is_taken(monkeypatch, tune, accuracies, taken, edge):
    chosen, record, trained = best(monkeypatch, parsed(tune=tune).spec, *accuracies)
    assert (chosen, record["tuning_edge"], record["tuning_images"]) == (taken, edge, 3600)
    assert {(trial.seed, trial.stop_at_target) for trial in trained} == {(101, False)}
    if tune is BATCHES:
        assert record["tuned"] == f"global_batch={taken}"
        assert [trial.images_per_step for trial in trained] == BATCHES["batches"]


def test_a_longer_grid_repeats_no_trial_of_the_file(monkeypatch, tmp_path):
    """Each trial is in the file once it has ended, those of an interrupted case too."""
    file = tmp_path / "trials.json"
    rate_grid.TRIALS.keep(file)
    with pytest.raises(IndexError):  # as long as the third trial lasts
        best(monkeypatch, parsed(tune=SHORT).spec, 0.8, 0.6)
    monkeypatch.setattr(rate_grid, "TRIALS", rate_grid.Trials())  # another job
    assert rate_grid.TRIALS.keep(file) is None
    longer = parsed(tune={"rates": [0.0003, *SHORT["rates"]], "seed": 101}, seed=7).spec
    chosen, found, trained = best(monkeypatch, longer, 0.7, 0, 0, 0.75)
    assert found["tuning_trials"] == "0.0003: 0.7, 0.001: 0.8, 0.003: 0.6, 0.01: 0.75"
    assert (chosen, found["tuning_edge"], found["tuning_images"]) == (0.001, None, 4 * 1200)
    assert [trial.learning_rate for trial in trained] == [0.0003, 0.01]


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("{", "not JSON"),
        ("[]", "not a dict"),
        ('{"{}": {"accuracy": 1}}', "not a Ended"),
        ('{"{}": {"accuracy": 1, "images": 9, "of_later_version": 1}}', "not a Ended"),
        (None, "not a regular file"),
    ],
)
def test_a_damaged_file_of_trials_is_set_aside(tmp_path, content, why):
    file = tmp_path / "trials.json"
    os.mkfifo(file) if content is None else file.write_text(content)
    line = rate_grid.TRIALS.keep(file)
    assert line.startswith("trials.json is renamed to trials.json.damaged, and its trials run again: ")
    assert why in line
    assert "\n" not in line
    assert [path.name for path in tmp_path.iterdir()] == ["trials.json.damaged"]
    assert rate_grid.TRIALS.keep(file) is None


def test_trials_keep_stragglers_and_jitter_and_nothing_else_that_disturbs():
    kept = {"training": "asynchronous", "straggler": {"rank": 1, "factor": 2}, "jitter": 0.2}
    spec = parsed(tune=SHORT, **kept, failure={"rank": 2, "step": 3}, sharpness=8).spec
    for trial in rate_grid.grid_trials(spec, spec.tune):
        assert (trial.straggler, trial.jitter) == (spec.straggler, 0.2)
        assert trial.failure is trial.target_accuracy is trial.tune is None
        assert (trial.sharpness, trial.stop_at_target, trial.seed) == (0, False, 101)


MERGED = {"name": "parameter_averaging", "period": 4}


@pytest.mark.parametrize(
    ("own", "like", "other", "text"),
    [
        ({}, {"training": "asynchronous"}, {}, "training=asynchronous"),
        ({}, {"training": MERGED}, {}, "training=parameter_averaging(period=4)"),
        (
            {"pruning": {"sparsity": 0.5}, "compression": "fp16"},
            {"pruning": "none", "compression": "none"},
            {"pruning": None},
            "pruning=none, compression=none",
        ),
        (
            {"dtype": "float64"},
            {"dtype": "float32", "batch_per_rank": 10, "ranks": 2},
            {"global_batch": None},
            "dtype=float32, batch_per_rank=10, ranks=2",
        ),
    ],
)
def test_a_case_takes_the_rate_of_another(monkeypatch, own, like, other, text):
    """Whose keys are those of the case but for ``like`` and, as a suite writes them, ``other``."""
    case = parsed(**own, tune={**SHORT, "like": like, "factor": 0.25})
    chosen, record, trained = best(monkeypatch, case.spec, 0.5, 0.7, 0.6)
    assert (chosen, record["tuned"]) == (0.003 / 4, "learning_rate=0.00075")
    assert case.fields()["tuning_like"] == f"{text}; x 0.25"
    rate_grid.TRIALS.__init__()
    another = parsed(**{**own, **like, **other}, tune=SHORT)
    assert trained == best(monkeypatch, another.spec, 0.5, 0.7, 0.6)[2]  # its own trials
    assert another.fields()["tuning_like"] is None


@pytest.mark.parametrize(
    ("name", "tune", "keys"),
    [
        *(
            ("learning_rate", SHORT, {"training": training, "jitter": 0.2, "steps": 6})
            for training in ("synchronous", "asynchronous", "d_psgd")
        ),
        ("global_batch", BATCHES, {"steps": None, "epochs": 0.1, "learning_rate": 0.1}),
    ],
)
def test_trials_are_the_training_of_the_case_and_it_takes_the_best_rate_or_batch(name, tune, keys):
    """Trials are evaluated at their end alone, with the accuracy of the whole training."""
    found, evaluations = run(parsed(**keys, tune=tune).spec)
    specs = {
        (value, seed): parsed(**{**keys, name: value}, tune=None, seed=seed).spec
        for value in tune.get("rates") or tune["batches"]
        for seed in (101, 1)
    }
    seen = {value: round(run(spec)[1][-1].accuracy, 6) for (value, seed), spec in specs.items() if seed == 101}
    assert found["tuning_trials"] == ", ".join(f"{value}: {accuracy}" for value, accuracy in seen.items())
    chosen = max(seen, key=seen.get)
    assert found["tuned"] == f"{name}={chosen}"
    assert run(specs[chosen, 1])[1] == evaluations
    if name == "global_batch":
        assert chosen != 60  # the case's own
        steps = specs[chosen, 1].planned_steps
        assert [found[key] for key in ("global_batch", "steps", "tuning")] == [chosen, steps, 3]


def test_settings_are_inside_of_their_ranges_and_integers_stay_integers():
    tune = {"trials": 40, "learning_rate": [0.01, 1.0], "optimizer": {"momentum": [0.5, 0.95]}}
    tune["training"] = {"period": [1, 16]}
    points = parsed(training="parameter_averaging", tune=tune).spec.tune.points()
    rates, momenta, periods = np.array([[*point.values()] for point in points]).T
    assert len(points) == 39
    assert rates.min() >= 0.01
    assert rates.max() <= 1
    assert 0.5 <= momenta.min() <= momenta.max() <= 0.95
    assert set(periods) <= set(range(1, 17))
    assert {1, 16} <= set(periods)
    assert np.median(rates) == pytest.approx(0.1, rel=0.3)  # logarithmic


RANGE = {"trials": 2, "learning_rate": [0.1, 1.0]}
WRONG = [
    (RANGE | {"trials": 0}, "tune: trials: must be from 1 to 1000, not 0"),
    ({"trials": 2}, "tune: learning_rate: give a range"),
    (RANGE | {"learning_rate": [1.0, 0.1]}, "tune: learning_rate: must be two numbers"),
    ({"trials": 2, "training": {"perid": [1, 4]}}, "perid"),
    (RANGE | {"network": "etherne-10g"}, "mean 'ethernet-"),
    ({"rate": [0.1, 0.2]}, "did you mean 'rates'?"),
    (SHORT | {"rates": [0.1, 0.2]}, "rates: must be 3 to 1000 ascending positive numbers, not [0.1, 0.2]"),
    (SHORT | {"rates": [0.1, 0.3, 0.2]}, "rates: must be 3"),
    (SHORT | {"rates": [0.0, 0.1, 0.2]}, "rates: must be 3"),
    (SHORT | {"rates": [0.1, 0.2, 0.3]}, "rates: 0.001, the case's own, is not among [0.1, 0.2, 0.3]"),
    (SHORT | {"rates": []}, "seed: is for the trials of a grid; give rates"),
    (SHORT | {"seed": -1}, "seed: give the trials a seed from 0 on that the case has not, such as 101"),
    (BATCHES | {"batches": [30, 60]}, "batches: must be 3 to 1000 ascending positive integers, not"),
    (BATCHES | {"batches": [20, 40, 80]}, "batches: 60, the case's own, is not among [20, 40, 80]"),
    (BATCHES | {"batches": [40, 60, 90]}, "batches: 40: global_batch: 40 is not divisible by ranks"),
    (BATCHES | SHORT, "batches: a grid has one trial for each of its rates; leave batches or"),
    (SHORT | {"like": {"rank": 3}}, "like: rank: unknown key; did you mean 'ranks'?"),
    (SHORT | {"like": {"compression": "fp61"}}, "like: compression: unknown 'fp61'; did you mean 'fp16'?"),
    (SHORT | {"like": {"ranks": 7}}, "like: global_batch: 60 is not divisible by ranks = 7"),
    (SHORT | {"like": {"seed": 3}}, "like: trials have their own tune, seed and learning_rate"),
    (SHORT | {"like": {"ranks": 2}, "factor": 0}, "factor: must be a positive number beside rates and like"),
    (SHORT | {"factor": 0.5}, "factor: must be a positive number beside rates and like"),
    (SHORT | {"seed": 1}, "seed: 1 is one of the case; take another"),
    (SHORT | {"trials": 3}, "trials: a grid has one trial for each of its rates; leave trials or rates out"),
    (SHORT | {"learning_rate": [0.1, 1.0]}, "learning_rate: a grid has"),
]


def test_a_wrong_search_is_refused_in_one_line():
    momentum = {"trials": 2, "optimizer": {"momentum": [0.1, 0.9]}}
    own = {"tune": momentum, "training": "sandblaster"}, "'sandblaster' has its own optimizer"
    for keys, message in [own, *(({"tune": tune}, message) for tune, message in WRONG)]:
        with pytest.raises(suite.UsageError) as error:
            parsed(**keys)
        assert str(error.value).startswith("s.toml: [[case]] 1: ")
        assert message in str(error.value)
        assert "\n" not in str(error.value)
