"""Times of what a device does, in milliseconds: medians with the quartiles."""

import statistics
import sys
import time
from itertools import pairwise


def times(work, repetitions, *, on_gpu, warmup=3):
    """Run ``work`` so often; each run's time, by CUDA's events on a GPU."""
    for _ in range(warmup):
        work()
    if not on_gpu:
        marks = [time.perf_counter()]
        for _ in range(repetitions):
            work()
            marks.append(time.perf_counter())
        return [1e3 * (after - before) for before, after in pairwise(marks)]
    import cupy

    stream = cupy.cuda.get_current_stream()
    events = [stream.record(cupy.cuda.Event())]
    for _ in range(repetitions):
        work()
        events.append(stream.record(cupy.cuda.Event()))
    events[-1].synchronize()
    return [cupy.cuda.get_elapsed_time(before, after) for before, after in pairwise(events)]


def release():
    """Give memory back between networks, and between the libraries that are loaded."""
    if "cupy" in sys.modules:
        sys.modules["cupy"].get_default_memory_pool().free_all_blocks()
    if "torch" in sys.modules:
        sys.modules["torch"].cuda.empty_cache()


def summary(samples, name=""):
    """Median and quartiles, as fields of a result."""
    quartiles = statistics.quantiles(samples, n=4) if len(samples) > 1 else [samples[0]] * 3
    keys = (f"{name}low_ms", f"{name}median_ms", f"{name}high_ms")
    return dict(zip(keys, (round(value, 4) for value in quartiles), strict=True))
