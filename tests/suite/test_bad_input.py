"""An error in a suite is one line with the file, the key and the nearest valid name."""

import h5py
import numpy as np
import pytest

from hpcdl import suite

WRONG_VALUES = [
    ("train", {"agregation": "ring"}, "agregation: unknown key; did you mean 'aggregation'?"),
    ("train", {"aggregation": "rign"}, "aggregation: unknown 'rign'; did you mean 'ring'?"),
    ("train", {"model": "lenet"}, "model: unknown 'lenet'; did you mean 'lenet5'?"),
    ("train", {"schedule": "polinomial"}, "schedule: unknown schedule 'polinomial'; did you mean 'polynomial'?"),
    ("train", {"backend": "cupy"}, "backend: CuPy is "),
    ("train", {"compression": {"name": "none", "warmup_steps": 2}}, "compression: 'none' has no setting"),
    (
        "train",
        {"compression": {"name": "fp16", "warmup_steps": -1}},
        "compression: warmup_steps: must be at least 0",
    ),
    (
        "train",
        {"compression": "sign", "training": "update_broadcast"},
        "compression: Sign sends signs without a size, and 'update_broadcast' sends changes of parameters",
    ),
    (
        "train",
        {"compression": "top_k", "training": "d_psgd"},
        "compression: 'd_psgd' then needs its setting consensus_step, above 0 and at most 1: ",
    ),
    (
        "train",
        {"compression": "qsgd", "training": {"name": "d_psgd", "consensus_step": 0.1}},
        "compression: the error of QSGD (variance up to 1.41 of the squared norm; accepted: 0.5) may exceed ",
    ),
    (
        "train",
        {
            "compression": {"name": "top_k", "error_feedback": True},
            "training": {"name": "d_psgd", "consensus_step": 0.1},
        },
        "compression: error_feedback: the copies that 'd_psgd' keeps already hold what is not sent",
    ),
    (
        "train",
        {"compression": {"name": "top_k", "density": 2.0}, "aggregation": "bruck"},
        "compression: density must be above 0",
    ),
    ("train", {"aggregation": {"name": "tree", "arty": 3}}, "unknown setting 'arty'; did you mean 'arity'?"),
    ("train", {"aggregation": {"name": "tree", "arity": 0}}, "aggregation: arity = 0: a tree's node has at least"),
    ("train", {"aggregation": {"name": "tree", "arity": True}}, "setting 'arity' must be int, not True"),
    ("train", {"aggregation": {"arity": 3}}, 'must be a name or a table such as {name = "..."}'),
    ("train", {"aggregation": 3}, 'aggregation: must be a name or a table such as {name = "..."}, not 3'),
    ("train", {"optimizer": {"name": "sgd", "momentum": 1.5}}, "optimizer: momentum must be at least 0 and less"),
    ("train", {"timeout_seconds": 0}, "timeout_seconds: must be at least 1, not 0"),
    ("pairwise", {"timeout_seconds": float("nan")}, "timeout_seconds: nan is out of range"),
    ("train", {"learning_rate": -0.1}, "learning_rate: must be at least 0, not -0.1"),
    ("train", {"learning_rate": float("inf")}, "learning_rate: inf is out of range"),
    ("train", {"learning_rate": None}, "learning_rate: a train case needs it"),
    ("train", {"ranks": 0}, "ranks: must be at least 1, not 0"),
    ("train", {"ranks": True}, "ranks: must be int, not True"),
    ("train", {"ful": True}, "ful: unknown key; did you mean 'full'?"),
    ("train", {"full": "yes"}, "full: must be true, or a table of further values, not 'yes'"),
    ("train", {"full": {"rank": [4]}}, "full: rank: unknown key; did you mean 'ranks'?"),
    ("train", {"ranks": []}, "ranks: an empty list leaves no case"),
    ("train", {"training": {"name": "asynchronous", "servers": []}}, "training: an empty list leaves no case"),
    ("train", {"batch_per_rank": 8}, "global_batch: give exactly one of global_batch and batch_per_rank"),
    ("train", {"global_batch": None}, "global_batch: give exactly one of global_batch and batch_per_rank"),
    ("train", {"epochs": 2}, "epochs: give exactly one of epochs and steps"),
    ("train", {"steps": None}, "epochs: give exactly one of epochs and steps"),
    ("train", {"steps": None, "epochs": 1e18}, "epochs: "),
    ("train", {"seed": -1}, "seed: must be at least 0, not -1"),
    ("train", {"pruning": {"sparsity": 1}}, "pruning: sparsity: must be more than 0 and less than 1, not 1"),
    (
        "train",
        {"ranks": 4, "mesh": {"model": 2}, "training": {"name": "asynchronous", "servers": 3}},
        "training: servers: 3 on 2 ranks, at most 2 fit",
    ),
    ("train", {"ranks": 4, "mesh": {"model": 3}, "training": "asynchronous"}, "mesh: 4 ranks do not fit model"),
    (
        "train",
        {"ranks": 4, "mesh": {"model": 2, "split": "hybrid"}, "training": "sandblaster"},
        "mesh: 'sandblaster' has one shard for each parameter, but every rank of a model group has all of conv1",
    ),
    ("train", {"quantization": {"weights": 32}}, "quantization: weights: must be 2 to 16 bits, not 32"),
    ("train", {"target_accuracy": 97}, "target_accuracy: must be at most 1, not 97"),
    ("train", {"global_batch": 2000}, "global_batch: 2000 images a step, but digits has 1437"),
    ("train", {"dataset": {"name": "synthetic", "shape": [2, 2]}}, "dataset: synthetic: shape must be three"),
    (
        "train",
        {"dataset": {"name": "synthetic", "images": 10**15}},
        "dataset: synthetic: images must be a whole number from 1 to",
    ),
    ("train", {"dataset": {"name": "synthetic", "test_images": 0}}, "dataset: synthetic has no test images"),
    (
        "train",
        {"dataset": {"name": "synthetic", "shape": [2, 2, 3]}, "model": "cifar_quick"},
        "model: pool1: kernel 3x3 is larger than the padded image 2x2",
    ),
    (
        "train",
        {
            "dataset": {"name": "synthetic", "shape": [999, 999, 3], "images": 10**6},
            "model": "nin",
            "global_batch": 200_000,
        },
        "global_batch: 100000 images a rank: needs at least ",
    ),
    ("collective", {"message_bytes": 6}, "message_bytes: 6 is not a multiple of float32's 4 bytes"),
    (
        "collective",
        {"message_bytes": 1 << 50},
        "message_bytes: 1125899906842624 on a rank: needs at least 4503599.",
    ),
    ("collective", {"message_bytes": -4}, "message_bytes: must be at least 0, not -4"),
    ("collective", {"collective": "alltoall"}, "collective: unknown 'alltoall'; did you mean 'all_to_all'?"),
    (
        "collective",
        {"collective": "broadcast"},
        "aggregation: 'ring' has no broadcast; these have: binomial, chain, ",
    ),
    (
        "collective",
        {"collective": "all_to_all", "aggregation": "direct", "ranks": 3},
        "message_bytes: all_to_all: 16 elements cannot be cut into 3 equal parts",
    ),
    ("collective", {"message_bytes": "lenet"}, "message_bytes: unknown 'lenet'; did you mean 'lenet5'?"),
    ("pairwise", {"ranks": 3}, "ranks: a pair has 2, not 3; pattern = 'all_pairs' or 'bisection' takes more"),
    ("pairwise", {"ranks": 3, "pattern": "bisection"}, "ranks: 3 ranks have no two equal halves"),
    ("pairwise", {"kind": "pairwize"}, "kind: unknown 'pairwize'; did you mean 'pairwise'?"),
    ("pairwise", {"kind": 3}, "kind: must be a word, not 3"),
    ("pairwise", {"kind": None}, "kind: every case needs one of: collective, pairwise, replay, train"),
    ("replay", {"flops": None, "model": "vgg19"}, "device: give exactly one of device, flops, times; no times"),
    ("replay", {"flops": 0}, "flops: must be more than 0, not 0"),
    ("replay", {"flops": None, "times": "no/such/run"}, "times: no/such/run"),
    ("replay", {"model": "googlenet", "dataset": "digits"}, "model: "),
]


