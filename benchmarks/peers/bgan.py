"""Binary generative adversarial network (Song, He, Gao, Xu, Hanjalic, Shen, 2018): images in, codes out."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Self

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import check_is_fitted

from peers import adversarial as nets
from peers.adversarial import check_images, neighborhood, pixels, scaled
from peers.dh import progress
from scq_gpu._core.arrays import Array, generator, like, row_slices, to_host, usable_device
from scq_gpu._core.validate import check_choice, check_integer, check_real, check_rows
from scq_gpu.encoders.base import BitEncoder

BETAS = (1.0, 2.5, 5.0, 7.5, 10.0)  # the authors', in equal shares of the epochs
_ENCODE_BATCH = 500


class BGAN(BitEncoder):
    r"""Binary generative adversarial network: codes that keep neighbors and from which images can be drawn [1]_.

    A convolutional network gives each image features, and they a code. In training the code is :math:`z = \tanh(\beta
    a)`, with :math:`\beta` growing until it is the sign of a. A generator draws an image from the code, and a
    discriminator tells such images from real ones. Network and generator minimize

    .. math:: \frac12 \left(\frac{z_i \cdot z_j}L - s_{ij}\right)^2 + \lambda_1 \left(|x - \tilde x|^2 +
              |f(x) - f(\tilde x)|^2\right) - \lambda_2 \log D(\tilde x)

    on average: codes of neighbors (:math:`s_{ij} = 1`) are alike and others (-1) are not, images are drawn as they
    were, in their pixels x and in the discriminator's features f, and they look real. Needs torch.

    Parameters
    ----------
    n_bits : int, default=32
    network : {"small", "vgg19"}, default="small"
        "small" has three convolutions and 256 features, and trains on CIFAR-10's images on a CPU; "vgg19" has the
        sizes of the original.
    neighborhood, content, adversarial : float
        Weights of the three terms.
    original : bool, default=False
        Whether to train as published: in the first term all pairs count alike, and the network of the codes learns from
        the discriminator too. From random weights that gives nearly all images the same codes. By default neighbors
        count half and others half, and what the discriminator says is for the generator alone.
    nearest, lists : int, default=20, 30
        An image has a list of the ``nearest`` most alike; its neighbors are those on the ``lists`` lists that have most
        in common with its own.
    batch_size : int, default=50
    learning_rate : float, default=1e-3
        Of Adam.
    max_iter : int, default=20
        Epochs, in five equal shares of growing :math:`\beta`.
    tol : float, default=1e-4
        The fit ends when an epoch at the last :math:`\beta` changes the loss by less than this, relatively.
    device : {None, "cpu", "cuda", "cuda:1", ...}, default=None
        Where torch works; None is the CPU, or where a torch tensor is.
    random_state : int, Generator or None, default=None
        Seed of the first weights and of the order of images: the same model on the same CPU.
    verbose : bool, default=False
        Show a progress bar, if standard error is a terminal.

    Attributes
    ----------
    parameters_ : array (n_parameters,) of float32
        The network of the codes, on the host; generator and discriminator are not kept.
    image_shape_ : list of int
        Height, width and channels.
    loss_curve_ : list of float
        Mean loss of each epoch, as the network of the codes has it. A larger :math:`\beta` may raise it.
    n_iter_ : int
    converged_ : bool
    n_features_in_, n_samples_ : int
        Values per image, and images.

    Notes
    -----
    The authors start from weights trained with labels, and find neighbors with such a network's features: pass
    features of your own to ``fit``. What differs otherwise is in docs/baselines.md.

    References
    ----------
    .. [1] J. Song, T. He, L. Gao, X. Xu, A. Hanjalic, H. T. Shen, "Binary generative adversarial networks for image
           retrieval", AAAI 2018.

    Examples
    --------
    >>> import numpy as np
    >>> from peers import BGAN
    >>> X = np.random.default_rng(0).integers(0, 256, size=(40, 16, 16, 3), dtype=np.uint8)
    >>> encoder = BGAN(n_bits=12, max_iter=1, tol=0, random_state=0).fit(X)  # doctest: +SKIP
    >>> encoder.encode(X).shape, encoder.features(X).shape  # doctest: +SKIP
    ((40, 2), (40, 256))
    """

    _fitted_arrays = ("parameters_",)
    _fitted_facts = ("n_features_in_", "n_samples_", "image_shape_", "loss_curve_", "n_iter_", "converged_")

    def __init__(
        self,
        n_bits: int = 32,
        *,
        network: str = "small",
        neighborhood: float = 1.0,
        content: float = 0.1,
        adversarial: float = 0.1,
        original: bool = False,
        nearest: int = 20,
        lists: int = 30,
        batch_size: int = 50,
        learning_rate: float = 1e-3,
        max_iter: int = 20,
        tol: float = 1e-4,
        device: str | None = None,
        random_state: Any = None,
        verbose: bool = False,
    ) -> None:
        self.n_bits = n_bits
        self.network = network
        self.neighborhood = neighborhood
        self.content = content
        self.adversarial = adversarial
        self.original = original
        self.nearest = nearest
        self.lists = lists
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.max_iter = max_iter
        self.tol = tol
        self.device = device
        self.random_state = random_state
        self.verbose = verbose

    def fit(self, X: Any, y: object = None, *, features: Any = None) -> Self:
        """Learn from images; no labels are used.

        A fit that does not finish, through an error or an interrupt, leaves the encoder as it was before.

        Parameters
        ----------
        X : array (n, height, width, channels)
            Integers of 0 to 255 or floats of 0 to 1, with 1 or 3 channels; height and width are multiples of 8 (of 32
            for "vgg19"). Two images at least.
        y : ignored
        features : array (n, d), optional
            What neighbors are found by, with the cosine: from a network that knows images, for instance. Default: the
            pixels, which know little.

        Returns
        -------
        self
        """
        fitted = copy.copy(self)
        fitted._fit_images(X, features)
        self.__dict__ = fitted.__dict__
        return self

    def _check_parameters(self) -> None:
        check_integer(self.n_bits, name="n_bits", minimum=1)
        check_choice(self.network, name="network", choices=nets.SIZES)
        if not isinstance(self.original, bool):
            raise ValueError(f"original={self.original!r} must be True or False")
        for name in ("neighborhood", "content", "adversarial", "tol"):
            check_real(getattr(self, name), name=name, minimum=0)
        check_real(self.learning_rate, name="learning_rate", minimum=0, strict=True)
        for name, least in (("nearest", 1), ("lists", 1), ("batch_size", 2), ("max_iter", 1)):
            check_integer(getattr(self, name), name=name, minimum=least)

    def _fit_images(self, X: Any, features: Any) -> None:
        self._check_parameters()
        sizes = nets.SIZES[self.network]
        X = check_images(X, step=sizes.step, min_images=2)
        n, *image = X.shape
        known = pixels(X) if features is None else to_host(check_rows(features)).astype(np.float32)
        if len(known) != n:
            raise ValueError(f"features has {len(known)} rows for {n} images; pass one per image, in their order")
        torch = _torch()
        device = self._device(X)
        near = neighborhood(known, nearest=self.nearest, lists=self.lists)
        rng = generator(self.random_state)
        game = _Game(self, sizes, (image[0], image[1], image[2]), rng, torch=torch, device=device)
        self._train(game, _indexable(X), near, rng)
        self.parameters_ = np.concatenate([to_host(x).ravel() for x in game.encoder])
        self.image_shape_ = [int(side) for side in image]
        self.n_features_in_, self.n_samples_ = math.prod(self.image_shape_), int(n)

    def _train(self, game: _Game, X: Array, near: Any, rng: np.random.Generator) -> None:
        """Epochs of both players."""
        curve: list[float] = []
        converged = False
        for epoch in progress(range(self.max_iter), self, ", epochs"):
            stage = epoch * len(BETAS) // self.max_iter
            losses = [
                game.play(X[part, ...], 2.0 * near[part][:, part].toarray() - 1.0, BETAS[stage])
                for part in _batches(X.shape[0], self.batch_size, rng)
            ]
            curve.append(float(np.mean([float(loss) for loss in losses])))
            if not math.isfinite(curve[-1]):
                raise ValueError(
                    f"the loss of BGAN is no longer a number in epoch {epoch + 1}; lower learning_rate "
                    f"(now {self.learning_rate:g})"
                )
            last = stage == len(BETAS) - 1 and epoch > 0
            converged = last and self.tol > 0 and abs(curve[-2] - curve[-1]) < self.tol * abs(curve[-1])
            if converged:
                break
        self.loss_curve_, self.n_iter_, self.converged_ = curve, len(curve), bool(converged)
        if self.tol > 0 and not converged:
            warnings.warn(
                f"BGAN stopped at max_iter={self.max_iter} before its loss settled within tol={self.tol:g}; "
                "raise max_iter or tol",
                ConvergenceWarning,
                stacklevel=2,
            )

    def features(self, X: Any) -> Array:
        """The last feature layer of images, from which the codes are made: what to fit `OnE` or `OgE` on.

        Parameters
        ----------
        X : array (n, height, width, channels)
            As in ``fit``, of the same height, width and channels.

        Returns
        -------
        array (n, width) of float32
            In X's namespace, on X's device.
        """
        return self._map_images(X, nets.features)

    def project(self, X: Any) -> Array:
        """Scores (n, n_bits) of images, whose signs are the bits."""
        return self._map_images(X, nets.scores)

    def _map_bits(self, X: Any, function: Callable[[Array], Array]) -> Array:
        return function(self.project(X) >= 0)

    def _map_images(self, X: Any, network: Callable[..., Any]) -> Array:
        check_is_fitted(self)
        sizes = nets.SIZES[self.network]
        height, width, channels = self.image_shape_
        X = check_images(X, step=sizes.step, shape=(height, width, channels))
        torch = _torch()
        device, here = self._device(X), _indexable(X)
        shapes = nets.encoder_shapes(sizes, (height, width, channels), self.n_bits)
        parameters = [torch.tensor(x, device=device) for x in _cut(self.parameters_, shapes)]
        with torch.no_grad():
            found = [
                network(_tensor(here[part, ...], torch, device), parameters, sizes, torch=torch)
                for part in row_slices(X.shape[0], _ENCODE_BATCH)
            ]
            return like(torch.cat(found), X)

    def _encode_valid(self, X: Any, encode: Callable[[Any], Array], on_invalid: str) -> Array:
        if on_invalid != "raise":
            raise ValueError(f"on_invalid={on_invalid!r} is not for images; drop those with NaN or inf before encoding")
        return encode(X)

    def to(self, device: str) -> Self:
        """Do all work from now on on a device.

        Parameters
        ----------
        device : {"cpu", "cuda", "cuda:1", ...}

        Returns
        -------
        self
        """
        _torch()
        usable_device(device, library="torch")
        self.device = device
        return self

    def _device(self, X: Array) -> str:
        """Where torch is to work."""
        if self.device is not None:
            return usable_device(self.device, library="torch")
        return str(X.device) if hasattr(X, "detach") else "cpu"

    @property
    def _n_features_out(self) -> int:
        return self.n_bits

    @classmethod
    def _array_shapes(cls, params: dict[str, Any], fitted: dict[str, Any]) -> dict[str, tuple[int, ...]]:
        image: Any = fitted.get("image_shape_")
        network = params.get("network")
        good = isinstance(image, list) and len(image) == 3 and all(type(s) is int and 0 < s < 1 << 20 for s in image)
        if not good or math.prod(image) != fitted.get("n_features_in_"):
            raise ValueError(f"image_shape_={str(image)[:100]} is no shape of its images")
        if not isinstance(network, str) or network not in nets.SIZES:
            raise ValueError(f"network={str(network)[:100]!r} is not one of {', '.join(map(repr, nets.SIZES))}")
        sizes = nets.SIZES[network]
        if image[0] % sizes.step or image[1] % sizes.step:
            raise ValueError(f"image_shape_={image} are no multiples of {sizes.step}")
        shapes = nets.encoder_shapes(sizes, (image[0], image[1], image[2]), params["n_bits"])
        return {"parameters_": (sum(math.prod(shape) for shape in shapes),)}

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array = False
        tags.array_api_support = False
        return tags


class _Losses(NamedTuple):
    """Of a batch, one for each of the three networks."""

    network: Any
    generator: Any
    discriminator: Any


class _Game:
    """The three networks, and the steps of the two players."""

    def __init__(
        self, options: BGAN, sizes: nets.Sizes, image: nets.Shape, rng: np.random.Generator, *, torch: Any, device: str
    ) -> None:
        self.torch, self.device, self.sizes, self.image, self.options = torch, device, sizes, image, options
        drawn = (
            nets.draw(shapes, rng)
            for shapes in (
                nets.encoder_shapes(sizes, image, options.n_bits),
                nets.generator_shapes(sizes, image, options.n_bits),
                nets.discriminator_shapes(sizes, image),
            )
        )
        self.encoder, self.generator, self.discriminator = (
            [torch.tensor(x, device=device, requires_grad=True) for x in arrays] for arrays in drawn
        )
        rate = options.learning_rate
        self._makers = torch.optim.Adam([*self.encoder, *self.generator], lr=rate)
        self._judge = torch.optim.Adam(self.discriminator, lr=rate)

    def play(self, images: Array, S: np.ndarray, beta: float) -> Any:
        """One step of the discriminator and one of the network and generator; the network's loss."""
        x = _tensor(images, self.torch, self.device)
        near = self.torch.tensor(S, dtype=x.dtype, device=self.device)
        paid = self.losses(x, near, beta)
        self._judge.zero_grad()
        paid.discriminator.backward(inputs=self.discriminator, retain_graph=True)
        self._makers.zero_grad()
        paid.network.backward(inputs=self.encoder, retain_graph=True)
        paid.generator.backward(inputs=self.generator)
        self._judge.step()
        self._makers.step()
        return paid.network.detach()

    def losses(self, x: Any, S: Any, beta: float) -> _Losses:
        """What each pays for a batch."""
        torch, options = self.torch, self.options
        z = nets.soft_signs(nets.scores(x, self.encoder, self.sizes, torch=torch), beta, torch=torch)
        drawn = nets.generate(z, self.generator, self.sizes, self.image, torch=torch)
        real, seen = nets.judge(x, self.discriminator, self.sizes, torch=torch)
        fake, seen_drawn = nets.judge(drawn, self.discriminator, self.sizes, torch=torch)
        kept = options.neighborhood * nets.neighbor_loss(z, S, balanced=not options.original)
        kept = kept + options.content * nets.squared_difference(x, drawn)
        judged = options.content * nets.squared_difference(seen, seen_drawn)
        judged = judged + options.adversarial * nets.deceived_loss(fake, torch=torch)
        both = kept + judged
        return _Losses(both if options.original else kept, both, nets.judge_loss(real, fake, torch=torch))


