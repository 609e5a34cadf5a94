"""Real runs, with mpirun started by hpcdl and hpcdl started by mpirun: run folder, log and report."""

import os
import re
import subprocess
from contextlib import suppress

import numpy as np
import pandas as pd
import pytest

import hpcdl as library
from hpcdl import registry

from .conftest import LIMIT, TRAIN

CONTRACT = """
suite case kind model dataset backend dtype training aggregation compression optimizer ranks nodes threads_per_rank
global_batch scaling steps step_seconds step_seconds_low step_seconds_high images_per_second speedup efficiency
efficiency_low efficiency_high compute_seconds input_seconds exposed_communication_seconds bytes_sent_per_rank
messages_per_rank compression_ratio staleness_mean staleness_max final_loss final_accuracy target_accuracy
seconds_to_target samples_to_target epochs_to_target collective message_bytes time_p50_seconds time_p99_seconds
algbw_bytes_per_second busbw_bytes_per_second correct predicted_seconds
"""
"""Fields that scripts of users rely on."""

COLLECTIVE = '[[case]]\nkind = "collective"\nrepetitions = 5\nwarmup = 1\n'


def finished(ended):
    assert ended.returncode == 0, ended.stderr
    assert "Traceback" not in ended.stderr
    return ended


NOSY = """
import atexit, sys
from pathlib import Path
from hpcdl.aggregation.ring import ring

async def nosy(comm, buffer):
    if not ranks:
        atexit.register(lambda: Path(f"modules-{comm.rank}").write_text(" ".join(sys.modules)))
    ranks.add(comm.rank)
    await ring(comm, buffer)

ranks = set()
"""


def test_one_job_runs_all_scales_and_leaves_a_run_folder(each):
    (each.folder / "mine.py").write_text(NOSY)
    suite = each.suite(TRAIN, 'steps = 8\nranks = [1, 2, 3]\naggregation = "mine:nosy"')
    ended = finished(each("run", suite, "-o", "o"))
    # a thousand ranks that import pandas load a file server for minutes
    imported = [set((each.folder / f"modules-{rank}").read_text().split()) for rank in range(3)]
    assert {"mpi4py", "numpy", "h5py", "pandas"} <= imported[0]
    for modules in imported[1:]:
        assert {"mpi4py", "numpy"} <= modules
        assert not modules & {"h5py", "pandas", "matplotlib", "rich", "scipy", "numba", "torch"}
    assert ended.stdout.startswith("[1/3] train-lenet5")
    assert "\x1b" not in ended.stdout
    folder = each.folder / "o"
    names = "log.txt parts report.html report.md run.h5 run.series.json"
    assert " ".join(sorted(path.name for path in folder.iterdir())) == names
    assert len(list((folder / "parts").glob("*.h5"))) == 3
    assert len((folder / "log.txt").read_text().splitlines()) == 6  # begin and end of each case

    run = library.read(folder)
    assert run.complete
    assert 'kind = "train"' in run.suite
    assert run.cases["ranks"].tolist() == [1, 2, 3]
    assert run.cases["nodes"].tolist() == [1, 1, 1]
    assert run.environment["mpi"]["library"] == ("Open MPI" if each.is_openmpi else "MPICH")
    assert len(run.environment["ranks"]) == 3
    columns = "case_index rank step begin end loss compute_ns messages bytes input_ns"
    assert {*columns.split()} <= {*run.steps.columns}
    assert run.steps.groupby(["case_index", "rank"]).size().tolist() == [8] * 6
    assert run.events["label"].isin(["send", "add", "input", "update"]).any()
    # the same training at every scale: rank shares of one global batch
    losses = run.evaluations.groupby("case_index")["loss"].last()
    assert losses.max() - losses.min() < 1e-3 * losses.max()

    cases = each.report()["cases"]
    assert [case["ranks"] for case in cases] == [1, 2, 3]
    spans = (run.steps["end"] - run.steps["begin"]).groupby([run.steps["case_index"], run.steps["step"]]).max()
    for index, case in enumerate(cases):
        assert case.keys() >= {*CONTRACT.split()}
        assert 0 < case["input_seconds"] < case["compute_seconds"] < case["step_seconds"]
        assert case["images_per_second"] == pytest.approx(6 * 48e9 / spans[index][2:].sum())
    assert [case["messages_per_rank"] for case in cases] == [0, 2, 4]
    assert (cases[0]["speedup"], cases[0]["efficiency"]) == (1, 1)

    finished(each.here("report", "o", "-o", "page.csv"))
    frame = pd.read_csv(each.folder / "page.csv")
    assert {*frame.columns} >= {*CONTRACT.split()}
    assert frame["ranks"].tolist() == [1, 2, 3]
    assert frame["step_seconds"].tolist() == [case["step_seconds"] for case in cases]


def test_inside_mpirun_its_ranks_are_used(each):
    suite = each.suite(TRAIN, "steps = 3\nranks = [1, 2]")
    ended = finished(each("run", suite, "-o", "o", under=each.mpirun(3)))
    assert ended.stdout.count("[2/2] ") == 1  # only rank 0 prints
    run = library.read(each.folder / "o")
    assert len(run.environment["ranks"]) == 3
    assert run.ranks.groupby("case_index").size().tolist() == [1, 2]


def on_a_terminal(hpcdl, *command):
    """Return what a command writes to a terminal."""
    screen, its_end = os.openpty()
    with subprocess.Popen(
        hpcdl.hpcdl(*command), cwd=hpcdl.folder, env=hpcdl.environment(), stdout=its_end
    ) as running:
        os.close(its_end)
        shown = b""
        with suppress(OSError):  # Linux says EIO when the other end of a terminal is closed
            while piece := os.read(screen, 4096):
                shown += piece
        assert running.wait(LIMIT) == 0
    os.close(screen)
    return shown


