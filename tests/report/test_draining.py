"""Commands for Slurm about slow hosts, and the ratios of hosts and links among the metrics."""

import json
import shlex

from hpcdl.report.render import render
from hpcdl.report.run.draining import SlowHost, slurm_commands

JOB = {"variables": {"SLURM_JOB_ID": "7"}}


def test_hosts_have_the_names_that_slurm_knows_and_one_reason_each():
    nodes = {"node03": "unknown", "node07": "n07", "node08": "n08"}
    ranks = [{"hostname": f"{host}.cluster.org", "slurm_node": node} for host, node in nodes.items()]
    reasons = [("node08", "link at 76 % of the others"), ("node07", "own work"), ("node08", "own work")]
    slow = [SlowHost(f"{host}.cluster.org", reason) for host, reason in reasons]
    exclude, *drains = slurm_commands(slow, {**JOB, "ranks": ranks})
    assert exclude == "sbatch --exclude=n[07-08]"
    words = [shlex.split(line) for line in drains]
    both = "Reason=hpcdl: link at 76 % of the others; own work"
    assert words[0] == ["scontrol", "update", "NodeName=n08", "State=DRAIN", both]
    assert words[1][2:] == ["NodeName=n07", "State=DRAIN", "Reason=hpcdl: own work"]
    assert slurm_commands(slow[:1], {**JOB, "ranks": ranks[:1]})[0] == "sbatch --exclude=node08.cluster.org"


def test_nothing_is_said_outside_of_slurm_or_of_no_slow_host():
    assert slurm_commands([SlowHost("a", "b")], {}) == []
    assert slurm_commands([], JOB) == []


def test_the_report_of_a_job_says_how_its_slow_node_is_drained(hand):
    hand.case([[20.0] * 5, [20.2] * 5, [25.0] * 5], case="node", kind="node", collective="triad", pattern="alone")
    ranks = [{"hostname": f"host{rank}"} for rank in range(3)]
    page = render([hand.read({**JOB, "ranks": ranks})], "md")
    assert "Slurm leaves it out with: sbatch --exclude=host2" in page
    drains = 'scontrol update NodeName=host2 State=DRAIN Reason="hpcdl: computes at 80.4'
    assert f"Slurm drains it with: {drains}" in page
    assert json.loads(render([hand.read({"ranks": ranks})], "json"))["cases"]
