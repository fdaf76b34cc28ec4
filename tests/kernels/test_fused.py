"""Fused expressions: on every backend what their array operations give NumPy, on CuPy in one launch each."""

import inspect

import numpy as np
import pytest

from scq_gpu._core.arrays import elementwise, namespace, total
from scq_gpu.kernels import linalg
from scq_gpu.rows import projected
from scq_gpu.training import joint, loop

XP = namespace(np.empty(0))
MODULES = (joint, linalg, loop, projected)
TOTALS = {f"{m.__name__}.{k}": v for m in MODULES for k, v in vars(m).items() if isinstance(v, total)}
WRAPPED = elementwise(lambda xp: None).__code__
ELEMENTWISE = {
    f"{m.__name__}.{k}": v
    for m in MODULES
    for k, v in vars(m).items()
    if getattr(v, "__code__", None) is elementwise(lambda xp: None).__code__ and v.__module__ == m.__name__
}


def arguments(count, seed=0):
    """A batch, then arrays that broadcast against it, none of them near zero."""
    rng = np.random.default_rng(seed)
    shapes = [(3, 40, 7), (3, 40, 7), (3, 1, 1), (3, 1, 1), (40, 1), (3, 40, 7), (3, 1, 7), (3, 1, 7), (3, 1, 7)]
    drawn = [
        rng.uniform(0.1, 1, shapes[i % len(shapes)]) * rng.choice([-1, 1], shapes[i % len(shapes)])
        for i in range(count)
    ]
    drawn[0] = drawn[0] * np.ones(shapes[0])
    return drawn


def test_there_are_expressions_to_test():
    assert len(TOTALS) >= 5
    assert len(ELEMENTWISE) >= 10


@pytest.mark.parametrize("name", TOTALS)
@pytest.mark.parametrize("axis", [-1, -2, (-2, -1)])
def test_total(backend, name, axis):
    expression = TOTALS[name]
    args = arguments(len(inspect.signature(expression.function).parameters))
    wanted = np.sum(expression.function(*args), axis=axis, keepdims=True)
    found = expression(*map(backend.array, args), axis=axis, xp=backend.namespace)
    assert backend.owns(found)
    assert found.shape == wanted.shape
    np.testing.assert_allclose(backend.host(found), wanted, rtol=1e-10 if backend.has_float64 else 1e-3, atol=1e-3)


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_elementwise(backend, name):
    function = ELEMENTWISE[name]
    count = len(inspect.signature(function).parameters) - 1
    args = arguments(count)
    if "tiny" in inspect.signature(function).parameters:
        args[-1] = 1e-9  # a number
    wanted = function.__wrapped__(*args, xp=XP)
    found = function(*(x if isinstance(x, float) else backend.array(x) for x in args), xp=backend.namespace)
    for one, other in zip(*((x if isinstance(x, tuple) else (x,)) for x in (found, wanted)), strict=True):
        assert backend.owns(one)
        one, other = np.broadcast_arrays(backend.host(one), other)
        np.testing.assert_allclose(one, other, rtol=1e-12 if backend.has_float64 else 1e-4, atol=1e-6)


@pytest.mark.gpu
@pytest.mark.standin
def test_one_launch_each():
    standin = pytest.importorskip("standin")
    import cupy

    for expressions, more in ((TOTALS, {"axis": -2}), (ELEMENTWISE, {})):
        for name, function in expressions.items():
            wrapped = function.function if isinstance(function, total) else function.__wrapped__
            count = len([p for p in inspect.signature(wrapped).parameters if p != "xp"])
            args = [cupy.asarray(x) for x in arguments(count)]
            xp = namespace(args[0])
            function(*args, **more, xp=xp)
            with standin.counting() as n:
                function(*args, **more, xp=xp)
            assert n["kernel launches"] == 1, name
