"""Times of layers by batch and precision, as training launches them: the files that ``device`` of replays reads.

Each network and precision is a process, because cuDNN's plans take longer to build than layers to run; when all
stand, one process after another measures.
"""

import csv
import multiprocessing
import statistics
import time
from contextlib import suppress
from functools import partial
from itertools import pairwise
from pathlib import Path

from gpu.geometries import default_shape
from gpu.networks_part import CLASSES, LEARNING_RATE, MOMENTUM, task
from gpu.times_file import text_of
from gpu.timing import release

from hpcdl import registry
from hpcdl.cases.keys.compute_times import shape_text
from hpcdl.nn.backend import backend
from hpcdl.nn.kernels.cupy.gpu import gpu_availability
from hpcdl.nn.replica import Replica
from hpcdl.optim.sgd import SGD

MODELS = ("googlenet", "resnet50", "vgg16", "nin", "alexnet(groups=1)", "nin_cifar", "resnet20", "lenet5")
PRECISIONS = {"tf32": ("float32", True), "bfloat16": ("bfloat16", True), "float32": ("float32", False)}
"""By the name of its file: dtype of activations, and whether products of float32 may use TF32."""
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
REPETITIONS = 5


def layers(results, name, tiny):
    gpu = name == "cupy"
    every = [(model, precision) for precision in PRECISIONS for model in MODELS]
    chosen = every if gpu else [("lenet5", "float32")]
    batches = BATCHES[:2] if tiny else BATCHES
    context = multiprocessing.get_context("spawn")
    alone, built, begin = context.Lock(), context.Semaphore(0), context.Event()
    shared = results.place, name, batches, alone, built, begin
    workers = [context.Process(target=of_network, args=(*shared, *one)) for one in chosen]
    for worker in workers:
        worker.start()
    until = time.time() + 0.6 * results.left()
    for _ in workers:
        built.acquire(timeout=max(0, until - time.time()))
    results.put("plans", seconds_left=results.left())
    begin.set()
    for (model, precision), worker in zip(chosen, workers, strict=True):
        worker.join(max(1, results.left()))
        if worker.is_alive():
            worker.kill()
        rows = read(results.place, model, precision)
        seconds = {n: 1e-6 * sum(float(row[n]) for row in rows) for n in rows[0] if n.isdecimal()} if rows else {}
        shown = ", ".join(f"N={n} {1e3 * took:.2f} ms" for n, took in seconds.items())
        results.put(f"{model} {precision}", ok=bool(rows), seconds=seconds, shown=shown or "no times")
    for precision in dict.fromkeys(precision for _, precision in chosen):
        join(results.place, precision, gpu_availability()[1] if gpu else "a processor")


def join(place, precision, device):
    """Write the times of all networks in one precision, as they are kept in ``hpcdl/cases/keys``."""
    table = {}
    for row in (row for model in MODELS for row in read(place, model, precision)):
        known = {int(n): float(row[n]) for n in row if n.isdecimal() and row[n]}
        table[row["model"], row["shape"], row["label"]] = known
    heading = f"{time.strftime('%Y-%m-%d')}, {device}, {precision}, launches and uploads of images included"
    (Path(place) / f"{precision}_times.csv").write_text(text_of(heading, table), encoding="utf-8")


def file_of(place, model, precision):
    return Path(place) / f"times-{precision}-{model.partition('(')[0]}.csv"


def read(place, model, precision):
    try:
        return list(csv.DictReader(file_of(place, model, precision).read_text(encoding="utf-8").splitlines()[1:]))
    except OSError:
        return []


def of_network(place, name, batches, alone, built, begin, model, precision):
    """Write the microseconds of each layer of one network, one column a batch, as ``cpu_times.csv`` has them."""
    dtype, tf32 = PRECISIONS[precision]
    kernels = backend(name, tf32=tf32) if name == "cupy" else backend(name)
    name_of_model, _, grouped = model.partition("(")
    make = registry.find("models", name_of_model)
    shape = default_shape(make)
    net_layers = make(shape, CLASSES.get(name_of_model, 10), **({"groups": 1} if grouped else {}))
    net = Replica(net_layers, shape, backend=kernels, dtype=dtype, seed=1)

    def step_of(batch):
        case = task(name_of_model, batch, small=False)
        return partial(timed_step, net, case, SGD(momentum=MOMENTUM), name == "cupy")

    for batch in batches:
        # several networks at once may not fit into the memory: what is missing is built later
        with suppress(MemoryError):
            step_of(batch)()
        release()
    built.release()
    begin.wait()
    found = {}
    for batch in batches:
        step = step_of(batch)
        with alone:
            step()
            samples = [step() for _ in range(REPETITIONS)]
            for label in samples[0]:
                found.setdefault(label, {})[batch] = 1e6 * statistics.median(sample[label] for sample in samples)
            release()
        table = {(model, shape_text(shape), label): known for label, known in sorted(found.items())}
        file_of(place, model, precision).write_text(text_of(precision, table), encoding="utf-8")


def timed_step(net, case, optimizer, gpu):
    """Train once; the seconds of each piece of work by its label, from one piece's end to the next one's."""
    marks = [("", mark(gpu))]

    def done(label):
        marks.append((label, mark(gpu)))

    x, labels = net.backend.asarray(case.images), net.backend.asarray(case.labels)
    done("input")
    for stage in net.stages:
        x = stage.forward(x)
        done(f"forward {stage.name}")
    _, _, dy = net.loss(x, labels, 1 / len(labels))
    done("loss")
    for head in net.heads:
        head.aim(labels, net.loss_scale / len(labels))
    for stage in reversed(net.stages):
        dy = stage.backward(dy)
        done(f"backward {stage.name}")
    optimizer.update(net.parameters, net.gradients, LEARNING_RATE)
    done("update")
    if not gpu:
        return {label: after - before for (_, before), (label, after) in pairwise(marks)}
    import cupy

    marks[-1][1].synchronize()
    return {
        label: 1e-3 * cupy.cuda.get_elapsed_time(before, after) for (_, before), (label, after) in pairwise(marks)
    }


def mark(gpu):
    if not gpu:
        return time.perf_counter()
    import cupy

    return cupy.cuda.get_current_stream().record(cupy.cuda.Event())
