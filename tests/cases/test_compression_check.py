"""Compressions that a case cannot have, where a machine with a GPU would be needed to try."""

from dataclasses import replace

import pytest

from hpcdl.cases.parts import compression_check
from hpcdl.cases.parts.keys import restored
from hpcdl.cases.parts.train_spec import TrainSpec
from hpcdl.nn.backend import backend


@pytest.mark.parametrize("compressor", ["fp16", "top_k", "power_sgd"])
def test_a_device_backend_takes_no_compression(compressor, monkeypatch):
    on_device = replace(backend("numpy"), on_host=False)
    monkeypatch.setattr(TrainSpec, "kernels", property(lambda _spec: on_device))
    keys = {"model": "lenet5", "dataset": "digits", "backend": "cupy", "compression": compressor}
    spec = restored(TrainSpec, {**keys, "learning_rate": 0.1, "ranks": 2, "global_batch": 64, "steps": 3})
    with pytest.raises(ValueError, match="compressors work in the host's memory, and backend 'cupy' is not there"):
        compression_check.check(spec)
