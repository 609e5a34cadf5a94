"""Networks of DistBelief (Dean et al. 2012): speech, and images with locally connected layers."""

from typing import Final

from hpcdl.nn.geometry import Shape
from hpcdl.nn.layer import Layer
from hpcdl.nn.layers import LRN, Flatten, Linear, LocallyConnected, MaxPooling, Sigmoid

MAX_LAYERS: Final = 1000


def locally_connected_vision(shape: Shape = (100, 100, 3), classes: int = 1000, *, maps: int = 8) -> list[Layer]:
    """DistBelief's image network: three stages (locally connected, pooling, normalisation) and a classifier.

    After Dean et al. 2012, section 5, and Le et al. 2012. From the paper: images of 100x100, three stages, patches
    of 10x10, and ``maps`` from 8 to 36. Chosen here, because the paper does not specify it or hpcdl does not have
    it: ReLU, stride 1, maxima over 2x2 pixels, normalisation across maps instead of local contrast, one softmax
    instead of 21,000 logistic regressions. Patches are a tenth of the image's shorter side, at least 2x2, so
    images need 12x12 pixels. 29,555,000 parameters on 100x100x3.
    """
    patch = max(min(shape[:2]) // 10, 2)
    layers: list[Layer] = []
    for stage in range(1, 4):
        layers += [
            LocallyConnected(f"local{stage}", maps, patch, relu=True),
            MaxPooling(f"pool{stage}", 2),
            LRN(f"norm{stage}"),
        ]
    return [*layers, Flatten("flatten"), Linear("fc", classes)]


def distbelief_speech(
    shape: Shape = (11, 40, 1),  # noqa: ARG001
    classes: int = 8192,
    *,
    layers: int = 4,
    width: int = 2560,
) -> list[Layer]:
    """DistBelief's speech network: fully connected ``layers`` of ``width`` sigmoids, and a classifier.

    Dean et al. 2012, section 5: an input is 11 frames of speech with 40 log-energies each, and a class one of 8192
    acoustic states; 41,777,152 parameters. The paper does not specify initial weights; here they are Caffe's
    ``xavier``. Images of any shape are flattened.
    """
    if not 0 <= layers <= MAX_LAYERS:
        raise ValueError(f"layers must be 0 to {MAX_LAYERS}, not {layers}")
    network: list[Layer] = [Flatten("flatten")]
    for i in range(1, layers + 1):
        network += [Linear(f"fc{i}", width), Sigmoid(f"sigmoid{i}")]
    return [*network, Linear(f"fc{layers + 1}", classes)]


OFFERS: Final = {"distbelief_speech": distbelief_speech, "locally_connected_vision": locally_connected_vision}
