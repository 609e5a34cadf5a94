"""Suites: TOML text to checked cases, each with a frozen spec. The only place where text becomes objects."""

import hashlib
import json
import os
import re
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from dataclasses import MISSING, dataclass, replace
from fnmatch import fnmatch
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Final, Protocol, TypeAlias

from hpcdl import registry
from hpcdl.cases.keys import suite_tables
from hpcdl.cases.keys.checks import Rows, refusals
from hpcdl.cases.keys.key import given, keys, plain, read
from hpcdl.exit_codes import UsageError, refused
from hpcdl.fabric.comm import Comm
from hpcdl.fabric.faults import Failure
from hpcdl.fabric.task import Program
from hpcdl.launch.machine import node_memory_bytes, shortage
from hpcdl.launch.testbed import emulated
from hpcdl.trace.files import JsonMapping, JsonObject, parse_toml, read_text
from hpcdl.trace.recorder import Scalar
from hpcdl.training.parts.journal import Journal
from hpcdl.training.parts.mesh import Mesh

Spec: TypeAlias = Any
"""A ``SPEC`` of a kind: a frozen dataclass, whose keys the kind alone knows."""
PAPERS: Final = Path(__file__).parent / "papers"
"""Files with the figures of papers, which a suite may name."""
PROCESS_BYTES: Final = 60_000_000
"""Memory of an idle rank: Python, numpy and MPI."""


class Kind(Protocol):
    """A module of :mod:`hpcdl.cases`: how a kind of case is written, checked and run. ``spec`` is a ``SPEC``."""

    SPEC: type
    """Frozen dataclass of the keys: see :mod:`hpcdl.cases.keys.key`."""
    CHECKS: Rows
    """Checks of a case before it runs, in order: see :mod:`hpcdl.cases.keys.checks`."""

    def memory_bytes(self, spec: Spec) -> int:
        """Return the least memory of its node that each rank needs."""

    def identity(self, spec: Spec) -> list[str]:
        """Return the words of the case's name."""

    def fields(self, spec: Spec) -> dict[str, Scalar]:
        """Return the record's fields that are known before the run, under the contract's names."""

    def program(self, spec: Spec, journal: Journal) -> Callable[[Comm], Program[dict[str, Scalar]]]:
        """Return the program of every rank; rank 0's findings are added to the record."""


