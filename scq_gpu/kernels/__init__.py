"""CUDA kernels: encoding without the float matrix in between, and exact Hamming search.

They take CuPy arrays and torch CUDA tensors (shared through DLPack, not copied), compile on first use, and run on
CuPy's current stream. Importing this package imports neither CuPy nor torch.
"""

from __future__ import annotations

import importlib.util
from typing import Any

import array_api_compat

from scq_gpu._validate import check_choice, check_integer
from scq_gpu.kernels import _launch, _search
from scq_gpu.kernels._geometry import ELEMENT_BYTES, MAX_BITS, MAX_K

__all__ = ["MAX_BITS", "MAX_K", "PRECISIONS", "HammingDatabase", "accepts", "encode_linear", "searches"]

Array = Any
PRECISIONS = ("exact", "accurate", "fast")


def accepts(X: Array) -> bool:
    """Whether `encode_linear` takes X as it is: on a GPU, of a float type with a kernel, row-major."""
    if not _on_gpu(X) or importlib.util.find_spec("cupy") is None:
        return False
    return _element(X) in ELEMENT_BYTES and X.ndim == 2 and _is_row_major(X)


def searches(codes: Array, k: int = 1) -> bool:
    """Whether `HammingDatabase` takes these codes and finds that many neighbours."""
    if not _on_gpu(codes) or importlib.util.find_spec("cupy") is None:
        return False
    return 1 <= codes.shape[1] <= MAX_BITS // 8 and k <= MAX_K


def encode_linear(X: Array, W: Array, t: Array, *, precision: str = "exact") -> Array:
    """Encode rows on a GPU with a linear map: ``pack(X @ W >= t)``, X read once and only bits written.

    Parameters
    ----------
    X : array (n, d)
        CuPy array or torch CUDA tensor of float32, float16 or bfloat16, row-major; rows may be any stride apart.
    W : array (d, n_bits)
        On the device of X. Free of copies where W.T is contiguous float32.
    t : array (n_bits,)
    precision : {"exact", "accurate", "fast"}
        "exact" multiplies in float32. "accurate" takes three TF32 passes of the tensor cores for float32 features, with
        an error of the size of float32's. "fast" takes one: float32 features and W are rounded to TF32, W to the type
        of float16 and bfloat16 features. Rows that hold NaN get unspecified bits with "fast".

    Returns
    -------
    array (n, ceil(n_bits / 8)) of uint8
        In the library of X.
    """
    check_choice(precision, name="precision", choices=PRECISIONS)
    element = _element(X)
    runtime, (x, w, threshold) = _on_one_device(X=X, W=W, t=t)
    if element not in ELEMENT_BYTES:
        raise TypeError(
            f"X has dtype {element}; the kernels take {', '.join(ELEMENT_BYTES)}: cast X, for example to float32"
        )
    if x.ndim != 2 or not _is_row_major(x):
        raise ValueError(
            f"X of shape {x.shape} with strides {x.strides} is not row-major; pass cupy.ascontiguousarray(X)"
        )
    if w.ndim != 2 or w.shape[0] != x.shape[1] or w.shape[1] < 1 or threshold.shape != w.shape[1:]:
        raise ValueError(
            f"X {x.shape}, W {w.shape} and t {threshold.shape} do not fit; wanted are (n, d), (d, n_bits) and (n_bits,)"
        )
    with runtime.xp.cuda.Device(x.device.id):
        codes = _launch.encode(runtime, x, w, threshold, element=element, precision=precision)  # type: ignore[arg-type]
    return _like(codes, X)


