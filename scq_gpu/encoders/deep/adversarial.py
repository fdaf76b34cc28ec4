"""BGAN's three networks and its losses, as functions of torch tensors; ``torch`` is handed in, never imported here.

A network is a list of tensors, drawn with NumPy. Only that of the codes outlives a fit; generator and discriminator
normalize over each batch, and are dropped.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Tensor = Any


@dataclass(frozen=True)
class Sizes:
    """How large the networks are."""

    convolutions: tuple[tuple[int, ...], ...]  # channels, 3 x 3; each group ends in a 2 x 2 maximum
    dense: tuple[int, ...]  # features
    generator: tuple[int, int, int, int]  # channels, from an eighth of the image's side up by 5 x 5
    discriminator: tuple[int, ...]  # channels, 5 x 5; all but the first halve the side
    judge: int  # features of the discriminator

    @property
    def step(self) -> int:
        """What height and width must be multiples of."""
        return math.lcm(2 ** len(self.convolutions), 8)


SIZES = {
    "small": Sizes(((32,), (64,), (128,)), (256,), (64, 64, 32, 16), (16, 32, 64), 256),
    "vgg19": Sizes(
        ((64,) * 2, (128,) * 2, (256,) * 4, (512,) * 4, (512,) * 4),
        (4096, 4096),
        (256, 256, 128, 32),
        (32, 128, 256, 256),
        1024,
    ),
}
Shape = tuple[int, int, int]  # of an image: height, width, channels


def encoder_shapes(sizes: Sizes, image: Shape, n_bits: int) -> list[tuple[int, ...]]:
    """Shapes of the parameters of the network of the codes, weights and shifts in turn."""
    shapes: list[tuple[int, ...]] = []
    below = image[2]
    for channels in (c for group in sizes.convolutions for c in group):
        shapes += [(channels, below, 3, 3), (channels,)]
        below = channels
    side = 2 ** len(sizes.convolutions)
    below *= (image[0] // side) * (image[1] // side)
    for width in (*sizes.dense, n_bits):
        shapes += [(width, below), (width,)]
        below = width
    return shapes


def generator_shapes(sizes: Sizes, image: Shape, n_bits: int) -> list[tuple[int, ...]]:
    """Shapes of the generator's: a dense layer, three that double the side, one to colors."""
    first, *widths = sizes.generator
    area = (image[0] // 8) * (image[1] // 8)
    shapes: list[tuple[int, ...]] = [(first * area, n_bits), (first * area,)]
    below = first
    for width in widths:
        shapes += [(below, width, 5, 5), (width,)]
        below = width
    return [*shapes, (image[2], below, 1, 1), (image[2],)]


def discriminator_shapes(sizes: Sizes, image: Shape) -> list[tuple[int, ...]]:
    """Shapes of the discriminator's."""
    shapes: list[tuple[int, ...]] = []
    below, halvings = image[2], len(sizes.discriminator) - 1
    for width in sizes.discriminator:
        shapes += [(width, below, 5, 5), (width,)]
        below = width
    area = math.prod(-(-side // 2**halvings) for side in image[:2])
    return [*shapes, (sizes.judge, below * area), (sizes.judge,), (1, sizes.judge), (1,)]


def draw(shapes: Sequence[tuple[int, ...]], rng: np.random.Generator) -> list[np.ndarray]:
    """First weights, normal with the variance that keeps that of what goes through (He et al.); shifts of 0."""

    def one(shape: tuple[int, ...]) -> np.ndarray:
        if len(shape) == 1:
            return np.zeros(shape, dtype=np.float32)
        weights: np.ndarray = rng.standard_normal(shape) * np.sqrt(2 / math.prod(shape[1:]))
        return weights.astype(np.float32)

    return [one(shape) for shape in shapes]


def features(x: Tensor, parameters: Sequence[Tensor], sizes: Sizes, *, torch: Any) -> Tensor:
    """The last feature layer (n, width) of images (n, channels, height, width) of 0 to 1."""
    F = torch.nn.functional
    layers = iter(zip(parameters[::2], parameters[1::2], strict=True))
    x = 2 * x - 1
    for group in sizes.convolutions:
        for _ in group:
            W, c = next(layers)
            x = F.relu(F.conv2d(x, W, c, padding=1))
        x = F.max_pool2d(x, 2)
    x = x.flatten(1)
    for _ in sizes.dense:
        W, c = next(layers)
        x = F.relu(F.linear(x, W, c))
    return x


def scores(x: Tensor, parameters: Sequence[Tensor], sizes: Sizes, *, torch: Any) -> Tensor:
    """What the signs of are the bits (n, n_bits)."""
    return torch.nn.functional.linear(features(x, parameters, sizes, torch=torch), parameters[-2], parameters[-1])


def generate(z: Tensor, parameters: Sequence[Tensor], sizes: Sizes, image: Shape, *, torch: Any) -> Tensor:
    """Images from codes."""
    F = torch.nn.functional
    x = F.elu(F.linear(z, parameters[0], parameters[1]))
    x = x.reshape(len(z), sizes.generator[0], image[0] // 8, image[1] // 8)
    for W, c in zip(parameters[2:-2:2], parameters[3:-2:2], strict=True):
        x = F.conv_transpose2d(x, W, c, stride=2, padding=2, output_padding=1)
        x = F.elu(_normalized(x, F))
    return torch.sigmoid(F.conv2d(x, parameters[-2], parameters[-1]))


def judge(x: Tensor, parameters: Sequence[Tensor], sizes: Sizes, *, torch: Any) -> tuple[Tensor, Tensor]:
    """How real images look (n,), before the sigmoid, and the features that this is decided by."""
    F = torch.nn.functional
    for number, (W, c) in enumerate(zip(parameters[:-4:2], parameters[1:-4:2], strict=True)):
        x = F.conv2d(x, W, c, stride=1 if number == 0 else 2, padding=2)
        x = F.elu(x if number == 0 else _normalized(x, F))
    seen = F.elu(F.linear(x.flatten(1), parameters[-4], parameters[-3]))
    return F.linear(seen, parameters[-2], parameters[-1])[:, 0], seen


def _normalized(x: Tensor, F: Any) -> Tensor:
    """Each channel with mean 0 and variance 1 over the batch; a batch of one value is left as it is."""
    one_value = x.shape[0] * x.shape[2] * x.shape[3] == 1
    return x if one_value else F.batch_norm(x, None, None, training=True)


def soft_signs(a: Tensor, beta: float, *, torch: Any) -> Tensor:
    """``tanh(beta a)``, which is sign(a) in the limit of a large beta."""
    return torch.tanh(beta * a)


def neighbor_loss(z: Tensor, S: Tensor, *, balanced: bool) -> Tensor:
    """Mean of ``(z_i . z_j / n_bits - s_ij)^2 / 2`` over pairs; S is 1 for neighbors and -1 for others.

    Balanced is the mean of two means, over neighbors and over others. Among all pairs of a batch neighbors are few, and
    the codes of random weights are much alike: without the balance z = 0 is the nearest way to pull them apart.
    """
    cost = (z @ z.T / z.shape[1] - S) ** 2 / 2
    if not balanced:
        return cost.mean()
    near = (S > 0).to(z.dtype)
    far = 1 - near
    return ((cost * near).sum() / near.sum() + (cost * far).sum() / far.sum().clamp(min=1)) / 2


def squared_difference(x: Tensor, rebuilt: Tensor) -> Tensor:
    """The content loss, of pixels or of the discriminator's features: on average."""
    return ((x - rebuilt) ** 2).mean()


def deceived_loss(fake: Tensor, *, torch: Any) -> Tensor:
    """What the generator pays: ``-log D(fake)``, on average."""
    return torch.nn.functional.softplus(-fake).mean()


def judge_loss(real: Tensor, fake: Tensor, *, torch: Any) -> Tensor:
    """What the discriminator pays: ``-log D(real) - log(1 - D(fake))``, on average."""
    softplus = torch.nn.functional.softplus
    return softplus(-real).mean() + softplus(fake).mean()
