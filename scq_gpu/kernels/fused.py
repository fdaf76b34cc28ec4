"""Expressions over small arrays, which on a GPU cost a launch for each of their operations unless they are fused.

A function of array operations stays the source that is read and, everywhere but on CuPy, the one that runs. There,
`elementwise` has CuPy compile it into one kernel, and `total` stands beside its CUDA expression.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

import array_api_compat

from scq_gpu._core.arrays import Array


def elementwise(function: Callable[..., Any]) -> Callable[..., Any]:
    """Run a function of elementwise operations as one kernel where its first argument is a CuPy array.

    The function takes arrays that broadcast against each other, then ``xp``, and returns an array or a tuple of them.
    On CuPy all results have the common shape of the arguments.
    """

    @functools.wraps(function)
    def run(*args: Array, xp: ModuleType) -> Any:
        if array_api_compat.is_cupy_array(args[0]):
            return _compiled(function, xp)(*args)
        return function(*args, xp=xp)

    return run


@functools.cache
def _compiled(function: Callable[..., Any], xp: ModuleType) -> Any:
    import cupy

    def body(*args: Array) -> Any:
        return function(*args, xp=xp)

    return cupy.fuse(kernel_name=function.__name__.lstrip("_"))(body)


class total:
    """The sum of an elementwise expression over axes that are kept with length 1.

    Parameters
    ----------
    function : callable
        Of arrays that broadcast against each other; given once more as ``source``, in CUDA.
    source : str
        The expression with the arguments of the function named a, b, c, in their order.
    """

    def __init__(self, function: Callable[..., Array], source: str) -> None:
        self.function, self._source = function, source

    def __call__(self, *args: Array, axis: int | tuple[int, ...], xp: ModuleType) -> Array:
        """The sum, in the namespace of the arguments."""
        if array_api_compat.is_cupy_array(args[0]):
            return self._kernel(len(args))(*args, axis=axis, keepdims=True)
        return xp.sum(self.function(*args), axis=axis, keepdims=True)

    @functools.cache  # noqa: B019 - as many as there are expressions in this package
    def _kernel(self, count: int) -> Any:
        import cupy

        arguments = ", ".join(f"T {name}" for name in "abcd"[:count])
        return cupy.ReductionKernel(arguments, "T y", self._source, "a + b", "y = a", "0", "total")
