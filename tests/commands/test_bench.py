"""A line per size, as OSU's benchmarks and nccl-tests print them: wide with several schemes, in 80 characters."""

import json
import re
import sys

import pytest
from conftest import Hand

from hpcdl.analysis.run.record import Record
from hpcdl.cli import main
from hpcdl.commands.parts.bench_table import MEASURED, BenchTable, fastest, wide_row


def rows(output):
    """Return the cells of each line that is not a comment."""
    return [line.split() for line in output.splitlines() if not line.startswith("#")]


def test_one_scheme_has_the_columns_of_osu_and_nccl_tests(either):
    given = ("-b", "24", "-e", "6K", "-f", "16", "-a", "ring", "-n", "3", "-r", "3", "-w", "2", "-o", "out")
    ended = either("bench", "reduce_scatter", *given)
    assert ended.returncode == 0, ended.stderr
    measured = [dict(zip(MEASURED, cells, strict=True)) for cells in rows(ended.stdout)]
    assert [row["bytes"] for row in measured] == ["24", "384", "6144"]
    for row in measured:
        p50 = float(row["p50"].rstrip("DS"))
        assert 0 < float(row["min"]) <= float(row["avg"]) <= float(row["max"])
        assert float(row["algbw"]) == pytest.approx(int(row["bytes"]) / p50 / 1e3, abs=2e-3)
        assert float(row["busbw"]) == pytest.approx(float(row["algbw"]) * 2 / 3, abs=2e-3)  # (p - 1) / p
    assert re.match(r"# reduce_scatter: 3 ranks on 1 host, float32, \S", ended.stdout)
    assert max(map(len, ended.stdout.splitlines())) <= 80


def test_schemes_share_a_line_and_a_run_can_be_resumed(either):
    given = ("-b", "24", "-e", "6K", "-f", "16", "-a", "ring,native", "-n", "3", "-r", "3", "-o", "out")
    ended = either("bench", "reduce_scatter", *given)
    assert ended.returncode == 0, ended.stderr
    assert [len(row) for row in rows(ended.stdout)] == [4] * 3  # three repetitions give no interval
    assert max(map(len, ended.stdout.splitlines())) <= 80
    for part in sorted((either.folder / "out" / "parts").glob("*.h5"))[3:]:
        part.unlink()
    resumed = either("bench", "reduce_scatter", *given, "--resume")
    first, second = rows(resumed.stdout)
    assert (first[:2], second[0]) == (["384", "-"], "6144")  # ring was measured
    cases = json.loads(either("bench", "reduce_scatter", *given, "--resume", "--json").stdout)["cases"]
    in_order = [(scheme, size) for size in (24, 384, 6144) for scheme in ("ring", "native")]
    assert [(case["aggregation"], case["message_bytes"]) for case in cases] == in_order


def record(scheme, size, ms, low=None, high=None, **fields):
    times = {"time_p50_seconds": ms / 1e3, "time_p50_low_seconds": low and low / 1e3}
    times |= {"time_p50_high_seconds": high and high / 1e3, "launch_seconds": [ms / 1e3]}
    times["busbw_bytes_per_second"] = size / ms * 1e3
    return Record(aggregation=scheme, message_bytes=size, launches=1, **times, **fields)


def test_a_line_has_flags_and_quotients():
    disturbed = {"disturbed": "other processes", "oversubscribed": True, "correct": False}
    schemes = {"native": (2.0, 1.9, 2.1), "ring": (1.0, 0.95, 1.05), "tree": (4.0, 0.1, 9.0), "bruck": (0.001,)}
    row = [record(name, 1 << 27, *ms, **(disturbed if name == "ring" else {})) for name, ms in schemes.items()]
    assert wide_row([*row, None]) == [
        *("134217728", "2000.0", "1000.0DSW", "4000.0", "1.00", "-"),
        *("2.00", "0.50", "2000", "-"),
    ]


def case(folder, times, scheme, **fields):
    """Return the file of a case that was made by hand."""
    hand = Hand(folder / str(len([*folder.iterdir()])) / "parts")
    fields |= {"kind": "collective", "collective": "allreduce", "aggregation": scheme, "dtype": "float32"}
    hand.case([times] * 2, **fields)
    hand.read({"mpi": {"library": "MPICH", "version": "5"}})
    return hand.folder / "run.h5"


