"""Suite files made by changing a few keys of one that is right."""

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
    "replay": {"kind": "replay", "model": "lenet5", "flops": 1e9, "ranks": 2, "batch_per_rank": 8},
}


class Verbatim(str):
    """TOML that Python has no short way of writing."""

    __slots__ = ()


def toml(value):
    if isinstance(value, Verbatim):
        return str(value)
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
    """written(kind, key=value, ...): the text of a suite of one case; None takes a key away."""

    def write(kind="train", /, **changed):
        table = {**CASES[kind], **changed}
        return text_of({key: value for key, value in table.items() if value is not None})

    return write


@pytest.fixture
def parsed(written):
    """The cases of that text."""
    return lambda *args, overrides=(), **changed: suite.parse(written(*args, **changed), "s.toml", overrides).cases


@pytest.fixture
def refused():
    """refused(text): the message with which a suite is turned down, without the file's name."""

    def refuse(text, overrides=()):
        with pytest.raises(suite.UsageError) as caught:
            suite.parse(text, "s.toml", overrides)
        message = str(caught.value)
        assert "\n" not in message
        return message.removeprefix("s.toml: ")

    return refuse
