"""Names of runs, methods, networks and links: brief in tables, as a suite writes them; in words in sentences."""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Final

from hpcdl import registry
from hpcdl.analysis.run.record import ANY, Record, group_by_key
from hpcdl.analysis.statistics.estimates import Interval
from hpcdl.cases.keys.suite_tables import columns_with
from hpcdl.registry import parts
from hpcdl.report.formats.cells import NONE, listed, plural, volume
from hpcdl.training.parts.traits import BY_STRATEGY

TITLES: Final = {
    **{key: key.upper().replace("_", "-") for key in ("ad_psgd", "d_psgd", "dgc", "lamb", "lars", "qsgd", "sgd")},
    **{key: key.capitalize() for key in ("adagrad", "adam")},
    **{key: key.replace("_", "-") for key in ("halving_doubling", "random_k", "top_k", "two_shot")},
    **{key: f"a {key.replace('_', ' ')}" for key in ("parameter_server", "ring", "tree")},
    "adamw": "AdamW",
    "allgather": "an allgather",
    "auto": "auto (chosen by a few trials)",
    "bf16": "bfloat16",
    "bine": "Bine trees",
    "binomial": "a reduction tree",
    "constant": "a constant learning rate",
    "deep_compression": "Deep Compression",
    "ef_sign": "EF-signSGD",
    "direct": "a direct exchange",
    "elastic_averaging": "elastic averaging (EASGD)",
    "fp16": "float16",
    "gtopk": "gTop-k",
    "layerwise": "layerwise summation",
    "native": "the MPI library",
    "native_nonblocking": "the library's nonblocking call",
    "native_persistent": "the library's persistent call",
    "native_reduce_scatter_allgather": "the library's reduce-scatter and allgather",
    "ok_topk": "Ok-Topk",
    "one_bit": "1-bit SGD",
    "pairwise": "a pairwise exchange",
    "power_sgd": "PowerSGD",
    "sandblaster": "Sandblaster L-BFGS",
    "sharded_parameter_server": "sharded servers",
    "sign": "signSGD",
    "sparcml": "SparCML",
    "swing": "Swing",
    "synchronous": "synchronous training",
    "terngrad": "TernGrad",
    "uniform": "a uniform distribution",
    "zipf": "a Zipf distribution",
}
"""Names in the literature; any other name is a suite's, with spaces."""
SETTINGS: Final = {
    **dict.fromkeys(("base_batch", "ranks_per_node", "warmup_from"), ""),
    **{key: f"of {{}} {key}" for key in ("groups", "hosts", "routers")},
    **{key: f"with {{}} {key.replace('_', ' ')}" for key in ("microbatches", "optimizer_state", "placement")},
    **dict.fromkeys(("sides", "tau"), "of {}"),
    "bucket_bytes": "in buckets of {}",
    "code": "coded as {}",
    "data": "with {} replicas",
    "density": "at {} % of the entries",
    "graph": "on the {} graph",
    "n_fetch": "fetching every {} steps",
    "n_push": "pushing every {} steps",
    "oversubscription": "oversubscribed {} to 1",
    "period": "every {} steps",
    "pipeline": "of {} stages",
    "ramp_steps": "ramped over {} steps",
    "rank": "of rank {}",
    "rule": "by {} rule",
    "scale_rate": "with learning rates divided by the {}",
    "segment_bytes": "in segments of {}",
    "servers": "on {} servers",
    "warmup": "with a warm-up",
    "warmup_steps": "with {} dense steps first",
    "bucket_bytes=0": "by whole layers",
    "nearest_first=True": "(nearest rank first)",
    "overlap=True": "(overlapped)",
    "dedicated=True": "with a dedicated server",
    "period=1": "in every step",
    "schedule=1f1b": "by the 1F1B schedule",
    "schedule=gpipe": "by GPipe's schedule",
    "ramp_steps=0": "without a ramp",
}
"""Words for settings, and for some of their values; any other setting is stated by its name."""
NESTED: Final = {"inner": "inside a node", "outer": "between nodes"}
"""Settings that are schemes themselves."""
IMPLIED: Final = ("bound", "collect", "delay_compensation", "outer_", "stage")
"""Beginnings of settings that the literature's name of a strategy (the record's ``system``) implies."""
LINKS: Final = {
    r"ETHERNET-(\d+)([MG])": r"\1 \2bit/s Ethernet",
    r"SLINGSHOT-(\d+)": r"Slingshot \1",
    r"INFINIBAND-(EDR|HDR|NDR)": r"InfiniBand \1",
    "FUGAKU": "Fugaku",
    "LEONARDO": "Leonardo",
    "LUMI": "LUMI",
    "MARENOSTRUM5": "MareNostrum 5",
    r"(RDMA|TCP)-(\d+)G": r"\2 Gbit/s \1",
    r"WAN-(\d+)([MG])-(\d+)MS": r"links of \1 \2bit/s and \3 ms",
}
MAX_LOSS: Final = 1.0
"""Percentage points of accuracy that a method may lose and still count as accurate."""
COMMA: Final = re.compile(r", (?![^(\[]*[)\]])")
"""Between the parts of a name, not between settings."""


