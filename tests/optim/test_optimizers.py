"""Optimizers against their papers, closed forms, and themselves by tensor and in shards; decay and rates of models."""

import inspect
import itertools
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

from hpcdl.nn.backend import backend
from hpcdl.nn.replica import Replica
from hpcdl.optim.adaptive import LAMB, LARS, Adagrad, Adam, AdamW, RMSProp
from hpcdl.optim.parts import protocol
from hpcdl.optim.parts.protocol import LossScaling, Multipliers, without_lookahead
from hpcdl.optim.sgd import SGD, Nesterov
from hpcdl.registry import find, names

RULES = {
    "sgd": SGD,
    "momentum": partial(SGD, momentum=0.9),
    "nesterov": Nesterov,
    "adagrad": Adagrad,
    "rmsprop": RMSProp,
    "adam": Adam,
    "adamw": AdamW,
}
each_rule = pytest.mark.parametrize("make", RULES.values(), ids=RULES)
each_dtype = pytest.mark.parametrize("dtype", ["float32", "float64"])


def gradients_of(count, n, dtype, seed=0):
    return np.random.default_rng(seed).standard_normal((count, n)).astype(dtype)


def run(optimizer, start, gradients, rates):
    w = start.copy()
    for gradient, rate in zip(gradients, rates, strict=True):
        optimizer.update(w, gradient, rate)
    return w


SETTINGS = {
    "PyTorch's defaults": {"momentum": 0.9, "beta1": 0.9, "beta2": 0.999, "smoothing": 0.99, "epsilon": 1e-8, "weight_decay": 0},
    "others": {"momentum": 0.99, "beta1": 0.8, "beta2": 0.95, "smoothing": 0.9, "epsilon": 1e-3, "weight_decay": 0.1},
}  # fmt: skip
CHANGING = [0.1, 0.1, 0.4, 0.4, 0.4, 0.02, 0.02, 0.3, 0.2, 0.1, 0.1, 0.01]


def by_hand(name, start, gradients, *, momentum, beta1, beta2, smoothing, epsilon, weight_decay):
    """Return the parameters after PyTorch's rule; momentum in Caffe's form, whose velocity has the rate."""
    w, (v, u, m, s, mean, total) = start.copy(), np.zeros((6, len(start)))
    for t, (gradient, rate) in enumerate(zip(gradients, CHANGING, strict=True), 1):
        g = gradient + weight_decay * w * (name != "adamw")
        v, u, m = momentum * v - rate * g, momentum * u + g, beta1 * m + (1 - beta1) * g
        s, mean, total = beta2 * s + (1 - beta2) * g**2, smoothing * mean + (1 - smoothing) * g**2, total + g**2
        adam = m / (1 - beta1**t) / (np.sqrt(s / (1 - beta2**t)) + epsilon)
        w = w + {
            "sgd": -rate * g,
            "momentum": v,
            "momentum correction": -rate * u,
            "nesterov": momentum * v - rate * g,
            "adagrad": -rate * g / np.maximum(np.sqrt(total), epsilon),
            "rmsprop": -rate * g / (np.sqrt(mean) + epsilon),
            "adam": -rate * adam,
            "adamw": -rate * (adam + weight_decay * w),
        }[name]  # fmt: skip
    return w


CORRECTED = {"momentum correction": partial(SGD, momentum=0.9, momentum_correction=True)}


@pytest.mark.parametrize("chosen", SETTINGS)
@pytest.mark.parametrize(("name", "make"), [*{**RULES, **CORRECTED}.items()])
def test_rules_are_those_of_their_papers(name, make, chosen):
    """As loops by hand, at rates that change."""
    settings = {**SETTINGS[chosen]}
    own = {key: value for key, value in settings.items() if key in inspect.signature(make).parameters}
    if chosen == "PyTorch's defaults":
        settings |= {"epsilon": 1e-10} if name == "adagrad" else {"weight_decay": 0.01} if name == "adamw" else {}
        own = {}
    elif name == "sgd":
        del own["momentum"]
    start, gradients = gradients_of(1, 57, "float64", seed=1)[0], gradients_of(12, 57, "float64")
    expected = by_hand(name, start, gradients, **settings)
    np.testing.assert_allclose(run(make(**own), start, gradients, CHANGING), expected, rtol=1e-10, atol=1e-14)


