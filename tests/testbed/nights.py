"""Nights on emulated hosts: one link becomes slow, then is repaired, and ``hpcdl history`` has to say so.

Each night is a run of the suite ``interconnect`` and a judgement of all nights so far. A night with disturbed cases is
repeated. Needs root and a quiet machine; takes five minutes. Exit code 1 if the first slow night, its host or the
repair were not found.
"""

import argparse
import json
import shutil
import subprocess
import sys
from pathlib import Path

USUAL, SLOW, REPAIRED = 10, 4, 4
"""Nights before, with and after the defect."""
TRIES = 4
"""Repetitions of a disturbed night, at most."""
LIMIT = 1500
"""Seconds that a command may take."""


def hpcdl(*words):
    """Run a command of this Python's hpcdl; return its exit code and output."""
    run = [sys.executable, "-P", "-m", "hpcdl", *map(str, words)]
    ended = subprocess.run(run, capture_output=True, text=True, timeout=LIMIT, check=False)
    return ended.returncode, ended.stdout or ended.stderr


def command(*words):
    """Run such a command; return its output. End with its error if it fails."""
    code, output = hpcdl(*words)
    if code:
        sys.exit(f"hpcdl {' '.join(map(str, words))}: exit code {code}: {output}")
    return output


def night(folder, options, slow):
    """Run the suite once, again while cases are disturbed; return the number of cases that stay disturbed."""
    slowed = ["--slow", options.slow] if slow else []
    for _ in range(TRIES):
        shutil.rmtree(folder, ignore_errors=True)
        testbed = ["testbed", "--hosts", options.hosts, "--rate", options.rate, *slowed, "--"]
        words = ["hpcdl", "run", "interconnect", "--set", f"case.ranks={options.hosts}", "-o", folder]
        code, output = hpcdl(*testbed, *words)
        if code:
            sys.exit(f"{folder}: exit code {code}: {output}")
        cases = json.loads(hpcdl("report", folder, "--json")[1])["cases"]
        disturbed = sum(case["disturbed"] is not None for case in cases)
        if not disturbed:
            break
    return disturbed


def found(archive):
    """Return the exit code and the events of the history, one sentence each."""
    code, output = hpcdl("history", archive, "--json")
    (suite,) = json.loads(output)["suites"]
    events = [
        (one["verdict"], Path(one["first_run"]).name, *(likely["name"] for likely in one["likely"]))
        for one in suite["events"]
    ]
    return code, events


def main():
    """Run the nights; print a line for each and the last page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="new folder for the runs")
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--rate", default="100mbit")
    parser.add_argument("--slow", default="host3:80mbit", help="a fifth slower")
    options = parser.parse_args()
    for number in range(1, USUAL + SLOW + REPAIRED + 1):
        slow = USUAL < number <= USUAL + SLOW
        disturbed = night(options.folder / f"night-{number:02d}", options, slow)
        code, events = found(options.folder)
        words = [options.slow if slow else "usual", f"exit code {code}", *(" ".join(one) for one in events)]
        words += [f"{disturbed} cases disturbed"] if disturbed else []
        print(f"night {number}: {', '.join(words)}", flush=True)
    print(hpcdl("history", options.folder)[1])
    first, repair = f"night-{USUAL + 1:02d}", f"night-{USUAL + SLOW + 1:02d}"
    wanted = {("regressed", first, options.slow.partition(":")[0]), ("restored", repair)}
    missing = wanted - {event[: 3 if event[0] == "regressed" else 2] for event in events}
    sys.exit(f"not found: {missing}" if missing else 0)


if __name__ == "__main__":
    main()