def in_words(name: str, record: Record) -> str:
    """Return a method's ``name`` of a table as a sentence has it: "parameter averaging every 10 steps"."""
    if (compressor := record.compression or "none") != "none" and parts(compressor)[0] not in name:
        name = f"{name}, {compressor}"
    first, *others = (_part(part, record) for part in COMMA.split(name))
    if others and first == TITLES["synchronous"] and " + " in name:  # a compressor tells enough
        first, *others = others
    joint = "in" if others and others[0].startswith(("buckets of", "one sum")) else "with"
    return f"{first} {joint} {' and '.join(others)}" if others else first


def legend(methods: Sequence[tuple[str, Record]]) -> list[str]:
    """Return the methods of a chart in words, or as tables name them if two would be alike."""
    words = [in_words(name, record) for name, record in methods]
    names = [name for name, _ in methods]
    return words if len({*words}) == len({*names}) else names


def _part(part: str, record: Record) -> str:
    """Return words for a strategy, an optimizer, or a compressor and the scheme of its messages."""
    scheme, plus, compressor = part.rpartition(" + ")
    if plus:
        return f"{title_of(compressor)} over {title_of(scheme)}"
    system = record.system or ""
    if system and part.startswith(system):
        part = (record.strategy or "") + part.removeprefix(system)
    return title_of(part, system if parts(part)[0] == record.strategy else "")


def title_of(label: str, system: str = "") -> str:
    """Return the literature's name of a suite's object, and its settings in words; ``system``: of a strategy."""
    head, settings = parts(label)
    nested = [f"{title_of(settings.pop(key))} {level}" for key, level in NESTED.items() if key in settings]
    words = [_setting(key, value) for key, value in settings.items() if not (system and key.startswith(IMPLIED))]
    words += [f"({', '.join(nested)})"] if nested else []
    return " ".join(filter(None, (system or TITLES.get(head, head.replace("_", " ")), *words)))


def _setting(key: str, value: str) -> str:
    if whole := SETTINGS.get(f"{key}={value}"):
        return whole
    if value in {"True", "False"}:
        return f"{'with' if value == 'True' else 'without'} {key.replace('_', ' ')}"
    if key == "density":
        value = f"{100 * float(value):.3g}"
    elif key.endswith("_bytes"):
        value = volume(int(value))
    value = value.strip("[]").replace(", ", " x ").replace("_", " ")
    return SETTINGS.get(key, f"with {key.replace('_', ' ')} {{}}").format(value)


def link_title(name: str) -> str:
    """Return words for the links of a simulated network: "10 Gbit/s Ethernet", "links of 1 Gbit/s and 50 ms"."""
    for pattern, words in LINKS.items():
        if link := re.fullmatch(pattern, name.upper()):
            return link.expand(words)
    return name


def without_settings(model: str) -> str:
    """Return a network without its settings; a table of layers keeps its file, which names it."""
    head, given = parts(model)
    return f"{head}(path={given['path']})" if head == "layers" and "path" in given else head


def network_name(model: str) -> str:
    """Return the name of a network in the literature, with its settings in words; ``model`` if it has none."""
    head, given = parts(model)
    if head == "layers" and "path" in given:
        return Path(given["path"]).stem
    with suppress(ValueError):  # a network of another program
        if name := registry.title("models", head):
            words = [f"{value} {key}" if key.endswith("s") else f"{key} {value}" for key, value in given.items()]
            return f"{name} with {' and '.join(words)}" if words else name
    return model


def where(record: Record) -> str:
    """Return model, ranks, network and straggler of a case, for the end of a sentence: " (LeNet-5, 4 ranks)"."""
    model, ranks = network_name(without_settings(record.model or "")), plural(record.ranks, "rank")
    words = (model, ranks, link_title(record.network or ""), slowed(record.straggler or ""))
    return f" ({', '.join(filter(None, words))})"


