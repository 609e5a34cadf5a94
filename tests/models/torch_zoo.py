"""The networks again, written with PyTorch's modules from the papers and prototxts, as oracles.

Each takes NCHW images and returns its logits, GoogLeNet those of its auxiliary classifiers too; dropout is left
out. Modules are made in the order of hpcdl's flat vector, so that parameters correspond one to one.
"""

import torch
from torch import nn
from torch.nn import functional


def outcome(network, images, labels):
    """Return logits and mean loss of a batch; those of auxiliary classifiers count 0.3."""
    outputs = network(images)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    losses = [functional.cross_entropy(logits, labels) for logits in outputs]
    return outputs[0], losses[0] + 0.3 * sum(losses[1:])


class Flatten(nn.Module):
    """To vectors with channels fastest, as the columns of hpcdl's matrices are."""

    def forward(self, x):
        return x.permute(0, 2, 3, 1).flatten(1)


class GlobalAverage(nn.Module):
    def forward(self, x):
        return x.mean((2, 3))


def conv(channels, filters, kernel, **arguments):
    return nn.Sequential(nn.Conv2d(channels, filters, kernel, **arguments), nn.ReLU())


def max_pool(kernel, stride, **arguments):
    return nn.MaxPool2d(kernel, stride, **{"ceil_mode": True, **arguments})


def average_pool(kernel, stride):
    return nn.AvgPool2d(kernel, stride, ceil_mode=True)


def size(features, shape):
    """Length of the vectors that ``features`` makes of NHWC images."""
    height, width, channels = shape
    with torch.no_grad():
        return features(torch.zeros(1, channels, height, width)).shape[1]


def lenet5(shape, classes):
    padding = 0 if min(shape[:2]) >= 16 else 2
    features = nn.Sequential(
        nn.Conv2d(shape[2], 20, 5, padding=padding),
        max_pool(2, 2),
        nn.Conv2d(20, 50, 5, padding=padding),
        max_pool(2, 2),
        Flatten(),
    )
    return nn.Sequential(features, nn.Linear(size(features, shape), 500), nn.ReLU(), nn.Linear(500, classes))


def cifar_quick(shape, classes):
    features = nn.Sequential(
        nn.Conv2d(shape[2], 32, 5, padding=2),
        max_pool(3, 2),
        nn.ReLU(),
        conv(32, 32, 5, padding=2),
        average_pool(3, 2),
        conv(32, 64, 5, padding=2),
        average_pool(3, 2),
        Flatten(),
    )
    return nn.Sequential(features, nn.Linear(size(features, shape), 64), nn.Linear(64, classes))


def nin_cifar(shape, classes):
    return nn.Sequential(
        conv(shape[2], 192, 5, padding=2),
        conv(192, 160, 1),
        conv(160, 96, 1),
        max_pool(3, 2),
        conv(96, 192, 5, padding=2),
        conv(192, 192, 1),
        conv(192, 192, 1),
        average_pool(3, 2),
        conv(192, 192, 3, padding=1),
        conv(192, 192, 1),
        conv(192, classes, 1),
        GlobalAverage(),
    )


def nin(shape, classes):
    return nn.Sequential(
        conv(shape[2], 96, 11, stride=4),
        conv(96, 96, 1),
        conv(96, 96, 1),
        max_pool(3, 2),
        conv(96, 256, 5, padding=2),
        conv(256, 256, 1),
        conv(256, 256, 1),
        max_pool(3, 2),
        conv(256, 384, 3, padding=1),
        conv(384, 384, 1),
        conv(384, 384, 1),
        max_pool(3, 2),
        conv(384, 1024, 3, padding=1),
        conv(1024, 1024, 1),
        conv(1024, classes, 1),
        GlobalAverage(),
    )


def alexnet(shape, classes, groups=2):
    features = nn.Sequential(
        conv(shape[2], 96, 11, stride=4),
        nn.LocalResponseNorm(5, alpha=1e-4, beta=0.75, k=1.0),
        max_pool(3, 2),
        conv(96, 256, 5, padding=2, groups=groups),
        nn.LocalResponseNorm(5, alpha=1e-4, beta=0.75, k=1.0),
        max_pool(3, 2),
        conv(256, 384, 3, padding=1),
        conv(384, 384, 3, padding=1, groups=groups),
        conv(384, 256, 3, padding=1, groups=groups),
        max_pool(3, 2),
        Flatten(),
    )
    return nn.Sequential(features, *fully_connected(size(features, shape), classes))


