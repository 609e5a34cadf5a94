"""Sentences on final accuracies: of methods compared with synchronous training, and of others."""

from hpcdl.analysis.run.record import Record
from hpcdl.report.run.grouping import Row, Scale
from hpcdl.report.sections import accuracy


def row(name, *values, **fields):
    """Return a method on four ranks with a final accuracy per seed."""
    shared = {"ranks": 4, "model": "lenet5", "training": name, **fields}
    return Row(name, Scale([Record(seed=n, final_accuracy=value, **shared) for n, value in enumerate(values)]))


BASE = row("synchronous", 0.90, 0.91, 0.92, images_per_second=10.0)
NAMES = ("synchronous training", "LeNet-5, 4 ranks")
COMPARED = {
    "Parameter averaging every 10 steps loses 0.2 percentage points of accuracy (95 %: at most 0.3) against {} and is 2.0 times as fast ({}).": row(
        "parameter_averaging(period=10)", 0.899, 0.908, 0.918, images_per_second=20.0
    ),
    "D-PSGD on the ring graph loses no accuracy against {} and is 0.50 times as fast ({}).": row(
        "d_psgd(graph=ring)", 0.93, 0.94, 0.96, images_per_second=5.0
    ),
    "AD-PSGD changes the accuracy by -10.7 percentage points (-13.5 to -7.8) against {} ({}).": row(
        "ad_psgd", 0.80, 0.81, 0.80
    ),
    "Not decided whether update broadcast loses accuracy: the difference from {} is +0.3 percentage points (-2.5 to +3.2) ({}).": row(
        "update_broadcast", 0.91, 0.92, 0.91
    ),
}


def test_methods_are_compared_with_synchronous_training_by_seeds():
    """Of several the fastest one that keeps the accuracy is named, then the largest loss."""
    for says, method in COMPARED.items():
        assert accuracy.against_synchronous([BASE, method]) == [says.format(*NAMES)]
        assert accuracy.against_synchronous([method, row("diloco", 0.9, 0.9)]) == []
    together = accuracy.against_synchronous([BASE, *COMPARED.values()])
    begins = ["Parameter averaging every 10 steps loses 0.2", "AD-PSGD changes", "Not decided whether update"]
    assert all(line.startswith(begin) for line, begin in zip(together, begins, strict=True))


def test_two_ranks_train_the_same_network_with_every_scheme_or_one_is_wrong():
    """Sums of two vectors have no order; of four, or of compressed gradients, nothing follows."""
    exact = {"training": "synchronous", "compression": "none", "ranks": 2, "final_loss": 0.25}

    def told(loss=0.25, **fields):
        other = row("tree", 0.9, **{**exact, "final_loss": loss, **fields})
        return accuracy.accuracy_range([row("ring", 0.9, **{**exact, **fields}), other])

    assert told().startswith(
        "Same network: yes. Both methods reach a final accuracy of 90.0 %, with one seed each"
    )
    assert told(loss=0.2500001).startswith("Same network: no. Both methods reach")
    for fields in ({"ranks": 4}, {"compression": "one_bit"}, {"training": "downpour"}):
        assert told(**fields).startswith("Both methods reach")


def test_a_target_that_is_passed_is_told():
    above = accuracy.accuracy_range([row("synchronous", 0.919, target_accuracy=0.88)])
    assert ", above its target of 88.0 %, with one seed (" in above
