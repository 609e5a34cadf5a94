"""Hosts with busy neighbours: is the slow node named, the slow link, both, and nothing where nothing is slow?

Runs the suite ``interconnect`` on emulated hosts while other processes burn the machine's cores in bursts. ``live``:
runs with each defect, each judged alone. ``nights``: an archive in which the link of a host becomes slow, judged
after each night, then replayed in other orders. Needs root. The figures of the tree are in culprits_figures.txt.
"""

import argparse
import datetime as dt
import random
import shutil
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

from nights import command

from hpcdl.analysis.over_time.archive import read_series
from hpcdl.analysis.over_time.series import histories
from hpcdl.analysis.over_time.verdict import SuiteVerdict
from hpcdl.report.history import verdicts, worst

BURN = "import time; end = time.monotonic() + {}\nwhile time.monotonic() < end: pass"
CPU, RATE = "0.8", "150mbit"
DEFECTS = {"node": ["--slow-cpu"], "link": ["--slow"], "both": ["--slow-cpu", "--slow"], "none": []}
FIRST_SLOW = 8
"""Night in which the link of host3 becomes slow."""


class Neighbours(threading.Thread):
    """Processes that take a core for one to four seconds, two to eight seconds apart."""

    def __init__(self, seed):
        super().__init__(daemon=True)
        self.ended, self.random = threading.Event(), random.Random(seed)

    def run(self):
        while not self.ended.wait(self.random.uniform(2, 8)):
            subprocess.run([sys.executable, "-c", BURN.format(self.random.uniform(1, 4))], check=False)


def measured(folder, hosts, options):
    """Run the suite."""
    shutil.rmtree(folder, ignore_errors=True)
    testbed = ["testbed", "--hosts", hosts, "--rate", "200mbit", *options, "--"]
    command(*testbed, "hpcdl", "run", "interconnect", "-o", folder)


def named(answer):
    """Return the sets of nodes and links that the sentences name as slow."""
    nodes, links = set(), set()
    for line in answer:
        if " computes at " in line:
            nodes.add(line.split()[0])
        elif line.startswith("The link of "):
            links.add(line.split()[3])
        elif line.startswith("The link between "):
            links.add(" - ".join(line.split()[3:6:2]))
    return nodes, links


def live(options):
    """Run each defect so many times on 4 and on 8 hosts; print a line per defect and size."""
    draw = random.Random(options.seed)
    for hosts in options.hosts:
        for defect, given in DEFECTS.items():
            right, wrong, took = 0, [], []
            for run in range(options.runs):
                host = f"host{draw.randint(1, hosts)}"
                values = {"--slow-cpu": f"{host}:{CPU}", "--slow": f"{host}:{RATE}"}
                folder = options.folder / f"{defect}-{hosts}-{run:02d}"
                if not (folder / "run.h5").exists():
                    began = time.monotonic()
                    measured(folder, hosts, [word for option in given for word in (option, values[option])])
                    took.append(time.monotonic() - began)
                said = named(lines_of(folder))
                wanted = tuple({host} if option in given else set() for option in ("--slow-cpu", "--slow"))
                right += said == wanted
                wrong += [] if said == wanted else [f"{host}: {said}"]
            most = f"{max(took, default=0):.0f} s at most"
            print(f"{hosts} hosts, {defect}: {right} of {options.runs} right, {most} {wrong}", flush=True)


def lines_of(folder):
    """Return the sentences of a run's answer: the headline and those after it."""
    from hpcdl.report.contents import answers
    from hpcdl.report.run.findings import findings
    from hpcdl.trace.schema import read

    first = answers(findings([read(folder)])[0]).first
    return [line for answer in first.values() for line in (answer.headline, *answer.details)]


def judged(runs):
    """Return the verdict on an archive in a word, and the kind and name of all open suspects."""
    (history,) = histories(runs)
    verdict = SuiteVerdict(history)
    slow = {(suspect.kind, suspect.name) for suspect in verdict.suspects if suspect.ended is None}
    return worst(verdicts(verdict)), slow


def dated(run, number):
    """Return a recorded run as that of another night."""
    night = dt.datetime(2026, 1, 1, 2, tzinfo=dt.UTC) + dt.timedelta(days=number)
    return replace(run, date=night.isoformat(), path=f"night-{number}", job=str(number))


def first_named(runs, host):
    """Return the night, from 1, in which the link or host was first named, and all else that was named."""
    others, night = set(), None
    for count in range(1, len(runs) + 1):
        _, slow = judged(runs[:count])
        night = count if night is None and ("host", host) in slow else night
        others |= {name for kind, name in slow if (kind, name) != ("host", host)}
    return night, others


def nights(options):
    """Record archives of 16 nights and replay them in other orders; print the night in which the host is named."""
    archives = []
    for archive in range(options.archives):
        runs = []
        for night in range(1, 17):
            folder = options.folder / f"archive-{archive}" / f"night-{night:02d}"
            slow = ["--slow", f"host3:{RATE}"] if night >= FIRST_SLOW else []
            if not (folder / "run.h5").exists():
                measured(folder, 4, slow)
            runs.append(read_series(folder))
        archives.append([dated(run, number) for number, run in enumerate(runs)])
        disturbed = sum(bool(run.disturbed) for run in runs)
        night, others = first_named(archives[-1], "host3")
        said = f"host3 named in night {night}, {others}"
        print(f"archive {archive}: {disturbed} of 16 nights disturbed, {said}", flush=True)
    draw, seen = random.Random(1), []
    for _ in range(20):
        archive = draw.choice(archives)
        usual, slow = archive[: FIRST_SLOW - 1], archive[FIRST_SLOW - 1 :]
        order = [*draw.sample(usual, len(usual)), *draw.sample(slow, len(slow))]
        seen.append(first_named([dated(run, number) for number, run in enumerate(order)], "host3"))
    named_in, others = sorted(str(night) for night, _ in seen), [other for _, other in seen if other]
    print(f"20 replayed: named in night {named_in}, others {others}")


def quiet(options):
    """Draw 100 nights from the recorded ones without a defect on 4 hosts; print what is named."""
    folders = [*options.folder.glob("archive-*/night-0[1-7]"), *options.folder.glob("none-4-*")]
    runs = [read_series(folder) for folder in sorted(folders)]
    draw = random.Random(2)
    drawn = [dated(draw.choice(runs), number) for number in range(100)]
    (history,) = histories(drawn)
    verdict = SuiteVerdict(history)
    events = [event.verdict for event in verdict.events]
    slow = [suspect.name for suspect in verdict.suspects]
    print(f"100 nights drawn from {len(runs)}: named {slow}, changes {events}")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["live", "nights", "quiet"])
    parser.add_argument("folder", type=Path, help="folder for the runs")
    parser.add_argument("--runs", type=int, default=12)
    parser.add_argument("--hosts", type=int, nargs="+", default=[4, 8])
    parser.add_argument("--seed", type=int, default=55, help="of the hosts that are slow")
    parser.add_argument("--archives", type=int, default=2)
    options = parser.parse_args()
    neighbours = Neighbours(7)
    if options.what != "quiet":
        neighbours.start()
    {"live": live, "nights": nights, "quiet": quiet}[options.what](options)
    neighbours.ended.set()


if __name__ == "__main__":
    main()
