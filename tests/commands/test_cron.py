"""Lines for cron in the documentation, in cron's environment: hardly any variables, and a short PATH."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).absolute().parent


@pytest.fixture
def cron(tmp_path):
    """cron(command): run it as cron does; ``mail`` and ``sbatch`` write down what they get."""
    programs = tmp_path / "programs"
    programs.mkdir()
    for name, text in (("mail", 'echo "$@"; cat'), ("sbatch", 'echo "$@"; command -v hpcdl')):
        (programs / name).write_text(f"#!/bin/sh\n{{ {text}; }} > {tmp_path}/{name}.txt\n")
        (programs / name).chmod(0o755)

    def run(command):
        environment = {"HOME": str(tmp_path), "LOGNAME": "someone", "SHELL": "/bin/sh"}
        environment["PATH"] = f"{programs}:/usr/bin:/bin"
        ended = subprocess.run(
            ["/bin/sh", "-c", command], env=environment, capture_output=True, text=True, timeout=120, check=False
        )
        assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", ""), ended

    return run


def line(document, program):
    """Return the command of the only line for cron of a program; an unescaped % would be a line break."""
    lines = re.findall(r"^[\d*]+ [\d*]+ \* \* \*  (.*)$", (ROOT / document).read_text(), re.MULTILINE)
    (command,) = [command for command in lines if program in command]
    assert "%" not in command
    return command


def test_history_is_mailed_if_it_is_not_fine(cron, tmp_path):
    (tmp_path / "hpcdl/runs").mkdir(parents=True)
    (tmp_path / "hpcdl/.venv").symlink_to(BIN.parent)
    cron(re.sub("/scratch|/var/lib/node_exporter", str(tmp_path), line("hpcdl/docs/nightly.md", "history")))
    mail = (tmp_path / "mail.txt").read_text()
    assert mail == "-s hpcdl admins\nhpcdl: history\n\nVERDICT\nNO RUNS: the folder runs has no run.\n"
    assert "hpcdl_history_exit_code 3" in (tmp_path / "hpcdl.prom").read_text()


def test_the_nightly_job_finds_hpcdl_and_the_page_on_clusters_has_a_line_that_mails(cron, tmp_path):
    (tmp_path / "interconnect/runs").mkdir(parents=True)
    (tmp_path / "hpcdl").symlink_to(BIN.parent)
    for document, script in (("slurm/README.md", "nightly"), ("hpcdl/docs/cluster.md", "interconnect")):
        cron(line(document, "sbatch"))
        given, found = (tmp_path / "sbatch.txt").read_text().splitlines()
        assert given == f"{script}.sbatch"
        assert Path(found).resolve() == (BIN / "hpcdl").resolve()
    cron(line("hpcdl/docs/cluster.md", "history"))
    assert "NO RUNS: the folder runs has no run." in (tmp_path / "mail.txt").read_text()
