"""Meshes on emulated hosts: the steps of the suite ``parallelism-replay`` measured, and predicted from collectives.

One launch per rate of the links runs the suite on 2, 4 and 8 hosts. ``hpcdl predict RUN --network RUN --parallelism``
predicts its steps on a network that is fitted to the collectives of the same launch. Needs root and a quiet machine.
Writes ``meshes.md``. Exit code 1 if the simulation chooses a slower mesh in more than a tenth of the cases, or if
predicted steps differ from measured ones by more than a tenth on average.
"""

import argparse
import json
import sys
from pathlib import Path
from statistics import mean, median

from nights import command

import hpcdl

HOSTS = 8
LEAST = 0.9
"""Share of right choices, and mean accuracy, at least."""
DATA = "data"
HYBRID = "hybrid outputs 1x"
HYBRIDS = ("alexnet", "googlenet")
"""Models of the table that compares a hybrid of all ranks with data parallelism."""


def steps_of(folder):
    """Return the fields of each case of a run, with the seconds of its measured steps, by the case's name."""
    run = hpcdl.read(folder)
    found = {}
    for index, case in enumerate(run.described):
        if case["kind"] != "replay":
            continue
        steps = run.steps[(run.steps["case_index"] == index) & (run.steps["step"] >= case["warmup_steps"])]
        slowest = (steps["end"] - steps["begin"]).groupby(steps["step"]).max() * 1e-9
        found[case["case"]] = {**case, "steps": sorted(slowest)}
    return found


class Problem:
    """A network at a batch, on a number of hosts with links of one rate: its measured meshes."""

    def __init__(self, rate, found, steps):
        self.rate, self.model, self.ranks, self.batch = rate, found["model"], found["ranks"], found["global_batch"]
        self.meshes = {one["mesh"]: one for one in found["meshes"] if one["case"] in steps}
        for one in self.meshes.values():
            one["steps"] = steps[one["case"]]["steps"]
            one["measured"] = median(one["steps"])

    def least(self, field):
        """Return the mesh with the least ``field``."""
        return min(self.meshes, key=lambda name: self.meshes[name][field])

    @property
    def best(self):
        """Meshes whose measured steps overlap with those of the fastest, fastest first."""
        longest = self.meshes[self.least("measured")]["steps"][-1]
        tied = [name for name, one in self.meshes.items() if one["steps"][0] <= longest]
        return sorted(tied, key=lambda name: self.meshes[name]["measured"])

    @property
    def words(self):
        """Cells that name the problem."""
        return self.model, str(self.batch), str(self.ranks), self.rate


def table(title, header, rows):
    """Return a Markdown table under a heading."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join([f"## {title}", "", *(f"| {' | '.join(map(str, one))} |" for one in lines), ""])


def choices(problems):
    """Return the table of chosen and fastest meshes, and the share of right choices."""
    rows, right = [], []
    for problem in problems:
        best, chosen = problem.best, problem.least("predicted_seconds")
        right.append(chosen in best)
        slower = problem.meshes[chosen]["measured"] / problem.meshes[best[0]]["measured"] - 1
        cells = (chosen, ", ".join(best), "yes" if chosen in best else "no", f"{100 * slower:.1f} %")
        rows.append((*problem.words, *cells))
    header = ("network", "images", "hosts", "rate", "simulation chooses", "measured best")
    return table("Choices", (*header, "agree", "slower than the best"), rows), mean(right)


def hybrids(problems):
    """Return the table of the hybrid's step divided by that of data parallelism."""
    rows = []
    for one in problems:
        hybrid = one.meshes.get(f"{HYBRID}{one.ranks}")
        if one.model.startswith(HYBRIDS) and hybrid and DATA in one.meshes:
            data = one.meshes[DATA]
            ratios = (hybrid[field] / data[field] for field in ("predicted_seconds", "measured"))
            rows.append((*one.words, *(f"{ratio:.3f}" for ratio in ratios)))
    header = ("network", "images", "hosts", "rate", "simulation", "measured")
    return table("Step of the hybrid divided by that of data parallelism", header, rows)