def test_a_wrong_value_is_named_with_its_key(written, refused):
    for kind, changed, message in WRONG_VALUES:
        found = refused(written(kind, **changed))
        assert found.startswith("[[case]] 1: ")
        assert message in found


CASE = '[[case]]\nkind = "pairwise"\nmessage_bytes = 4\n'

WRONG_FILES = [
    ("name = ", "not TOML: "),
    ("x = " + "[" * 9999, "not TOML: "),
    ('[suite]\nname = "s"\n', "there is no [[case]]"),
    ('[suite]\nname = "s"\n[case]\nkind = "pairwise"', "there is no [[case]]"),
    ('case = [1, 2]\n[suite]\nname = "s"', "there is no [[case]]"),
    (CASE, "[suite]: name: a suite needs a name"),
    (f"suite = 1\n{CASE}", "there is no [suite]"),
    (f'[suite]\nname = ""\n{CASE}', "[suite]: name: must be a word that can name a folder, not ''"),
    (f'[suite]\nname = "../x"\n{CASE}', "[suite]: name: must be a word that can name a folder, not '../x'"),
    (f'[suite]\nname = "s"\nquestion = 1\n{CASE}', "[suite]: question: must be str, not 1"),
    (
        f'[suite]\nname = "s"\npapers = "firecafe"\n{CASE}',
        "[suite]: papers: unknown 'firecafe'; did you mean 'firecaffe'?",
    ),
    (f'[suite]\nname = "s"\nnaem = "s"\n{CASE}', "[suite]: naem: unknown key; did you mean 'name'?"),
    (f'[suite]\nname = "s"\n{CASE}{CASE}', "the case 'pairwise-exchange-fabric-4B' is there twice"),
]


def test_a_file_that_is_not_a_suite_is_refused(refused):
    for text, message in WRONG_FILES:
        assert refused(text).startswith(message)


