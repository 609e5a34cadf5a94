"""Whole networks beside PyTorch's, channels last, with the same precision flags; and against float64 on the host."""

import importlib.util
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from contract.networks import backward, forward, layers
from gpu.geometries import default_shape
from gpu.timing import release, summary, times

from hpcdl import registry
from hpcdl.nn.backend import backend
from hpcdl.nn.replica import Replica
from hpcdl.optim.sgd import SGD

CLASSES = {"alexnet": 1000, "googlenet": 1000, "nin": 1000, "vgg16": 1000, "resnet50": 1000}
"""10 in all others."""

PLAN = [
    ("lenet5", [64]),
    ("resnet20", [128]),
    ("alexnet", [128]),
    ("googlenet", [32, 128]),
    ("vgg16", [64]),
    ("resnet50", [32, 128]),
]
"""Networks and images per step, the ones that tell most first within each."""

MODES = [
    ("float32", {"tf32": True}),
    ("bfloat16", {}),
    ("bfloat16", {"graphs": True}),
    ("float32", {"tf32": False}),
]

REPETITIONS = 20
LEARNING_RATE, MOMENTUM = 0.01, 0.9


@dataclass
class Task:
    """One network on one batch."""

    model: str
    shape: tuple
    classes: int
    images: np.ndarray
    labels: np.ndarray

    def replica(self, kernels, dtype):
        made = layers(self.model, self.shape, self.classes)
        return Replica(made, self.shape, backend=kernels, dtype=dtype, seed=1)


def task(model, batch, *, small):
    shape = (32, 32, 3) if small and model != "lenet5" else default_shape(registry.find("models", model))
    classes = CLASSES.get(model, 10)
    random = np.random.default_rng(batch)
    images = random.standard_normal((batch, *shape)).astype(np.float32)
    return Task(model, shape, classes, images, random.integers(0, classes, batch))


def networks(results, name, tiny):
    against_numpy(results, name)
    if importlib.util.find_spec("torch") is None:
        results.put("PyTorch", shown="not run: not installed")
        return
    for dtype, settings in [("float32", {})] if name == "numpy" else MODES:
        for model, batches in PLAN[:1] if tiny else PLAN:
            for batch in batches[:1] if tiny else batches:
                words = (f"{key}={value}" for key, value in settings.items())
                title = " ".join([model, dtype, *words, f"N={batch}"])
                if results.left() < 15:
                    results.put(title, shown="not run: no time left")
                else:
                    beside(results, title, task(model, batch, small=False), dtype, name, settings)


def against_numpy(results, name):
    """Logits of the same weights: the device's in float32 without TF32, the host's in float64."""
    for model in ("lenet5", "cifar_quick", "resnet20"):
        case = task(model, 8, small=True)
        logits = []
        settings = {"tf32": False} if name == "cupy" else {}
        for kernels, dtype in ((backend(name, **settings), "float32"), (backend("numpy"), "float64")):
            net = case.replica(kernels, dtype)
            logits.append(kernels.to_host(net.predict(kernels.asarray(case.images.astype(dtype)))))
        error = float(np.abs(logits[0] - logits[1]).max() / np.abs(logits[1]).max())
        results.put(f"{model}'s logits", ok=error < 1e-4, error=error)


def beside(results, title, case, dtype, name, settings):
    gpu = name == "cupy"
    repetitions = REPETITIONS if gpu else 3
    try:
        ours, loss = our_step(case, dtype, backend(name, **settings))
        mine = summary(times(ours, repetitions, on_gpu=gpu), "ours_")
        del ours
        release()
        theirs, its_loss = their_step(case, dtype, tf32=settings.get("tf32", True), gpu=gpu)
        its = summary(their_times(theirs, repetitions, gpu=gpu), "torch_")
        del theirs
        release()
    except Exception as error:  # noqa: BLE001 - one network that does not fit must not end the others
        results.put(title, ok=False, error=f"{type(error).__name__}: {error}"[:300])
        return
    speed = its["torch_median_ms"] / mine["ours_median_ms"]
    shown = f"{mine['ours_median_ms']:.2f} ms, PyTorch {its['torch_median_ms']:.2f} ms: {speed:.2f} x its speed"
    finite = bool(np.isfinite(loss) and np.isfinite(its_loss))
    results.put(title, ok=finite, **mine, **its, speed=round(speed, 3), shown=shown)


def our_step(case, dtype, kernels):
    """A function that trains once on images already on the device, and the first loss."""
    net = case.replica(kernels, dtype)
    optimizer = SGD(momentum=MOMENTUM)
    images, labels = kernels.asarray(case.images), kernels.asarray(case.labels)
    if dtype == "float16":
        net.loss_scale = 1024.0

    def step():
        loss, _ = backward(net, forward(net, images), labels, 1 / len(labels))
        optimizer.update(net.parameters, net.gradients, LEARNING_RATE)
        return loss / len(labels)

    return step, step()


def their_step(case, dtype, *, tf32, gpu):
    import torch
    from models import torch_zoo

    torch.backends.cudnn.allow_tf32 = tf32
    torch.backends.cudnn.benchmark = True
    device = torch.device("cuda" if gpu else "cpu")
    network = getattr(torch_zoo, case.model)(case.shape, case.classes)
    network = network.to(device, memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(network.parameters(), LEARNING_RATE, momentum=MOMENTUM)
    images = torch.from_numpy(case.images).permute(0, 3, 1, 2).to(device, memory_format=torch.channels_last)
    labels = torch.from_numpy(case.labels).to(device)
    half = torch.autocast(device.type, torch.bfloat16, enabled=dtype == "bfloat16")

    def step():
        optimizer.zero_grad(set_to_none=True)
        with half:
            _, loss = torch_zoo.outcome(network, images, labels)
        loss.backward()
        optimizer.step()
        return loss.item()  # as ours does: the loss is looked at in each step

    return step, step()


def their_times(step, repetitions, *, gpu):
    if not gpu:
        return times(step, repetitions, on_gpu=False)
    import torch

    for _ in range(3):
        step()
    events = [torch.cuda.Event(enable_timing=True) for _ in range(repetitions + 1)]
    events[0].record()
    for event in events[1:]:
        step()
        event.record()
    torch.cuda.synchronize()
    return [before.elapsed_time(after) for before, after in pairwise(events)]
