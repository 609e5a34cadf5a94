"""hpcdl run --trials: the trials of grids alone, which the run in the same folder takes over."""

import json
import signal

from .conftest import TRAIN

GRID = "tune = {rates = [0.0125, 0.05, 0.2], seed = 101}"
CASE = f"""{TRAIN}
ranks = 3
steps = 8
validation = 0.2
network = "ethernet-10g"
flops = 1e10
seed = [1, 2]
"""
OTHER = f'{CASE.replace("seed = [1, 2]", "")}training = "asynchronous"\n'


def kept(folder):
    return json.loads((folder / "out/trials.json").read_text())


def test_the_run_takes_the_trials_over(hpcdl):
    like = GRID.replace("seed", 'like = {training = "synchronous"}, factor = 0.5, seed')
    suite = hpcdl.suite(f"{CASE}{GRID}", f"{OTHER}{like}", TRAIN.replace("0.05", "0.1") + "ranks = 1\nsteps = 2")
    done = hpcdl("run", suite, "--trials", "-o", "out")
    lines, trials = done.stdout.splitlines(), kept(hpcdl.folder)
    assert (done.returncode, done.stderr, len(trials), len(lines)) == (3, "", 3, 2)  # shared by both methods
    found = sorted(((one["accuracy"], json.loads(key)["learning_rate"]) for key, one in trials.items()))
    best = found[-1][1]
    assert best == 0.2
    for line, method, rate in zip(lines, ("synchronous", "asynchronous"), ("0.2", "0.1"), strict=True):
        assert method in line
        assert line.endswith(f"; best learning_rate={rate}, at an edge of its grid: HIGH: add 0.8")
    again = hpcdl("run", suite, "--trials", "-o", "out")
    assert again.returncode == 2
    assert again.stderr == "hpcdl: -o out: already has trials; add --resume or choose another folder\n"
    altered = {key: {"accuracy": 0.5 if '"learning_rate": 0.05,' in key else 0.1, "images": 9} for key in trials}
    file = hpcdl.folder / "out/trials.json"
    file.write_text(json.dumps(altered))
    told = hpcdl("run", suite, "--trials", "-o", "out", "--resume")
    assert (told.returncode, told.stdout.count("; best learning_rate=0.05\n")) == (0, 1)
    assert hpcdl("run", suite, "-o", "out").returncode == 0
    records = hpcdl.report("out")["cases"]
    assert [record["tuned"] for record in records] == ["learning_rate=0.05"] * 2 + ["learning_rate=0.025", None]
    assert [record["tuning_like"] for record in records] == [None, None, "training=synchronous; x 0.5", None]


def test_an_interrupted_run_keeps_the_trials_that_have_ended(hpcdl):
    suite = hpcdl.suite(f"{CASE}{GRID}".replace("steps = 8", "steps = 400"))
    run = hpcdl.start("run", suite, "-o", "out")
    hpcdl.wait_until((hpcdl.folder / "out/trials.json").exists, run)
    run.send_signal(signal.SIGTERM)
    run.communicate(timeout=60)
    before = kept(hpcdl.folder)
    assert 0 < len(before) < 3
    assert not [*(hpcdl.folder / "out/parts").glob("*.h5")]
    mark = next(iter(before))
    before[mark]["images"] += 1  # a trial that ran again would have the images of before
    (hpcdl.folder / "out/trials.json").write_text(json.dumps(before))
    short = hpcdl("run", suite, "-o", "out", "--resume", "--trials")
    assert short.returncode in {0, 3}
    assert kept(hpcdl.folder)[mark] == before[mark]
    assert len(kept(hpcdl.folder)) == 3


WRONG = [
    ("--trials", "--trials: name the folder of the run that follows with -o"),
    ("--trials -o out -n 2", "--trials: give -n, --launches, --case-timeout"),
    ("--trials -o out --launches 2", "--trials: give -n, --launches, --case-timeout"),
    ("--trials -o out", "--trials: no case of the suite 'tiny' has a grid: tune with rates or batches"),
]


def test_trials_that_cannot_run_are_refused(hpcdl, refused):
    suite = hpcdl.suite(CASE)
    for options, message in WRONG:
        assert message in refused("run", suite, *options.split())
