"""Launches of one suite are pooled by what they drew: medians of launches' medians, and intervals that speak of launches."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from suite.conftest import CASES, text_of

from hpcdl import suite
from hpcdl.analysis.over_time.archive import read_launches
from hpcdl.analysis.run.launches import launches
from hpcdl.analysis.run.pooling import pool, read_pooled, with_seeds_of_launches
from hpcdl.analysis.run.scaling import records
from hpcdl.cases.keys.key import varies
from hpcdl.fabric.comm import Counters
from hpcdl.fabric.virtual.clocks import in_process
from hpcdl.report.run.warnings import warnings
from hpcdl.run.run_folder import draw_of
from hpcdl.trace.quantities import QUANTITIES
from hpcdl.trace.recorder import CaseRecord, Recorder
from hpcdl.trace.schema import merge, packed, write_part
from hpcdl.training.parts.journal import Journal

CASE = {"kind": "collective", "collective": "allreduce", "message_bytes": 64, "warmup_steps": 1}


@pytest.fixture
def launched(hand, tmp_path):
    def launch(number, times, environment=None, suite_text="s"):
        run, environment = type(hand)(tmp_path / str(number)), environment or {"key": "k"}
        for scheme, factor in (("ring", 1.0), ("native", 2.0)):
            fields = {**CASE, "aggregation": scheme, "environment_key": environment["key"]}
            run.case([[900.0, *(factor * ms for ms in times)]] * 2, **fields, correct=True)
        return run.read(environment, suite_text)

    return launch


def test_the_launch_is_the_unit(launched):
    middles = [10.0, 30.0, 12.0, 11.0, 14.0, 50.0, 13.0]
    runs = [launched(n, [ms - 1, ms, ms + 1] * 3) for n, ms in enumerate(middles)]
    ring, native = records(launches(pool(runs)))
    assert (ring.launches, native.launches) == (7, 7)
    assert ring.time_p50_seconds == pytest.approx(np.median(middles) * 1e-3)
    assert native.time_p50_seconds == pytest.approx(2 * np.median(middles) * 1e-3)
    assert ring.time_p50_low_seconds == pytest.approx(10e-3)  # of 7 medians the least and the most cover 95 %
    assert ring.time_p50_high_seconds == pytest.approx(50e-3)
    assert ring.measured_steps == 7 * 9
    assert ring.correct is True


def test_each_launch_s_events_and_cases_stay_its_own(launched):
    runs = [launched(n, [1.0 + n] * 6) for n in range(3)]
    pooled = pool(runs)
    assert pooled.cases["launch"].tolist() == [1, 1, 2, 2, 3, 3]
    assert sorted(set(pooled.steps["case_index"])) == list(range(6))
    lengths = pooled.steps.groupby("case_index").apply(lambda rows: (rows["end"] - rows["begin"]).median())
    assert lengths.tolist() == [1e6, 2e6, 2e6, 4e6, 3e6, 6e6]
    for index in range(6):
        assert set(pooled.events_of(index)["case_index"]) <= {index}


def test_what_is_no_repetition_is_refused(launched):
    others = {
        "the suites differ": {"suite_text": "t"},
        "the machines or libraries differ": {"environment": {"key": "k2", "machine_key": "x"}},
    }
    first = launched(0, [1.0] * 6)
    for number, (said, other) in enumerate(others.items(), 1):
        with pytest.raises(ValueError, match=f"/{number} is no launch of what .*/0 is: {said}"):
            pool([first, launched(number, [1.0] * 6, **other)])


def test_launches_on_other_nodes_are_pooled_and_keep_their_hosts(launched):
    """Jobs of a study: one node, two nodes, and two others."""
    jobs = [("k1", ["a"]), ("k2", ["a", "b"]), ("k2", ["c", "d"])]
    runs = []
    for key, hosts in jobs:
        ranks = [{"hostname": host} for host in 2 * hosts]
        runs.append(launched(len(runs), [1.0] * 6, {"key": key, "machine_key": "m", "ranks": ranks}))
    pooled = pool(runs)
    assert [pooled.hosts_of(index) for index in (0, 2, 4)] == [["a", "a"], ["a", "b"], ["c", "d"]]
    assert not any("environments" in line for line in warnings(pooled, records(launches(pooled))))


RANDOM = {"network": "ethernet-1g", "flops": 1e9, "jitter": [0.0, 0.4]}
SUITE = text_of(*({**CASES[kind], **RANDOM} for kind in ("replay", "train")))


def run_of(folder, draw):
    """Write a run of the suite as a launch whose number is ``draw``; return the folder."""
    parts = []
    for number, case in enumerate(suite.parse(SUITE, "s.toml").cases):
        recorder = Recorder(events=False)
        journal = Journal(recorder, lambda: Counters(0, 0, 0, 0, 0), draw=draw)
        found = in_process(1).run(case.module.program(case.spec, journal))[0]
        random = {"draw": draw} if varies(case.spec) else {}
        packed = [one.pack() for one in recorder.virtual or [recorder]]
        folder.mkdir(exist_ok=True)
        parts.append(folder / f"{number}.h5")
        write_part(parts[-1], CaseRecord({**case.fields(), **found, **random}, packed))
    merge(parts, folder / "run.h5", {"key": "k", "date": f"2025-11-01T01:00:0{folder.name[-1]}+00:00"}, SUITE)
    return folder


def test_launches_count_by_what_they_drew(tmp_path):
    runs = [run_of(tmp_path / f"launch-{number + 1}", draw) for number, draw in enumerate((0, 1, 2, 2))]
    pooled = read_pooled(runs)
    assert not pooled.copies, "equal simulated times make no copy of a run"
    found = records(launches(pooled))
    assert [record.launches for record in found] == [1, 3, 1, 3]
    for record in found[1::2]:
        assert len({*record.launch_seconds}) == 3
        assert record.step_seconds_low < min(record.launch_seconds) < max(record.launch_seconds)
        assert record.draw is None
    assert found[0].step_seconds_low is None, "one exact time"
    (line,) = [line for line in warnings(pooled, found) if "Random times" in line]
    assert line.startswith("Random times of 2 cases are the same as in an earlier launch: simulated cases count")
    assert sorted(set(pooled.steps["case_index"])) == list(range(len(pooled.described)))
    alone = read_pooled([runs[2]])
    assert [record.draw for record in records(launches(alone))] == [None, 2, None, 2]
    assert not [line for line in warnings(alone, []) if "Random times" in line]


@pytest.mark.parametrize(
    ("folder", "task", "draw"),
    [("launch-3", "", 2), ("runs/launch-1", "7", 0), ("run", "4", 3), ("run", "", 0), ("launch-x", "y", 0)],
)
def test_a_launch_has_the_draw_of_its_number_also_when_it_is_resumed(folder, task, draw):
    assert draw_of(Path(folder).absolute(), {"SLURM_ARRAY_TASK_ID": task}) == draw


OF_LAUNCHES = {"number": (10.0, 30.0, 20.0), "integer": (10, 30, 20), "string": ("a", "c", "b")}
"""Values of three launches: of numbers the first one is neither the median nor the greatest."""
FLAGS = (True, False, True)
REDUCED = {"median": 20, "greatest": 30, "union": "a; c; b", "any": True, "all": False, "": None}


@pytest.mark.parametrize("kind", ["collective", "train"])
def test_no_quantity_of_several_launches_is_that_of_the_first(hand, kind):
    """What launches record is reduced as its quantity states; the analysis computes the others from their steps."""
    fields = CASE if kind == "collective" else {"kind": "train", "model": "m", "aggregation": "ring"}
    (only,) = launches(hand.case([[1.0] * 9] * 2, **fields).read())
    two = [replace(only, record=only.record.but(launch=number)) for number in (1, 2)]
    computed = set(records(two)[0].values) - set(only.record.values)
    pooled = {"launch", "draw", "throttled", "hardware_errors", "error"}  # by rules of their own
    for name, quantity in QUANTITIES.items():
        if {"object", "array"} & {*quantity.types} or quantity.choices or name in pooled:
            continue
        values = next((each for word, each in OF_LAUNCHES.items() if word in quantity.types), FLAGS)
        told = [only.record.but(**{name: value}) for value in values]
        if len({(each.configuration(), each.ranks, each.seed) for each in told}) > 1:
            continue  # launches of different cases
        made = [replace(only, record=each.but(launch=number)) for number, each in enumerate(told, 1)]
        value = quantity.of(records(made)[0])
        expected = values[0] if quantity.reduction == "first" else REDUCED[quantity.reduction]
        assert value == expected or (name in computed and value not in values), (name, value)


def test_entries_of_all_launches_are_kept_and_an_unknown_flag_is_not_filled_in():
    again = QUANTITIES["measured_again"]
    assert (
        again.reduced(['[["a", 1.2]]', None, '[["b", 1.3], ["a", 1.1]]']) == '[["a", 1.2], ["b", 1.3], ["a", 1.1]]'
    )
    correct, shared = QUANTITIES["correct"], QUANTITIES["oversubscribed"]
    for flags, every, some in (([True, None], None, True), ([False, None], False, None), ([None] * 2, None, None)):
        assert (correct.reduced(flags), shared.reduced(flags)) == (every, some)


@pytest.mark.parametrize(("seeds", "shown"), [(1, [(3, None)]), (2, [(3, 1), (3, 2)])])
def test_launches_that_differ_in_the_seed_alone_are_launches_of_one_case(hand, tmp_path, seeds, shown):
    """If each launch has the same seeds, they are cases."""
    for launch in (1, 2, 3):
        for seed in [launch] if seeds == 1 else [1, 2]:
            settings = {"kind": "train", "seed": seed}
            hand.train([[10.0 + launch] * 20] * 2, launch=launch, seed=seed, settings=settings, digest=f"d{seed}")
    pooled = records(launches(with_seeds_of_launches(hand.read())))
    assert [(record.launches, record.seed) for record in pooled] == shown
    file = tmp_path / "pool.json.xz"
    file.write_bytes(packed(hand.read()))
    compared = [case.settings for launch in read_launches(file) for case in launch.cases]
    assert len(set(compared)) == len(shown)
