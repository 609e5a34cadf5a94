"""Best schemes and algorithms, confirmed by a second run, and the files that make hpcdl and the library use them."""

import argparse
import json
import shlex
import subprocess
import tomllib
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from conftest import Hand

from hpcdl.aggregation.parts.traits import schemes
from hpcdl.analysis.run.record import Record
from hpcdl.commands import tune
from hpcdl.exit_codes import FAILED, INTERRUPTED
from hpcdl.launch import library_algorithms


def measured(*, disturbed=(), **launches):
    """Return launches by scheme and algorithm, by round; ``_ring``: the algorithm ring. Seconds are given."""
    tried = {}
    for name, seconds in launches.items():
        scheme, algorithm = ("native", f"allreduce {name[1:]}") if name.startswith("_") else (name, "")
        record = Record(kind="collective", collective="allreduce", aggregation=scheme, message_bytes=64, ranks=2)
        tried[scheme, algorithm] = launches = {}
        for number, time in enumerate(seconds):
            fields = {"record": record, "seconds": np.array([time]), "typical": np.median}
            launches[number] = SimpleNamespace(**fields, disturbed="x" if number in disturbed else None)
    return tried


def row_of(first, second):
    (row,) = tune._rows({"cell": first}, {"cell": second})
    return row


def test_the_fastest_scheme_and_algorithm_are_measured_again_with_the_default():
    first = measured(native=[3.0], ring=[2.0], butterfly=[1.0], tree=[4.0], _ring=[2.5], _nb=[9.0])
    assert tune._candidates(first) == [("native", ""), ("native", "allreduce ring"), ("butterfly", "")]
    assert tune._candidates(measured(native=[1.0], ring=[2.0], _nb=[1.5])) == []
    assert tune._candidates(measured(ring=[2.0])) == []  # nothing to compare with


@pytest.mark.parametrize(
    ("seconds", "confirmed", "factor"),
    [
        ([1.0, 1.1, 1.0], True, 2.0 / 1.1 ** (1 / 3)),
        ([1.94, 1.95, 1.935], None, 1.0),  # a gain of 2 to 4 %
        ([2.2, 1.0, 3.0], None, 1.0),
        ([2.3, 2.2, 2.3], False, 1.0),
    ],
)
def test_a_gain_counts_if_its_interval_in_the_second_run_is_above_the_smallest_gain(seconds, confirmed, factor):
    row = row_of(measured(native=[9.0], ring=[1.0]), measured(native=[2.0, 2.0, 2.0], ring=seconds))
    gain = row["gains"]["scheme"]
    assert gain["confirmed"] is confirmed
    assert gain["low"] <= gain["value"] <= gain["high"]
    assert row["times_the_best"] == pytest.approx(factor)
    answer, lines = tune._answer([row]), tune._lines([row])
    (line,) = [line for line in lines if not line.startswith("#")]
    assert max(map(len, lines)) <= 80
    assert ("confirms a gain over the default in 1 of 1 rows: a ring is up to" in answer) == (confirmed is True)
    assert ("confirms no gain over the default in any of 1 rows." in answer) == (confirmed is not True)
    assert line.split()[:4] == ["64", "2", "2000000", f"{factor:.2f}"]
    words = {True: "ring (", None: "open: ring (", False: "no gain: ring ("}
    assert line.split("  ")[-1].startswith(words[confirmed])


@pytest.mark.parametrize(("noise", "gain", "least"), [(0.2, 1.0, 0), (0.05, 1.2, 75), (0.01, 1.1, 95)])
def test_a_table_of_many_rows_announces_gains_and_none_by_chance(noise, gain, least):
    """Of 100 tables with 12 rows, one of which has a gain."""
    random, announced, found = np.random.default_rng(3), 0, 0
    for _ in range(100):
        again = {
            row: measured(**{name: random.lognormal(0, noise, 5) for name in ("native", "ring", "_nb")})
            for row in range(12)
        }
        again[0]["ring", ""] = measured(ring=random.lognormal(-np.log(gain), noise, 5))["ring", ""]
        gains = [bool(row["gains"]["scheme"]["confirmed"]) for row in tune._rows(again, again)]
        found += gains[0]
        announced += any(gains[1:])
    assert announced <= 5
    assert found >= least


