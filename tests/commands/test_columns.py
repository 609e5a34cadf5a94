"""Columns of CSV and JSON: hpcdl/report/README.md describes each, and each row has its origin."""

import csv
import io
import json
import re
from pathlib import Path

import hpcdl as package

from .conftest import TRAIN

DESCRIPTIONS = Path(package.__file__).parent / "report/README.md"

EVERY_KIND = (
    f'{TRAIN}training = ["synchronous", "asynchronous", "parameter_averaging"]\nranks = 2\nsteps = 4\n',
    f"{TRAIN}straggler = {{rank = 1, factor = 2}}\nranks = 2\nsteps = 3\nshares = {{weights = [2, 1]}}\n",
    (
        f'{TRAIN}training = {{name = "m_synchronous", collect = 2}}\nranks = 4\nsteps = 3\n'
        'network = "gemini"\nflops = 1e9\n'
        "failure = {rank = 3, step = 1}\n"
    ),
    (
        '[[case]]\nkind = "collective"\naggregation = ["ring", "auto"]\nranks = 2\nmessage_bytes = 64\n'
        'start = "window"\nplacement = "out_of_place"\n'
    ),
    '[[case]]\nkind = "collective"\naggregation = "ring"\nranks = 2\nmessage_bytes = 64\nnetwork = "gemini"\n',
    '[[case]]\nkind = "pairwise"\nmessage_bytes = 64\nrepetitions = 8\n',
    f'{TRAIN}compression = {{name = "top_k", density = 0.5}}\naggregation = "allgather"\nranks = 2\nsteps = 3\n',
    (
        f'{TRAIN}ranks = 2\nsteps = 3\nnetwork = "gemini"\nflops = 1e9\nvalidation = 0.1\nsharpness = 2\n'
        "tune = {trials = 2, learning_rate = [0.01, 0.1]}\n"
    ),
    f'{TRAIN}training = "pipeline"\nmesh = {{pipeline = 2}}\nranks = 2\nsteps = 3\n',
    '[[case]]\nkind = "replay"\nmodel = "lenet5"\nranks = 2\nbatch_per_rank = 8\ndevice = "k20"\nsteps = 3\n',
)


def test_exactly_the_columns_are_described(hpcdl):
    """In the tables of the document's first chapter."""
    ended = hpcdl("run", hpcdl.suite(*EVERY_KIND), "-o", "runs/o")
    assert ended.returncode == 0, ended.stderr
    ended = hpcdl.here("report", "runs/o", "-o", "table.csv")
    assert ended.returncode == 0, ended.stderr
    rows = list(csv.DictReader(io.StringIO((hpcdl.folder / "table.csv").read_text(encoding="utf-8"))))
    chapter = DESCRIPTIONS.read_text(encoding="utf-8").partition("\n# Fields of")[0]
    cells = [line.split("|")[1] for line in chapter.splitlines() if line.startswith("| `")]
    assert sorted(rows[0]) == sorted(name for cell in cells for name in re.findall(r"`(\w+)`", cell))
    for row, case in zip(rows, hpcdl.report("runs/o")["cases"], strict=True):
        for name, value in case.items():
            shown = json.dumps(value) if isinstance(value, dict) else "" if value is None else str(value)
            assert shown == row[name], name
        assert case["run"] == "o"
        assert re.fullmatch(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", case["date"])
        assert case["hosts"] == package.read(hpcdl.folder / "runs/o").environment["hostname"]
        assert case["mpi_library"] in {"MPICH", "Open MPI"}
        assert case["hpcdl_version"] == package.__version__
        assert re.fullmatch(r"[0-9a-f]{12}", case["environment_key"])
