"""Logs of other tools: values as published, what is not stated, damaged logs, and the commands that read them."""

import datetime as dt
import json
import os
import shutil
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest

from hpcdl.analysis.run.launches import launches
from hpcdl.analysis.run.scaling import records
from hpcdl.cli import main
from hpcdl.trace.recorder import TraceError
from hpcdl.trace.schema import read

LOGS = Path(__file__).parent / "logs"
OSU, IMB, NCCL = "osu-5.8-allreduce.txt", "imb-2021.2-allreduce.txt", "nccl-16-h100.txt"
AUDITED = []
sys.addaudithook(lambda *event: [note(*event) for note in AUDITED])
PICO = "pico/mare_nostrum/2025_04_10___20_36_45/0"


def cases(path, *facts):
    """Return the records of a log by operation, size and placement."""
    found = records(launches(read(path, facts=[fact.split("=") for fact in facts])))
    return {(one.collective or one.aggregation, one.message_bytes, one.placement): one for one in found}


IN_PLACE, OUT_OF_PLACE = "in_place", "out_of_place"
VALUES = [
    (OSU, 4, "allreduce", {4: 20.56, 131072: 241.87}),
    ("osu-5.6.2-allreduce.txt", 2, "allreduce", {4096: 368.40, 65536: 763.51}),
    ("osu-7.5-allreduce-archer2.txt", 4, "allreduce", {8: 10.84, 65536: 214.08}),
    ("osu-7.5-allreduce-oci.txt", 144, "allreduce", {32768: 3214.49, 4: 11.69}),
    ("osu-7.0-allreduce-full.txt", 4, "allreduce", {4: 136.08, 256: 101.53}),
    ("osu-7.1-allreduce-full.txt", 4, "allreduce", {1: 174.36, 64: 172.15}),
    ("osu-7.0-bcast-full.txt", 4, "broadcast", {1: 86.56, 64: 101.15}),
    ("osu-7.3-bcast.txt", 128, "broadcast", {1: 2.42, 1024: 6.70}),
    ("osu-5.6.3-reduce_scatter.txt", 2, "reduce_scatter", {8: 1.18, 1048576: 520.80}),
    ("osu-7.5.2-allgather.txt", 16, "allgather", {16: 10.18, 8192: 15.77}),
    ("osu-7.4-allgather-full.txt", 2, "allgather", {2: 2.81, 2097152: 104.30}),
    ("osu-5.6.3-alltoall-full.txt", 4, "all_to_all", {4: 16.36, 256: 18.58}),
    ("osu-5.8-latency.txt", 2, "ping-pong", {0: 1.61, 16384: 5.38}),
    ("osu-7.5-latency.txt", 2, "ping-pong", {1: 0.29, 2048: 1.98}),
    ("osu-5.8-bw.txt", 2, "stream", {1: 1 / 3.88, 8192: 8192 / 13470.27}),
    ("osu-7.4-allreduce-z-c-full.txt", 2, "allreduce", {4: 0.91, 64: 1160.69}),
    ("osu-7.4-bw-z-c.txt", 2, "stream", {4: 4 / 0.10, 64: 64 / 10.24}),
    ("osu-7.5-alltoall-c.txt", 8, "all_to_all", {8: 12.46, 8192: 13.37}),
    ("nccl-2.19.6-writer.json", 16, "allreduce", {(1048576, OUT_OF_PLACE): 108.3}),
    ("nccl-2.19.6-writer-per-iteration.txt", 16, "allreduce", {(4194304, IN_PLACE): 145.7}),
    ("rccl-x.json", 4, "allreduce", {(1024, IN_PLACE): 19.89765}),
    ("osu-6.2-bw.txt", 2, "stream", {1: 1 / 0.22, 2048: 2048 / 83.22}),
    (NCCL, 16, "allreduce", {(8, OUT_OF_PLACE): 135.8, (8589934592, IN_PLACE): 47743.0}),
    ("nccl-2.18-tags.txt", 2, "allreduce", {(1048576, OUT_OF_PLACE): 4366.46}),
    ("nccl-efa-tags.txt", 2, "allreduce", {(1073741824, OUT_OF_PLACE): 344981.0, (67108864, IN_PLACE): 21930.0}),
    ("nccl-8-h100-cut-devices.txt", 8, "allreduce", {(268435456, IN_PLACE): 1117.4}),
    ("rccl-8-mi300x.txt", 8, "allreduce", {(8, OUT_OF_PLACE): 19.28}),
    ("rccl-16-mi300x.txt", 16, "allreduce", {(17179869184, IN_PLACE): 90127.0}),
    (IMB, 144, "allreduce", {0: 0.03, 268435456: 206503.46}),
    ("imb-2021.7-allreduce.txt", 144, "allreduce", {268435456: 326712.51}),
    ("imb-2021.2-pingpong.txt", 2, "ping-pong", {0: 1.60, 134217728: 10935.56}),
    ("imb-allreduce-1408.txt", 1408, "allreduce", {8: 30.77, 16: 29.28}),
]
"""Log, ranks, operation, and microseconds by size, or by size and placement."""
STATED = {"nccl-efa-tags.txt": ["collective=allreduce", "ranks=2"], "nccl-8-h100-cut-devices.txt": ["ranks=8"]}
"""Facts that a log does not tell. Collectives of OSU do not tell their ranks."""