def _indexable(X: Array) -> Array:
    """X, which batches are taken from by number, as a torch tensor or a NumPy array."""
    return X if hasattr(X, "detach") else to_host(X)


def _torch() -> Any:
    try:
        import torch
    except ImportError as error:
        raise ImportError(f"BGAN needs torch, which cannot be imported ({error}): pip install torch") from error
    return torch


def _tensor(images: Array, torch: Any, device: str) -> Any:
    """Images as torch has them: (n, channels, height, width), float32 of 0 to 1."""
    x = scaled(images)
    x = x if hasattr(x, "detach") else torch.from_numpy(np.ascontiguousarray(to_host(x)))
    return x.to(device).permute(0, 3, 1, 2).contiguous()


def _batches(n: int, size: int, rng: np.random.Generator) -> Iterator[np.ndarray]:
    """All images in a new order; a last one alone, which has no other to be near to, goes with those before it."""
    order = rng.permutation(n)
    cuts = list(range(size, n - 1, size))
    return iter(np.split(order, cuts))


def _cut(parameters: np.ndarray, shapes: Sequence[tuple[int, ...]]) -> Iterator[np.ndarray]:
    """The parameters of each layer."""
    start = 0
    for shape in shapes:
        end = start + math.prod(shape)
        yield parameters[start:end].reshape(shape)
        start = end
