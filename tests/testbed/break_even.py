"""Break-even bandwidths of compressors: predicted at prices of this machine, and measured on two emulated hosts.

A ``break_even`` case predicts the bandwidth below which a compressed step is faster than one with the overlapped
16-bit ring. Replays of the same set-up are measured at rates around the prediction. The measured bandwidth is
interpolated where the two steps take equally long; bandwidths are those that an allgather reaches in the same runs.
Ranks sleep instead of computing, so that each has a core for encoders, decoders and messages, as in the simulation.
Both ranks encode at the same time; so two processes predict at the same time, and the mean of their bandwidths counts.
Gradients are one bucket: over TCP no message proceeds while its rank encodes, unlike the messages of a simulation.

Needs root and two idle cores; takes five minutes. A run with disturbed cases is repeated, and marked if they stay
disturbed. Exit code 1 unless every prediction is within 20 % of the measurement.
"""

import argparse
import json
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from math import exp, log, log10
from pathlib import Path
from statistics import fmean

from nights import TRIES, hpcdl

NEAR = 0.2
"""Largest difference of prediction and measurement, as a share of the measurement."""
RATES = (0.6, 0.8, 1.0, 1.25, 1.6)
"""Rates of the runs, by the predicted bandwidth."""
TRAINING = """
model = "nin_cifar"
training = {name = "synchronous", bucket_bytes = 1073741824}
ranks = 2
batch_per_rank = 16
flops = 2e12
"""
SET_UPS = {
    "PowerSGD, rank 48": ('{name = "power_sgd", rank = 48}', "ring"),
    "PowerSGD, rank 32": ('{name = "power_sgd", rank = 32}', "ring"),
    "PowerSGD, rank 24": ('{name = "power_sgd", rank = 24}', "ring"),
    "top-k, 30 %, Huffman": ('{name = "top_k", density = 0.3, code = "huffman"}', "allgather"),
}
"""Compression and aggregation by title. Compressors are slow enough to break even at rates of emulated links."""
HOSTS = 2
"""Emulated hosts, one rank on each."""
BREAK_EVEN = "break_even_bytes_per_second"
NETWORKS = ("ethernet-100m", "ethernet-1g")
"""Networks near which break-even bandwidths are predicted: 30 Mbit/s to 3 Gbit/s."""
PREDICTED = """
[[case]]
kind = "break_even"
compression = {compression}
aggregation = "{aggregation}"
network = {networks}
{training}"""
MEASURED = """
[suite]
name = "break-even-measured"
question = "Is a step with compression faster than one with the 16-bit ring at this rate?"

[[case]]
kind = "replay"
compression = ["fp16", "bf16"]
aggregation = "ring"
steps = {steps}
{training}
[[case]]
kind = "replay"
compression = {compression}
aggregation = "{aggregation}"
steps = {steps}
{training}
[[case]]
kind = "collective"
collective = "allgather"
aggregation = "ring"
ranks = 2
message_bytes = 4194304
repetitions = 5
warmup = 1
"""


def cases(folder, *command):
    """Run a suite into ``folder``, again while cases are disturbed; return its records."""
    for _ in range(TRIES):
        shutil.rmtree(folder, ignore_errors=True)
        code, output = hpcdl(*command, "-o", folder)
        if code:
            sys.exit(f"{folder}: exit code {code}: {output}")
        records = json.loads(hpcdl("report", folder, "--json")[1])["cases"]
        if not is_disturbed(records):
            break
    return records


def is_disturbed(records):
    """Return True if other processes took time from a case."""
    return any(one["disturbed"] for one in records)


def parts(records, length):
    """Return consecutive parts of a length."""
    return [records[start : start + length] for start in range(0, len(records), length)]


