"""DH and UH-BDNN: every term of their losses, gradients and steps against versions in plain NumPy."""

import doctest
import itertools
import json

import numpy as np
import pytest
import safetensors.numpy
from clusters import X
from peers import DH, UHBDNN, dh, uhbdnn
from scipy.optimize import approx_fprime

import scq_gpu as scq
from scq_gpu._core.arrays import namespace
from scq_gpu.io import models

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
xp = namespace(np.empty(0))
SIZES = [5, 4, 3, 2]


def sigmoid(z):
    return 1 / (1 + np.exp(-z))


def slow_forward(Y, parameters, sizes, squash):
    """The last layer before its activation, row by row."""
    out = []
    for y in Y:
        start = 0
        for number, (width, units) in enumerate(itertools.pairwise(sizes)):
            W = parameters[start : start + units * width].reshape(units, width)
            c = parameters[start + units * width : start + units * (width + 1)]
            start += units * (width + 1)
            y = W @ y + c
            if number < len(sizes) - 2:
                y = squash(y)
        out.append(y)
    assert start == len(parameters)
    return np.array(out)


def matrices(parameters, sizes):
    start = 0
    for width, units in itertools.pairwise(sizes):
        yield (
            parameters[start : start + units * width].reshape(units, width),
            parameters[start + units * width : start + units * (width + 1)],
        )
        start += units * (width + 1)


def slow_dh(Y, parameters, sizes, balance, independence, decay):
    H = np.tanh(slow_forward(Y, parameters, sizes, np.tanh))
    B = np.where(H >= 0, 1.0, -1.0)
    n = len(Y)
    loss = sum((B[i] - H[i]) @ (B[i] - H[i]) for i in range(n)) / (2 * n)
    loss -= balance / 2 * np.trace(np.cov(H, rowvar=False, bias=True).reshape(H.shape[1], H.shape[1]))
    for W, c in matrices(parameters, sizes):
        loss += independence / 2 * np.linalg.norm(W @ W.T - np.eye(len(W)), "fro") ** 2
        loss += decay / 2 * (np.linalg.norm(W, "fro") ** 2 + c @ c)
    return loss


def slow_uhbdnn(Y, B, parameters, sizes, decoder, decay, binary, independence, balance):
    """All five terms."""
    n = len(Y)
    H = slow_forward(Y, parameters, sizes, sigmoid)
    W, c = decoder
    loss = np.linalg.norm(Y.T - W @ B.T - np.outer(c, np.ones(n)), "fro") ** 2 / (2 * n)
    loss += decay / 2 * (np.linalg.norm(W, "fro") ** 2)
    loss += decay / 2 * sum(np.linalg.norm(W_l, "fro") ** 2 for W_l, _ in matrices(parameters, sizes))
    loss += binary / (2 * n) * np.linalg.norm(H - B, "fro") ** 2
    loss += independence / 2 * np.linalg.norm(H.T @ H / n - np.eye(H.shape[1]), "fro") ** 2
    loss += balance / (2 * n) * np.linalg.norm(H.T @ np.ones(n)) ** 2
    return loss


def tiny(seed=0, n=9, sizes=SIZES):
    rng = np.random.default_rng(seed)
    parameters = rng.standard_normal(dh.parameter_count(sizes))
    return rng.standard_normal((n, sizes[0])), parameters, np.where(rng.random((n, sizes[-1])) < 0.5, -1.0, 1.0)


def in_blocks(Y, size=4):
    return [Y[i : i + size] for i in range(0, len(Y), size)]


# one weight at a time, then all together
DH_TERMS = [(0.0, 0.0, 0.0), (3.0, 0.0, 0.0), (0.0, 0.7, 0.0), (0.0, 0.0, 0.4), (100.0, 0.001, 0.001)]
UHBDNN_TERMS = [
    (0.4, 0.0, 0.0, 0.0),
    (0.0, 0.9, 0.0, 0.0),
    (0.0, 0.0, 0.6, 0.0),
    (0.0, 0.0, 0.0, 0.2),
    (1e-5, 5e-2, 1e-2, 1e-6),
    (0.3, 0.8, 0.5, 0.1),
]


