"""BGAN: images, neighbors and messages without torch; networks, losses and fits with it."""

import builtins
import json
import math

import numpy as np
import pytest
import safetensors.numpy
from peers import BGAN
from peers import adversarial as nets
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

import scq_gpu as scq
from scq_gpu.io import models

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


def pictures(n=30, side=16, channels=3, seed=0):
    """Bright and dark images, with a stripe that goes one of two ways."""
    rng = np.random.default_rng(seed)
    X = rng.integers(0, 60, size=(n, side, side, channels))
    X[::2] += 150
    X[1::4, side // 2] += 40
    X[::4, :, side // 2] += 40
    return X.astype(np.uint8)


X = pictures()


# without torch


def test_without_torch_the_error_says_what_to_install(monkeypatch):
    known = builtins.__import__

    def without_torch(name, *rest, **named):
        if name == "torch":
            raise ImportError("No module named 'torch'")
        return known(name, *rest, **named)

    monkeypatch.setattr(builtins, "__import__", without_torch)
    with pytest.raises(ImportError, match=r"BGAN needs torch.*pip install torch"):
        BGAN(n_bits=4, max_iter=1).fit(X)
    with pytest.raises(ImportError, match="BGAN needs torch"):
        BGAN(n_bits=4).to("cpu")


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (np.zeros((3, 16, 16), np.uint8), r"X has shape \(3, 16, 16\); images are \(n, height, width, channels\)"),
        (np.zeros((3, 3, 16, 16), np.uint8), r"X has shape \(3, 3, 16, 16\).* Move channels to the end"),
        (np.zeros((16,), np.uint8), r"X has shape \(16,\)"),
        (np.zeros((3, 12, 16, 3), np.uint8), "X has images of 12 x 16; .* multiples of 8"),
        (np.zeros((1, 16, 16, 3), np.uint8), "n_samples=1 while a minimum of 2"),
        (np.full((3, 16, 16, 3), 300, np.int32), "X has values from 300 to 300; images of integers are 0 to 255"),
        (np.full((3, 16, 16, 3), -1, np.int8), "X has values from -1 to -1"),
        (np.full((3, 16, 16, 3), 200.0), "X has values from 200 to 200; images of floats are 0 to 1: divide by 255"),
        (np.full((3, 16, 16, 3), -0.5), "X has values from -0.5 to -0.5; .*: scale them"),
    ],
)
def test_images_of_the_wrong_shape_or_range_are_named(bad, message):
    with pytest.raises(ValueError, match=message):
        BGAN(n_bits=4).fit(bad)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_nonfinite_images_are_named(value):
    bad = X / 255
    bad[7, 3, 4, 1] = value
    with pytest.raises(ValueError, match=f"first {value} in image 7, at row 3, column 4, channel 1"):
        BGAN(n_bits=4).fit(bad)


def test_other_things_than_images_are_refused():
    with pytest.raises(TypeError, match="not numeric"):
        BGAN(n_bits=4).fit(X.astype(str))
    with pytest.raises(ValueError, match="features has 29 rows for 30 images"):
        BGAN(n_bits=4).fit(X, features=np.zeros((29, 3)))
    with pytest.raises(NotFittedError):
        BGAN(n_bits=4).encode(X)
    with pytest.raises(NotFittedError):
        BGAN(n_bits=4).features(X)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"n_bits": 0}, "n_bits=0 must be an integer >= 1"),
        ({"network": "resnet"}, "network='resnet' is not one of 'small', 'vgg19'"),
        ({"network": ["small"]}, "is not one of"),
        ({"original": "yes"}, "original='yes' must be True or False"),
        ({"content": -1}, "content=-1 must be"),
        ({"adversarial": np.inf}, "adversarial=inf must be"),
        ({"neighborhood": "1"}, "neighborhood='1' must be"),
        ({"nearest": 0}, "nearest=0 must be"),
        ({"lists": 0}, "lists=0 must be"),
        ({"batch_size": 1}, "batch_size=1 must be an integer >= 2"),
        ({"learning_rate": 0}, "learning_rate=0 must be"),
        ({"max_iter": 0}, "max_iter=0 must be"),
        ({"tol": -1}, "tol=-1 must be"),
    ],
)
def test_bad_parameters(params, message):
    with pytest.raises(ValueError, match=message):
        BGAN(**params).fit(X)