def test_disturbed_rounds_do_not_count_if_three_are_left():
    times = {"native": [2.0, 9.0, 2.0, 2.0, 9.0], "ring": [1.0, 1.0, 1.0, 1.0, 1.0]}
    of_all = (2.0**3 * 9.0**2) ** 0.2
    for disturbed, value in (((1, 4), 2.0), ((0, 1, 2, 3, 4), of_all), ((0, 2, 3), of_all)):
        row = row_of(measured(native=[2.0], ring=[1.0]), measured(**times, disturbed=disturbed))
        gain = row["gains"]["scheme"]
        assert gain["value"] == pytest.approx(value)
        assert (gain["high"] > 2.01) == (disturbed != (1, 4))
        assert row["marks"] == ["disturbed"]


def test_the_default_s_factor_is_one_where_nothing_was_faster():
    row = row_of(measured(native=[2.0, 3.0, 4.0], ring=[5.0]), {})
    assert (row["times_the_best"], row["default_seconds"], row["gains"]) == (1.0, 3.0, {})


RULES = {"allreduce": [(0, ""), (64, "ring"), (4096, ""), (65536, "nb")], "broadcast": [(0, ""), (8, "binomial")]}


def chosen(table, size, **call):
    """Return the algorithm that MPICH's table has for a call: the first branch that holds, at each level."""
    for condition, inner in table.items():
        name, relation, value = condition.partition("<" if "<" in condition else "=")
        if name == "algorithm":
            return value
        if "msg_size" in name:
            holds = value == "any" or size < int(value.lstrip("=")) + value.startswith("=")
            assert relation
        else:
            holds = value == "any" or call.get(name, "yes") == value
        if holds:
            return chosen(inner, size, **call)
    return None


def test_mpich_s_table_is_its_own_with_the_rules_in_it(tmp_path):
    if library_algorithms.load().name != "MPICH":
        pytest.skip("this Python's library is not MPICH")
    name, file = library_algorithms.write_rules(tmp_path, 2, RULES).split("=", 1)
    assert name == "MPIR_CVAR_COLL_SELECTION_TUNING_JSON_FILE"
    table = json.loads((tmp_path / "mpich-2-ranks.json").read_text())
    assert file == str(tmp_path / "mpich-2-ranks.json")
    assert len(table) > 30  # MPICH ends if one of its functions is missing
    allreduce = table["collective=allreduce"]["comm_type=intra"]
    usual = {"count": "any"}
    ring, nb = "intra_ring", "allcomm_nb"
    for size, algorithm in ((64, ring), (4095, ring), (65536, nb), (1 << 20, nb)):
        assert chosen(allreduce, size, **usual) == f"MPIR_Allreduce_{algorithm}"
        assert chosen(allreduce, size, is_commutative="no") != f"MPIR_Allreduce_{algorithm}"
    for size in (0, 63, 4096, 65535):
        assert chosen(allreduce, size, **usual) not in {"MPIR_Allreduce_intra_ring", "MPIR_Allreduce_allcomm_nb"}
    assert chosen(table["collective=bcast"]["comm_type=intra"], 8) == "MPIR_Bcast_intra_binomial"


def test_open_mpi_s_rules_have_its_numbers(other, tmp_path):
    if not other.is_openmpi:
        pytest.skip("the other library is not Open MPI")
    code = (
        "import json, pathlib; from hpcdl.launch.library_algorithms import *;"
        f"print(write_rules(pathlib.Path({str(tmp_path)!r}), 2, {{'allreduce': [(0, ''), (64, 'ring')]}}));"
        "print(json.dumps(algorithms('allreduce')))"
    )
    ended = subprocess.run([other.python, "-c", code], capture_output=True, text=True, check=True)
    variables, algorithms = ended.stdout.splitlines()
    assert variables.endswith(f"dynamic_rules_filename={tmp_path}/openmpi-2-ranks.conf")
    ring = json.loads(algorithms)["ring"]["OMPI_MCA_coll_tuned_allreduce_algorithm"]
    lines = (tmp_path / "openmpi-2-ranks.conf").read_text().splitlines()
    words = [line.partition("#")[0].split() for line in lines]
    assert words == [["1"], ["2"], ["1"], ["1"], ["2"], ["0", "0", "0", "0"], ["64", ring, "0", "0"]]


