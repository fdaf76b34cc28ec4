"""The authors' own code gave these numbers; so do we."""

import numpy as np
import pytest
import reference

import scq_gpu as scq


def paper(case, rounds):
    """Parameters under which components_.T is the V of the paper after some rounds."""
    return {
        "n_bits": case["V0"].shape[1],
        "solver": "columnwise",
        "n_components": None,
        "scale": 1.0,
        "init": case["V0"],
        "max_iter": int(rounds),
        "tol": 0,
    }


@pytest.mark.parametrize("place", [0, 1, 2])
def test_oge_is_the_authors(case, place):
    encoder = scq.OgE(ridge=0.02, **paper(case, case["iterations"][place])).fit(case["X"])
    np.testing.assert_allclose(encoder.components_.T, case["oge_V"][place], rtol=0, atol=1e-8)


def test_oge_loss_curve_is_the_authors(case):
    """Theirs is taken after the next sign pass; ours of t rounds, at V_t, must give the same number."""
    for rounds in (1, 2, 7, 20):
        encoder = scq.OgE(ridge=0.02, **paper(case, rounds)).fit(case["X"])
        loss = reference.quantization_loss(case["X"], encoder.components_.T)
        assert loss == pytest.approx(case["oge_loss"][rounds - 1], rel=1e-9)


def test_one_is_the_authors_up_to_their_tolerance(case):
    encoder = scq.OnE(**paper(case, 1)).fit(case["X"])
    np.testing.assert_allclose(encoder.components_.T, case["one_V"][0], rtol=0, atol=3e-3)


def test_one_ends_no_worse_than_the_authors(case):
    encoder = scq.OnE(**paper(case, 20)).fit(case["X"])
    assert reference.quantization_loss(case["X"], encoder.components_.T) <= 1.01 * case["one_loss"][-1]


@pytest.mark.parametrize("rounds", [1, 5, 20])
def test_one_is_orthonormal_to_rounding(case, rounds):
    """Theirs is orthonormal to 1e-3, and in case_c their search gave up and kept the V before."""
    V = scq.OnE(**paper(case, rounds)).fit(case["X"]).components_.T
    assert np.abs(V.T @ V - np.eye(V.shape[1])).max() <= 1e-12


def test_case_c_is_the_one_that_theirs_could_not_complete(case):
    assert bool(case["one_completed"]) == (case["name"] != "case_c")
