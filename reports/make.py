"""Make all reports of this folder: ``python reports/make.py RUNS [NAME ...]``, with the Python of .venv.

``reports.toml`` lists them. A report whose ``RUNS/NAME/done.json`` exists is not made again, so that an
interrupted call can be repeated. At the end a README names the commit, the machine and the minutes of each.
"""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import shutil
import subprocess
import sys
import time
import tomllib
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
HEAD = """# Reference reports

`make reports` made these files on {machine} at commit {commit}. A rank is a process on one core; runs on
emulated hosts share the cores of this machine. No report is from a GPU. Times of other machines differ; ratios and
bytes should not. {minutes:.0f} minutes in all.

| report | content | command | minutes |
| --- | --- | --- | ---: |
"""


@dataclass(frozen=True)
class Report:
    """A report of ``reports.toml``."""

    name: str
    content: str
    command: str
    minutes: float
    file: str = "report.md"
    text: str = ""
    root: bool = False
    needs: tuple[str, ...] = ()

    @property
    def target(self) -> str:
        """Name of the file in this folder."""
        return self.name + Path(self.file).suffix


def reports() -> list[Report]:
    """Return the reports of ``reports.toml``, in their order."""
    return [Report(**table) for table in tomllib.loads((HERE / "reports.toml").read_text())["report"]]


def obstacle(report: Report) -> str | None:
    """Return why a report cannot be made here; None if it can."""
    if report.root and os.geteuid():
        return "needs root, for emulated hosts"
    absent = [name for name in report.needs if importlib.util.find_spec(name) is None]
    return f"needs {', '.join(absent)}" if absent else None


def made(report: Report, runs: Path) -> dict[str, object] | None:
    """Run the command of a report unless it has been run; return its record, None if it failed."""
    folder = runs / report.name
    record = folder / "done.json"
    if record.exists():
        return dict(json.loads(record.read_text()))
    shutil.rmtree(folder, ignore_errors=True)
    (runs / "logs").mkdir(parents=True, exist_ok=True)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    begin = time.monotonic()
    with (runs / "logs" / f"{report.name}.txt").open("w") as log:
        ended = subprocess.run(
            ["/bin/sh", "-c", report.command],
            cwd=ROOT,
            env={**os.environ, "PATH": path, "RUNS": str(runs)},
            stdout=subprocess.PIPE if report.text else log,
            stderr=log,
            text=True,
            check=False,
        )
    if ended.returncode:
        return None
    if report.text:
        folder.mkdir(exist_ok=True)
        file = folder / report.file
        head = f"# {report.content[0].upper()}{report.content[1:]}\n\n`{report.command}`\n{report.text}\n"
        file.write_text(head + (file.read_text() if file.exists() else ended.stdout))
    minutes = (time.monotonic() - begin) / 60
    done = {"minutes": round(minutes, 1), "commit": commit(), "machine": machine()}
    record.write_text(json.dumps(done))
    return done


def commit() -> str:
    """Return the commit of the tree, marked if files other than reports differ from it."""

    def git(*arguments: str) -> str:
        return subprocess.check_output(["/usr/bin/env", "git", *arguments], cwd=ROOT, text=True).strip()

    changed = git("status", "--porcelain", "--", ".", ":!reports")
    return git("rev-parse", "--short", "HEAD") + ("-dirty" if changed else "")


def machine() -> str:
    """Return the processor and its cores that this process may use."""
    names = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    name = names[0].partition(":")[2].strip() if names else platform.machine()
    return f"{len(os.sched_getaffinity(0))} cores of {name}"


def main(runs: Path, names: list[str]) -> int:
    """Make the reports; return 0 if all that can be made here are."""
    listed = reports()
    if unknown := set(names) - {report.name for report in listed}:
        sys.exit(f"unknown report {min(unknown)!r}; reports/reports.toml has: {', '.join(r.name for r in listed)}")
    chosen = [report for report in listed if not names or report.name in names]
    records, failed = {}, []
    for number, report in enumerate(chosen, 1):
        line = f"[{number}/{len(chosen)}] {report.name}"
        if why := obstacle(report):
            print(f"{line}: left out, {why}", flush=True)
            continue
        print(f"{line}: about {report.minutes:g} minutes", flush=True)
        record = made(report, runs)
        if record is None:
            failed.append(report.name)
            print(f"{line}: FAILED, see {runs}/logs/{report.name}.txt", flush=True)
            continue
        records[report.name] = record
        made_here = (runs / report.name / report.file).read_text()
        (HERE / report.target).write_text(made_here.replace(str(runs), "$RUNS"))
    if not names and records:
        write_readme(listed, records)
    return 1 if failed else 0


def write_readme(listed: list[Report], records: dict[str, dict[str, object]]) -> None:
    """Write the README of this folder."""
    commits = ", ".join(sorted({str(record["commit"]) for record in records.values()}))
    machines = " and ".join(sorted({str(record["machine"]) for record in records.values()}))
    total = sum(float(str(record["minutes"])) for record in records.values())
    rows = [
        f"| `{report.target}` | {report.content} | `{report.command}` | {records[report.name]['minutes']} |"
        for report in listed
        if report.name in records
    ]
    kept = "\n\n`gpu.md`: checks without a GPU, and how to add measurements on a GPU.\n"
    head = HEAD.format(machine=machines, commit=commits, minutes=total)
    (HERE / "README.md").write_text(head + "\n".join(rows) + kept)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit("usage: python reports/make.py RUNS [NAME ...]")
    sys.exit(main(Path(sys.argv[1]).resolve(), sys.argv[2:]))
