"""Images as BGAN takes them, which of them are neighbors, and BGAN's three networks with their losses.

The networks are functions of torch tensors; ``torch`` is passed in and never imported here. A network is a list of
tensors, drawn with NumPy. Only the network of the codes outlives a fit; generator and discriminator normalize over each
batch, and are dropped.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from scq_gpu._core.arrays import Array, namespace, to_host
from scq_gpu._core.validate import check_array
from scq_gpu.metrics import exact_neighbors

CHANNELS = (1, 3)


def check_images(X: Any, *, step: int, shape: tuple[int, ...] | None = None, min_images: int = 1) -> Array:
    """X as images (n, height, width, channels) of 0 to 255 in integers, or 0 to 1 in floats.

    Height and width are multiples of ``step``, by which the network makes images smaller; ``shape`` is that of images
    it was trained on.
    """
    X = check_array(X, name="X", min_ndim=1)
    if X.ndim != 4 or X.shape[3] not in CHANNELS:
        raise ValueError(
            f"X has shape {tuple(X.shape)}; images are (n, height, width, channels) with 1 or 3 channels. Move "
            "channels to the end, and give a single image as X[None]"
        )
    if shape is not None and tuple(X.shape[1:]) != tuple(shape):
        raise ValueError(f"X has images of {tuple(X.shape[1:])}; this BGAN was fitted on {tuple(shape)}: resize them")
    if shape is None and (X.shape[1] % step or X.shape[2] % step or 0 in X.shape[1:3]):
        raise ValueError(
            f"X has images of {X.shape[1]} x {X.shape[2]}; height and width must be multiples of {step}: resize or pad"
        )
    if X.shape[0] < min_images:
        raise ValueError(f"Found array with n_samples={X.shape[0]} while a minimum of {min_images} is required.")
    _check_range(X)
    return X


def _check_range(X: Array) -> None:
    xp = namespace(X)
    floats = xp.isdtype(X.dtype, "real floating")
    low, high = float(xp.min(X)), float(xp.max(X))  # NaN, if there is one
    if not (np.isfinite(low) and np.isfinite(high)):
        host = to_host(X)
        bad = np.argwhere(~np.isfinite(host))[0]
        raise ValueError(
            f"Input X contains NaN or inf: first {host[tuple(bad)]} in image {bad[0]}, at row {bad[1]}, column "
            f"{bad[2]}, channel {bad[3]}. Drop such images or fill them in"
        )
    top = 1 if floats else 255
    if low < 0 or high > top:
        kind = "floats are 0 to 1" if floats else "integers are 0 to 255"
        cure = "divide by 255" if floats and high <= 255 and low >= 0 else "scale them"
        raise ValueError(f"X has values from {low:g} to {high:g}; images of {kind}: {cure}")


def scaled(X: Array) -> Array:
    """Checked images in float32, from 0 to 1."""
    xp = namespace(X)
    if xp.isdtype(X.dtype, "real floating"):
        return xp.astype(X, xp.float32)
    return xp.astype(X, xp.float32) / 255


def pixels(X: Array) -> np.ndarray:
    """Images as centered rows (n, height * width * channels): the features that there always are."""
    rows: np.ndarray = to_host(scaled(X)).reshape(X.shape[0], -1)
    centered: np.ndarray = rows - rows.mean(axis=0)
    return centered


def neighborhood(features: np.ndarray, *, nearest: int, lists: int) -> Any:
    """Which images are neighbors: a symmetric sparse matrix (n, n) of booleans, true on its diagonal.

    Each image has a list of itself and the ``nearest`` most alike by cosine. The neighbors of an image are all images
    on the ``lists`` lists that have most in common with its own; of equally good ones the first images' are taken.
    """
    from scipy import sparse  # takes longer to import than this package

    n = len(features)

    def incidence(ids: np.ndarray) -> Any:
        """1 where ids (n, k) name a column."""
        rows = np.repeat(np.arange(n), ids.shape[1])
        found = sparse.csr_array((np.ones(ids.size, dtype=np.int32), (rows, ids.ravel())), shape=(n, n))
        found.data[:] = 1  # where a row names a column twice
        return found

    own = incidence(exact_neighbors(features, features, k=min(nearest + 1, n), metric="cosine"))
    own.setdiag(1)
    common = (own @ own.T).tocsr()  # how many images two lists share
    best = incidence(np.stack([_largest(common, i, min(lists, n)) for i in range(n)]))
    reached = (best @ own).tocsr()
    return (reached + reached.T) > 0


def _largest(common: Any, i: int, k: int) -> np.ndarray:
    """Columns of the k largest entries of row i; repeated, where it has fewer."""
    part = slice(common.indptr[i], common.indptr[i + 1])
    columns, values = common.indices[part], common.data[part]
    found: np.ndarray = np.resize(columns[np.lexsort((columns, -values))][:k], k)
    return found


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
