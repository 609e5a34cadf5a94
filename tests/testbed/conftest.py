"""A testbed as root makes it: a process of its own, with everything that it starts marked."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest

from hpcdl.launch.process import LaunchError
from hpcdl.launch.testbed import plan

OTHER = os.environ.get("HPCDL_OTHER_PYTHON")


@pytest.fixture(scope="session")
def _possible():
    try:
        plan(1, "1mbit")
    except LaunchError as error:
        pytest.skip(f"no emulated hosts here: {error}")


def default_signals():
    """Restore signals that a child would ignore where tests run in the background, or under nohup."""
    for ignored in (signal.SIGINT, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_DFL)


class Testbed:
    """``hpcdl testbed`` of one Python, run in a folder of its own."""

    def __init__(self, python, folder):
        self.python = Path(python).absolute()
        self.folder = folder
        self.mark = f"HPCDL_MARK={uuid.uuid4()}"
        self.temporary = folder / "temporary"
        self.temporary.mkdir()
        self.before = left()
        self.runs = []

    def start(self, *command, hosts=2, rate="200mbit", slow=(), trunk="", latency="", slow_cpu=()):
        """Start it in a session of its own, as a login would."""
        options = ["--hosts", str(hosts), "--rate", rate, *(word for one in slow for word in ("--slow", one))]
        options += [word for one in slow_cpu for word in ("--slow-cpu", one)]
        options += ["--uplink", trunk] if trunk else []
        options += ["--latency", latency] if latency else []
        name, _, value = self.mark.partition("=")
        run = subprocess.Popen(
            [self.python, "-m", "hpcdl", "testbed", *options, "--", *map(str, command)],
            cwd=self.folder,
            env={**os.environ, name: value, "TMPDIR": str(self.temporary)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            preexec_fn=default_signals,  # noqa: PLW1509
        )
        self.runs.append(run)
        return run

    def end(self):
        """So that a test that fails leaves nothing, either."""
        for run in self.runs:
            if run.returncode is None:
                run.kill()
                run.communicate()

    def __call__(self, *command, timeout=180, **options):
        run = self.start(*command, **options)
        out, err = run.communicate(timeout=timeout)
        return subprocess.CompletedProcess(command, run.returncode, out, err)

    def processes(self):
        """Everything alive that was started by us, as it has our mark in its environment."""
        return [place.name for place in Path("/proc").glob("[0-9]*") if self.mark.encode() in _environment(place)]

    def check_nothing_left(self, limit=60.0):
        """No process, link, namespace with a name, mount, or file."""
        deadline = time.monotonic() + limit
        while self.processes() and time.monotonic() < deadline:
            time.sleep(0.02)
        assert not self.processes()
        assert left() == self.before
        assert not list(self.temporary.iterdir())


def _environment(place):
    try:
        return (place / "environ").read_bytes()
    except OSError:
        return b""


def left():
    """What a testbed could leave behind besides processes, as the machine shows it."""
    links = subprocess.run(["ip", "-json", "link"], capture_output=True, check=True).stdout
    named = Path("/run/netns")
    return {
        "links": sorted(link["ifname"] for link in json.loads(links)),
        "names": sorted(path.name for path in named.iterdir()) if named.exists() else None,
        # tests of full disks, which may run at the same time, mount small file systems
        "mounts": [line for line in Path("/proc/self/mounts").read_text().splitlines() if "/small " not in line],
    }


@pytest.fixture
def testbed(_possible, tmp_path):
    made = Testbed(sys.executable, tmp_path)
    yield made
    made.end()


@pytest.fixture(params=["MPICH", "Open MPI"])
def library(request, _possible, tmp_path):
    """(name of the library, testbed) for this Python's library, and for the other one's."""
    pythons = [sys.executable, OTHER]
    if shutil.which("prterun", path=str(Path(sys.executable).parent)):
        pythons.reverse()
    python = pythons[request.param == "Open MPI"]
    if python is None:
        pytest.skip("HPCDL_OTHER_PYTHON is not set: it names a Python that has hpcdl on another MPI library")
    made = Testbed(python, tmp_path)
    yield request.param, made
    made.end()
