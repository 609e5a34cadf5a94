"""Checks of a case before it runs: rows that have the key of a message, and the reason against a case.

``CHECKS`` of a kind has its rows in order. :func:`refusals` reads them, and the first one that refuses a case ends
the run with one line, ``key: reason``. :data:`ROWS` has the pairs of features that a case cannot have together: a
feature is a property of a case, or one that a named object declares in its traits. ``hpcdl list combinations``
prints this table.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import starmap
from math import inf
from typing import Any, Final, TypeAlias

from hpcdl import registry
from hpcdl.aggregation.parts.traits import ALLTOALLV, Aggregation, phases
from hpcdl.cases.keys.compute_times import TIMES
from hpcdl.cases.keys.key import FAULTS, keys
from hpcdl.cases.keys.scheme import traits_of
from hpcdl.data.parts.dataset import MissingDatasetError
from hpcdl.fabric.comm import INPUT
from hpcdl.fabric.network import NETWORKS, Wiring
from hpcdl.launch.machine import node_memory_bytes, shortage
from hpcdl.nn.geometry import HALF
from hpcdl.registry import nearest
from hpcdl.training.parts.plan import readable


class Setup:
    """A case that is checked; keys that its kind does not have are None."""

    def __init__(self, kind: str, spec: Any, given: Collection[str] = (), *, elsewhere: bool = False) -> None:
        self.kind, self.spec, self.given, self.elsewhere = kind, spec, given, elsewhere
        self.wrong: object = None

    def __getattr__(self, name: str) -> Any:
        spec = type(self.spec)
        return getattr(self.spec, name) if name in keys(spec) or hasattr(spec, name) else None

    def __getitem__(self, name: str) -> Any:
        return getattr(self, name)

    @cached_property
    def scheme(self) -> Aggregation | None:
        """Traits of the aggregation; None if the case has none."""
        uses = self.strategy is None or self.strategy.aggregates
        return traits_of(self.aggregation) if uses and self.aggregation else None

    @property
    def on_host(self) -> bool:
        """True if gradients are in the host's memory."""
        return self.kernels is None or bool(self.kernels.on_host)

    def exchanges(self, scheme: Aggregation) -> bool:
        """Return True if a scheme can exchange what the case's compressor makes."""
        if self.plan.kind == "vectors":
            return scheme.sums and not scheme.sparse
        messages = scheme.gathers or (self.plan.traits.both_ways and scheme.servers is not None)
        return messages or (self.plan.kind == "entries" and scheme.sparse)


@dataclass(frozen=True)
class Feature:
    """Property of a case."""

    text: str
    holds: Callable[[Setup], Any]
    key: str = ""
    """Key whose value a message shows instead of the text."""

    def shown(self, case: Setup) -> str:
        """Return the feature in a message."""
        value = getattr(case, self.key) if self.key else None
        return self.text if value is None else f"{self.key} {getattr(value, 'name', value)!r}"


@dataclass(frozen=True)
class Row:
    """Two features that exclude each other."""

    key: str
    """Key that the message is about."""
    feature: Feature
    other: Feature
    reason: str
    remedy: str = ""
    """If empty: choose an object without the other feature."""

    @property
    def advice(self) -> str:
        """The remedy, for any case."""
        key = self.other.key or self.key
        return self.remedy or f"choose another {'strategy' if key == 'training' else key}"

    def refusal(self, case: Setup) -> str:
        """Return the reason against a case that has both features; empty for others."""
        if not (self.feature.holds(case) and self.other.holds(case)):
            return ""
        first = self.feature.shown(case).removeprefix(f"{self.key} ").replace(f"the key {self.key}", "this key")
        return f"{self.key}: {first} cannot be used with {self.other.shown(case)}: {self.reason}; {self.advice}"


