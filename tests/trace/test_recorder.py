import numpy as np

from hpcdl.trace.recorder import PIECE, Evaluation, Recorder, Step, Update, from_bytes, to_bytes


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
    packed = from_bytes(to_bytes(recorder.pack()))
    assert {name: array.dtype for name, array in packed.items()} == {
        name: array.dtype for name, array in recorder.pack().items()
    }
    assert packed["events"]["begin"].tolist() == [10, 20, 30]
    assert [packed["labels"][i].decode() for i in packed["events"]["label"]] == ["send", "größe", "send"]
    assert packed["steps"][["loss", "correct", "bytes", "input_ns"]].tolist() == [(1.5, 3, 128, 3)]
    assert np.isnan(packed["steps"]["learning_rate"][0])
    assert packed["evaluations"].tolist() == [(1, 0.5, 0.25, 1.25, 0.75, 32, 0.125, 2.0, 0.5, 0.75)]
    assert packed["updates"].tolist() == [(60, 3, 10, 4, 0.5)]
    assert (packed["dropped"], packed["clock_offset_ns"]) == (0, -17)


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