class HammingDatabase:
    """Codes on a GPU, ready to be searched.

    Parameters
    ----------
    codes : array (n, n_bytes) of uint8
        CuPy array or torch CUDA tensor, up to 1024 bits a code; padding bits are 0. A copy in the kernels' layout is
        kept.
    """

    def __init__(self, codes: Array) -> None:
        runtime, (words,) = _on_one_device(codes=_check_codes(codes, "codes"))
        self._like = codes[:0]
        self._device = words.device.id
        with runtime.xp.cuda.Device(self._device):
            self._database = _search.Database(runtime, words)

    def __len__(self) -> int:
        return self._database.n

    def distances(self, queries: Array) -> Array:
        """All distances, (n_queries, n) of uint16."""
        return self._run(queries, lambda words: (self._database.distances(words),))[0]

    def search(self, queries: Array, k: int) -> tuple[Array, Array]:
        """The k nearest codes of each query, ties by lowest id.

        Returns
        -------
        distances : array (n_queries, k) of int32
        ids : array (n_queries, k) of int64
        """
        k = check_integer(k, name="k", minimum=1)
        distances, ids = self._run(queries, lambda words: self._database.top_k(words, k))
        return distances, ids

    def range_search(self, queries: Array, radius: int) -> tuple[Array, Array, Array]:
        """All codes within ``radius`` of each query, by id.

        Returns
        -------
        limits : array (n_queries + 1,) of int64
            The hits of query q are at ``limits[q] : limits[q + 1]``.
        distances : array of int32
        ids : array of int64
        """
        radius = check_integer(radius, name="radius", minimum=0)
        limits, distances, ids = self._run(queries, lambda words: self._database.within(words, radius))
        return limits, distances, ids

    def _run(self, queries: Array, search: Any) -> tuple[Array, ...]:
        runtime, (words,) = _on_one_device(queries=_check_codes(queries, "queries"))
        if words.device.id != self._device:
            raise ValueError(
                f"queries are on cuda:{words.device.id} and the codes on cuda:{self._device}; move them to one device"
            )
        with runtime.xp.cuda.Device(self._device):
            return tuple(_like(result, self._like) for result in search(words))


def _check_codes(codes: Array, name: str) -> Array:
    if _on_gpu(codes) and (_element(codes) != "uint8" or codes.ndim != 2):
        raise TypeError(
            f"{name} of dtype {_element(codes)} and shape {tuple(codes.shape)} are not packed codes; "
            "those are (n, n_bytes) of uint8 (see scq_gpu.pack)"
        )
    return codes


def _on_gpu(x: Array) -> bool:
    return bool(array_api_compat.is_cupy_array(x) or (array_api_compat.is_torch_array(x) and x.is_cuda))


def _element(x: Array) -> str:
    return str(getattr(x, "dtype", type(x).__name__)).removeprefix("torch.")


def _is_row_major(x: Array) -> bool:
    if x.shape[1] == 1:
        return True
    step: int = x.stride(1) if array_api_compat.is_torch_array(x) else x.strides[1] // x.itemsize
    return step == 1


def _on_one_device(**arrays: Array) -> tuple[_launch.Runtime, list[Array]]:
    """The runtime of the device that holds all arrays, and the arrays as CuPy's."""
    for name, x in arrays.items():
        if not _on_gpu(x):
            raise TypeError(
                f"{name} is a {type(x).__module__}.{type(x).__name__} in host memory; the kernels take CuPy arrays and "
                "torch CUDA tensors: move it, for example with cupy.asarray, or use the functions of scq_gpu itself, "
                "which take arrays anywhere"
            )
    import cupy

    views = [_as_cupy(x, cupy) for x in arrays.values()]
    devices = {name: view.device.id for name, view in zip(arrays, views, strict=True)}
    if len(set(devices.values())) > 1:
        where = ", ".join(f"{name} on cuda:{device}" for name, device in devices.items())
        raise ValueError(f"arrays are on different devices ({where}); move them to one")
    return _launch.cupy_runtime(views[0].device.id), views


def _as_cupy(x: Array, cupy: Any) -> Array:
    """The array itself, or a CuPy view of a tensor; bfloat16, which CuPy lacks, as its bits."""
    if array_api_compat.is_cupy_array(x):
        return x
    import torch

    x = x.detach()
    return cupy.from_dlpack(x.view(torch.int16) if x.dtype == torch.bfloat16 else x)


def _like(result: Array, x: Array) -> Array:
    """A CuPy result in the library of x."""
    if not array_api_compat.is_torch_array(x):
        return result
    import torch

    return torch.from_dlpack(result)
