"""Exit code of a run that another job has begun."""

from types import SimpleNamespace

import pytest

from hpcdl.run.run_folder import RunFolder, RunOptions, part_name
from hpcdl.suite import parse
from hpcdl.trace.recorder import CaseRecord, Recorder
from hpcdl.trace.schema import merge, read, write_part

SUITE = """
[suite]
name = "tiny"
[[case]]
kind = "collective"
collective = "allreduce"
aggregation = "ring"
ranks = 2
message_bytes = 64
"""


@pytest.mark.parametrize("correct", [True, False])
def test_a_resumed_run_fails_if_an_earlier_case_was_wrong(tmp_path, correct):
    suite = parse(SUITE, "tiny.toml")
    (case,) = suite.cases
    (tmp_path / "parts").mkdir()
    record = CaseRecord({**case.fields(), "correct": correct}, [Recorder().pack()] * 2)
    part = tmp_path / "parts" / part_name(0, case)
    write_part(part, record)
    counters = {"here": {"m/1": {"port_xmit_wait": 3}}}
    merge([part], tmp_path / "run.h5", {"link_counters": counters}, SUITE)
    job = SimpleNamespace(world=SimpleNamespace(size=2), nodes=1, ranks=[{"hostname": "here"}] * 2)
    run = RunFolder(suite, tmp_path, job, RunOptions(lambda _line: None, mix_environments=True))
    assert not run.todo
    assert run.finish(counters) is not correct
    assert read(tmp_path).environment["link_counters"] == {"here": {"m/1": {"port_xmit_wait": 6}}}  # of both jobs