def test_four_schemes_with_long_names_fit_80_columns(tmp_path, capsys):
    schemes = ("native", "halving_doubling", "native_reduce_scatter_allgather", "mypackage.mymodule:my_ring")
    table = BenchTable(schemes)
    for scheme in schemes:
        fields = {"message_bytes": 1 << 27, "warmup_steps": 0, "correct": False, "nodes": 1}
        table.add(case(tmp_path, [8888.8] * 9, scheme, **fields))
    lines = capsys.readouterr().out.splitlines()
    assert all(len(line) <= 80 for line in lines if str(tmp_path) not in line)
    assert lines[-1].split()[:2] == ["134217728", "8888800W"]
    assert lines[-1].endswith(" 1.00")
    assert "allgather" not in lines[-1] and any("scatter_" in line for line in lines)


def test_a_case_without_times_has_dashes(tmp_path, capsys):
    BenchTable(["ring"]).add(case(tmp_path, [], "ring", message_bytes=8, error="lost"))
    assert rows(capsys.readouterr().out)[-1] == ["8", *["-"] * 5, "0.000", "0.000"]


def test_delays_show_the_late_rank_also_if_it_is_the_first(hpcdl):
    given = ("-b", "8", "-e", "8", "-a", "native", "-n", "2", "-r", "2", "-w", "0", "--delays", "0:0.2")
    ended = hpcdl("bench", *given)
    assert ended.returncode == 0, ended.stderr
    ((size, _, _, first, last, late),) = rows(ended.stdout)
    assert (size, late) == ("8", "0")
    assert float(first) > float(last)


def test_the_last_line_names_the_fastest_scheme_by_size():
    """A lead below 10 % is none; a size that lacks a scheme has no fastest one."""
    times = {8: (1.0, 2.0), 64: (1.0, 1.2), 512: (1.0, 1.05), 4096: (3.0, 1.0)}
    schemes = ("native", "ring")
    records = [record(name, size, times[size][name == "ring"]) for size in times for name in schemes]
    begin = "Fastest in this launch, by 10 % or more: native from 8 B to 64 B, no scheme at 512 B"
    assert fastest(["native", "ring"], records) == f"{begin} and ring at 4 KiB."
    assert fastest(["native", "ring"], records[:-1]).endswith("and no scheme from 512 B to 4 KiB.")
    turns = [(size, name, 1.0 + (size % 2 != (name == "ring"))) for size in range(6) for name in schemes]
    alternate = [record(name, 4 << size, ms) for size, name, ms in turns]
    assert fastest(["native", "ring"], alternate).endswith(": native at 3 of 6 sizes and ring at 3 of 6 sizes.")
    alone = "ring takes 1.00 ms for 8 B, and reaches a bus bandwidth of 512 kB/s at 1 KiB."
    assert fastest(["ring"], [record("ring", 8, 1.0), record("ring", 1024, 2.0)]) == alone


def test_the_number_of_disturbed_times_stands_once(tmp_path, capsys):
    table = BenchTable(["ring"])
    cause = "other processes took 2.00 cores from rank 0 (limit 0.05; 3 involuntary context switches/s, load 2.0)"
    table._records += [record("ring", size, 1.0, disturbed=cause if size > 8 else None) for size in (8, 64, 512)]
    table.end()
    assert capsys.readouterr().out.splitlines()[-2:] == [
        "# 2 of 3 times are disturbed: other processes took 2.00 cores from rank 0.",
        "# Repeat on an idle machine.",
    ]


def test_more_ranks_than_cores_are_named_before_the_start(monkeypatch, capsys):
    monkeypatch.setattr(
        "hpcdl.commands.bench.from_shell", lambda *_: print("the ranks start", file=sys.stderr) or 0
    )
    monkeypatch.setattr("os.sched_getaffinity", lambda _process: {0, 1})
    warning = "hpcdl: warning: 64 ranks share 2 cores and wait for them; -n 2 avoids it\n"
    for ranks, said in (("64", warning), ("2", "")):
        assert main(["bench", "-n", ranks]) == 0
        assert capsys.readouterr().err == f"{said}the ranks start\n"
