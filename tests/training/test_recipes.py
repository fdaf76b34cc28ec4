"""What "auto" comes to, for either aim; and that what is preserved is preserved."""

import itertools

import numpy as np
import pytest

import scq_gpu as scq
from scq_gpu.encoders.scq import make_recipe

ENCODERS = [scq.OgE, scq.OnE]

# n_bits: (n_components, ridge of OgE, start), written out by hand
NEIGHBORS = {
    8: (256, 1.0, "itq"),
    32: (256, 1.0, "itq"),
    33: (256, 1.0, "itq"),
    128: (256, 1.0, "itq"),
    129: (258, 1.0, "itq"),
    384: (768, 1.0, "itq"),
}
CLASSES = {
    8: (512, 0.12125733, "longer_code"),
    12: (512, 0.07157961, "longer_code"),
    16: (640, 0.04924578, "longer_code"),
    32: (1280, 0.02, "longer_code"),
    64: (2560, 0.005, "longer_code"),
    65: (2600, 0.00484734, "shorter_codes"),
    128: (5120, 0.00125, "shorter_codes"),
    256: (10240, 0.0003125, "shorter_codes"),
    384: (15360, 0.00013889, "shorter_codes"),
}


@pytest.mark.parametrize(
    ("preserve", "n_bits"),
    [("neighbors", n_bits) for n_bits in NEIGHBORS] + [("classes", n_bits) for n_bits in CLASSES],
)
@pytest.mark.parametrize("Encoder", ENCODERS)
def test_table_of_recipes(Encoder, preserve, n_bits):
    n_components, ridge, start = {"neighbors": NEIGHBORS, "classes": CLASSES}[preserve][n_bits]
    recipe = make_recipe(Encoder(n_bits, preserve=preserve))
    expected = (preserve, n_components, pytest.approx(ridge, abs=1e-8), None, start, None)
    assert recipe == (expected if Encoder is scq.OgE else (*expected[:2], None, *expected[3:]))
    assert len(recipe) <= 6


@pytest.mark.parametrize("preserve", ["neighbors", "classes"])
def test_rules_are_continuous_in_the_length(preserve):
    """From one length to the next, neither components nor ridge jump: by a share of a bit or two at most."""
    recipes = [make_recipe(scq.OgE(n_bits, preserve=preserve)) for n_bits in range(8, 513)]
    for n_bits, (a, b) in enumerate(itertools.pairwise(recipes), start=8):
        assert abs(b.n_components / a.n_components - 1) <= 1.01 / n_bits
        assert abs(b.ridge / a.ridge - 1) <= 2.5 / n_bits


@pytest.mark.parametrize("Encoder", ENCODERS)
def test_neighbors_are_the_default(Encoder):
    assert Encoder().preserve == "neighbors"
    assert (
        make_recipe(Encoder(48))
        == make_recipe(Encoder(48, preserve="neighbors"))
        != make_recipe(Encoder(48, preserve="classes"))
    )


@pytest.mark.parametrize("preserve", ["neighbors", "classes"])
@pytest.mark.parametrize("n_bits", [8, 64, 384])
@pytest.mark.parametrize("Encoder", ENCODERS)
def test_columnwise_is_the_paper_whatever_is_to_be_preserved(Encoder, n_bits, preserve):
    recipe = make_recipe(Encoder(n_bits, solver="columnwise", preserve=preserve))
    assert recipe == ("paper", 512, 0.02 if Encoder is scq.OgE else None, None, "random", None)


@pytest.mark.parametrize("preserve", ["neighbors", "classes"])
@pytest.mark.parametrize("solver", ["joint", "columnwise"])
@pytest.mark.parametrize("Encoder", ENCODERS)
def test_given_parameters_win(Encoder, solver, preserve):
    given = {"n_components": 77, "scale": 0.25, "init": "pca", "max_iter": 9}
    if Encoder is scq.OgE:
        given["ridge"] = 0.0  # also where it is nothing
    recipe = make_recipe(Encoder(16, solver=solver, preserve=preserve, **given))
    assert recipe[1:] == (77, given.get("ridge"), 0.25, "pca", 9)
    everything = make_recipe(Encoder(16, solver=solver, preserve=preserve, n_components=None))
    assert everything.n_components is None
    W = np.eye(20, 16)
    assert make_recipe(Encoder(16, solver=solver, preserve=preserve, init=W)).start is W