SIZES = [(40, True, 1.0), (5, False, 2.0), (1, True, 1.0), (30, True, 0.1), (7, False, 1.0), (0, False, 2.0)]
"""Entries of the tensors of a vector, whether they decay, and the multiple of their rate."""
ENDS = list(itertools.accumulate(size for size, _, _ in SIZES))
TENSORS = [
    SimpleNamespace(span=slice(end - size, end), decay=decay, rate=rate)
    for (size, decay, rate), end in zip(SIZES, ENDS, strict=True)
]
N = ENDS[-1]
START = np.random.default_rng(1).standard_normal(N)
GRADIENTS = np.random.default_rng(2).standard_normal((6, N))
RATES = 0.1 / np.arange(1, 7)


def trained(rule, span=slice(0, N), start=START):
    """Return the part of the parameters in a span after its updates by tensor."""
    whole = Multipliers.of(TENSORS)
    rule.multipliers = whole if span == slice(0, N) else whole.part(span)
    return run(rule, start[span], GRADIENTS[:, span], RATES)


def test_lars_is_algorithm_1_of_you_2017():
    start = START.copy()
    start[TENSORS[3].span] = 0  # a norm of 0: no local rate
    found = trained(LARS(momentum=0.9, weight_decay=0.01, trust=0.02), start=start)
    for one in TENSORS:
        w, v = start[one.span], 0.0
        for g, rate in zip(GRADIENTS[:, one.span], one.rate * RATES, strict=True):
            decay, local = 0.01 * one.decay, 1.0
            if one.decay and w.any():
                local = 0.02 * np.linalg.norm(w) / (np.linalg.norm(g) + decay * np.linalg.norm(w))
            v = 0.9 * v + rate * local * (g + decay * w)
            w = w - v
        np.testing.assert_allclose(found[one.span], w, rtol=1e-12)


def test_lamb_is_algorithm_2_of_you_2020():
    found = trained(LAMB(beta1=0.8, beta2=0.95, weight_decay=0.1))
    for one in TENSORS:
        w, m, s = START[one.span], 0.0, 0.0
        for t, (g, rate) in enumerate(zip(GRADIENTS[:, one.span], one.rate * RATES, strict=True), 1):
            m, s = 0.8 * m + 0.2 * g, 0.95 * s + 0.05 * g**2
            u = m / (1 - 0.8**t) / (np.sqrt(s / (1 - 0.95**t)) + 1e-6) + 0.1 * one.decay * w
            w = w - rate * (np.linalg.norm(w) / np.linalg.norm(u) if one.decay else 1) * u
        np.testing.assert_allclose(found[one.span], w, rtol=1e-12)


def test_rules_by_tensor_take_shards_of_whole_tensors_only():
    for made_by in [LARS, LAMB]:
        whole = trained(made_by())
        for span in (slice(0, 40), slice(40, 76), slice(76, N)):
            np.testing.assert_array_equal(trained(made_by(), span), whole[span])
        with pytest.raises(ValueError, match="whole tensors"):
            trained(made_by(), slice(3, N))


@each_dtype
def test_adagrad_with_zero_and_tiny_gradients(dtype):
    w = np.zeros(4, dtype)
    with np.errstate(under="ignore"):
        Adagrad().update(w, np.array([0, -0.0, 1e-30, 1e-300], dtype), 1.0)
    assert np.abs(w).max() <= 1
    assert (w[:2] == 0).all()


def test_adam_continues_from_state_and_steps():
    gradients = gradients_of(6, 9, "float64")
    w = run(first := Adam(), np.zeros(9), gradients[:3], [0.1] * 3)
    second = Adam()
    second.state = {name: vector.copy() for name, vector in first.state.items()}
    second.steps = first.steps
    np.testing.assert_array_equal(
        run(second, w, gradients[3:], [0.1] * 3), run(Adam(), np.zeros(9), gradients, [0.1] * 6)
    )


@each_rule
@each_dtype
def test_dtype_stays_gradients_stay_and_state_is_like_the_parameters(make, dtype):
    (gradient,) = gradients_of(1, 40, dtype)
    kept, optimizer, w = gradient.copy(), make(weight_decay=1e-3), np.ones(40, dtype)
    assert optimizer.state == {}
    optimizer.update(w, gradient, np.float64(0.1))
    np.testing.assert_array_equal(gradient, kept)
    assert (w.dtype, optimizer.steps) == (dtype, 1)
    for vector in optimizer.state.values():
        assert (vector.dtype, vector.shape) == (w.dtype, w.shape)


@each_rule
def test_vectors_that_do_not_fit_are_refused(make):
    """State belongs to one vector."""
    with pytest.raises(ValueError, match=r"one length, got shapes \(3,\), \(2,\)"):
        make().update(np.ones(3), np.ones(2), 0.1)
    with pytest.raises(ValueError, match="flat"):
        make().update(np.ones((3, 1)), np.ones((3, 1)), 0.1)
    optimizer = make()
    optimizer.update(np.ones(3), np.ones(3), 0.1)
    for other in (np.ones(4), np.ones(3, "float32")) if optimizer.state else ():
        with pytest.raises(ValueError, match="was made for float64 parameters"):
            optimizer.update(other, np.ones_like(other), 0.1)


