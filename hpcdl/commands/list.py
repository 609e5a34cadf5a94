"""``hpcdl list``: names that a suite can use, and what cannot be combined."""

from __future__ import annotations

import argparse
import inspect
import itertools
import json
import re
import shutil
import sys
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Final

from hpcdl.commands.parts.options import Arguments, Command, chosen, whole_number
from hpcdl.exit_codes import OK, UsageError

if TYPE_CHECKING:
    from hpcdl.registry import Offer
    from hpcdl.trace.files import JsonObject

SUBJECTS: Final = (
    *("aggregation", "compression", "codes", "optimizers", "schedules", "training", "models", "datasets"),
    *("networks", "topologies", "suites", "combinations", "sections"),
)
MAX_IMAGES: Final = 10**9
USUAL_BATCH: Final = 256


def arguments(parser: Arguments) -> None:
    parser.option("subject SUBJECT", f"{', '.join(SUBJECTS)}; without it an index", nargs="?", type=_subject)
    parser.option("--json", "one JSON document")
    effect = "with models: weight bytes |W|, data bytes |D|, FLOP and bytes of outputs of a step on N images"
    parser.option("--batch N,...", effect, type=_batches)


def _subject(word: str) -> str:
    """Return the subject that ``word`` names; a key of a suite, such as ``optimizer``, names one too."""
    plural = {"optim": "optimizers", "topology": "topologies"}.get(word, f"{word}s")
    return plural if plural in SUBJECTS else chosen(word, SUBJECTS)


def _batches(text: str) -> list[int]:
    batches = [whole_number(part) for part in text.split(",")]
    for batch in batches:
        if not 1 <= batch <= MAX_IMAGES:
            raise argparse.ArgumentTypeError(f"{batch} is not from 1 to {MAX_IMAGES}")
    return batches


def execute(options: argparse.Namespace) -> int:
    if options.batch and options.subject != "models":
        raise UsageError("--batch: only for `hpcdl list models`")
    subjects = [options.subject] if options.subject else list(SUBJECTS)
    batches = options.batch or [USUAL_BATCH]
    listed = {subject: catalogue(subject, batches) for subject in subjects}
    if options.json:
        print(json.dumps({"schema": 1, **listed}, indent=1))
        return OK
    if not options.subject:
        for subject, entries in listed.items():
            count = len({entry["name"] for entry in entries})
            print(f"{subject:13} {count:3}   hpcdl list {subject}")
        print("\nwith --json: all of them, their settings and defaults\npages on each activity: hpcdl help")
        return OK
    (entries,) = listed.values()
    width = max(len(entry["name"]) for entry in entries)
    for heading, group in itertools.groupby(entries, lambda entry: entry.get("group", options.subject)):
        print(f"{heading}:")
        for entry in group:
            _print(
                f"  {entry['name']:{width}}  ", _described(entry, volumes=bool(options.batch)).replace("``", "")
            )
            if not options.batch and (line := _settings(entry)):
                _print(f"  {'':{width}}  ", line)
    return OK


