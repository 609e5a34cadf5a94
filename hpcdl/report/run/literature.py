"""Names for sentences: methods and links as the literature writes them, settings in words.

Tables have settings as a suite writes them (:mod:`hpcdl.report.run.method_names`).
"""

import math
import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from hpcdl import registry
from hpcdl.analysis.run.record import Record
from hpcdl.analysis.statistics.estimates import Interval
from hpcdl.registry import parts
from hpcdl.report.formats.cells import NONE, listed, plural, volume

TITLES: Final = {
    **{key: key.upper().replace("_", "-") for key in ("ad_psgd", "d_psgd", "dgc", "lamb", "lars", "qsgd", "sgd")},
    **{key: key.capitalize() for key in ("adagrad", "adam")},
    **{key: key.replace("_", "-") for key in ("halving_doubling", "random_k", "top_k", "two_shot")},
    **{key: f"a {key.replace('_', ' ')}" for key in ("parameter_server", "ring", "tree")},
    "adamw": "AdamW",
    "allgather": "an allgather",
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
    "density": "at {} % of the entries",
    "graph": "on the {} graph",
    "n_fetch": "fetching every {} steps",
    "n_push": "pushing every {} steps",
    "oversubscription": "oversubscribed {} to 1",
    "period": "every {} steps",
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
    return words if len({*words}) == len(words) else [name for name, _ in methods]


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
    """Return words for a straggler: "rank 3 slowed 5 times" for "rank 3 5x slower".

    A pause replaces the computing of its rank; a rank with a pause of 0 does not compute.
    """
    if by_rank := re.fullmatch(r"every rank pauses ([\d.]+(?:/[\d.]+)+) s", straggler):
        times = [*map(float, by_rank[1].split("/"))]
        usual = min(filter(None, times))
        slow = [(rank, time / usual) for rank, time in enumerate(times) if time > usual]
        return listed([f"rank {rank} slowed {factor:g} times" for rank, factor in slow]) or "equally fast ranks"
    pauses = re.sub("every rank pauses (.*) in (.*) of its", r"pauses of \1 in \2 of every rank's", straggler)
    return re.sub(r"(\d+)x slower", r"slowed \1 times", pauses)


def points_in_words(change: Interval) -> str:
    """Return a change of accuracy (percentage points) with its interval if it has one; a dash if it is unknown."""
    if math.isnan(change.value):
        return NONE
    value, low, high = (f"{round(bound, 1) + 0.0:+.1f}" for bound in change)  # without "-0.0"
    return f"{value} percentage points" + ("" if math.isnan(change.low) else f" ({low} to {high})")


def capital(text: str) -> str:
    """Return ``text`` with a capital letter at its beginning."""
    return text[:1].upper() + text[1:]
