"""Collectives of vectors in device memory, ours and the libraries', as ``hpcdl run`` measures them."""

import json
import os
import subprocess
import sys

from hpcdl.launch.mpirun import NoLauncher, mpirun

SCHEMES = ("ring", "halving_doubling", "butterfly", "tree", "native", "nccl")
RANKS = (2, 4)
SIZES = (1 << 12, 1 << 20, 1 << 26)

SUITE = """
[suite]
name = "collectives-on-the-device"
[[case]]
kind = "collective"
aggregation = "{scheme}"
ranks = {ranks}
message_bytes = {sizes}
backend = "{name}"
repetitions = 20
"""


def collectives(results, name, tiny):
    try:
        mpirun()
    except NoLauncher as error:
        results.put("collectives", shown=f"not run: {error}")
        return
    for scheme in SCHEMES[:2] if tiny else SCHEMES:
        for ranks in RANKS[:1] if tiny else RANKS:
            title = f"{scheme}, {ranks} ranks"
            if results.left() < 15:
                results.put(title, shown="not run: no time left")
                continue
            measure(results, title, scheme, ranks, SIZES[:1] if tiny else SIZES, name)


def measure(results, title, scheme, ranks, sizes, name):
    """A scheme is a run of its own: one that crashes costs no other."""
    suite = results.place / f"{scheme}-{ranks}.toml"
    suite.write_text(SUITE.format(scheme=scheme, ranks=ranks, sizes=list(sizes), name=name))
    run = suite.with_suffix("")
    command = [sys.executable, "-m", "hpcdl"]
    try:
        done = subprocess.run(
            [*command, "run", suite, "-o", run],
            env=os.environ,
            capture_output=True,
            text=True,
            timeout=min(40, results.left()),
            check=False,
        )
    except subprocess.TimeoutExpired:
        results.put(title, ok=False, error="no answer")
        return
    print(done.stdout, done.stderr)
    if done.returncode:
        results.put(title, ok=False, error=(done.stderr.strip() or done.stdout.strip())[-200:])
        return
    told = subprocess.run([*command, "report", run, "--json"], capture_output=True, text=True, check=True)
    records = json.loads(told.stdout)["cases"]
    seconds = {record["message_bytes"]: record["time_p50_seconds"] for record in records}
    shown = ", ".join(f"{size >> 10} KiB {1e6 * took:.0f} us" for size, took in sorted(seconds.items()))
    right = all(record["correct"] for record in records)
    results.put(title, ok=right and len(seconds) == len(sizes), seconds=seconds, shown=shown)
