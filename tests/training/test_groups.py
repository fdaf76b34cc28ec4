"""Groups of rows drawn apart: how distinct they are, what the stretch does, and what it leaves true."""

import array_api_strict
import numpy as np
import pytest

import scq_gpu as scq
from scq_gpu._core.arrays import namespace
from scq_gpu.rows.basis import compute_basis, stretch
from scq_gpu.rows.passes import Rows, TurnedRows
from scq_gpu.training.starts import Draws

XP = namespace(np.empty(0))


def grouped(n=3000, d=80, distance=1.0, seed=0):
    """Rows of twelve groups with a falling spectrum, and the groups; ``distance`` tells how far they are apart."""
    rng = np.random.default_rng(seed)
    spectrum = np.arange(1, d + 1) ** -0.25
    centres, label = distance * rng.standard_normal((12, d)) * spectrum, rng.integers(12, size=n)
    X = centres[label] + rng.standard_normal((n, d)) * spectrum
    return X @ np.linalg.qr(rng.standard_normal((d, d)))[0] + 0.2, label


def basis_and_rows(X, n_bits=48):
    rows = Rows(X)
    basis = compute_basis(rows.moments(), n_bits=n_bits, n_components=None, eps=1e-16, xp=rows.xp, flatten=True)
    return basis, rows.project(basis)


def groups_of(X):
    basis, projected = basis_and_rows(X)
    return basis, *Draws(basis, projected, 0, xp=XP).groups()


@pytest.mark.parametrize("n", [200, 1000, 4000])
def test_rows_without_groups_are_not_distinct_however_few(n):
    """Directions fit a few rows by chance so well that their signs explain most of the variance: of those rows."""
    rng = np.random.default_rng(n)
    _, Q, distinct = groups_of(rng.standard_normal((n, 80)) * np.arange(1, 81) ** -0.5)
    np.testing.assert_allclose(Q.T @ Q, np.eye(32), atol=1e-6)
    assert distinct < 0.1


def test_groups_are_found_and_told_from_none():
    X = grouped()[0]
    basis, Q, distinct = groups_of(X)
    assert distinct > 0.15
    assert distinct > 2 * groups_of(grouped(distance=0.0)[0])[2]
    assert distinct > groups_of(grouped(distance=0.7)[0])[2]
    Y = basis.scale * (X[1::2] - basis.mean) @ basis.P @ Q  # rows that Q was not learned from
    share = np.abs(Y).mean(0) ** 2 / (Y**2).mean(0)
    assert distinct == pytest.approx(((share - 2 / np.pi) / (1 - 2 / np.pi)).mean(), abs=0.04)


@pytest.mark.parametrize("rescale", [True, False])
@pytest.mark.parametrize("by", [0.0, 0.3])
def test_the_stretch_is_its_formula(by, rescale):
    X = grouped()[0]
    basis, projected = basis_and_rows(X)
    Y = np.concatenate(projected.kept)
    Q = np.linalg.qr(np.random.default_rng(1).standard_normal((80, 5)))[0]
    stretched, R = stretch(basis, Q, by, n_bits=48, rescale=rescale, xp=XP)
    Z = Y @ R
    np.testing.assert_allclose(Z, stretched.scale * (X - stretched.mean) @ stretched.P, atol=1e-9)
    np.testing.assert_allclose(Z.T @ Z / len(Z), np.diag(stretched.lam), atol=1e-9)
    assert (np.diff(stretched.lam) <= 0).all()
    np.testing.assert_array_equal(stretched.eigenvalues, basis.eigenvalues)
    apart = Y + by * Y @ Q @ Q.T  # distances are those of rows drawn apart, but for the scale
    factor = stretched.scale / basis.scale
    np.testing.assert_allclose(Z @ Z.T, factor**2 * apart @ apart.T, atol=1e-8)
    if rescale:
        assert stretched.lam[:48].sum() == pytest.approx(basis.lam[:48].sum())
    else:
        assert factor == 1
    V = np.random.default_rng(2).standard_normal((80, 6))
    np.testing.assert_allclose(stretched.coordinates(stretched.fold(V)[0].T) / stretched.scale, V, atol=1e-8)