def fully_connected(inputs, classes):
    return [nn.Linear(inputs, 4096), nn.ReLU(), nn.Linear(4096, 4096), nn.ReLU(), nn.Linear(4096, classes)]


def vgg(shape, classes, plan):
    layers, channels = [], shape[2]
    for part in plan:
        if part == "M":
            layers.append(max_pool(2, 2))
        else:
            layers.append(conv(channels, part, 3, padding=1))
            channels = part
    features = nn.Sequential(*layers, Flatten())
    return nn.Sequential(features, *fully_connected(size(features, shape), classes))


def vgg11(shape, classes):
    return vgg(shape, classes, [64, "M", 128, "M", 256, 256, "M", 512, 512, "M", 512, 512, "M"])


def vgg16(shape, classes):
    triples = [256, 256, 256, "M", 512, 512, 512, "M", 512, 512, 512, "M"]
    return vgg(shape, classes, [64, 64, "M", 128, 128, "M", *triples])


def vgg19(shape, classes):
    fours = [256, 256, 256, 256, "M", 512, 512, 512, 512, "M", 512, 512, 512, 512, "M"]
    return vgg(shape, classes, [64, 64, "M", 128, 128, "M", *fours])


class Inception(nn.Module):
    def __init__(self, channels, ch1x1, ch3x3red, ch3x3, ch5x5red, ch5x5, pool_proj):
        super().__init__()
        self.branch1 = conv(channels, ch1x1, 1)
        self.branch2 = nn.Sequential(conv(channels, ch3x3red, 1), conv(ch3x3red, ch3x3, 3, padding=1))
        self.branch3 = nn.Sequential(conv(channels, ch5x5red, 1), conv(ch5x5red, ch5x5, 5, padding=2))
        self.branch4 = nn.Sequential(max_pool(3, 1, padding=1), conv(channels, pool_proj, 1))

    def forward(self, x):
        return torch.cat([self.branch1(x), self.branch2(x), self.branch3(x), self.branch4(x)], 1)


class InceptionHead(nn.Module):
    def __init__(self, channels, pixels, classes):
        super().__init__()
        self.pool = average_pool(5, 3)
        self.conv = conv(channels, 128, 1)
        self.flatten = Flatten()
        self.fc1 = nn.Linear(128 * pixels, 1024)
        self.fc2 = nn.Linear(1024, classes)

    def forward(self, x):
        x = self.flatten(self.conv(self.pool(x)))
        return self.fc2(functional.relu(self.fc1(x)))


class GoogLeNet(nn.Module):
    def __init__(self, shape, classes, auxiliary):
        super().__init__()
        self.start = nn.Sequential(
            conv(shape[2], 64, 7, stride=2, padding=3),
            max_pool(3, 2),
            nn.LocalResponseNorm(5, alpha=1e-4, beta=0.75, k=1.0),
            conv(64, 64, 1),
            conv(64, 192, 3, padding=1),
            nn.LocalResponseNorm(5, alpha=1e-4, beta=0.75, k=1.0),
            max_pool(3, 2),
        )
        self.upto4a = nn.Sequential(
            Inception(192, 64, 96, 128, 16, 32, 32),
            Inception(256, 128, 128, 192, 32, 96, 64),
            max_pool(3, 2),
            Inception(480, 192, 96, 208, 16, 48, 64),
        )
        features = nn.Sequential(self.start, self.upto4a, average_pool(5, 3), Flatten())
        pixels = size(features, shape) // 512 if auxiliary else None
        self.loss1 = InceptionHead(512, pixels, classes) if auxiliary else None
        self.upto4d = nn.Sequential(
            Inception(512, 160, 112, 224, 24, 64, 64),
            Inception(512, 128, 128, 256, 24, 64, 64),
            Inception(512, 112, 144, 288, 32, 64, 64),
        )
        self.loss2 = InceptionHead(528, pixels, classes) if auxiliary else None
        self.end = nn.Sequential(
            Inception(528, 256, 160, 320, 32, 128, 128),
            max_pool(3, 2),
            Inception(832, 256, 160, 320, 32, 128, 128),
            Inception(832, 384, 192, 384, 48, 128, 128),
            GlobalAverage(),
            nn.Linear(1024, classes),
        )

    def forward(self, x):
        early = self.upto4a(self.start(x))
        late = self.upto4d(early)
        logits = self.end(late)
        if self.loss1 is None:
            return logits
        return logits, self.loss1(early), self.loss2(late)