@pytest.mark.parametrize("weights", DH_TERMS)
@pytest.mark.parametrize("sizes", [SIZES, [5, 2], [2, 6, 3]])
def test_dh_loss_and_gradient(weights, sizes):
    Y, parameters, _ = tiny(sizes=sizes)
    layers = dh.split(parameters, sizes, xp=xp)
    loss, gradient = dh.loss_and_gradient(in_blocks(Y), layers, dh.Weights(*weights), xp=xp)
    assert loss == pytest.approx(slow_dh(Y, parameters, sizes, *weights), rel=1e-12)
    slope = approx_fprime(parameters, lambda p: slow_dh(Y, p, sizes, *weights), 1e-7)
    np.testing.assert_allclose(gradient, slope, rtol=1e-4, atol=1e-5 * max(1, np.abs(slope).max()))


def test_every_term_of_dh_counts():
    Y, parameters, _ = tiny()
    layers = dh.split(parameters, SIZES, xp=xp)
    losses = [dh.loss_and_gradient([Y], layers, dh.Weights(*w), xp=xp)[0] for w in DH_TERMS[:4]]
    assert len({round(loss, 9) for loss in losses}) == 4
    assert losses[0] > 0 > losses[1]
    assert min(losses[2:]) > losses[0]


@pytest.mark.parametrize("weights", UHBDNN_TERMS)
@pytest.mark.parametrize("sizes", [SIZES, [5, 2], [2, 6, 3]])
def test_uhbdnn_loss_and_gradient(weights, sizes):
    Y, parameters, B = tiny(sizes=sizes)
    nothing = (np.zeros((sizes[0], sizes[-1])), np.zeros(sizes[0]))
    rebuilt = np.sum(Y * Y) / (2 * len(Y))  # of a decoder that gives 0

    def slow(p):
        return slow_uhbdnn(Y, B, p, sizes, nothing, *weights) - rebuilt

    layers = dh.split(parameters, sizes, xp=xp)
    loss, gradient = uhbdnn.loss_and_gradient(in_blocks(Y), in_blocks(B), layers, uhbdnn.Weights(*weights), xp=xp)
    assert loss == pytest.approx(slow(parameters), rel=1e-10)
    slope = approx_fprime(parameters, slow, 1e-7)
    np.testing.assert_allclose(gradient, slope, rtol=1e-4, atol=1e-5 * max(1, np.abs(slope).max()))


@pytest.mark.parametrize("decay", [0.0, 0.3])
def test_uhbdnn_decoder_is_the_best_there_is(decay):
    Y, parameters, B = tiny(n=30)
    found, loss = uhbdnn.least_squares(in_blocks(B), in_blocks(Y), decay, xp=xp)

    def slow(W, c):
        return slow_uhbdnn(Y, B, parameters, SIZES, (W, c), decay, 0, 0, 0) - decay / 2 * sum(
            np.sum(W_l**2) for W_l, _ in matrices(parameters, SIZES)
        )

    assert loss == pytest.approx(slow(*found), rel=1e-9)
    rng = np.random.default_rng(1)
    for _ in range(50):
        W, c = (x + 1e-2 * rng.standard_normal(x.shape) for x in found)
        assert slow(W, c) > loss


