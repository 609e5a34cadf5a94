"""Every shipped suite has a report that ``make reports`` makes, by a command that exists."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
REPORTS = tomllib.loads((ROOT / "reports/reports.toml").read_text())["report"]
WITHOUT = {
    "firecaffe": "two hours: its trainings to full accuracy",
    "interconnect": "a nightly check, which answers beside its own history",
    "parallelism-replay": "meshes.md runs it on more hosts",
}


def test_every_suite_has_a_report():
    run = {name for report in REPORTS for name in re.findall(r"suites/([\w-]+)\.toml", report["command"])}
    suites = {path.stem for path in (ROOT / "suites").glob("*.toml")}
    assert run | WITHOUT.keys() == suites
    assert not run & WITHOUT.keys()


def test_what_stands_in_the_folder_is_made_or_explained():
    targets = {report["name"] + Path(report.get("file", "report.md")).suffix for report in REPORTS}
    there = {path.name for path in (ROOT / "reports").iterdir() if path.suffix in {".md", ".svg", ".txt"}}
    assert there <= targets | {"README.md", "gpu.md", "fashion-mnist.md"}


def test_the_lock_of_the_artifact_has_every_dependency():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [
        *project["dependencies"],
        *(project["optional-dependencies"][name][0] for name in ("mpich", "report")),
    ]
    locked = {line.partition("==")[0].lower() for line in (ROOT / "reports/artifact/lock.txt").read_text().split()}
    assert {re.match(r"[\w-]+", name)[0].lower() for name in wanted} <= locked
