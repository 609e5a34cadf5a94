"""Allowed imports between folders, checked in the source."""

import ast
import fnmatch
import subprocess
import sys
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import hpcdl
from hpcdl import registry
from hpcdl.aggregation.parts.traits import Aggregation

ROOT = Path(hpcdl.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))

ONLY_IN = {
    "mpi4py": ["fabric/mpi/*", "fabric/device/*", "launch/*"],
    "cupy": ["nn/backend.py", "nn/kernels/*cupy*", "fabric/device/*"],
    "cudnn": ["nn/kernels/*cupy*"],
    "numba": ["compiled.py", "nn/kernels/*numba*", "compression/kernels/*"],
    "h5py": ["trace/*", "data/*"],
    "PIL": ["data/convert.py"],
    "pandas": ["__init__.py", "analysis/*", "report/*", "trace/run.py", "trace/export.py"],
    "matplotlib": ["report/formats/canvas.py", "report/formats/figure.py"],
    "jinja2": ["report/formats/html.py"],
    "scipy": ["analysis/*", "cases/keys/train_spec.py", "prediction/*"],
    "rich": ["commands/*"],
    "perfetto": ["trace/export.py"],
    "google": ["trace/export.py"],
}
"""Libraries, and the only modules that may import them."""

ARRAYS = ("fabric.comm.Array", "fabric.comm.Device", "compiled")
MAY_IMPORT = {
    "fabric": ("fabric", "extras"),  # names what a missing package needs
    # these compute and never communicate
    **{folder: (folder, *ARRAYS) for folder in ("optim", "compression")},
    "nn": ("nn", *ARRAYS, "extras"),
    # traces and keys of cases, and the rounds of exchanges, by whose order it finds the pairs
    "analysis": ("analysis", "trace", "cases.keys", "registry", "training.parts.traits", "fabric.pairs"),
    # pages of runs, comparisons and histories are documents before they are written; a verdict has a size and marks
    "report/formats": ("report.formats", "exit_codes", "analysis.statistics", "analysis.run.record.Mark"),
}
"""Beginnings of the modules that the files of a folder may import, of the package."""

ALGORITHMS = ["aggregation", "training"]
"""Folders of algorithms over ``Comm``, which import no interpreter, clock, thread or file."""

PROTOCOL = ("comm", "task", "vectors")
"""Modules of the fabric that algorithms may import."""

FORBIDDEN = {"time", "datetime", "threading", "multiprocessing", "subprocess", "socket", "os", "pathlib", "io"}

OFFERED = {name.removeprefix("hpcdl."): kind for kind, name in registry.FOLDERS.items() if kind != "backends"}
"""Folders whose files a suite can name; they must not import each other."""


@cache
def imports(path):
    """Return the absolute names that ``path`` imports, such as ``hpcdl.fabric.comm.Array``."""
    return frozenset(imported(path))


def imported(path):
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


def test_imports_are_found():
    """Otherwise the tests below would pass for any source."""
    assert {"math.prod", "numpy", "hpcdl.fabric.topologies.check_size"} < imports(
        ROOT / "fabric/topologies/torus.py"
    )
    assert {"h5py", "hpcdl.trace.run.Run", "hpcdl.trace.recorder.TABLES"} < imports(ROOT / "trace/schema.py")


def test_a_library_is_imported_only_where_it_belongs():
    for library, homes in ONLY_IN.items():
        users = {place(path) for path in FILES if any(within(name, library) for name in imports(path))}
        others = {user for user in users if not any(fnmatch.fnmatch(user, home) for home in homes)}
        assert not others


@pytest.mark.parametrize("folder", MAY_IMPORT)
def test_a_folder_imports_only_what_it_may_know(folder):
    known = [f"hpcdl.{one}" for one in MAY_IMPORT[folder]]
    for path in files(folder):
        ours = {name for name in imports(path) if within(name, "hpcdl")}
        assert not [name for name in ours if not any(within(name, one) for one in known)], place(path)


def test_programs_do_not_know_their_interpreter():
    for folder in ALGORITHMS:
        for path in files(folder):
            names = set(imports(path))
            others = [name for name in names if within(name, "hpcdl.fabric")]
            assert all(any(within(name, f"hpcdl.fabric.{one}") for one in PROTOCOL) for name in others), place(
                path
            )
            assert not {name.partition(".")[0] for name in names} & FORBIDDEN, place(path)


SIZES_ONLY = {"aggregation/parts/entries.py", "aggregation/parts/messages.py", "training/parts/plan.py"}
"""Modules of algorithms that know of vectors without values: where values decide how long messages are."""


def test_programs_do_not_ask_whether_vectors_have_values():
    names = {f"hpcdl.fabric.vectors.{name}" for name in ("Phantom", "sizes_only")}
    algorithms = [path for folder in ALGORITHMS for path in files(folder)]
    assert {place(path) for path in algorithms if names & imports(path)} <= SIZES_ONLY


def test_siblings_do_not_import_each_other():
    """Except composite schemes and schemes that choose among others."""
    for folder, kind in OFFERED.items():
        offered = {f"hpcdl.{folder}.{name}" for name in registry.names(kind)}
        for path in files(folder.replace(".", "/")):
            if folder == "aggregation" and path.stem in registry.names(folder):
                traits = registry.traits(folder, path.stem, Aggregation)
                if traits.composite or traits.adaptive:
                    continue
            assert not {one for one in offered for name in imports(path) if within(name, one)}, place(path)