@dataclass(frozen=True)
class Check:
    """A condition that a case must meet; key and reason may name its values, as ``{ranks}`` or ``{data.name}``."""

    key: str
    """Key that the message is about."""
    wrong: Callable[[Setup], object]
    """Is false for a case that can run. An exception refuses a case with its own message."""
    reason: str = "{wrong}"
    """By default what ``wrong`` returns."""
    of: str = ""
    """Value without which a case meets the condition; by default that of the key, its first word, if it is one."""

    def refusal(self, case: Setup) -> str:
        """Return the reason against a case, led by the key; empty if it can run."""
        value = self.of or self.key.partition(":")[0]
        if value.isidentifier() and not case[value]:
            return ""
        try:
            case.wrong = self.wrong(case)
        except FAULTS as error:
            if case.elsewhere and isinstance(error, MissingDatasetError):
                raise
            reason = str(error) or type(error).__name__
        else:
            reason = self.reason.format_map(case) if case.wrong else ""
        return f"{self.key.format_map(case)}: {reason}" if reason else ""


Rows: TypeAlias = Sequence[Check | Row]


def refusals(
    rows: Rows, kind: str, spec: Any, given: Collection[str] = (), *, elsewhere: bool = False
) -> Iterator[str]:
    """Yield a message, led by a key, of each row that refuses a case; ``given``: keys in the suite.

    ``elsewhere``: it runs on another machine, which may have a dataset that is missing here.
    """
    case = Setup(kind, spec, given, elsewhere=elsewhere)
    for row in rows:
        with suppress(MissingDatasetError) if elsewhere else nullcontext():  # it may be right where its data are
            if reason := row.refusal(case):
                yield reason


def makes(key: str, name: str) -> Check:
    """Return the check that the property ``name`` of a case, made of a key, raises nothing."""
    return Check(key, lambda case: case[name] and None, of="ranks")


def once(key: str, other: str) -> Check:
    """Return the check that a case has one of two keys."""
    reason = f"give exactly one of {key} and {other}"
    return Check(key, lambda case: (case[key] is None) == (case[other] is None), reason, "ranks")


def too_large(size: int) -> str | None:
    """Return a line if ``size`` bytes exceed the memory of a node; None if they fit."""
    return shortage(size, 1, node_memory_bytes())


def _hosts(case: Setup) -> None:
    if case.cluster.topology is not None:
        Wiring(case.cluster, case.ranks)


CLUSTER: Final = (
    Check("topology", lambda case: _hosts(case) if case.network else None),
    Check("ranks", _hosts, of="network"),
)
"""Hosts of a simulated case hold its ranks."""


def _pause(case: Setup) -> object:
    slow = case.straggler
    slow.check(case.ranks)
    way, _, name = slow.at.partition(" ")
    if way not in (INPUT, "forward", "backward") or slow.at == f"{INPUT} {name}":
        return f"at: {slow.at!r} is neither input nor forward or backward, nor that of a layer"
    group = case.group_ranks
    places = [slow.rank % group] if isinstance(slow.rank, int) else range(group)
    parts = [case.divisions[at].parts if case.divisions else case.layers[case.parts[at]] for at in places]
    names = [layer.name for part in parts for layer in part]
    return slow.at != way and name not in names and f"at: the rank has no layer {name!r}{nearest(name, names)}"


STRAGGLER: Final = Check("straggler", _pause)
"""A straggler is a rank of the case, and pauses before work that it has."""

STAGES: Final = (
    Check(
        "training: microbatches",
        lambda case: case.microbatches > case.fewest_images,
        "must be at most {fewest_images}, the images of a batch, not {microbatches}",
    ),
    Check(
        "mesh",
        lambda case: case.stages > (layers := len(case.layers)) and f"{layers} layers, too few for {case.stages}",
        "{model} has {wrong} stages",
        of="ranks",
    ),
    Check("mesh", lambda case: case.mesh.check_divisions(case.layers, case.shape, case.ranks)),
)
"""Every stage has images and layers, and the layers can be split."""


