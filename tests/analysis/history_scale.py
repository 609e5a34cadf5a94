"""Time and memory of `hpcdl history` on an archive of many nights, whose series are kept beside the runs.

python tests/analysis/history_scale.py [RUNS [SERIES]]
"""

import hashlib
import re
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from contract.archives import case, run
from contract.nights import nights

from hpcdl.analysis.over_time import archive
from hpcdl.trace.files import LENGTH, MARK, SIZE


def write(folder, number, series):
    """Write a run folder whose file has the checksum of a trace, but no trace: only the kept series are read."""
    folder.mkdir()
    body = bytearray(number.to_bytes(4096, "little"))
    body[LENGTH] = (SIZE + len(body)).to_bytes(LENGTH.stop - LENGTH.start, "little")
    digest = hashlib.sha256(body).hexdigest()
    file = folder / "run.h5"
    file.write_bytes((MARK + digest.encode() + b"\n").ljust(SIZE, b"\0") + body)
    archive._keep(series, file, digest)


def main(runs=2000, series=200):
    logs = np.log(1e-3) + nights(np.random.default_rng(0), series, runs, "normal")
    logs[: series // 5, runs // 2 :] += np.log(1.1)
    with tempfile.TemporaryDirectory() as folder:
        for number in range(runs):
            cases = [case(f"case-{row}", float(np.exp(logs[row, number]))) for row in range(series)]
            made = run(number - runs, cases)
            write(Path(folder) / f"run-{number:05d}", number, made)
        begin = time.perf_counter()
        printed = subprocess.run(
            [sys.executable, "-m", "hpcdl", "history", folder], capture_output=True, text=True, check=False
        )
        took = time.perf_counter() - begin
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    verdict = re.search(r"VERDICT\n(.*)", printed.stdout)
    print(f"{runs} runs of {series} series: {took:.1f} s, {used.ru_utime + used.ru_stime:.1f} s of CPU,")
    print(f"{used.ru_maxrss / 1000:.0f} MB; exit code {printed.returncode}: {verdict and verdict[1]}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
