"""One-line errors for impossible shapes."""

import pytest

from hpcdl.nn.composite import Concat, Residual
from hpcdl.nn.layers import LRN, AveragePooling, BatchNorm, Convolution, Dropout, GlobalAverage, Linear, MaxPooling


def test_impossible_shapes_name_the_layer():
    for layer, shape, message in [
        (Convolution("c1", 4, 5), (4, 8, 3), r"^c1: kernel 5x5 is larger than the padded image 4x8$"),
        (Convolution("c1", 4, 7, padding=1), (4, 8, 3), r"^c1: kernel 7x7 is larger than .* 6x10$"),
        (Convolution("c1", 4, 3, groups=2), (8, 8, 3), r"^c1: 2 groups do not divide 3 channels, 4 filters$"),
        (Convolution("c1", 5, 3, groups=2), (8, 8, 4), r"^c1: 2 groups do not divide 4 channels, 5 filters$"),
        (Convolution("c1", 4, 3, groups=0), (8, 8, 4), r"^c1: 0 groups"),
        (Convolution("c1", 0, 3), (8, 8, 4), r"^c1: .* 0 filters$"),
        (Convolution("c1", 4, 3, stride=0), (8, 8, 4), r"^c1: .*stride \(0, 0\)"),
        (Convolution("c1", 4, 3), (20,), r"^c1: needs an image .*\(20,\)$"),
        (MaxPooling("p1", 3), (2, 2, 3), r"^p1: kernel 3x3 is larger than the padded image 2x2$"),
        (AveragePooling("p1", 2, padding=2), (8, 8, 3), r"^p1: padding \(2, 2\)"),
        (MaxPooling("p1", 2, mode="round"), (8, 8, 3), r"^p1: rounding 'round'"),
        (GlobalAverage("g1"), (12,), r"^g1: needs an image"),
        (Linear("l1", 3), (2, 2, 3), r"^l1: needs vectors, got shape \(2, 2, 3\)"),
        (Linear("l1", 0), (3,), r"^l1: needs at least 1 output, got 0$"),
        (LRN("n1", 4), (2, 2, 3), r"^n1: size must be odd and positive, got 4$"),
        (Dropout("d1", 1.0), (2,), r"^d1: ratio must be .* got 1\.0$"),
        (BatchNorm("b1", eps=0), (2,), r"^b1: eps"),
        (BatchNorm("b1", momentum=1.5), (2,), r"^b1: .*1\.5$"),
        (Concat("m1", [[Convolution("a", 2, 1)], [Convolution("b", 2, 3)]]), (5, 5, 2), r"^m1: branches end in"),
        (Concat("m1", [[]]), (5, 5, 2), r"^m1: needs two branches or more, got 1$"),
        (Residual("r1", [Convolution("a", 2, 1)]), (5, 5, 3), r"^r1: .*\(5, 5, 2\).*\(5, 5, 3\)$"),
    ]:
        with pytest.raises(ValueError, match=message) as caught:
            layer.output(shape)
        assert "\n" not in str(caught.value)
