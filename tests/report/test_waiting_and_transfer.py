"""Section "Waiting and transfer": one row per traced case, and the late rank in the verdict."""

import pytest

from hpcdl.analysis.run.pooling import pool
from hpcdl.report.render import cases, render
from hpcdl.report.run.findings import findings, with_waiting
from hpcdl.report.sections import links, waiting
from hpcdl.report.sections.step_parts import step_breakdown
from hpcdl.trace.recorder import CaseRecord, Recorder, Step
from hpcdl.trace.schema import merge, packed, read, write_part


def ms(value):
    return round(value * 1e6)


def part(path, works, counters=None, **more):
    """Write a case in which ranks, in a ring, exchange in 12 steps of 40 ms after computing for ``works`` (ms)."""
    packed = []
    for rank, work in enumerate(works):
        recorder = Recorder()
        for step in range(12):
            begin = 40 * step
            recorder.events.append((0, "forward", ms(begin), ms(begin + work), -1, 0))
            for label, peer in (("send", rank + 1), ("recv", rank - 1)):
                recorder.events.append((0, label, ms(begin + work), ms(begin + 40), peer % len(works), 64))
            recorder.steps.append(Step(step, 0, ms(begin), ms(begin + 40), 1.0, 1, 16, ms(work), 1, 64))
        packed.append(recorder.pack() | (counters or {}))
    fields = {"kind": "train", "case": "one", "ranks": len(works), "global_batch": 32, "training": "synchronous"}
    write_part(path, CaseRecord({**fields, **more}, packed))
    return path


def written(folder, counters=None, **more):
    """Rank 1 computes 30 ms, rank 0 10 ms."""
    merge([part(folder / "part.h5", (10, 30), counters, **more)], folder / "run.h5", {}, "")
    return findings([read(folder)])


@pytest.mark.parametrize(
    ("counters", "fields", "verdict"),
    [
        ({"wall_ns": 10**9, "busy_ns": 10**9, "steal_ns": 10**9 // 2}, {}, "disturbed"),
        (None, {"stages": 2, "microbatches": 4}, "stages differ"),
    ],
)
def test_no_rank_of_a_disturbed_case_or_of_a_pipeline_is_late(tmp_path, counters, fields, verdict, row):
    run = written(tmp_path, counters, **fields)
    assert waiting.WAITING.answer(run[0]) is None
    cells = row(render([one.run for one in run], "md"), "one")
    assert [cells[name] for name in ("latest rank", "late by", "verdict")] == ["rank 1", "20.0 ms", verdict]


def test_the_late_rank_is_named_with_its_lateness_and_the_step_is_split(tmp_path, row):
    (late_run,) = written(tmp_path)
    answer = waiting.WAITING.answer(late_run)
    says = "Rank 1 is late by 20.0 ms per step: other ranks wait for this rank, not for its links."
    assert answer.headline == says
    assert row(render([late_run.run], "md"), "one")[1:5] == ["2", "40.0 ms", "10.0 ms", "0.250"]
    (case,) = cases([late_run])
    columns = ("waiting_seconds", "transfer_seconds", "late_rank", "late_seconds")
    assert [case[name] for name in columns] == pytest.approx([0.010, 0.010, 1, 0.020])
    (chart,) = step_breakdown(late_run)
    assert chart.numbers() == [("", "compute", "waiting", "transfer"), ("none", "20.0 ms", "10.0 ms", "10.0 ms")]


def test_records_without_events_keep_what_events_showed(tmp_path):
    """They are still known as a copy of the run."""
    (traced,) = written(tmp_path)
    (tmp_path / "o.json.xz").write_bytes(packed(with_waiting(traced.run)))
    (alone,) = findings([read(tmp_path / "o.json.xz")])
    for name in ("waiting_seconds", "transfer_seconds", "late_rank", "late_seconds"):
        assert getattr(alone.records[0], name) == pytest.approx(getattr(traced.records[0], name)), name
    assert alone.run.identities == traced.run.identities


def test_a_rank_that_is_late_in_one_case_of_several_is_named_with_it_and_rows_name_their_launch(tmp_path):
    for launch in ("a", "b"):
        (tmp_path / launch).mkdir()
        parts = [
            part(tmp_path / launch / f"{case}.h5", works, case=case, global_batch=batch)
            for case, works, batch in (("one", (10, 30), 32), ("two", (10, 10), 64))
        ]
        merge(parts, tmp_path / launch / "run.h5", {}, "")
    (pooled,) = findings([pool([read(tmp_path / "a"), read(tmp_path / "b")])])
    headline = waiting.WAITING.answer(pooled).headline
    assert headline.startswith("Rank 1 is late by 20.0 ms per step in 1 of 2 cases: ")
    (table,) = waiting.WAITING.page(pooled).tables
    assert {row[:2] for row in table.rows} >= {("one", "1"), ("one", "2")}


def test_a_late_rank_is_explained_by_its_slow_node(hand):
    hand.case([[20.0] * 5, [20.2] * 5, [25.0] * 5], case="node", kind="node", collective="triad", pattern="alone")
    hand.parts.append(part(hand.folder / "late.h5", (10, 10, 30)))
    (found,) = findings([hand.read({"ranks": [{"hostname": f"host{rank}"} for rank in range(3)]})])
    headline = links.nodes_answer(found).headline
    assert headline.startswith("host2 computes at 80.4 % of")
    assert headline.endswith(" of the other hosts' speed (triad).")
    late = waiting.WAITING.answer(found).headline
    assert late.startswith("Rank 2 on host2 is late by ")
    assert late.endswith(", not for its links; host2 computes at 80.4 % of the other hosts' speed.")


@pytest.mark.parametrize(("slow", "says"), [(None, ""), (["host2"], ""), (["host0"], "; its links are not slow")])
def test_links_of_a_slow_node_are_not_slow_only_if_they_were_judged(hand, slow, says):
    hand.case([[20.0] * 5, [20.2] * 5, [25.0] * 5], case="node", kind="node", collective="triad", pattern="alone")
    (found,) = findings([hand.read({"ranks": [{"hostname": f"host{rank}"} for rank in range(3)]})])
    (line,) = links.slow_host_sentences(found, slow)
    assert line.endswith(f"other hosts' speed (triad){says}.")