def speedups(problems, alone):
    """Return the table of speed-ups over one host; ``alone``: cases on one rank by rate, model and batch."""
    rows = []
    for (rate, model, batch), first in alone.items():
        scaled = {one.ranks: one for one in problems if (one.rate, one.model, one.batch) == (rate, model, batch)}
        base = {"measured": median(first["steps"])}
        for kind, field in (("simulation", "predicted_seconds"), ("measured", "measured")):
            least = {p: min(one[field] for one in at.meshes.values()) for p, at in sorted(scaled.items())}
            whole = base.get(field, first["modelled_compute_seconds"])
            found = {1: 1.0, **{p: whole / seconds for p, seconds in least.items()}}
            gains = (f"{one:.2f}" for one in found.values())
            rows.append((model, batch, rate, kind, *gains, max(found, key=found.get)))
    header = ("network", "images", "rate", "", "1 host", *(f"{p} hosts" for p in (2, 4, 8)), "peak")
    return table("Speed-up of model parallelism over one host", header, rows)


def times(problems):
    """Return the table of all steps, and the mean accuracy of the predictions."""
    rows, errors = [], []
    for one in problems:
        for name, mesh in one.meshes.items():
            low, middle, high = mesh["steps"][0], mesh["measured"], mesh["steps"][-1]
            errors.append(mesh["predicted_seconds"] / middle - 1)
            cells = f"{1e3 * mesh['predicted_seconds']:.1f}", f"{100 * errors[-1]:+.1f} %"
            shown = f"{1e3 * middle:.1f} ({1e3 * low:.1f} to {1e3 * high:.1f})"
            rows.append((*one.words, name, shown, *cells))
    header = ("network", "images", "hosts", "rate", "mesh", "measured ms", "simulation ms", "")
    return table("Steps", header, rows), 1 - mean(map(abs, errors))


def report(problems, alone, call):
    """Return the report, and one line for each number that is too small."""
    compared = [one for one in problems if len(one.meshes) > 1]
    choice, right = choices(compared)
    steps, accuracy = times(problems)
    count = sum(len(one.meshes) for one in problems)
    text = f"""# Meshes on emulated hosts

`{call}`

Replays of the suite `parallelism-replay`: ranks sleep instead of computing; messages are real. Each prediction
uses a network model fitted to collectives of the same launch, and the bucket sizes that the replays chose. Several
meshes are the best if their step times overlap with the times of the fastest mesh. The name of a mesh is its split and
its sizes: data x model, or data x pipeline. Accuracy = 1 - mean of |predicted / measured - 1|.

- The simulation chooses the measured best mesh in {100 * right:.0f} % of {len(compared)} cases.
- The mean accuracy of {count} steps is {100 * accuracy:.1f} %.
"""
    small = {what: share for what, share in (("right choices", right), ("accuracy", accuracy)) if share < LEAST}
    failed = [f"{what}: {100 * share:.1f} %, less than {100 * LEAST:.0f} %" for what, share in small.items()]
    return "\n".join([text, choice, hybrids(problems), speedups(problems, alone), steps]), failed


def main():
    """Run the suite at each rate, predict, and write the report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="folder for the runs; a run that is there is not repeated")
    parser.add_argument("--rates", default="500mbit,1gbit", help="of the links, separated by commas")
    options = parser.parse_args()
    problems, alone = [], {}
    for rate in options.rates.split(","):
        folder = options.folder / rate
        if not (folder / "run.h5").exists():
            words = ("testbed", "--hosts", HOSTS, "--rate", rate, "--", "hpcdl", "run", "parallelism-replay")
            command(*words, "-o", folder)
        steps = steps_of(folder)
        found = json.loads(command("predict", folder, "--network", folder, "--parallelism", "--json"))
        problems += [Problem(rate, one, steps) for one in found["parallelism"]]
        for case in steps.values():
            if case["ranks"] == 1:
                alone[rate, case["model"], case["global_batch"]] = case
        print(f"{rate}: {len(steps)} replays", flush=True)
    call = f"python tests/testbed/meshes.py FOLDER --rates {options.rates}"
    text, failed = report([one for one in problems if one.meshes], alone, call)
    (options.folder / "meshes.md").write_text(text)
    print(text)
    sys.exit("; ".join(failed) if failed else 0)


if __name__ == "__main__":
    main()
