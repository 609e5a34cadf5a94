"""The networks again, written with PyTorch's modules from the papers and prototxts, as oracles.

Each takes NCHW images and returns its logits, GoogLeNet those of its auxiliary classifiers too; dropout is left
out. Modules are made in the order of hpcdl's flat vector, so that parameters correspond one to one. Numbers of input
channels are those of a first batch of zeros.
"""

from functools import partial, wraps

import torch
from torch import nn
from torch.nn import functional


def outcome(network, images, labels):
    """Return logits and mean loss of a batch; those of auxiliary classifiers count 0.3."""
    outputs = network(images)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    losses = [functional.cross_entropy(logits, labels) for logits in outputs]
    return outputs[0], losses[0] + 0.3 * sum(losses[1:])


def sized(build):
    """Return a function that builds the network for images of a shape (H, W, C)."""

    @wraps(build)
    def built(shape, classes, **settings):
        network = build(shape, classes, **settings).eval()
        with torch.no_grad():
            network(torch.zeros(1, shape[2], *shape[:2]))
        return network.train()

    return built


def conv(filters, kernel, **arguments):
    return nn.Sequential(nn.LazyConv2d(filters, kernel, **arguments), nn.ReLU())


def convs(kernel, first, *others, **arguments):
    """A convolution and others of 1x1."""
    return nn.Sequential(conv(first, kernel, **arguments), *(conv(filters, 1) for filters in others))


def max_pool(kernel, stride, **arguments):
    return nn.MaxPool2d(kernel, stride, **{"ceil_mode": True, **arguments})


def average_pool(kernel, stride):
    return nn.AvgPool2d(kernel, stride, ceil_mode=True)


response = partial(nn.LocalResponseNorm, 5, alpha=1e-4, beta=0.75, k=1.0)
norm = partial(nn.LazyBatchNorm2d, eps=1e-5, momentum=0.1)
plain = partial(nn.LazyConv2d, bias=False)


class Flatten(nn.Module):
    """To vectors with channels fastest, as the columns of hpcdl's matrices are."""

    def forward(self, x):
        return x.permute(0, 2, 3, 1).flatten(1)


class GlobalAverage(nn.Module):
    def forward(self, x):
        return x.mean((2, 3))


def classifier(classes, hidden=4096):
    hidden = (nn.LazyLinear(hidden), nn.ReLU(), nn.LazyLinear(4096), nn.ReLU())
    return [Flatten(), *hidden, nn.LazyLinear(classes)]


@sized
def lenet5(shape, classes):
    padding = 0 if min(shape[:2]) >= 16 else 2
    features = [nn.LazyConv2d(20, 5, padding=padding), max_pool(2, 2)]
    features += [nn.LazyConv2d(50, 5, padding=padding), max_pool(2, 2), Flatten()]
    return nn.Sequential(*features, nn.LazyLinear(500), nn.ReLU(), nn.LazyLinear(classes))


@sized
def cifar_quick(_shape, classes):
    features = [nn.LazyConv2d(32, 5, padding=2), max_pool(3, 2), nn.ReLU()]
    for filters in (32, 64):
        features += [conv(filters, 5, padding=2), average_pool(3, 2)]
    return nn.Sequential(*features, Flatten(), nn.LazyLinear(64), nn.LazyLinear(classes))


@sized
def nin_cifar(_shape, classes):
    return nn.Sequential(
        convs(5, 192, 160, 96, padding=2),
        max_pool(3, 2),
        convs(5, 192, 192, 192, padding=2),
        average_pool(3, 2),
        convs(3, 192, 192, classes, padding=1),
        GlobalAverage(),
    )


@sized
def nin(_shape, classes):
    return nn.Sequential(
        convs(11, 96, 96, 96, stride=4),
        max_pool(3, 2),
        convs(5, 256, 256, 256, padding=2),
        max_pool(3, 2),
        convs(3, 384, 384, 384, padding=1),
        max_pool(3, 2),
        convs(3, 1024, 1024, classes, padding=1),
        GlobalAverage(),
    )


