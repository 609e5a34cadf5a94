"""The scripts of slurm/ and those that hpcdl sbatch writes, on a real Slurm of virtual nodes."""

import os
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path

import pytest

import hpcdl

ROOT = Path(__file__).parents[2]
SCRIPTS = sorted((ROOT / "slurm").glob("*.sbatch"))
LIMIT = 100
"""Seconds that a job may take."""
OTHER = Path(os.environ.get("HPCDL_OTHER_PYTHON", "absent")).absolute()
"""The Python of the environment with the other MPI library."""

SUITE = """
[suite]
name = "sums"

[[case]]
kind = "collective"
aggregation = ["ring", "tree"]
ranks = [2, 4]
message_bytes = 4096
repetitions = 5
"""
SLOW = """
[suite]
name = "slow"

[[case]]
kind = "replay"
model = "lenet5"
flops = 1e9
batch_per_rank = 16
aggregation = ["ring", "tree", "butterfly", "direct"]
ranks = 2
steps = 6
warmup = 1
"""
CASES = 4
"""Of the suite SLOW."""
LIMITED = ["ring", "tree", "butterfly", "direct", "chain", "allgather", "binomial"]

pytestmark = pytest.mark.slurm


@pytest.fixture
def job(slurm, tmp_path):
    """job(script, *options): its number; ``job.ended(number)``: its state and exit code."""
    return Jobs(slurm, tmp_path)


class Jobs:
    def __init__(self, slurm, folder):
        self.slurm = slurm
        self.folder = folder
        names = ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "OMP_NUM_THREADS")
        self.environment = dict.fromkeys(names, "1")

    def path(self, python=sys.executable):
        return {**self.environment, "PATH": f"{Path(python).parent}:{self.slurm.environment['PATH']}"}

    def run(self, *command, python=sys.executable):
        """Run a command on the login node, in the folder of this test."""
        return self.slurm(*command, cwd=self.folder, **self.path(python))

    def write(self, suite, *options, exclusive=False, python=sys.executable):
        """Write a batch script for the text of a suite; its nodes may be those of the job of :func:`limited`."""
        (self.folder / "suite.toml").write_text(suite)
        script = self.folder / "job.sbatch"
        more = () if exclusive else ("--no-exclusive",)
        self.run("hpcdl", "sbatch", "suite.toml", *options, *more, "-o", script, python=python)
        return script

    def __call__(self, script, *options, before=(), python=sys.executable):
        answer = self.run("sbatch", "--parsable", *before, script, *options, python=python)
        return answer.stdout.strip()

    def ended(self, number):
        """Wait for the end of a job or of all tasks of an array; return the exit code and state of each."""
        deadline = time.monotonic() + LIMIT
        while True:
            shown = self.slurm("scontrol", "show", "job", number).stdout
            states = re.findall(r"JobState=(\w+)", shown)
            if states and not {*states} & {"PENDING", "RUNNING", "COMPLETING", "SUSPENDED", "REQUEUED"}:
                return sorted({*zip(states, re.findall(r"ExitCode=(\d+)", shown), strict=True)})
            assert time.monotonic() < deadline, f"{shown}\n{self.output()}"
            time.sleep(0.2)

    def wait(self, condition):
        deadline = time.monotonic() + LIMIT
        while not condition():
            assert time.monotonic() < deadline, self.output()
            time.sleep(0.05)

    def restarts(self, number):
        """How often each task of the job was requeued."""
        shown = self.slurm("scontrol", "show", "job", number).stdout
        return [int(count) for count in re.findall(r"Restarts=(\d+)", shown)]

    def output(self):
        return "\n".join(path.read_text() for path in sorted(self.folder.glob("*.out")))

    def cases(self):
        """Number of the finished cases of each run folder."""
        return {folder.name: len(hpcdl.read(folder).cases) for folder in sorted(self.folder.glob("runs/*/"))}


@pytest.fixture(autouse=True, scope="module")
def limited(slurm, tmp_path_factory):
    """Return a job of an array that reaches its time limit; it runs beside the other tests, because it takes a minute.

    Its cases of eight seconds take 57. Slurm looks at limits every 30 seconds: it signals after 15 to 45.
    """
    job = Jobs(slurm, tmp_path_factory.mktemp("limited"))
    options = ("--nodes", "1", "--ranks-per-node", "2", "--time", "1", "--launches", "2", "--set", "case.steps=36")
    script = job.write(SLOW, *options, "--set", f"case.aggregation={LIMITED}")
    script.write_text(script.read_text().replace("USR1@120", "USR1@45"))
    return job, job(script, before=["--array=1-2"])  # both tasks at once


