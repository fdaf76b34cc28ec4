"""Kernels called with arrays: encoding without the float matrix in between, exact Hamming and asymmetric search.

They take CuPy arrays and torch CUDA tensors (shared through DLPack, not copied), compile on first use, and run on
CuPy's current stream. Importing this module imports neither CuPy nor torch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import array_api_compat
import numpy as np

from scq_gpu._core.arrays import Array, device_of, namespace, row_slices
from scq_gpu._core.devices import CudaDevice, cuda_device, is_row_major, on_gpu
from scq_gpu._core.factors import RowFactors
from scq_gpu._core.validate import check_choice
from scq_gpu.kernels.cuda import launch
from scq_gpu.kernels.cuda.asymmetric import ScoredCodes, least_scores
from scq_gpu.kernels.cuda.geometry import ELEMENT_BYTES
from scq_gpu.kernels.cuda.search import Database
from scq_gpu.kernels.engines import PRECISIONS, element_of
from scq_gpu.kernels.top_k import pad_answers

__all__ = ["CodeSearch", "asymmetric_knn", "encode_linear"]


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
        of float16 and bfloat16 features.

    Returns
    -------
    array (n, ceil(n_bits / 8)) of uint8
        In the library of X.
    """
    codes, _ = encode_rows(X, W, t, precision=precision)
    return codes


def encode_rows(X: Array, W: Array, t: Array, *, precision: str = "exact") -> tuple[Array, Array]:
    """What `encode_linear` returns, and whether all products were finite: a boolean array (1,) beside it.

    They are not where a row of X holds NaN or inf, or where a sum of products overflows.
    """
    check_choice(precision, name="precision", choices=PRECISIONS)
    element = element_of(X)
    device, (x, w, threshold) = _on_one_device(X=X, W=W, t=t)
    if element not in ELEMENT_BYTES:
        raise TypeError(
            f"X has dtype {element}; the kernels take {', '.join(ELEMENT_BYTES)}: cast X, for example to float32"
        )
    if x.ndim != 2 or not is_row_major(x):
        raise ValueError(
            f"X of shape {x.shape} with strides {x.strides} is not row-major; pass cupy.ascontiguousarray(X)"
        )
    if w.ndim != 2 or w.shape[0] != x.shape[1] or w.shape[1] < 1 or threshold.shape != w.shape[1:]:
        raise ValueError(
            f"X {x.shape}, W {w.shape} and t {threshold.shape} do not fit; wanted are (n, d), (d, n_bits) and (n_bits,)"
        )
    with device.current():
        codes, flag = launch.encode(
            device,
            x,
            w,
            threshold,
            element=element,
            precision=precision,  # type: ignore[arg-type]
        )
        return _like(codes, X), _like(flag, X) == 0


class CodeSearch:
    """Exact Hamming search over codes on a GPU: the engine of `scq_gpu.HammingIndex` there.

    Parameters
    ----------
    parts : list of array (n, n_bytes) of uint8
        One array of codes, CuPy's or torch's, up to 1024 bits, padding bits 0. A copy in the kernels' layout is kept.
    """

    def __init__(self, parts: list[Array]) -> None:
        self._parts = parts
        (codes,) = parts
        self._device, (words,) = _on_one_device(codes=_check_codes(codes, "codes"))
        with self._device.current():
            self._database = Database(self._device, words)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._parts,)  # compiled kernels do not travel

    def knn(self, queries: Array, parts: list[Array], k: int, *, n_bits: int) -> tuple[Array, Array]:
        """The k nearest rows of each query: distances (q, k) int32, rows (q, k) int64, padded with n_bits + 1 and -1.

        ``parts`` are those the engine was made of.
        """
        d, rows = self._run(queries, lambda words: self._database.top_k(words, min(k, self._database.n)))
        return pad_answers(d, rows, k, padding=n_bits + 1, xp=namespace(d))

    def within(self, queries: Array, parts: list[Array], radius: int) -> tuple[Array, Array, Array]:
        """All pairs within a radius as (query, distance, row) where the queries are, by query and row."""
        xp, found = namespace(queries), []
        for block in row_slices(queries.shape[0], self._database.range_batch()):
            limits, d, rows = self._run(queries[block, :], lambda words: self._database.within(words, radius))
            with self._device.current():
                numbers = xp.arange(rows.shape[0], dtype=xp.int64, device=device_of(rows))
                query = xp.searchsorted(limits[1:], numbers, side="right") + block.start
            found.append((query, d, rows))
        with self._device.current():
            query, d, rows = found[0] if len(found) == 1 else (xp.concat(x, axis=0) for x in zip(*found, strict=True))
        return query, d, rows

    def _run(self, queries: Array, search: Callable[[Array], tuple[Array, ...]]) -> tuple[Array, ...]:
        device, (words,) = _on_one_device(queries=_check_codes(queries, "queries"))
        if device is not self._device:
            raise ValueError(
                f"queries are on {device.name} and the codes on {self._device.name}; move them to one device"
            )
        with device.current():
            return tuple(_like(result, queries) for result in search(words))


def asymmetric_knn(
    gain: np.ndarray, parts: list[Array], k: int, *, factors: RowFactors | None = None
) -> tuple[Array, Array]:
    """Rows of least score: `scq_gpu.kernels.asymmetric.knn` for codes on a GPU. A score that is NaN counts as inf."""
    device, codes = _on_one_device(**{f"part {i} of the codes": x for i, x in enumerate(parts)})
    xp = device.xp
    with device.current():
        scored, constants = [ScoredCodes(x, None) for x in codes], None
        if factors is not None:
            floats = ([xp.ascontiguousarray(_as_cupy(x, xp), dtype=xp.float32) for x in each] for each in factors[:2])
            scored = [ScoredCodes(x, pair) for x, pair in zip(codes, zip(*floats, strict=True), strict=True)]
            constants = xp.asarray(factors.constants, dtype=xp.float32)
        gains = xp.asarray(gain, dtype=xp.float32)
        scores, rows = least_scores(device, xp.ascontiguousarray(gains), scored, k, constants=constants)
        scores, rows = _like(scores, parts[0]), _like(rows, parts[0])
        return pad_answers(scores, rows, k, padding=float("inf"), xp=namespace(scores))


def _check_codes(codes: Array, name: str) -> Array:
    if on_gpu(codes) and (element_of(codes) != "uint8" or codes.ndim != 2):
        raise TypeError(
            f"{name} of dtype {element_of(codes)} and shape {tuple(codes.shape)} are not packed codes; "
            "those are (n, n_bytes) of uint8 (see scq_gpu.pack)"
        )
    return codes


def _on_one_device(**arrays: Array) -> tuple[CudaDevice, list[Array]]:
    """The device that holds all arrays, and the arrays as CuPy's."""
    for name, x in arrays.items():
        if not on_gpu(x):
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
    return cuda_device(views[0].device.id), views


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