@sized
def alexnet(_shape, classes, groups=2):
    return nn.Sequential(
        *(conv(96, 11, stride=4), response(), max_pool(3, 2)),
        *(conv(256, 5, padding=2, groups=groups), response(), max_pool(3, 2)),
        conv(384, 3, padding=1),
        conv(384, 3, padding=1, groups=groups),
        conv(256, 3, padding=1, groups=groups),
        max_pool(3, 2),
        *classifier(classes),
    )


@sized
def overfeat(_shape, classes):
    return nn.Sequential(
        *(conv(96, 11, stride=4), max_pool(2, 2), conv(256, 5), max_pool(2, 2)),
        *(conv(filters, 3, padding=1) for filters in (512, 1024, 1024)),
        *(max_pool(2, 2), *classifier(classes, 3072)),
    )


def vgg(depths):
    def build(_shape, classes):
        layers = []
        for filters, depth in zip((64, 128, 256, 512, 512), depths, strict=True):
            layers += [*(conv(filters, 3, padding=1) for _ in range(depth)), max_pool(2, 2)]
        return nn.Sequential(*layers, *classifier(classes))

    return sized(build)


vgg11, vgg16, vgg19 = vgg((1, 1, 2, 2, 2)), vgg((2, 2, 3, 3, 3)), vgg((2, 2, 4, 4, 4))


class Inception(nn.Module):
    def __init__(self, ch1x1, ch3x3red, ch3x3, ch5x5red, ch5x5, pool_proj):
        super().__init__()
        self.branches = nn.ModuleList(
            [
                conv(ch1x1, 1),
                nn.Sequential(conv(ch3x3red, 1), conv(ch3x3, 3, padding=1)),
                nn.Sequential(conv(ch5x5red, 1), conv(ch5x5, 5, padding=2)),
                nn.Sequential(max_pool(3, 1, padding=1), conv(pool_proj, 1)),
            ]
        )

    def forward(self, x):
        return torch.cat([branch(x) for branch in self.branches], 1)


class GoogLeNet(nn.Module):
    def __init__(self, classes, auxiliary):
        super().__init__()
        self.upto4a = nn.Sequential(
            *(conv(64, 7, stride=2, padding=3), max_pool(3, 2), response()),
            *(conv(64, 1), conv(192, 3, padding=1), response(), max_pool(3, 2)),
            Inception(64, 96, 128, 16, 32, 32),
            Inception(128, 128, 192, 32, 96, 64),
            max_pool(3, 2),
            Inception(192, 96, 208, 16, 48, 64),
        )
        self.loss1 = self.head(classes) if auxiliary else None
        self.upto4d = nn.Sequential(
            Inception(160, 112, 224, 24, 64, 64),
            Inception(128, 128, 256, 24, 64, 64),
            Inception(112, 144, 288, 32, 64, 64),
        )
        self.loss2 = self.head(classes) if auxiliary else None
        self.end = nn.Sequential(
            Inception(256, 160, 320, 32, 128, 128),
            max_pool(3, 2),
            Inception(256, 160, 320, 32, 128, 128),
            Inception(384, 192, 384, 48, 128, 128),
            *(GlobalAverage(), nn.LazyLinear(classes)),
        )

    def head(self, classes):
        hidden = (nn.LazyLinear(1024), nn.ReLU(), nn.LazyLinear(classes))
        return nn.Sequential(average_pool(5, 3), conv(128, 1), Flatten(), *hidden)

    def forward(self, x):
        early = self.upto4a(x)
        late = self.upto4d(early)
        logits = self.end(late)
        return logits if self.loss1 is None else (logits, self.loss1(early), self.loss2(late))


@sized
def googlenet(_shape, classes, auxiliary=True):
    return GoogLeNet(classes, auxiliary)


