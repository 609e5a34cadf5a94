"""Allreduces on two emulated switches whose uplink is oversubscribed: measured and predicted times.

The suite ``trunk`` runs on two switches with four hosts each, joined at 1:1, 2:1 and 4:1. Latency and bandwidth are
fitted to the times at 1:1, and a fat tree with these links predicts all of them. Needs root and a quiet machine.
Prints the answer, then all times.
"""

import argparse
import json
from pathlib import Path

from nights import command

RATE = 100
"""Of a host's link, in Mbit/s; four hosts share an uplink."""
TREE = '{links}\n[topology]\nname = "fat_tree"\nhosts = [4, 2]\noversubscription = [{ratio}]\n'


def answer(cases):
    """Return the answer in a sentence; ``cases``: records of ``hpcdl predict --json`` by the ratio."""
    errors = {
        ratio: max(every)
        for ratio, rows in cases.items()
        if (every := [abs(r["predicted_seconds"] / r["time_p50_seconds"] - 1) for r in rows if not r["disturbed"]])
    }
    if not errors:
        return "Not decided: other load disturbed all measured times."
    parts = " and ".join(f"{100 * error:.0f} % at {ratio}:1" for ratio, error in errors.items())
    parts = parts.replace(" and ", ", ", len(errors) - 2)
    return f"Predicted allreduce times differ from undisturbed measured ones by at most {parts}."


def table(cases):
    """Return a row for each time, in Markdown."""
    head = "hosts' links / uplink | size | algorithm | predicted ms | measured ms | predicted / measured"
    lines = [f"| {head} | disturbed |", "|---" * 7 + "|"]
    for ratio, rows in cases.items():
        for row in sorted(rows, key=lambda row: (row["message_bytes"], row["aggregation"])):
            predicted, measured = 1e3 * row["predicted_seconds"], 1e3 * row["time_p50_seconds"]
            size, disturbed = f"{row['message_bytes'] >> 20} MiB", "yes" if row["disturbed"] else ""
            cells = (f"{ratio}:1", size, row["aggregation"], f"{predicted:,.0f}", f"{measured:,.0f}")
            lines.append(f"| {' | '.join(cells)} | {predicted / measured:.3f} | {disturbed} |")
    return "\n".join(lines)


def main():
    """Measure and predict at each ratio."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="folder for the runs; a run that is there is not repeated")
    folder = parser.parse_args().folder
    links, tree, cases = folder / "links.toml", folder / "tree.toml", {}
    for ratio in (1, 2, 4):
        run, testbed = folder / f"{ratio}-to-1", ("testbed", "--hosts", 8, "--rate", f"{RATE}mbit")
        if not (run / "run.h5").exists():
            command(*testbed, "--trunk", f"{4 * RATE // ratio}mbit", "--", "hpcdl", "run", "trunk", "-o", run)
        if ratio == 1:
            command("predict", run, "--network", run, "--save", links)
        tree.write_text(TREE.format(links=links.read_text(), ratio=ratio))
        cases[ratio] = json.loads(command("predict", run, "--network", tree, "--json"))["cases"]
    print(f"{answer(cases)}\n\n{table(cases)}")


if __name__ == "__main__":
    main()
