"""cuDNN's graphs for one batch of one layer, and the plans that it chooses for them.

Graphs are made by ``nvidia-cudnn-frontend`` (module ``cudnn``), pinned to 1.26.0, which needs no device for it:
with a written description of one (``cudnn.create_device_properties``) plans can be built and counted anywhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import cudnn

from hpcdl.nn.kernels.cupy.tensor_numbers import (
    BETA,
    BIAS,
    DBETA,
    DGAMMA,
    GAMMA,
    INVERSE,
    MEAN,
    NEXT_MEAN,
    NEXT_VARIANCE,
    RUNNING_MEAN,
    RUNNING_VARIANCE,
    SHORTCUT,
    WEIGHT,
    X,
    Y,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hpcdl.nn.geometry import BatchNormGeometry, ConvolutionGeometry

TYPES: Final = {
    "float32": cudnn.data_type.FLOAT,
    "bfloat16": cudnn.data_type.BFLOAT16,
    "float16": cudnn.data_type.HALF,
}
"""Precisions that cuDNN has engines for."""


class NoEngine(Exception):  # noqa: N818 - what cuDNN says
    """cuDNN has no engine for this graph."""


@dataclass(frozen=True)
class Plan:
    """A graph with its engine chosen."""

    graph: Any
    workspace: int
    """Bytes that its execution needs."""


class Planner:
    """Builds plans for a device, real (a cuDNN handle in ``where``) or described.

    ``where`` holds the keywords of ``cudnn.pygraph`` that say which device: ``handle``, or ``sm_version`` and
    ``device_property``. With ``tf32`` float32 convolutions may use tensor cores; with ``deterministic`` no engine
    is taken that adds in an order that depends on timing. None is taken that rounds its inputs to 16 bits. Without
    ``build`` an engine is chosen and no more: what has to be compiled cannot be without a driver.
    """

    def __init__(self, where: Mapping[str, Any], *, tf32: bool, deterministic: bool, build: bool = True) -> None:
        self._where = where
        self._build = build
        self._tf32 = tf32
        self._deterministic = deterministic

    def convolution(self, what: str, geometry: ConvolutionGeometry, batch: int, *, biased: bool = False) -> Plan:
        """Return the plan of ``what``: "forward", "fused" (with bias and ReLU), "data" or "weight" gradient.

        Numbers: forward X, WEIGHT (and BIAS) to Y; "data" Y, WEIGHT to X; "weight" X, Y to WEIGHT.

        NoEngine: cuDNN cannot.
        """
        g, dtype = geometry, TYPES[geometry.dtype]
        image, output = (batch, *g.image), (batch, *g.output)
        filters = (g.output[2], *g.kernel, g.image[2] // g.groups)
        placed = {"padding": list(g.padding), "stride": list(g.stride), "dilation": [1, 1]}
        graph = self._graph(dtype)
        if what in {"forward", "fused"}:
            last = graph.conv_fprop(
                image=_blob(graph, image, dtype, X), weight=_blob(graph, filters, dtype, WEIGHT), **placed
            )
            if what == "fused" and biased:
                last = graph.bias(input=last, bias=_vector(graph, g.output[2], dtype, BIAS))
            if what == "fused" and g.relu:
                last = graph.relu(input=last)
            _finish(last, output, dtype, Y)
        elif what == "data":
            last = graph.conv_dgrad(
                loss=_blob(graph, output, dtype, Y), filter=_blob(graph, filters, dtype, WEIGHT), **placed
            )
            _finish(last, image, dtype, X)
        else:
            last = graph.conv_wgrad(
                image=_blob(graph, image, dtype, X), loss=_blob(graph, output, dtype, Y), **placed
            )
            _finish(last, filters, dtype, WEIGHT)
        notes = [] if self._tf32 or g.dtype != "float32" else [cudnn.numerical_note.TENSOR_CORE]
        return self._plan(graph, notes)

    def batch_norm(self, what: str, geometry: BatchNormGeometry, batch: int) -> Plan:
        """Return the plan of ``what``: "forward" in training or "backward".

        Numbers: forward X, GAMMA, BETA, RUNNING_* (and SHORTCUT if joined) to Y, MEAN, INVERSE, NEXT_*; backward
        Y (what came back, through the ReLU already), X, GAMMA, MEAN, INVERSE to SHORTCUT (the input's gradient),
        DGAMMA, DBETA.

        NoEngine: cuDNN cannot.
        """
        g, kind, exact = geometry, TYPES[geometry.dtype], cudnn.data_type.FLOAT
        channels = g.shape[-1]
        shape = (batch, *((1,) * (3 - len(g.shape))), *g.shape)
        graph = self._graph(kind)
        x = _blob(graph, shape, kind, X)
        gamma = _vector(graph, channels, exact, GAMMA)
        if what == "backward":
            dx, dgamma, dbeta = graph.batchnorm_backward(
                grad=_blob(graph, shape, kind, Y),
                input=x,
                scale=gamma,
                mean=_vector(graph, channels, exact, MEAN),
                inv_variance=_vector(graph, channels, exact, INVERSE),
            )
            _finish(dx, shape, kind, SHORTCUT)
            for number, tensor in ((DGAMMA, dgamma), (DBETA, dbeta)):
                tensor.set_output(True).set_data_type(exact).set_uid(number)
            return self._plan(graph, [])
        y, *statistics = graph.batchnorm(
            input=x,
            scale=gamma,
            bias=_vector(graph, channels, exact, BETA),
            in_running_mean=_vector(graph, channels, exact, RUNNING_MEAN),
            in_running_var=_vector(graph, channels, exact, RUNNING_VARIANCE),
            epsilon=_scalar(graph, g.eps),
            momentum=_scalar(graph, 1 - g.momentum),  # cuDNN's is the share of the batch
        )
        for number, tensor in zip((MEAN, INVERSE, NEXT_MEAN, NEXT_VARIANCE), statistics, strict=True):
            tensor.set_output(True).set_data_type(exact).set_uid(number)
        if g.joined:
            y = graph.add(a=y, b=_blob(graph, shape, kind, SHORTCUT))
        if g.relu:
            y = graph.relu(input=y)
        _finish(y, shape, kind, Y)
        return self._plan(graph, [])

    def _graph(self, dtype: Any) -> Any:
        exact = cudnn.data_type.FLOAT
        return cudnn.pygraph(
            io_data_type=dtype, intermediate_data_type=exact, compute_data_type=exact, **self._where
        )

    def _plan(self, graph: Any, notes: Sequence[Any]) -> Plan:
        excluded = [*notes, cudnn.numerical_note.DOWN_CONVERT_INPUTS]
        if self._deterministic:
            excluded.append(cudnn.numerical_note.NONDETERMINISTIC)
        try:
            graph.validate()
            graph.build_operation_graph()
            graph.create_execution_plans([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
            graph.deselect_numeric_notes(excluded)
            graph.check_support()
            if self._build:
                graph.build_plans()
        except (cudnn.cudnnGraphNotSupportedError, RuntimeError) as error:
            raise NoEngine(str(error).partition("\n")[0]) from error
        return Plan(graph, graph.get_workspace_size() if self._build else 0)


def _blob(graph: Any, shape: Sequence[int], dtype: Any, number: int) -> Any:
    """A tensor (N, H, W, C), or filters (K, R, S, C), channels fastest, in cuDNN's order of dimensions."""
    n, h, w, c = shape
    tensor = graph.tensor(dim=[n, c, h, w], stride=[h * w * c, 1, w * c, c], data_type=dtype)
    return tensor.set_uid(number)


def _finish(tensor: Any, shape: Sequence[int], dtype: Any, number: int) -> None:
    n, h, w, c = shape
    tensor.set_output(True).set_data_type(dtype).set_uid(number)
    tensor.set_dim([n, c, h, w]).set_stride([h * w * c, 1, w * c, c])


def _vector(graph: Any, channels: int, dtype: Any, number: int) -> Any:
    tensor = graph.tensor(dim=[1, channels, 1, 1], stride=[channels, 1, channels, channels], data_type=dtype)
    return tensor.set_uid(number)


def _scalar(graph: Any, value: float) -> Any:
    tensor = graph.tensor_scalar(value, cudnn.scalar_type.RUNTIME_PARAM)
    return tensor.set_dim([1, 1, 1, 1]).set_stride([1, 1, 1, 1])