def test_what_cannot_run_here_is_left_out_and_named(tmp_path, monkeypatch):
    """On several hosts ``two_shot`` cannot run; an algorithm of the library may fail; a case must not."""
    refused = {"cases_not_run": [{"case": "two", "error": "needs all ranks on one host"}]}
    failed = {"failed_cases": [{"case": "sum", "rank": 0, "error": "x"}]}

    def launched(environment, correct=True):
        def launch(options, _given):
            fields = {"collective": "allreduce", "aggregation": "native", "message_bytes": 64, "correct": correct}
            Hand(options.folder).case([[1.0]] * 2, case="sum", kind="collective", **fields).read(environment)
            return FAILED

        return launch

    options = argparse.Namespace(folder=tmp_path, overrides=[], suite="s")
    outcomes = {"a": launched(refused), "b": launched(refused | failed), "c": launched(refused, correct=False)}
    for number, (run, launch) in enumerate([*outcomes.items(), ("d", lambda *_: FAILED)]):
        monkeypatch.setattr(tune, "from_shell", launch)
        left_out = {}
        launches, is_failed = tune._run(options, run, 1, {"": ({}, ["sum", "two"])}, left_out)
        assert is_failed == (number > 0)
        assert len(launches) == (number < 2)
        assert left_out == ({"two": "not run: needs all ranks on one host"} if number < 3 else {})
        launches, is_failed = tune._run(options, run, 1, {"allreduce nb": ({}, ["sum"])}, left_out)
        assert not is_failed
        assert (f"allreduce nb, launch 1 of the {run} run" in left_out) == (number > 0)
    monkeypatch.setattr(tune, "from_shell", lambda *_: INTERRUPTED)
    with pytest.raises(KeyboardInterrupt):
        tune._run(options, "e", 1, {"allreduce nb": ({}, ["sum"])}, {})


def test_the_files_are_for_each_number_of_ranks_and_their_names_can_be_copied(tmp_path):
    folder = tmp_path / 'it\'s "tuned" here'
    folder.mkdir()
    row = row_of(measured(native=[9.0], _nb=[1.0]), measured(native=[2.0] * 3, ring=[1.0] * 3, _nb=[1.0] * 3))
    table, export = tune._write(folder, [row, {**row, "ranks": 4, "gains": {}}])
    assert tomllib.loads(table.removeprefix("# "))["aggregation"]["table"] == str(folder / "auto.toml")
    assert export.startswith("# 2 ranks: export ")
    words = shlex.split(export.partition(": export ")[2])
    assert Path(words[-1].partition("=")[2]).parent == folder
    rule = '[[rule]]\nranks = {}\nfrom_bytes = 64\naggregation = "{}"\n'
    assert (folder / "auto.toml").read_text() == rule.format(2, "ring") + rule.format(4, "native")


def test_a_collective_is_tuned_from_one_command_line(hpcdl):
    given = ("-b", "64", "-e", "64", "-n", "2", "-r", "2", "--launches", "3", "-o", "tuned", "--json")
    ended = hpcdl("tune", "all_to_all", *given)
    assert ended.returncode in {0, 3}, ended.stderr
    (row,) = json.loads(ended.stdout)["cases"]
    assert (row["collective"], row["message_bytes"], row["ranks"]) == ("all_to_all", 64, 2)
    assert row["default_seconds"] > 0
    assert row["times_the_best"] >= 1
    runs = {path.parent.name for path in (hpcdl.folder / "tuned").glob("*/*/launch-1")}
    assert runs <= {"first", "second", "default"}
    names = {record["aggregation"] for record in hpcdl.report("tuned/first/default")["cases"]}
    assert names == {*schemes("all_to_all")}
