"""Records of a run: reported as the run is, and refused when they are damaged."""

import gzip
import json
import math

import pandas as pd
import pytest

from hpcdl.report.run.render import render
from hpcdl.trace.recorder import TraceError
from hpcdl.trace.records import MAX_SMALL, READ, RECORDS, packed, read_records
from hpcdl.trace.schema import read


@pytest.fixture
def run(hand):
    times = [[1.0, 2.5, 1.5], [1.0, 2.0, 1.5]]
    hand.case(times, case="a", kind="train", model="lenet5", global_batch=8, seed=1)
    summed = {"collective": "allreduce", "aggregation": "ring", "dtype": "float32", "message_bytes": 64}
    hand.case(times, case="b", kind="collective", **summed)
    hand.read({})
    return read(hand.folder)


def test_records_have_all_but_the_events(run, tmp_path):
    file = tmp_path / "records.json.gz"
    file.write_bytes(packed(run))
    again = read(file)
    for name in (*READ, "cases"):
        pd.testing.assert_frame_equal(getattr(run, name), getattr(again, name))
    assert (again.described, again.environments, again.suite) == (run.described, run.environments, run.suite)
    assert len(again.events) == 0
    first, second = (render([one], "json").replace("records", "run") for one in (run, again))
    ignored = {"run"}
    for one, other in zip(json.loads(first)["cases"], json.loads(second)["cases"], strict=True):
        assert {key: one[key] for key in one.keys() - ignored} == {
            key: other[key] for key in other.keys() - ignored
        }


def test_damaged_records_are_refused_in_one_line(run, tmp_path):
    good = json.loads(gzip.decompress(packed(run)))
    file = tmp_path / "records.json.gz"
    shorter = {**good["tables"]["steps"], "begin": good["tables"]["steps"]["begin"][1:]}
    beyond = {**good["tables"]["steps"], "case_index": [9] * len(shorter["end"])}
    swapped = {**good["tables"]["steps"], "case_index": [1, -1, *[0] * (len(shorter["end"]) - 2)]}  # differences
    damaged = {
        "no records": b"plain",
        "no records of hpcdl": packed(run)[:-9],
        "of schema 99, but this": gzip.compress(json.dumps({**good, RECORDS: 99}).encode()),
        "schema: not a int": gzip.compress(json.dumps({**good, RECORDS: math.nan}).encode()),
        "larger than 33554432 bytes when unpacked": gzip.compress(bytes(MAX_SMALL + 1)),
        "different lengths": gzip.compress(
            json.dumps({**good, "tables": {**good["tables"], "steps": shorter}}).encode()
        ),
        "not there": gzip.compress(json.dumps({**good, "tables": {**good["tables"], "steps": beyond}}).encode()),
        "not in their order": gzip.compress(
            json.dumps({**good, "tables": {**good["tables"], "steps": swapped}}).encode()
        ),
        "'ranks'": gzip.compress(json.dumps({**good, "cases": [{**good["cases"][0], "ranks": "x"}]}).encode()),
    }
    for words, data in damaged.items():
        file.write_bytes(data)
        with pytest.raises(TraceError, match=words) as caught:
            read_records(file)
        assert str(file) in str(caught.value)
        assert "\n" not in str(caught.value)
