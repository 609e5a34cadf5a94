"""``hpcdl compare``: exit codes, pages, accepted regressions, JUnit, and runs that cannot be read."""

import json
import math
import re
from dataclasses import replace
from functools import partial
from xml.etree import ElementTree as ET

import pytest
from conftest import Hand

from hpcdl.analysis.over_time.pairing import Change
from hpcdl.analysis.over_time.regressions import VERDICTS, Comparison
from hpcdl.cli import main
from hpcdl.report.comparison import verdict, verdict_of
from hpcdl.report.formats.verdicts import words

CASE = {"suite": "s", "kind": "collective", "collective": "allreduce", "message_bytes": 64, "aggregation": "ring"}

STEADY = (1.0, 1.01, 0.99, 1.002, 0.998)

ENVIRONMENT = {"key": "k", "cpu": {"governor": "performance"}, "mpi": {"version": "5.0"}}


def write(folder, side, launches, environment=ENVIRONMENT, **cases):
    """Write one run per launch, return their paths; ``cases``: ms by name."""
    for number, factor in enumerate(launches):
        night = folder / side / f"night-{number}"
        night.mkdir(parents=True)
        run = Hand(night)
        for name, ms in (cases or {"ring": 1.0, "tree": 2.0}).items():
            run.case([[factor * ms] * 3] * 2, **CASE, case=name, warmup_steps=0, correct=True)
        date = f"2026-{11 + (side == 'b')}-{number + 1:02d}T03:00:00+00:00"
        run.read({**environment, "date": date}, complete=True)
    return sorted(map(str, (folder / side).glob("night-*")))


@pytest.fixture
def nights(tmp_path):
    return partial(write, tmp_path)


@pytest.fixture(scope="module")
def slower(tmp_path_factory):
    """Arguments of a comparison of runs with others that take 1.2 times as long."""
    folder = tmp_path_factory.mktemp("slower")
    return [*write(folder, "a", STEADY), "--with", *write(folder, "b", [1.2 * factor for factor in STEADY])]


@pytest.mark.parametrize(
    ("factor", "headline"),
    [
        (1.0, "UNCHANGED: 2 of 2 measures take as long as before, within 3 %; the largest difference: "),
        (1.2, r"REGRESSED: (ring|tree) takes 20\.0 % longer \(18\.\d to 21\.\d %\) on n7\."),
        (0.8, r"IMPROVED: (ring|tree) takes 20\.0 % less time \(18\.9 to 21\.1 %\) on n7\."),
    ],
)
def test_exit_codes_and_headlines(nights, slower, capsys, factor, headline):
    now = nights("b", [factor * one for one in STEADY], {**ENVIRONMENT, "ranks": [{"hostname": "n7"}] * 2})
    assert main(["compare", *slower[: len(STEADY)], "--with", *now]) == (factor > 1)
    page = " ".join(capsys.readouterr().out.split())
    assert re.search(headline, page)
    assert f"2 measures of 2 cases: 2 {headline.partition(':')[0].lower()}." in page


