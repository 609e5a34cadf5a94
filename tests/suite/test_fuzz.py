"""Whatever is wrong in a suite is refused in one line, or the case can be built and recorded."""

import itertools
import random

import pytest

from hpcdl import registry, suite
from hpcdl.fabric.virtual.clocks import in_process
from hpcdl.optim.parts.schedules import SCHEDULES
from hpcdl.trace.recorder import Recorder
from hpcdl.training.parts.journal import Journal

from .conftest import CASES, text_of
from .test_expansion import ANOTHER, PARTNER, SIMULATED

EXTREMES = [
    *(float("nan"), float("inf"), -float("inf"), 1e308, -1e308, 1e-320, 5e-324, 0.0, -0.0, -1.5, 1e18),
    *(-1, 0, 1, 2**31, 2**53, 2**62, 2**63 - 1, 2**63, -(2**63), 10**23, 10**400),
    *("", "\0", "é", "ring:", True, [[]], [-1], [float("nan")], [2**63 - 1], {}, {"name": ""}),
]
FOLDERS = {"model": "models", "dataset": "datasets", "backend": "backends", "optimizer": "optim"}
TRIED = 400
"""Tables of each kind; tens of thousands exist."""


def objects(key):
    """Yield name and settings of every object that a key can have."""
    if key == "schedule":
        for name, function in SCHEDULES.items():
            yield name, [*(function.__kwdefaults__ or ()), "warmup", "warmup_steps", "warmup_from", "base_batch"]
    elif key in {*FOLDERS, "aggregation", "compression", "training"}:
        for name in registry.names(FOLDERS.get(key, key)):
            yield name, registry.settings_of(registry.find(FOLDERS.get(key, key), name))


def places(kind):
    """Yield each key with the table in which a setting is extreme, and that setting; None: the key itself is."""
    for key, value in ANOTHER[kind].items():
        yield key, {}, None
        if isinstance(value, dict):
            yield from ((key, value, setting) for setting in value)
        yield from ((key, {"name": name}, setting) for name, settings in objects(key) for setting in settings)


def build(case):
    """Build everything of a case before its first message."""
    case.module.program(case.spec, Journal(Recorder(), lambda: None))
    if case.kind == "train" and case.spec.data.name == "digits":

        async def close(comm):
            (await case.spec.session(comm, Journal(Recorder(), lambda: None), case.spec.kernels)).inputs.close()

        in_process(1).run(close)


@pytest.mark.parametrize("kind", CASES)
def test_an_extreme_setting_is_refused_in_one_line_or_can_be_built(kind):
    chance = random.Random(kind)
    strategies = [name for name, _ in objects("training")]
    for (key, table, setting), value in chance.choices([*itertools.product(places(kind), EXTREMES)], k=TRIED):
        usual = CASES[kind] | ({"training": chance.choice(strategies)} if "training" in ANOTHER[kind] else {})
        if kind in SIMULATED and chance.random() < 0.5:
            usual |= {"network": "gemini", "flops": 1e9} if kind != "collective" else {"network": "gemini"}
        usual.pop({**PARTNER, "global_batch": "batch_per_rank", "steps": "epochs"}.get(key), None)
        changed = usual | {key: value if setting is None else {**table, setting: value}}
        try:
            cases = suite.parse(text_of(changed), "s.toml").cases
        except suite.UsageError as error:
            message = str(error)
            assert message.startswith("s.toml: ") and "\n" not in message and len(message) < 500, changed
            assert any(word in message for word in (key, str(setting), *changed)), (changed, message)
            continue
        for case in cases:
            build(case)
            numbers = [field for field in case.fields().values() if isinstance(field, (int, float))]
            assert all(abs(number) < 2**63 for number in numbers), changed


def test_any_damage_to_a_file(written):
    """Bytes are deleted, doubled or exchanged; the file is still a suite, or is refused in one line."""
    chance = random.Random(1)
    whole = written("collective", network="gemini", aggregation=["ring", {"name": "tree", "arity": 3}])
    refusals = set()
    for _ in range(1000):
        letters = list(whole)
        for _ in range(chance.randint(1, 3)):
            place = chance.randrange(len(letters))
            letters[place] = chance.choice(["", letters[place] * 2, *'[]{}"=#.,\n1-\0'])
        try:
            suite.parse("".join(letters), "s.toml")
        except suite.UsageError as error:
            refusals.add(str(error))
    assert len(refusals) > 50
    assert not any("\n" in refusal for refusal in refusals)
