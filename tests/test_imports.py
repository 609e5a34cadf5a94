"""Who may import whom: the house plan, held by reading the source."""

import ast
import fnmatch
import subprocess
import sys
from pathlib import Path

import pytest

import hpcdl
from hpcdl import registry

ROOT = Path(hpcdl.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))

ONLY_IN = {
    "mpi4py": ["fabric/mpi*.py", "launch/*"],
    "cupy": ["nn/backend.py", "nn/kernels/*cupy*", "fabric/transport.py", "fabric/nccl.py"],
    "cudnn": ["nn/kernels/*cupy*"],
    "numba": ["nn/kernels/*numba*"],
    "h5py": ["trace/*", "data/*"],
    "PIL": ["data/convert.py"],
    "pandas": ["analysis/*", "report/*", "trace/run.py"],
    "matplotlib": ["analysis/*", "report/*"],
    "scipy": ["analysis/*"],
    "rich": ["commands/*"],
}
"""Libraries, and the only places for them."""

ARRAYS_ONLY = ["nn", "optim", "compression"]
"""They compute and never communicate: of all else they know what an array is."""

PROGRAMS = ["aggregation", "training"]
"""They ask, and never know who answers: no interpreter, no clock, no thread, no file."""

ASKED = ("apart", "comm", "task", "window")
"""Modules of the fabric that programs ask by."""

WORLDLY = {"time", "datetime", "threading", "multiprocessing", "subprocess", "socket", "os", "pathlib", "io"}

OFFERED = {
    package.removeprefix("hpcdl."): what for what, package in registry.FOLDERS.items() if what != "backends"
}
"""Folders whose files are offered by name, and must not lean on each other."""

COMPOSERS = {"aggregation.auto", "aggregation.hierarchical", "aggregation.leader", "aggregation.torus"}
"""Those that are made of others."""


def imports(path):
    """Absolute names of all that ``path`` imports: ``hpcdl.fabric.comm.Array`` for a name from a module."""
    package = ["hpcdl", *path.relative_to(ROOT).with_suffix("").parts[:-1]]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            beginning = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*beginning, *filter(None, [node.module])])
            yield from (f"{module}.{alias.name}" for alias in node.names)


def within(name, module):
    return name == module or name.startswith(f"{module}.")


def place(path):
    return path.relative_to(ROOT).as_posix()


def files(folder):
    found = sorted((ROOT / folder).rglob("*.py"))
    assert found, folder
    return found


def test_imports_are_seen():
    """Or the tests below would hold for anything."""
    assert set(imports(ROOT / "fabric/inprocess.py")) == {
        "__future__.annotations",
        "random",
        "hpcdl.fabric.cooperative.CooperativeComm",
        "hpcdl.fabric.world.World",
    }
    assert {"h5py", "hpcdl.trace.run.Run", "hpcdl.trace.recorder.UPDATE"} <= set(imports(ROOT / "trace/schema.py"))


@pytest.mark.parametrize("library", ONLY_IN)
def test_a_library_is_imported_only_where_it_belongs(library):
    users = {place(path) for path in FILES if any(within(name, library) for name in imports(path))}
    strangers = {user for user in users if not any(fnmatch.fnmatch(user, home) for home in ONLY_IN[library])}
    assert not strangers


def test_the_fabric_knows_nobody_above_it():
    for path in files("fabric"):
        strangers = {name for name in imports(path) if within(name, "hpcdl") and not within(name, "hpcdl.fabric")}
        assert not strangers, place(path)


@pytest.mark.parametrize("folder", ARRAYS_ONLY)
def test_layers_compute_and_never_communicate(folder):
    for path in files(folder):
        foreign = {n for n in imports(path) if within(n, "hpcdl") and not within(n, f"hpcdl.{folder}")}
        assert foreign <= {"hpcdl.fabric.comm.Array"}, place(path)


