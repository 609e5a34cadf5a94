"""Simulated times of hpcdl beside those of LogGOPSim, which gets the schedules as GOAL files.

    python reports/oracles/loggopsim.py LOGGOPSIM [ATLAHS]

LOGGOPSIM is a checkout of github.com/spcl/LogGOPSim (Hoefler, Schneider, Lumsdaine 2010), ATLAHS one of
github.com/spcl/atlahs. Building both needs g++, re2c, gengetopt and libgraphviz-dev of Debian.

L is hpcdl's alpha, o = 0, and G its beta; messages are eager. Both charge (size - 1) G, so that each message in
a file has a byte more. Times in a file are picoseconds, as LogGOPSim's G is an integer. Terms that only hpcdl has
are then added to ATLAHS's, one after another, a column each. That from which on all are within 3 % explains a row.
"""

import itertools
import math
import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

import hpcdl
from hpcdl.fabric.network import NETWORKS
from hpcdl.trace.export import LAST_STREAM, Selection, select, write_goal

NETWORK = "ethernet-10g"
LINK = NETWORKS[NETWORK].link
ALPHA, BETA = (round(1e12 * cost) for cost in (LINK.alpha, LINK.beta))
EAGER, RENDEZVOUS = 2_000_000_000, 0
NEAR = 0.03
CLOSE = 0.05
SUITE = f"""
[suite]
name = "loggopsim"
question = "Does LogGOPSim give the times of hpcdl's simulation?"

[[case]]
kind = "collective"
collective = "allreduce"
aggregation = ["ring", "segmented_ring", "chain", "tree", "double_tree", "binomial", "butterfly",
  "halving_doubling", "bruck", "circulant", "swing", "bine", "direct", "hierarchical", "parameter_server"]
message_bytes = [1024, 262144, 4194304]
ranks = [2, 3, 5, 8, 17, 64]
network = "{NETWORK}"
trace = "events"

[[case]]
kind = "replay"
model = "googlenet"
training = ["synchronous", {{name = "synchronous", bucket_bytes = 2097152}}, "layerwise"]
aggregation = ["ring", "halving_doubling"]
ranks = [2, 3, 8, 17]
batch_per_rank = 128
device = "h100"
network = "{NETWORK}"
trace = "events"

[[case]]
kind = "replay"
model = ["alexnet", "googlenet"]
training = ["synchronous", "layerwise"]
aggregation = ["parameter_server", "tree", "direct"]
ranks = 4
batch_per_rank = 128
device = "h100"
network = "{NETWORK}"
trace = "events"

[[case]]
kind = "replay"
model = ["alexnet", "googlenet"]
training = [{{name = "zero", stage = 1}}, {{name = "zero", stage = 2}}, {{name = "zero", stage = 3}}, "pipeline",
  {{name = "pipeline", schedule = "gpipe"}}, "diloco"]
aggregation = "ring"
ranks = 4
batch_per_rank = 128
device = "h100"
network = "{NETWORK}"
trace = "events"

[[case]]
kind = "replay"
model = "alexnet"
training = "layerwise"
aggregation = ["direct", "parameter_server"]
ranks = 4
batch_per_rank = 16
flops = 1e12
network = "{NETWORK}"
trace = "events"

[[case]]
kind = "train"
model = "lenet5"
dataset = "digits"
training = ["asynchronous", "softsync", "elastic_averaging", "ad_psgd", "update_broadcast"]
ranks = 4
batch_per_rank = 32
epochs = 1
learning_rate = 0.01
flops = 1e10
network = "{NETWORK}"
"""
PATCH = (
    ("elem.time = host_time + L + bandwidth_cost;", "elem.time = host_time + L;"),
    (
        "std::max(nextgs[elem.host][elem.nic], elem.time) + g;",
        "std::max(nextgr[elem.host][elem.nic], elem.time) + g;",
    ),
    (
        "nextgr[elem.host][elem.nic], elem.time) + g;",
        "nextgr[elem.host][elem.nic], elem.time) + g + (elem.size-1)*G;",
    ),
    ("if (nexto[matched_elem.src][elem.proc] < cpu_time)", "if (false)"),
    ("if (nexto[elem.target][elem.proc] < cpu_time)", "if (false)"),
)
"""Bytes occupy the receiving port as well; the end of a message does not occupy its sender's stream."""


class Column(NamedTuple):
    """A simulator with its settings, and a file that it reads."""

    title: str
    simulator: str
    """loggopsim, atlahs, or patched: ATLAHS's with ``PATCH``."""
    latency: int
    gap: int
    eager_bytes: int
    file: str
    """plain; split: sends have streams of their own; ordered: also, messages keep hpcdl's order at each port."""


COLUMNS = (
    Column("LogGOPSim", "loggopsim", ALPHA, 0, EAGER, "plain"),
    Column("LogGOPSim, latency at ports", "loggopsim", ALPHA, ALPHA, EAGER, "plain"),
    Column("ATLAHS", "atlahs", ALPHA, 0, EAGER, "plain"),
    Column("+ latency at ports", "atlahs", 0, ALPHA, EAGER, "plain"),
    Column("+ streams of sends", "atlahs", 0, ALPHA, EAGER, "split"),
    Column("+ bytes at the receiver's port", "patched", 0, ALPHA, EAGER, "split"),
    Column("+ order at ports", "patched", 0, ALPHA, EAGER, "ordered"),
    Column("+ sender waits", "patched", 0, ALPHA, RENDEZVOUS, "ordered"),
)