def test_bad_settings_are_refused_by_name():
    for made_by in [SGD, Nesterov, Adagrad, RMSProp, Adam, AdamW, LARS, LAMB]:
        bad = {
            "momentum": [-0.1, 1, 1.5], "smoothing": [-1, 1], "beta1": [1, -0.5], "beta2": [1.0, 2],
            "epsilon": [0, -1e-8], "weight_decay": [-1e-4], "trust": [0, -1],
        }  # fmt: skip
        for setting in {*inspect.signature(made_by).parameters} - {"momentum_correction"}:
            for value in [*bad[setting], float("nan"), float("inf"), "0.1", True, None]:
                with pytest.raises(ValueError, match=f"^{setting} must [^\n]*$"):
                    made_by(**{setting: value})


def test_nesterov_without_lookahead_is_sutskevers_rule():
    """v <- mu v - rate g(x + mu v); x <- x + v, with g(x) = x; behind a loss scale, too."""
    for scale in [1.0, 1024.0]:
        inner = Nesterov(momentum=0.9)
        scaled = LossScaling(inner, SimpleNamespace(parameters=np.zeros(7)), scale=scale)
        optimizer = inner if scale == 1 else scaled
        y, found = np.linspace(-1, 1, 7), np.zeros(7)
        x, v = y.copy(), np.zeros(7)
        for _ in range(5):
            without_lookahead(optimizer, y, found)
            np.testing.assert_allclose(found, x, rtol=1e-12)
            v = 0.9 * v - 0.1 * (x + 0.9 * v)
            x = x + v
            optimizer.update(y, scale * y, 0.1)
        assert np.abs(y - x).max() > 0.1


@each_rule
@pytest.mark.parametrize("piece_bytes", [8, 24, 56, 808, 1 << 17])
def test_the_whole_vector_is_updated_as_tensor_by_tensor_and_so_is_any_part(make, piece_bytes, monkeypatch):
    """One optimizer per tensor has its own decay and rate. A part is a server's shard, or a layer."""
    monkeypatch.setattr(protocol, "BLOCK_BYTES", piece_bytes)
    expected = trained(make(weight_decay=0.1))
    for one in TENSORS:
        alone = run(make(weight_decay=0.1 * one.decay), START[one.span], GRADIENTS[:, one.span], one.rate * RATES)
        np.testing.assert_allclose(expected[one.span], alone, rtol=1e-12)
    for begin, end in itertools.pairwise([0, 0, 3, 42, 43, 44, 45, 46, 80, N]):
        part = trained(make(weight_decay=0.1), slice(begin, end))
        np.testing.assert_array_equal(part, expected[begin:end])


def test_without_a_gradient_biases_and_batch_normalisation_stay_and_weights_shrink():
    data = find("datasets", "synthetic")(shape=[8, 8, 3], classes=4)
    network = find("models", "resnet20")(data.shape, data.classes)
    replica = Replica(network, data.shape, backend=backend("numpy"), dtype="float64")
    replica.parameters += 1
    before, optimizer = replica.parameters.copy(), SGD(weight_decay=0.5)
    optimizer.multipliers = Multipliers.of(replica.tensors)
    optimizer.update(replica.parameters, replica.gradients, 0.1)
    for tensor in replica.tensors:
        is_weight = tensor.name.endswith("weight")
        factor = 0.95 if is_weight else 1.0
        assert tensor.decay == is_weight, tensor.name
        np.testing.assert_allclose(replica.parameters[tensor.span], factor * before[tensor.span], rtol=1e-15)


CAFFES = {"alexnet", "cifar_quick", "googlenet", "inception_small", "lenet5", "nin", "nin_cifar"}
"""Models whose published training file, or GoogLeNet's, gives biases twice the learning rate."""


def test_only_caffes_models_have_factors_on_the_rate():
    for name in {*names("models")} - {"layers"}:
        model, found = find("models", name), {}
        shape = inspect.signature(model).parameters["shape"].default
        for layer in model():
            found |= {f"{layer.name}.{one.name}": one.rate for one in layer.declare(shape) if one.trained}
            shape = layer.output(shape)
        tenth = {"cccp6.weight", "cccp6.bias"} if name == "nin_cifar" else set()
        for variable, rate in found.items():
            twice = name in CAFFES and variable.endswith("bias")
            assert rate == (0.1 if variable in tenth else 2 if twice else 1), variable
