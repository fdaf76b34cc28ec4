"""KMH and BA, the baselines that search for codes: their steps against the objectives written out."""

import numpy as np
import pytest
from clusters import X
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize

import scq_gpu as scq
from scq_gpu._core.arrays import namespace
from scq_gpu.encoders.baselines import ba, kmh
from scq_gpu.encoders.baselines.ba import EXACT_BITS, nearest_codes
from scq_gpu.rows.blocks import as_rows

# K-means hashing


def slow_kmh_loss(encoder, X):
    """The objective in the docstring, rows at their nearest words."""
    subspaces, K, dimensions = encoder.words_.shape
    V = (X @ encoder.axes_.T - encoder.offset_).reshape(len(X), subspaces, dimensions)
    number = np.arange(K)
    h = np.array([[bin(i ^ j).count("1") for j in number] for i in number])
    terms = []
    for m in range(subspaces):
        words = encoder.words_[m]
        d = np.linalg.norm(V[:, m, None] - words, axis=2)
        nearest = d.argmin(axis=1)
        p = np.bincount(nearest, minlength=K) / len(X)
        terms.append((nearest, p, (d.min(axis=1) ** 2).mean(), np.linalg.norm(words[:, None] - words, axis=2), h))
    return terms


@pytest.mark.parametrize("b", [2, 4, 8])
def test_kmh_names_the_nearest_words(b):
    encoder = scq.KMH(n_bits=16, bits_per_subspace=b, random_state=0).fit(X)
    bits = np.unpackbits(encoder.encode(X), axis=1, bitorder="little").reshape(len(X), 16 // b, b)
    for m, (nearest, *_) in enumerate(slow_kmh_loss(encoder, X)):
        np.testing.assert_array_equal(bits[:, m] @ (1 << np.arange(b)), nearest)
    assert encoder.words_.shape == (16 // b, 2**b, 24 // (16 // b))


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("b", [2, 4, 8])
def test_kmh_loss_falls(b):
    encoder = scq.KMH(n_bits=16, bits_per_subspace=b, tol=0, max_iter=25, random_state=0).fit(X)
    assert len(encoder.loss_curve_) > 3
    assert np.diff(encoder.loss_curve_).max() <= 0
    # an affinity that dominates keeps the cube, one of 0 is k-means
    strains, errors = [], []
    for affinity in (0.0, 10.0, 1000.0):
        terms = slow_kmh_loss(scq.KMH(n_bits=16, bits_per_subspace=b, affinity=affinity, random_state=0).fit(X), X)
        side = [(d * np.sqrt(h)).sum() / h.sum() for *_, d, h in terms]
        strains.append(
            sum(
                (np.outer(p, p) * (d - s * np.sqrt(h)) ** 2).sum()
                for s, (_, p, _, d, h) in zip(side, terms, strict=True)
            )
        )
        errors.append(sum(error for _, _, error, _, _ in terms))
    assert strains[0] > strains[1] > strains[2]
    assert errors[0] < errors[1] < errors[2]


def test_kmh_loss_is_the_papers():
    """`_loss` and `_move`, the closed forms of training, against the objective written out."""
    rng = np.random.default_rng(0)
    V, words = rng.standard_normal((2, 50, 3)), rng.standard_normal((2, 8, 3))
    words[0, 5] = 40.0  # a word without rows
    h = np.sqrt([[bin(i ^ j).count("1") for j in range(8)] for i in range(8)])
    wanted = np.stack([1.5 * h, 0.7 * h])

    def objective(words, numbers):
        total = 0.0
        for m in range(2):
            p = np.bincount(numbers[m], minlength=8) / 50
            total += ((V[m] - words[m][numbers[m]]) ** 2).sum() / 50
            strain = (np.linalg.norm(words[m][:, None] - words[m], axis=2) - wanted[m]) ** 2
            total += 10 * (np.outer(p, p) * strain).sum()
        return total

    numbers = np.linalg.norm(V[:, :, None] - words[:, None], axis=3).argmin(axis=2)
    shares, sums = kmh._assign(V, words, dtype=np.float64, xp=np)
    np.testing.assert_allclose(shares, [np.bincount(x, minlength=8) / 50 for x in numbers])
    assert shares[0, 5] == 0
    options = {"affinity": 10.0, "xp": np}
    losses = [objective(words, numbers)]
    for _ in range(30):
        energy = (V**2).sum() / 50
        np.testing.assert_allclose(energy + kmh._loss(words, shares, sums, wanted, **options), losses[-1])
        words = kmh._move(words, shares, sums, wanted, **options)
        losses.append(objective(words, numbers))
    assert np.diff(losses).max() <= 1e-10
    np.testing.assert_array_equal(words[0, 5], 40.0)
    # where the moves end, no small change of a word lowers the objective
    for _ in range(3000):
        words = kmh._move(words, shares, sums, wanted, **options)
    end = objective(words, numbers)
    for step in rng.standard_normal((20, *words.shape)):
        assert objective(words + 1e-3 * step, numbers) >= end


def test_kmh_starts_from_cubes():
    V = np.random.default_rng(0).standard_normal((3, 400, 6))
    words = kmh._first_words(V, 4, np.random.default_rng(1), as_rows(X, device=None))
    h = np.array([[bin(i ^ j).count("1") for j in range(16)] for i in range(16)])
    for cube in words:
        d = np.linalg.norm(cube[:, None] - cube, axis=2)
        np.testing.assert_allclose(d, d[0, 1] * np.sqrt(h), atol=1e-9)


@given(
    subspaces=st.integers(1, 6),
    eigenvalues=st.lists(st.floats(1e-3, 1e3), min_size=6, max_size=30).map(lambda x: sorted(x, reverse=True)),
)
def test_kmh_deals_every_axis_out_once(subspaces, eigenvalues):
    dealt = kmh._deal_out(np.array(eigenvalues), subspaces).reshape(subspaces, -1)
    size = len(eigenvalues) // subspaces
    assert sorted(dealt.ravel().tolist()) == list(range(size * subspaces))
    assert (np.diff(dealt, axis=1) > 0).all()  # the leading axes of a subspace come first


def test_kmh_balances_the_subspaces():
    lam = np.exp(-np.arange(64) / 8.0)
    products = np.log(lam)[kmh._deal_out(lam, 8).reshape(8, 8)].sum(axis=1)
    plain = np.log(lam).reshape(8, 8).sum(axis=1)
    assert np.ptp(products) < 0.05 * np.ptp(plain)


# Binary autoencoder


@given(n_bits=st.integers(1, 8), seed=st.integers(0, 999))
def test_ba_short_codes_are_the_best_of_all(n_bits, seed):
    rng = np.random.default_rng(seed)
    A = rng.standard_normal((n_bits, 5))
    rows, H = rng.standard_normal((20, 5)), np.where(rng.random((20, n_bits)) < 0.5, -1.0, 1.0)
    every = np.array([[1.0 if i >> k & 1 else -1.0 for k in range(n_bits)] for i in range(2**n_bits)])

    def cost(Z):
        return ((rows[:, None] - Z @ A) ** 2).sum(axis=-1) + 0.3 * ((Z - H[:, None]) ** 2).sum(axis=-1)

    best = cost(every).min(axis=1)
    Z = nearest_codes(rows @ A.T + 0.3 * H, A @ A.T, H, xp=namespace(H))
    np.testing.assert_allclose(cost(Z[:, None])[:, 0], best)


@given(seed=st.integers(0, 999))
def test_ba_long_codes_cannot_be_bettered_by_one_bit(seed):
    rng = np.random.default_rng(seed)
    L = EXACT_BITS + 3
    A, rows = rng.standard_normal((L, 20)) / 4, rng.standard_normal((10, 20))
    start = np.where(rng.random((10, L)) < 0.5, -1.0, 1.0)
    kept = start.copy()
    Z = nearest_codes(rows @ A.T, A @ A.T, start, xp=np)

    def cost(Z):
        return ((rows - Z @ A) ** 2).sum(axis=1)

    np.testing.assert_array_equal(start, kept)
    assert set(np.unique(Z)) <= {-1.0, 1.0}
    assert (cost(Z) <= cost(start) + 1e-9).all()
    for k in range(L):
        flipped = Z.copy()
        flipped[:, k] *= -1
        assert (cost(flipped) >= cost(Z) - 1e-9).all()


@pytest.mark.parametrize("n_bits", [6, 20])
def test_ba_loss_falls_and_is_the_error_of_the_best_decoder(n_bits):
    encoder = scq.BA(n_bits=n_bits, n_components=24, random_state=0).fit(X)
    assert np.diff(encoder.loss_curve_).max() <= 0
    assert encoder.loss_curve_[-1] < encoder.loss_curve_[0]
    assert encoder.converged_
    assert len(encoder.loss_curve_) == encoder.n_iter_ + 1

    def error(encoder_):
        Z = np.column_stack([encoder_.transform(X).astype(float), np.ones(len(X))])
        rows = encoder.scale_ * X
        return ((rows - Z @ np.linalg.lstsq(Z, rows, rcond=None)[0]) ** 2).sum() / len(X)

    np.testing.assert_allclose(encoder.loss_curve_[-1], error(encoder), rtol=1e-4)
    np.testing.assert_allclose(encoder.loss_curve_[0], error(scq.ITQ(n_bits, random_state=0).fit(X)), rtol=1e-4)


def test_ba_hash_step_lowers_the_hinge():
    rng = np.random.default_rng(0)
    lam = np.linspace(2, 0.1, 10)
    V = rng.standard_normal((500, 10))
    V = (V - V.mean(axis=0)) @ np.linalg.inv(np.linalg.cholesky(np.cov(V.T, bias=True))).T * np.sqrt(lam)
    fitted = [ba._Hash(np.zeros((10, 3)), np.zeros(3))]
    codes = ba._Codes([V], lam, fitted[0], xp=np)
    codes.Z = [np.where(V @ rng.standard_normal((10, 3)) + 2 * rng.standard_normal((500, 3)) >= 0.2, 1.0, -1.0)]

    def hinge(h):
        slack = np.maximum(0, 1 - codes.Z[0] * (V @ h.V + h.c))
        return (slack**2).sum() / 500 + ba._HASH_RIDGE * (h.V**2).sum()

    for _ in range(60):
        fitted.append(codes.fit_hash(fitted[-1]))
    values = [hinge(h) for h in fitted]
    assert np.diff(values).max() <= 1e-12
    # where it ends is the minimum, which scipy finds by itself
    best = minimize(lambda w: hinge(ba._Hash(w[:30].reshape(10, 3), w[30:])), np.zeros(33), method="BFGS")
    np.testing.assert_allclose(values[-1], best.fun, rtol=1e-4)