def _declared(folder: str, noun: str, text: str, has: Callable[[Any], Any]) -> Feature:
    """Return the feature of a case whose strategy, aggregation or compressor has such traits."""

    def holds(case: Setup) -> bool:
        if folder == "compression":
            return case.plan is not None and bool(has(case.plan.traits))
        traits = case.strategy if folder == "training" else case.scheme
        return traits is not None and bool(has(traits))

    return Feature(f"{noun} {text}", holds, folder)


def _given(key: str) -> Feature:
    """Return the feature of trainings that give a key."""
    return Feature(
        f"the key {key}", lambda case: case.kind == "train" and key in case.given and getattr(case, key)
    )


def _changed(kind: str, key: str) -> Feature:
    """Return the feature of cases of a kind that do not have the default of a key."""
    return Feature(
        f"the key {key}",
        lambda case: case.kind == kind and getattr(case, key) != keys(type(case.spec))[key].default,
    )


def _product(kind: str) -> Feature:
    """Return the feature of cases whose compressor makes vectors, entries or messages."""
    return Feature(f"a compressor of {kind}", lambda case: case.plan and case.plan.kind == kind, "compression")


strategy = partial(_declared, "training", "a strategy")
aggregation = partial(_declared, "aggregation", "an aggregation")
compressor = partial(_declared, "compression", "a compressor")

TRAINING: Final = Feature("a training", lambda case: case.kind == "train")
REPLAY: Final = Feature("a replay", lambda case: case.kind == "replay")
SIMULATED_REPLAY: Final = Feature("a simulated replay", lambda case: case.kind == "replay" and case.network)
COMPRESSED_REPLAY: Final = Feature("a compressed replay", lambda case: case.kind == "replay" and case.plan)
PLAYED: Final = Feature("a compressed replay", lambda case: COMPRESSED_REPLAY.holds(case) and not case.network)
COUNTED: Final = Feature("an alltoallv", lambda case: case.collective == ALLTOALLV, "collective")
OUT_OF_PLACE: Final = _changed("collective", "placement")
SIMULATED_LIBRARY: Final = Feature(
    "a simulated library", lambda case: case.network and case.scheme and case.scheme.native, "aggregation"
)
COLLECTIVE: Final = Feature("a collective", lambda case: case.kind == "collective")
SIMULATED: Final = Feature("a simulated case", lambda case: case.network, "network")
TOPOLOGY_KEY: Final = Feature("the key topology", lambda case: case.topology is not None)
TOPOLOGY: Final = Feature(
    "a topology", lambda case: case.network and (case.topology or NETWORKS[case.network].topology), "topology"
)
MEASURED: Final = Feature("a measured case", lambda case: not case.network)
ALTERNATING: Final = Feature("trace alternating", lambda case: case.trace == "alternating", "trace")
NO_TARGET: Final = Feature("no target_accuracy", lambda case: case.target_accuracy is None)
HOSTS: Final = Feature(
    "ranks on several hosts", lambda case: case.network and (case.ranks_per_host or 1) < case.ranks
)

