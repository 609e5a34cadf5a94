"""Files of runs: what was recorded comes back, and no file is incomplete or read if it is damaged."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import h5py
import numpy as np
import pytest
from contract.traces import changed, refused

import hpcdl
from hpcdl.trace import recorder as recorders
from hpcdl.trace.recorder import PIECE, CaseRecord, Evaluation, Recorder, Step, TraceError, Update
from hpcdl.trace.schema import merge, read, write_part


def traced(ranks, *, case="one", events=3, labels=("send", "recv")):
    packed = []
    for rank in range(ranks):
        recorder = Recorder()
        recorder.clock_offset_ns = 1000 * rank
        recorder.dropped = rank
        recorder.dropped_updates = 2 * rank
        for i in range(events):
            # ranks meet the labels in different orders, so their tables differ
            label = labels[(i + rank) % len(labels)]
            recorder.events.append((0, label, 10 * i, 10 * i + 5, (rank + 1) % ranks, 8 * i))
        for step in range(4):
            recorder.steps.append((step, 0, 100 * step, 100 * step + 50 + rank, 1.0, 1, 2, 30, 4, 512, 0.1))
        if rank == 0:
            recorder.evaluations.append((4, 1.0, 0.5, 0.3, 0.9, 8))
        recorder.updates.append((70 + rank, (rank + 1) % ranks, 5, 2, 0.01))
        recorder.memory_bytes = 64 * rank
        packed.append(recorder.pack())
    others = {"loss_rate": 0.5, "flag": True, "absent": None, "empty": "", "ümlaut": "ö"}
    return CaseRecord({"case": case, "kind": "train", "ranks": ranks, **others}, packed)


def test_round_trip(tmp_path):
    record = traced(3)
    write_part(tmp_path / "a.h5", record)
    run = read(tmp_path / "a.h5")
    assert run.complete
    assert run.described == [record.case]
    assert run.cases.loc[0, "case"] == "one"
    assert run.steps["rank"].tolist() == [0] * 4 + [1] * 4 + [2] * 4
    second = run.steps[(run.steps["rank"] == 2) & (run.steps["step"] == 1)].iloc[0]
    assert (second["begin"], second["end"], second["bytes"]) == (2100, 2152, 512)
    assert run.evaluations["accuracy"].tolist() == [0.9]
    assert run.evaluations["consensus"].isna().all()
    assert run.updates["time"].tolist() == [70, 1071, 2072]
    assert run.updates["worker"].tolist() == [1, 2, 0]
    assert (run.updates["version"] - run.updates["staleness"]).tolist() == [3] * 3
    assert run.ranks["dropped"].tolist() == [0, 1, 2]
    assert run.ranks["dropped_updates"].tolist() == [0, 2, 4]
    assert run.ranks["memory_bytes"].tolist() == [0, 64, 128]
    events = run.events
    assert events["label"].tolist() == [*["send", "recv"] * 4, "send"]
    assert events["begin"].tolist() == [0, 10, 20, 1000, 1010, 1020, 2000, 2010, 2020]
    assert events["peer"].tolist() == [1] * 3 + [2] * 3 + [0] * 3


def test_merge_keeps_order_and_context(tmp_path):
    parts = [tmp_path / f"{name}.h5" for name in ("b", "a")]
    for number, part in enumerate(parts):
        case = traced(number + 1, case=part.stem, labels=("send", "recv")[:: 1 - 2 * number])
        write_part(part, case, environment={"key": "k"}, suite_text="[suite]\n")
    merge(parts, tmp_path / "run.h5", {"key": "new", "nested": {"list": [1, 2]}}, 'name = "ö"\n')
    run = hpcdl.read(tmp_path)
    assert run.cases["case"].tolist() == ["b", "a"]
    assert run.environment == {"key": "new", "nested": {"list": [1, 2]}}
    assert run.suite == 'name = "ö"\n'
    assert run.events_of(1)["case_index"].unique().tolist() == [1]
    assert len(run.events) == 9
    assert run.events["label"][[0, 1, 3, 4]].tolist() == ["send", "recv", "recv", "send"]
    merge(parts, tmp_path / "run.h5", {}, "", complete=False)
    assert not read(tmp_path).complete


def test_a_folder_with_parts_only_is_incomplete(tmp_path):
    (tmp_path / "parts").mkdir()
    write_part(tmp_path / "parts" / "0.h5", traced(2), environment={"key": "k"}, suite_text="s")
    (tmp_path / "parts" / ".1.h5.partial").write_bytes(b"half")
    run = read(tmp_path)
    assert not run.complete
    assert (len(run.cases), run.environment, run.suite) == (1, {"key": "k"}, "s")


def test_the_largest_numbers_of_suites_and_counters_are_read(tmp_path):
    counters = {"network": {"eth0": {"rx_bytes": 2**64 - 1}}}
    fields = {"kind": "train", "ranks": 0, "seed": 2**63 - 1}
    write_part(tmp_path / "a.h5", CaseRecord(fields), environment={"counters": counters})
    run = read(tmp_path / "a.h5")
    assert (run.described, run.environment) == ([fields], {"counters": counters})


def test_fields_that_are_no_scalars_leave_no_file(tmp_path):
    with pytest.raises(TypeError, match="'bad'"):
        write_part(tmp_path / "a.h5", CaseRecord({"bad": [1, 2]}))
    assert list(tmp_path.iterdir()) == []


def test_unreadable_files(tmp_path):
    refused(tmp_path, "no run.h5")
    refused(tmp_path / "nothing.h5", "no such file")
    path = tmp_path / "a.h5"
    for content in (b"not a trace", b""):
        path.write_bytes(content)
        refused(path, "not a trace of hpcdl")
    with h5py.File(path, "w") as file:
        file["x"] = 1
    refused(path, "not a trace of hpcdl")
    write_part(path, traced(1))
    with changed(path) as file:
        del file["cases/000000/steps"]
    refused(path, "damaged")
    with changed(path) as file:
        file.attrs["schema"] = 99
    refused(path, "schema 99")


def test_truncated_or_changed_anywhere(tmp_path):
    whole = tmp_path / "whole.h5"
    write_part(whole, traced(4, events=500))
    data = whole.read_bytes()
    cut = tmp_path / "cut.h5"
    for length in (1, 100, 1000, len(data) // 2, len(data) - 1):
        cut.write_bytes(data[:length])
        refused(cut)
        place = max(length, 600)  # behind the user block
        cut.write_bytes(data[:place] + bytes([data[place] ^ 255]) + data[place + 1 :])
        refused(cut, "damaged")
    cut.write_bytes(data[:1000])
    with pytest.raises(TraceError, match=r"cut\.h5"):
        merge([whole, cut], tmp_path / "run.h5", {}, "")
    assert not (tmp_path / "run.h5").exists()


ENDLESS = """
import sys
from pathlib import Path
sys.path[:0] = sys.argv[2:]
from test_schema import traced
from hpcdl.trace.schema import merge, write_part
folder = Path(sys.argv[1])
for n in range(10**6):
    for name in "abc":
        write_part(folder / "parts" / f"{name}.h5", traced(4, events=2000))
        if n == 0:
            print("written", flush=True)
    merge(sorted((folder / "parts").glob("*.h5")), folder / "run.h5", {}, "")
