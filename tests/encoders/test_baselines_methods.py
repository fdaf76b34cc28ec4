"""What each baseline promises, against slow and obvious versions, and against Faiss."""

from pathlib import Path

import numpy as np
import pytest
import scipy.linalg
from clusters import X

import scq_gpu as scq
from scq_gpu.metrics import mean_average_precision, quantization_loss

CIFAR = Path(__file__).parents[3] / "shared" / "data" / "cifar10_efflite0.npz"


def pack(bits):
    return np.packbits(bits, axis=1, bitorder="little")


def principal(X, k):
    _, s, Vt = np.linalg.svd(X - X.mean(axis=0), full_matrices=False)
    return Vt[:k].T, s[:k] ** 2 / len(X)


def retrieval(encoder, X, y, X_query, y_query):
    encoder.fit(X)
    return mean_average_precision(encoder.encode(X_query), encoder.encode(X), y_query, y)


# Random and principal directions


@pytest.mark.parametrize("n_bits", [1, 7, 32, 50])
def test_lsh_in_three_lines(n_bits):
    W = np.random.default_rng(7).standard_normal((24, n_bits))
    bits = (X - X.mean(axis=0)) @ W >= 0
    encoder = scq.LSH(n_bits=n_bits, random_state=7).fit(X)
    np.testing.assert_array_equal(encoder.encode(X), pack(bits))
    np.testing.assert_array_equal(encoder.components_, W.T)


@pytest.mark.parametrize("n_bits", [1, 7, 24])
def test_pcah_in_three_lines(n_bits):
    axes = np.linalg.svd(X - X.mean(axis=0), full_matrices=False)[2][:n_bits]
    axes *= np.where(axes.max(axis=1) >= -axes.min(axis=1), 1, -1)[:, None]  # our rule for signs
    bits = (X - X.mean(axis=0)) @ axes.T >= 0
    np.testing.assert_array_equal(scq.PCAH(n_bits=n_bits).fit(X).encode(X), pack(bits))


def test_pca_baselines_scale_to_unit_variance_on_average():
    for encoder in (scq.PCAH(8), scq.PCARR(8, random_state=0), scq.ITQ(8, random_state=0)):
        np.testing.assert_allclose((encoder.fit(X).project(X) ** 2).mean(), 1)
        np.testing.assert_allclose(encoder.eigenvalues_, principal(X, 8)[1])


def test_pcarr_rotates_the_principal_axes_by_its_draws():
    P, lam = principal(X, 8)
    P = P * np.where(P.max(axis=0) >= -P.min(axis=0), 1, -1)
    R = scipy.linalg.polar(np.random.default_rng(7).standard_normal((8, 8)))[0]
    encoder = scq.PCARR(n_bits=8, random_state=7).fit(X)
    np.testing.assert_allclose(encoder.components_.T, np.sqrt(8 / lam.sum()) * P @ R, atol=1e-9)


# ITQ


def slow_itq(V, R, iterations):
    """Gong and Lazebnik: codes, then the rotation of the Procrustes problem."""
    for _ in range(iterations):
        B = np.where(V @ R >= 0, 1.0, -1.0)
        U, _, Wt = np.linalg.svd(B.T @ V)
        R = (U @ Wt).T
    return R


def test_itq_is_gong_and_lazebniks():
    encoder = scq.ITQ(n_bits=8, max_iter=15, random_state=7).fit(X)
    V = (X - X.mean(axis=0)) @ scq.PCAH(8).fit(X).components_.T
    R = slow_itq(V, scipy.linalg.polar(np.random.default_rng(7).standard_normal((8, 8)))[0], 15)
    np.testing.assert_allclose(encoder.project(X), V @ R, atol=1e-8)
    assert encoder.n_iter_ == len(encoder.loss_curve_) == 15
    assert np.diff(encoder.loss_curve_).max() <= 1e-12
    # the loss after the last step is measured with the signs it was made for
    B = np.where(
        V @ slow_itq(V, scipy.linalg.polar(np.random.default_rng(7).standard_normal((8, 8)))[0], 14) >= 0, 1, -1
    )
    np.testing.assert_allclose(encoder.loss_curve_[-1], ((B - V @ R) ** 2).sum() / len(X))


class Given(np.random.Generator):
    """A generator that draws what it was given."""

    def __init__(self, draw):
        super().__init__(np.random.PCG64(0))
        self.draw = draw

    def standard_normal(self, size):
        return self.draw.reshape(size)