@pytest.mark.parametrize("n_bits", [3, 13])
def test_uhbdnn_step_for_the_codes(n_bits):
    """Never worse than before; up to 12 bits the best of all codes."""
    sizes = [5, 4, n_bits]
    Y, parameters, B = tiny(n=12, sizes=sizes)
    rng = np.random.default_rng(2)
    decoder = dh.Layer(rng.standard_normal((5, n_bits)), rng.standard_normal(5))
    weights = uhbdnn.Weights(0.0, 0.3, 0.0, 0.0)
    layers = dh.split(parameters, sizes, xp=xp)
    found = np.concatenate(uhbdnn.fit_codes(in_blocks(Y), in_blocks(B), layers, decoder, weights, xp=xp))
    assert set(np.unique(found)) <= {-1.0, 1.0}

    def slow(B):
        return slow_uhbdnn(Y, B, parameters, sizes, decoder, 0, 0.3, 0, 0)

    assert slow(found) < slow(B)
    for i, k in np.ndindex(found.shape):  # no single bit can be better
        flipped = found.copy()
        flipped[i, k] *= -1
        assert slow(flipped) >= slow(found) - 1e-12
    if n_bits == 3:
        for i in range(len(Y)):
            tried = [
                slow(np.where(np.arange(12)[:, None] == i, code, found))
                for code in itertools.product((-1.0, 1.0), repeat=3)
            ]
            assert slow(found) <= min(tried) + 1e-12


def test_uhbdnn_step_for_the_network_lowers_the_loss():
    Y, parameters, B = tiny(n=40)
    weights = uhbdnn.Weights(1e-5, 0.5, 0.1, 1e-3)
    layers = dh.split(parameters, SIZES, xp=xp)
    before, _ = uhbdnn.loss_and_gradient([Y], [B], layers, weights, xp=xp)
    found, loss = uhbdnn.fit_layers([Y], [B], layers, SIZES, weights, max_iter=200, xp=xp)
    again, gradient = uhbdnn.loss_and_gradient([Y], [B], found, weights, xp=xp)
    assert loss == pytest.approx(again, rel=1e-12)
    assert loss < 0.8 * before
    assert np.abs(gradient).max() < 0.02


def test_first_layers_are_principal_axes():
    rng = np.random.default_rng(0)
    Y = rng.standard_normal((500, 6)) * [3, 2, 1, 0.5, 0.2, 0.1] + 4
    first, second = dh.leading_layers(in_blocks(Y, 200), [6, 3, 2], dh.TANH, rng=rng, xp=xp)
    np.testing.assert_allclose(np.abs(first.W), np.eye(3, 6), atol=0.1)
    np.testing.assert_allclose(first.W @ first.W.T, np.eye(3), atol=1e-12)
    hidden = np.tanh(Y @ first.W.T + first.c)
    np.testing.assert_allclose((hidden @ second.W.T + second.c).mean(axis=0), 0, atol=1e-12)


def test_uhbdnn_starts_from_principal_axes_in_every_layer(monkeypatch):
    """The last layer too, as published: one fitted to ITQ's codes by least squares ends at a higher loss."""
    given = []

    def keep(blocks, codes, layers, *rest, **named):
        given.append((blocks, layers))
        return list(layers), 0.0

    monkeypatch.setattr(uhbdnn, "fit_layers", keep)
    UHBDNN(n_bits=5, hidden=(12, 8), max_iter=1, tol=0, random_state=0).fit(X)
    blocks, layers = given[0]
    values = np.concatenate(blocks).astype(np.float64)
    for layer in layers:
        _, axes = np.linalg.eigh(np.cov(values, rowvar=False))
        leading = axes[:, ::-1][:, : len(layer.W)]
        np.testing.assert_allclose(np.abs(layer.W @ leading), np.eye(len(layer.W)), atol=1e-3)
        np.testing.assert_allclose(layer.c, -layer.W @ values.mean(axis=0), atol=1e-4)
        values = sigmoid(values @ layer.W.T + layer.c)


