"""Input batches: equal on any number of ranks, with and without prefetch; items made ahead; no thread is left."""

import threading
import time
from contextlib import nullcontext

import numpy as np
import pytest
from contract.sessions import silent_journal
from contract.training import session

from hpcdl import registry
from hpcdl.cases import train
from hpcdl.cases.keys.key import restored
from hpcdl.cases.keys.train_spec import TrainSpec
from hpcdl.data.parts.splits import Augmentation, in_memory_dataset
from hpcdl.fabric.virtual.clocks import in_process
from hpcdl.trace.recorder import Recorder
from hpcdl.training.parts.inputs import Prefetch


def moving_digits():
    """Return noise of the digits' shape, augmented by another crop in each epoch."""
    random = np.random.default_rng(0)
    images = random.integers(0, 256, (240, 8, 8, 1)).astype(np.uint8)
    labels = random.integers(0, 10, 240).astype(np.int64)
    moving = Augmentation(crop_padding=2, flip=True)
    held = images[:40], labels[:40]
    return in_memory_dataset("moving", (images, labels), held, classes=10, source="", augmentation=moving)


MOVING = moving_digits()


def prefetching():
    return [thread for thread in threading.enumerate() if thread.name.startswith("prefetch")]


@pytest.fixture(autouse=True)
def _no_thread_is_left():
    assert not prefetching()
    yield
    assert not prefetching()


@pytest.mark.parametrize("prefetch", [0, 2])
@pytest.mark.parametrize("ranks", [1, 2, 3, 7, 16])
def test_ranks_together_see_the_images_that_one_rank_sees(ranks, prefetch):
    """The augmentation of an image depends on the epoch, not on the rank that trains on it or the thread that draws it."""
    settings = {"dataset": MOVING, "global_batch": 120, "steps": 8}
    whole = session("none", "float32", **settings)
    sessions = [session("none", "float32", prefetch=prefetch, **settings) for _ in range(ranks)]
    order = (0, 1, 2, 3, 7, 2)  # two steps an epoch; going back is allowed
    parts = [[mine.inputs.batch(step, rank, ranks) for rank, mine in enumerate(sessions)] for step in order]
    batches = [whole.inputs.batch(step, 0, 1) for step in order]
    for batch, shares in zip(batches, parts, strict=True):
        assert all(map(np.array_equal, map(np.concatenate, zip(*shares, strict=True)), batch))
    for mine in sessions:
        mine.inputs.close()
    seen = [{image.tobytes() for image in images} for images, _ in batches]
    assert seen[-1] == seen[2]
    plain = {image.tobytes() for image in MOVING.train.batch(np.arange(240), "float32")[0]}
    epochs = [seen[0] | seen[1], seen[2] | seen[3]]
    assert len(epochs[0] & epochs[1]) < 24
    assert all(len(plain & images) < 24 for images in epochs)
    labels = [np.concatenate([labels for _, labels in batches[begin : begin + 2]]) for begin in (0, 2)]
    assert sorted(labels[0]) == sorted(labels[1])


def test_a_case_leaves_no_thread_behind_even_if_it_fails(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "my_faults.py").write_text(
        "class Stop(Exception): ...\n"
        "async def fails(comm, buffer):\n    raise Stop\n"
        "async def interrupted(comm, buffer):\n    raise KeyboardInterrupt\n"
    )
    case = {
        "model": "lenet5",
        "dataset": "digits",
        "learning_rate": 0.1,
        "ranks": 2,
        "global_batch": 100,
        "steps": 20,
    }
    for aggregation, error in (
        ("ring", None),
        ("my_faults:fails", Exception),
        ("my_faults:interrupted", KeyboardInterrupt),
    ):
        registry.trust(aggregation, tmp_path)
        spec = restored(TrainSpec, case | {"aggregation": aggregation})
        assert spec.prefetch == 2  # the default
        recorders = [Recorder(events=False) for _ in range(2)]
        with pytest.raises(error) if error else nullcontext():
            in_process(2).run(
                lambda comm, spec=spec, recorders=recorders: train.program(
                    spec, silent_journal(recorders[comm.rank])
                )(comm)
            )
        assert error or [len(recorder.steps) for recorder in recorders] == [20, 20]
        assert not prefetching()


def test_a_replica_with_its_own_images_sees_no_others():
    """Batches of 50 of 240 images: 4 steps an epoch, in which shares of 3 and 5 ranks wrap round or leave some out."""
    for ranks in [1, 3, 5]:
        whole = {}
        for rank in range(ranks):
            mine = session("none", "float32", global_batch=50, steps=16, partition="replicas")
            indices = [mine.inputs._indices(step, rank, ranks) for step in range(16)]
            assert [len(chosen) for chosen in indices] == [mine.inputs.images_of(rank, ranks)] * 16
            assert len({chosen.tobytes() for chosen in indices}) > 12
            whole[rank] = set(np.concatenate(indices).tolist())
        assert sum(map(len, whole.values())) == len(set().union(*whole.values()))


def test_one_thread_makes_each_item_once_and_in_order_and_depth_limits_them():
    made, threads = [], set()
    with Prefetch(lambda number: made.append(number) or threads.add(threading.get_ident()), 10, 2) as ahead:
        ahead.take(3)
        deadline = time.monotonic() + 10
        while len(made) < 3 and time.monotonic() < deadline:
            time.sleep(0.001)
        time.sleep(0.05)
        assert made == [3, 4, 5]
        for number in range(4, 10):
            ahead.take(number)
    assert made == list(range(3, 10))
    assert len(threads - {threading.get_ident()}) == len(threads) == 1


def test_closing_early_drops_what_was_made_ahead():
    for taken in (0, 1, 5):
        made = []
        ahead = Prefetch(lambda number, made=made: made.append(number) or time.sleep(0.01), 1000, 500)
        for number in range(taken):
            ahead.take(number)
        ahead.close()
        assert len(made) < 20
        assert not prefetching()


@pytest.mark.parametrize("depth", [0, 1, 2, 7, 1000])
@pytest.mark.parametrize("order", [range(20), [5, 6, 2, 19, 0, 1, 1, 7], [25, 0], []], ids=str)
def test_items_in_any_order_and_an_exception_as_itself_and_for_its_item_only(depth, order):
    mistake = LookupError("image 3")

    def make(number):
        if number == 3:
            raise mistake
        return number * number

    with Prefetch(make, 20, depth) as ahead:
        for number in order:
            if number == 3:
                with pytest.raises(LookupError) as caught:
                    ahead.take(number)
                assert caught.value is mistake
            else:
                assert ahead.take(number) == number * number