def _print(begin: str, text: str) -> None:
    """Print a name and its text, which a terminal breaks between words; a pipe has one line."""
    columns = shutil.get_terminal_size((sys.maxsize, 0)).columns
    indent = " " * min(len(begin), columns // 2)
    print(textwrap.fill(text, columns, initial_indent=begin, subsequent_indent=indent))


def catalogue(subject: str, batches: Sequence[int] = (USUAL_BATCH,)) -> list[JsonObject]:
    """Return the entries of a subject: ``name``, ``summary`` and more; of a model one per batch size."""
    from hpcdl import registry
    from hpcdl.aggregation.parts.cost import costs
    from hpcdl.fabric.network import Site

    if subject in TABLES:
        return TABLES[subject]()
    entries = []
    folder = "optim" if subject == "optimizers" else subject
    around = registry.settings_of(Site) if folder == "topologies" else {}
    for name in registry.names(folder):
        offer = registry.find(folder, name)
        entry = _entry(name, offer, registry.settings_of(offer) | around)
        if subject == "aggregation":
            entry["costs"] = costs(offer)
        volumes = _volumes(offer, batches) if subject == "models" else [{}]
        entries += [entry | sizes for sizes in volumes]
    return entries


def _entry(name: str, offer: Offer, parameters: Mapping[str, inspect.Parameter]) -> JsonObject:
    from hpcdl import registry

    defaults = {key: parameter.default for key, parameter in parameters.items()}
    return {
        "name": name,
        "summary": registry.summary(offer),
        "settings": {key: registry.annotation(parameter) for key, parameter in parameters.items()},
        "defaults": {key: default for key, default in defaults.items() if default is not inspect.Parameter.empty},
    }


def _described(entry: JsonObject, *, volumes: bool) -> str:
    if "parameters" not in entry:
        needs = f" (needs {', '.join(entry['needs'])})" if entry.get("needs") else ""
        return f"{entry['summary']}{needs}"
    size = "x".join(map(str, entry["shape"]))
    if not volumes:
        multiply_adds = entry["multiply_adds_per_image"] / 1e9
        return f"{size:9}  {entry['parameters']:11,} parameters {multiply_adds:8.4f} GMAC  {entry['summary']}"
    keys = ("weight_bytes", "data_bytes", "activation_bytes")
    weights, data, activations = (f"{entry[key] / 1e6:10,.1f} MB" for key in keys)
    flop = entry["forward_backward_flop"] / 1e12
    return f"{size:9}  batch {entry['batch']:5}  |W|{weights}  |D|{data}  {flop:9.3f} TFLOP  outputs{activations}"


def _settings(entry: JsonObject) -> str:
    defaults = entry.get("defaults", {})
    return ", ".join(
        f"{key} = {json.dumps(defaults[key])}" if defaults.get(key) is not None else f"{key} ({kind})"
        for key, kind in entry.get("settings", {}).items()
    )


def _volumes(model: Offer, batches: Sequence[int]) -> list[JsonObject]:
    """Return the volumes of a model per batch size, for images of the model's default shape."""
    from hpcdl.nn.volumes import volumes

    shape, classes = (p.default for p in list(inspect.signature(model).parameters.values())[:2])
    try:
        network = model(shape, classes)
    except ValueError:  # a table of layers, of which no file is named
        return [{}]
    return [{"shape": shape, "classes": classes, **asdict(volumes(network, shape, batch))} for batch in batches]


def _networks() -> list[JsonObject]:
    from hpcdl.fabric.network import NETWORKS

    return [
        {
            "name": network.name,
            "summary": f"{1e6 * network.link.alpha:.4g} us, "
            f"{1e-9 / network.link.beta:.3g} GB/s ({network.source})",
            "alpha_seconds": network.link.alpha,
            "beta_seconds_per_byte": network.link.beta,
            "gamma_seconds_per_byte": network.gamma,
            "source": network.source,
        }
        for network in NETWORKS.values()
    ]


def _schedules() -> list[JsonObject]:
    from hpcdl import registry
    from hpcdl.optim.parts.schedules import SCHEDULES, with_warmup

    around = registry.settings_of(with_warmup)
    del around["global_batch"]  # the case's
    return [_entry(name, shape, {**registry.settings_of(shape), **around}) for name, shape in SCHEDULES.items()]


def _suites() -> list[JsonObject]:
    from hpcdl import registry
    from hpcdl.cases.keys.suite_tables import FOLDER, suites
    from hpcdl.trace.files import read_toml

    entries: list[JsonObject] = []
    files = suites()
    readme = (FOLDER / "README.md").read_text(encoding="utf-8")
    tables = re.findall(r"^### (.+)\n\n((?:\|.*\n)+)", readme, re.MULTILINE)
    names = [(group, name) for group, table in tables for name in re.findall(r"\| `([\w-]+)\.toml`", table)]
    for group, name in names:
        path = files[name]
        suite = read_toml(path)
        usual = [case for case in suite["case"] if case.get("full") is not True]
        chosen = [case.get("dataset", []) for case in usual]
        every = [one for choice in chosen for one in (choice if isinstance(choice, list) else [choice])]
        datasets = {one["name"] if isinstance(one, dict) else one for one in every}
        # the user has to get the datasets that have a path, of cases that run without --full and --case
        needs = sorted(
            name for name in datasets if "path" in registry.settings_of(registry.find("datasets", name))
        )
        question = suite["suite"]["question"]
        entries.append({"name": name, "group": group, "summary": question, "needs": needs, "path": str(path)})
    return entries


def _sections() -> list[JsonObject]:
    """Return the values of a suite's ``answer``, and the measures of its ``compare`` with the better side."""
    from hpcdl.report.contents import declared
    from hpcdl.report.sections.contrast import MEASURES

    first_is_last = reversed(declared())  # of equal names, the first section answers
    answers = {section.name: inspect.getdoc(section.answer) or "" for section in first_is_last if section.answer}
    lines = {name: text.splitlines()[0].removeprefix("Return").lstrip(" ,") for name, text in answers.items()}
    sides = {name: f"{measure.better} is better" for name, measure in MEASURES.items() if measure.better}
    return [
        *({"name": name, "key": "answer", "summary": f"answer: {lines[name]}"} for name in sorted(lines)),
        *({"name": name, "key": "compare", "summary": f"compare: {side}"} for name, side in sides.items()),
    ]


def _combinations() -> list[JsonObject]:
    """Return the pairs of features that a case cannot have together, each under the key that it is about."""
    from hpcdl.cases.keys.checks import ROWS

    return [
        {
            "name": row.key,
            "summary": f"{row.feature.text} and {row.other.text}: {row.reason}; {row.advice}",
            "feature": row.feature.text,
            "other": row.other.text,
            "reason": row.reason,
            "remedy": row.advice,
        }
        for row in ROWS
    ]


TABLES: Final = {
    "networks": _networks,
    "suites": _suites,
    "schedules": _schedules,
    "combinations": _combinations,
    "sections": _sections,
}
"""Entries of the subjects that are no folder of objects."""

COMMAND: Final = Command(
    40,
    "list names that a suite can use",
    "List the names that a suite can use, with settings and defaults; without SUBJECT, an index.",
    "hpcdl list aggregation",
)
