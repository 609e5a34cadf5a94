"""Records of a run: reported as the run is, and refused when they are damaged."""

import gzip
import json
import lzma
import math

import pandas as pd
import pytest

from hpcdl.report.render import render
from hpcdl.trace.recorder import TraceError
from hpcdl.trace.schema import MAX_SMALL, READ, RECORDS, packed, read, read_records


@pytest.fixture
def run(hand):
    times = [[1.0, 2.5, 1.5], [1.0, 2.0, 1.5]]
    hand.case(times, case="a", kind="train", model="lenet5", global_batch=8, seed=1)
    summed = {"collective": "allreduce", "aggregation": "ring", "dtype": "float32", "message_bytes": 64}
    hand.case(times, case="b", kind="collective", **summed)
    hand.read({})
    return read(hand.folder)


@pytest.mark.parametrize("by_gzip", [False, True])
def test_records_have_all_but_the_events(run, tmp_path, by_gzip):
    """Version 1.0 packed them by gzip."""
    file = tmp_path / f"records.json.{'gz' if by_gzip else 'xz'}"
    file.write_bytes(gzip.compress(lzma.decompress(packed(run))) if by_gzip else packed(run))
    again = read(file)
    for name in (*READ, "cases"):
        pd.testing.assert_frame_equal(getattr(run, name), getattr(again, name), check_exact=False, rtol=5e-3)
    assert (again.described, again.environments, again.suite) == (run.described, run.environments, run.suite)
    assert len(again.events) == 0
    first, second = (json.loads(render([form], "json"))["cases"] for form in (run, again))
    assert [{**case, "run": ""} for case in first] == [{**case, "run": ""} for case in second]


def test_digits_that_no_section_prints_are_not_kept(hand, tmp_path):
    """Of steps of a few milliseconds whole microseconds are kept, and errors do not add up over the steps."""
    hand.case([[5.1234567] * 50, [5.3456789] * 50], case="a", kind="train", model="lenet5")
    hand.read({})
    run = read(hand.folder)
    file = tmp_path / "records.json.xz"
    file.write_bytes(packed(run))
    again = read(file)
    for column in ("begin", "end", "compute_ns"):
        assert not (again.steps[column] % 1000).any()
        assert (again.steps[column] - run.steps[column]).abs().max() <= 500
    assert (run.steps["end"] % 1000).any()


def test_damaged_records_are_refused_in_one_line(run, tmp_path):
    good = json.loads(lzma.decompress(packed(run)))
    file = tmp_path / "records.json.xz"
    steps = good["tables"]["steps"]
    last = [0] * (len(steps["step"]) - 2)  # differences

    def changed(**columns):
        return {**good, "tables": {**good["tables"], "steps": {**steps, **columns}}}

    damaged = {
        "no records": b"plain",
        "no records of hpcdl": packed(run)[:-9],
        "of schema 99, but this": {**good, RECORDS: 99},
        "schema: not a int": {**good, RECORDS: math.nan},
        "larger than 33554432 bytes when unpacked": lzma.compress(bytes(MAX_SMALL + 1)),
        "different lengths": changed(begin=steps["begin"][1:]),
        "end: not a list": changed(end={"lengths": steps["end"]}),
        "not there": changed(case_index=[9, 0, *last]),
        "not in their order": changed(case_index=[1, -1, *last]),
        "other columns": changed(more=steps["end"]),
        "'ranks'": {**good, "cases": [{**good["cases"][0], "ranks": "x"}]},
        "'jitter': nan is not a finite": {**good, "cases": [{**good["cases"][0], "jitter": math.nan}]},
        "physical_cores: not a int": {**good, "environment": {"cpu": {"physical_cores": "many"}}},
        "number that is not finite": {**good, "environment": {"timer": {"speed": [math.inf]}}},
        "Input format not supported": packed(run) + b"more" * 8,
        "loss: has values that are no numbers": changed(loss=["nan", *steps["loss"][1:]]),
        **{
            f"step: has values that are no integers{' *' * number}": changed(step=[value, *steps["step"][1:]])
            for number, value in enumerate(["0", 0.0, [0], True, None])
        },
    }
    for words, data in damaged.items():
        file.write_bytes(data if isinstance(data, bytes) else lzma.compress(json.dumps(data).encode()))
        with pytest.raises(TraceError, match=words) as caught:
            read_records(file)
        assert str(file) in str(caught.value)
        assert "\n" not in str(caught.value)