"""


@pytest.mark.slow
def test_no_file_is_incomplete_after_a_kill(tmp_path):
    (tmp_path / "parts").mkdir()
    delays = np.random.default_rng(0).uniform(0, 0.25, 10)
    here = str(Path(__file__).parent)
    command = [sys.executable, "-c", ENDLESS, str(tmp_path), here, str(Path(here).parent)]
    found = 0
    for delay in delays:
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout.readline() == "written\n"  # a part at least, however busy the machine is
            time.sleep(delay)
            process.send_signal(signal.SIGKILL)
        for path in [*(tmp_path / "parts").glob("*.h5"), *tmp_path.glob("*.h5")]:
            run = read(path)
            assert len(run.events) == 8000 * len(run.cases)
            found += 1
    assert found >= len(delays)


def test_packs_what_was_recorded_to_bytes_and_back():
    recorder = Recorder()
    recorder.events.append((0, "send", 10, 20, 1, 64))
    recorder.events.append((2, "größe", 20, 30, -1, 0))
    recorder.events.append((0, "send", 30, 40, 1, 64))
    recorder.steps.append(
        Step(0, 0, 5, 50, loss=1.5, correct=3, images=4, compute_ns=7, messages=2, bytes=128, input_ns=3)
    )
    recorder.evaluations.append(Evaluation(1, 0.5, 0.25, 1.25, 0.75, 32, 0.125, 2.0, 0.5, 0.75))
    recorder.updates.append(Update(60, 3, 10, 4, 0.5))
    recorder.clock_offset_ns = -17
    packed = recorders.from_bytes(recorders.to_bytes(recorder.pack()))
    for name, array in recorder.pack().items():
        assert packed[name].dtype == array.dtype
        assert packed[name].tobytes() == array.tobytes(), name
    assert [packed["labels"][i].decode() for i in packed["events"]["label"]] == ["send", "größe", "send"]
    assert np.isnan(packed["steps"]["learning_rate"][0])


def test_limit_keeps_the_first_events_and_counts_the_others():
    recorder = Recorder(limit=10)
    held = recorder.events
    for round_ in range(3):
        held.extend((0, "add", 10 * round_ + i, 0, -1, 0) for i in range(7))
        recorder.trim()
    assert recorder.events is held
    packed = recorder.pack()
    assert packed["events"]["begin"].tolist() == [0, 1, 2, 3, 4, 5, 6, 10, 11, 12]
    assert packed["dropped"] == 11


def test_steps_take_96_bytes_each():
    recorder = Recorder()
    for step in range(2 * PIECE + 7):
        recorder.steps.append((step, 0, step, step + 1))
        recorder.trim()
        assert len(recorder.steps) < PIECE
    packed = recorder.pack()
    assert packed["steps"].nbytes == 96 * (2 * PIECE + 7)
    np.testing.assert_array_equal(packed["steps"]["end"], np.arange(1, 2 * PIECE + 8))