@pytest.mark.parametrize("asarray", [np.asarray, array_api_strict.asarray], ids=["numpy", "strict"])
def test_turned_rows_are_the_rows_turned(asarray):
    X = grouped(n=300, d=20)[0]
    rng = np.random.default_rng(3)
    R, V = rng.standard_normal((20, 20)), rng.standard_normal((2, 20, 7))
    given = asarray(X)
    rows, xp = Rows(given), namespace(given)
    basis = compute_basis(rows.moments(), n_bits=7, n_components=None, eps=1e-16, xp=xp)
    projected = rows.project(basis)
    turned = TurnedRows(projected, asarray(R), xp=xp)
    Y = np.concatenate([np.asarray(block) for block in projected.kept]) @ R
    for seen, Z in [(turned, Y), (turned.sample(np.arange(0, 300, 3)), Y[::3])]:
        assert seen.n == len(Z)
        found = seen.statistics(asarray(V))
        for r in range(2):
            B = np.where(Z @ V[r] >= 0, 1.0, -1.0)
            np.testing.assert_allclose(np.asarray(found.M[r, ...]), Z.T @ B / len(Z), atol=1e-9)
            np.testing.assert_allclose(np.asarray(found.balance[r, ...]), B.mean(0), atol=1e-12)
        if seen is turned:
            continue
        kept = seen.project(asarray(V[0])).kept
        np.testing.assert_allclose(np.concatenate([np.asarray(block) for block in kept]), Z @ V[0], atol=1e-9)


def orthogonality(encoder, X, Q=None, by=0.0):
    """Largest cosine between columns of V, in the coordinates of flattened, then stretched rows."""
    basis = basis_and_rows(X, encoder.n_bits)[0]
    A = np.eye(len(basis.lam)) + (0.0 if Q is None else by * Q @ Q.T)
    V = np.linalg.lstsq(basis.P @ A, encoder.components_.T, rcond=None)[0]
    V /= np.linalg.norm(V, axis=0)
    return np.abs(V.T @ V - np.eye(encoder.n_bits)).max()


def test_columns_are_orthogonal_in_stretched_coordinates():
    X = grouped()[0]
    encoder = scq.OgE(48, random_state=0).fit(X)
    basis, Q, distinct = groups_of(X)
    by = 0.15 * np.log2(48 / 32) * distinct
    assert orthogonality(encoder, X, Q, by) < 1e-7
    assert orthogonality(encoder, X) > 1e-3  # and not in those before
    np.testing.assert_allclose(encoder.eigenvalues_, basis.eigenvalues, rtol=1e-9)
    np.testing.assert_allclose(encoder.threshold_, encoder.components_ @ X.mean(0), atol=1e-9)


@pytest.mark.parametrize("options", [{"n_bits": 32}, {"n_bits": 48, "preserve": "classes"}])
def test_short_codes_and_codes_for_classes_are_not_stretched(options, monkeypatch):
    def refuse(*arguments):
        raise AssertionError("groups were looked for")

    monkeypatch.setattr(Draws, "groups", refuse)
    scq.OgE(random_state=0, **options).fit(grouped(n=600)[0])
    scq.OnE(48, random_state=0).fit(grouped(n=600)[0])
    with pytest.raises(AssertionError, match="groups were looked for"):
        scq.OgE(48, random_state=0).fit(grouped(n=600)[0])


def test_codes_separate_groups_better_for_it(monkeypatch):
    """Rows of one group are nearer by Hamming distance, against those of another."""
    X, label = grouped()
    found = {}
    for name in ("stretched", "plain"):
        if name == "plain":
            monkeypatch.setattr("scq_gpu.training.defaults._STRETCH", 0.0)
        B = scq.OgE(64, random_state=0).fit(X).transform(X).astype(np.float64)
        agree = B[:500] @ B[500:].T
        same = label[:500, None] == label[None, 500:]
        found[name] = (agree[same].mean() - agree[~same].mean()) / agree.std()
    assert found["stretched"] > 1.01 * found["plain"], found


def test_a_given_start_stays_one_in_the_rows_own_coordinates():
    """The first sign pass is at the start: the loss after it is least squares to the signs of X @ init."""
    X = grouped()[0]
    init = np.linalg.qr(np.random.default_rng(2).standard_normal((80, 48)))[0]
    given = {"init": init, "scale": 0.05, "ridge": 0.0, "n_components": None, "max_iter": 1, "tol": 0}
    encoder = scq.OgE(48, random_state=0, **given).fit(X)
    centred = X - X.mean(0)
    signs = np.where(centred @ init >= 0, 1.0, -1.0)
    expected = ((signs - centred @ encoder.components_.T) ** 2).sum() / len(X)
    assert encoder.loss_curve_[0] == pytest.approx(expected, rel=1e-8)