@pytest.mark.parametrize(("name", "ranks", "operation", "values"), VALUES)
def test_each_real_log_gives_its_values(name, ranks, operation, values):
    tells = not name.startswith("osu") or operation in {"ping-pong", "stream"}
    found = cases(LOGS / name, *STATED.get(name, [] if tells else [f"ranks={ranks}"]))
    for place, microseconds in values.items():
        record = found[operation, *(place if isinstance(place, tuple) else (place, None))]
        assert record.time_p50_seconds == pytest.approx(microseconds * 1e-6, abs=0.6e-9)
        assert (record.ranks, record.launches) == (ranks, 1)


@pytest.mark.parametrize(
    ("name", "size", "busbw"),
    [
        (NCCL, 8589934592, 338.82),
        (NCCL, 1048576, 9.68),
        ("rccl-8-mi300x.txt", 8589934592, 315.69),
        ("rccl-16-mi300x.txt", 536870912, 325.10),
        ("nccl-2.19.6-writer.json", 4194304, 53.68),
        ("rccl-x.json", 2048, 0.158133),
        ("nccl-2.18-tags.txt", 134217728, 2.30),
    ],
)
def test_bus_bandwidths_are_those_that_the_log_prints(name, size, busbw):
    record = cases(LOGS / name)["allreduce", size, "out_of_place"]
    assert record.busbw_bytes_per_second / 1e9 == pytest.approx(busbw, abs=0.006, rel=1e-3)
    assert record.correct is True


def test_files_of_a_pico_test_have_repetitions_nodes_and_library():
    run = read(LOGS / PICO)
    found = {(record.aggregation, record.message_bytes): record for record in records(launches(run))}
    assert found["ring", 256].time_p50_seconds == pytest.approx(114987e-9)
    assert found["recursive_doubling_ompi", 256].time_p50_seconds == pytest.approx(18852e-9)
    assert found["ring", 8388608].time_max_seconds == pytest.approx(57432932e-9)
    assert {(record.ranks, record.nodes, record.measured_steps) for record in found.values()} == {(32, 32, 9)}
    assert run.environment["mpi"] == {"library": "OMPI 4.1.5", "nodes": 32}
    assert run.environment["date"] == "2025-04-10T20:36:00+00:00"


def test_other_columns_are_kept_and_quantiles_are_not_made_up():
    record = cases(LOGS / "osu-7.0-allreduce-full.txt", "ranks=4")["allreduce", 8, None]
    assert record.further["rank_max_seconds"] == pytest.approx(123.46e-6)
    assert record.further["rank_min_seconds"] == pytest.approx(55.85e-6)
    unknown = [
        "time_p95_seconds",
        "time_p99_seconds",
        "time_max_seconds",
        "bytes_sent_per_rank",
        "messages_per_rank",
    ]
    unknown += ["waiting_seconds", "transfer_seconds", "ranks_recorded", "stolen", "steps", "nodes", "placement"]
    assert {name: record.row[name] for name in unknown} == dict.fromkeys(unknown)
    assert record.measured_steps == 1000
    assert cases(LOGS / OSU, "ranks=4")["allreduce", 4, None].row["measured_steps"] is None
    imb = cases(LOGS / IMB)["allreduce", 268435456, None]
    assert imb.further["rank_mean_seconds"] == pytest.approx(205992.71e-6)
    assert imb.dtype == "float32"


