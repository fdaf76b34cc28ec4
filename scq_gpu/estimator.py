"""What every encoder is: an estimator that learns from rows, encodes them, and goes into a model file and back."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable
from typing import Any, Self, overload

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from scq_gpu._validate import check_integer
from scq_gpu._xp import Array, device_of, from_host, linalg_errors, namespace, to_device, to_host, usable_device
from scq_gpu.codes import pack_bits, signs
from scq_gpu.intake import as_rows, joined
from scq_gpu.io import ModelFileError, read_model, write_model
from scq_gpu.rows import Rows

_ENCODERS: dict[str, type[Encoder]] = {}


class Encoder(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """Base of encoders: a subclass says how it learns from rows (`_learn`) and what bits it gives a row (`_map_bits`).

    It lists its fitted arrays in ``_fitted_arrays``, one that has a row for each bit first, and its plain values in
    ``_fitted_facts``; both go into model files.
    """

    n_bits: int
    device: str | None
    n_samples_: int
    _fitted_arrays: tuple[str, ...]
    _fitted_facts: tuple[str, ...] = ("n_features_in_",)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if not cls.__name__.startswith("_"):
            _ENCODERS[cls.__name__] = cls

    def fit(self, X: Any, y: object = None) -> Self:
        """Learn from rows; no labels are used.

        A fit that does not finish, through an error or an interrupt, leaves the encoder as it was before.

        Parameters
        ----------
        X : rows (n, n_features)
            One of:

            - an array of any array-API namespace (NumPy, CuPy, torch, ...) on any of its devices, of float16, bfloat16,
              float32, float64, integers or booleans. A memory map is read block by block, never as a whole;
            - a pandas or polars data frame of numbers; its column names become ``feature_names_in_`` and are checked
              from then on;
            - what `scq_gpu.io.open_rows` returns for a file, a folder or a list of those: a ``RowSource``, which knows
              its shape and type, and is read in blocks, anew in every pass. A path alone is refused;
            - a list of arrays of one namespace, or of what ``open_rows`` returns, as one after the other: nothing is
              joined in memory;
            - a list of rows, each a list of numbers;
            - a Dask array of NumPy or CuPy chunks of known sizes, for `OnE` and `OgE`: each chunk is worked on where it
              is. Other encoders refuse it.

            Two rows at least, no NaN and no inf. Sparse matrices are refused.
        y : ignored

        Returns
        -------
        self
        """
        fitted = snapshot(self)
        fitted._fit(X)
        self.__dict__ = fitted.__dict__  # one assignment: the old state or the new one
        return self

    def _fit(self, X: Any) -> None:
        self._check_parameters()
        X = joined(X)
        rows = as_rows(X, device=self.device, min_rows=2)
        validate_data(self, X, reset=True, skip_check_array=True)
        with linalg_errors(rows.xp):
            self._learn(rows)
        self.n_samples_ = rows.shape[0]

    def _check_parameters(self) -> None:
        check_integer(self.n_bits, name="n_bits", minimum=1)
        if self.device is not None:
            usable_device(self.device)

    def _learn(self, rows: Rows) -> None:
        """Set the fitted attributes."""
        raise NotImplementedError

    @overload
    def encode(self, X: np.ndarray) -> NDArray[np.uint8]: ...
    @overload
    def encode(self, X: Any) -> Array: ...
    def encode(self, X: Any) -> Array:
        """Encode rows as packed binary codes.

        Parameters
        ----------
        X : rows (n, n_features)
            Whatever ``fit`` takes, from one row on. All encoders but `SpH` take a Dask array here.

        Returns
        -------
        array (n, ceil(n_bits / 8)) of uint8
            Bit k of row i is ``codes[i, k // 8] >> (k % 8) & 1``; in X's namespace, on X's device. For data frames,
            files and lists of numbers it is a NumPy array; for a Dask array a Dask array, computed when it is.
        """
        return self._map_bits(X, lambda bits: pack_bits(bits, xp=namespace(bits)))

    def transform(self, X: Any) -> Array:
        """Encode rows as signs, the paper's B.

        Parameters
        ----------
        X : rows (n, n_features)
            Whatever ``encode`` takes.

        Returns
        -------
        array (n, n_bits) of int8
            -1 and +1, in the place and kind of what ``encode`` returns; a data frame after ``set_output``.
        """
        return self._map_bits(X, _int8_signs)

    def _map_bits(self, X: Any, function: Callable[[Array], Array]) -> Array:
        """``function(bits)`` over blocks of rows, bits being booleans (m, n_bits)."""
        raise NotImplementedError

    def to(self, device: str) -> Self:
        """Move the fitted arrays, and all work from now on, to a device.

        Parameters
        ----------
        device : {"cpu", "cuda", "cuda:1", ...}

        Returns
        -------
        self
        """
        usable_device(device)
        for name in self._fitted_arrays:
            if hasattr(self, name):
                setattr(self, name, to_device(getattr(self, name), device))
        self.device = device
        return self

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the fitted encoder to a model file (safetensors), the same for every device.

        The callback, the device and a random generator object are not part of the model.

        Parameters
        ----------
        path : str or path-like
            An existing file is replaced only once the new one is complete.
        """
        check_is_fitted(self)
        tensors = {name: to_host(getattr(self, name)) for name in self._fitted_arrays}
        params = {}
        for name, value in self.get_params(deep=False).items():
            if getattr(value, "shape", ()):
                tensors[f"param.{name}"] = to_host(value)
            elif name != "device" and isinstance(value, bool | int | float | str | np.generic | None):
                params[name] = value.item() if isinstance(value, np.generic) else value
        facts = {name: getattr(self, name) for name in self._fitted_facts}
        if hasattr(self, "feature_names_in_"):
            facts["feature_names_in_"] = list(self.feature_names_in_)
        write_model(path, tensors, {"encoder": type(self).__name__, "params": params, "fitted": facts})

    def _run_with(self, X: Any, names: tuple[str, ...], run: Callable[..., Array]) -> Array:
        """``run(rows, *fitted arrays)`` where the work is to be done, back in X's namespace and on X's device."""
        check_is_fitted(self)
        X = joined(X)
        rows = as_rows(X, device=self.device)
        validate_data(self, X, reset=False, skip_check_array=True)
        result = run(rows, *(_like(getattr(self, name), rows) for name in names))
        if self.device is None:
            return result
        return from_host(to_host(result), xp=namespace(rows.home), device=device_of(rows.home))

    @property
    def _n_features_out(self) -> int:
        return int(getattr(self, self._fitted_arrays[0]).shape[0])

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, self._fitted_arrays[0])

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = []  # signs are int8 whatever comes in
        tags.array_api_support = True
        return tags


