"""Every shipped suite has a report, measured by a command that exists, whose page is made of its records alone."""

import importlib
import importlib.util
import json
import re
import shutil
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest
from conftest import Hand

from hpcdl.analysis.run.launches import launches
from hpcdl.analysis.run.record import Record, group_by_key
from hpcdl.trace.schema import packed, read

ROOT = Path(__file__).parents[2]
REPORTS = tomllib.loads((ROOT / "reports/reports.toml").read_text())["report"]
WITHOUT = {
    "alltoallv": "for a cluster of many ranks; on two cores it runs in seconds",
    "real-networks": "an hour and a half, measured once; a page of the registry of claims shows it",
    "stragglers": "for a cluster; `waiting` measures slow workers on two cores",
    "firecaffe": "ten minutes on two cores shared by 8 ranks; firecaffe-cluster answers for 128",
    "interconnect": "a nightly check, which answers beside its own history",
}


def test_a_report_has_the_name_of_its_suite():
    """A printed one need not: it runs several commands, or none of a suite."""
    suites = {path.stem for path in (ROOT / "suites").glob("*.toml")}
    printed = {report["name"] for report in REPORTS if report.get("printed")}
    assert {report["name"] for report in REPORTS} | WITHOUT.keys() == suites | printed
    for report in REPORTS:
        assert report["name"] in printed or f"suites/{report['name']}.toml " in report["command"]
        assert report.get("printed", False) == ("question" in report), "others have their suite's"


def test_all_are_measured_within_half_a_working_day_and_each_in_a_quarter_of_an_hour():
    """By the minutes that they took; two of the simulated ones run at once, and peers are measured apart."""
    made = json.loads((ROOT / "reports/data/made.json").read_text())
    known = [report for report in REPORTS if "needs" not in report and report["name"] in made]
    minutes = {report["name"]: made[report["name"]]["minutes"] for report in known}
    assert max(minutes.values()) <= 16
    assert sum(minutes[report["name"]] / (2 if report.get("simulated") else 1) for report in known) <= 210


def test_headers_of_suites_state_the_minutes_and_seeds_of_the_measurement():
    """Minutes within a quarter or one, and the most seeds of a case; what --full adds does not count."""
    words = "zero one two three four five six seven eight nine ten eleven twelve thirteen".split()  # noqa: SIM905
    made, facts = json.loads((ROOT / "reports/data/made.json").read_text()), 0
    for name in sorted(made.keys() & {path.stem for path in (ROOT / "suites").glob("*.toml")}):
        header = (ROOT / f"suites/{name}.toml").read_text().partition("\n[")[0].replace("\n#", "").lower()
        stated = re.findall(rf"\b({'|'.join(words)}|\d+) (minute|seed)s?\b", re.sub("--full [^.]*", "", header))
        numbers = [(unit, words.index(word) if word in words else int(word)) for word, unit in stated]
        measured, seeds = made[name]["minutes"], [n for unit, n in numbers if unit == "seed"]
        assert all(abs(n - measured) <= max(1, measured / 4) for unit, n in numbers if unit == "minute"), name
        if seeds:
            records = [Record.of(fields) for fields in read(ROOT / f"reports/data/{name}.json.xz").described]
            cases = group_by_key(((one.configuration(), one.ranks), one.seed) for one in records)
            assert max(seeds) == max(len({*some}) for some in cases.values()), name
        facts += len(numbers)
    assert facts > 30


@pytest.mark.parametrize("run", ["decentralised", "fewer-bits", "gossip"])
def test_compression_ratios_of_older_records_are_converted(run):
    """They were to dense messages: p - 1 in a broadcast, two to neighbours, or a ring every few steps."""
    for one in launches(read(ROOT / f"reports/data/{run}.json.xz")):
        record, ranks = one.record, one.record.ranks
        times = {"update_broadcast": 2 / ranks, "d_psgd": (ranks - 1) / ranks}.get(record.strategy, record.period)
        ratio = one.case.fields.get("compression_ratio")
        assert record.compression_ratio == (ratio and pytest.approx(times * ratio, rel=0.02)), record.case


def test_each_says_in_whole_sentences_what_its_numbers_do_not_show():
    """A noun alone, below the heading "What this does not show", reads as if it were shown."""
    for report in REPORTS:
        sentences = re.split(r"(?<=\.)\s+(?=[A-Z0-9])", report["not_shown"].strip())
        assert re.search(r"\b([Nn]o|[Nn]ot|Nothing|[Oo]nly)\b", " ".join(sentences)), report["name"]
        assert sentences[-1].endswith("."), report["name"]
        assert all(len(sentence.split()) <= 30 for sentence in sentences), report["name"]


def test_the_list_of_reports_begins_with_six_and_has_short_groups(make):
    groups = {group: [report for report in REPORTS if report["group"] == group] for group in make.GROUPS}
    assert sum(map(len, groups.values())) == len(REPORTS)
    others = [group for group, *_ in make.OTHERS]
    assert len(groups["Start here"]) == 6
    assert all(len(of) + others.count(group) <= 9 for group, of in groups.items())


def test_the_answer_of_what_a_program_printed_is_one_sentence_that_stands_once(make):
    for report in make.reports([]):
        data = ROOT / "reports/data" / f"{report.name}.txt"
        if report.printed and data.exists():
            (make.DATA / data.name).write_bytes(data.read_bytes())
            _, answer, _, lines = make.printed_page(report)
            assert "\n".join(lines).count(answer) == 1
            assert len(answer.split()) <= 30
            assert re.fullmatch(r"[^.]*(?:[.]\w[^.]*)*[.]", answer), answer


