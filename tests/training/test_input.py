"""Input batches: equal on any number of ranks, with and without prefetch; no thread is left."""

import threading

import numpy as np
import pytest
from contract.training import digits, session

from hpcdl import suite
from hpcdl.data.parts.augmentation import Augmentation
from hpcdl.data.parts.splits import in_memory_dataset
from hpcdl.fabric.comm import Counters
from hpcdl.fabric.virtual.inprocess import in_process
from hpcdl.trace.recorder import Recorder
from hpcdl.training.parts.journal import Journal
from hpcdl.training.synchronous import synchronous


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
    """The augmentation of an image does not depend on the rank that trains on it."""
    settings = {"dataset": MOVING, "global_batch": 100, "steps": 8, "prefetch": prefetch}
    whole = session("none", "float32", **settings)
    sessions = [session("none", "float32", **settings) for _ in range(ranks)]
    seen = []
    for step in (0, 1, 2, 3, 7, 2):  # two steps an epoch; going back is allowed
        images, labels = whole.inputs.batch(step, 0, 1)
        parts = [mine.inputs.batch(step, rank, ranks) for rank, mine in enumerate(sessions)]
        assert np.array_equal(np.concatenate([part[0] for part in parts]), images)
        assert np.array_equal(np.concatenate([part[1] for part in parts]), labels)
        seen.append(images.tobytes())
    assert seen[-1] == seen[2]
    assert len(set(seen)) == 5
    for one in (whole, *sessions):
        one.inputs.close()


def test_each_epoch_augments_the_same_images_differently():
    """Two epochs have the same labels and different pixels."""
    mine = session("none", "float64", dataset=MOVING, global_batch=240)
    first, second = (mine.inputs.batch(step, 0, 1) for step in (0, 1))
    assert sorted(first[1]) == sorted(second[1])
    plain = {image.tobytes() for image in MOVING.train.batch(np.arange(240), "float64")[0]}
    for images, _ in (first, second):
        assert len(plain & {image.tobytes() for image in images}) < 24
    assert not {image.tobytes() for image in first[0]} >= {image.tobytes() for image in second[0]}


@pytest.mark.parametrize("dataset", [digits(), MOVING], ids=lambda dataset: dataset.name)
def test_prefetch_changes_no_bit_of_the_training(dataset):
    def parameters(prefetch):
        async def program(comm):
            settings = {"dataset": dataset, "steps": 12, "evaluate_every": 1.0, "prefetch": prefetch}
            mine = session("ring", "float32", recorders[comm.rank], **settings)
            await synchronous(comm, mine)
            mine.inputs.close()
            return mine.replica.parameters

        recorders = [Recorder(events=False) for _ in range(3)]
        return in_process(3).run(program), [recorder.evaluations for recorder in recorders]

    (plain, seen), (ahead, seen_too) = parameters(0), parameters(2)
    assert all(np.array_equal(one, other) for one, other in zip(plain, ahead, strict=True))
    assert seen == seen_too


class Mistake(Exception):
    pass


class Faulty:
    """A dataset split whose image 700 cannot be read."""

    labels = digits().train.labels

    def __len__(self):
        return len(self.labels)

    def batch(self, indices, dtype, key=None):
        if 700 in indices:
            raise Mistake
        return digits().train.batch(indices, dtype, key)


def test_an_unreadable_image_fails_the_step_of_its_batch():
    for prefetch in [0, 2]:
        from dataclasses import replace

        mine = session("none", "float32", dataset=replace(digits(), train=Faulty()), prefetch=prefetch)
        failed = []
        for step in range(mine.inputs.steps_per_epoch):
            try:
                mine.inputs.batch(step, 0, 1)
            except Mistake:
                failed.append(step)
        mine.inputs.close()
        assert len(failed) == 1


PLUG_INS = """
class Stop(Exception): ...
async def fails(comm, buffer):
    raise Stop
async def interrupted(comm, buffer):
    raise KeyboardInterrupt
"""


@pytest.fixture
def program(tmp_path, monkeypatch):
    """program(keys): return the program of each rank of such a case, and the recorders."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "my_faults.py").write_text(PLUG_INS)

    def make(**changed):
        keys = {"ranks": 2, "global_batch": 100, "steps": 50, "learning_rate": 0.1, **changed}
        lines = "\n".join(
            f"{key} = {str(value).lower() if isinstance(value, bool) else repr(value)}"
            for key, value in keys.items()
        )
        text = f'[suite]\nname = "s"\n[[case]]\nkind = "train"\nmodel = "lenet5"\ndataset = "digits"\n{lines}\n'
        (case,) = suite.parse(text, "s.toml").cases
        assert case.spec.prefetch == 2  # the default
        recorders = [Recorder(events=False) for _ in range(2)]
        journals = [Journal(recorder, lambda: Counters(0, 0, 0, 0, 0)) for recorder in recorders]
        return lambda comm: case.module.program(case.spec, journals[comm.rank])(comm), recorders

    return make


def test_a_case_leaves_no_thread_behind(program):
    run, recorders = program(steps=20)
    in_process(2).run(run)
    assert [len(recorder.steps) for recorder in recorders] == [20, 20]


@pytest.mark.parametrize(("fault", "kind"), [("fails", Exception), ("interrupted", KeyboardInterrupt)])
def test_a_case_that_fails_leaves_no_thread_behind(program, fault, kind):
    run, _ = program(aggregation=f"my_faults:{fault}")
    with pytest.raises(kind):
        in_process(2).run(run)


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
