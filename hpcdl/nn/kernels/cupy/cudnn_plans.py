"""cuDNN graphs and plans for one layer and batch size, by ``nvidia-cudnn-frontend``, pinned to 1.26.0."""

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Final

import cudnn

from hpcdl.nn.geometry import BatchNormGeometry, WindowGeometry
from hpcdl.nn.kernels.cupy.device import EnginePlan, Uid

TYPES: Final = {
    "float32": cudnn.data_type.FLOAT,
    "bfloat16": cudnn.data_type.BFLOAT16,
    "float16": cudnn.data_type.HALF,
}
"""Precisions that cuDNN supports."""


class NoEngine(Exception):  # noqa: N818 - cuDNN's term
    """cuDNN has no engine for this graph."""


@dataclass(frozen=True)
class Planner:
    """Builds plans for a real device (``where`` has a cuDNN handle) or for a described one.

    Engines that round their inputs to 16 bits are always excluded.
    """

    where: Mapping[str, object]
    """Keywords of ``cudnn.pygraph``: ``handle``, or ``sm_version`` and ``device_property``."""
    _: KW_ONLY
    tf32: bool
    """Allow tensor cores in float32 convolutions."""
    deterministic: bool
    """Exclude engines whose order of additions depends on timing."""
    build: bool = True
    """Compile the chosen engines, which needs a driver."""

    def convolution(
        self, operation: str, geometry: WindowGeometry, batch: int, *, biased: bool = False
    ) -> EnginePlan:
        """Return the plan of ``operation``: "forward", "fused" (with bias and ReLU), "data" or "weight" gradient.

        Tensors: forward X, WEIGHT (and BIAS) to Y; "data" Y, WEIGHT to X; "weight" X, Y to WEIGHT. NoEngine: cuDNN
        does not support it.
        """
        g, dtype = geometry, TYPES[geometry.dtype]
        image, output = (batch, *g.image), (batch, *g.output)
        filters = (g.output[2], *g.kernel, g.image[2] // g.groups)
        placed = {"padding": list(g.padding), "stride": list(g.stride), "dilation": [1, 1]}
        graph = self._graph(dtype)
        if operation in {"forward", "fused"}:
            last = graph.conv_fprop(
                image=_blob(graph, image, dtype, Uid.X), weight=_blob(graph, filters, dtype, Uid.WEIGHT), **placed
            )
            if operation == "fused" and biased:
                last = graph.bias(input=last, bias=_vector(graph, g.output[2], dtype, Uid.BIAS))
            if operation == "fused" and g.relu:
                last = graph.relu(input=last)
            _finish(last, output, dtype, Uid.Y)
        elif operation == "data":
            last = graph.conv_dgrad(
                loss=_blob(graph, output, dtype, Uid.Y), filter=_blob(graph, filters, dtype, Uid.WEIGHT), **placed
            )
            _finish(last, image, dtype, Uid.X)
        else:
            last = graph.conv_wgrad(
                image=_blob(graph, image, dtype, Uid.X), loss=_blob(graph, output, dtype, Uid.Y), **placed
            )
            _finish(last, filters, dtype, Uid.WEIGHT)
        notes = [] if self.tf32 or g.dtype != "float32" else [cudnn.numerical_note.TENSOR_CORE]
        return self._plan(graph, notes)

    def batch_norm(self, operation: str, geometry: BatchNormGeometry, batch: int) -> EnginePlan:
        """Return the plan of ``operation``: "forward" (in training) or "backward".

        Tensors: forward X, GAMMA, BETA, RUNNING_* (and SHORTCUT if joined) to Y, MEAN, INVERSE, NEXT_*; backward Y
        (output gradient after the ReLU's backward), X, GAMMA, MEAN, INVERSE to SHORTCUT (input gradient), DGAMMA,
        DBETA. NoEngine: cuDNN does not support it.
        """
        g, kind, exact = geometry, TYPES[geometry.dtype], cudnn.data_type.FLOAT
        channels = g.shape[-1]
        shape = (batch, *((1,) * (3 - len(g.shape))), *g.shape)
        graph = self._graph(kind)
        x = _blob(graph, shape, kind, Uid.X)
        gamma = _vector(graph, channels, exact, Uid.GAMMA)
        if operation == "backward":
            dx, dgamma, dbeta = graph.batchnorm_backward(
                grad=_blob(graph, shape, kind, Uid.Y),
                input=x,
                scale=gamma,
                mean=_vector(graph, channels, exact, Uid.MEAN),
                inv_variance=_vector(graph, channels, exact, Uid.INVERSE),
            )
            _finish(dx, shape, kind, Uid.SHORTCUT)
            for number, tensor in ((Uid.DGAMMA, dgamma), (Uid.DBETA, dbeta)):
                tensor.set_output(True).set_data_type(exact).set_uid(number)
            return self._plan(graph, [])
        y, *statistics = graph.batchnorm(
            input=x,
            scale=gamma,
            bias=_vector(graph, channels, exact, Uid.BETA),
            in_running_mean=_vector(graph, channels, exact, Uid.RUNNING_MEAN),
            in_running_var=_vector(graph, channels, exact, Uid.RUNNING_VARIANCE),
            epsilon=_scalar(graph, g.eps),
            momentum=_scalar(graph, 1 - g.momentum),  # cuDNN's momentum is the weight of the batch
        )
        for number, tensor in zip(
            (Uid.MEAN, Uid.INVERSE, Uid.NEXT_MEAN, Uid.NEXT_VARIANCE), statistics, strict=True
        ):
            tensor.set_output(True).set_data_type(exact).set_uid(number)
        if g.joined:
            y = graph.add(a=y, b=_blob(graph, shape, kind, Uid.SHORTCUT))
        if g.relu:
            y = graph.relu(input=y)
        _finish(y, shape, kind, Uid.Y)
        return self._plan(graph, [])

    def _graph(self, dtype: cudnn.data_type) -> cudnn.pygraph:
        exact = cudnn.data_type.FLOAT
        return cudnn.pygraph(
            io_data_type=dtype, intermediate_data_type=exact, compute_data_type=exact, **self.where
        )

    def _plan(self, graph: cudnn.pygraph, notes: Sequence[cudnn.numerical_note]) -> EnginePlan:
        excluded = [*notes, cudnn.numerical_note.DOWN_CONVERT_INPUTS]
        if self.deterministic:
            excluded.append(cudnn.numerical_note.NONDETERMINISTIC)
        try:
            graph.validate()
            graph.build_operation_graph()
            graph.create_execution_plans([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
            graph.deselect_numeric_notes(excluded)
            graph.check_support()
            if self.build:
                graph.build_plans()
        except (cudnn.cudnnGraphNotSupportedError, RuntimeError) as error:
            raise NoEngine(str(error).partition("\n")[0]) from error
        return EnginePlan(graph, graph.get_workspace_size() if self.build else 0)


def _blob(graph: cudnn.pygraph, shape: Sequence[int], dtype: cudnn.data_type, number: int) -> cudnn.tensor:
    """Return a tensor (N, H, W, C), or filters (K, R, S, C), channels fastest, in cuDNN's order of dimensions."""
    n, h, w, c = shape
    tensor = graph.tensor(dim=[n, c, h, w], stride=[h * w * c, 1, w * c, c], data_type=dtype)
    return tensor.set_uid(number)


def _finish(tensor: cudnn.tensor, shape: Sequence[int], dtype: cudnn.data_type, number: int) -> None:
    n, h, w, c = shape
    tensor.set_output(True).set_data_type(dtype).set_uid(number)
    tensor.set_dim([n, c, h, w]).set_stride([h * w * c, 1, w * c, c])


def _vector(graph: cudnn.pygraph, channels: int, dtype: cudnn.data_type, number: int) -> cudnn.tensor:
    tensor = graph.tensor(dim=[1, channels, 1, 1], stride=[channels, 1, channels, channels], data_type=dtype)
    return tensor.set_uid(number)


def _scalar(graph: cudnn.pygraph, value: float) -> cudnn.tensor:
    tensor = graph.tensor_scalar(value, cudnn.scalar_type.RUNTIME_PARAM)
    return tensor.set_dim([1, 1, 1, 1]).set_stride([1, 1, 1, 1])