@pytest.mark.parametrize("folder", PROGRAMS)
def test_programs_do_not_know_their_interpreter(folder):
    for path in files(folder):
        names = set(imports(path))
        fabric = {name for name in names if within(name, "hpcdl.fabric")}
        asked = {name for name in fabric if any(within(name, f"hpcdl.fabric.{one}") for one in ASKED)}
        assert fabric == asked, place(path)
        assert not {name.partition(".")[0] for name in names} & WORLDLY, place(path)


@pytest.mark.parametrize("folder", OFFERED)
def test_siblings_do_not_import_each_other(folder):
    """Except what offers nothing by name, such as ``folding``, and those that compose others."""
    offered = {f"hpcdl.{folder}.{name}" for name in registry.names(OFFERED[folder])}
    for path in files(folder):
        if f"{folder}.{path.stem}" in COMPOSERS:
            continue
        assert not {sibling for sibling in offered for name in imports(path) if within(name, sibling)}, place(path)


def test_kinds_of_case_do_not_import_each_other():
    kinds = {f"hpcdl.cases.{path.stem}" for path in files("cases") if path.stem != "__init__"}
    for path in files("cases"):
        assert not {kind for kind in kinds for name in imports(path) if within(name, kind)}, place(path)


def test_a_command_costs_nothing_until_it_is_given():
    """Every rank declares all of them; several launches of a run are reported by ``report``."""
    for path in files("commands"):
        its_own = ["hpcdl.arguments", "hpcdl.launch.catalogue"] if path.stem == "list" else []
        at_once = {"hpcdl.exit_codes", *its_own}
        tree = ast.parse(path.read_text(encoding="utf-8"))
        early = {node.module for node in tree.body if isinstance(node, ast.ImportFrom)}
        assert {module for module in early if within(module, "hpcdl")} <= at_once, place(path)
        others = {name for name in imports(path) if within(name, "hpcdl.commands")}
        assert not others or path.stem == "run", place(path)


def test_no_module_has_a_name_that_says_nothing():
    nothing = {"utils", "helpers", "base", "manager", "common", "misc"}
    parts = {part for path in FILES for part in path.relative_to(ROOT).with_suffix("").parts}
    assert not parts & nothing


def loaded_by(statements):
    """Libraries, the standard one and Cython's (a part of mpi4py) apart, that ``statements`` load."""
    program = "\n".join(
        [
            "import sys",
            "before = set(sys.modules)",
            *statements,
            "new = {name.partition('.')[0] for name in set(sys.modules) - before}",
            "new -= {*sys.stdlib_module_names, 'cython_runtime'}",
            "print(*(name for name in sorted(new) if not name.startswith('_')))",
        ]
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_a_worker_rank_loads_little():
    """One of a thousand must start quickly: whatever it may be told to run, with numpy kernels."""
    loaded = loaded_by(
        [
            "import pkgutil, importlib, hpcdl.runner, hpcdl.cli, hpcdl.cases, hpcdl.commands",
            "for folder in (hpcdl.cases, hpcdl.commands):",
            "    for module in pkgutil.iter_modules(folder.__path__):",
            "        importlib.import_module(f'{folder.__name__}.{module.name}')",
            "from hpcdl import registry",
            "for what in registry.FOLDERS: registry.names(what)",
            "from hpcdl.nn.backend import backend",
            "backend('numpy')",
            "registry.find('datasets', 'digits')()",
        ]
    )
    assert {"hpcdl", "mpi4py", "numpy"} <= loaded
    assert loaded <= {"hpcdl", "mpi4py", "numpy", "numba", "llvmlite", "threadpoolctl"}


@pytest.mark.parametrize(
    "module", ["hpcdl", "hpcdl.fabric.comm", "hpcdl.fabric.simulated", "hpcdl.aggregation.ring"]
)
def test_algorithms_need_numpy_alone(module):
    assert loaded_by([f"import {module}"]) <= {"hpcdl", "numpy"}
