"""hpcdl history on archives made by hand: verdicts, exit codes, hosts, files that are no runs, and what it writes."""

import datetime as dt
import json
import os
import re
import shutil
from xml.etree import ElementTree as ET

import h5py
import numpy as np
import pytest
from contract.traces import changed

from hpcdl.analysis.over_time import archive as series_file
from hpcdl.cli import main
from hpcdl.fabric.pairs import rounds
from hpcdl.trace import schema
from hpcdl.trace.recorder import CaseRecord, Recorder, Step
from hpcdl.trace.schema import merge, write_part

CASES = ("ring", "tree")
DISTURBED = {"wall_ns": 10**9, "cpu_ns": 10**9, "busy_ns": 2 * 10**9, "foreign_ns": 10**9}
DISTURBED |= {"foreign_error_ns": 0, "idle_cores": 0, "steal_ns": 0, "involuntary_switches": 9, "load": 2.0}


def recorded(durations):
    """What a rank records of exchanges that take so long (s)."""
    recorder, clock = Recorder(), 10**9
    for step, seconds in enumerate(durations):
        end = clock + round(seconds * 1e9)
        recorder.steps.append(Step(step, 0, clock, end, 0.0, 0, 0, 0, 1, 1))
        clock = end
    return recorder.pack()


class Archive:
    """Runs a day apart; ``factor`` slows both cases, the links of ``slow`` hosts take 1.25 times as long."""

    def __init__(self, folder):
        self.folder = folder / "nightly"
        self.rng = np.random.default_rng(5)
        self.runs = 0

    def run(
        self, factor=1.0, hosts=("a", "b", "c", "d"), slow=(), cases=CASES, key="k", disturbed=(), **environment
    ):
        date = dt.datetime(2026, 3, 1, tzinfo=dt.UTC) + dt.timedelta(days=self.runs)
        folder = self.folder / f"night-{self.runs:02d}"
        folder.mkdir(parents=True)
        env = {
            "key": key,
            "date": date.isoformat(),
            "ranks": [{"hostname": host, "affinity": "0"} for host in hosts],
            **environment,
        }
        shared = {"suite": "s", "message_bytes": 1 << 20, "ranks": len(hosts), "environment_key": key}
        parts = []
        for number, name in enumerate(cases):
            took = 1e-3 * (1 + number) * factor * self.rng.lognormal(0, 0.005)
            took *= 1.25 if {*slow} & {*hosts} else 1
            fields = {"kind": "collective", "collective": "allreduce", "aggregation": name, "case": name, **shared}
            parts.append(folder / f"part{number}.h5")
            rank = recorded([took] * 3) | (DISTURBED if name in disturbed else {})
            write_part(parts[-1], CaseRecord(fields, [rank] * len(hosts)), environment=env)
        if len(hosts) >= 3 and not disturbed:
            table = rounds(len(hosts), "all_pairs")
            pairs = {pair: self.rng.lognormal(0, 0.005) for pair in np.ndindex(len(hosts), len(hosts))}
            times = [
                [
                    1e-3
                    * pairs[min(me, turn[me]), max(me, turn[me])]
                    * (1.25 if {*slow} & {hosts[me], hosts[turn[me]]} else 1)
                    for turn in table
                    for _ in range(2)
                ]
                for me in range(len(hosts))
            ]
            fields = {"kind": "pairwise", "pattern": "all_pairs", "case": "pairs", "repetitions": 2, **shared}
            parts.append(folder / "pairs.h5")
            write_part(parts[-1], CaseRecord(fields, list(map(recorded, times))), environment=env)
        merge(parts, folder / "run.h5", env, "")
        for part in parts:
            part.unlink()
        self.runs += 1
        return folder

    def history(self, *options):
        return main(["history", str(self.folder), *map(str, options)])


@pytest.fixture
def archive(tmp_path):
    return Archive(tmp_path)


def test_a_slow_link_is_found_with_its_host_and_its_repair_too(archive, capsys):
    waits = [{"link_counters": {"c": {"m/1": {"port_xmit_wait": wait}}}} for wait in (100, 900)]
    for _ in range(12):
        archive.run(**waits[0])
    assert archive.history() == 3
    assert "has 13 runs. It can be judged from 2026-03-13." in " ".join(capsys.readouterr().out.split())
    archive.run()
    assert archive.history() == 0
    assert "FINE" in capsys.readouterr().out
    for _ in range(3):
        archive.run(slow="c", **waits[1])
    assert archive.history("--json") == 1
    (suite,) = json.loads(capsys.readouterr().out)["suites"]
    (event,) = suite["events"]
    assert (event["verdict"], event["open"]) == ("regressed", True)
    assert event["first_run"].endswith("night-13")
    assert {one["case"] for one in event["changes"]} >= set(CASES)
    assert [(one["name"], one["kind"]) for one in event["likely"]] == [("c", "host")]
    (counter,) = event["link_counters"]
    assert counter == {"host": "c", "device": "m/1", "name": "port_xmit_wait", "before": [100] * 12, "now": [900]}
    archive.history()
    page = " ".join(capsys.readouterr().out.split())
    assert "With it port_xmit_wait of c m/1 grew by 900, and by 100 in 12 runs before." in page
    for _ in range(3):
        archive.run()
    assert archive.history() == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "RESTORED: " in out and "since 2026-03-17" in out
    assert "until 2026-03-17" in out


