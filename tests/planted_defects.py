"""Plants one-line defects in copies of the package, one at a time, and reports which the tests find.

``python tests/planted_defects.py [--quick] [NUMBER ...]``: ``--quick`` runs only tests of ``make test-quick``; numbers
select defects, as in the list of ``--list``. Exit code 1 if a selected defect is not found.
"""

import argparse
import shutil
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from conftest import ended

ROOT = Path(__file__).parents[1]
LIMIT = 900
"""Time limit of the tests of one defect (s)."""

SLOW_FOLDERS = ("mpi", "commands", "testbed", "slurm", "gpu")
"""Left out of make test-quick."""


class Defect(NamedTuple):
    """A part of a line, its replacement, and the files or folders of tests that should find it."""

    file: str
    old: str
    new: str
    tests: str

    @property
    def text(self):
        """Return the source with the defect; raises ValueError if the line is not there exactly once."""
        source = (ROOT / "hpcdl" / self.file).read_text(encoding="utf-8")
        if source.count(self.old) != 1:
            raise ValueError(f"{self.file}: {self.old!r} is there {source.count(self.old)} times, not once")
        return source.replace(self.old, self.new)


DEFECTS = [
    Defect("aggregation/ring.py", "into = chunks[(rank - step - 1) % size]", "into = chunks[(rank - step) % size]", "aggregation"),
    Defect("aggregation/parts/patterns.py", "Fold(power, size - power)", "Fold(power, 0)", "aggregation"),
    Defect("aggregation/parts/messages.py", "min(distance, size - distance)", "distance", "aggregation"),
    Defect("aggregation/tree.py", "min(arity * node + arity, size - 1)", "min(arity * node + arity, size)", "aggregation"),
    Defect("aggregation/bruck.py", "digit *= 2", "digit += 1", "aggregation"),
    Defect("analysis/run/deciding.py", "p >= ALPHA or delay.value < math.log(MIN_EFFECT)", "p >= ALPHA", "analysis report"),
    Defect("analysis/over_time/change_points.py", "run - cut <= REMEMBERED", "run - cut >= 0", "analysis report"),
    Defect("analysis/run/pooling.py", "if run != self._runs}", "if run == self._runs}", "analysis report"),
    Defect("analysis/statistics/estimates.py", "2 / (freedom - 1)", "2 / freedom", "analysis"),
    Defect("analysis/statistics/differences.py", "(1 - confidence) / 2", "1 - confidence", "analysis"),
    Defect("analysis/statistics/judging.py", "variance = max(variance, (", "variance = ((", "analysis/test_judging.py"),
    Defect("analysis/statistics/judging.py", "if chosen else ()", "if not chosen else ()", "analysis/test_judging.py"),
    Defect("analysis/statistics/judging.py", "* max(decided, 1) / max(number, 1)", "/ max(number, 1)", "analysis/test_judging.py"),
    Defect("analysis/run/record.py", "not (one.disturbed and not record.disturbed)", "True", "report/test_one_rule.py"),
    Defect("fabric/pairs.py", "seats = ranks + ranks % 2", "seats = ranks", "analysis"),
    Defect("cases/keys/checks.py", "return scheme.sums and not scheme.sparse", "return scheme.sums", "cases suite"),
    Defect("cases/keys/compute_times.py", "{SHARD_UPDATE: seconds / parameter_bytes}", "{SHARD_UPDATE: seconds}", "cases training"),
    Defect("cases/keys/step_spec.py", "before + (volumes[begin - 1] if begin else 0.0)", "before", "cases training"),
    Defect("compression/codes/integers.py", "wire[0] = k", "wire[0] = k + 1", "compression"),
    Defect("compression/parts/selection.py", "max(1, round(density * length))", "max(1, int(density * length))", "compression"),
    Defect("compression/parts/selection.py", "copy() + np.uint32(1)", "copy() + np.uint32(0)", "compression"),
    Defect("compression/random_quantizers.py", "bucket**0.5 / levels", "bucket / levels", "compression suite"),
    Defect("data/binary_files.py", "4 + 4 * dimensions", "4 * dimensions", "data"),
    Defect("data/parts/sharding.py", "weight * global_batch // before[-1]", "weight * (global_batch // before[-1])", "data"),
    Defect("data/parts/splits.py", "backwards = crops[self.mirrored][:, :, ::-1]", "backwards = crops[self.mirrored][:, ::-1]", "data"),
    Defect("exit_codes.py", "INCONCLUSIVE: Final = 3", "INCONCLUSIVE: Final = 0", "commands report suite"),
    Defect("fabric/network.py", "(rank - known) // self.ranks_per_host", "(rank - known) % self.ranks_per_host", "fabric aggregation"),
    Defect("fabric/virtual/comm.py", "buffer[...] = buffers[0]", "buffer[...] = buffers[-1]", "fabric aggregation"),
    Defect("fabric/virtual/flows.py", "self._occupied[source] = self._occupied[dest] = now", "self._occupied[source] = now", "fabric"),
    Defect("fabric/virtual/clocks.py", "[0] != rank", "[0] == rank", "fabric"),
    Defect("fabric/virtual/world.py", "= max(self.running.time, when)", "= self.running.time", "fabric"),
    Defect("fabric/virtual/groups.py", "key=lambda post: post.number", "key=lambda post: -post.number", "fabric"),
    Defect("fabric/virtual/shifts.py", "images.setdefault(part, parts[moved(rank, stride)]) is parts[moved(rank, stride)]", "True", "fabric cases"),
    Defect("fabric/virtual/clocks.py", "moment = max(now, sending[0], receiving[0])", "moment = max(now, sending[0])", "fabric aggregation"),
    Defect("launch/batch_script.py", "WARNING_SECONDS: Final = 120", "WARNING_SECONDS: Final = 0", "commands launch slurm"),
    Defect("launch/machine.py", "if needed * ranks <= available:", "if needed <= available:", "launch suite run"),
    Defect("models/caffe.py", '"conv2", 50, 5', '"conv2", 50, 3', "models"),
    Defect("nn/kernels/numpy/elementwise.py", "np.multiply(dy, np.greater(y, 0), out=dx)", "np.multiply(dy, np.greater_equal(y, 0), out=dx)", "nn"),
    Defect("nn/kernels/numpy/elementwise.py", "np.sqrt(variance + self._geometry.eps)", "np.sqrt(variance)", "nn models"),
    Defect("nn/layers.py", "if not 0 <= self.ratio < 1:", "if not 0 <= self.ratio <= 1:", "nn suite"),
    Defect("nn/layer.py", "self._weight * scale", "scale", "nn"),
    Defect("optim/adaptive.py", "1 / math.sqrt(1 - self.beta2**t)", "1 / (1 - self.beta2**t)", "optim"),
    Defect("optim/sgd.py", "np.multiply(velocity, self.momentum, out=step)", "np.multiply(velocity, 1.0, out=step)", "optim"),
    Defect("optim/parts/lbfgs.py", "return abs(point.slope) <= -CURVATURE * self.slope", "return True", "optim"),
    Defect("prediction/network_file.py", "ranks / farthest if farthest else None", "None", "prediction commands"),
    Defect("report/formats/writers.py", 'return f"\'{text}" if text.startswith(FORMULA) else text', "return text", "report"),
    Defect("report/formats/cells.py", 'text.replace("<", "&lt;")', "text", "report"),
    Defect("run/run_folder.py", "self._failed |= case.digest in self._earlier.wrong", "pass", "run"),
    Defect("suite.py", "taken = hosts[: case.processes]", "taken = hosts", "run suite"),
    Defect("suite.py", "hexdigest()[:12]", "hexdigest()[:4]", "suite cases"),
    Defect("trace/recorder.py", 'loss: float = float("nan")', "loss: float = 0.0", "trace training"),
    Defect("trace/schema.py", 'complete = complete and bool(source.attrs["complete"])', "complete = True", "trace"),
    Defect("training/parts/bucketing.py", "self._unsent[0].start >= stage.span.start", "self._unsent[0].start > stage.span.start", "training"),
    Defect("training/parts/sections.py", "ahead = min(stages - stage, microbatches)", "ahead = min(stages, microbatches)", "training"),
    Defect("training/parts/topologies.py", "1 - sum(weights.values())", "1.0", "training"),
    Defect("training/elastic_averaging.py", "BETA / workers", "BETA", "training"),
]  # fmt: skip
"""Over all folders of the package."""


