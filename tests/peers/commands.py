"""Compare the time of hpcdl's commands with that of importing the libraries that they stand on, in turns.

    python tests/peers/commands.py [--rounds 3] [--records GLOB]

Run by ``make peers-commands``; prints a Markdown table. The unit is ``python -c "import pandas, scipy.stats, h5py"``,
started before and after each command on the same machine; a ratio is a command's time by the mean of both. A command
writes into a pipe or a file. ``report`` and its page are those of each record in ``reports/data``: median and worst.
"""

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from turns import ROOT, parser, processor, quartiles

UNIT = [sys.executable, "-c", "import pandas, scipy.stats, h5py"]
HPCDL = [str(Path(sys.executable).with_name("hpcdl"))]
DATA = ROOT / "reports/data"
ACCEPTED = (0, 1, 3)
"""Exit codes of a command that has written its page: verdicts of claims and comparisons may differ."""


def seconds(command):
    begin = time.perf_counter()
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    took = time.perf_counter() - begin
    if ended.returncode not in ACCEPTED:
        raise SystemExit(f"{' '.join(command)}: {ended.stderr}")
    return took


def ratios(command, rounds):
    """Return the times of a command in units, one of each round."""
    found, before = [], seconds(UNIT)
    for _ in range(rounds):
        took, after = seconds(command), seconds(UNIT)
        found.append(2 * took / (before + after))
        before = after
    return found


def main():
    arguments = parser(__doc__)
    arguments.add_argument("--records", default="*.json.xz", help="records of reports/data, a pattern")
    options = arguments.parse_args()
    records = sorted(DATA.glob(options.records))
    unit = statistics.median(seconds(UNIT) for _ in range(5))
    print(f"hpcdl's commands on {processor()}, {options.rounds} rounds; the unit takes {unit:.2f} s\n")
    print(f"| command | units | quartiles | worst | which |\n{'|---' * 5}|", flush=True)
    one = str(DATA / "quickstart.json.xz")
    single = {
        "hpcdl --help": ["--help"],
        "list": ["list"],
        "compare of two runs": ["compare", one, "--with", str(DATA / "collectives.json.xz")],
        "claims reports/data": ["claims", str(DATA)],
    }
    for name, command in single.items():
        low, middle, high = quartiles(ratios([*HPCDL, *command], options.rounds))
        print(f"| {name} | {middle:.2f} | {low:.2f} to {high:.2f} | | |", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        for name, more in (("report", []), ("page", ["-o", f"{folder}/page.html"])):
            found = {
                record.name.partition(".")[0]: statistics.median(
                    ratios([*HPCDL, "report", str(record), *more], options.rounds)
                )
                for record in records
            }
            low, middle, high = quartiles(list(found.values()))
            last = max(found, key=found.get)
            cells = f"{middle:.2f} | {low:.2f} to {high:.2f} | {found[last]:.2f} | {last}"
            print(f"| {name} of {len(found)} records | {cells} |", flush=True)


if __name__ == "__main__":
    main()