def test_a_page_in_a_file_and_json(slower, capsys, tmp_path):
    for ending, start in (("html", "<h1>"), ("md", "## Verdict\n\n")):
        file = tmp_path / f"p.{ending}"
        assert main(["compare", *slower, "-o", str(file)]) == 1
        assert re.search(
            rf"{start}REGRESSED: (ring|tree) takes 20\.0(&nbsp;| )% longer", file.read_text(encoding="utf-8")
        )
    assert main(["compare", *slower, "-o", str(tmp_path / "p.txt")]) == 2
    assert "must end in .html or .md" in capsys.readouterr().err
    assert main(["compare", *slower, "--json", "--min-effect", "0.05"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["schema"], found["verdict"], found["exit_code"]) == (1, "regressed", 1)
    assert (found["min_effect"], found["unit"], found["environment_differences"]) == (0.05, "launch", [])
    first = found["measures"][0]
    assert (first["suite"], first["measure"], first["verdict"]) == ("s", "time_p50_seconds", "regressed")
    assert first["ratio_low"] < first["ratio"] < first["ratio_high"]
    assert (first["ratio"], first["largest_undecided_ratio"]) == (pytest.approx(1.2), None)
    assert first["candidate_seconds"] == pytest.approx(1.2 * first["baseline_seconds"])
    assert first["p_adjusted"] < 0.05 and first["smallest_visible_ratio"] > 1.05
    assert [run["date"] for run in found["baseline"]][:2] == [f"2026-11-0{day}T03:00:00+00:00" for day in (1, 2)]


def test_what_launches_left_is_taken_as_it_is(tmp_path, capsys):
    for side in "ab":
        for number, factor in enumerate(STEADY, 1):
            folder = tmp_path / side / f"launch-{number}"
            folder.mkdir(parents=True)
            Hand(folder).case([[factor + (side == "b") / 1e6] * 3], **CASE, case="c", warmup_steps=0).read()
        (tmp_path / side / "report.md").touch()
    sides = [str(tmp_path / "a"), "--with", str(tmp_path / "b")]
    assert main(["compare", *sides, "-o", str(tmp_path / "page.html")]) == 3
    assert '<header class="">' in (tmp_path / "page.html").read_text(encoding="utf-8")
    page = " ".join(capsys.readouterr().out.split())
    assert "Baseline: 5 launches of 1 job" in page
    assert "Jobs are assumed to differ by 2 % (--between-jobs): compare several jobs." in page
    assert main(["compare", *sides, "--between-jobs", "0.5%"]) == 0


def test_environment_differences_and_counters_that_grew_more_come_before_the_measures(nights, capsys):
    """Counters of the candidate, if they grew more than twice as much as in any run of the baseline."""

    def of(wait, pause):
        return {"link_counters": {"n7": {"m/1": {"port_xmit_wait": wait, "rx_prio3_pause": pause}}}}

    other = {"key": "j", "cpu": {"governor": "powersave"}, "mpi": {"version": "5.1"}, **of(201, 100)}
    other["variables"] = {"UCX_TLS": "tcp", "SLURM_JOB_ID": "9"}
    before, now = nights("a", STEADY, {**ENVIRONMENT, **of(100, 50)}), nights("b", STEADY, other)
    assert main(["compare", *before, "--with", *now, "--json"]) == 0
    (counter,) = json.loads(capsys.readouterr().out)["link_counters"]
    place = {"host": "n7", "device": "m/1", "name": "port_xmit_wait"}
    assert counter == {**place, "before": [100] * 5, "now": [201] * 5}
    main(["compare", *before, "--with", *now])
    page = capsys.readouterr().out
    facts = page[page.index("RUNS AND ENVIRONMENT") : page.index("ALL MEASURES")]
    assert re.search(r"n7 +m/1 +port_xmit_wait +100 +201\n", facts)
    changed = (
        "mpi was 5.0 and is 5.1",
        "governor was performance and is powersave",
        "UCX_TLS was not set and is tcp",
    )
    assert all(f"- {change}" in facts for change in changed)
    assert "SLURM" not in facts


def test_verdict_and_table_are_short_and_of_eighty_columns(nights, capsys, tmp_path):
    cases = {f"train-{'long-' * 20}{number}": 1.0 for number in range(9)}
    before = nights("a", STEADY, **cases, **{"gone-" * 20 + "1": 1.0})
    now = nights("b", [1.5 * one for one in STEADY], **cases, **{"new-" * 30: 1.0, "new2": 1.0})
    accept = tmp_path / "accept.toml"
    accept.write_text(
        f'[[accept]]\ncase = "{"long-" * 30}*"\nreason = "r"\nchange = "50%"\nexpires = 2020-01-01\n'
    )
    assert main(["compare", *before, "--with", *now, "--accept", str(accept)]) == 1
    page = capsys.readouterr().out
    verdict = page[page.index("VERDICT") : page.index("RUNS AND")].strip().split("\n")
    assert len(verdict) <= 8
    assert max(map(len, page.split("\n"))) <= 80
    assert re.search(
        r"\ntrain-long-[\w-]* +regressed +1\.00 ms +1\.50 ms +\+50\.0 % \(\+4\d\.\d to \+5\d\.\d %\)", page
    )


def test_junit_fits_its_schema(nights, capsys, tmp_path):
    before = nights("a", STEADY, ring=1.0, gone=1.0)
    now = nights("b", [1.2 * one for one in STEADY], ring=1.0, **{"<&\x1b": 1.0})
    file = tmp_path / "junit.xml"
    assert main(["compare", *before, "--with", *now, "--junit", str(file)]) == 1
    (suite,) = suites = ET.fromstring(file.read_text(encoding="utf-8"))
    assert (suites.tag, suite.tag) == ("testsuites", "testsuite")
    needed = {"package", "id", "name", "timestamp", "hostname", "tests", "failures", "errors", "time"}
    assert needed <= set(suite.keys()) <= needed | {"skipped"}
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d", suite.get("timestamp"))
    tags, cases = [child.tag for child in suite], suite.findall("testcase")
    assert tags == ["properties", *["testcase"] * len(cases), "system-out", "system-err"]
    assert int(suite.get("tests")) == len(cases) == 3
    assert all({"name", "classname", "time"} == set(case.keys()) for case in cases)
    outcomes = {case.get("name"): [child.tag for child in case] for case in cases}
    assert outcomes == {
        "ring time_p50_seconds": ["failure"],
        "gone time_p50_seconds": ["failure"],
        "<&\\x1b time_p50_seconds": [],
    }
    assert int(suite.get("failures")) == 2
    failure = next(case for case in cases if case.get("name").startswith("ring")).find("failure")
    assert set(failure.keys()) == {"type", "message"}
    assert failure.get("type") == "regressed"
    assert "ring takes 20.0 % longer" in failure.get("message")
    assert "VERDICT" in suite.find("system-out").text


WRONG = [
    ('[[accept]]\ncase = "a"\nreason = "b"\nexpire = 2027-01-01', "[[accept]] 1: expire: unknown key; did you mean 'expires'?"),
    ('[[acept]]\ncase = "a"', "acept: unknown key; did you mean 'accept'?"),
    ('[[accept]]\ncase = "a"\nexpires = 2027-01-01', "[[accept]] 1: reason: must be a text, not None"),
    ('[[accept]]\ncase = "a"\nreason = ""\nexpires = 2027-01-01', "[[accept]] 1: reason: must be a text, not ''"),
    ('[[accept]]\ncase = 3\nreason = "b"\nexpires = 2027-01-01', "[[accept]] 1: case: must be a text, not 3"),
    ('[[accept]]\ncase = "a"\nreason = "b"\nexpires = "2027-01-01"', "[[accept]] 1: expires: must be a date without quotes"),
    ('[[accept]]\ncase = "a"\nreason = "b"\nexpires = 2027-01-01T00:00:00', "[[accept]] 1: expires: must be a date"),
    ('[[accept]]\ncase = "a"\nreason = "b"\nexpires = 2027-01-01', "[[accept]] 1: change: must be the largest accepted slowdown"),
    ("accept = 3", "accept: must be tables, [[accept]]"),
    ("[[accept]", "not TOML: Expected"),
]  # fmt: skip


def test_a_wrong_accept_file_or_share_is_one_line(slower, refused, tmp_path):
    file = tmp_path / "accept.toml"
    for text, complaint in WRONG:
        file.write_text(text)
        assert f"--accept {file}: {complaint}" in refused("compare", *slower, "--accept", file)
    for share in ["1", "100%", "-3%", "3 percent", "nan", ""]:
        said = refused("compare", "a", "--with", "b", f"--min-effect={share}")
        assert "is no share below 1, such as 3% or 0.03" in said


def test_each_sentence_of_a_comparison_appears():
    numbers = {"ratio": 1.2, "low": 1.1, "high": 1.3, "p": 0.01}
    changes = [Change("s", "ring", "step_seconds", ([], []), word, "why", **numbers) for word in VERDICTS]
    changes += [replace(changes[1], by_share=True), replace(changes[4], p=math.nan)]
    told = [verdict_of(change) for change in changes]
    assert {one.word for one in told if len(one.headline.split()) <= 30} == words("compare")
    overall = [verdict(Comparison([change], "launch", (1, 1), 0.0, 0.03, [], [])) for change in changes]
    assert {one.word for one in overall if len(one.headline.split()) <= 30} == words("comparison")
    for one, whole in zip(told, overall, strict=True):
        assert one.case in whole.sentence and whole.row.good == (whole.word in {"improved", "unchanged"})
