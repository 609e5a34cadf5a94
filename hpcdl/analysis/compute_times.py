"""How long a rank's local work takes: from its arithmetic at a sustained rate, or from a run that was measured.

What is modelled is what programs give to :meth:`hpcdl.fabric.comm.Comm.compute`, by its label: "input", "forward
NAME", "loss", "backward NAME", "update", "update NAME".
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from hpcdl.analysis.volumes import volumes
from hpcdl.fabric.comm import INPUT

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hpcdl.nn.geometry import Shape
    from hpcdl.nn.layer import Layer
    from hpcdl.trace.run import Run

FORWARD: Final = 2
"""Floating-point operations of a multiply-add."""
BACKWARD: Final = 4
"""The gradients of the weights and of the inputs, each as much as the forward."""


@dataclass(frozen=True)
class Device:
    """What trains."""

    flops: float
    """Sustained in training, FLOP/s."""
    source: str


def _third(peak: float, what: str) -> Device:
    return Device(
        peak / 3, f"a third, assumed, of the {peak / 1e12:g} TFLOP/s in float32 that NVIDIA gives for {what}"
    )


DEVICES: Final[dict[str, Device]] = {
    "k20": Device(
        0.428e12,
        "Iandola et al. 2016: GoogLeNet (9.47 GFLOP an image) on ImageNet (1.28 M images), 64 epochs in 21 days",
    ),
    "v100": _third(15.7e12, "V100 SXM2"),
    "a100": _third(19.5e12, "A100"),
    "h100": _third(67e12, "H100 SXM5"),
}
"""By name. Figures for "what if", none of them measured here: say ``flops`` or ``times`` where you know better."""


@dataclass(frozen=True)
class ComputeTimes:
    """Seconds that work takes, by label; what is not named takes none."""

    per_image: Mapping[str, float]
    per_call: Mapping[str, float] = field(default_factory=dict)

    def seconds(self, label: str, images: int) -> float:
        """How long the work called ``label`` takes on a batch of ``images``."""
        return self.per_image.get(label, 0.0) * images + self.per_call.get(label, 0.0)

    def step_seconds(self, images: int) -> float:
        """All of it, once each."""
        return sum(self.per_image.values()) * images + sum(self.per_call.values())


def at_rate(layers: Sequence[Layer], shape: Shape, flops: float) -> ComputeTimes:
    """Times of a network that sustains ``flops`` FLOP/s: multiply-adds only, the backward twice the forward.

    Input, loss, updates and layers without multiply-adds take no time. ValueError: a layer that cannot take the
    shape it gets.
    """
    found = {}
    for layer in layers:
        multiply_adds = volumes([layer], shape, 1).multiply_adds_per_image
        found[f"forward {layer.name}"] = FORWARD * multiply_adds / flops
        found[f"backward {layer.name}"] = BACKWARD * multiply_adds / flops
        shape = layer.output(shape)
    return ComputeTimes(found)


def recorded(run: Run, model: str) -> ComputeTimes:
    """Return the medians of the first training of ``model`` in a run that recorded events.

    An update takes the same time whatever the batch; all else is taken as proportional to it. ValueError: a run
    without such a case.
    """
    for index, case in enumerate(run.described):
        if case.get("kind") != "train" or case.get("model") != model or case.get("network"):
            continue
        events = run.events_of(index)
        steps = run.steps[run.steps["case_index"] == index]
        images = float(steps["images"].median()) if len(steps) else 0.0
        if not len(events) or not images:
            continue
        ours = events[events["label"].astype(str).str.match(rf"({INPUT}|loss|update|forward .*|backward .*)")]
        medians = (ours["end"] - ours["begin"]).groupby(ours["label"].astype(str)).median() * 1e-9
        update = {str(label): float(time) for label, time in medians.items() if str(label).startswith("update")}
        rest = {str(label): float(time) / images for label, time in medians.items() if str(label) not in update}
        return ComputeTimes(rest, update)
    raise ValueError(f"{run.path} has no measured training of {model!r} with events")
