"""Softmax and cross-entropy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hpcdl.nn.kernels.cupy.device import grid_over
from hpcdl.nn.precision import master, storage_dtype

if TYPE_CHECKING:
    from hpcdl.fabric.comm import Array
    from hpcdl.nn.geometry import Blob
    from hpcdl.nn.kernels.cupy.device import Device

LANES: Final = 32
"""Threads per image, as in ``cross_entropy.cu``."""


class CrossEntropy:
    """loss = log(sum of exp(logits)) - logits[label]; the largest logit is subtracted first."""

    def __init__(self, device: Device, geometry: Blob) -> None:
        self._device = device
        self._classes = geometry.shape[0]
        self._dtype = geometry.dtype

    def __call__(self, logits: Array, labels: Array, scale: float) -> tuple[float, int, Array]:
        """See :class:`hpcdl.nn.ops.CrossEntropy`; ValueError where a label is out of range.

        The gradient has the precision of ``logits``, which is the parameters' for the output of ``predict``.
        """
        dtype = master(self._dtype) if logits.dtype != storage_dtype(self._dtype) else self._dtype
        images, classes, device, exact = len(logits), self._classes, self._device, master(dtype)
        labels = labels.astype("int64", copy=False)
        gradient = device.empty(logits.shape, storage_dtype(dtype))
        if not images:
            return 0.0, 0, gradient
        largest, total = (device.empty((images, LANES), exact) for _ in range(2))
        place, right = device.empty((images, LANES), "int32"), device.empty((images,), "int32")
        tops, sums = (device.empty((images,), exact) for _ in range(2))
        losses, result = device.empty((images,), "float64"), device.empty((3,), "float64")

        def launch(kernel: str, elements: int, *arguments: Array | float) -> None:
            device.launch("cross_entropy", kernel, dtype, grid_over(elements), *arguments)

        launch("scan_logits", images * LANES, logits, largest, total, place, images, classes)
        launch(
            *("join_lanes", images, logits, labels, largest, total, place),
            *(tops, sums, losses, right, images, classes),
        )
        launch("add_losses", 1, losses, right, result, images)
        launch(
            *("softmax_gradient", logits.size, logits, labels, tops, sums),
            *(gradient, images, classes, float(scale)),
        )
        loss, correct, unknown = device.to_host(result)
        if unknown:
            host = device.to_host(labels)
            raise ValueError(f"labels from {host.min()} to {host.max()}, but classes are 0 to {classes - 1}")
        return float(loss), int(correct), gradient