def googlenet(shape, classes, auxiliary=True):
    return GoogLeNet(shape, classes, auxiliary)


def norm(channels):
    return nn.BatchNorm2d(channels, eps=1e-5, momentum=0.1)


class BasicBlock(nn.Module):
    def __init__(self, channels, filters, stride, option):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, filters, 3, stride, 1, bias=False)
        self.bn1 = norm(filters)
        self.conv2 = nn.Conv2d(filters, filters, 3, 1, 1, bias=False)
        self.bn2 = norm(filters)
        self.added = filters - channels
        self.downsample = None
        if self.added and option == "B":
            self.downsample = nn.Sequential(nn.Conv2d(channels, filters, 1, stride, bias=False), norm(filters))

    def forward(self, x):
        shortcut = x
        if self.downsample is not None:
            shortcut = self.downsample(x)
        elif self.added:
            shortcut = functional.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, 0, self.added))
        out = functional.relu(self.bn1(self.conv1(x)))
        return functional.relu(self.bn2(self.conv2(out)) + shortcut)


def cifar_resnet(shape, classes, n, option):
    blocks, channels = [], 16
    for filters in (16, 32, 64):
        for i in range(n):
            blocks.append(BasicBlock(channels, filters, 2 if i == 0 and filters > 16 else 1, option))
            channels = filters
    start = [nn.Conv2d(shape[2], 16, 3, 1, 1, bias=False), norm(16), nn.ReLU()]
    return nn.Sequential(*start, *blocks, GlobalAverage(), nn.Linear(64, classes))


def resnet20(shape, classes, option="A"):
    return cifar_resnet(shape, classes, 3, option)


def resnet56(shape, classes, option="A"):
    return cifar_resnet(shape, classes, 9, option)


class Bottleneck(nn.Module):
    def __init__(self, channels, width, stride, project):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, width, 1, bias=False)
        self.bn1 = norm(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.bn2 = norm(width)
        self.conv3 = nn.Conv2d(width, 4 * width, 1, bias=False)
        self.bn3 = norm(4 * width)
        self.downsample = nn.Identity()
        if project:
            self.downsample = nn.Sequential(nn.Conv2d(channels, 4 * width, 1, stride, bias=False), norm(4 * width))

    def forward(self, x):
        out = functional.relu(self.bn1(self.conv1(x)))
        out = functional.relu(self.bn2(self.conv2(out)))
        return functional.relu(self.bn3(self.conv3(out)) + self.downsample(x))


def resnet50(shape, classes):
    blocks, channels = [], 64
    for width, depth in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for i in range(depth):
            blocks.append(Bottleneck(channels, width, 2 if i == 0 and width > 64 else 1, i == 0))
            channels = 4 * width
    return nn.Sequential(
        nn.Conv2d(shape[2], 64, 7, 2, 3, bias=False),
        norm(64),
        nn.ReLU(),
        nn.MaxPool2d(3, 2, 1),
        *blocks,
        GlobalAverage(),
        nn.Linear(2048, classes),
    )


def distbelief_speech(shape, classes):
    inputs, layers = shape[0] * shape[1] * shape[2], [Flatten()]
    for _ in range(4):
        layers += [nn.Linear(inputs, 2560), nn.Sigmoid()]
        inputs = 2560
    return nn.Sequential(*layers, nn.Linear(2560, classes))


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


def locally_connected_vision(shape, classes, maps=8):
    height, width, channels = shape
    patch = max(min(height, width) // 10, 2)
    layers = []
    for _ in range(3):
        local = LocallyConnected2d(height, width, channels, maps, patch)
        layers += [local, nn.ReLU(), max_pool(2, 2), nn.LocalResponseNorm(5, alpha=1e-4, beta=0.75, k=1.0)]
        height, width, channels = -(-local.places[0] // 2), -(-local.places[1] // 2), maps
    return nn.Sequential(*layers, Flatten(), nn.Linear(height * width * maps, classes))
