"""Every row of the table of combinations refuses a case that has both features, and none that lacks one."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
from suite.conftest import CASES

from hpcdl import registry
from hpcdl.cases.keys import checks
from hpcdl.cases.keys.checks import ROWS, Setup, refusals
from hpcdl.cases.keys.key import keys, restored
from hpcdl.cases.keys.suite_tables import kinds, module_of
from hpcdl.compression.parts.protocol import Compression
from hpcdl.nn.backend import backend

DEVICE = {"backend": "cupy"}
MODEL = {"mesh": {"model": 2}}
STAGES = {"mesh": {"pipeline": 2}, "training": "pipeline"}
FAILURE = {"failure": {"rank": 1, "step": 1}}
SHARES = {"shares": {"weights": [3, 1]}}
TUNE = {"tune": {"trials": 2, "learning_rate": [0.01, 0.1]}}
TREE = {"name": "fat_tree", "hosts": [2, 4]}
UPDATING = {"training": {"name": "layerwise", "updates": "server"}, "aggregation": "tree"}
NATIVE = {"name": "hierarchical", "outer": "native"}
MOMENTUM = {"name": "sgd", "momentum": 0.9}

EXAMPLES = [
    # key of the row, kind of case, keys
    ("model", "train", {"model": "bert_large"}),
    ("dataset", "replay", {"model": "bert_large", "dataset": "digits"}),
    ("mesh", "replay", {"model": "bert_large", **MODEL}),
    ("compression", "replay", {"model": "bert_large", "compression": "power_sgd"}),
    ("training", "replay", {"training": "elastic_averaging"}),
    ("dtype", "train", {"dtype": "float16", "training": "asynchronous"}),
    ("optimizer", "train", {"optimizer": "sgd", "training": "sandblaster"}),
    ("optimizer", "train", {"optimizer": "lars", **MODEL}),
    ("optimizer", "train", {"optimizer": "lamb", "training": {"name": "asynchronous", "servers": 2}}),
    ("tune", "train", {**TUNE, "validation": 0.1}),
    ("tune", "train", {**TUNE, "network": "gemini", "flops": 1e9}),
    ("shares", "train", {**SHARES, "training": "sandblaster"}),
    ("shares", "train", {**SHARES, **MODEL}),
    ("stop_at_target", "train", {"stop_at_target": True, "training": "asynchronous"}),
    ("aggregation", "train", {"aggregation": "ring", "training": "asynchronous"}),
    ("failure", "train", FAILURE),
    ("failure", "train", {**FAILURE, **MODEL, "training": "asynchronous"}),
    ("mesh", "train", {**MODEL, "training": "ad_psgd"}),
    ("mesh", "replay", {**STAGES, "training": "layerwise"}),
    ("mesh", "train", {**MODEL, "aggregation": "none"}),
    ("mesh", "train", {**MODEL, "aggregation": "native"}),
    ("mesh", "replay", {**STAGES, "aggregation": "auto"}),
    ("mesh", "train", {**MODEL, "compression": "top_k", "training": "asynchronous"}),
    ("mesh", "train", {"mesh": {"data": 1}, "compression": "fp16"}),
    ("mesh", "train", {**MODEL, "dtype": "bfloat16"}),
    ("mesh", "train", {**MODEL, "quantization": {"weights": 8}}),
    ("mesh", "train", {**MODEL, "pruning": {"sparsity": 0.5}}),
    ("quantization", "train", {**DEVICE, "quantization": {"weights": 8}}),
    ("sharpness", "train", {"sharpness": 8, "quantization": {"weights": 8}}),
    ("sharpness", "train", {"sharpness": 8, **MODEL}),
    ("sharpness", "train", {"sharpness": 8, "pruning": {"sparsity": 0.5}}),
    ("pruning", "train", {"pruning": {"sparsity": 0.5}, "compression": "power_sgd"}),
    ("pruning", "train", {"pruning": {"sparsity": 0.5, "after_steps": 2}, "training": "d_psgd"}),
    ("pruning", "train", {"pruning": {"sparsity": 0.5, "after_steps": 2}, "training": "diloco"}),
    ("pruning", "train", {**DEVICE, "pruning": {"sparsity": 0.5}}),
    ("aggregation", "collective", {"aggregation": "none"}),
    ("aggregation", "train", {"aggregation": "gtopk"}),
    ("aggregation", "collective", {**DEVICE, "aggregation": "two_shot"}),
    ("aggregation", "replay", {"aggregation": "nccl"}),
    ("compression", "train", {**UPDATING, "compression": "fp16"}),
    ("mesh", "train", {**UPDATING, **MODEL}),
    ("dtype", "train", {**UPDATING, "dtype": "float16"}),
    ("training", "train", {**UPDATING, "aggregation": "ring"}),
    ("aggregation", "replay", {"aggregation": "tree", "training": "zero"}),
    ("aggregation", "train", {"aggregation": "native", "training": {"name": "zero", "ranks_per_node": 2}}),
    ("aggregation", "collective", {"aggregation": "two_shot", "network": "gemini", "ranks_per_host": 2}),
    ("aggregation", "train", {"aggregation": NATIVE}),
    ("compression", "train", {"compression": "fp16", "training": "ad_psgd"}),
    ("compression", "replay", {"compression": "fp16", "training": "d_psgd"}),
    ("compression", "replay", {"compression": "fp16", **MODEL}),
    ("compression", "replay", {"compression": "fp16", "training": "diloco"}),
    ("compression", "train", {**DEVICE, "compression": "qsgd", "aggregation": "allgather"}),
    ("compression", "train", {**DEVICE, "compression": "fp16", "training": "asynchronous"}),
    ("compression", "train", {"compression": "fp16", "dtype": "float16"}),
    ("compression", "train", {"compression": "dgc", "aggregation": "bruck", "optimizer": MOMENTUM}),
    ("compression", "train", {"compression": "fp16", "aggregation": "none"}),
    ("compression", "train", {"compression": {"name": "fp16", "warmup_steps": 3}}),
    ("compression", "train", {"compression": "fp16", "aggregation": "gtopk"}),
    ("compression", "train", {"compression": "top_k"}),
    ("compression", "train", {"compression": "sign", "aggregation": "gtopk"}),
    ("compression", "train", {"compression": "bf16", "aggregation": "native"}),
    ("compression", "train", {"compression": "power_sgd", "aggregation": "native"}),
    ("compression", "train", {"compression": "power_sgd", "training": "asynchronous"}),
    ("compression", "train", {"compression": {"name": "fp16", "code": "rice"}}),
    ("compression", "train", {"compression": {"name": "top_k", "code": "rice"}, "aggregation": "gtopk"}),
    ("compression", "train", {"compression": {"name": "dgc", "error_feedback": True}, "aggregation": "bruck"}),
    ("stop_at_target", "train", {"stop_at_target": True}),
    ("trace", "train", {"trace": "alternating", "network": "gemini", "flops": 1e9}),
    ("backend", "collective", {**DEVICE, "network": "gemini"}),
    ("start", "collective", {"start": "window", "network": "gemini"}),
    ("placement", "collective", {"placement": "out_of_place", "network": "gemini"}),
    ("straggler", "collective", {"straggler": {"rank": 1, "seconds": 0.1}, "network": "gemini"}),
    ("threads", "collective", {"threads": 2, "network": "gemini"}),
    ("topology", "replay", {"topology": TREE}),
    ("aggregation", "replay", {"topology": TREE, "network": "gemini", "aggregation": "native"}),
    ("failure", "train", {**FAILURE, "network": "titan", "training": "asynchronous", "flops": 1e9}),
    ("device", "train", {"device": "k20"}),
    ("flops", "train", {"flops": 1e9}),
    ("times", "train", {"times": "run"}),
    ("jitter", "train", {"jitter": 0.1}),
    ("ranks_per_host", "train", {"ranks_per_host": 2}),
    ("aggregation", "replay", {"aggregation": "auto", "network": "gemini"}),
    ("ranks_per_host", "replay", {"ranks_per_host": 2}),
]
"""A case for each row, in their order."""


@pytest.fixture(autouse=True)
def _device(monkeypatch):
    """Let ``backend = "cupy"`` be on a device without one."""
    for kind in ("train", "collective"):
        device = lambda case: object() if case.backend.name == "cupy" else None
        kernels = property(lambda case, device=device: replace(backend("numpy"), device=device(case)))
        monkeypatch.setattr(module_of(kind).SPEC, "kernels", kernels)


def spec_of(kind, **changed):
    keys = {**CASES[kind], "ranks": 4, **changed}
    return restored(module_of(kind).SPEC, {key: value for key, value in keys.items() if key != "kind"})


def refused(kind, spec, given=()):
    return [*refusals(ROWS, kind, spec, given)]


def test_a_row_refuses_its_example():
    for row, example in [*zip(ROWS, EXAMPLES, strict=True)]:
        key, kind, changed = example
        spec = spec_of(kind, **changed)
        message = row.refusal(Setup(kind, spec, changed))
        assert message in refused(kind, spec, changed)
        assert message.startswith(f"{key}: ")
        assert "cannot be used with" in message
        assert message.count("; ") == 1


def test_a_refusal_shows_values_and_names_the_remedy():
    message, *_ = refused("train", spec_of("train", **MODEL, aggregation="none"))
    about = "mesh: aggregation 'none' cannot be used with model parallelism"
    assert re.match(f"{about}: .*; choose one that sums$", message)
    message, *_ = refused("train", spec_of("train", **SHARES, training="sandblaster"), ["shares"])
    about = "shares: this key cannot be used with training 'sandblaster'"
    assert re.match(f"{about}: .*; choose another strategy$", message)


@pytest.mark.parametrize("compressor", registry.names("compression"))
def test_a_device_takes_the_compressors_that_declare_it(compressor):
    scheme = "ring" if hasattr(registry.find("compression", compressor), "rounds") else "allgather"
    case = spec_of("train", **DEVICE, compression=compressor, aggregation=scheme)
    able = compressor == "none" or registry.traits("compression", compressor, Compression).on_device
    assert any("it computes in the host's memory" in message for message in refused("train", case)) != able


def test_features_ask_for_what_a_kind_of_case_has():
    """What a kind lacks is None; a misspelt name would be None for all."""
    there = {name for kind in kinds() for spec in [module_of(kind).SPEC] for name in (*keys(spec), *dir(spec))}
    asked = set(re.findall(r"\bcase\.(\w+)", Path(checks.__file__).read_text(encoding="utf-8")))
    assert not asked - there - {*dir(Setup), "kind", "spec", "given", "wrong", "elsewhere"}
    setup = Setup("train", spec_of("train"))
    assert setup.collective is None
