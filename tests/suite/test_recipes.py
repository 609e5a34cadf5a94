"""Recipes in slurm/: metrics of dashboard and alerts are exported, ReFrame runs its tests, packages name what hpcdl needs."""

import ast
import json
import os
import re
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from conftest import ended
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from hpcdl.cli import main
from hpcdl.report.formats.writers import openmetrics
from hpcdl.report.history_exports import gauges

ROOT = Path(__file__).parents[2]
SLURM = ROOT / "slurm"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
LINES = (*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["report"])
NEEDED = [re.match(r"[\w-]+", line)[0] for line in LINES]
IN_EASYBUILD = dict.fromkeys(("numpy", "scipy", "pandas"), "SciPy-bundle") | {
    "jinja2": "Python-bundle-PyPI",
    "rich": "Python-bundle-PyPI",
    "protobuf": "protobuf-python",
}


def test_every_metric_of_the_dashboard_and_the_alerts_is_exported():
    exported = {family.name for family in text_string_to_metric_families(openmetrics(gauges([], 0)))}
    dashboard = json.loads((SLURM / "dashboard.json").read_text())
    alerts = yaml.safe_load((SLURM / "alerts.yml").read_text())
    panels = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    rules = [rule["expr"] for group in alerts["groups"] for rule in group["rules"]]
    assert len(panels) >= 10
    assert len(rules) >= 5
    for text in (*panels, *rules, dashboard["templating"]["list"][1]["query"]["query"]):
        assert set(re.findall(r"hpcdl_\w+", text)) <= exported, text
    assert exported == {name for text in (*panels, *rules) for name in re.findall(r"hpcdl_\w+", text)}


def test_jobs_of_gitlab_and_github_run_commands_that_exist(capsys):
    gitlab = yaml.safe_load((SLURM / "gitlab-ci.yml").read_text())["hpcdl-interconnect"]["script"]
    github = yaml.safe_load((SLURM / "github-workflow.yml").read_text())["jobs"]["hpcdl"]["steps"]
    lines = [line for step in github for line in step.get("run", "").splitlines()] + gitlab
    commands = [line.split("||")[0].split()[1:] for line in lines if line.strip().startswith("hpcdl ")]
    assert [words[0] for words in commands] == ["run", "compare"] * 2
    for words in commands:
        with pytest.raises(SystemExit):
            main([words[0], "--help"])
        assert {word for word in words if word.startswith("--")} <= {
            *re.findall(r"--[\w-]+", capsys.readouterr().out)
        }


DOCUMENT = {
    "cases": [
        {"aggregation": scheme, "message_bytes": 1 << 26, "busbw_bytes_per_second": busbw * 1e9, "correct": True}
        | {"time_p99_seconds": 0.012}
        for scheme, busbw in (("native", 9.5), ("ring", 11.0))
    ],
    "exit_code": 0,
    "suites": [{"judged": 40}],
}


@pytest.mark.slow
@pytest.mark.parametrize(("code", "fails"), [(0, []), (1, ["HpcdlHistory"])])
def test_reframe_runs_its_tests_with_references(tmp_path, code, fails):
    """A program in hpcdl's place prints a recorded document; the library's allreduce has a reference that it misses."""
    program = tmp_path / "hpcdl"
    program.write_text(f"#!/bin/sh\ncat <<'END'\n{json.dumps({**DOCUMENT, 'exit_code': code})}\nEND\n")
    program.chmod(0o755)
    tests = (SLURM / "reframe_hpcdl.py").read_text()
    reference = '"generic:default": {"native_67108864_busbw": (11.2, -0.1, None, "GB/s")},'
    assert tests.count("    reference = {\n") == 1
    (tmp_path / "tests.py").write_text(
        tests.replace("    reference = {\n", f"    reference = {{\n        {reference}\n")
    )
    command = [Path(sys.executable).with_name("reframe"), "-c", "tests.py", "-r", "--report-file=report.json"]
    done = ended(command, tmp_path, PATH=f"{tmp_path}:{os.environ['PATH']}", RFM_PREFIX=str(tmp_path / "rfm"))
    assert (tmp_path / "report.json").exists(), done.stdout + done.stderr
    (run,) = json.loads((tmp_path / "report.json").read_text())["runs"]
    cases = {case["name"]: case for case in run["testcases"]}
    assert {name for name, case in cases.items() if case["result"] == "fail"} == {"HpcdlAllreduce", *fails}
    listed = json.dumps(cases["HpcdlAllreduce"])
    assert "native_67108864_busbw" in listed and "ring_67108864_p99" in listed and "9.5" in listed


def test_packages_have_this_version_and_all_that_hpcdl_needs():
    spack = ast.parse((SLURM / "spack/package.py").read_text())
    calls = [node for node in ast.walk(spack) if isinstance(node, ast.Call) and getattr(node.func, "id", "")]
    first = [(call.func.id, call.args[0]) for call in calls if call.args]
    named = {(name, argument.value) for name, argument in first if isinstance(argument, ast.Constant)}
    assert ("version", PROJECT["version"]) in named
    packages = {text.partition("@")[0] for name, text in named if name == "depends_on"}
    assert {f"py-{name.lower()}" for name in NEEDED} <= packages
    (easyconfig,) = (SLURM / "easybuild").glob("*.eb")
    assert easyconfig.name.startswith(f"hpcdl-{PROJECT['version']}-")
    values = {}
    exec(compile(easyconfig.read_text(), easyconfig.name, "exec"), values)  # as EasyBuild reads it
    modules = {name for name, *_ in (*values["dependencies"], *values["exts_list"])}
    assert {IN_EASYBUILD.get(name, name) for name in NEEDED} | {"hpcdl"} <= modules
    definition = (SLURM / "apptainer.def").read_text()
    assert " ".join(re.findall(r"^%(\w+)", definition, re.MULTILINE)) == "files post environment runscript test"
