"""A processor whose arrays meet only their like."""

import numpy as np
from contract.device import OnDevice, inside
from gpu.processor import Processor


class Strict(Processor):
    """A processor whose arrays are :class:`OnDevice`."""

    def empty(self, shape, dtype):
        return OnDevice(super().empty(shape, dtype))

    def zeros(self, shape, dtype):
        return OnDevice(super().zeros(shape, dtype))

    def asarray(self, array):
        assert type(array) is np.ndarray
        return OnDevice(super().asarray(array))

    def to_host(self, array):
        return array.held.copy()

    def launch(self, source, kernel, dtype, grid, *arguments):
        super().launch(source, kernel, dtype, grid, *map(inside, arguments))