@dataclass(frozen=True)
class Case:
    """One case, every value settled."""

    suite: str
    name: str
    kind: str
    spec: Spec
    timeout_seconds: float | None = None
    """Time limit of the case."""

    def setting(self, name: str) -> Any:
        """Return a setting; None if the kind has no such key."""
        return getattr(self.spec, name, None)

    @property
    def ranks(self) -> int:
        """Ranks it runs on, real or simulated."""
        return int(self.spec.ranks)

    @property
    def processes(self) -> int:
        """MPI processes it needs: a simulation needs one."""
        return 1 if self.setting("network") else self.ranks

    @property
    def failure(self) -> Failure | None:
        """The failure of one of its processes, None without one; a simulated rank's harms no process."""
        return None if self.setting("network") else self.setting("failure")

    @cached_property
    def digest(self) -> str:
        """Short hash of everything that defines the case: finished cases are recognised by it."""
        settings = {name: plain(getattr(self.spec, name)) for name in keys(type(self.spec))}
        text = json.dumps([self.kind, settings], sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    @property
    def module(self) -> Kind:
        """The module of its kind."""
        return suite_tables.module_of(self.kind)  # type: ignore[no-any-return]

    def fields(self) -> dict[str, Scalar]:
        """Return the record's fields that are known before it runs."""
        return {
            "suite": self.suite,
            "case": self.name,
            "kind": self.kind,
            "digest": self.digest,
            "ranks": self.ranks,
            "seed": self.setting("seed"),
            **self.module.fields(self.spec),
            "settings": json.dumps(given(self.spec), default=str),
        }


@dataclass(frozen=True)
class Suite:
    """A suite file."""

    name: str
    question: str
    text: str
    table: JsonMapping
    """The table ``[suite]``, with what ``--set`` changes."""
    cases: tuple[Case, ...]
    others: tuple[Case, ...] = ()
    """Those that were not chosen, which are not checked: a run folder may hold them."""
    only_full: int = 0
    """Cases that ``full`` would add."""


@dataclass(frozen=True)
class _Draft:
    """A case whose values are not checked against each other yet."""

    case: Case
    where: str
    given: Collection[str]
    """Keys that the suite gives."""
    complaint: str | None
    """The first value that its key cannot have."""
    full: bool
    """True if it runs only with ``--full``, or if ``--case`` names it."""

    def check(self, *, elsewhere: bool = False) -> Case:
        """Return the case. Raises UsageError if it cannot be run, or not even ``elsewhere``."""
        if self.complaint is not None:
            raise UsageError(self.complaint)
        case = self.case
        for refusal in refusals(case.module.CHECKS, case.kind, case.spec, self.given, elsewhere=elsewhere):
            raise UsageError(f"{self.where}: {refusal}")
        return self.case


def load(
    path: Path,
    overrides: Sequence[str] = (),
    globs: Sequence[str] = (),
    *,
    ranks: int | None = None,
    full: bool = False,
    check: bool = True,
    elsewhere: bool = False,
) -> Suite:
    """Read a suite: a file, or one that comes with hpcdl, by name; see :func:`parse`.

    Raises UsageError if it cannot be read or does not :func:`parse`.
    """
    with refused():
        path = suite_tables.located(path)
        text = read_text(path)
    return parse(text, str(path), overrides, globs, ranks=ranks, full=full, check=check, elsewhere=elsewhere)


def parse(
    text: str,
    source: str,
    overrides: Sequence[str] = (),
    globs: Sequence[str] = (),
    *,
    ranks: int | None = None,
    full: bool = False,
    check: bool = True,
    elsewhere: bool = False,
) -> Suite:
    """Turn the text of the suite file ``source`` into cases.

    ``overrides`` are the arguments of ``--set``: ``case.KEY=VALUE`` or ``suite.KEY=VALUE``, as in TOML. With
    ``globs`` only the cases of :func:`matching` names are chosen and checked; without, those that the suite marks
    ``full`` are left out unless ``full``. ``ranks`` is the number of ranks of cases with ``ranks = "all"``: those
    of the job, by default as many as this process has cores, and at least two. Raises UsageError for anything that
    could not run to its end: unknown keys and names, values out of range, missing data, impossible shapes. Of a
    case that is not chosen only the keys, and what names it, must be right; without ``check`` that holds for all.
    ``elsewhere``: the suite runs on another machine, which may have datasets that are missing here.
    """
    with refused():
        table, drafts = _drafts(text, source, overrides, ranks or max(2, len(os.sched_getaffinity(0))))
    named = [drafts[place] for place in matching([draft.case.name for draft in drafts], globs)]
    chosen = [draft for draft in named if globs or full or not draft.full]
    if not chosen:
        raise UsageError(f"{source}: all cases have full = true; run them with --full")
    checked = tuple(draft.check(elsewhere=elsewhere) if check else draft.case for draft in chosen)
    seen = set()
    for case in checked:
        if not case.name.isprintable():
            raise UsageError(f"{source}: the case {case.name!r} has characters in its name that cannot be shown")
        if case.name in seen:
            raise UsageError(f"{source}: the case {case.name!r} is there twice")
        seen.add(case.name)
    others = tuple(draft.case for draft in drafts if draft.complaint is None and draft.case.name not in seen)
    question, left_out = table.get("question", ""), len(named) - len(chosen)
    return Suite(table["name"], question, text, table, checked, others, left_out)


def lack_of_memory(cases: Sequence[Case], hosts: Sequence[Hashable]) -> str | None:
    """Return one line if the ranks of the job or of a case do not fit into a node's memory; None if all fit.

    ``hosts`` has the host of each rank, in order of ranks.
    """
    fullest = len(hosts) if emulated() else max(Counter(hosts).values())
    if (line := shortage(PROCESS_BYTES, fullest, node_memory_bytes())) is not None:
        return f"{fullest} processes: {line} on a node"
    for case in cases:
        taken = hosts[: case.processes]
        most = len(taken) if emulated() else max(Counter(taken).values())  # emulated hosts share a node
        if (line := shortage(case.module.memory_bytes(case.spec), most, node_memory_bytes())) is not None:
            return f"case {case.name!r}: {line} on a node"
    return None


def matching(names: Sequence[str], globs: Sequence[str]) -> list[int]:
    """Return the places of the ``names`` that are one of ``globs`` or match one; all without ``globs``.

    Raises UsageError for a pattern that matches no name.
    """
    chosen = set(() if globs else range(len(names)))
    for glob in globs:
        here = {place for place, name in enumerate(names) if name == glob or fnmatch(name, glob)}
        if not here:
            wider = f"*{glob}*"
            near = f"; did you mean {wider!r}?" if any(fnmatch(name, wider) for name in names) else ""
            raise UsageError(f"--case {glob!r} matches none of the cases, such as {names[0]!r}{near}")
        chosen |= here
    return sorted(chosen)


def _drafts(text: str, source: str, overrides: Sequence[str], ranks: int) -> tuple[JsonObject, list[_Draft]]:
    """Return the table ``[suite]`` and the cases. Raises ValueError, and UsageError."""
    tables = parse_toml(text, source)
    suite_tables.check_keys(tables, ("suite", "case"), source)
    head, written = tables.get("suite", {}), tables.get("case", [])
    if not isinstance(head, dict):
        raise UsageError(f"{source}: there is no [suite]")
    if not isinstance(written, list) or not written or not all(isinstance(table, dict) for table in written):
        raise UsageError(f"{source}: there is no [[case]]")
    for setting in overrides:
        suite_tables.override(setting, head, written)
    for table in written:
        if table.get("ranks") == "all":
            table["ranks"] = ranks
    registry.trust(written, Path(source).parent)
    suite_tables.check_keys(head, ("name", "question", "answer", "compare", "papers"), f"{source}: [suite]")
    name, question = head.get("name"), head.get("question", "")
    check_named(head, "papers", sorted(path.stem for path in PAPERS.glob("[a-z]*.*")), source)
    if name is None:
        raise UsageError(f"{source}: [suite]: name: a suite needs a name")
    if not isinstance(name, str) or not re.fullmatch(r"\w[\w.+-]*", name):
        raise UsageError(f"{source}: [suite]: name: must be a word that can name a folder, not {name!r}")
    if not isinstance(question, str):
        raise UsageError(f"{source}: [suite]: question: must be str, not {question!r}")
    drafts: list[_Draft] = []
    for number, table in enumerate(written, 1):
        where = f"{source}: [[case]] {number}"
        drafts += [_draft(name, values, where, full=full) for values, full in suite_tables.expanded(table, where)]
        if len(drafts) > suite_tables.MAX_CASES:
            raise UsageError(f"{where}: the suite has more than {suite_tables.MAX_CASES} cases")
    return head, list(_named_apart(drafts))


@cache  # each section of a report asks for it
def head(text: str) -> JsonObject:
    """Return the table ``[suite]`` of a suite that has run; empty if it cannot be read. Not to be changed."""
    try:
        table = parse_toml(text, "suite").get("suite")
    except ValueError:  # a report cannot mend it
        return {}
    return table if isinstance(table, dict) else {}


def check_named(head: JsonMapping, key: str, valid: Sequence[str], source: object) -> None:
    """Raise UsageError if a key of the table ``[suite]`` names something that is not ``valid``."""
    for value in _listed(head, key):
        if value not in valid:
            near = registry.nearest(str(value), valid)
            raise UsageError(f"{source}: [suite]: {key}: unknown {value!r}{near}")


def papers(text: str) -> list[str]:
    """Return the papers that a suite names, of those of the package."""
    return [name for name in _listed(head(text), "papers") if (PAPERS / f"{name}.toml").is_file()]


def _listed(table: JsonMapping, key: str) -> list[Any]:
    """Return the values of a key that has one or a list."""
    named = table.get(key, [])
    return named if isinstance(named, list) else [named]


def _draft(suite: str, values: JsonObject, where: str, *, full: bool) -> _Draft:
    """Settle the values of a case and name it. Raises UsageError if it cannot be named, and ValueError."""
    kind = values.pop("kind")
    if not isinstance(kind, str):
        raise UsageError(f"{where}: kind: must be a word, not {kind!r}")
    with refused(f"{where}: kind: "):
        module: Kind = suite_tables.module_of(kind)
    declared, held, complaints = keys(suite_tables.Common) | keys(module.SPEC), JsonObject(), []
    suite_tables.check_keys(values, [*declared, "full"], where)
    for name, key in declared.items():
        if name in values:
            held[name], wrong = read(key, values[name])
            complaints += [f"{where}: {name}: {wrong}"] if wrong else []
        elif key.default is MISSING:
            raise UsageError(f"{where}: {name}: a {kind} case needs it")
    limit = held.pop("timeout_seconds", None)
    case = Case(suite, kind, kind, module.SPEC(**held), limit)
    draft = _Draft(case, where, held.keys(), next(iter(complaints), None), full)
    try:
        name = "-".join([kind, *module.identity(case.spec)])
    except Exception as error:  # noqa: BLE001 - an unchecked value can be anything
        draft.check()  # its message tells why there is no name
        raise UsageError(f"{where}: {error}") from None
    return replace(draft, case=replace(case, name=name))


def _named_apart(drafts: Sequence[_Draft]) -> Iterable[_Draft]:
    """Yield the cases in their order; a name that several share also has the settings in which those differ."""
    alike: dict[str, list[Case]] = {}
    for draft in drafts:
        alike.setdefault(draft.case.name, []).append(draft.case)
    differing = {
        name: [key for key in keys(type(group[0].spec)) if len({_word(case, key) for case in group}) > 1]
        for name, group in alike.items()
    }
    for draft in drafts:
        case = draft.case
        words = [f"{key}={_word(case, key)}" for key in differing[case.name] if case.setting(key) is not None]
        yield replace(draft, case=replace(case, name="-".join([case.name, *words])))


def _word(case: Case, key: str) -> str:
    setting = case.setting(key)
    return registry.label(plain(setting.on(case.ranks) if isinstance(setting, Mesh) else setting))