def test_a_regression_is_reported_until_it_is_repaired_however_the_calls_are_spaced(archive, capsys, tmp_path):
    metrics, junit = tmp_path / "hpcdl.prom", tmp_path / "junit.xml"
    for _ in range(10):
        archive.run()
    for _ in range(8):
        archive.run(1.25)
    codes = []
    for _ in range(3):
        archive.run(1.25)
        codes.append(archive.history("--metrics", metrics, "--junit", junit))
    assert codes == [1, 1, 1]
    out = " ".join(capsys.readouterr().out.split())
    assert re.search(r"REGRESSED: \w+ \(p50\) takes 2\d.\d % longer \(95 %: .{5,30}\) since 2026-03-11", out)
    assert "Found 8 runs before the newest" in out
    assert "FINE" not in out
    assert 'hpcdl_history_open_regressions{suite="s"} 1' in metrics.read_text()
    assert "since" in ET.parse(junit).find(".//failure").get("message")
    for night in range(3):
        archive.run()
        assert archive.history() == (1 if night < 2 else 0)
    assert "RESTORED" in capsys.readouterr().out


def test_an_old_newest_run_is_exit_code_3(archive, capsys):
    for _ in range(13):
        archive.run()
    assert archive.history("--stale", "36h") == 3
    out = capsys.readouterr().out
    assert "STALE: the newest run began at 2026-03-13 00:00" in " ".join(out.split())
    assert "FINE" not in out
    assert archive.history("--stale", "9999d") == 0
    for _ in range(4):
        archive.run(1.25)
    assert archive.history("--stale", "36h") == 1


def test_slow_hosts_of_one_switch_are_one_finding(archive, capsys, tmp_path):
    hosts = [f"r{rack}n{number}" for rack in (1, 2, 3) for number in range(6)]
    slow = ("r2n0", "r2n3", "r2n4", "r1n5")
    for number in range(30):
        here = [str(host) for host in archive.rng.permutation(hosts)[:8]]
        archive.run(hosts=here, slow=slow if number >= 10 else ())
    assert archive.history("--json") == 1
    (suite,) = json.loads(capsys.readouterr().out)["suites"]
    named = {
        one["name"] for one in [*suite["slow"], *(one for event in suite["events"] for one in event["likely"])]
    }
    assert named == {"3 of 6 of r2n (r2n[0,3-4])", "r1n5"}
    file = tmp_path / "switches"
    file.write_text("# switch and hosts\nleft r1n5 r2n0 r2n3 r2n4 r3n0\n")
    archive.history("--switches", file)
    assert "4 of 5 of left (r2n[0,3-4],r1n5)" in " ".join(capsys.readouterr().out.split())


def test_a_disturbed_night_is_not_fine(archive, capsys):
    """Nothing of it counts, so that it says nothing; a case that does count is judged."""
    for _ in range(13):
        archive.run(hosts=("a", "b"))
    assert archive.history() == 0
    assert "DISTURBED" not in capsys.readouterr().out
    archive.run(hosts=("a", "b"), disturbed=["ring"])
    assert archive.history() == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "DISTURBED in the newest run: 1 case, not judged: ring: other processes took 1.00 cores" in out
    assert "FINE" in out
    archive.run(hosts=("a", "b"), disturbed=CASES)
    assert archive.history() == 3
    out = capsys.readouterr().out
    assert "FINE" not in out
    assert "15 runs" in out
    assert "DISTURBED in the newest run: 2 cases" in out


