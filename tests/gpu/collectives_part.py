"""Collectives of vectors in device memory, ours and the libraries', as ``hpcdl run`` measures them."""

import json
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
aggregation = {schemes}
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
    schemes, sizes = (SCHEMES[:2], SIZES[:1]) if tiny else (SCHEMES, SIZES)
    for ranks in RANKS[:1] if tiny else RANKS:
        if results.left() < 15:
            results.put(f"{ranks} ranks", shown="not run: no time left")
        else:
            measure(results, ranks, schemes, sizes, name)


def measure(results, ranks, schemes, sizes, name):
    suite = results.place / f"collectives-{ranks}.toml"
    suite.write_text(SUITE.format(schemes=list(schemes), ranks=ranks, sizes=list(sizes), name=name))
    run = suite.with_suffix("")
    command, captured = [sys.executable, "-m", "hpcdl"], {"capture_output": True, "text": True}
    try:
        words = [*command, "run", suite, "-o", run]
        done = subprocess.run(words, **captured, timeout=results.left(), check=False)
    except subprocess.TimeoutExpired:
        results.put(f"{ranks} ranks", ok=False, error="no answer")
        return
    print(done.stdout, done.stderr)
    told = subprocess.run([*command, "report", run, "--json"], **captured, check=True)
    records = json.loads(told.stdout)["cases"]
    for scheme in schemes:
        mine = [record for record in records if record["aggregation"] == scheme]
        seconds = {record["message_bytes"]: record["time_p50_seconds"] for record in mine if record["correct"]}
        shown = ", ".join(f"{size >> 10} KiB {1e6 * took:.0f} us" for size, took in sorted(seconds.items()))
        results.put(f"{scheme}, {ranks} ranks", ok=len(seconds) == len(sizes), seconds=seconds, shown=shown)
