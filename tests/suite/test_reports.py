"""Every shipped suite has a report, measured by a command that exists, whose page is made of its records alone."""

import importlib.util
import json
import re
import shutil
import sys
import tomllib
from pathlib import Path

import pytest
from conftest import Hand

from hpcdl.report.claims import sources
from hpcdl.trace.records import packed
from hpcdl.trace.schema import read

ROOT = Path(__file__).parents[2]
REPORTS = tomllib.loads((ROOT / "reports/reports.toml").read_text())["report"]
WITHOUT = {
    "firecaffe": "ten minutes on two cores shared by 8 ranks; firecaffe-cluster answers for 128",
    "interconnect": "a nightly check, which answers beside its own history",
    "parallelism-replay": "meshes.md runs it on more hosts",
}


def test_every_suite_has_a_report():
    run = {name for report in REPORTS for name in re.findall(r"suites/([\w-]+)\.toml", report["command"])}
    suites = {path.stem for path in (ROOT / "suites").glob("*.toml")}
    assert run | WITHOUT.keys() == suites
    assert not run & WITHOUT.keys()


def test_all_are_measured_within_half_a_working_day_and_each_in_20_minutes():
    """By the minutes that they took; two of the simulated ones run at once, and peers are measured apart."""
    made = json.loads((ROOT / "reports/data/made.json").read_text())
    known = [report for report in REPORTS if "needs" not in report and report["name"] in made]
    minutes = {report["name"]: made[report["name"]]["minutes"] for report in known}
    assert max(minutes.values()) <= 20
    assert sum(minutes[report["name"]] / (2 if report.get("simulated") else 1) for report in known) <= 240


def test_each_says_what_its_numbers_do_not_show():
    assert [report["name"] for report in REPORTS if not report.get("not_shown", "").strip().endswith(".")] == []


def test_a_report_has_a_question_of_its_suite_or_its_own():
    assert all(report.get("printed", False) == ("question" in report) for report in REPORTS)


def test_the_claim_that_answers_is_one_of_the_run():
    texts = {
        (clause.run, claim.text) for source in sources() for claim in source.claims for clause in claim.clauses
    }
    for report in REPORTS:
        own = [text for run, text in texts if run == report["name"] and text.startswith(report.get("claims", ""))]
        assert own or not report.get("claims"), report["name"]


def test_what_stands_in_the_folder_is_made_or_explained():
    targets = {report["name"] + suffix for report in REPORTS for suffix in (".md", ".svg", ".txt")}
    there = {path.name for path in (ROOT / "reports").iterdir() if path.suffix in {".md", ".svg", ".txt"}}
    assert there <= targets | {"README.md", "gpu.md", "fashion-mnist.md", "claims.md"}


@pytest.fixture
def make(tmp_path, monkeypatch):
    """The program, whose folders are all ``tmp_path``, with the reports of the tree."""
    spec = importlib.util.spec_from_file_location("make", ROOT / "reports/make.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "make", module)
    spec.loader.exec_module(module)
    for name in ("HERE", "DATA", "ROOT"):
        monkeypatch.setattr(module, name, tmp_path)
    for name in ("MADE", "CLUSTERS", "AGREEMENT"):
        monkeypatch.setattr(module, name, tmp_path / getattr(module, name).name)
    (tmp_path / "reports.toml").write_bytes((ROOT / "reports/reports.toml").read_bytes())
    return module


def test_times_of_another_measurement_agree_within_their_intervals(make, tmp_path):
    """Of two launches whose medians differ by a tenth, and of one launch whose steps hardly differ."""
    for folder, slower in ((tmp_path, 1.0), (tmp_path / "other", 1.05)):
        folder.mkdir(exist_ok=True)
        (tmp_path / f"run-{slower}").mkdir()
        hand = Hand(tmp_path / f"run-{slower}")
        for launch in range(2):
            times = [slower * (10.0 + launch + step % 2 / 10) for step in range(20)]
            hand.train([times] * 2, launch=launch, case="ring")
            if launch == 0:
                hand.train([times] * 2, launch=launch, case="layerwise", training="layerwise")
        hand.read()
        (folder / "quickstart.json.gz").write_bytes(packed(read(hand.folder)))
    assert make.agree(tmp_path / "other") == 0
    assert (tmp_path / "agreement.md").read_text().splitlines()[2:] == [
        "| quickstart | 1 of 1 | 0 of 1 |",
        "| all | 1 of 1 | 0 of 1 |",
    ]


def test_a_page_has_question_answer_figure_table_and_command(hand, tmp_path, make):
    """Of records alone: the run, and the version that measured it, may be gone."""
    common = {"kind": "collective", "collective": "allreduce", "dtype": "float32", "correct": True}
    for scheme, ms in (("ring", 1.0), ("tree", 2.0)):
        for number in range(10):
            hand.case([[ms * 2**number] * 9] * 2, **common, aggregation=scheme, message_bytes=1024 << number)
    hand.read({}, suite_text='[suite]\nname = "simulated"\nquestion = "An older question?"\n')
    (tmp_path / "suites").mkdir()
    (tmp_path / "suites/simulated.toml").write_text('[suite]\nquestion = "Which scheme is fastest?"\n')
    (tmp_path / "simulated.json.gz").write_bytes(packed(read(hand.folder)))
    cluster = tmp_path / "clusters" / "mine" / "simulated.json.gz"
    cluster.parent.mkdir(parents=True)
    shutil.copy(tmp_path / "simulated.json.gz", cluster)
    facts = {"minutes": 3.0, "commit": "abc1234", "machine": "2 cores", "date": "2026-11-26"}
    (tmp_path / "made.json").write_text(json.dumps({"simulated": facts}))
    assert make.render() == 0
    page = (tmp_path / "simulated.md").read_text().splitlines()
    assert page[0] == "# Which scheme is fastest?"
    assert page[2] == "## Answer"
    assert any(line.endswith("(simulated.svg)") for line in page)
    here = page.index("## On mine")
    assert 3 <= sum(line.startswith("| ") for line in page[:here]) <= 13
    assert page[here - 2] == "Simulated on 2 cores, commit abc1234, 2026-11-26, 3 minutes."
    assert "## What this does not show" in page
    assert "Basis: 1 launch." in page
    assert page[here + 2] == page[4]
    assert 3 <= sum(line.startswith("| ") for line in page[here:]) <= 7
    assert len(page) <= 80
    assert "[simulated](simulated.md) on mine | Which scheme is fastest? |" in (tmp_path / "README.md").read_text()
    assert "[simulated](simulated.md) | Which scheme is fastest?" in (tmp_path / "README.md").read_text()


def test_the_lock_of_the_artifact_has_every_dependency():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [
        *project["dependencies"],
        *(project["optional-dependencies"][name][0] for name in ("mpich", "report")),
    ]
    locked = {line.partition("==")[0].lower() for line in (ROOT / "reports/artifact/lock.txt").read_text().split()}
    assert {re.match(r"[\w-]+", name)[0].lower() for name in wanted} <= locked
