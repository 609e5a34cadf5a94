"""``make gpu-check``: everything that needs a GPU, in one command that ends within nine minutes.

    python tests/gpu/check.py FOLDER [--wheels DIR] [--budget SECONDS] [--parts NAME ...]

Each part is a process of its own, with a share of the time: a crash or a hang costs that part and no other. Results
are JSON lines in FOLDER/results.jsonl, what parts printed is in FOLDER/PART.txt, and a table comes last. Parts for
which no time is left are reported as not run. ``--wheels`` names a folder with wheels (mpich, mpi4py,
nvidia-cudnn-frontend, pytest) for a machine without a network; they go into a virtual environment in FOLDER.

``--backend numpy --tiny`` exercises this program itself on a machine without a GPU; its figures mean nothing.

Exit code 1: no GPU, or a check failed.
"""

import argparse
import importlib
import json
import os
import site
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent

PARTS = {
    "probes": 60,
    "contract": 120,
    "exact": 90,
    "layers": 150,
    "networks": 150,
    "transports": 120,
    "collectives": 120,
    "training": 120,
    "compressors": 60,
}
"""Names and the most seconds of each, in order of what is needed first; see the file NAME_part.py."""


def main(arguments=None):
    options = parse(arguments)
    sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
    if options.part:
        return run_part(options)
    return run_all(options)


def parse(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--wheels", type=Path)
    parser.add_argument("--budget", type=float, default=520, help="seconds for everything")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--backend", default="cupy", choices=("cupy", "numpy"))
    parser.add_argument("--tiny", action="store_true", help="sizes for a look at this program")
    parser.add_argument("--part", choices=PARTS, help=argparse.SUPPRESS)
    parser.add_argument("--until", type=float, default=0, help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


class Results:
    """Lines for one part."""

    def __init__(self, folder, part, until):
        self._path = folder / "results.jsonl"
        self._part = part
        self.place = folder
        self._until = until
        self.failed = False

    def put(self, what, *, ok=None, **values):
        """Keep a line; ``ok`` is False for a check that failed, None for what is only measured."""
        self.failed |= ok is False
        print(what, "" if ok is None else "ok" if ok else "FAILED", values, flush=True)
        line = {"part": self._part, "what": what, "ok": ok, **values}
        with self._path.open("a", encoding="utf-8") as file:
            print(json.dumps(line), file=file)

    def left(self):
        """Seconds that the part still has."""
        return self._until - time.time()


def run_part(options):
    module = importlib.import_module(f"gpu.{options.part}_part")
    results = Results(options.folder, options.part, options.until)
    getattr(module, options.part)(results, options.backend, options.tiny)
    return 1 if results.failed else 0


def run_all(options):
    began = time.time()
    options.folder.mkdir(parents=True, exist_ok=True)
    (options.folder / "results.jsonl").unlink(missing_ok=True)
    python = with_wheels(options.folder, options.wheels) if options.wheels else sys.executable
    if options.backend == "cupy":
        lacking = subprocess.run([python, "-c", NO_GPU], cwd=ROOT, capture_output=True, text=True, check=False)
        if lacking.returncode:
            reason = (lacking.stdout or lacking.stderr).strip().splitlines()[-1:]
            print(f"gpu-check: nothing was run: {''.join(reason)}")
            return 1
    endings = {}
    for part in options.parts:
        left = began + options.budget - time.time()
        if left < 10:
            endings[part] = "not run: no time left"
            continue
        endings[part] = one_part(python, part, min(PARTS[part], left), options)
    lines = read(options.folder)
    print(table(lines, endings))
    print(f"{time.time() - began:.0f} s; everything is in {options.folder}")
    failed = any(line["ok"] is False for line in lines) or any("ended" in ending for ending in endings.values())
    return 1 if failed or not lines else 0


NO_GPU = """
import sys
from hpcdl.nn.kernels.cupy.gpu import gpu_availability
usable, detail = gpu_availability()
print(detail)
sys.exit(not usable)
"""


def with_wheels(folder, wheels):
    """A virtual environment that sees what this interpreter does and has the wheels besides."""
    place = folder.resolve() / "venv"
    python = place / "bin/python"
    if not python.exists():
        # this interpreter may be a virtual environment's, whose packages --system-site-packages does not find, and
        # on Debian it may be without ensurepip
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", place], check=True)
        packages = place / f"lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"
        packages.joinpath("outer.pth").write_text("\n".join(site.getsitepackages()) + "\n", encoding="utf-8")
        install = [sys.executable, "-m", "pip", "--python", python, "install", "-q", "--no-index", "--no-deps"]
        subprocess.run([*install, *sorted(wheels.glob("*.whl"))], check=True)
    return str(python)


def one_part(python, part, seconds, options):
    """Run a part; how it ended."""
    command = [python, HERE / "check.py", options.folder, "--part", part, "--backend", options.backend]
    command += ["--until", str(time.time() + 0.9 * seconds), *(["--tiny"] if options.tiny else [])]
    paths = [str(ROOT), str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    print(f"{part} ...", flush=True)
    began = time.time()
    with (options.folder / f"{part}.txt").open("w") as log:
        running = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            code = running.wait(seconds)
        except subprocess.TimeoutExpired:
            os.killpg(running.pid, 9)
            running.wait()
            return f"ended after {seconds:.0f} s, its time"
    took = f"{time.time() - began:.0f} s"
    text = (options.folder / f"{part}.txt").read_text(errors="replace").strip()[-4000:] or "nothing printed"
    if code in {0, 1} and "Traceback" not in text:
        return took
    return f"ended with {code} after {took}: {text.splitlines()[-1][:80]}"


def read(folder):
    path = folder / "results.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def table(lines, endings):
    """A short table: per part how it ended, how many checks held, and what failed."""
    rows = []
    for part, ending in endings.items():
        mine = [line for line in lines if line["part"] == part]
        good, bad = (sum(line["ok"] is verdict for line in mine) for verdict in (True, False))
        rows.append(f"{part:12}{ending:34} {good:4} held {bad:3} failed {len(mine) - good - bad:4} measured")
        rows += [f"    FAILED {line['what']}" for line in mine if line["ok"] is False][:5]
        rows += [f"    {line['what']}: {line['shown']}" for line in mine if "shown" in line]
    return "\n".join(rows)


if __name__ == "__main__":
    sys.exit(main())
