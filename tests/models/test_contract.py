"""Models keep the contract that ``hpcdl check`` checks; on small images, where the arithmetic is the same."""

import pytest

from hpcdl import registry
from hpcdl.commands.parts import array_contracts
from hpcdl.commands.parts.array_contracts import check_model
from hpcdl.nn.layers import Flatten, Linear, ReLU

SHAPES = {"lenet5": (3, 6, 2), "cifar_quick": (12, 15, 2), "nin_cifar": (6, 9, 2), "resnet20": (4, 7, 2)}
SHAPES |= {"locally_connected_vision": (12, 15, 2)}


@pytest.mark.parametrize("name", SHAPES)
def test_a_model_of_the_package_keeps_its_contract(name):
    checks = [*check_model(name, SHAPES[name])]
    assert len(checks) == 3
    assert [check for check in checks if check.verdict != "ok"] == []


def test_a_table_of_sizes_has_nothing_to_check():
    with pytest.raises(ValueError, match="has sizes alone"):
        next(check_model("bert_large"))


class Halved(ReLU):
    """Returns half of the gradient."""

    def bind(self, shape, site):
        bound = super().bind(shape, site)
        backward = bound.backward
        bound.backward = lambda dy, needs_dx: backward(dy, needs_dx) / 2
        return bound


class Longer(ReLU):
    """States one more output than it has."""

    def output(self, shape):
        return (*shape[:-1], shape[-1] + 1)


@pytest.mark.parametrize(
    ("layers", "wrong"),
    [
        (lambda classes: [Flatten("flatten"), Linear("fc", classes + 1)], "one output per class"),
        (lambda n: [Linear("fc", 5), Halved("r"), Linear("fc2", n)], "gradients as differences of the loss"),
        (lambda classes: [Longer("r"), Linear("fc", classes)], "sizes alone as with arithmetic"),
    ],
)
def test_a_model_that_breaks_its_contract_is_found(layers, wrong, monkeypatch):
    monkeypatch.setattr(registry, "find", lambda *_: lambda shape=(7,), classes=10: layers(classes))
    assert wrong in [check.subject for check in array_contracts.check_model("model") if check.verdict != "ok"]
