"""The tests that every backend passes, on the device: tests/nn for ``cupy``."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path


def contract(results, name, tiny):
    if importlib.util.find_spec("pytest") is None:
        results.put("tests/nn", shown="not run: pytest is not installed; carry its wheels")
        return
    folder = Path(__file__).resolve().parent.parent / ("nn/test_layers.py" if tiny else "nn")
    chosen = f"({name} or {name}-) and not processor"
    command = [sys.executable, "-m", "pytest", "-q", "--maxfail=20", folder, "-k", chosen]
    if not tiny and importlib.util.find_spec("xdist") is not None:
        command += ["-n", str(min(8, os.cpu_count() or 1)), "-p", "no:benchmark"]  # which warns beside workers
    done = subprocess.run(
        [*command, "-p", "no:cacheprovider"], capture_output=True, text=True, check=False, timeout=results.left()
    )
    print(done.stdout[-20_000:], done.stderr[-2000:])
    passed = re.search(r"(\d+) passed", done.stdout)
    last = (done.stdout.strip() or "nothing printed").splitlines()[-1]
    results.put("tests/nn", ok=done.returncode == 0 and passed is not None, shown=last)
