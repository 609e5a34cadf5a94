"""Every shipped suite has a report, measured by a command that exists, whose page is made of its records alone."""

import importlib.util
import json
import os
import re
import shutil
import sys
import tomllib
from pathlib import Path
from threading import Event, Timer
from types import SimpleNamespace

import pytest
from conftest import Hand

from hpcdl.analysis.run.record import Record, group_by_key
from hpcdl.cases.parts.rate_grid import Trials
from hpcdl.suite import load
from hpcdl.trace.schema import CaseRecord, packed, read, read_part, write_part

ROOT = Path(__file__).parents[2]
REPORTS = tomllib.loads((ROOT / "reports/reports.toml").read_text())["report"]
PAGES = [report for report in REPORTS if "of" not in report]
WITHOUT = {
    "alltoallv": "for a cluster of many ranks; on two cores it runs in seconds",
    "bus-bandwidth": "for a cluster, as nccl-tests; `gradient-sums` has the times on emulated links",
    "firecaffe": "ten minutes on two cores shared by 8 ranks; `published` answers for 128",
    "interconnect": "a nightly check, which answers beside its own history",
    "layer-times": "the times of a processor, for predictions",
    "overlap": "for a cluster; `near-linear` has ranks that compute",
    "stragglers": "for a cluster; `waiting` measures slow workers on two cores",
}


def test_a_report_has_the_name_of_its_suite():
    """A printed one need not: it runs several commands, or none of a suite. Some suites are run more than once."""
    suites = {path.stem for path in (ROOT / "suites").glob("*.toml")}
    ran = {re.search(r"suites/([\w-]+)\.toml", report["command"]) for report in REPORTS if "printed" not in report}
    assert {found[1] for found in ran} | WITHOUT.keys() == suites
    assert len(suites) <= 40
    for report in PAGES:
        assert f"suites/{report['name']}.toml " in report["command"]
        assert "question" not in report, "it has its suite's"
    for report in (report for report in REPORTS if "of" in report):
        assert report["of"] in {page["name"] for page in PAGES}
        assert "group" not in report


def test_pages_are_those_of_the_registry_and_decide(make):
    """Thirty; what a page that is gone has said is on a page that is there."""
    registry = (ROOT / "hpcdl/papers/registry.md").read_text().partition("## Reports")[2]
    listed = set(re.findall(r"^\| ([a-z-]+) \|", registry, re.MULTILINE)) - {"report"}
    pages = {page["name"] for page in PAGES} | {name for _, name, *_ in make.OTHERS}
    assert pages == listed | {"decide"}
    moved = tomllib.loads((ROOT / "reports/reports.toml").read_text())["moved"]
    assert not moved.keys() & pages
    assert {to for to in moved.values() if not to.startswith("`hpcdl ")} <= pages


def test_all_are_measured_within_a_working_day_and_each_in_two_looks_of_half_an_hour():
    """By the minutes that they took; two of the simulated ones run at once, and peers are measured apart.

    Three took longer than the registry's 35 minutes on two cores, on slower processors or beside other work.
    """
    made = json.loads((ROOT / "reports/data/made.json").read_text())
    known = [report for report in REPORTS if "needs" not in report and report["name"] in made]
    minutes = {report["name"]: made[report["name"]]["minutes"] for report in known}
    assert {name for name, taken in minutes.items() if taken > 70} == {"fewer-bits", "one-node", "staleness"}
    assert sum(minutes[report["name"]] / (2 if report.get("simulated") else 1) for report in known) <= 480


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
    assert facts


def test_each_says_in_whole_sentences_what_its_numbers_do_not_show():
    """A noun alone, below the heading "What this does not show", reads as if it were shown."""
    assert all("not_shown" in page for page in PAGES)
    for report in (report for report in REPORTS if "not_shown" in report):
        sentences = re.split(r"(?<=\.)\s+(?=[A-Z0-9])", report["not_shown"].strip())
        assert re.search(r"\b([Nn]o|[Nn]ot|Nothing|[Oo]nly)\b", " ".join(sentences)), report["name"]
        assert sentences[-1].endswith("."), report["name"]
        assert all(len(sentence.split()) <= 30 for sentence in sentences), report["name"]


def test_the_list_of_reports_begins_with_six_and_has_short_groups(make):
    groups = {group: [page for page in PAGES if page["group"] == group] for group in make.GROUPS}
    assert sum(map(len, groups.values())) == len(PAGES)
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
    hand.read({}, suite_text='[suite]\nname = "topologies"\nquestion = "An older question?"\n')
    (tmp_path / "suites").mkdir()
    (tmp_path / "suites/topologies.toml").write_text('[suite]\nquestion = "Which scheme is fastest?"\n')
    (tmp_path / "topologies.json.xz").write_bytes(packed(read(hand.folder)))
    cluster = tmp_path / "clusters" / "mine" / "topologies.json.xz"
    cluster.parent.mkdir(parents=True)
    shutil.copy(tmp_path / "topologies.json.xz", cluster)
    facts = {"minutes": 3.0, "commit": "abc1234", "machine": "2 cores", "date": "2026-11-26"}
    (tmp_path / "made.json").write_text(json.dumps({"topologies": facts}))
    assert make.render() == 0
    page = (tmp_path / "topologies.md").read_text().splitlines()
    assert page[0] == "# Which scheme is fastest?"
    assert page[2] == "## Answer"
    assert "1 launch" in page[6]
    assert any(line.endswith("(topologies.svg)") for line in page)
    here = page.index("## On mine")
    table = [line for line in page[:here] if line.startswith("| ")]
    assert 3 <= len(table) <= 13
    assert page[here - 2] == "Simulated on 2 cores, commit abc1234, 2026-11-26, 3 minutes."
    assert "## What this does not show" in page
    assert page[here + 2] == page[4]
    assert 3 <= sum(line.startswith("| ") for line in page[here:]) <= 7
    assert len(page) <= 80
    readme = (tmp_path / "README.md").read_text()
    assert f"| [topologies](topologies.md) | Which scheme is fastest? | {page[4]} | measured |" in readme
    assert f"| [topologies](topologies.md) on mine | Which scheme is fastest? | {page[4]} | measured |" in readme
    assert re.search(r"These runs decide none of \d+ claims", readme)  # what others measured in one job is open