@pytest.mark.parametrize("solver", ["joint", "columnwise"])
def test_tol_0_runs_every_iteration(solver, digits):
    encoder = scq.OgE(16, solver=solver, preserve="classes", tol=0, max_iter=40, random_state=0).fit(digits[0][:300])
    assert encoder.n_iter_ == 40
    assert not encoder.converged_


@pytest.mark.parametrize("Encoder", ENCODERS)
@pytest.mark.parametrize("preserve", ["neighbours", "", None, 1, "Classes"])
def test_unknown_aims_are_told_the_known_ones(Encoder, preserve, digits):
    with pytest.raises(ValueError, match=r"'preserve' parameter of .* must be a str among .*'neighbors'"):
        Encoder(8, preserve=preserve).fit(digits[0])


@pytest.mark.parametrize("max_iter", ["many", 0, 2.5, None])
def test_bad_iterations_are_named(max_iter, digits):
    with pytest.raises(ValueError, match="'max_iter' parameter of OgE must be an int in the range"):
        scq.OgE(8, max_iter=max_iter).fit(digits[0])


@pytest.mark.parametrize("preserve", ["neighbors", "classes"])
@pytest.mark.parametrize("Encoder", ENCODERS)
def test_columnwise_defaults_are_the_papers_parameters_to_the_last_bit(Encoder, preserve, digits):
    paper = {"n_components": 512, "init": "random", "max_iter": 100, "scale": "auto", "tol": 1e-4, "n_init": 1}
    if Encoder is scq.OgE:
        paper["ridge"] = 0.02
    X = digits[0][:500]
    short = Encoder(16, solver="columnwise", preserve=preserve, random_state=4).fit(X)
    long = Encoder(16, solver="columnwise", random_state=4, **paper).fit(X)
    assert short.components_.tobytes() == long.components_.tobytes()
    assert short.threshold_.tobytes() == long.threshold_.tobytes()
    assert short.levels_.tobytes() == long.levels_.tobytes()
    assert short.loss_curve_ == long.loss_curve_
    assert short.scale_ == long.scale_


@pytest.mark.parametrize("Encoder", ENCODERS)
@pytest.mark.parametrize("preserve", ["neighbors", "classes"])
def test_defaults_are_the_recipe_spelled_out(Encoder, preserve):
    """But for the aim itself, whose scale of OnE and weights of axes have no parameter."""
    X, n_bits = clustered(n=600)[0], 24
    recipe = make_recipe(Encoder(n_bits, preserve=preserve))
    spelled = {"n_components": recipe.n_components, "init": recipe.start}
    spelled |= {"ridge": recipe.ridge} if Encoder is scq.OgE else {}
    spelled |= {"tol": 0, "max_iter": 12} if preserve == "neighbors" else {"max_iter": 100}
    default = Encoder(n_bits, preserve=preserve, random_state=0).fit(X)
    same = Encoder(n_bits, preserve=preserve, random_state=0, **spelled).fit(X)
    assert default.components_.tobytes() == same.components_.tobytes()


@pytest.mark.parametrize("Encoder", ENCODERS)
def test_neighbors_run_all_their_iterations_without_complaint(Encoder, digits, recwarn):
    encoder = Encoder(16, random_state=0).fit(digits[0][:500])
    assert encoder.n_iter_ == 12 == len(encoder.loss_curve_)
    assert encoder.converged_
    assert not len(recwarn)
    assert not Encoder(16, random_state=0, tol=0).fit(digits[0][:500]).converged_


def test_restarts_of_all_iterations_keep_the_least_last_loss(digits):
    X = digits[0][:500].astype(np.float64)
    one, five = (scq.OgE(10, n_init=n, random_state=0).fit(X) for n in (1, 5))
    assert five.loss_curve_[-1] <= one.loss_curve_[-1] * (1 + 1e-12)  # a batch rounds otherwise than one alone


# -- neighbors are kept -------------------------------------------------------------------------------------------