def test_the_uplinks_answer_is_of_undisturbed_times(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "tests/testbed")
    uplink = importlib.import_module("uplink")
    rows = [(1.06, False), (0.95, False), (2.0, True)]
    cases = [{"predicted_seconds": of, "time_p50_seconds": 1.0, "disturbed": disturbed} for of, disturbed in rows]
    taken = [case | {"disturbed": "rank 0"} for case in cases]
    assert uplink.answer({1: taken}) == "Not decided: other load disturbed all measured times."
    assert uplink.answer({1: cases, 4: cases[1:]}) == (
        "Predicted allreduce times differ from undisturbed measured ones by at most 6 % at 1:1 and 5 % at 4:1."
    )


def test_what_stands_in_the_folder_is_made_or_explained():
    targets = {report["name"] + suffix for report in REPORTS for suffix in (".md", ".svg", ".txt")}
    there = {path.name for path in (ROOT / "reports").iterdir() if path.suffix in {".md", ".svg", ".txt"}}
    assert there <= targets | {"README.md", "gpu.md", "claims.md"}


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


def test_the_list_of_reports_says_how_times_came_about(make):
    """A replay on emulated hosts is no measurement of computing; a simulated training has real gradients."""
    replay = {"kind": "replay", "emulated": True}
    collective = {"kind": "collective", "emulated": True}
    simulated = [{"kind": kind, "network": "gemini"} for kind in ("replay", "train")]
    for fields, words in (
        ([{}], "measured"),
        ([replay, collective], "replayed on emulated hosts, measured on emulated hosts"),
        (simulated, "simulated, trained in virtual time"),
    ):
        assert make.how(SimpleNamespace(records=[Record(**row) for row in fields])) == words


def test_times_of_another_measurement_agree_within_their_intervals(make, tmp_path):
    """Of two launches whose medians differ by a tenth; one launch has no interval."""
    for folder, slower in ((tmp_path, 1.0), (tmp_path / "other", 1.05)):
        folder.mkdir(exist_ok=True)
        hand = Hand(tmp_path / f"run-{slower}")
        for launch in range(2):
            times = [slower * (10.0 + launch + step % 2 / 10) for step in range(20)]
            hand.train([times] * 2, launch=launch, case="ring")
            if launch == 0:
                hand.train([times] * 2, launch=launch, case="layerwise", training="layerwise")
        hand.read()
        (folder / "quickstart.json.xz").write_bytes(packed(read(hand.folder)))
    assert make.agree(tmp_path / "other") == 0
    _, _, *rows = (tmp_path / "agreement.md").read_text().splitlines()
    assert rows == ["| quickstart | 1 of 1 | - |", "| all | 1 of 1 | - |"]


def test_a_page_has_question_answer_figure_table_and_command(hand, tmp_path, make):
    """Of records alone: the run, and the version that measured it, may be gone."""
    common = {"kind": "collective", "collective": "allreduce", "dtype": "float32", "correct": True}
    for scheme, ms in (("ring", 1.0), ("tree", 2.0)):
        for number in range(10):
            hand.case([[ms * 2**number] * 9] * 2, **common, aggregation=scheme, message_bytes=1024 << number)
    hand.read({}, suite_text='[suite]\nname = "simulated"\nquestion = "An older question?"\n')
    (tmp_path / "suites").mkdir()
    (tmp_path / "suites/simulated.toml").write_text('[suite]\nquestion = "Which scheme is fastest?"\n')
    (tmp_path / "simulated.json.xz").write_bytes(packed(read(hand.folder)))
    cluster = tmp_path / "clusters" / "mine" / "simulated.json.xz"
    cluster.parent.mkdir(parents=True)
    shutil.copy(tmp_path / "simulated.json.xz", cluster)
    facts = {"minutes": 3.0, "commit": "abc1234", "machine": "2 cores", "date": "2026-11-26"}
    (tmp_path / "made.json").write_text(json.dumps({"simulated": facts}))
    assert make.render() == 0
    page = (tmp_path / "simulated.md").read_text().splitlines()
    assert page[0] == "# Which scheme is fastest?"
    assert page[2] == "## Answer"
    assert "1 launch" in page[6]
    assert any(line.endswith("(simulated.svg)") for line in page)
    here = page.index("## On mine")
    table = [line for line in page[:here] if line.startswith("| ")]
    assert 3 <= len(table) <= 13
    assert page[here - 2] == "Simulated on 2 cores, commit abc1234, 2026-11-26, 3 minutes."
    assert "## What this does not show" in page
    assert page[here + 2] == page[4]
    assert 3 <= sum(line.startswith("| ") for line in page[here:]) <= 7
    assert len(page) <= 80
    readme = (tmp_path / "README.md").read_text()
    assert f"| [simulated](simulated.md) | Which scheme is fastest? | {page[4]} | measured |" in readme
    assert f"| [simulated](simulated.md) on mine | Which scheme is fastest? | {page[4]} | measured |" in readme
    assert re.search(r"These runs decide none of \d+ claims", readme)  # what others measured in one job is open


def test_the_lock_of_the_artifact_has_every_dependency():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    wanted = [*project["dependencies"], extras["mpich"][0], extras["report"][0]]
    locked = {line.partition("==")[0].lower() for line in (ROOT / "reports/artifact/lock.txt").read_text().split()}
    assert {re.match(r"[\w-]+", name)[0].lower() for name in wanted} <= locked