def test_options_reach_the_ranks_and_a_terminal_has_a_bar(hpcdl):
    suite = hpcdl.suite(TRAIN, 'epochs = 5\nranks = 2\naggregation = ["ring", "tree", "native"]')
    chosen = ("--case", "*e-p1-*", "--set", "case.steps=4", "--set", "case.ranks=[1, 2]")
    ended = finished(hpcdl.here("run", suite, "--dry-run", *chosen))
    listed = [line.split()[0] for line in ended.stdout.splitlines()[:-1]]
    assert ended.stdout.splitlines()[-1] == "2 cases, 1 rank"
    assert not (hpcdl.folder / "runs").exists()
    shown = on_a_terminal(hpcdl, "run", suite, "-n", "2", *chosen)
    assert b"[##########..........] 1/2 train-lenet5" in shown
    assert re.search(rb"\r\x1b\[K2 cases, \d+ s\r\n", shown)  # a line for all cases, and one for each in the log
    assert b"[2/2]" not in shown
    (folder,) = (hpcdl.folder / "runs").iterdir()
    assert folder.name.startswith("tiny-")
    log = (folder / "log.txt").read_text()
    assert "\x1b" not in log
    assert re.fullmatch(r"(?s)\S+ \.\.\.\n\[1/2\] .*?\n\S+ \.\.\.\n\[2/2\] .*? s\n2 cases, \d+ s\n", log)
    run = library.read(folder)
    assert run.cases["case"].tolist() == listed
    assert run.cases["steps"].tolist() == [4, 4]
    assert len(run.environment["ranks"]) == 2


def test_collectives_and_exchanges(either):
    schemes = '["ring", "halving_doubling", "native"]'
    auto = f'{COLLECTIVE}aggregation = "auto"\nranks = 2\nmessage_bytes = [4, "lenet5"]\n'
    suite = either.suite(
        f"{COLLECTIVE}aggregation = {schemes}\nranks = [2, 3]\nmessage_bytes = [0, 40]",
        '[[case]]\nkind = "pairwise"\nexchange = ["fabric", "raw"]\nmessage_bytes = [0, 64]\nrepetitions = 5',
        '[[case]]\nkind = "pairwise"\npattern = "all_pairs"\nmessage_bytes = 65536\nranks = 3\nrepetitions = 5\nconfirm = 2',
        '[[case]]\nkind = "node"\nwork = ["matrix_product", "triad", "convolution"]\nranks = 2\nrepetitions = 2',
        auto,
        f'{auto}network = "ethernet-10g"',
    )
    finished(either("run", suite, "-o", "o"))
    *cases, pairs, product, triad, convolution, chosen, large, simulated, foretold = either.report()["cases"]
    assert [case["flop_per_second"] > 1e8 for case in (product, convolution)] == [True, True]
    assert triad["algbw_bytes_per_second"] > 1e8
    assert [case["busbw_bytes_per_second"] for case in (product, triad)] == [None, None]
    assert (pairs["correct"], pairs["collective"]) == (True, "exchange of all pairs")
    # with three ranks one is idle in every round
    page = (either.folder / "o" / "report.md").read_text().partition("### all pairs, 3 ranks, 64 KiB")[2]
    rows = re.findall(r"^\| *([^:\n].*?) *\|$", page.partition("\n##")[0], re.MULTILINE)
    cells = np.array([re.split(r" *\| *", row) for row in rows])[1:, 1:]
    assert (cells == cells.T).all() and ((cells == "-") == np.eye(3, dtype=bool)).all()
    choices = [chosen, large, simulated, foretold]
    assert [case["message_bytes"] for case in choices] == [4, 4 * 431_080] * 2
    assert [case["model"] for case in choices] == [None, "lenet5"] * 2
    assert all(case["chosen"] in registry.names("aggregation") for case in choices)
    assert [case["correct"] for case in choices] == [True, True, None, None]
    assert len(cases) == 3 * 2 * 2 + 4
    assert all(case["correct"] for case in cases)
    assert all(0 < case["time_p50_seconds"] <= case["time_p99_seconds"] for case in cases)
    ring = next(case for case in cases if case["case"] == "collective-allreduce-ring-p3-40B")
    assert ring["algbw_bytes_per_second"] == pytest.approx(40 / ring["time_p50_seconds"])
    assert ring["busbw_bytes_per_second"] == pytest.approx(ring["algbw_bytes_per_second"] * 4 / 3)
    assert ring["messages_per_rank"] == 4


SLEEPY = """
import time
from pathlib import Path
from hpcdl.aggregation.ring import ring

async def sleepy(comm, buffer):
    if comm.size == 1:
        time.sleep(2)
    else:
        with Path(f"busy-{comm.rank}").open("a") as file:
            print(time.process_time(), file=file)
    await ring(comm, buffer)
"""


def test_idle_ranks_sleep(either):
    """Ranks that poll during a smaller case would take its cores and disturb its times."""
    (either.folder / "sleepy.py").write_text(SLEEPY)
    one = '[[case]]\nkind = "collective"\naggregation = "sleepy:sleepy"\nrepetitions = 1\nwarmup = 0\n'
    suite = either.suite(*(f"{one}ranks = {p}\nmessage_bytes = {4 * i}" for i, p in enumerate([2, 1, 2])))
    finished(either("run", suite, "-o", "o"))
    # each case calls once in its time and once more to compare the ranks' bits
    _, before, after, _ = map(float, (either.folder / "busy-1").read_text().split())
    assert after - before < 0.3  # of the two seconds that rank 0 was alone