TABLE: Final = Feature("a model of sizes alone", lambda case: case.table, "model")
DATASET: Final = Feature("the key dataset", lambda case: case.kind == "replay" and case.dataset)
SHARES, FAILURE = _given("shares"), _given("failure")
SHARPNESS: Final = _changed("train", "sharpness")
QUANTIZATION, PRUNING = _given("quantization"), _given("pruning")
PRUNING_LATER: Final = Feature(
    "pruning after steps", lambda case: PRUNING.holds(case) and case.pruning.after_steps
)
MODEL: Final = Feature("model parallelism", lambda case: (case.model_ranks or 1) > 1)
ONE_GROUP: Final = Feature("a single model group", lambda case: MODEL.holds(case) and case.replicas == 1)
MESH: Final = Feature("a mesh of model groups", lambda case: case.mesh is not None and case.stages == 1)
PIPELINE: Final = Feature("stages of a pipeline", lambda case: (case.stages or 1) > 1)
ANY_MESH: Final = Feature("a mesh", lambda case: case.mesh is not None)
HOST: Final = Feature("a backend on the host", lambda case: case.on_host, "backend")
DEVICE: Final = Feature("a backend on a device", lambda case: not case.on_host, "backend")
FLOAT16: Final = Feature("float16", lambda case: case.dtype == "float16", "dtype")
HALF_PRECISION: Final = Feature("16-bit precision", lambda case: case.dtype in HALF, "dtype")
BY_TENSOR: Final = Feature(
    "an optimizer with a rate for each tensor",
    lambda case: case.optimizer and getattr(case.optimizer.find(), "whole_tensors", False),
    "optimizer",
)
SHARDS: Final = Feature(
    "parameters divided among servers",
    lambda case: case.strategy and case.strategy.shards(case.training.in_full) > 1,
)
UPDATING: Final = Feature(
    "a server that updates layers",
    lambda case: case.strategy and case.strategy.server_updates(case.training.in_full),
)
MOMENTUM: Final = Feature(
    "a momentum of the optimizer", lambda case: case.optimizer and case.optimizer.in_full.get("momentum")
)

LOOSE: Final = strategy("without equal steps", lambda traits: not (traits.lockstep or traits.periodic))
PERIODIC: Final = strategy("that sums changes of parameters", lambda traits: traits.periodic)
UNSCALED: Final = strategy("without loss scaling", lambda traits: not traits.scales_loss)
OWN_OPTIMIZER: Final = strategy("with an optimizer of its own", lambda traits: traits.optimizer)
UNWEIGHTED: Final = strategy("that counts all ranks alike", lambda traits: not traits.weighs_images)
NO_COMMON_STEP: Final = strategy("without common steps", lambda traits: not traits.stops_at_target)
OWN_MESSAGES: Final = strategy("with messages of its own", lambda traits: not traits.aggregates)
ALL_RANKS: Final = strategy("that needs all ranks", lambda traits: traits.may_fail is None)
WHOLE_LAYERS: Final = strategy("that splits no layers", lambda traits: not traits.splits_layers)
ONE_STAGE: Final = strategy("without stages", lambda traits: not traits.pipelines)
DENSE: Final = strategy("that compresses nothing", lambda traits: not traits.compresses)
SHARDED: Final = strategy("that shards state", lambda traits: traits.shards_state)
HYBRID: Final = Feature(
    "the key training.ranks_per_node",
    lambda case: SHARDED.holds(case) and case.training.in_full.get("ranks_per_node"),
)
BUCKETS: Final = Feature(
    "a strategy that sums buckets at the same time",
    lambda case: case.training and "bucket_bytes" in registry.settings_of(case.training.find()),
    "training",
)

SUMS_NOTHING: Final = aggregation("that sums nothing", lambda traits: not traits.sums)
NATIVE: Final = aggregation("by the library", lambda traits: traits.native)
ADAPTIVE: Final = aggregation("chosen at run time", lambda traits: traits.adaptive)
LIBRARY: Final = aggregation("that may be the library's", lambda traits: traits.native or traits.adaptive)
NO_HALVES: Final = Feature(
    "an aggregation without a reduce and a broadcast",
    lambda case: (
        case.scheme and (case.scheme.native or not phases(case.aggregation.find(), "reduce", "broadcast"))
    ),
    "aggregation",
)
NO_PARTS: Final = Feature(
    "an aggregation without a reduce-scatter and an allgather",
    lambda case: case.scheme and not phases(case.aggregation.find(), "reduce_scatter", "allgather"),
    "aggregation",
)
COMPOSITE: Final = aggregation("composed of the library's", lambda traits: traits.composite and traits.native)
SPARSE: Final = aggregation("of entries", lambda traits: traits.sparse)
ON_HOST: Final = aggregation("in the host's memory", lambda traits: traits.memory == "host")
ON_GPUS: Final = aggregation("on GPUs", lambda traits: traits.memory == "device")
ONE_HOST: Final = aggregation("for one host", lambda traits: traits.one_host)