def slow_neighborhood(F, nearest, lists):
    """The rule with sets."""
    unit = F / np.linalg.norm(F, axis=1, keepdims=True)
    near = [set(np.argsort(-(unit @ row), kind="stable")[: nearest + 1]) | {i} for i, row in enumerate(unit)]
    S = np.zeros((len(F), len(F)), dtype=bool)
    for i, own in enumerate(near):
        common = np.array([len(own & other) for other in near])
        for j in np.argsort(-common, kind="stable")[:lists]:
            if common[j]:
                S[i, list(near[j])] = True
    return S | S.T


@pytest.mark.parametrize(("nearest", "lists"), [(2, 3), (4, 1), (1, 6), (50, 50)])
def test_neighborhood(nearest, lists):
    F = np.random.default_rng(3).standard_normal((25, 6))
    found = nets.neighborhood(F, nearest=nearest, lists=lists).toarray()
    np.testing.assert_array_equal(found, slow_neighborhood(F, nearest, lists))
    assert found.diagonal().all()
    assert (found == found.T).all()
    assert found.all() == (nearest == 50)


def test_pixels_are_centered_rows():
    rows = nets.pixels(X)
    np.testing.assert_allclose(rows, (X / 255 - (X / 255).mean(axis=0)).reshape(len(X), -1), atol=1e-6)
    np.testing.assert_allclose(nets.pixels(X / 255), rows, atol=1e-6)


def test_the_original_sizes():
    """VGG-19 of 224 x 224 has 139,570,240 parameters below its last layer."""
    shapes = nets.encoder_shapes(nets.SIZES["vgg19"], (224, 224, 3), 32)
    assert sum(map(math.prod, shapes[:-2])) == 139_570_240
    assert shapes[-2:] == [(32, 4096), (32,)]
    assert len(shapes) == 2 * 19
    assert nets.generator_shapes(nets.SIZES["vgg19"], (64, 64, 3), 32)[0] == (8 * 8 * 256, 32)


# with torch


@pytest.fixture(scope="module")
def torch():
    return pytest.importorskip("torch", reason="needs torch: pip install torch")


@pytest.fixture(scope="module")
def fitted(torch):
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return BGAN(n_bits=12, max_iter=5, batch_size=10, random_state=0).fit(X)


def drawn(shapes, torch, seed=0):
    return [torch.tensor(x, dtype=torch.float64) for x in nets.draw(shapes, np.random.default_rng(seed))]