SMALL = ("--set", "case.backend=numpy", "--set", "case.dataset=digits", "--set", "case.steps=2")
SHORT = {
    "check": ("--case", "train-*-ring-*", "--set", "case.steps=3"),
    "scaling": (*SMALL, "--case", "*-ring-p[124]-*"),
    "scaling-launches": (*SMALL, "--case", "*-ring-p2-*"),
    "nightly": ("--case", "collective-allreduce-ring-p4-*", "--set", "case.repetitions=3"),
    "hybrid": (*SMALL, "--set", "case.threads=1", "--set", "case.model=lenet5"),
    "gpu": (*SMALL, "--case", "*-ring-p2-*"),
}
"""Options for hpcdl run with which a script of slurm/ has done after some seconds."""


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_a_shipped_script_runs(script, job):
    fitting = ["--nodes=4", "--ntasks-per-node=1", "--cpus-per-task=1", "--time=5", "--oversubscribe"]
    fitting += ["--gpus-per-node=2"] if "--gpus-per-node" in script.read_text() else []
    array = ["--array=1-2"] if "--array" in script.read_text() else []
    number = job(script, *SHORT[script.stem], before=[*fitting, *array])
    assert job.ended(number) == [("COMPLETED", "0")], job.output()
    runs = job.cases()
    assert len(runs) == (2 if array else 1)
    assert all(runs.values())


MINE = sys.executable
COMBINATIONS = [(MINE, "mpirun"), (MINE, "srun --mpi=pmi2"), (OTHER, "mpirun"), (OTHER, "srun --mpi=pmix")]
LAUNCHERS = ["mpich-mpirun", "mpich-srun", "openmpi-mpirun", "openmpi-srun"]


@pytest.fixture(params=COMBINATIONS, ids=LAUNCHERS)
def launched(request, job):
    """A function that writes a batch script, and the Python of its environment."""
    python, launcher = request.param
    if not Path(python).exists():
        pytest.skip("HPCDL_OTHER_PYTHON names no environment with the other MPI library")
    if "pmix" in launcher and not list(Path("/usr/lib").glob("*/pmix2/lib/libpmix.so")):
        pytest.skip("Slurm's PMIx plugin finds no libpmix.so; .ci/run makes the link")
    (job.folder / "site.toml").write_text(f'launcher = "{launcher}"\n')
    return lambda suite, *options: job(
        job.write(suite, "--site", "site.toml", *options, python=python), python=python
    )


def test_cases_of_several_sizes_run_in_one_job(job, launched):
    number = launched(SUITE, "--nodes", "4", "--set", "case.trace=events")
    assert job.ended(number) == [("COMPLETED", "0")], job.output()
    assert job.cases() == {f"sums-4-nodes-{number}": 4}
    counters = hpcdl.read(job.folder / f"runs/sums-4-nodes-{number}").environment["link_counters"]
    assert list(counters) == ["n1", "n2", "n3", "n4"]  # nodes, where all have one hostname


@pytest.mark.parametrize("launched", COMBINATIONS[1:3], ids=LAUNCHERS[1:3], indirect=True)
def test_a_job_that_is_signalled_is_requeued_until_all_cases_have_finished(job, launched):
    number = launched(SLOW, "--nodes", "2")
    parts = job.folder / f"runs/slow-2-nodes-{number}/parts"
    job.wait(lambda: len([*parts.glob("*.h5")]) >= 1)
    job.slurm("scancel", "--signal=USR1", "--batch", number)  # as Slurm does before the time limit
    assert job.ended(number) == [("COMPLETED", "0")], job.output()
    assert job.cases() == {f"slow-2-nodes-{number}": CASES}
    assert job.restarts(number) == [1]


def test_jobs_are_requeued_at_their_time_limit(limited):
    """An array of two: each task requeues itself."""
    job, number = limited
    assert job.ended(number) == [("COMPLETED", "0")], job.output()
    assert job.cases() == {f"slow-1-nodes-{number}_{task}": len(LIMITED) for task in (1, 2)}
    assert min(job.restarts(number)) >= 1


