"""The validation split: disjoint from training, equal for all seeds; the test set is looked at once, at the end."""

from dataclasses import replace

import numpy as np
import pytest

from hpcdl import suite
from hpcdl.cases.keys import key
from hpcdl.data.digits import digits
from hpcdl.data.parts.splits import with_validation
from hpcdl.fabric.comm import Counters
from hpcdl.fabric.virtual.clocks import in_process
from hpcdl.trace.recorder import Recorder
from hpcdl.training.parts.journal import Journal

from .conftest import everything

ON_THREE = ["synchronous", "parameter_averaging", "elastic_averaging", "synchronous_elastic_averaging", "d_psgd"]
ON_THREE += ["stochastic_gradient_push", "update_broadcast", "asynchronous"]
STRATEGIES = [
    *((name, 3, "") for name in ON_THREE),
    ("layerwise", 2, ""),
    *((name, 4, "") for name in ("ad_psgd", "sandblaster")),
    ("pipeline", 4, "mesh = {data = 2, pipeline = 2}\n"),
    ("synchronous", 4, "mesh = {data = 2, model = 2}\n"),
]


class Watched:
    """A split that counts the images that are read."""

    def __init__(self, split):
        self._split, self.labels, self.read = split, split.labels, 0

    def __len__(self):
        return len(self._split)

    def batch(self, indices, dtype, key=None):
        self.read += len(indices)
        return self._split.batch(indices, dtype, key)


def trained(training, ranks, more, doctored, monkeypatch):
    monkeypatch.setattr(key, "_opened", lambda _: digits())
    monkeypatch.setattr(key, "with_validation", doctored)
    text = (
        '[suite]\nname = "s"\n[[case]]\nkind = "train"\nmodel = "lenet5"\ndataset = "digits"\nsteps = 6\n'
        f'learning_rate = 0.02\nglobal_batch = 60\nranks = {ranks}\ntraining = "{training}"\nvalidation = 0.2\n'
        f'evaluate_every = 0.1\nnetwork = "ethernet-10g"\nflops = 1e10\n{more}'
    )
    (case,) = suite.parse(text, "s.toml").cases
    recorder = Recorder()
    journal = Journal(recorder, lambda: Counters(0, 0, 0, 0, 0))
    (found,) = in_process(1).run(case.module.program(case.spec, journal))
    return found, recorder.virtual[0].evaluations


def test_training_and_validation_images_are_disjoint_and_complete():
    for share in [0.0001, 0.1, 0.5]:
        whole = digits()
        data = with_validation(whole, share)
        assert len(data.validation) == max(1, round(share * len(whole.train)))
        assert len(data.validation) + len(data.train) == len(whole.train)
        splits = (data.train, data.validation, whole.train)
        images = [everything(split)[0].reshape(len(split), -1) for split in splits]
        ordered = [rows[np.lexsort(rows.T)] for rows in (np.concatenate(images[:2]), images[2])]
        np.testing.assert_array_equal(*ordered)
        assert data.test is whole.test


@pytest.mark.slow
@pytest.mark.parametrize(("training", "ranks", "more"), STRATEGIES, ids=[f"{s[0]}-{s[1]}" for s in STRATEGIES])
def test_the_test_set_is_read_once_at_the_end_and_by_the_rules_of_the_last_evaluation(
    training, ranks, more, monkeypatch
):
    counted = []

    def same_images(dataset, share):
        held = with_validation(dataset, share)
        counted[:] = [Watched(held.test), held.test]
        return replace(held, test=counted[0], validation=counted[1])

    found, evaluations = trained(training, ranks, more, same_images, monkeypatch)
    readers = 2 if "model = 2" in more else 1  # of an image: the ranks of a model group
    assert counted[0].read == readers * len(counted[0])
    assert len(evaluations) > 1
    assert found["test_accuracy"] == evaluations[-1].accuracy
    assert found["test_loss"] == pytest.approx(evaluations[-1].loss, rel=1e-6)


def test_without_training_images_nothing_is_held_out():
    with pytest.raises(ValueError, match="none is left"):
        with_validation(digits(), 0.9999)
