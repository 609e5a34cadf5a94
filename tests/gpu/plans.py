"""``make gpu-plans``: let cuDNN plan every convolution and batch normalisation of every model, with no GPU.

Plans are made for a written description of an H200 (``h200.json``). Convolutions' plans are built whole. Batch
normalisation is compiled by cuDNN at run time, which takes a driver: here it is counted as chosen when cuDNN has
found an engine that supports it, and that far only because a library of nothing stands in for the driver's.
"""

import argparse
import ctypes
import importlib.util
import json
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent.parent)]

DTYPES = ("float32", "bfloat16", "float16")


def stand_in_for_the_driver():
    """Whoever asks for libcuda.so.1 from now on finds a library whose every function fails."""
    cudnn = next(Path(folder) for folder in importlib.util.find_spec("nvidia").submodule_search_locations)
    asking = next(cudnn.rglob("libcudnn_engines_runtime_compiled.so.9")).read_bytes()
    names = {name.decode() for name in re.findall(rb"\0(cu[A-Z][A-Za-z0-9_]*)(?=\0)", asking)}
    unknown = 999  # CUDA_ERROR_UNKNOWN
    with tempfile.TemporaryDirectory() as folder:
        code, library = Path(folder) / "driver.cpp", Path(folder) / "libcuda.so.1"
        code.write_text("".join(f'extern "C" int {name}() {{ return {unknown}; }}\n' for name in sorted(names)))
        subprocess.run(["g++", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", code, "-o", library], check=True)
        ctypes.CDLL(library, mode=ctypes.RTLD_GLOBAL)


def plan(verdict, build, *arguments, **settings):
    """``verdict``, or why not; and the workspace in bytes."""
    from hpcdl.nn.kernels.cupy.cudnn_plans import NoEngine

    try:
        return verdict, build(*arguments, **settings).workspace
    except NoEngine as error:
        return str(error), 0


def plans_of(model, dtype, batch, planner, chooser):
    """Yield (what, verdict, workspace) for each distinct plan of a model's training."""
    from gpu.geometries import convolutions_and_norms

    convolutions, norms = convolutions_and_norms(model, dtype)
    for layer in convolutions:
        kinds = [("fused", True), ("data", False), ("weight", False)]
        kinds += [] if layer.relu else [("forward", False)]
        for what, biased in kinds:
            yield f"convolution {what}", *plan("built", planner.convolution, what, layer, batch, biased=biased)
    for layer in norms if chooser else ():
        for what in ("forward", "backward"):
            verdict, workspace = plan("chosen", chooser.batch_norm, what, layer, batch)
            yield f"batch norm {what} of {layer.shape}", verdict, workspace


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--models", nargs="*", help="default: all")
    options = parser.parse_args()
    stand_in_for_the_driver()
    import cudnn

    from hpcdl import registry
    from hpcdl.nn.kernels.cupy.cudnn_plans import Planner

    described = cudnn.create_device_properties(json.dumps(json.loads((HERE / "h200.json").read_text())))
    where = {"sm_version": 90, "device_property": described}
    modes = {"default": (True, False), "strict": (False, False), "deterministic": (True, True)}
    print(
        f"cuDNN {cudnn.backend_version()}, frontend {cudnn.__version__}, batch {options.batch}, an H200 described"
    )
    total, refused, began = Counter(), Counter(), time.perf_counter()
    for model in options.models or registry.names("models"):
        for dtype in DTYPES:
            counts, most = Counter(), 0
            for mode, (tf32, deterministic) in modes.items():
                planner = Planner(where, tf32=tf32, deterministic=deterministic)
                chooser = Planner(where, tf32=tf32, deterministic=deterministic, build=False)
                for what, verdict, workspace in plans_of(
                    model, dtype, options.batch, planner, chooser if mode == "default" else None
                ):
                    known = verdict if verdict in {"built", "chosen"} else "refused"
                    counts[known] += 1
                    most = max(most, workspace)
                    if known == "refused":
                        refused[f"{dtype} {mode} {what}: {verdict[:120]}"] += 1
            total += counts
            print(
                f"{model:24} {dtype:9} {counts['built']:4} built {counts['chosen']:4} chosen "
                f"{counts['refused']:3} refused, largest workspace {most / 1e6:6.0f} MB",
                flush=True,
            )
    for line, count in refused.most_common():
        print(f"{count:4} x {line}")
    seconds = time.perf_counter() - began
    print(f"{total['built']} built, {total['chosen']} chosen, {total['refused']} refused in {seconds:.0f} s")
    return 0 if total["built"] else 1


if __name__ == "__main__":
    sys.exit(main())