@pytest.fixture
def one_suite(tmp_path, make, monkeypatch):
    """Return two simulated reports of small suites in ``tmp_path`` that share two of their cases."""
    monkeypatch.setattr(make, "STOP", Event())
    monkeypatch.setattr(make, "commit", lambda: "abc")
    (tmp_path / "suites").mkdir()
    listed = ""
    for name, seeds in (("first", [1, 2]), ("second", [1, 2, 3])):
        (tmp_path / f"suites/{name}.toml").write_text(
            f'[suite]\nname = "{name}"\nquestion = "How accurate?"\n[[case]]\nkind = "train"\nranks = 2\n'
            f'model = "lenet5"\ndataset = "digits"\nnetwork = "ethernet-1g"\nflops = 1e9\nglobal_batch = 64\n'
            f"epochs = 1\nlearning_rate = 0.1\nseed = {seeds}\n"
        )
        listed += f'[[report]]\nname = "{name}"\ngroup = "Papers"\nnot_shown = "Nothing."\nsimulated = true\n'
        listed += f'command = "sh {name}.sh suites/{name}.toml"\n'
    (tmp_path / "reports.toml").write_text(listed)
    return make.reports([])


def test_cases_that_another_report_has_finished_are_copied(one_suite, make, tmp_path):
    """Two of three cases; a part of a case that the suite no longer has is set aside."""
    first, second = one_suite
    runs = tmp_path / "runs"
    (runs / "first/parts").mkdir(parents=True)
    (runs / "second/parts").mkdir(parents=True)
    for case in load(make.suite_of(first)).cases:
        record = CaseRecord(case.fields(), [])
        write_part(runs / "first/parts" / f"0000-{case.digest}.h5", record, environment={"key": "here"})
    (runs / "second/parts/0007-0123456789ab.h5").touch()
    make.Calls(first, runs).begin()
    calls = make.Calls(second, runs)
    make.copy_cases(second, runs, calls)
    assert calls.copied == {"first": 2}
    assert calls.commits == ["abc"]
    cases = {case.digest: case for case in load(make.suite_of(second)).cases}
    parts = sorted((runs / "second/parts").iterdir())
    assert [part.suffix for part in parts] == [".h5", ".h5", ".other"]
    for part in parts[:2]:
        fields, environment = read_part(part)
        case = cases[make.digest_of(part)]
        assert fields == {**case.fields(), "environment_key": "here"}
        assert environment["key"] == "here"
        assert read(part, wanted=()).suite == make.suite_of(second).read_text()


def test_trials_of_all_reports_are_shared(one_suite, make, tmp_path):
    """A report's next call reads them."""
    _, second = one_suite
    ended = {"accuracy": 0.5, "images": 9}
    for name, trial in (("first", "rate 1"), ("third", "rate 2")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "trials.json").write_text(json.dumps({trial: ended}))
        assert Trials().keep(tmp_path / name / "trials.json") is None
    make.share_trials(second, tmp_path)
    shared = tmp_path / "second/trials.json"
    assert Trials().keep(shared) is None
    assert json.loads(shared.read_text()) == {"rate 1": ended, "rate 2": ended}


def test_an_interrupted_measurement_goes_on_and_states_all_of_its_calls(
    one_suite, make, hand, tmp_path, monkeypatch
):
    """Its first call is ended after a second. Unfinished data have no page, and the page of claims names them."""
    first, _ = one_suite
    hand.train([[1.0] * 9] * 2, network="ethernet-1g")
    hand.read()
    (tmp_path / "first.sh").write_text(
        f'echo "$*" >>arguments; mkdir -p runs/first; cp {hand.folder}/run.h5 runs/first\n'
        "test -e begun || { touch begun; exec sleep 60; }\n"
    )
    states = iter(["abc", "def"])
    monkeypatch.setattr(make, "commit", lambda: next(states))
    Timer(1, make.STOP.set).start()
    assert not make.measured(first, tmp_path / "runs")
    assert make.made()["first"].items() >= {"commit": "abc", "finished": False}.items()
    assert make.render() == 0
    assert not (tmp_path / "first.md").exists()
    assert "Not finished: measurements of first." in (tmp_path / "claims.md").read_text()
    make.STOP.clear()
    assert make.measured(first, tmp_path / "runs", core=min(os.sched_getaffinity(0)))
    facts = make.made()["first"]
    assert facts["commit"] == "abc, def"
    assert "finished" not in facts
    calls = json.loads((tmp_path / "runs/first.json").read_text())["calls"]
    assert facts["minutes"] == round(sum(call["minutes"] for call in calls), 1)
    assert make.measured(first, tmp_path / "runs")
    ran = (tmp_path / "arguments").read_text().splitlines()
    assert ran == ["suites/first.toml --resume --mix-environments"] * 2
    assert make.render() == 0
    assert "commit abc, def" in (tmp_path / "first.md").read_text()


def test_the_lock_of_the_artifact_has_every_dependency():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    wanted = [*project["dependencies"], extras["mpich"][0], extras["report"][0]]
    locked = {line.partition("==")[0].lower() for line in (ROOT / "reports/artifact/lock.txt").read_text().split()}
    assert {re.match(r"[\w-]+", name)[0].lower() for name in wanted} <= locked