def load(path: str | os.PathLike[str], *, device: str | None = None) -> Encoder:
    """Load an encoder from a model file.

    Parameters
    ----------
    path : str or path-like
        A file that ``encoder.save`` wrote, on whatever device.
    device : {None, "cpu", "cuda", "cuda:1", ...}
        Where the encoder is to work; None loads NumPy arrays and follows each X.

    Returns
    -------
    encoder
        Of the class that was saved, fitted; for a type checker, ``isinstance`` tells which.

    Examples
    --------
    >>> import tempfile, numpy as np, scq_gpu as scq
    >>> X = np.random.default_rng(0).normal(size=(200, 16))
    >>> encoder = scq.OgE(n_bits=8, random_state=0).fit(X)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     encoder.save(f"{folder}/model.safetensors")
    ...     same = scq.load(f"{folder}/model.safetensors")
    >>> bool((same.encode(X) == encoder.encode(X)).all())
    True
    """
    if device is not None:
        usable_device(device)
    tensors, facts = read_model(path)
    if facts["encoder"] not in _ENCODERS:
        raise ModelFileError(f"{path} holds an encoder {facts['encoder']!r}; this scq_gpu knows {', '.join(_ENCODERS)}")
    encoder = _ENCODERS[facts["encoder"]](**facts["params"])
    for name, value in tensors.items():
        setattr(encoder, name.removeprefix("param."), value)
    for name, value in facts["fitted"].items():
        setattr(encoder, name, np.asarray(value, dtype=object) if name == "feature_names_in_" else value)
    return encoder if device is None else encoder.to(device)


def snapshot(encoder: Encoder) -> Any:
    """A copy that can be fitted, or shown to a callback, while the original stays as it is."""
    return copy.copy(encoder)


def _like(x: Array, rows: Rows) -> Array:
    """x in the namespace and on the device of the rows."""
    if namespace(x) is rows.xp and device_of(x) == rows.device:
        return x
    return from_host(to_host(x), xp=rows.xp, device=rows.device)


def _int8_signs(bits: Array) -> Array:
    xp = namespace(bits)
    return signs(bits, dtype=xp.int8, xp=xp)