def predictions(folder):
    """Return the predicted break-even bandwidth of each set-up (bytes/s), None if none is near the networks."""
    text = '[suite]\nname = "break-even-predicted"\nquestion = "Below which bandwidth does compression pay?"\n'
    for compression, aggregation in SET_UPS.values():
        text += PREDICTED.format(
            compression=compression, aggregation=aggregation, networks=[*NETWORKS], training=TRAINING
        )
    (folder / "predicted.toml").write_text(text)
    runs = [folder / f"predicted-{number}" for number in range(HOSTS)]
    with ThreadPoolExecutor(HOSTS) as pool:
        each = [*pool.map(lambda run: cases(run, "run", folder / "predicted.toml"), runs)]
    found = [
        [
            next((one[BREAK_EVEN] for one in near if one[BREAK_EVEN]), None)
            for near in parts(records, len(NETWORKS))
        ]
        for records in each
    ]
    return [None if None in rates else fmean(rates) for rates in zip(*found, strict=True)]


def runs(folder, name, set_up, predicted, steps):
    """Run a set-up at all rates; return (bandwidth in bytes/s, time gained per step in s, disturbed) of each."""
    suite = folder / f"{name}.toml"
    compression, aggregation = set_up
    suite.write_text(
        MEASURED.format(compression=compression, aggregation=aggregation, training=TRAINING, steps=steps)
    )
    found = []
    for share in RATES:
        rate = f"{predicted * share * 8e-3:.0f}kbit"
        testbed = ("testbed", "--hosts", HOSTS, "--rate", rate, "--")
        records = cases(folder / f"{name}-{rate}", *testbed, "hpcdl", "run", suite)
        *halves, compressed = (one["step_seconds"] for one in records[:3])
        bandwidth = records[3]["busbw_bytes_per_second"]
        found.append((bandwidth, min(halves) - compressed, is_disturbed(records)))
        print(f"{shown(bandwidth)}: {1e3 * compressed:.1f} ms, 16-bit ring {1e3 * min(halves):.1f} ms", flush=True)
    return found


def equal(points):
    """Return the bandwidth at which nothing is gained, None if there is none among ``points``."""
    for (low, gain, _), (high, loss, _) in pairwise(sorted(points)):
        if gain > 0 >= loss:
            share = gain / (gain - loss)
            return exp((1 - share) * log(low) + share * log(high))
    return None


def shown(bandwidth):
    """Return a bandwidth in Mbit/s, three digits; a dash for None."""
    if bandwidth is None:
        return "-"
    megabits = bandwidth * 8e-6
    return f"{megabits:.{max(0, 2 - int(log10(megabits)))}f} Mbit/s"


def main():
    """Predict, measure, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="new folder for the runs and the table")
    parser.add_argument("--steps", type=int, default=20, help="steps of each replay; two are not counted")
    options = parser.parse_args()
    options.folder.mkdir(parents=True)
    header = ("set-up", "predicted", "measured", "predicted / measured", "bandwidths of the runs", "disturbed")
    lines = [f"| {' | '.join(header)} |", "| --- " * len(header) + "|"]
    far = []
    for number, (title, predicted) in enumerate(zip(SET_UPS, predictions(options.folder), strict=True), 1):
        if predicted is None:
            sys.exit(f"{title}: no break-even bandwidth near {' and '.join(NETWORKS)}")
        print(f"{title}: predicted {shown(predicted)}", flush=True)
        points = runs(options.folder, f"set-up-{number}", SET_UPS[title], predicted, options.steps)
        measured = equal(points)
        ratio = predicted / measured if measured else None
        cells = (
            *(title, shown(predicted), shown(measured), f"{ratio:.2f}" if ratio else "-"),
            f"{len(points)}, {shown(min(points)[0])} to {shown(max(points)[0])}",
            f"{sum(disturbed for _, _, disturbed in points)} of {len(points)}",
        )
        lines.append(f"| {' | '.join(cells)} |")
        if ratio is None or abs(ratio - 1) > NEAR:
            far.append(title)
    table = "\n".join(lines) + "\n"
    (options.folder / "break-even.md").write_text(table)
    print(f"\n{table}")
    sys.exit(f"not within {NEAR:.0%}: {'; '.join(far)}" if far else 0)


if __name__ == "__main__":
    main()