def is_found(defect, *, quick):
    """Return True if a test fails on a copy of the package with the defect."""
    with tempfile.TemporaryDirectory(prefix="hpcdl-defect-") as folder:
        copy = Path(folder)
        unused = shutil.ignore_patterns("__pycache__", ".*")
        for name in ("hpcdl", "tests", "suites", "reports", "slurm"):
            shutil.copytree(ROOT / name, copy / name, ignore=unused, symlinks=True)
        for name in ("pyproject.toml", "README.md", "CONTRIBUTING.md", "CHANGELOG.md", "Makefile"):
            shutil.copy(ROOT / name, copy / name)
        (copy / "hpcdl" / defect.file).write_text(defect.text, encoding="utf-8")
        tests = [f"tests/{name}" for name in defect.tests.split() if not (quick and name in SLOW_FOLDERS)]
        chosen = "not slow" if quick else ""
        # a package in the current folder precedes an installed one
        command = [sys.executable, "-m", "pytest", "-qx", "-p", "no:cacheprovider", "-m", chosen, *tests]
        variables = {"PYTHONPATH": str(copy), "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
        done = ended(command, copy, LIMIT, **variables)
        if done.returncode not in {0, 1, 2}:  # 2: a test cannot be imported
            raise RuntimeError(done.stdout[-2000:] + done.stderr[-2000:])
        return done.returncode != 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("numbers", nargs="*", type=int, default=range(len(DEFECTS)), metavar="NUMBER")
    parser.add_argument("--quick", action="store_true", help="only tests of make test-quick")
    parser.add_argument("--list", action="store_true", help="list the defects")
    options = parser.parse_args()
    texts = [defect.text for defect in DEFECTS]  # all lines must be there
    missed = 0
    for number in options.numbers:
        defect = DEFECTS[number]
        print(f"{number:2} {defect.file}: {defect.old}  ->  {defect.new}", end="", flush=True)
        if not options.list:
            is_missed = not is_found(defect, quick=options.quick)
            missed += is_missed
            print("  MISSED" if is_missed else "  found", end="")
        print()
    if not options.list:
        print(
            f"{len(options.numbers) - missed} of {len(options.numbers)} defects are found; {len(texts)} are listed"
        )
    return bool(missed)


if __name__ == "__main__":
    sys.exit(main())
