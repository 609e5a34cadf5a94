"""ReFrame tests: bus bandwidth of an allreduce against references, and the verdict of hpcdl history on an archive.

    reframe -C mysite.py -c reframe_hpcdl.py -r
    reframe -C mysite.py -c reframe_hpcdl.py -r -n HpcdlHistory -S HpcdlHistory.archive=/scratch/hpcdl/runs

hpcdl must be on PATH in the job (``modules = ["hpcdl"]``). References are yours: take them from a good run, or
from ``hpcdl predict RUN --network NAME``.
"""

import json
from pathlib import Path

import reframe as rfm
import reframe.utility.sanity as sn


@sn.deferrable
def document(file):
    """Return the JSON document that a command printed."""
    return json.loads(Path(str(file)).read_text(encoding="utf-8"))


@rfm.simple_test
class HpcdlAllreduce(rfm.RunOnlyRegressionTest):
    """Time an allreduce; the results are checked."""

    valid_systems = ["*"]
    valid_prog_environs = ["*"]
    num_tasks = 0  # as many as the partition has nodes
    num_tasks_per_node = 1
    time_limit = "10m"
    executable = "hpcdl"
    schemes = variable(str, value="native,ring")
    largest = variable(str, value="64M")
    # system:partition -> variable -> (value, lower, upper, unit); bounds are shares of the value
    reference = {
        # "mycluster:compute": {"native_67108864_busbw": (11.2, -0.1, None, "GB/s")},
    }

    @run_before("run")
    def name_the_sizes(self):
        self.executable_opts = ["bench", "allreduce", "-b", "1M", "-e", self.largest, "-f", "8"]
        self.executable_opts += ["-a", self.schemes, "--json"]

    @sanity_function
    def results_are_right(self):
        return sn.all(sn.map(lambda case: sn.assert_true(case["correct"]), document(self.stdout)["cases"]))

    @run_before("performance")
    def by_scheme_and_size(self):
        # the hook does not run in the stage folder, as the functions of sn do
        for case in document(Path(self.stagedir) / self.stdout.evaluate()).evaluate()["cases"]:
            name = f"{case['aggregation']}_{case['message_bytes']}"
            busbw = case["busbw_bytes_per_second"] / 1e9
            self.perf_variables[f"{name}_busbw"] = sn.make_performance_function(sn.defer(busbw), "GB/s")
            p99 = case["time_p99_seconds"] * 1e3
            self.perf_variables[f"{name}_p99"] = sn.make_performance_function(sn.defer(p99), "ms")


@rfm.simple_test
class HpcdlHistory(rfm.RunOnlyRegressionTest):
    """Fail while a regression of the nightly runs is open."""

    valid_systems = ["*"]
    valid_prog_environs = ["*"]
    local = True
    executable = "hpcdl"
    archive = variable(str, value="/scratch/hpcdl/runs")

    @run_before("run")
    def name_the_archive(self):
        self.executable_opts = ["history", self.archive, "--json"]

    @sanity_function
    def nothing_is_open(self):
        return sn.assert_eq(document(self.stdout)["exit_code"], 0)

    @performance_function("measures")
    def judged(self):
        return sn.sum(sn.map(lambda suite: suite["judged"], document(self.stdout)["suites"]))