def slow_convolution(x, W, c, stride, padding):
    """(channels, height, width) -> (filters, ...), value by value."""
    x = np.pad(x, ((0, 0), (padding, padding), (padding, padding)))
    k = W.shape[2]
    height, width = ((side - k) // stride + 1 for side in x.shape[1:])
    out = np.empty((len(W), height, width))
    for f, i, j in np.ndindex(out.shape):
        out[f, i, j] = np.sum(x[:, i * stride : i * stride + k, j * stride : j * stride + k] * W[f]) + c[f]
    return out


def test_features_and_scores_written_out(torch):
    sizes = nets.Sizes(((3,), (4,)), (6,), (4, 4, 4, 4), (3, 4), 5)
    image = (8, 8, 1)
    parameters = drawn(nets.encoder_shapes(sizes, image, 5), torch)
    x = np.random.default_rng(1).random((2, 1, 8, 8))
    W1, c1, W2, c2, W3, c3, W4, c4 = (p.numpy() for p in parameters)
    expected = []
    for one in x:
        a = np.maximum(slow_convolution(2 * one - 1, W1, c1, 1, 1), 0)
        a = a.reshape(3, 4, 2, 4, 2).max(axis=(2, 4))
        a = np.maximum(slow_convolution(a, W2, c2, 1, 1), 0)
        a = a.reshape(4, 2, 2, 2, 2).max(axis=(2, 4)).ravel()
        expected.append(np.maximum(W3 @ a + c3, 0))
    found = nets.features(torch.tensor(x), parameters, sizes, torch=torch)
    np.testing.assert_allclose(found, expected, rtol=1e-10)
    scores = nets.scores(torch.tensor(x), parameters, sizes, torch=torch)
    np.testing.assert_allclose(scores, np.array(expected) @ W4.T + c4, rtol=1e-10)


def test_generator_and_discriminator_fit_each_other(torch):
    for name, image in (("small", (16, 24, 3)), ("small", (32, 32, 1)), ("vgg19", (32, 32, 3))):
        sizes = nets.SIZES[name]
        z = torch.ones((3, 7), dtype=torch.float64)
        made = nets.generate(z, drawn(nets.generator_shapes(sizes, image, 7), torch), sizes, image, torch=torch)
        assert made.shape == (3, image[2], *image[:2])
        assert 0 <= made.min() <= made.max() <= 1
        verdict, seen = nets.judge(made, drawn(nets.discriminator_shapes(sizes, image), torch), sizes, torch=torch)
        assert verdict.shape == (3,)
        assert seen.shape == (3, sizes.judge)


def test_judge_written_out(torch):
    sizes = nets.Sizes(((3,),), (6,), (4, 4, 4, 4), (2, 3), 5)
    parameters = drawn(nets.discriminator_shapes(sizes, (8, 8, 1)), torch)
    x = np.random.default_rng(1).random((4, 1, 8, 8))
    W1, c1, W2, c2, W3, c3, W4, c4 = (p.numpy() for p in parameters)

    def elu(a):
        return np.where(a > 0, a, np.expm1(np.minimum(a, 0)))

    a = np.stack([slow_convolution(elu(slow_convolution(one, W1, c1, 1, 2)), W2, c2, 2, 2) for one in x])
    a = (a - a.mean(axis=(0, 2, 3), keepdims=True)) / np.sqrt(a.var(axis=(0, 2, 3), keepdims=True) + 1e-5)
    seen = elu(elu(a).reshape(4, -1) @ W3.T + c3)
    verdict, found = nets.judge(torch.tensor(x), parameters, sizes, torch=torch)
    np.testing.assert_allclose(found, seen, rtol=1e-9)
    np.testing.assert_allclose(verdict, (seen @ W4.T + c4)[:, 0], rtol=1e-9)


def sigmoid(z):
    return 1 / (1 + np.exp(-z))


def test_every_term_written_out_with_its_gradient(torch):
    """Each alone: its value in NumPy, its gradient by the difference quotient of that."""
    rng = np.random.default_rng(0)
    z, S = rng.uniform(-1, 1, (4, 3)), np.where(rng.random((4, 4)) < 0.5, 1.0, -1.0)
    x, made = rng.random((4, 2)), rng.random((4, 2))
    real, fake = rng.standard_normal(4), rng.standard_normal(4)

    def pairs(z):
        return np.mean([(z[i] @ z[j] / 3 - S[i, j]) ** 2 / 2 for i in range(4) for j in range(4)])

    def halves(z):
        costs = {1.0: [], -1.0: []}
        for i, j in np.ndindex(4, 4):
            costs[S[i, j]].append((z[i] @ z[j] / 3 - S[i, j]) ** 2 / 2)
        return (np.mean(costs[1.0]) + np.mean(costs[-1.0])) / 2

    cases = [
        (lambda t: nets.neighbor_loss(t, torch.tensor(S), balanced=False), pairs, z),
        (lambda t: nets.neighbor_loss(t, torch.tensor(S), balanced=True), halves, z),
        (lambda t: nets.squared_difference(torch.tensor(x), t), lambda m: np.mean((x - m) ** 2), made),
        (lambda t: nets.deceived_loss(t, torch=torch), lambda f: -np.mean(np.log(sigmoid(f))), fake),
        (
            lambda t: nets.judge_loss(torch.tensor(real), t, torch=torch),
            lambda f: -np.mean(np.log(sigmoid(real)) + np.log(1 - sigmoid(f))),
            fake,
        ),
        (
            lambda t: nets.judge_loss(t, torch.tensor(fake), torch=torch),
            lambda r: -np.mean(np.log(sigmoid(r)) + np.log(1 - sigmoid(fake))),
            real,
        ),
        (lambda t: nets.soft_signs(t, 2.5, torch=torch).sum(), lambda a: np.tanh(2.5 * a).sum(), z),
    ]
    for ours, slow, at in cases:
        t = torch.tensor(at, requires_grad=True)
        value = ours(t)
        assert float(value.detach()) == pytest.approx(slow(at), rel=1e-12)
        value.backward()
        for where in np.ndindex(at.shape):
            step = np.zeros_like(at)
            step[where] = 1e-6
            assert float(t.grad[where]) == pytest.approx((slow(at + step) - slow(at - step)) / 2e-6, abs=1e-7)


def test_balanced_pairs_do_not_pull_alike_codes_to_zero(torch):
    """At the start codes share much, and neighbors are one pair in fifty: with uniform pairs 0 would be better."""
    rng = np.random.default_rng(0)
    common, own = rng.choice([-1.0, 1.0], 32), rng.choice([-1.0, 1.0], (50, 32))
    z = torch.tensor(np.where(rng.random((50, 32)) < 0.5, common, own))
    S = torch.tensor(2.0 * np.eye(50) - 1)

    def growth(balanced):
        return float(
            nets.neighbor_loss(0.4 * z, S, balanced=balanced) - nets.neighbor_loss(0 * z, S, balanced=balanced)
        )

    assert growth(balanced=False) > 0
    assert growth(balanced=True) < 0


@pytest.mark.parametrize("original", [False, True])
@pytest.mark.parametrize("kept", ["neighborhood", "content", "adversarial"])
def test_the_loss_of_a_fit_is_the_sum_of_its_terms(torch, kept, original):
    """With the weights of the others at 0, what a batch costs is the one term."""
    from peers.bgan import _Game

    weights = dict.fromkeys(("neighborhood", "content", "adversarial"), 0.0) | {kept: 2.0}
    options = BGAN(n_bits=4, original=original, **weights)
    sizes, image = nets.SIZES["small"], (16, 16, 3)
    game = _Game(options, sizes, image, np.random.default_rng(0), torch=torch, device="cpu")
    x, S = torch.rand((5, 3, 16, 16), generator=torch.Generator().manual_seed(0)), torch.ones((5, 5))
    S[0, 1] = S[1, 0] = -1
    paid = game.losses(x, S, 2.5)
    z = torch.tanh(2.5 * nets.scores(x, game.encoder, sizes, torch=torch))
    made = nets.generate(z, game.generator, sizes, image, torch=torch)
    (_, seen), (fake, seen_made) = (nets.judge(i, game.discriminator, sizes, torch=torch) for i in (x, made))
    pixels, judged = nets.squared_difference(x, made), nets.squared_difference(seen, seen_made)
    of_generator = {
        "neighborhood": nets.neighbor_loss(z, S, balanced=not original),
        "content": pixels + judged,
        "adversarial": nets.deceived_loss(fake, torch=torch),
    }
    of_network = of_generator if original else of_generator | {"content": pixels, "adversarial": torch.zeros(())}
    assert float(paid.generator.detach()) == pytest.approx(2 * float(of_generator[kept].detach()), rel=1e-6)
    assert float(paid.network.detach()) == pytest.approx(2 * float(of_network[kept].detach()), rel=1e-6)


@pytest.mark.parametrize("original", [False, True])
def test_each_player_moves_only_its_own_networks(torch, original):
    from peers.bgan import _Game

    game = _Game(
        BGAN(n_bits=4, original=original),
        nets.SIZES["small"],
        (16, 16, 3),
        np.random.default_rng(0),
        torch=torch,
        device="cpu",
    )
    x, S = torch.rand((5, 3, 16, 16), generator=torch.Generator().manual_seed(0)), torch.ones((5, 5))
    paid = game.losses(x, S, 1.0)
    by_judge = torch.autograd.grad(paid.discriminator, game.discriminator, retain_graph=True)
    by_makers = torch.autograd.grad(paid.network, game.encoder, retain_graph=True)
    by_makers += torch.autograd.grad(paid.generator, game.generator)
    game.play(x.permute(0, 2, 3, 1).numpy(), S.numpy(), 1.0)
    for parameter, gradient in zip(game.discriminator, by_judge, strict=True):
        np.testing.assert_allclose(parameter.grad, gradient, atol=1e-6)
    for parameter, gradient in zip([*game.encoder, *game.generator], by_makers, strict=True):
        np.testing.assert_allclose(parameter.grad, gradient, atol=1e-6)


def test_losses_fall(torch):
    """At one beta, without the discriminator, which is there to raise it."""
    encoder = BGAN(n_bits=12, max_iter=20, batch_size=10, adversarial=0, tol=0, random_state=0).fit(X)
    first = encoder.loss_curve_[:4]  # a fifth of the epochs
    assert first[-1] < first[0]
    assert encoder.n_iter_ == len(encoder.loss_curve_) == 20
    assert not encoder.converged_


def test_codes_tell_bright_images_from_dark_ones(torch):
    encoder = BGAN(n_bits=12, max_iter=15, batch_size=10, nearest=5, lists=3, tol=0, random_state=0).fit(X)
    bits = np.unpackbits(encoder.encode(X), axis=1, bitorder="little")[:, :12].astype(int)
    apart = (bits[:, None] != bits).sum(axis=2)
    same = np.arange(30)[:, None] % 2 == np.arange(30) % 2
    assert apart[same].mean() < 0.5 * apart[~same].mean()


def test_contract(fitted, torch):
    codes, signs, scores = fitted.encode(X), fitted.transform(X), fitted.project(X)
    assert codes.shape == (30, 2)
    assert codes.dtype == np.uint8
    np.testing.assert_array_equal(signs, np.where(scores >= 0, 1, -1))
    np.testing.assert_array_equal(scq.pack(signs), codes)
    assert fitted.features(X).shape == (30, 256)
    assert fitted.features(X).min() >= 0
    np.testing.assert_array_equal(fitted.encode(X[:1]), codes[:1])
    np.testing.assert_array_equal(fitted.encode(X / np.float32(255)), codes)
    as_tensor = fitted.encode(torch.from_numpy(X))
    assert isinstance(as_tensor, torch.Tensor)
    np.testing.assert_array_equal(as_tensor, codes)
    assert fitted.get_feature_names_out().shape == (12,)
    assert fitted.image_shape_ == [16, 16, 3]


def test_seeds(fitted):
    again = clone(fitted).fit(X)
    np.testing.assert_array_equal(again.parameters_, fitted.parameters_)
    assert again.loss_curve_ == fitted.loss_curve_
    other = clone(fitted).set_params(random_state=1).fit(X)
    assert (other.parameters_ != fitted.parameters_).any()


def test_features_decide_who_is_a_neighbor(fitted):
    few = clone(fitted).set_params(nearest=3, lists=2, max_iter=1)
    fitted = clone(few).fit(X)
    other = few.fit(X, features=np.random.default_rng(0).standard_normal((30, 4)))
    assert (other.parameters_ != fitted.parameters_).any()


def test_a_fitted_bgan_refuses_other_images(fitted):
    with pytest.raises(ValueError, match=r"X has images of \(24, 16, 3\); this BGAN was fitted on \(16, 16, 3\)"):
        fitted.encode(np.zeros((2, 24, 16, 3), np.uint8))
    with pytest.raises(ValueError, match="on_invalid='skip' is not for images"):
        fitted.encode(X, on_invalid="skip")
    before = fitted.encode(X)
    with pytest.raises(ValueError, match="values from"):
        fitted.fit(X.astype(np.float64))
    np.testing.assert_array_equal(fitted.encode(X), before)


def test_devices(fitted, torch):
    moved = clone(fitted).set_params(device="cpu").fit(X)
    np.testing.assert_array_equal(moved.encode(X), fitted.encode(X))
    assert clone(fitted).to("cpu").device == "cpu"
    with pytest.raises(ValueError, match="device='tpu' is not one of"):
        BGAN(n_bits=4, device="tpu").fit(X)
    if not torch.cuda.is_available():
        with pytest.raises(RuntimeError, match="device='cuda' is not usable: torch sees no CUDA device"):
            BGAN(n_bits=4, device="cuda").fit(X)


def test_it_stops_once_the_loss_settles(torch):
    encoder = BGAN(n_bits=4, max_iter=10, batch_size=10, tol=10.0, random_state=0).fit(X)
    assert encoder.converged_
    assert encoder.n_iter_ == 9  # the first epoch at the last beta


def test_model_files(fitted, tmp_path):
    fitted.save(tmp_path / "m.safetensors")
    loaded = scq.load(tmp_path / "m.safetensors")
    assert loaded.get_params() == fitted.get_params()
    np.testing.assert_array_equal(loaded.encode(X), fitted.encode(X))
    np.testing.assert_array_equal(loaded.features(X), fitted.features(X))
    for name in fitted._fitted_facts:
        assert getattr(loaded, name) == getattr(fitted, name)


# model files need no torch


CHANGES = {
    "no shape": lambda f: f["fitted"].pop("image_shape_"),
    "flat": lambda f: f["fitted"].update(image_shape_=[256, 3]),
    "of strings": lambda f: f["fitted"].update(image_shape_=["16", 16, 3]),
    "negative": lambda f: f["fitted"].update(image_shape_=[-16, -16, 3]),
    "other features": lambda f: f["fitted"].update(image_shape_=[16, 24, 3]),
    "no multiple": lambda f: f["fitted"].update(image_shape_=[4, 64, 3]),
    "another network": lambda f: f["params"].update(network="vgg19"),
    "no such network": lambda f: f["params"].update(network="x"),
    "network a list": lambda f: f["params"].update(network=[3]),
    "no network": lambda f: f["params"].pop("network"),
    "more bits": lambda f: f["params"].update(n_bits=13),
}


@pytest.mark.parametrize("change", [None, *CHANGES.values()], ids=["as it was", *CHANGES])
def test_model_files_are_held_to_their_header(tmp_path, change):
    path = tmp_path / "m.safetensors"
    shapes = nets.encoder_shapes(nets.SIZES["small"], (16, 16, 3), 12)
    parameters = np.zeros(sum(map(math.prod, shapes)), np.float32)
    facts = {"n_features_in_": 768, "n_samples_": 30, "image_shape_": [16, 16, 3]}
    facts |= {"loss_curve_": [1.0], "n_iter_": 1, "converged_": False}
    encoder = BGAN(n_bits=12)
    for name, value in (facts | {"parameters_": parameters}).items():
        setattr(encoder, name, value)
    encoder.save(path)
    if change is None:
        assert scq.load(path).image_shape_ == [16, 16, 3]
        return
    content = path.read_bytes()
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])["__metadata__"]
    stored = json.loads(header["facts"])
    change(stored)
    header = {k: v for k, v in header.items() if k != "sha256"} | {"facts": json.dumps(stored)}
    arrays = safetensors.numpy.load(content)
    header["sha256"] = models.digest(arrays, header)
    path.write_bytes(safetensors.numpy.save(arrays, metadata=header))
    with pytest.raises(scq.ModelFileError, match=r"m\.safetensors does not hold what its header says"):
        scq.load(path)