@pytest.mark.parametrize("data", ["digits", "cifar"])
def test_itq_against_faiss(data, request):
    """On the rows that Faiss's ITQ sees, centred and divided by their length, reduced by PCA, from its own start.

    The two should agree, and do not: in the step for the rotation, Faiss (1.15, ``ITQMatrix::train``) multiplies U by V
    instead of by its transpose, so that its rotation is not the nearest to the signs (last lines) and its loss need not
    fall. With the right product the iteration agrees with ours.
    """
    faiss = pytest.importorskip("faiss", reason="the ITQ to compare with")
    rows, y, queries, y_query = request.getfixturevalue(f"{data}_split")
    mean = rows.mean(axis=0)
    unit, unit_query = (Z / np.linalg.norm(Z, axis=1, keepdims=True) for Z in (rows - mean, queries - mean))
    axes = scq.PCAH(n_bits=32).fit(unit)
    V, V_query = (np.ascontiguousarray(axes.project(Z)) for Z in (unit, unit_query))

    def figures(project):
        P, P_query = project(V), project(V_query)
        return quantization_loss(P), mean_average_precision(pack(P_query >= 0), pack(P >= 0), y_query, y)

    first = faiss.RandomRotationMatrix(32, 32)
    first.init(123)  # the seed of ITQMatrix, which takes the matrix column by column
    start = faiss.vector_to_array(first.A).reshape(32, 32).astype(np.float64)
    R = slow_itq(V, start, 50)
    signs = np.sign(np.diag(np.linalg.lstsq(V, scq.PCAH(32).fit(V).project(V), rcond=None)[0]))  # PCA of V, signs aside
    encoder = scq.ITQ(n_bits=32, random_state=Given(signs[:, None] * start)).fit(V)
    loss, mAP = figures(encoder.project)
    right_loss, right_mAP = figures(lambda Z: (Z @ R).astype(np.float32))
    assert abs(loss / right_loss - 1) < 0.01
    assert abs(mAP - right_mAP) < 0.005

    theirs = faiss.ITQMatrix(32)
    theirs.train(V)
    faiss_loss, faiss_mAP = figures(theirs.apply)
    assert loss < 1.01 * faiss_loss
    assert mAP > faiss_mAP - 0.005
    if loss < 0.99 * faiss_loss:
        step = faiss.ITQMatrix(32)
        step.max_iter = 1
        step.train(V)
        B = np.where(V @ start < 0, -1.0, 1.0)
        most = np.linalg.norm(B.T @ V, "nuc")  # what a rotation can reach
        assert np.sum(B * step.apply(V)) < 0.99 * most
        np.testing.assert_allclose(np.sum(B * (V @ slow_itq(V, start, 1))), most, rtol=1e-5)


# Spectral hashing


def slow_sh(X, n_bits):
    """Weiss et al.: for each axis and k, the eigenvalue; then the waves of the smallest."""
    axes, _ = principal(X, min(n_bits, X.shape[1]))
    axes = axes * np.where(axes.max(axis=0) >= -axes.min(axis=0), 1, -1)
    V = (X - X.mean(axis=0)) @ axes
    a, b = V.min(axis=0), V.max(axis=0)
    waves = sorted((k * np.pi / (b[i] - a[i]), i) for i in range(V.shape[1]) for k in range(1, n_bits + 1))[:n_bits]
    return np.stack([np.sin(np.pi / 2 + omega * (V[:, i] - a[i])) for omega, i in waves], axis=1)


@pytest.mark.parametrize("n_bits", [1, 5, 40])
def test_sh_takes_the_smoothest_waves(n_bits):
    encoder = scq.SH(n_bits=n_bits).fit(X)
    np.testing.assert_allclose(encoder.project(X), slow_sh(X, n_bits), atol=1e-8)
    # an end of a range is a crest, not a crossing: no bit hangs on rounding there
    np.testing.assert_array_equal(encoder.encode(X), pack(slow_sh(X, n_bits) >= 0))
    assert len({tuple(mode) for mode in encoder.modes_.tolist()}) == n_bits


# Spherical hashing