def test_a_wrong_override_is_refused(written, refused):
    for override, message in [
        ("", "write case.KEY=VALUE"),
        ("steps=3", "write case.KEY=VALUE"),
        ("case.steps", "write case.KEY=VALUE"),
        ("cases.steps=3", "write case.KEY=VALUE"),
        ("case.step=3", "no case has the key 'step'; did you mean 'steps'?"),
        ("case.=3", "no case has the key ''"),
        ("case.ranks.x=3", "ranks: 2 is not a table"),
        ("case.learning_rate.a.b=3", "learning_rate: 0.1 is not a table"),
        ("case.steps=many", "[[case]] 1: steps: must be int, not 'many'"),
        ("case.aggregation=rign", "did you mean 'ring'?"),
        ("case.optimizer.arity=3", "optimizer: unknown setting 'arity'"),
        ("case.kind=pairwise", "[[case]] 1: model: unknown key"),
        ("suite.name=", "name: must be a word"),
        ("suite.nam=x", "nam: unknown key; did you mean 'name'?"),
        (f"case.steps={'9' * 9999}", "steps: must be int"),
    ]:
        assert message in refused(written(), [override])


def test_control_characters_in_a_case_name_are_refused(tmp_path, written, refused):
    path = tmp_path / "a\x1b[2J.h5"
    with h5py.File(path, "w") as file:
        for split in ("train", "test"):
            file[f"{split}/images"] = np.zeros((8, 12, 10, 3), np.uint8)
            file[f"{split}/labels"] = np.arange(8)
    message = refused(written(dataset={"name": "hdf5", "path": str(path)}, global_batch=4))
    assert message.startswith("the case 'train-lenet5-hdf5(")
    assert "\x1b" not in message
    assert message.endswith("has characters in its name that cannot be shown")


def test_an_unreadable_suite_is_refused(tmp_path):
    (tmp_path / "latin.toml").write_bytes(b'[suite]\nname = "\xe9"')
    for name, message in (
        ("none.toml", "no such suite file"),
        ("latin.toml", "not UTF-8"),
        (".", "cannot be read: Is a"),
    ):
        with pytest.raises(suite.UsageError) as caught:
            suite.load(tmp_path / name)
        assert str(caught.value).startswith(str(tmp_path))
        assert message in str(caught.value)


PLUG_INS = """
import numpy as np
NUMBER = 3
def plain(comm, buffer): ...
async def scheme(comm, buffer, *, power: int = 2): ...
def dataset(): return 5
def optimizer(): return 5
def empty(shape, classes): return []
def numbers(shape, classes): return [5]
class Halves:
    look_ahead = 0.0
    def __init__(self, *, by: float = 2.0): self.by, self.state, self.steps = by, {}, 0
    def update(self, parameters, gradients, learning_rate): ...
class Bare:
    def update(self, parameters, gradients, learning_rate): ...
"""


@pytest.fixture
def plugins(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "my_schemes.py").write_text(PLUG_INS)
    (tmp_path / "my_typo.py").write_text("def f(:\n")
    (tmp_path / "my_crash.py").write_text("1 / 0\n")


def test_an_unusable_object_of_the_user_is_refused(plugins, written, refused):
    for key, value, message in [
        ("aggregation", "nosuchmodule:thing", "No module named 'nosuchmodule'"),
        ("aggregation", "my_schemes:nothing", "has no attribute 'nothing'"),
        ("aggregation", "my_schemes:", "has no attribute ''"),
        ("aggregation", ":scheme", "Empty module name"),
        ("aggregation", "my_typo:f", "SyntaxError: invalid syntax (my_typo.py, line 1)"),
        ("aggregation", "my_crash:f", "ZeroDivisionError: division by zero"),
        ("aggregation", "my_schemes:NUMBER", "is a int, which cannot be called"),
        ("aggregation", "my_schemes:plain", "is not an async function"),
        ("training", "my_schemes:plain", "is not an async function"),
        ("aggregation", {"name": "my_schemes:scheme", "pwer": 3}, "did you mean 'power'?"),
        ("aggregation", {"name": "my_schemes:scheme", "power": "3"}, "setting 'power' must be int, not '3'"),
        ("dataset", "my_schemes:dataset", "'int' object has no attribute 'test'"),
        ("optimizer", "my_schemes:optimizer", "has no attribute 'update'"),
        ("optimizer", "my_schemes:Bare", "'Bare' object has no attribute 'state'"),
        ("model", "my_schemes:dataset", "takes 0 positional arguments"),
        ("model", "my_schemes:empty", "ends in (8, 8, 1), but digits has 10 classes"),
        ("model", "my_schemes:numbers", "'int' object has no attribute 'declare'"),
    ]:
        found = refused(written(**{key: value}))
        assert found.startswith(f"[[case]] 1: {key}: ")
        assert message in found


def test_an_object_of_the_user_is_accepted(plugins, parsed):
    (case,) = parsed(
        aggregation={"name": "my_schemes:scheme", "power": 3}, optimizer={"name": "my_schemes:Halves", "by": 3.0}
    )
    assert case.name == "train-lenet5-digits-synchronous-my_schemes:scheme(power=3)-p2-b64-3st"