@sized
def inception_small(_shape, classes):
    return nn.Sequential(
        *(conv(32, 3, padding=1), max_pool(3, 2), conv(32, 1), conv(96, 3, padding=1)),
        *(Inception(32, 48, 64, 8, 16, 16), Inception(64, 64, 96, 16, 48, 32), max_pool(3, 2)),
        *(Inception(96, 48, 104, 8, 24, 32), Inception(80, 56, 112, 12, 32, 32)),
        *(GlobalAverage(), nn.LazyLinear(classes)),
    )


class Residual(nn.Module):
    def __init__(self, shortcut, *branch):
        super().__init__()
        self.branch, self.shortcut = nn.Sequential(*branch), shortcut

    def forward(self, x):
        return functional.relu(self.branch(x) + self.shortcut(x))


class Padded(nn.Module):
    """Every second pixel, and zeros for further channels."""

    def __init__(self, added):
        super().__init__()
        self.added = added

    def forward(self, x):
        return functional.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, 0, self.added))


def projected(filters, stride):
    return nn.Sequential(plain(filters, 1, stride), norm())


def cifar_resnet(n):
    def build(_shape, classes, option="A"):
        blocks = []
        for filters in (16, 32, 64):
            for i in range(n):
                stride, shortcut = 1, nn.Identity()
                if i == 0 and filters > 16:
                    stride, shortcut = 2, projected(filters, 2) if option == "B" else Padded(filters // 2)
                first, second = plain(filters, 3, stride, 1), plain(filters, 3, 1, 1)
                blocks.append(Residual(shortcut, first, norm(), nn.ReLU(), second, norm()))
        start = [plain(16, 3, 1, 1), norm(), nn.ReLU()]
        return nn.Sequential(*start, *blocks, GlobalAverage(), nn.LazyLinear(classes))

    return sized(build)


resnet20, resnet56 = cifar_resnet(3), cifar_resnet(9)


@sized
def resnet50(_shape, classes):
    blocks = []
    for width, depth in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for i in range(depth):
            stride = 2 if width > 64 and i == 0 else 1
            reduce, middle, expand = plain(width, 1), plain(width, 3, stride, 1), plain(4 * width, 1)
            branch = (reduce, norm(), nn.ReLU(), middle, norm(), nn.ReLU(), expand, norm())
            blocks.append(Residual(nn.Identity() if i else projected(4 * width, stride), *branch))
    start = [plain(64, 7, 2, 3), norm(), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    return nn.Sequential(*start, *blocks, GlobalAverage(), nn.LazyLinear(classes))


@sized
def distbelief_speech(_shape, classes):
    hidden = [module for _ in range(4) for module in (nn.LazyLinear(2560), nn.Sigmoid())]
    return nn.Sequential(Flatten(), *hidden, nn.LazyLinear(classes))


class LocallyConnected2d(nn.Module):
    """Untied filters (P, Q, K, R, S, C), by unfolding."""

    def __init__(self, height, width, channels, filters, kernel):
        super().__init__()
        self.window = (channels, kernel, kernel)
        self.places = (height - kernel + 1, width - kernel + 1)
        self.weight = nn.Parameter(torch.empty(*self.places, filters, kernel, kernel, channels))
        self.bias = nn.Parameter(torch.empty(*self.places, filters))

    def forward(self, x):
        windows = functional.unfold(x, self.window[1:]).reshape(len(x), *self.window, *self.places)
        return torch.einsum("ncrspq,pqkrsc->nkpq", windows, self.weight) + self.bias.permute(2, 0, 1)


@sized
def locally_connected_vision(shape, classes, maps=8):
    height, width, channels = shape
    patch = max(min(height, width) // 10, 2)
    layers = []
    for _ in range(3):
        local = LocallyConnected2d(height, width, channels, maps, patch)
        layers += [local, nn.ReLU(), max_pool(2, 2), response()]
        height, width, channels = -(-local.places[0] // 2), -(-local.places[1] // 2), maps
    return nn.Sequential(*layers, Flatten(), nn.LazyLinear(classes))
