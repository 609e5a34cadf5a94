"""hpcdl history on archives made by hand: verdicts, exit codes, hosts, files that are no runs, and what it writes."""

import datetime as dt
import json
import os
import re
import shutil

import h5py
import numpy as np
import pytest
from conftest import Hand
from contract.traces import changed

from hpcdl.analysis.over_time import archive as series_file
from hpcdl.cli import main
from hpcdl.fabric.pairs import rounds
from hpcdl.trace import schema
from hpcdl.trace.schema import merge

CASES = ("ring", "tree")
DISTURBED = {"wall_ns": 10**9, "cpu_ns": 10**9, "busy_ns": 2 * 10**9, "foreign_ns": 10**9}
DISTURBED |= {"foreign_error_ns": 0, "idle_cores": 0, "steal_ns": 0, "involuntary_switches": 9, "load": 2.0}


class Archive:
    """Runs a day apart; ``factor`` slows both cases, the links of ``slow`` hosts take 1.25 times as long."""

    def __init__(self, folder):
        self.folder = folder / "nightly"
        self.rng = np.random.default_rng(5)
        self.runs = 0

    def run(self, factor=1.0, hosts=("a", "b", "c", "d"), slow=(), cases=CASES, disturbed=(), **environment):
        date = dt.datetime(2026, 3, 1, tzinfo=dt.UTC) + dt.timedelta(days=self.runs)
        folder = self.folder / f"night-{self.runs:02d}"
        hand = Hand(folder)
        shared = {"suite": "s", "message_bytes": 1 << 20, "environment_key": "k", "warmup_steps": 0}
        for number, name in enumerate(cases):
            took = (1 + number) * factor * self.rng.lognormal(0, 0.005) * (1.25 if {*slow} & {*hosts} else 1)
            fields = {"kind": "collective", "collective": "allreduce", "aggregation": name, "case": name, **shared}
            counters = [DISTURBED] * len(hosts) if name in disturbed else None
            hand.case([[took] * 3] * len(hosts), **fields, counters=counters)
        if len(hosts) >= 3 and not disturbed:
            slower = [1.25 if host in slow else 1.0 for host in hosts]
            took = self.rng.lognormal(0, 0.005, (len(hosts), len(hosts))) * np.maximum.outer(slower, slower)
            turns = [turn for turn in rounds(len(hosts), "all_pairs") for _ in range(2)]
            times = [[took[tuple(sorted((me, turn[me])))] for turn in turns] for me in range(len(hosts))]
            fields = {"kind": "pairwise", "pattern": "all_pairs", "case": "pairs", "repetitions": 2, **shared}
            hand.case(times, **fields)
        ranks = [{"hostname": host, "affinity": "0"} for host in hosts]
        hand.read({"key": "k", "date": date.isoformat(), "ranks": ranks, **environment})
        self.runs += 1
        return folder

    def nights(self, number, *arguments, **options):
        for _ in range(number):
            self.run(*arguments, **options)

    def history(self, *options):
        return main(["history", str(self.folder), *map(str, options)])


def words(capsys):
    """Return what was printed, with single spaces."""
    return " ".join(capsys.readouterr().out.split())


@pytest.fixture
def archive(tmp_path):
    return Archive(tmp_path)


@pytest.fixture(scope="module")
def thirteen(tmp_path_factory):
    """Return an archive of 13 usual nights, whose series are kept."""
    made = Archive(tmp_path_factory.mktemp("usual"))
    made.nights(13)
    made.history()
    return made


@pytest.fixture
def usual(archive, thirteen):
    """Return a copy of it, for more nights."""
    shutil.copytree(thirteen.folder, archive.folder)
    archive.runs = thirteen.runs
    return archive


