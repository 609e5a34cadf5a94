"""Compressions that a case cannot have, where a machine with a GPU would be needed to try."""

from dataclasses import replace

import pytest

from hpcdl import registry
from hpcdl.cases.spec import compression_check
from hpcdl.cases.spec.keys import restored
from hpcdl.cases.spec.train_spec import TrainSpec
from hpcdl.compression.parts.protocol import Compression
from hpcdl.nn.backend import backend


def of(compressor):
    return registry.traits("compression", compressor, Compression)


GATHERED = [
    one for one in registry.names("compression") if not hasattr(registry.find("compression", one), "rounds")
]


@pytest.fixture
def checked(monkeypatch):
    on_device = replace(backend("numpy"), device=object())
    monkeypatch.setattr(TrainSpec, "kernels", property(lambda _spec: on_device))

    def check(**changed):
        keys = {"model": "lenet5", "dataset": "digits", "backend": "cupy", **changed}
        spec = restored(TrainSpec, {**keys, "learning_rate": 0.1, "ranks": 2, "global_batch": 64, "steps": 3})
        compression_check.check(spec)

    return check


@pytest.mark.parametrize("compressor", registry.names("compression"))
def test_a_device_takes_the_compressors_that_declare_it(compressor, checked):
    scheme = {"compression": compressor, "aggregation": "allgather" if compressor in GATHERED else "ring"}
    if compressor == "none" or of(compressor).on_device:
        checked(**scheme)
        return
    able = ".*".join(one for one in registry.names("compression") if of(one).on_device)
    with pytest.raises(ValueError, match=f"{compressor!r} computes in the host's memory.*{able}$"):
        checked(**scheme)


def test_a_device_compresses_only_what_an_aggregation_sums(checked):
    with pytest.raises(ValueError, match="'asynchronous' sends messages between pairs of ranks"):
        checked(compression="fp16", training="asynchronous")