def test_quantiles_and_checks_of_osu():
    found = cases(LOGS / "osu-7.4-allreduce-z-c-full.txt", "ranks=2")
    record = found["allreduce", 64, None]
    assert record.time_p99_seconds == pytest.approx(27985.85e-6)
    assert (record.measured_steps, record.correct) == (50, True)
    failed = cases(LOGS / "osu-7.4-allreduce-fail.txt", "ranks=2")
    wrong = {size for (_, size, _), record in failed.items() if record.correct is False}
    assert (wrong, [record.correct for record in failed.values()].count(True)) == ({16}, 4)


def test_json_of_nccl_tests_names_one_device_of_each_process():
    record = cases(LOGS / "nccl-2.19.6-writer.json")["allreduce", 1048576, "in_place"]
    assert (record.ranks, record.nodes, record.measured_steps, record.correct) == (16, 2, 20, True)
    run = read(LOGS / "nccl-2.19.6-writer.json")
    assert run.environment["mpi"]["library"] == "NCCL 2.29.7"
    assert run.environment["date"] == "2026-11-29T17:32:15+00:00"


@pytest.mark.parametrize("form", ["json", "csv"])
def test_files_of_rccl_tests(tmp_path, form):
    names = ("numCycle", "name", "nodes", "ranks", "ranksPerNode", "gpusPerRank", "size", "type", "redop")
    names += ("inPlace", "time", "algBw", "busBw", "wrong")
    row = (0, "ReduceScatter", 2, 2, 1, 8, 1048576, "half", "sum", 1, 52.4, 20.01, 18.76, "0")
    file = tmp_path / f"out.{form}"
    if form == "json":
        file.write_text(f"[\n{json.dumps(dict(zip(names, row, strict=True)))}\n]\n")
    else:
        head = "numCycle,collective,nodes,ranks,ranksPerNode,gpusPerRank,size,type,redop,inplace,time,algbw,busbw,#wrong"
        file.write_text(f"{head}\n{json.dumps(row)[1:-1].replace(', ', ',')}\n")
    record = cases(file)["reduce_scatter", 1048576, "in_place"]
    assert (record.ranks, record.nodes, record.dtype, record.correct) == (16, 2, "float16", True)
    assert record.time_p50_seconds == pytest.approx(52.4e-6)
    assert record.busbw_bytes_per_second == pytest.approx(18.76e9, rel=1e-3)


CUT = "cut within this row, damaged, or under an unknown heading"


@pytest.mark.parametrize(
    ("name", "old", "new", "reason"),
    [
        (OSU, "131072                241.87", "131072                24", "line 9: '24' is no number"),
        (OSU, "241.87\nMETRICS OPERATOR TIMEPOINT\n", "", f"line 9: {CUT}: 1 of 2 columns"),
        (OSU, "20.35", "20,35", "line 7: '20,35' is no number"),
        (OSU, "Allreduce Latency Test", "Allreduce Latenztest", "line 4: 'Allreduce Latenztest' is not read"),
        (OSU, "METRICS OPERATOR TIMEPOINT\n", "# OSU MPI Latency Test v5.8\n", "line 1: no times follow"),
        (OSU, f"8{' ' * 22}20.35", f"4{' ' * 22}20.35", "line 7: allreduce-native-p4-4B again"),
        (NCCL, "# Avg bus bandwidth    : 70.742 \n", "", "line 33: the log ends before 'Avg bus bandwidth'"),
        (IMB, "206503.46    205992.71", "2065", f"line 23: {CUT}: 4 of 5 columns"),
        (IMB, "# Benchmarking Allreduce", "# OSU MPI Latency Test v5.8", "line 17: a log of osu in one of imb"),
        (
            "osu-7.5.2-allgather.txt",
            "",
            "",
            "line 4: the log does not tell the ranks: state them with --log ranks=N",
        ),
    ],
)
def test_a_damaged_log_is_refused_in_one_line(tmp_path, capsys, name, old, new, reason):
    log = tmp_path / name
    text = (LOGS / name).read_text()
    assert old in text
    log.write_text(text.replace(old, new, 1))
    facts = [] if "ranks" in reason or name != OSU else ["--log", "ranks=4"]
    assert main(["report", str(log), *facts]) == 2
    error = capsys.readouterr().err
    assert reason in error
    assert error.count("\n") == 1