def test_uhbdnn_ends_lower_than_from_least_squares():
    rng = np.random.default_rng(0)
    Y = rng.standard_normal((400, 12)) * np.linspace(1.5, 0.3, 12)
    B = np.where(Y[:, :6] @ np.linalg.qr(rng.standard_normal((6, 6)))[0] >= 0, 1.0, -1.0)
    sizes, weights = [12, 10, 8, 6], uhbdnn.Weights(1e-5, 5e-2, 1e-2, 1e-6)
    axes = dh.leading_layers([Y], sizes, dh.SIGMOID, rng=rng, xp=xp)
    hidden = dh.hidden_values(Y, axes[:-1], dh.SIGMOID, xp=xp)
    nearest, _ = uhbdnn.least_squares([hidden], [B], weights.decay / weights.binary, xp=xp)
    losses = [
        uhbdnn.fit_layers([Y], [B], start, sizes, weights, max_iter=400, xp=xp)[1]
        for start in (axes, [*axes[:-1], nearest])
    ]
    assert losses[0] < 0.8 * losses[1]


def test_layers_wider_than_the_rows_are_filled_up_at_random():
    Y = np.random.default_rng(0).standard_normal((50, 2))
    (layer,) = dh.leading_layers([Y], [2, 5], dh.TANH, rng=np.random.default_rng(1), xp=xp)
    np.testing.assert_allclose(np.linalg.norm(layer.W, axis=1), 1)
    (other,) = dh.leading_layers([Y], [2, 5], dh.TANH, rng=np.random.default_rng(2), xp=xp)
    np.testing.assert_array_equal(layer.W[:2], other.W[:2])
    assert (layer.W[2:] != other.W[2:]).all()


@pytest.mark.parametrize("make", [DH, UHBDNN])
def test_losses_fall(make):
    short = {"lbfgs_iter": 15} if make is UHBDNN else {}
    encoder = make(n_bits=13, max_iter=5, tol=0, random_state=0, **short).fit(X)
    assert encoder.n_iter_ == 5
    assert len(encoder.loss_curve_) == 6
    assert np.diff(encoder.loss_curve_).max() <= 1e-7
    assert encoder.loss_curve_[-1] < encoder.loss_curve_[0]
    assert not encoder.converged_
    loose = make(n_bits=13, max_iter=50, tol=0.5, random_state=0, **short).fit(X)
    assert loose.converged_
    assert loose.n_iter_ < 50


@pytest.mark.parametrize("make", [DH, UHBDNN])
def test_the_bar_is_for_terminals(make, capfd, monkeypatch):
    encoder = make(n_bits=4, max_iter=2, tol=0, random_state=0, verbose=True)
    encoder.fit(X[:50])
    assert capfd.readouterr().err == ""
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    encoder.fit(X[:50])
    assert f"{make.__name__} 4 bits: 100%" in capfd.readouterr().err


@pytest.mark.parametrize(("make", "squash"), [(DH, np.tanh), (UHBDNN, sigmoid)])
def test_bits_are_the_signs_of_the_network_written_out(make, squash):
    encoder = make(n_bits=5, hidden=(7, 6), max_iter=2, tol=0, random_state=0).fit(X)
    assert encoder.layers_ == [X.shape[1], 7, 6, 5]
    scores = slow_forward(X[:20], encoder.parameters_, encoder.layers_, squash)
    np.testing.assert_allclose(encoder.project(X[:20]), scores, rtol=1e-6, atol=1e-8)
    bits = np.unpackbits(encoder.encode(X[:20]), axis=1, bitorder="little")[:, :5]
    np.testing.assert_array_equal(bits == 1, scores >= 0)


@pytest.mark.parametrize(
    ("encoder", "sizes"),
    [
        (DH(16), [60, 30]),
        (DH(12), [60, 30]),
        (DH(32), [80, 50]),
        (DH(64), [100, 80]),
        (DH(100), [200, 150]),
        (UHBDNN(8), [90, 20]),
        (UHBDNN(16), [90, 30]),
        (UHBDNN(24), [100, 40]),
        (UHBDNN(32), [120, 50]),
        (DH(16, hidden=(9,)), [9]),
    ],
)
def test_sizes_of_the_papers(encoder, sizes):
    assert encoder._hidden_sizes() == sizes


