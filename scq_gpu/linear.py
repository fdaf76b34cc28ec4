"""The fitted map: what every linear encoder can do once it has learned ``W`` and ``t``."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted

from scq_gpu._xp import Array, to_host
from scq_gpu.estimator import Encoder
from scq_gpu.io import replace_file
from scq_gpu.rows import Rows


class LinearEncoder(Encoder):
    """Base of encoders of the form ``bit_k(x) = [x . w_k >= t_k]``.

    A subclass learns ``components_`` (n_bits, d), which is W', and ``threshold_`` (n_bits,) in ``fit``, and lists its
    other fitted arrays in ``_fitted_arrays`` and its plain values in ``_fitted_facts``; both go into model files.
    """

    components_: Array
    threshold_: Array
    _fitted_arrays: tuple[str, ...] = ("components_", "threshold_")

    @overload
    def encode(
        self, X: np.ndarray, *, precision: str = "exact", out: np.ndarray | None = None
    ) -> NDArray[np.uint8]: ...
    @overload
    def encode(self, X: Any, *, precision: str = "exact", out: Array | None = None) -> Array: ...
    def encode(self, X: Any, *, precision: str = "exact", out: Array | None = None) -> Array:
        """Encode rows as packed binary codes.

        Parameters
        ----------
        X : rows (n, n_features)
            Whatever ``fit`` takes, from one row on, and a Dask array always.
        precision : {"exact", "accurate", "fast"}
            On a GPU, "fast" multiplies once on tensor cores, in TF32 or in the type of X, and "accurate" three times,
            with an error of the size of float32's. "exact" multiplies in X's float type (float32 at least), everywhere.
        out : array (n, ceil(n_bits / 8)) of uint8, optional
            Where to write the codes to, such as a memory map; in X's namespace, on X's device. Not for a Dask array.

        Returns
        -------
        array (n, ceil(n_bits / 8)) of uint8
            Bit k of row i is ``codes[i, k // 8] >> (k % 8) & 1``; in X's namespace, on X's device; ``out`` if given.
            For data frames, files and lists of numbers it is a NumPy array; for a Dask array a Dask array, computed
            when it is.
        """
        codes = self._run(X, lambda rows, W, t: rows.encode(W, t, precision=precision, out=out))
        if out is None or codes is out:
            return codes
        out[...] = codes
        return out

    @overload
    def project(self, X: np.ndarray) -> NDArray[np.floating]: ...
    @overload
    def project(self, X: Any) -> Array: ...
    def project(self, X: Any) -> Array:
        """Project rows: ``X @ W - t``, whose signs are the bits.

        Parameters
        ----------
        X : rows (n, n_features)
            Whatever ``encode`` takes.

        Returns
        -------
        array (n, n_bits) of float
        """
        return self._map(X, lambda scores, t: scores - t)

    def to_faiss(self) -> Any:
        """Make a Faiss index that encodes as this encoder does.

        Returns
        -------
        faiss.IndexLSH
            Empty and trained: ``sa_encode`` gives the codes of `encode`, ``add`` and ``search`` take floats. Training
            it again would replace the thresholds.

        Examples
        --------
        >>> import numpy as np, scq_gpu as scq
        >>> X = np.random.default_rng(0).normal(size=(200, 16)).astype(np.float32)
        >>> encoder = scq.OgE(n_bits=12, random_state=0).fit(X)
        >>> bool((encoder.to_faiss().sa_encode(X) == encoder.encode(X)).all())
        True
        """
        from scq_gpu.exports.faiss_index import make_index

        return make_index(*self._host_map())

    def to_onnx(self, path: str | os.PathLike[str] | None = None) -> Any:
        """Make an ONNX model: input ``X`` (n, n_features) of float32, output ``codes`` as from `encode`.

        Parameters
        ----------
        path : str or path-like, optional
            Also write the model there; an existing file is replaced only once the new one is complete.

        Returns
        -------
        onnx.ModelProto
            Its metadata hold the bit contract, ``n_bits`` and ``n_features``. It does not look for NaN: such a row gets
            zeros.

        Examples
        --------
        >>> import numpy as np, scq_gpu as scq
        >>> X = np.random.default_rng(0).normal(size=(200, 16)).astype(np.float32)
        >>> model = scq.OgE(n_bits=12, random_state=0).fit(X).to_onnx()
        >>> [node.op_type for node in model.graph.node]
        ['MatMul', 'GreaterOrEqual', 'Cast', 'Reshape', 'Mul', 'ReduceSum', 'Cast']
        """
        from scq_gpu.exports.onnx_model import make_model

        model = make_model(*self._host_map(), encoder=type(self).__name__)
        if path is not None:
            replace_file(path, model.SerializeToString())
        return model

    def to_torch(self) -> Any:
        """Make a torch module that encodes as this encoder does.

        Returns
        -------
        torch.nn.Module
            From rows (..., n_features) to uint8 codes (..., ceil(n_bits / 8)), in float32, with buffers ``components``
            and ``threshold``. It does not look for NaN: such a row gets zeros.

        Examples
        --------
        >>> import numpy as np, scq_gpu as scq
        >>> X = np.random.default_rng(0).normal(size=(200, 16)).astype(np.float32)
        >>> scq.OgE(n_bits=12, random_state=0).fit(X).to_torch()  # doctest: +SKIP
        TorchEncoder(n_features=16, n_bits=12)
        """
        from scq_gpu.exports.torch_module import make_module

        return make_module(*self._host_map())

    def _host_map(self) -> tuple[np.ndarray, np.ndarray]:
        """W' and t on the host in float32, in which exported encoders work."""
        check_is_fitted(self)
        return to_host(self.components_).astype(np.float32), to_host(self.threshold_).astype(np.float32)

    def _map(self, X: Any, function: Callable[[Array, Array], Array]) -> Array:
        """``function(X @ W, t)`` over blocks of rows."""
        return self._run(X, lambda rows, W, t: rows.map_scores(W, t, function))

    def _map_bits(self, X: Any, function: Callable[[Array], Array]) -> Array:
        return self._map(X, lambda scores, t: function(scores >= t))

    def _run(self, X: Any, run: Callable[[Rows, Array, Array], Array]) -> Array:
        """``run(rows, W, t)`` where the work is to be done, back in X's namespace and on X's device."""
        return self._run_with(X, ("components_", "threshold_"), lambda rows, W, t: run(rows, W.T, t))