def slowed(straggler: str) -> str:
    """Return words for a straggler: "rank 3 at 1/5 of its speed" for "rank 3 5x slower".

    A pause replaces the computing of its rank; a rank with a pause of 0 does not compute.
    """
    if by_rank := re.fullmatch(r"every rank pauses ([\d.]+(?:/[\d.]+)+) s", straggler):
        times = [*map(float, by_rank[1].split("/"))]
        usual = min(filter(None, times))
        slow = [(rank, time / usual) for rank, time in enumerate(times) if time > usual]
        words = [f"rank {rank} at 1/{factor:g} of its speed" for rank, factor in slow]
        return listed(words) or "equally fast ranks"
    pauses = re.sub("every rank pauses (.*) in (.*) of its", r"pauses of \1 in \2 of every rank's", straggler)
    return re.sub(r"(\d+)x slower", r"at 1/\1 of its speed", pauses)


def points_in_words(change: Interval) -> str:
    """Return a change of accuracy (percentage points) with its interval if it has one; a dash if it is unknown."""
    if math.isnan(change.value):
        return NONE
    value, low, high = (f"{round(bound, 1) + 0.0:+.1f}" for bound in change)  # without "-0.0"
    return f"{value} percentage points" + ("" if math.isnan(change.low) else f" ({low} to {high})")


def loss_in_words(change: Interval) -> str:
    """Return a small loss of accuracy, given as a change (percentage points), with the most that it may be."""
    loss, most = -change.value, -change.low
    if most <= 0:
        return "no accuracy"
    size = f"{most:.1f}" if most >= 0.1 else f"{most:.2f}"
    if loss < 0.05:
        return f"at most {size} percentage points of accuracy (95 %)"
    return f"{loss:.1f} percentage points of accuracy (95 %: at most {size})"


def capital(text: str) -> str:
    """Return ``text`` with a capital letter at its beginning."""
    return text[:1].upper() + text[1:]


def run_names(paths: Sequence[Path]) -> list[str]:
    """Return the names of run folders, each with as many parent folders as tell it from the others.

    Raises ValueError for a run that is given twice.
    """
    folders = [path.parent if path.name == "run.h5" else path for path in (path.resolve() for path in paths)]
    if len(set(folders)) < len(folders):
        twice = next(path for path, folder in zip(paths, folders, strict=True) if folders.count(folder) > 1)
        raise ValueError(f"{twice}: the run is given more than once")
    lengthened = (["/".join(folder.parts[-depth:]) for folder in folders] for depth in count(1))
    return next(names for names in lengthened if len(set(names)) == len(names))  # whole paths differ


def several(names: Sequence[str]) -> str:
    """Return the names as a list in words; of more than two the first two, and the number of others."""
    comma = "; " if any(", " in name for name in names) else ", "
    if len(names) > 2:
        names = [*names[:2], plural(len(names) - 2, "other")]
    return " and ".join([*filter(None, [comma.join(names[:-1])]), *names[-1:]]) or NONE


def scheme_name(record: Record) -> str:
    """The aggregation, with its compression where there is one; that alone where a strategy moves its messages."""
    aggregation, compression = record.aggregation or "none", record.compression or "none"
    name = {ANY: "any scheme", BY_STRATEGY: ""}.get(aggregation, aggregation)
    return name if compression == "none" else f"{name} + {compression}".removeprefix(" + ")


