"""Synchronous training to accuracy on the device: LeNet-5 on the bundled digits, in every precision."""

import time

import numpy as np
from contract.networks import step as step_of

from hpcdl.data.digits import digits
from hpcdl.fabric.virtual.clocks import in_process
from hpcdl.models.caffe import lenet5
from hpcdl.nn.backend import backend
from hpcdl.nn.replica import Replica
from hpcdl.optim.parts.protocol import LossScaling
from hpcdl.optim.sgd import SGD
from hpcdl.registry import find

BATCH, RATE, EPOCHS, TARGET = 64, 0.05, 6, 0.95

CASES = [
    ("float32", {}, 1),
    ("float32", {"deterministic": True}, 1),
    ("float32", {"graphs": True}, 1),
    ("bfloat16", {}, 1),
    ("float16", {}, 1),
    ("float32", {}, 2),
    ("float32", {}, 4),
]
"""Precision, settings of the backend, ranks; all ranks are in this process and share its device."""


def training(results, name, tiny):
    accuracies = {}
    for dtype, settings, ranks in CASES[:1] + CASES[5:6] if name == "numpy" else CASES:
        title = " ".join(["lenet5", dtype, *settings, f"{ranks} ranks"])
        if results.left() < 15:
            results.put(title, shown="not run: no time left")
            continue
        began = time.time()
        accuracy = train(name, dtype, settings, ranks, epochs=1 if tiny else EPOCHS)
        accuracies[title] = accuracy
        shown = f"{accuracy:.3f} of the test images in {time.time() - began:.1f} s"
        results.put(title, ok=accuracy >= (0.5 if tiny else TARGET), accuracy=accuracy, shown=shown)
    if name == "cupy" and results.left() > 15:
        again = [train(name, "float32", {"deterministic": True}, 1, epochs=1) for _ in range(2)]
        results.put("a deterministic run repeats", ok=again[0] == again[1], accuracies=again)


def train(name, dtype, settings, ranks, epochs):
    data = digits()
    kernels = backend(name, **settings)
    ring = find("aggregation", "ring")
    images, labels = shuffled(data.train)
    accuracies = []

    async def program(comm):
        net = Replica(lenet5(data.shape, data.classes), data.shape, backend=kernels, dtype=dtype, seed=1)
        optimizer = SGD(momentum=0.9)
        if dtype == "float16":
            optimizer = LossScaling(optimizer, net)
        share = BATCH // comm.size
        for step in range(epochs * (len(images) // BATCH)):
            begin = step % (len(images) // BATCH) * BATCH + comm.rank * share
            step_of(net, images[begin : begin + share], labels[begin : begin + share], 1 / BATCH)
            await ring(comm, net.gradients)
            optimizer.update(net.parameters, net.gradients, RATE)
        if comm.rank == 0:
            seen, right = shuffled(data.test)
            predicted = kernels.to_host(net.predict(kernels.asarray(seen)))
            accuracies.append(float((predicted.argmax(axis=1) == right).mean()))

    in_process(ranks).run(program)
    return accuracies[0]


def shuffled(split):
    return split.batch(np.random.default_rng(1).permutation(len(split)), "float32")