def test_a_slow_link_is_found_with_its_host_and_its_repair_too(archive, capsys):
    waits = [{"link_counters": {"c": {"m/1": {"port_xmit_wait": wait}}}} for wait in (100, 900)]
    archive.nights(12, **waits[0])
    assert archive.history() == 3
    assert "has 13 runs; a verdict is possible from 2026-03-13." in words(capsys)
    archive.run()
    assert archive.history() == 0
    assert "FINE" in capsys.readouterr().out
    archive.nights(3, slow="c", **waits[1])
    assert archive.history("--json") == 1
    (suite,) = json.loads(capsys.readouterr().out)["suites"]
    (event,) = suite["events"]
    assert (event["verdict"], event["open"]) == ("regressed", True)
    assert event["first_run"].endswith("night-13")
    assert {change["case"] for change in event["changes"]} >= set(CASES)
    assert [(suspect["name"], suspect["kind"]) for suspect in event["likely"]] == [("c", "host")]
    (counter,) = event["link_counters"]
    assert counter == {"host": "c", "device": "m/1", "name": "port_xmit_wait", "before": [100] * 12, "now": [900]}
    archive.history()
    page = words(capsys)
    assert "With it port_xmit_wait of c m/1 grew by 900, and by 100 in 12 runs before." in page
    nights = [str(archive.folder / f"night-{night:02d}") for night in (3, 4, 5, 13, 14, 15)]
    assert main(["compare", *nights[:3], "--with", *nights[3:]]) == 1
    page, link = words(capsys), r"(c - \w|\w - c): it takes 1\.1\d times as long .*, before \d\.\d+\."
    assert re.search(r"REGRESSED: \w+ takes 2\d\.\d % longer \(.*\) on a,b,c,d\.", page)
    assert re.search(rf"The slowest link is {link}", page)
    archive.nights(3)
    assert archive.history() == 0
    out = words(capsys)
    assert "RESTORED: " in out and "since 2026-03-17" in out and "until 2026-03-17" in out


def test_a_regression_is_reported_until_it_is_repaired_however_the_calls_are_spaced(archive, capsys):
    archive.nights(10)
    archive.nights(8, 1.25)
    for _ in range(3):
        archive.run(1.25)
        assert archive.history() == 1
    out = words(capsys)
    size = r"2\d\.\d % longer \(2\d\.\d to 2\d\.\d %\)"
    assert re.search(rf"REGRESSED: \w+ takes {size} since 2026-03-11 00:00, and 1 other", out)
    assert "FINE" not in out
    for night in range(3):
        archive.run()
        assert archive.history() == (1 if night < 2 else 0)
    assert "RESTORED" in capsys.readouterr().out


def test_an_old_newest_run_is_exit_code_3(usual, capsys):
    assert usual.history("--stale", "36h") == 3
    out = capsys.readouterr().out
    assert "hours ago, at 2026-03-13 00:00; check that new runs start." in " ".join(out.split())
    assert "FINE" not in out
    assert usual.history("--stale", "9999d") == 0
    usual.nights(4, 1.25)
    assert usual.history("--stale", "36h") == 1


def test_slow_hosts_of_one_switch_are_one_finding(archive, capsys, tmp_path):
    hosts = [f"r{rack}n{number}" for rack in (1, 2, 3) for number in range(6)]
    slow = ("r2n0", "r2n3", "r2n4", "r1n5")
    for number in range(30):
        here = [str(host) for host in archive.rng.permutation(hosts)[:8]]
        archive.run(hosts=here, slow=slow if number >= 10 else ())
    assert archive.history("--json") == 1
    (suite,) = json.loads(capsys.readouterr().out)["suites"]
    likely = [suspect for event in suite["events"] for suspect in event["likely"]]
    named = {suspect["name"] for suspect in [*suite["slow"], *likely]}
    assert named == {"3 of 6 of r2n (r2n[0,3-4])", "r1n5"}
    file = tmp_path / "switches"
    file.write_text("# switch and hosts\nleft r1n5 r2n0 r2n3 r2n4 r3n0\n")
    archive.history("--switches", file)
    assert "4 of 5 of left (r2n[0,3-4],r1n5)" in words(capsys)


def test_a_disturbed_night_is_not_fine(archive, capsys):
    """Nothing of it counts, so that it says nothing; a case that does count is judged."""
    archive.nights(13, hosts=("a", "b"))
    assert archive.history() == 0
    assert "DISTURBED" not in capsys.readouterr().out
    archive.run(hosts=("a", "b"), disturbed=["ring"])
    assert archive.history() == 0
    line = "DISTURBED: other load disturbed 1 case of the newest run, and these times are not judged (ring: other "
    out = words(capsys)
    assert f"{line}processes took 1.00 cores" in out and "FINE" in out
    archive.run(hosts=("a", "b"), disturbed=CASES)
    assert archive.history() == 3
    out = capsys.readouterr().out
    assert "15 runs" in out and "FINE" not in out
    assert "DISTURBED: other load disturbed 2 cases" in out


def test_a_machine_that_is_never_quiet_is_judged(archive, capsys):
    """Disturbed nights count if they are the usual ones: a slow measure is found among them."""
    for number in range(22):
        archive.run(1.25 if number >= 16 else 1.0, hosts=("a", "b"), disturbed=CASES)
    assert archive.history() == 1
    out = words(capsys)
    assert out.startswith("hpcdl: history") and "REGRESSED" in out
    assert "DISTURBED, as usual: other load disturbed 2 cases" in out