class Names:
    """Names for the methods of one table.

    A strategy has the literature's name, as in sentences, if it is one on all numbers of ranks; anything else is
    called as in its suite. Of settings only those are named that differ between strategies, or optimizers, of the
    same name; settings that follow from the named ones are left out.
    """

    def __init__(self, cases: Iterable[Record]) -> None:
        self._cases = list(cases)
        self._brief = {
            "training": _brief(self._strategies()),
            **{field: _brief(self._parts(field)) for field in ("parallelism", "optimizer", "schedule")},
            "learning_rate": {rate: f"rate {rate}" for rate in self._all("learning_rate")},
            "tuning_like": {text: f"rate of {text}" if text else "" for text in self._all("tuning_like")},
            "tuning": {text: plural(int(text), "trial") if text else "not tuned" for text in self._all("tuning")},
        }
        self._brief["parallelism"][""] = "data-parallel"
        for name in columns_with("method"):
            if name not in {*self._brief, "aggregation", "compression"}:
                self._brief[name] = {text: f"{name} {text}" if text else "" for text in self._all(name)}
        self._next: dict[tuple[str, ...], set[str]] = {}
        """Texts of a field of the cases with these texts in the fields before it."""
        summed = [case for case in self._cases if case.ranks != 1 and case.aggregation != BY_STRATEGY]
        self._has_several_schemes = len({*map(scheme_name, summed)}) > 1
        self._schemes: dict[tuple[str, bool], set[str]] = {}
        """Schemes by strategy, and whether on one rank, where they count only if there are no others."""
        for case in self._cases:
            texts = self._texts(case)
            for place, text in enumerate(texts):
                self._next.setdefault(texts[:place], set()).add(text)
            self._schemes.setdefault((texts[0], case.ranks == 1), set()).add(scheme_name(case))

    def __call__(self, case: Record) -> str:
        """Return the fields in which ``case`` differs from the others, else its aggregation or strategy."""
        texts, words = self._texts(case), list[str]()
        schemes = self._schemes.get((texts[0], False)) or self._schemes.get((texts[0], True), set())
        for place, (field, brief) in enumerate(self._brief.items()):
            is_said = field == "tuning_like" and any(word.startswith("rate ") for word in words)
            if len(self._next.get(texts[:place], ())) > 1 and not is_said:
                words.append(brief.get(texts[place], ""))
            told = any(word.endswith("backward") for word in words) or case.compression not in {None, "none"}
            if field == "training" and (len(schemes) > 1 or (told and words and self._has_several_schemes)):
                words.append(scheme_name(case))
                words.sort(key=lambda word: word.endswith("backward"))  # "ring, one sum after backward"
        words = [*filter(None, words)]
        if all(word.startswith("rate of ") for word in words):
            words.insert(0, scheme_name(case) or self._brief["training"].get(texts[0], ""))
        return ", ".join(words)

    @property
    def common(self) -> dict[str, str]:
        """Fields that all cases share and no name has, in words."""
        shared = {name: self._all(name).pop() for name in self._brief if len(self._all(name)) == 1}
        nouns = {"schedule": "schedule", "learning_rate": "learning rate", "tuning": "tuning trials"}
        shared |= {name: f"{noun} {shared[name]}" for name, noun in nouns.items() if shared.get(name)}
        summed = all(case.aggregation != BY_STRATEGY for case in self._cases)
        schemes = {*map(scheme_name, [case for case in self._cases if case.ranks != 1] or self._cases)}
        if len(shared) < len(self._brief) and len(schemes) == 1 and summed:
            shared["aggregation"] = f"aggregation {schemes.pop()}"
        return shared

    def _all(self, field: str) -> list[str]:
        return list(dict.fromkeys(text_of(case, field) for case in self._cases))

    def _parts(self, field: str) -> dict[str, tuple[str, dict[str, str]]]:
        return {label: parts(label) for label in self._all(field)}

    def _strategies(self) -> dict[str, tuple[str, dict[str, str]]]:
        """Return name and settings by label; the literature's name has those settings that it does not imply."""
        systems = group_by_key((text_of(case, "training"), case.system or "") for case in self._cases)
        named = plain = self._parts("training")
        for label, (_, settings) in plain.items():
            if len({*systems[label]}) == 1 and (system := min(systems[label])):
                named = named | {label: (system, {k: v for k, v in settings.items() if not k.startswith(IMPLIED)})}
        return named if len({*map(str, named.values())}) == len(named) else plain

    def _texts(self, case: Record) -> tuple[str, ...]:
        return tuple(text_of(case, field) for field in self._brief)


def text_of(case: Record, field: str) -> str:
    """A column in words, of a case that was tuned by a grid the rate that it found; empty where there is none."""
    value = case.stated(field)
    if case.tuning_trials and (case.tuned or "").startswith(f"{field}="):
        return str(case.tuned).partition("=")[2]
    return f"{value:g}" if isinstance(value, float) else str(value or "")


def _brief(known: Mapping[str, tuple[str, dict[str, str]]]) -> dict[str, str]:
    """Return by label its name, with the settings in which it differs from others of the same name.

    ``scale_rate`` is named although all have it: a remedy for stale gradients, as much as the strategy.
    """
    names = {}
    for label, (head, settings) in known.items():
        alike = [others for name, others in known.values() if name == head]
        keys = dict.fromkeys(key for others in alike for key in others if key in settings)
        differing = [key for key in keys if key == "scale_rate" or len({others.get(key) for others in alike}) > 1]
        stated = ",".join(f"{key}={settings[key]}" for key in differing)
        names[label] = f"{head}({stated})" if stated else head
        size = settings["bucket_bytes"] if "bucket_bytes" in differing else ""
        if head == "synchronous" and any("bucket_bytes" in others for others in alike) and len(alike) > 1:
            buckets = f"buckets of {volume(int(size))}" if size.isdecimal() else "buckets"
            names[label] = "one sum after backward" if size == "0" else f"{buckets} during backward"
    return names