@pytest.mark.parametrize("name", [OSU, IMB])
def test_a_log_that_ends_within_its_last_row_or_states_another_fact_is_refused(tmp_path, name):
    log = tmp_path / name
    last = {OSU: "241.87", IMB: "205992.71"}[name]
    log.write_text((LOGS / name).read_text().split(last)[0] + last)
    with pytest.raises(TraceError, match=rf"line \d+: {CUT}"):
        cases(log, *["ranks=4"] * (name == OSU))
    with pytest.raises(TraceError, match="--log ranks=8: the log states 144"):
        cases(LOGS / IMB, "ranks=8")


def test_a_report_marks_the_tool_and_what_is_unknown(capsys):
    assert main(["report", str(LOGS / OSU), "--log", "ranks=4"]) == 0
    text = capsys.readouterr().out
    assert "The times are those of a log, osu 5.8: means over repetitions and ranks; one launch." in text
    assert "allreduce, 4 ranks, bytes, osu 5.8" in text
    assert "Not stated: nodes, placement, library" in text


def scaled(path, factor, jitter=0.0):
    """Write osu_allreduce's log with its times multiplied."""
    lines = []
    for line in (LOGS / OSU).read_text().splitlines():
        size, *time = line.split() or [""]
        lines.append(f"{size}   {float(time[0]) * (factor + jitter):.2f}" if size.isdecimal() else line)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines))
    return str(path)


def test_compare_finds_the_ratio_of_two_logs(tmp_path, capsys):
    one, other = (str(LOGS / f"imb-2021.{version}-allreduce.txt") for version in (7, 2))
    assert main(["compare", one, "--with", other, "--json"]) == 3  # one launch a side
    text = capsys.readouterr().out
    change = next(each for each in json.loads(text)["measures"] if "268435456" in each["case"])
    assert change["ratio"] == pytest.approx(206503.46 / 326712.51)


def test_several_logs_a_side_are_launches(tmp_path, capsys):
    noise = np.random.default_rng(1).normal(0, 0.01, 12)
    logs = [scaled(tmp_path / f"{one}.log", 1.0 if one < 6 else 1.3, jitter) for one, jitter in enumerate(noise)]
    assert main(["compare", *logs[:6], "--with", *logs[6:], "--log", "ranks=4"]) == 1
    assert "REGRESSED" in capsys.readouterr().out


def test_history_finds_a_step_in_nightly_logs(tmp_path, capsys):
    noise = np.random.default_rng(2).normal(0, 0.004, 24)
    for night in range(24):
        date = dt.date(2026, 11, 1) + dt.timedelta(days=night)
        scaled(tmp_path / f"{date}" / "osu.log", 1.0 if night < 14 else 1.2, noise[night])
    assert main(["history", str(tmp_path), "--log", "ranks=4"]) == 1
    text = " ".join(capsys.readouterr().out.split())
    assert "REGRESSED: allreduce-native" in text
    assert "since 2026-11-15" in text
    assert "Compare the runs: hpcdl compare --log ranks=4 " in text


def test_a_folder_of_tables_with_dates_in_their_names_is_no_test_of_pico(tmp_path, capsys):
    for night in range(1, 4):
        scaled(tmp_path / f"{20261100 + night}_osu.log", 1.0)
        (tmp_path / f"{20261100 + night}_other_table.csv").write_text("a,b\n1,2\n")
    assert main(["history", str(tmp_path), "--log", "ranks=4"]) == 3
    assert "3 runs" in capsys.readouterr().out


def test_history_of_unknown_files_says_what_they_look_like(tmp_path, capsys):
    for night in range(3):
        (tmp_path / f"night-{night}.out").write_text("\nSTREAM version 5.10\nTriad: 12\n")
    assert main(["history", str(tmp_path)]) == 3
    line = "nor a log of imb, nccl-tests, osu, pico: line 2 is 'STREAM version 5.10'"
    assert line in capsys.readouterr().err


def test_history_opens_no_large_file_and_no_program(tmp_path, capsys):
    for number in range(5000):
        (tmp_path / f"{number}{('.py', '.dat')[number % 2]}").touch()
    with (tmp_path / "job.out").open("wb") as file:
        file.truncate(200 << 20)
    scaled(tmp_path / "osu-20261101.log", 1.0)
    opened = []

    def note(event, arguments):
        if event == "open" and str(arguments[0]).startswith(str(tmp_path)):
            opened.append(Path(arguments[0]).name)

    AUDITED.append(note)
    try:
        main(["history", str(tmp_path), "--log", "ranks=4"])
    finally:
        AUDITED.remove(note)
    assert {*opened} == {"osu-20261101.log"}
    assert "1 run" in capsys.readouterr().out