def slow_sph(X, n_bits, seed, moves):
    """Heo et al., with a force for each pair of pivots in the space of the rows."""
    n, rng = len(X), np.random.default_rng(seed)
    pivots = np.stack([X[rng.choice(n, 10, replace=False)].mean(axis=0) for _ in range(n_bits)])
    for move in range(moves + 1):
        d = np.linalg.norm(X[:, None] - pivots, axis=2)
        radii = np.median(d, axis=0)
        inside = d <= radii
        if move == moves:
            return pivots, radii
        forces = np.zeros_like(pivots)
        for i in range(n_bits):
            for j in range(n_bits):
                overlap = (inside[:, i] & inside[:, j]).sum()
                if i != j:
                    forces[i] += 0.5 * (overlap - n / 4) / (n / 4) * (pivots[i] - pivots[j])
        pivots = pivots + forces / n_bits


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("moves", [0, 1, 7])
def test_sph_is_heos(moves):
    encoder = scq.SpH(n_bits=6, max_iter=moves + 1, tol=1e-9, random_state=7).fit(X)
    pivots, radii = slow_sph(X, 6, 7, moves)
    np.testing.assert_allclose(encoder.pivots_ + encoder.mean_, pivots, atol=1e-9)
    inside = np.linalg.norm(X[:, None] - pivots, axis=2) <= radii
    np.testing.assert_array_equal(encoder.encode(X), pack(inside))
    np.testing.assert_allclose(encoder.radii_, radii, rtol=0.02)  # any value between the two middle distances
    depth = encoder.radii_ - np.linalg.norm(X[:, None] - encoder.pivots_ - encoder.mean_, axis=2)
    np.testing.assert_allclose(encoder.project(X), depth, atol=1e-9)


def overlaps(encoder, X):
    """Share of rows in each sphere, and shares of pairs over a quarter."""
    B = (encoder.transform(X) > 0).astype(float)
    shared = B.T @ B / len(B)
    return np.diag(shared), 4 * shared[np.triu_indices(len(shared), 1)]


@pytest.mark.parametrize("data", ["digits", "cifar"])
def test_sph_halves_and_quarters(data, request):
    rows = request.getfixturevalue(f"{data}_split")[0]
    encoder = scq.SpH(n_bits=32, random_state=0).fit(rows)  # the authors' tolerance
    share, pairs = overlaps(encoder, rows)
    assert np.abs(share - 0.5).max() < 0.01
    assert np.abs(pairs - 1).mean() <= 0.1
    assert pairs.std() <= 0.15
    np.testing.assert_allclose(encoder.loss_curve_[-1], np.abs(pairs - 1).mean(), atol=1e-3)
    assert encoder.converged_
    assert encoder.loss_curve_[-1] < encoder.loss_curve_[0]

    strict = scq.SpH(n_bits=32, tol=0.005, max_iter=1000, random_state=0).fit(rows)
    share, pairs = overlaps(strict, rows)
    assert np.abs(share - 0.5).max() < 0.01
    assert np.abs(pairs - 1).max() < 0.05  # every pair within 5 % of a quarter


# How good the codes are


@pytest.fixture(scope="module")
def digits_split(digits):
    rows, y = digits
    order = np.random.default_rng(0).permutation(len(y))
    query, database = order[:300], order[300:]
    return rows[database], y[database], rows[query], y[query]


@pytest.fixture(scope="module")
def cifar_split():
    """Every second of the CIFAR-10 features, for 2,000 rows and 500 queries; the file is too large to ship."""
    if not CIFAR.exists():
        pytest.skip(f"{CIFAR} is not there")
    with np.load(CIFAR) as file:
        scale = file["feature_scale"].astype(np.float32)
        parts = [file[name][:size] for name, size in (("X_train", 2000), ("X_test", 500))]
        rows, queries = ((part.astype(np.float32) * scale)[:, ::2] for part in parts)
        return rows, file["y_train"][:2000], queries, file["y_test"][:500]


@pytest.fixture(scope="module")
def random_on_digits(digits_split):
    return np.mean([retrieval(scq.LSH(32, random_state=seed), *digits_split) for seed in range(5)])


@pytest.fixture(scope="module")
def random_on_cifar(cifar_split):
    return np.mean([retrieval(scq.LSH(32, random_state=seed), *cifar_split) for seed in range(3)])


@pytest.mark.parametrize("Encoder", [scq.PCARR, scq.ITQ, scq.KMH, scq.BA])
def test_better_than_random_on_digits(Encoder, digits_split, random_on_digits):
    """The others are not better there: 32 directions at random tell 64 pixels apart well."""
    assert retrieval(Encoder(32, random_state=0), *digits_split) > random_on_digits


@pytest.mark.parametrize("Encoder", [scq.PCAH, scq.PCARR, scq.ITQ, scq.SH, scq.SpH, scq.KMH, scq.BA])
def test_better_than_random_on_cifar(Encoder, cifar_split, random_on_cifar):
    encoder = Encoder(32)
    names = encoder.get_params()
    quick = {"random_state": 0, "n_components": 128}
    encoder.set_params(**{name: value for name, value in quick.items() if name in names})
    assert retrieval(encoder, *cifar_split) > random_on_cifar + 0.03