FLOORS = [
    ["__main__"],
    ["cli"],
    ["commands"],
    ["run"],
    ["report"],
    ["prediction"],
    ["analysis"],
    ["suite"],
    ["cases"],
    ["launch"],
    ["training", "models"],
    ["aggregation", "compression", "data", "nn", "optim"],
    ["fabric", "trace", "registry", "exit_codes", "extras", "compiled"],
]
"""Folders and modules of the package from the top floor down. Each imports from its own floor and from lower ones."""


def room(name):
    """The folder or top-level module that holds ``name``; None outside of the package and for its own names."""
    package, top, *_ = [*name.split("."), ""]
    return top if package == "hpcdl" and any(top in floor for floor in FLOORS) else None


def test_every_room_has_a_floor_and_imports_point_down():
    """Type annotations included."""
    level = {one: number for number, floor in enumerate(FLOORS) for one in floor}
    rooms = {path: path.relative_to(ROOT).parts[0].removesuffix(".py") for path in FILES}
    assert {*rooms.values()} - {"__init__"} == {*level}
    for path, own in rooms.items():
        if own == "__init__":
            continue
        up = {name for name in imports(path) if (there := room(name)) and level[there] < level[own]}
        assert not up, place(path)


def test_no_file_imports_itself_through_others():
    """Type annotations included."""
    modules = {".".join(["hpcdl", *path.relative_to(ROOT).with_suffix("").parts]): path for path in FILES}
    graph = {
        module: {one for name in imports(path) for one in (name, name.rpartition(".")[0]) if one in modules}
        for module, path in modules.items()
    }
    tuple(TopologicalSorter(graph).static_order())  # raises CycleError


def test_kinds_of_case_do_not_import_each_other_and_keys_no_simulation():
    kinds = {f"hpcdl.cases.{path.stem}" for path in (ROOT / "cases").glob("[a-z]*.py")}
    for path in files("cases"):
        unknown = kinds | ({"hpcdl.cases.parts"} if path.is_relative_to(ROOT / "cases/keys") else set())
        assert not {one for one in unknown for name in imports(path) if within(name, one)}, place(path)


def test_commands_import_late_and_not_each_other():
    """Every rank loads all commands, so that each imports other modules only when it runs."""
    for path in ROOT.glob("commands/*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        early = {node.module for node in tree.body if isinstance(node, ast.ImportFrom)}
        own = {module for module in early if within(module, "hpcdl")} - {"hpcdl.exit_codes"}
        assert all(within(module, "hpcdl.commands.parts") for module in own), place(path)
        from_commands = {name for name in imports(path) if within(name, "hpcdl.commands")}
        assert all(within(name, "hpcdl.commands.parts") for name in from_commands), place(path)


def test_no_module_has_a_meaningless_name():
    meaningless = {"utils", "helpers", "base", "manager", "common", "misc"}
    parts = {part for path in FILES for part in path.relative_to(ROOT).with_suffix("").parts}
    assert not parts & meaningless


def loaded_by(statements):
    """Return the libraries that ``statements`` load, without the standard library and Cython's runtime."""
    added = [
        "new = {name.partition('.')[0] for name in set(sys.modules) - before}",
        "new -= {*sys.stdlib_module_names, 'cython_runtime'}",
        "print(*(name for name in sorted(new) if not name.startswith('_')))",
    ]
    program = "\n".join(["import sys", "before = set(sys.modules)", *statements, *added])
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_a_worker_rank_loads_few_libraries():
    """A rank of a job with a thousand must start quickly; with numpy kernels."""
    loaded = loaded_by(
        [
            "import pkgutil, importlib, hpcdl.run.case_loop, hpcdl.cli, hpcdl.cases, hpcdl.commands",
            "for folder in (hpcdl.cases, hpcdl.commands):",
            "    for module in pkgutil.iter_modules(folder.__path__):",
            "        importlib.import_module(f'{folder.__name__}.{module.name}')",
            "from hpcdl import registry",
            "for kind in registry.FOLDERS: registry.names(kind)",
            "from hpcdl.nn.backend import backend",
            "backend('numpy')",
            "registry.find('datasets', 'digits')()",
            "from hpcdl.cli import _options",
            "from hpcdl.commands.parts.job import load_suite",
            "text = hpcdl.cases.keys.suite_tables.located('collectives').read_text()",
            "load_suite(_options(['run', 'collectives']), text)",
            "assert not any(name.startswith('hpcdl.report') for name in sys.modules)",
        ]
    )
    assert {"hpcdl", "mpi4py", "numpy"} <= loaded
    assert loaded <= {"hpcdl", "mpi4py", "numpy", "numba", "llvmlite", "threadpoolctl"}


def test_help_needs_no_library_and_algorithms_only_numpy():
    assert loaded_by(["from hpcdl.cli import _options", "_options(['list'])"]) == {"hpcdl"}
    for module in ["hpcdl", "hpcdl.fabric.comm", "hpcdl.fabric.virtual.clocks", "hpcdl.aggregation.ring"]:
        assert loaded_by([f"import {module}"]) <= {"hpcdl", "numpy"}
