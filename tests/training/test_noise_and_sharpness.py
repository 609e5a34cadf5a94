"""Gradient noise scale, and sharpness: the largest eigenvalue of the Hessian of the training loss."""

import numpy as np
import pytest
from contract import networks
from contract.sessions import silent_journal
from contract.training import digits
from scipy.sparse.linalg import LinearOperator, eigsh

from hpcdl import registry
from hpcdl.cases.keys.key import restored
from hpcdl.cases.keys.train_spec import TrainSpec
from hpcdl.cases.train import program
from hpcdl.fabric.virtual.clocks import in_process
from hpcdl.nn.backend import backend
from hpcdl.nn.layers import Flatten, Linear
from hpcdl.nn.replica import Replica
from hpcdl.training.parts.noise_and_sharpness import extreme_eigenvalues, training_gap

CASE = {"model": "lenet5", "dataset": "digits", "learning_rate": 0.0, "ranks": 4, "global_batch": 64, "epochs": 8}


def run(**keys):
    """Return the record and the specification of a case at rate 0."""
    spec = restored(TrainSpec, CASE | keys)

    async def train(comm):
        return await program(spec, silent_journal())(comm)

    return in_process(spec.ranks).run(train)[0], spec


@pytest.mark.slow
def test_it_is_the_trace_of_the_covariance_by_the_squared_gradient():
    found, spec = run()
    replica = spec.replica(spec.kernels)
    whole = digits().train
    mean, squares = np.zeros(replica.gradients.size), 0.0
    for index in range(len(whole)):
        networks.step(replica, *whole.batch(np.array([index]), "float32"), 1.0)
        mean += replica.gradients
        squares += float(replica.gradients @ replica.gradients)
    mean /= len(whole)
    true = float(mean @ mean)
    expected = (squares / len(whole) - true) / true
    quarters = [found[f"noise_scale_q{quarter}"] for quarter in range(1, 5)]
    assert np.mean(quarters) == pytest.approx(expected, rel=0.1)


def test_buckets_do_not_change_the_estimate():
    keys = {"ranks": 3, "global_batch": 60, "epochs": 1}
    strategies = ({"name": "synchronous", "bucket_bytes": size} for size in (0, 4096))
    whole, parts = (run(training=strategy, **keys)[0]["noise_scale_q1"] for strategy in strategies)
    assert parts == pytest.approx(whole, rel=1e-4)


def test_where_a_rank_does_not_know_both_gradients_there_is_none():
    for keys in ({"aggregation": "none"}, {"compression": "fp16"}, {"mesh": {"model": 2}}):
        assert not any(name.startswith("noise") for name in run(ranks=2, epochs=1, **keys)[0])


IMAGES = 64


def measured(layers, batch=IMAGES, seed=1):
    """Return what is measured of a network, with its parameters and the sample of images."""
    split, kernels = digits().train, backend("numpy")
    start = Replica(layers, digits().shape, backend=kernels, dtype="float64", seed=seed)
    found = training_gap(layers, kernels, split, start.parameters, start.state, IMAGES, batch)
    sample = np.sort(np.random.default_rng(0).choice(len(split), IMAGES, replace=False))
    return found, start, split.batch(sample, "float64")


def test_softmax_regression_has_a_hessian_in_closed_form():
    """Mean over images of (diag(p) - p p^T) x [1 x]^T [1 x]. The accuracy is that of 2048 images, or of all."""
    layers = [Flatten("flatten"), Linear("fc", 10)]
    found, replica, (images, labels) = measured(layers)
    logits = replica.predict(images)
    p = np.exp(logits - logits.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    x = np.hstack([images.reshape(IMAGES, -1), np.ones((IMAGES, 1))])
    blocks = [
        np.kron(np.diag(own) - np.outer(own, own), np.outer(row, row)) for own, row in zip(p, x, strict=True)
    ]
    assert found["sharpness"] == pytest.approx(np.linalg.eigvalsh(np.mean(blocks, axis=0))[-1], rel=0.01)
    slope = (p - np.eye(10)[labels]).T @ x / IMAGES
    assert found["final_gradient_norm"] == pytest.approx(np.linalg.norm(slope), rel=1e-9)
    images, labels = digits().train.batch(np.arange(len(digits().train)), "float64")
    assert len(labels) == 1437
    assert found["train_accuracy"] == np.mean(replica.predict(images).argmax(1) == labels)
    diverged = np.full(replica.parameters.size, np.nan)
    with np.errstate(invalid="ignore"):
        none = training_gap(layers, backend("numpy"), digits().train, diverged, replica.state, 8, 8)
    assert none["sharpness"] is None


def test_of_a_convolutional_network_it_is_that_of_lanczos_iterations():
    layers = registry.find("models", "lenet5")(digits().shape, 10)
    found, replica, (images, labels) = measured(layers)
    start = replica.parameters.copy()

    def gradient(at):
        replica.parameters[:] = at
        networks.step(replica, images, labels, 1 / IMAGES)
        return replica.gradients.copy()

    def product(v):
        v = v.ravel()
        step = 1e-9 / np.linalg.norm(v)
        return (gradient(start + step * v) - gradient(start - step * v)) / (2 * step)

    hessian = LinearOperator((start.size, start.size), matvec=product, dtype=np.float64)
    (expected,) = eigsh(hessian, k=1, which="LA", return_eigenvectors=False, tol=1e-6)
    assert found["sharpness"] == pytest.approx(expected, rel=0.01)
    assert measured(layers, batch=10)[0]["sharpness"] == pytest.approx(found["sharpness"], rel=1e-6)


@pytest.mark.parametrize("values", [(3.0, -1.0, 0.5), (1.0, -7.0, 0.5), (-2.0, -7.0, -3.0)])
def test_either_end_of_the_eigenvalues_may_have_the_smaller_magnitude(values):
    hessian = np.diag(values)
    ends = extreme_eigenvalues(lambda x: hessian @ x, np.ones(3))
    assert ends == pytest.approx((min(values), max(values)), rel=0.01)
