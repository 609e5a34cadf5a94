"""Compare the time of hpcdl's commands with that of importing the libraries that they stand on, in turns.

    python tests/peers/commands.py [--rounds 3] [--records GLOB]

Run by ``make peers-commands``; prints a Markdown table. The unit is ``python -c "import pandas, scipy.stats, h5py"``,
started before and after each command on the same machine; a ratio is a command's time by the mean of both. Modules are
compiled before, as an installer does it. A command writes into a pipe or a file. ``report`` and its page are those of each record in ``reports/data``: median and worst.
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time

from turns import ROOT, parser, processor, quartiles

UNIT = [sys.executable, "-c", "import pandas, scipy.stats, h5py"]
HPCDL = [sys.executable, "-m", "hpcdl"]
DATA = ROOT / "reports/data"
VERDICTS = {"claims": {3}, "compare": {1, 3}}
"""Exit codes of commands that have written their page, and tell a verdict by them."""


class Watch:
    """Times commands in units; compiled modules lie in a folder of their own, filled before anything counts."""

    def __init__(self, folder):
        """Import once what is measured."""
        self.environment = {**os.environ, "PYTHONPYCACHEPREFIX": folder}
        self.environment.pop("PYTHONDONTWRITEBYTECODE", None)
        page = ["report", str(DATA / "quickstart.json.xz"), "-o", f"{folder}/page.html"]
        for command in (UNIT, [*HPCDL, *page], [*HPCDL, "claims", str(DATA)]):
            self.seconds(command)
        self.unit = self.seconds(UNIT)

    def seconds(self, command):
        begin = time.perf_counter()
        ended = subprocess.run(
            command, capture_output=True, text=True, check=False, cwd=ROOT, env=self.environment
        )
        took = time.perf_counter() - begin
        accepted = {0}.union(*(VERDICTS.get(word, ()) for word in command))
        if ended.returncode not in accepted:
            raise SystemExit(f"{' '.join(command)}: {ended.stderr}")
        return took

    def ratios(self, command, rounds):
        """Return the times of a command in units, one of each round."""
        found = []
        for _ in range(rounds):
            took, after = self.seconds([*HPCDL, *command]), self.seconds(UNIT)
            found.append(2 * took / (self.unit + after))
            self.unit = after
        return found


def main():
    arguments = parser(__doc__)
    arguments.add_argument("--records", default="*.json.xz", help="records of reports/data, a pattern")
    options = arguments.parse_args()
    records = sorted(DATA.glob(options.records))
    one = str(DATA / "quickstart.json.xz")
    single = {
        "hpcdl --help": ["--help"],
        "list": ["list"],
        "compare of two runs": ["compare", one, "--with", str(DATA / "collectives.json.xz")],
        "claims reports/data": ["claims", str(DATA)],
    }
    with tempfile.TemporaryDirectory() as folder:
        watch = Watch(folder)
        print(f"hpcdl's commands on {processor()}, {options.rounds} rounds; the unit takes {watch.unit:.2f} s\n")
        print(f"| command | units | quartiles | worst | which |\n{'|---' * 5}|", flush=True)
        for name, command in single.items():
            low, middle, high = quartiles(watch.ratios(command, options.rounds))
            print(f"| {name} | {middle:.2f} | {low:.2f} to {high:.2f} | | |", flush=True)
        for name, more in (("report", []), ("page", ["-o", f"{folder}/page.html"])):
            found = {
                record.name.partition(".")[0]: statistics.median(
                    watch.ratios(["report", str(record), *more], options.rounds)
                )
                for record in records
            }
            low, middle, high = quartiles(list(found.values()))
            last = max(found, key=found.get)
            cells = f"{middle:.2f} | {low:.2f} to {high:.2f} | {found[last]:.2f} | {last}"
            print(f"| {name} of {len(found)} records | {cells} |", flush=True)


if __name__ == "__main__":
    main()