WITHOUT_CASE = "no case was finished within the time limit, so the job is not requeued: give it more time\n"
FINISH = 'mkdir -p "${@: -1}/parts" && touch "$_/a.h5"'


@pytest.mark.parametrize(
    ("directive", "work", "says"), [("requeue", "", WITHOUT_CASE), ("no-requeue", FINISH, "")]
)
def test_a_job_that_finishes_no_case_or_is_not_to_be_requeued_ends(directive, work, says, job):
    """A program in the place of hpcdl that is always interrupted."""
    program(job.folder, "hpcdl", f"{work}\nexit 75")
    script = job.write(SLOW, "--nodes", "2", "--directive", directive)
    script.write_text(script.read_text().replace("set -u", f"set -u\nPATH={job.folder}:$PATH"))
    number = job(script)
    assert job.ended(number) == [("FAILED", "75")], job.output()
    assert job.restarts(number) == [0]
    assert job.output() == says
    assert f"Requeue={int(bool(says))} " in job.slurm("scontrol", "show", "job", number).stdout


def program(folder, name, text):
    """Write a program that comes before others of its name."""
    (folder / name).write_text(f"#!/bin/bash\n{text}\n")
    (folder / name).chmod(0o755)


def test_a_job_has_its_nodes_alone_its_cores_and_its_directives(job):
    """Launches come one after the other; srun starts a rank with the cores that it is to have, not with one or all."""
    shows = "scontrol show job $SLURM_JOB_ID; scontrol show step $SLURM_JOB_ID.$SLURM_STEP_ID"
    program(job.folder, "hpcdl", shows)
    (job.folder / "site.toml").write_text(
        f'launcher = "srun --mpi=none"\nenvironment = ["PATH={job.folder}:$PATH"]\ndirectives = ["nice=7", "qos=a"]\n'
    )
    given = ("--nodes", "1", "--ranks-per-node", "2", "--cpus-per-rank", "3", "--launches", "2")
    script = job.write(SLOW, *given, "--site", "site.toml", "--directive", "comment=it's a #b", exclusive=True)
    number = job(script)
    assert job.ended(number) == [("COMPLETED", "0")], job.output()
    shown = job.output()
    wanted = {"OverSubscribe=NO", "ArrayTaskThrottle=1", "Nice=7", "Comment=it's a #b"}
    assert {*re.findall(r"(?:OverSubscribe|ArrayTaskThrottle|Nice)=\S+|Comment=.*\S", shown)} == wanted
    assert {*re.findall(r"StepId=.*\n.*\n.*\n.*TRES=(cpu=\d+)", shown)} == {"cpu=6"}


def test_slurm_reads_a_time_limit_as_it_is_meant(job):
    limits = {"90": "01:30:00", "1:30": "00:02:00", "1:30:00": "01:30:00", "1-2": "1-02:00:00"}
    for text, limit in {**limits, "1-2:30": "1-02:30:00", "1-2:30:00": "1-02:30:00", "0": "UNLIMITED"}.items():
        script = job.write(SUITE, "--nodes", "4", "--time", text)
        number = job(script, before=["--hold"])
        assert f"TimeLimit={limit} " in job.slurm("scontrol", "show", "job", number).stdout
        job.slurm("scancel", number)
        script.unlink()


def test_slurm_refuses_a_directive_and_no_script_is_left(job):
    (job.folder / "suite.toml").write_text(SLOW)
    words = ("hpcdl", "sbatch", "suite.toml", "--nodes", "2", "--submit", "--directive", "constraint=absent")
    with pytest.raises(subprocess.CalledProcessError) as failed:
        job.run(*words)
    assert failed.value.returncode == 1
    assert failed.value.stderr.count("\n") == 1
    assert "Invalid feature specification" in failed.value.stderr
    assert not list(job.folder.glob("*.sbatch"))