def test_files_that_are_no_runs_are_named_and_skipped(archive, capsys):
    for _ in range(13):
        archive.run()
    truncated, older = archive.run() / "run.h5", archive.run() / "run.h5"
    truncated.write_bytes(truncated.read_bytes()[:3000])
    with changed(older) as file:
        file.attrs["schema"] = 1
    (archive.folder / "junk.h5").write_text("junk")
    with h5py.File(archive.folder / "foreign.h5", "w") as file:
        file["x"] = 1
    (archive.folder / "empty" / "parts").mkdir(parents=True)
    wrong = archive.folder / "wrong-date"
    wrong.mkdir()
    merge([], wrong / "run.h5", {"date": "yesterday"}, "")
    later = archive.folder / "later"
    later.mkdir()
    merge([], later / "run.h5", {"date": "2100-01-01T00:00:00+00:00"}, "")
    shutil.copytree(archive.folder / "night-03", archive.folder / "copy")
    assert archive.history() == 0
    lines = [
        line for line in capsys.readouterr().err.splitlines() if "runs read" not in line
    ]  # where it takes long
    assert len(lines) == 8
    for name in ("night-13", "night-14", "junk.h5", "foreign.h5", "empty", "wrong-date", "later", "night-03"):
        (line,) = (line for line in lines if name in line)
        assert line.startswith("hpcdl: warning: ")
        assert line.endswith("; skipped")


def test_a_folder_that_cannot_be_read_is_exit_code_3(archive, capsys, monkeypatch):
    for _ in range(13):
        archive.run()
    walk = os.walk

    def refuse(folder, onerror):
        onerror(PermissionError(13, "Permission denied", str(archive.folder / "closed")))
        return walk(folder, onerror=onerror)

    monkeypatch.setattr(series_file.os, "walk", refuse)
    assert archive.history() == 3
    assert " ".join(capsys.readouterr().out.split()).endswith("closed: Permission denied.")


def test_a_regressed_case_that_leaves_the_suite_is_missing(archive, capsys):
    for number in range(26):
        archive.run(1.0 if number < 10 else 1.2, cases=CASES if number < 14 else CASES[:1], hosts=("a", "b"))
    assert archive.history() == 1
    out = " ".join(capsys.readouterr().out.split())
    assert "MISSING in the newest run: tree: it left the suite, regressed since 2026-03-11" in out


@pytest.fixture(scope="module")
def regressed(tmp_path_factory):
    """Return an archive whose newest three of 13 nights are slow."""
    made = Archive(tmp_path_factory.mktemp("regressed"))
    for number in range(13):
        made.run(1.0 if number < 10 else 1.2)
    return made


def test_series_outlive_the_schema_of_their_runs(regressed, capsys, monkeypatch):
    assert regressed.history() == 1
    before = capsys.readouterr().out
    monkeypatch.setattr(schema, "SCHEMA", 999)
    monkeypatch.setattr(series_file, "SCHEMA", 999)
    assert regressed.history() == 1
    assert capsys.readouterr() == (before, "")
    assert main(["compare", str(regressed.folder / "night-00"), "--with", str(regressed.folder / "night-01")]) == 2
    assert "but this hpcdl reads schema 999" in capsys.readouterr().err


def test_metrics_and_junit_are_written(regressed, capsys, tmp_path):
    metrics, junit = tmp_path / "hpcdl.prom", tmp_path / "junit.xml"
    assert regressed.history("--metrics", metrics, "--junit", junit, "--calibrate") == 1
    out = capsys.readouterr().out
    assert "All runs had the same hosts" not in out
    assert "false regressions" in out
    lines = metrics.read_text().splitlines()
    assert lines[-1] == "# EOF"
    assert "hpcdl_history_exit_code 1" in lines
    assert 'hpcdl_history_open_regressions{suite="s"} 1' in lines
    typed = {line.split()[2] for line in lines if line.startswith("# TYPE")}
    assert {line.split("{")[0].split()[0] for line in lines if line[0] != "#"} <= typed
    (suite,) = ET.parse(junit).getroot()
    cases = {case.get("name"): case for case in suite.iter("testcase")}
    assert cases["collective, 4 ranks, time_p50_seconds"].find("failure") is not None
    assert cases["pairwise, 4 ranks, time_p50_seconds"].find("failure") is None
    assert suite.get("failures") == "1"


def test_a_page_with_figures_is_written(archive, regressed, tmp_path):
    page = tmp_path / "history.html"
    archive.folder.mkdir()
    assert archive.history("-o", page) == 3
    assert "TOO FEW RUNS" in page.read_text()
    assert regressed.history("-o", page) == 1
    text = page.read_text()
    assert re.search(r"<h1[^>]*>REGRESSED: \w+ \(p50\) takes 2", text)
    assert {"ring (p50)", "tree (p50)"} <= set(re.findall("<figcaption>(.*?)<", text))


@pytest.mark.parametrize(
    "options",
    [
        ["--stale", "yesterday"],
        ["--switches", "none/x"],
        ["--metrics", "none/x"],
        ["-o", "x.pdf"],
        ["-o", "none/x.html"],
    ],
)
def test_wrong_usage_is_one_line(archive, capsys, options, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    archive.run()
    try:
        code = archive.history(*options)
    except SystemExit as error:
        code = error.code
    assert code == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