COMPRESSION: Final = Feature("compression", lambda case: case.plan, "compression")
NO_COMPRESSION: Final = Feature("dense gradients", lambda case: not case.plan)
PAIRS: Final = Feature(
    "compressed messages between two ranks", lambda case: case.plan and not case.strategy.aggregates
)
HOST_COMPRESSOR: Final = compressor("on the host", lambda traits: not traits.on_device)
OWN_MOMENTUM: Final = compressor("with a momentum of its own", lambda traits: traits.own_momentum)
OWN_TYPE: Final = compressor("of vectors of its own type", lambda traits: traits.own_sums)
WAITING_SUMS: Final = compressor("whose sums wait for others", lambda traits: traits.dependent_sums)
OWN_REST: Final = compressor("that holds itself what is not sent", lambda traits: traits.own_residual)
NO_ZEROS: Final = compressor("that sends no zeros", lambda traits: not traits.sends_zeros)
MATRICES: Final = compressor("of matrices", lambda traits: traits.whole_tensors)
NEVER_COMPRESSED: Final = Feature(
    "warmup_steps for the whole training",
    lambda case: case.plan and case.plan.settings.warmup_steps >= (case.planned_steps or inf),
)
VECTORS, ENTRIES, MESSAGES = (_product(kind) for kind in ("vectors", "entries", "messages"))
OTHER_PRODUCT: Final = Feature(
    "an aggregation that cannot exchange them",
    lambda case: case.plan and case.scheme and not case.exchanges(case.scheme),
    "aggregation",
)
NEEDS_SUMS: Final = Feature(
    "a compressor that needs sums over all ranks",
    lambda case: case.plan and not readable(case.plan.make),
    "compression",
)
READ_BY_ONE: Final = Feature("messages between two ranks", lambda case: not case.strategy.aggregates, "training")
CODE: Final = Feature("a code of positions", lambda case: case.plan and case.plan.settings.code)
NO_ENTRIES: Final = Feature(
    "a compressor that selects no entries", lambda case: case.plan.kind != "entries", "compression"
)
FEEDBACK: Final = Feature("error_feedback", lambda case: case.plan and case.plan.settings.error_feedback)

ORDER: Final = "ranks may begin the library's sums in different orders"
LEAVE: Final = "leave this key out"
LEAVE_ONE: Final = "leave one of the keys out"
ANOTHER: Final = "choose another scheme"
ON_NETWORK: Final = "name a network"

TUNED: Final = Feature("tuning", lambda case: case.tune is not None)
UNTESTED: Final = Feature("no validation set", lambda case: not case.validation)

