"""Make suites by changing keys of a valid one."""

import json

import pytest

from hpcdl import suite

CASES = {
    "train": {
        "kind": "train",
        "model": "lenet5",
        "dataset": "digits",
        "learning_rate": 0.1,
        "ranks": 2,
        "global_batch": 64,
        "steps": 3,
    },
    "collective": {"kind": "collective", "aggregation": "ring", "ranks": 2, "message_bytes": 64},
    "pairwise": {"kind": "pairwise", "message_bytes": 64},
    "node": {"kind": "node", "ranks": 2},
    "replay": {"kind": "replay", "model": "lenet5", "flops": 1e9, "ranks": 2, "batch_per_rank": 8},
}


def toml(value):
    if isinstance(value, list):
        return f"[{', '.join(map(toml, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{json.dumps(key)} = {toml(inner)}' for key, inner in value.items())}}}"
    return str(value) if isinstance(value, float) else json.dumps(value)


def text_of(*tables):
    cases = ("\n".join(["[[case]]", *(f"{key} = {toml(value)}" for key, value in one.items())]) for one in tables)
    return "\n".join(['[suite]\nname = "s"', *cases])


@pytest.fixture
def written():
    """Return written(kind, key=value, ...): the text of a suite with one case; None removes a key."""

    def write(kind="train", /, **changed):
        table = {**CASES[kind], **changed}
        return text_of({key: value for key, value in table.items() if value is not None})

    return write


@pytest.fixture
def parsed(written):
    """Return parsed(kind, ...): the cases of such a suite."""
    return lambda *args, overrides=(), **changed: suite.parse(written(*args, **changed), "s.toml", overrides).cases


@pytest.fixture
def refused():
    """Return refused(text): the error message of a suite, without the name of the file."""

    def refuse(text, overrides=()):
        with pytest.raises(suite.UsageError) as caught:
            suite.parse(text, "s.toml", overrides)
        message = str(caught.value)
        assert "\n" not in message
        return message.removeprefix("s.toml: ")

    return refuse