def clustered(n=4000, q=200, d=64, seed=0):
    """Overlapping clusters with a falling spectrum, as embeddings have it."""
    rng = np.random.default_rng(seed)
    spectrum = np.arange(1, d + 1) ** -0.5
    turn = np.linalg.qr(rng.standard_normal((d, d)))[0]
    centres = 1.2 * rng.standard_normal((60, d)) * spectrum
    X = centres[rng.integers(60, size=n + q)] + rng.standard_normal((n + q, d)) * spectrum
    X = (X @ turn + 0.3).astype(np.float32)
    return X[:n], X[n:]


def neighbors(X, Q, k=10):
    """The true ones, in NumPy alone."""
    return np.stack([np.argsort(((q - X) ** 2).sum(1))[:k] for q in Q])


def recall(bits, query_bits, true, among=100):
    """Share of the true neighbors among the first codes by Hamming distance, in NumPy alone."""
    k = true.shape[1]
    B, C = 2.0 * bits - 1, 2.0 * query_bits - 1
    found = np.argsort(-(C @ B.T), axis=1, kind="stable")[:, :among]
    return np.mean([len(set(a) & set(b)) / k for a, b in zip(true.tolist(), found.tolist(), strict=True)])


def itq_map(X, n_bits, seed):
    """ITQ (Gong and Lazebnik, 2011), 50 iterations."""
    mean = X.mean(0)
    P = np.linalg.eigh(np.cov(X.T))[1][:, ::-1][:, :n_bits]
    Y = (X - mean) @ P
    R = np.linalg.qr(np.random.default_rng(seed).standard_normal((n_bits, n_bits)))[0]
    for _ in range(50):
        U, _, Vh = np.linalg.svd(Y.T @ np.where(Y @ R >= 0, 1.0, -1.0))
        R = U @ Vh
    return P @ R, mean


@pytest.mark.parametrize("n_bits", [16, 32, 48])
@pytest.mark.parametrize("Encoder", ENCODERS)
def test_neighbors_beat_random_hyperplanes_and_keep_up_with_itq(Encoder, n_bits):
    X, Q = clustered()
    true = neighbors(X, Q)

    def linear(W, mean):
        return recall((X - mean) @ W >= 0, (Q - mean) @ W >= 0, true)

    encoder = Encoder(n_bits, random_state=0).fit(X)
    ours = recall(encoder.transform(X) > 0, encoder.transform(Q) > 0, true)
    planes = np.random.default_rng(1).standard_normal((X.shape[1], n_bits))
    assert ours > linear(planes, X.mean(0)) + 0.03
    assert ours >= 0.95 * linear(*itq_map(X, n_bits, seed=0))


def test_neighbors_are_better_at_neighbors_where_there_are_no_classes():
    rng = np.random.default_rng(0)
    X = (rng.standard_normal((3200, 64)) * np.arange(1, 65) ** -0.5).astype(np.float32)
    X, Q = X[:3000], X[3000:]
    true, found = neighbors(X, Q), {}
    for preserve in ("neighbors", "classes"):
        encoder = scq.OgE(32, preserve=preserve, random_state=0).fit(X)
        found[preserve] = recall(encoder.transform(X) > 0, encoder.transform(Q) > 0, true)
    assert found["neighbors"] > found["classes"], found


# -- what files say -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("preserve", ["neighbors", "classes"])
@pytest.mark.parametrize("Encoder", ENCODERS)
def test_model_files_say_what_was_to_be_preserved(Encoder, preserve, digits, tmp_path):
    encoder = Encoder(9, preserve=preserve, random_state=0).fit(digits[0][:300])
    encoder.save(tmp_path / "model.safetensors")
    loaded = scq.load(tmp_path / "model.safetensors")
    assert loaded.preserve == preserve
    assert loaded.max_iter == "auto"
    assert loaded.get_params() == encoder.get_params()
    assert ("preserve" in repr(loaded)) == (preserve == "classes")
    again = loaded.fit(digits[0][:300])
    np.testing.assert_array_equal(again.components_, encoder.components_)


def test_a_model_file_without_an_aim_does_not_give_one_to_other_encoders(digits, tmp_path):
    scq.ITQ(8, random_state=0).fit(digits[0][:300]).save(tmp_path / "itq.safetensors")
    assert "preserve" not in scq.load(tmp_path / "itq.safetensors").get_params()