def test_weights_of_the_papers():
    assert (DH().balance, DH().independence, DH().decay) == (100, 0.001, 0.001)
    peer = UHBDNN()
    assert (peer.decay, peer.binary, peer.independence, peer.balance) == (1e-5, 5e-2, 1e-2, 1e-6)
    assert (peer.max_iter, peer.lbfgs_iter) == (10, 400)


@pytest.mark.parametrize(
    ("encoder", "message"),
    [
        (DH(hidden=(4, 0)), r"hidden\[1\]=0 must be an integer >= 1"),
        (DH(hidden=()), "hidden is empty"),
        (DH(hidden=7), "hidden=7 is not a list"),
        (DH(hidden="wide"), "hidden='wide' is not a list"),
        (DH(balance=-1), "balance=-1 must be a finite number >= 0"),
        (DH(learning_rate=0), "learning_rate=0 must be a finite number > 0"),
        (DH(max_iter=0), "max_iter=0 must be"),
        (DH(n_components=0), "n_components=0 must be"),
        (UHBDNN(binary=np.nan), "binary=nan must be"),
        (UHBDNN(lbfgs_iter=0), "lbfgs_iter=0 must be"),
        (UHBDNN(tol=-1), "tol=-1 must be"),
        (UHBDNN(n_bits=40), "n_bits=40 exceeds the 24 dimensions"),
    ],
)
def test_bad_parameters(encoder, message):
    with pytest.raises((ValueError, TypeError), match=message):
        encoder.fit(X)


def test_hidden_sizes_go_into_model_files_and_back(tmp_path):
    encoder = DH(n_bits=5, hidden=(7, 6), max_iter=2, tol=0).fit(X)
    encoder.save(tmp_path / "m.safetensors")
    loaded = scq.load(tmp_path / "m.safetensors")
    assert loaded.hidden == (7, 6)
    assert loaded.layers_ == encoder.layers_
    np.testing.assert_array_equal(loaded.encode(X), encoder.encode(X))


CHANGES = {
    "no layers": lambda f: f["fitted"].pop("layers_"),
    "layers of strings": lambda f: f["fitted"].update(layers_=["24", "7", "5"]),
    "negative layers": lambda f: f["fitted"].update(layers_=[24, -7, 5]),
    "layer of 0": lambda f: f["fitted"].update(layers_=[24, 0, 5]),
    "one layer": lambda f: f["fitted"].update(layers_=[24]),
    "wider": lambda f: f["fitted"].update(layers_=[24, 8, 6, 5]),
    "other features": lambda f: f["fitted"].update(layers_=[23, 7, 6, 5]),
    "other bits": lambda f: f["fitted"].update(layers_=[24, 7, 6, 4]),
    "huge": lambda f: f["fitted"].update(layers_=[24, 1 << 40, 5]),
    "many": lambda f: f["fitted"].update(layers_=[24] + [7] * 500 + [5]),
    "a number": lambda f: f["fitted"].update(layers_=24),
    "hidden nested": lambda f: f["params"].update(hidden=[[7], 6]),
    "hidden of strings": lambda f: f["params"].update(hidden=["7"]),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_layers_that_do_not_fit_are_refused(tmp_path, change):
    path = tmp_path / "m.safetensors"
    DH(n_bits=5, hidden=(7, 6), max_iter=1, tol=0).fit(X).save(path)
    content = path.read_bytes()
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])["__metadata__"]
    facts = json.loads(header["facts"])
    change(facts)
    header = {k: v for k, v in header.items() if k != "sha256"} | {"facts": json.dumps(facts)}
    arrays = safetensors.numpy.load(content)
    header["sha256"] = models.digest(arrays, header)
    path.write_bytes(safetensors.numpy.save(arrays, metadata=header))
    with pytest.raises(scq.ModelFileError, match=r"m\.safetensors does not hold what its header says"):
        scq.load(path)


@pytest.mark.parametrize("module", [dh, uhbdnn])
def test_examples_in_docstrings(module):
    found = doctest.testmod(module, optionflags=doctest.NORMALIZE_WHITESPACE)
    assert found.attempted > 0
    assert not found.failed