@pytest.mark.parametrize(("unit", "factor"), [("value", 1.2), ("ms", 1.2), ("GB/s", 1 / 1.2)])
def test_history_of_a_series_finds_its_step(tmp_path, capsys, unit, factor):
    values = 80 * np.exp(np.random.default_rng(3).normal(0, 0.004, 24))
    values[14:] *= factor
    dates = [dt.date(2026, 10, 1) + dt.timedelta(days=day) for day in range(24)]
    file = tmp_path / "copy.csv"
    rows = [f"triad,{day},{value:.2f}" for day, value in zip(dates, values, strict=True)]
    file.write_text("\n".join([f"name,date,{unit}", *rows, ""]))
    page = tmp_path / "copy.html"
    assert main(["history", str(file), "-o", str(page)]) == 1
    text = " ".join(capsys.readouterr().out.split())
    assert "Compare the runs" not in text
    assert f"REGRESSED: triad {'is 16.5 % lower' if unit == 'GB/s' else 'takes 20.'}" in text
    assert "since 2026-10-15" in text
    newest = f"{values[-1]:.1f} {unit}".removesuffix(" value")
    assert f">{newest}<" in page.read_text().replace("&nbsp;", " ")


def test_a_wrong_series_is_refused_with_its_line(tmp_path, capsys):
    file = tmp_path / "copy.csv"
    wrong = ["triad,2026-10-01,-1", "triad,yesterday,1", "triad,2026-10-01"]
    for unit, line, number in [*(("value", line, 2) for line in wrong), ("furlongs", "triad,2026-10-01,1", 1)]:
        file.write_text(f"name,date,{unit}\n{line}\n")
        assert main(["history", str(file)]) == 2
        error = capsys.readouterr().err
        assert f"copy.csv: line {number}: " in error
        assert error.count("\n") == 1


def test_a_network_is_fitted_to_a_log_of_latencies(tmp_path, capsys):
    network = tmp_path / "network.toml"
    alpha, beta = 2e-6, 1e-9
    rows = "".join(f"{2**power}   {(alpha + beta * 2**power) * 1e6:.2f}\n" for power in range(0, 21, 4))
    log = tmp_path / "latency.log"
    log.write_text(f"# OSU MPI Latency Test v7.4\n# Size          Avg Latency(us)\n{rows}")
    order = ["predict", str(log), "--network", str(log)]
    assert main(order) == 2
    assert "the log does not state the nodes of its ranks: --log nodes=N" in capsys.readouterr().err
    assert main([*order, "--log", "nodes=2", "--save", str(network)]) == 0
    link = tomllib.loads(network.read_text())["link"]
    assert link == {"alpha": pytest.approx(alpha, rel=0.01), "beta": pytest.approx(beta, rel=0.01)}
    assert "the times that the network was fitted to" in capsys.readouterr().out


def test_an_algorithm_that_the_library_chose_is_asked_for(capsys):
    order = ["predict", str(LOGS / OSU), "--network", str(LOGS / OSU), "--log", "nodes=2", "--log", "ranks=2"]
    assert main(order) == 2
    assert "--log algorithm=ring" in capsys.readouterr().err
    assert main([*order, "--log", "algorithm=halving_doubling"]) == 0


def test_the_date_of_a_log_is_that_of_its_name_else_of_its_file(tmp_path):
    for name, date in {
        "osu-20261128.log": "2026-11-28T00:00:00+00:00",
        "2026-11-28_03-15/osu.log": "2026-11-28T03:15:00+00:00",
        "job-20261938.log": "2020-09-13T12:26:40+00:00",
    }.items():
        log = tmp_path / name
        log.parent.mkdir(exist_ok=True)
        shutil.copy(LOGS / OSU, log)
        os.utime(log, (1_600_000_000, 1_600_000_000))
        assert read(log, facts=[("ranks", "4")]).environment["date"] == date


def test_a_log_is_kept_as_records(tmp_path):
    kept = tmp_path / "osu.json.xz"
    shutil.copy(LOGS / OSU, tmp_path)
    assert main(["report", str(tmp_path / OSU), "-o", str(kept), "--log", "ranks=4"]) == 0
    (record,) = [row for row in records(launches(read(kept))) if row.message_bytes == 4]
    assert (record.time_p50_seconds, record.ranks) == (pytest.approx(20.56e-6), 4)