def test_ranks_run_in_a_container(job):
    """A program in the place of Apptainer, which starts its command outside of any container."""
    program(job.folder, "apptainer", 'echo "$2 in $3"; shift 3; exec "$@"')
    (job.folder / "site.toml").write_text(f'environment = ["PATH={job.folder}:$PATH"]\ncontainer = "a b.sif"\n')
    given = ("--nodes", "2", "--site", "site.toml", "--set", "case.ranks=2", "--directive", "gres=gpu:1")
    number = job(job.write(SUITE, *given))
    assert job.ended(number) == [("COMPLETED", "0")], job.output()
    assert job.cases() == {f"sums-2-nodes-{number}": 2}
    assert job.output().count("--nv in a b.sif") == 2


def test_a_launcher_that_does_not_fit_the_library_ends_with_78(job):
    if not OTHER.exists():
        pytest.skip("HPCDL_OTHER_PYTHON names no environment with the other MPI library")
    (job.folder / "site.toml").write_text('launcher = "srun --mpi=pmi2"\n')
    number = job(job.write(SUITE, "--nodes", "4", "--site", "site.toml", python=OTHER), python=OTHER)
    assert job.ended(number) == [("FAILED", "78")], job.output()
    assert "launcher and MPI library do not fit" in job.output()
    assert not job.cases()


def test_a_study_is_submitted_with_a_job_that_reports_one_scaling_table(job):
    (job.folder / "suite.toml").write_text(SLOW.replace('"slow"', '"HPCDL-NAME"'))
    (job.folder / "venv").write_text("")
    (job.folder / "site.toml").write_text('environment = ["source venv"]\n')
    words = "hpcdl sbatch suite.toml --nodes 1,2 --submit --site site.toml --no-exclusive"
    said = job.run(*shlex.split(words)).stdout
    *numbers, last = re.findall(r"job (\d+):", said)
    assert [job.ended(number) for number in (*numbers, last)] == [[("COMPLETED", "0")]] * 3, job.output()
    assert job.cases() == {f"HPCDL-NAME-{nodes}-nodes-{numbers[nodes - 1]}": CASES for nodes in (1, 2)}
    scaling = (job.folder / f"runs/HPCDL-NAME-{last}.md").read_text().partition("## Scaling")[2]
    assert re.search(r"^\| ring +\| +2 \|", scaling, re.MULTILINE)
    assert re.search(r"^\| 1 rank \(any scheme\) +\| +1 \|", scaling, re.MULTILINE)


def test_the_check_of_a_job_is_of_its_tasks(job):
    script = job.folder / "check.sbatch"
    script.write_text("#!/bin/bash\n#SBATCH --output=%x-%j.out\nsrun --mpi=pmi2 hpcdl check\n")
    number = job(script, before=["--nodes=2", "--ntasks-per-node=1", "--cpus-per-task=1", "--time=2"])
    assert job.ended(number) == [("COMPLETED", "0")], job.output()
    shown = job.output()
    assert re.search(r"^ok +MPI: MPICH \d+, 2 ranks on ", shown, re.MULTILINE)
    assert re.search(r"^ok +Slurm tasks: ", shown, re.MULTILINE)


SHOWN = re.findall(r"^\$ (hpcdl sbatch .* --submit)$", (ROOT / "slurm/README.md").read_text(), re.MULTILINE)
FEWER = {
    "bus-bandwidth": ("--case", "*-ring-*", "--set", "case.message_bytes=4096"),
    "overlap": ("--case", "replay-*-layerwise-ring-*", "--set", "case.steps=2"),
    "near-linear": ("--case", "*googlenet*-ring-p4-*"),
}
"""Options with which a job of the first hour has done after some seconds."""


@pytest.mark.parametrize("command", SHOWN[-3:], ids=lambda command: command.split()[2])
def test_a_job_of_the_first_hour_leaves_records_that_a_page_takes(command, job):
    """As slurm/README.md says, on four nodes, with fewer cases and steps, and one launch."""
    words = shlex.split(command.replace("--nodes 8", "--nodes 4").replace("--launches 3", "--no-exclusive"))
    name = words[2]
    for number in re.findall(r"job (\d+):", job.run(*words, *FEWER[name]).stdout):
        assert job.ended(number) == [("COMPLETED", "0")], job.output()
    (run,) = (job.folder / "runs").glob(f"{name}-*-nodes-*")
    records = job.folder / f"{name}.json.xz"
    job.run("hpcdl", "report", run, "--together", "-o", records)
    assert f"hpcdl: {name}" in job.run("hpcdl", "report", records).stdout