ROWS: Final = (
    Row("model", TABLE, TRAINING, "its layers have no arithmetic", "replay or predict it"),
    Row("dataset", DATASET, TABLE, "its layers have sizes of their own", LEAVE),
    Row("mesh", MODEL, TABLE, "its layers have no shapes to split", "use data or pipeline"),
    Row("compression", MATRICES, TABLE, "its parameters have no rows and columns"),
    Row("training", REPLAY, LOOSE, "its messages do not depend on sizes alone"),
    Row("dtype", FLOAT16, UNSCALED, "float16 needs loss scaling", "use bfloat16 or float32"),
    Row("optimizer", _given("optimizer"), OWN_OPTIMIZER, "it has its own optimizer", LEAVE),
    Row("optimizer", BY_TENSOR, MODEL, "it needs whole tensors", "choose another optimizer"),
    Row("optimizer", BY_TENSOR, SHARDS, "it needs whole tensors", "servers must be 1"),
    Row("tune", TUNED, MEASURED, "trials run in virtual time", ON_NETWORK),
    Row(
        "tune",
        TUNED,
        UNTESTED,
        "the test set must choose nothing",
        "give validation, a share of the training images",
    ),
    Row("shares", SHARES, UNWEIGHTED, "it counts all ranks alike"),
    Row("shares", SHARES, MESH, "model groups have equal shares", LEAVE_ONE),
    Row("stop_at_target", _given("stop_at_target"), NO_COMMON_STEP, "ranks could not stop together", LEAVE),
    Row("aggregation", _given("aggregation"), OWN_MESSAGES, "it moves its messages itself", LEAVE),
    Row("failure", FAILURE, ALL_RANKS, "it does not go on when a rank fails"),
    Row("failure", FAILURE, MODEL, "a model group does not go on when a rank fails", LEAVE_ONE),
    Row("mesh", MESH, WHOLE_LAYERS, "it does not split layers among ranks"),
    Row("mesh", PIPELINE, ONE_STAGE, "it has all layers on every rank"),
    Row("mesh", SUMS_NOTHING, MODEL, "ranks of a group share parameters", "choose one that sums"),
    Row("mesh", NATIVE, MODEL, f"{ORDER}, of parts and of whole layers", ANOTHER),
    Row("mesh", ADAPTIVE, PIPELINE, "it measures sums over all ranks", ANOTHER),
    Row("mesh", PAIRS, MODEL, "messages of model groups are not compressed", LEAVE_ONE),
    Row("mesh", COMPRESSION, ONE_GROUP, "one group sums nothing", "data must be at least 2"),
    Row("mesh", HALF_PRECISION, MODEL, "gradients of activations are summed over ranks", "use float32"),
    Row("mesh", QUANTIZATION, MODEL, "it needs layers that are whole on every rank", LEAVE_ONE),
    Row("mesh", PRUNING, MODEL, "it needs layers that are whole on every rank", LEAVE_ONE),
    Row("quantization", QUANTIZATION, DEVICE, "it is done in the host's memory", "choose a backend on the host"),
    Row("sharpness", SHARPNESS, QUANTIZATION, "rounded weights have no derivatives", LEAVE_ONE),
    Row("sharpness", SHARPNESS, ANY_MESH, "one rank computes it, with all layers", LEAVE_ONE),
    Row("sharpness", SHARPNESS, PRUNING, "pruned weights would vary", LEAVE_ONE),
    Row("pruning", PRUNING, NO_ZEROS, "pruned weights would change"),
    Row("pruning", PRUNING_LATER, LOOSE, "its ranks would prune different weights", "prune at the start"),
    Row("pruning", PRUNING_LATER, PERIODIC, "its ranks would prune different weights", "prune at the start"),
    Row("pruning", PRUNING, DEVICE, "it is done in the host's memory", "choose a backend on the host"),
    Row("aggregation", SUMS_NOTHING, COLLECTIVE, "there is nothing to time", "choose one that sums"),
    Row(
        "aggregation",
        SPARSE,
        NO_COMPRESSION,
        "it sums entries that a compressor selects",
        "name such a compressor",
    ),
    Row("aggregation", ON_HOST, DEVICE, "it sums in the host's memory", ANOTHER),
    Row("aggregation", ON_GPUS, HOST, "it sums vectors on GPUs", ANOTHER),
    *(
        Row(key, feature, UPDATING, "the server sums dense gradients of whole layers", "leave updates out")
        for key, feature in {"compression": COMPRESSION, "mesh": MODEL, "dtype": FLOAT16}.items()
    ),
    Row("training", UPDATING, NO_HALVES, "the server sums and broadcasts", "choose a tree, chain or server"),
    Row(
        "aggregation",
        NO_PARTS,
        SHARDED,
        "each rank needs the sum of its part only",
        "choose ring or halving_doubling",
    ),
    Row("aggregation", NATIVE, HYBRID, ORDER, ANOTHER),
    Row("aggregation", ONE_HOST, HOSTS, "its ranks share memory", f"raise ranks_per_host, or {ANOTHER}"),
    Row("aggregation", COMPOSITE, BUCKETS, ORDER, ANOTHER),
    Row("compression", COMPRESSION, DENSE, "it compresses nothing"),
    Row("compression", PAIRS, REPLAY, "replays compress sums only", "choose a strategy that sums"),
    Row("compression", COMPRESSED_REPLAY, ANY_MESH, "replays compress no gradients of meshes", LEAVE_ONE),
    Row("compression", PLAYED, PERIODIC, "a replay changes no parameters", ON_NETWORK),
    Row("compression", HOST_COMPRESSOR, DEVICE, "it computes in the host's memory"),
    Row("compression", PAIRS, DEVICE, "they are compressed on the host only", "choose a strategy that sums"),
    Row("compression", COMPRESSION, FLOAT16, "scaled gradients may overflow, and cannot be sent", "use bfloat16"),
    Row("compression", OWN_MOMENTUM, MOMENTUM, "there would be two momenta", "set that of the optimizer to 0"),
    Row("compression", COMPRESSION, SUMS_NOTHING, "it exchanges nothing", "choose one that sums"),
    Row("compression", COMPRESSION, NEVER_COMPRESSED, "it compresses nothing", "lower warmup_steps"),
    Row("compression", VECTORS, OTHER_PRODUCT, "it exchanges no vectors"),
    Row("compression", ENTRIES, OTHER_PRODUCT, "it exchanges no entries"),
    Row("compression", MESSAGES, OTHER_PRODUCT, "it exchanges no messages"),
    Row("compression", OWN_TYPE, LIBRARY, "no library sums its type", ANOTHER),
    Row("compression", WAITING_SUMS, NATIVE, ORDER, ANOTHER),
    Row("compression", NEEDS_SUMS, READ_BY_ONE, "a receiver could not read its messages"),
    Row("compression", CODE, NO_ENTRIES, "a code shortens positions of entries", "leave code out"),
    Row("compression", CODE, SPARSE, "it sums positions and values, not messages in a code", "leave code out"),
    Row("compression", FEEDBACK, OWN_REST, "it holds itself what is not sent", "leave error_feedback out"),
    Row("stop_at_target", _given("stop_at_target"), NO_TARGET, "it never stops", "give target_accuracy"),
    Row(
        "trace",
        ALTERNATING,
        SIMULATED,
        "it compares steps with and without a trace, which take equally long there",
        "use events or steps",
    ),
    *(
        Row(key, _changed("collective", key), SIMULATED, "it goes with measured cases", LEAVE)
        for key in ("backend", "start", "placement", "straggler", "threads")
    ),
    Row("topology", TOPOLOGY_KEY, MEASURED, "it is for simulated cases", ON_NETWORK),
    Row("aggregation", NATIVE, TOPOLOGY, "its time is a formula that knows no links", ANOTHER),
    Row("failure", FAILURE, TOPOLOGY, "messages under way do not end with their rank", LEAVE_ONE),
    *(
        Row(key, _changed("train", key), MEASURED, "it is for simulated cases", ON_NETWORK)
        for key in (*TIMES, "jitter", "ranks_per_host")
    ),
    Row("aggregation", ADAPTIVE, SIMULATED_REPLAY, "it is chosen by measured times", ANOTHER),
    Row("ranks_per_host", _changed("replay", "ranks_per_host"), MEASURED, "it is for simulated cases", ON_NETWORK),
)
"""The table. The first row that a case meets refuses it."""

CHECKED_PAIRS: Final[Rows] = (
    *starmap(makes, (("model", "layers"), ("aggregation", "scheme"), ("compression", "plan"))),
    *ROWS,
)
"""The table, after the checks of what its features ask."""
