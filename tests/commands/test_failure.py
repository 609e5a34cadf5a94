"""Process failures: with Open MPI the other ranks finish the case; otherwise the case cannot run."""

import pytest

from hpcdl.trace.schema import read

from .conftest import TRAIN

DOWNPOUR = f"""{TRAIN.replace("0.05", "0.02")}
epochs = 2
ranks = 4
training = {{name = "downpour", servers = 1}}
failure = {{rank = 3, step = 5}}
"""
SANDBLASTER = f"""{TRAIN.replace("0.05", "1.0").replace("48", "720")}
steps = 8
ranks = 4
training = {{name = "sandblaster", servers = 1}}
failure = {{rank = 3, step = 5}}
"""

DIES = """
import os
from hpcdl.training.parts.traits import Strategy
from hpcdl.training.synchronous import synchronous

TRAITS = Strategy(lockstep=True, splits_layers=True)

async def dies(comm, session):
    rates = session.learning_rate
    def rate(step):
        if step == 3 and comm.rank == 2:
            os.kill(os.getpid(), 9)
        return rates(step)
    session.learning_rate = rate
    await synchronous(comm, session)
"""


def test_other_ranks_finish_after_a_process_failure(each):
    """A failure leaves the job fewer ranks, so that hpcdl starts another job for the remaining cases."""
    two = DOWNPOUR.replace("rank = 3", "rank = [2, 3]") + 'compression = {name = "top_k", density = 0.1}\n'
    usual = '[[case]]\nkind = "collective"\naggregation = "ring"\nranks = 4\nmessage_bytes = 4\nrepetitions = 3\n'
    done = each("run", each.suite(DOWNPOUR, two, usual), "-o", "o")
    if not each.is_openmpi:
        assert done.returncode == 1
        (line,) = [line for line in each.log("o/log.txt").splitlines() if ": not run: " in line]
        assert line.count("train-lenet5-digits-downpour(servers=1)-") == 2
        assert "-top_k(density=0.1)-" in line
        assert "MPICH ends the job when a rank fails; Open MPI 5 started by mpirun" in line
        assert len(read(each.folder / "o").described) == 1
        return
    assert done.returncode == 0, done.stdout + done.stderr
    assert "a process failed after 2 of 3 cases" in each.log("o/log.txt")
    run = read(each.folder / "o")
    assert run.complete
    failures = [case.get("process_failure") for case in run.described]
    assert failures == ["rank 3 at step 5", "rank 2 at step 5, rank 3 at step 5", None]
    assert each.log("o/log.txt").count("rank 3 at step 5 failed\n") == 2
    page = (each.folder / "o/report.md").read_text()
    assert page.count("rank 3 at step 5 failed, and the others went on.") == 2
    assert "left a trace" not in page
    frames = (run.steps, run.evaluations, run.updates)
    for index, alive in enumerate(({0, 1, 2}, {0, 1})):
        steps, tests, updates = (frame[frame["case_index"] == index] for frame in frames)
        assert set(steps["rank"]) == set(tests["rank"]) == alive
        assert tests.groupby("rank")["accuracy"].last().nunique() == 1
        assert tests["accuracy"].iloc[-1] > 0.8
        assert len(updates) == 4 * run.described[index]["steps"]  # others did the failed rank's share
        assert (updates["worker"] == 3).sum() <= 5


def test_l_bfgs_continues_after_a_worker_failed(other):
    if not other.is_openmpi:
        pytest.skip("this MPI library ends the job when a rank fails")
    done = other("run", other.suite(SANDBLASTER), "-o", "o")
    assert done.returncode == 0, done.stdout + done.stderr
    run = read(other.folder / "o")
    assert [case["process_failure"] for case in run.described] == ["rank 3 at step 5"]
    assert set(run.steps["rank"]) == {2}
    assert set(run.evaluations["rank"]) == {0, 1, 2}
    assert run.evaluations["step"].max() == 8


def test_a_failed_rank_of_a_model_group_is_named_and_ends_the_case(each):
    (each.folder / "mine.py").write_text(DIES)
    case = f'{TRAIN}steps = 20\nranks = 4\nmesh = {{model = 2}}\ntraining = "mine:dies"\n'
    done = each("run", each.suite(case), "-o", "o")
    assert done.returncode == 1
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("hpcdl: FAILED")]
    assert line.endswith(": rank 2: its process ended during this case, and the job with it")
    assert line.removeprefix("hpcdl: FAILED ") in each.log("o/log.txt")