def test_files_that_are_no_runs_are_named_and_skipped(usual, capsys):
    truncated, older = usual.run() / "run.h5", usual.run() / "run.h5"
    truncated.write_bytes(truncated.read_bytes()[:3000])
    with changed(older) as file:
        file.attrs["schema"] = 1
    (usual.folder / "junk.h5").write_text("junk")
    with h5py.File(usual.folder / "foreign.h5", "w") as file:
        file["x"] = 1
    (usual.folder / "empty" / "parts").mkdir(parents=True)
    for name, date in (("wrong-date", "yesterday"), ("later", "2100-01-01T00:00:00+00:00")):
        (usual.folder / name).mkdir()
        merge([], usual.folder / name / "run.h5", {"date": date}, "")
    shutil.copytree(usual.folder / "night-03", usual.folder / "copy")
    assert usual.history() == 0
    # it may take long
    lines = [line for line in capsys.readouterr().err.splitlines() if "runs read" not in line]
    assert len(lines) == 8
    for name in ("night-13", "night-14", "junk.h5", "foreign.h5", "empty", "wrong-date", "later", "night-03"):
        (line,) = (line for line in lines if name in line)
        assert line.startswith("hpcdl: warning: ")
        assert line.endswith("; skipped")


def test_a_folder_that_cannot_be_read_is_exit_code_3(usual, capsys, monkeypatch):
    walk = os.walk

    def refuse(folder, onerror):
        onerror(PermissionError(13, "Permission denied", str(usual.folder / "closed")))
        return walk(folder, onerror=onerror)

    monkeypatch.setattr(series_file.os, "walk", refuse)
    assert usual.history() == 3
    assert words(capsys).endswith("closed: Permission denied.")


def test_a_regressed_case_that_leaves_the_suite_is_missing(archive, capsys):
    for number, factor, cases in ((10, 1.0, CASES), (4, 1.2, CASES), (12, 1.2, CASES[:1])):
        archive.nights(number, factor, cases=cases, hosts=("a", "b"))
    assert archive.history() == 1
    out = words(capsys)
    assert "MISSING: tree has no result in the newest run: it left the suite, regressed since 2026-03-11" in out


@pytest.fixture(scope="module")
def regressed(tmp_path_factory):
    """Return an archive whose newest three of 13 nights are slow."""
    made = Archive(tmp_path_factory.mktemp("regressed"))
    made.nights(10)
    made.nights(3, 1.2)
    return made


def test_series_outlive_the_schema_of_their_runs(regressed, capsys, monkeypatch, refused):
    assert regressed.history() == 1
    before = capsys.readouterr().out
    monkeypatch.setattr(schema, "SCHEMA", 999)
    monkeypatch.setattr(series_file, "SCHEMA", 999)
    assert regressed.history() == 1
    assert capsys.readouterr() == (before, "")
    said = refused("compare", regressed.folder / "night-00", "--with", regressed.folder / "night-01")
    assert "but this hpcdl reads schema 999" in said


def test_metrics_junit_and_a_page_with_figures_are_written(archive, regressed, capsys, tmp_path):
    metrics, junit, page = tmp_path / "hpcdl.prom", tmp_path / "junit.xml", tmp_path / "history.html"
    archive.folder.mkdir()
    assert archive.history("-o", page) == 3
    assert "NO RUNS" in page.read_text()
    assert regressed.history("--metrics", metrics, "--junit", junit, "--calibrate", "-o", page) == 1
    assert "false regressions" in capsys.readouterr().out
    text = page.read_text()
    assert re.search(r"<h1[^>]*>REGRESSED: \w+ takes 2", text)
    assert {"ring", "tree"} <= set(re.findall("<figcaption>(.*?)<", text))
    openmetrics = pytest.importorskip("prometheus_client.openmetrics.parser")
    families = {family.name: family for family in openmetrics.text_string_to_metric_families(metrics.read_text())}
    assert all(family.type == "gauge" and family.documentation for family in families.values())
    (code,) = families["hpcdl_history_exit_code"].samples
    (opened,) = families["hpcdl_history_open_regressions"].samples
    assert (code.value, opened.labels, opened.value) == (1, {"suite": "s"}, 1)
    (suite,) = pytest.importorskip("junitparser").JUnitXml.fromfile(str(junit))
    failed = {case.name: [type(result).__name__ for result in case.result] for case in suite}
    assert failed["collective, 4 ranks, time_p50_seconds"] == ["Failure"]
    assert failed["pairwise, 4 ranks, time_p50_seconds"] == []
    assert (suite.failures, suite.tests) == (1, len(failed))