def built(checkout: Path, inside: str, to: Path, patch: tuple[tuple[str, str], ...] = ()) -> None:
    """Build the simulator in the folder ``inside`` of a checkout's last commit as the folder ``to``."""
    to.mkdir()
    command = ["git", "-C", checkout, "archive", f"HEAD:{inside}", "--", ".", ":!*.o"]
    subprocess.run(["tar", "x", "-C", to], input=subprocess.check_output(command), check=True)
    source = to / "LogGOPSim.cpp"
    text = source.read_text()
    for before, after in patch:
        if before not in text:
            raise SystemExit(f"{checkout}: {inside}/LogGOPSim.cpp has no {before!r}, which is to be replaced")
        text = text.replace(before, after)
    source.write_text(text)
    subprocess.check_output(["make", "CXXFLAGS=-O2 -w -I/usr/include/graphviz"], cwd=to)


def split(text: str) -> str:
    """Give sends, which occupy no stream, one of their own: the last."""
    return re.sub(r"(?m)^(l\d+: send .*?)(?: cpu \d+)?$", rf"\1 cpu {LAST_STREAM}", text)


def ordered(text: str, ends: dict[tuple[str, int], int]) -> str:
    """Let each send, and each receive, require the rank's one before, by the ``ends`` of messages."""
    blocks = text.split("}\n")
    for number, block in enumerate(blocks):
        for side in ("send", "recv"):
            found = re.findall(rf"(?m)^l(\d+): {side} .*tag (\d+)", block)
            mine = [line for line, _ in sorted(found, key=lambda pair: ends[side, int(pair[1])])]
            blocks[number] += "".join(f"l{b} requires l{a}\n" for a, b in itertools.pairwise(mine))
    return "}\n".join(blocks)


def ends_of(selection: Selection) -> dict[tuple[str, int], int]:
    """Return when messages end (ns), by side and number."""
    events = selection.events
    return {(events["label"][row], tag): events["end"][row] for row, tag in selection.messages.items()}


def ratios(selection: Selection, folder: Path, columns: list[Column]) -> list[float]:
    """Return hpcdl's time / that of each column; inf if it leaves messages over."""
    ends, goal = ends_of(selection), folder / "schedule.goal"
    write_goal(goal, selection)
    plain = re.sub(r"calc (\d+)", lambda found: f"calc {found[1]}000", goal.read_text())
    plain = re.sub(r" (\d+)b ", lambda found: f" {int(found[1]) + 1}b ", plain)
    texts = {"plain": plain, "split": split(plain), "ordered": ordered(split(plain), ends)}
    found = []
    for column in columns:
        program, binary = folder / column.simulator, folder / "schedule.bin"
        goal.write_text(texts[column.file])
        subprocess.run([program / "txt2bin", "-i", goal, "-o", binary], check=True, capture_output=True)
        costs = {"L": column.latency, "o": 0, "g": column.gap, "G": BETA, "S": column.eager_bytes}
        options = [f"-{name}{value}" for name, value in costs.items()]
        said = subprocess.check_output([program / "LogGOPSim", "-b", "-f", binary, *options], text=True)
        end = re.search(r"at host \d+: (\d+)", said)
        found.append(1000 * selection.events["end"].max() / int(end[1]) if end else math.inf)
    return found


def main(loggopsim: Path, atlahs: Path | None = None) -> None:
    """Print the table, and the answer."""
    columns = [column for column in COLUMNS if atlahs or column.simulator == "loggopsim"]
    rows: dict[str, list[list[float]]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        built(loggopsim, "src/LogGOPSim", folder / "loggopsim")
        if atlahs:
            built(atlahs, "sim/LogGOPSim", folder / "atlahs")
            built(atlahs, "sim/LogGOPSim", folder / "patched", PATCH)
        (folder / "suite.toml").write_text(SUITE)
        subprocess.check_output([sys.executable, "-m", "hpcdl", "run", "suite.toml", "-o", "run"], cwd=folder)
        run = hpcdl.read(folder / "run")
        for index, case in enumerate(run.described):
            methods = (
                [case["training"], case["aggregation"]] if case["kind"] == "replay" else [case["aggregation"]]
            )
            steps = None
            if case["kind"] == "train":  # its last evaluation calls collectives of the library
                methods = [case["training"]]
                steps = range(run.rows_of("steps", index).groupby("rank")["step"].max().min() + 1)
            name = ", ".join([*(["steps"] * (case["kind"] != "collective")), *map(str, methods)])
            rows[name].append(ratios(select(run, index, steps=steps), folder, columns))
    print(f"| scheme | {' | '.join(column.title for column in columns)} | explained by |")
    print("|---" * (len(columns) + 2) + "|")
    explained, unchanged, close = 0, 0, 0
    for row, cases in rows.items():
        every = [list(values) for values in zip(*cases, strict=True)]
        cells = [f"{min(values):.3g} to {max(values):.3g}" for values in every]
        near = [all(abs(value - 1) <= NEAR for value in values) for values in every]
        explained, unchanged = explained + near[-1], unchanged + near[0]
        close += all(abs(value - 1) <= CLOSE for value in every[-1])
        first = max((at + 1 for at, yes in enumerate(near) if not yes), default=0)
        why = columns[first].title if near[-1] else "no term here"
        print(f"| {row} | {' | '.join(cells)} | {why} |")
    print("" if atlahs else "\nATLAHS and the terms: skipped, no checkout of ATLAHS is given\n")
    found = f"{unchanged} of {len(rows)} schemes and kinds of steps"
    print(f"LogGOPSim's times are within 3 % of hpcdl's in {found}, in {explained} if both models are matched.")
    left = sum(math.isinf(value) for cases in rows.values() for values in cases for value in values)
    over = "no schedule leaves" if not left else f"{left} schedules leave"
    print(f"With both models matched {close} are within 5 %, and {over} messages over.")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
