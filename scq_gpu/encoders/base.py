"""Base classes of encoders: estimators that learn from rows, encode them, and go into a model file and back."""

from __future__ import annotations

import contextlib
import copy
import math
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from numbers import Integral, Real
from typing import Any, ClassVar, Self, overload

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import check_is_fitted, validate_data
from tqdm import tqdm

from scq_gpu._core.arrays import (
    Array,
    generator,
    is_dask,
    like,
    linalg_errors,
    namespace,
    on_device_of,
    quiet_floats,
    signs,
    to_device,
    to_host,
    usable_device,
)
from scq_gpu._core.bits import pack_bits
from scq_gpu._core.files import replace_file
from scq_gpu._core.machine import blas_in_one_thread
from scq_gpu._core.messages import warn_caller
from scq_gpu._core.validate import (
    ON_INVALID,
    InvalidRowsWarning,
    check_choice,
    check_integer,
    check_row_count,
    settle_codes,
)
from scq_gpu.encoders.stored import check_stored
from scq_gpu.io import exports, faiss_index
from scq_gpu.io.models import ModelFileError, read_model, write_model
from scq_gpu.rows.blocks import Rows, as_rows, sample_blocks
from scq_gpu.rows.changed import drop_invalid, fill_rows
from scq_gpu.rows.distributed import DaskRows
from scq_gpu.rows.sources import RowSource
from scq_gpu.search.scoring import unit_map

_ENCODERS: dict[str, type[Encoder]] = {}


def rows_of(X: Any, *, device: str | None, min_rows: int = 1) -> Rows | DaskRows:
    """Convert user input to rows, those of a Dask array included."""
    if isinstance(X, DaskRows):
        return X
    if is_dask(X):
        return DaskRows(X, device=device, min_rows=max(1, min_rows))
    return as_rows(X, device=device, min_rows=min_rows)


class _Numbers(Interval):
    """An interval that rejects True, which scikit-learn takes for 1, and infinity."""

    def is_satisfied_by(self, val: Any) -> bool:
        return not isinstance(val, bool) and super().is_satisfied_by(val) and math.isfinite(val)


POSITIVE_INTEGER = [_Numbers(Integral, 1, None, closed="left")]


def real(minimum: float, *, strict: bool = False) -> list[Interval]:
    """Make the constraint of a finite float of at least (or, if strict, above) ``minimum``."""
    return [_Numbers(Real, minimum, None, closed="neither" if strict else "left")]


def one_of(choices: Iterable[str]) -> list[StrOptions]:
    """Make the constraint of a string among choices, which an error lists in their order."""
    return [StrOptions(dict.fromkeys(choices).keys())]


def show_progress(encoder: Any, iterations: range, *, n: int | None = None, what: str = "passes") -> Iterable[int]:
    """Return the iterations, passes over n rows if that is known, behind a bar if ``verbose`` and on a terminal."""
    if not encoder.verbose:
        return iterations
    name = f"{type(encoder).__name__} {encoder.n_bits} bits, {what}"
    bar = tqdm(iterations, desc=name, unit="pass", disable=None)
    return bar if n is None else _with_rows_per_second(bar, n)


def _with_rows_per_second(bar: Any, n: int) -> Iterator[int]:
    """Yield the iterations of a bar, which shows passes per second and the time left by itself."""
    for done, iteration in enumerate(bar, start=1):
        yield iteration
        if seconds := bar.format_dict["elapsed"]:
            bar.set_postfix_str(f"{bar.format_sizeof(n * done / seconds)} rows/s", refresh=False)


class Encoder(BaseEstimator):
    """Base of encoders: a subclass defines how it learns from rows (`_learn`) and the codes of rows (`_encode`).

    It lists its fitted arrays in ``_fitted_arrays`` and its plain values in ``_fitted_facts``; both go into model
    files. Its parameters are checked by ``_parameter_constraints``, as scikit-learn has them.
    """

    n_samples_: int
    n_samples_kept_: int
    _fitted_arrays: tuple[str, ...]
    _fitted_facts: tuple[str, ...] = ("n_features_in_",)
    _learns_on_workers: ClassVar[bool] = False  # whether `_learn` takes the rows of a Dask array
    _parameter_constraints: ClassVar[dict[str, Any]] = {"n_bits": POSITIVE_INTEGER, "device": [str, None]}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        # a subclass declares the constraints of its own parameters
        declared = [vars(kind).get("_parameter_constraints", {}) for kind in reversed(cls.__mro__)]
        cls._parameter_constraints = {name: kinds for constraints in declared for name, kinds in constraints.items()}
        # the classes of this module are bases only
        if not cls.__name__.startswith("_") and cls.__module__ != __name__:
            _ENCODERS[cls.__name__] = cls

    def __init__(self, n_bits: int = 32, *, device: str | None = None) -> None:
        self.n_bits = n_bits
        self.device = device

    def fit(self, X: Any, y: object = None, *, on_invalid: str = "raise") -> Self:
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
            - the path of a file or folder of rows, a list of those, or what `scq_gpu.io.open_rows` returns for them: a
              ``RowSource``, which knows its shape and type, and is read in blocks, anew in every pass;
            - a list of arrays of one namespace, or of what ``open_rows`` returns, as one after the other: nothing is
              joined in memory;
            - a list of rows, each a list of numbers;
            - an iterator, such as a generator, of blocks (rows, n_features), arrays of one type, for data that come
              once. Means and axes are those of all rows; the passes of training go through a sample of them, drawn
              uniformly, of at most 512 MiB. ``n_samples_`` counts all rows and ``n_samples_kept_`` the sample;
            - a Dask array of NumPy or CuPy chunks of known sizes, for `OnE` and `OgE`: each chunk is worked on where it
              is. Other encoders reject it.

            Two rows at least, no NaN and no inf. Sparse matrices are rejected.
        y : ignored
        on_invalid : {"raise", "skip"}, default="raise"
            What to do about rows with NaN or inf: raise an error that names the first, or leave them out, with a
            warning that has their numbers in ``warning.rows``, which takes one more pass over the rows. Not for an
            iterator or a Dask array.

        Returns
        -------
        self
        """
        fitted = copy.copy(self)
        fitted._fit(X, on_invalid)
        self.__dict__ = fitted.__dict__  # one assignment: the old state or the new one
        return self

    def _fit(self, X: Any, on_invalid: str) -> None:
        self._check_parameters()
        skip = check_choice(on_invalid, name="on_invalid", choices=("raise", "skip")) == "skip"
        if skip and (isinstance(X, Iterator) or is_dask(X)):
            raise TypeError(f"on_invalid='skip' with a {type(X).__name__}: drop such rows of it before the fit")
        n_streamed = 0
        if isinstance(X, Iterator):
            X, n_streamed = self._sample(X)
        rows = self._open(X, reset=True, min_rows=2)
        if skip:
            rows = self._skip_invalid(rows)
        # the moments are checked instead of warnings: BLAS sets flags by what it finds in its own buffers
        with on_device_of(rows.place), linalg_errors(rows.xp), blas_in_one_thread(rows.xp), quiet_floats():
            self._learn(rows)
            self._share(rows)
        self.n_samples_ = n_streamed or rows.shape[0]
        # an earlier fit may have left a count
        self.__dict__.pop("n_samples_kept_", None)
        if n_streamed:
            self.n_samples_kept_ = rows.shape[0]

    def _sample(self, blocks: Iterator[Any]) -> tuple[RowSource, int]:
        """Go through an iterator of blocks, and report how many rows are kept of it."""
        with blas_in_one_thread(np):
            kept, n = sample_blocks(blocks, device=self.device, rng=generator(getattr(self, "random_state", None)))
        if getattr(self, "verbose", False):
            tqdm.write(
                f"{type(self).__name__}: {n:,} rows went by, {kept.shape[0]:,} of them are kept for training",
                file=sys.stderr,
            )
        return kept, n

    def _skip_invalid(self, rows: Rows) -> Rows:
        """Leave out rows with NaN or inf, and warn of them."""
        kept, invalid = drop_invalid(rows.X)
        if not invalid.size:
            return rows
        check_row_count(kept.shape, min_rows=2)
        warn_caller(InvalidRowsWarning(invalid, n=rows.shape[0], on_invalid="skip"))
        return Rows(kept, device=self.device, given=rows.given)

    def _open(self, X: Any, *, reset: bool, min_rows: int = 1) -> Any:
        """Return the rows of X after scikit-learn's checks of their width and names, which a fit (``reset``) sets."""
        workers = self._learns_on_workers or not reset
        with on_device_of(X):
            rows = (rows_of if workers else as_rows)(X, device=self.device, min_rows=min_rows)
        # looking for the names of columns takes as long as encoding a row
        known = not reset and type(rows.given) is np.ndarray and rows.shape[1] == self.n_features_in_
        if not known or hasattr(self, "feature_names_in_"):
            validate_data(self, rows.given, reset=reset, skip_check_array=True)
        return rows

    @contextlib.contextmanager
    def _opened(self, X: Any, *names: str) -> Iterator[tuple[Any, ...]]:
        """Give the rows of X, and fitted arrays where the work on them is to be done, to a with statement."""
        check_is_fitted(self)
        rows = self._open(X, reset=False, min_rows=0)
        with on_device_of(rows.place), blas_in_one_thread(rows.xp):
            # The sample of a Dask array is where its chunks are, and the work is planned here
            here = rows.sample if isinstance(rows.sample, np.ndarray) else rows.xp.empty((0,), device=rows.device)
            yield rows, *(like(getattr(self, name), here) for name in names)

    def _returned(self, result: Array, rows: Any) -> Array:
        """Bring a result back to the namespace and device of X."""
        return result if self.device is None and rows.place is rows.sample else like(result, rows.origin)

    def _share(self, rows: Any) -> None:
        """Make torch tensors of what CuPy has learned from tensors, in the same memory."""
        if rows.place is not rows.sample:
            for name in self._fitted_arrays:
                setattr(self, name, like(getattr(self, name), rows.place))

    def _check_parameters(self) -> None:
        self._validate_params()
        if self.device is not None:
            usable_device(self.device)

    def _learn(self, rows: Any) -> None:
        """Set the fitted attributes."""
        raise NotImplementedError

    @overload
    def encode(self, X: np.ndarray, *, on_invalid: str = "raise") -> NDArray[np.uint8]: ...
    @overload
    def encode(self, X: Any, *, on_invalid: str = "raise") -> Array: ...
    def encode(self, X: Any, *, on_invalid: str = "raise") -> Array:
        """Encode rows as packed binary codes.

        Parameters
        ----------
        X : rows (n, n_features)
            Whatever ``fit`` takes, from one row on. All encoders but `SpH` and `OPQ` take a Dask array here.
        on_invalid : {"raise", "skip", "zero"}, default="raise"
            As in ``OgE.encode``.

        Returns
        -------
        array (n, ceil(n_bits / 8)) of uint8
            As from ``OgE.encode``.
        """
        X, invalid = self._fill_invalid(X, on_invalid)
        return _settled(self._encode(X), invalid(), on_invalid)

    def _encode(self, X: Any) -> Array:
        """Encode rows, none of them invalid."""
        raise NotImplementedError

    def _fill_invalid(self, X: Any, on_invalid: str) -> tuple[Any, Callable[[], np.ndarray]]:
        """Fill rows of X with NaN or inf, unless they are to raise; the function gives the numbers of those seen."""
        if check_choice(on_invalid, name="on_invalid", choices=ON_INVALID) == "raise":
            return X, lambda: np.zeros(0, dtype=np.int64)
        check_is_fitted(self)
        rows = self._open(X, reset=False, min_rows=0)
        if not isinstance(rows, Rows):
            raise TypeError(f"on_invalid={on_invalid!r} with a Dask array: drop or fill in its rows before encoding")
        filled, invalid = fill_rows(rows.X)
        return Rows(filled, device=self.device, given=rows.given), invalid

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
        write_model(path, *self._to_tensors())

    def _to_tensors(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Return the content of a model file: arrays, and facts for JSON."""
        check_is_fitted(self)
        tensors = {name: to_host(getattr(self, name)) for name in self._fitted_arrays}
        params = {}
        for name, value in self.get_params(deep=False).items():
            if getattr(value, "shape", ()):
                tensors[f"param.{name}"] = to_host(value)
            elif name != "device" and isinstance(value, bool | int | float | str | np.generic | None):
                params[name] = value.item() if isinstance(value, np.generic) else value
            elif isinstance(value, list | tuple) and all(isinstance(size, int | np.integer) for size in value):
                params[name] = [int(size) for size in value]
        facts = {name: getattr(self, name) for name in self._fitted_facts}
        if hasattr(self, "n_samples_kept_"):
            facts["n_samples_kept_"] = self.n_samples_kept_
        if hasattr(self, "feature_names_in_"):
            facts["feature_names_in_"] = list(self.feature_names_in_)
        return tensors, {"encoder": type(self).__name__, "params": params, "fitted": facts}

    @classmethod
    def _array_shapes(cls, params: dict[str, Any], fitted: dict[str, Any]) -> dict[str, tuple[int, ...]]:
        """Return the shapes of arrays that only this encoder has; a ValueError says what of a file does not fit."""
        return {}

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, self._fitted_arrays[0])

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.array_api_support = True
        return tags


class BitEncoder(ClassNamePrefixFeaturesOutMixin, TransformerMixin, Encoder):
    """Base of encoders whose codes are bits, each by itself: a subclass defines those of a row (`_map_bits`).

    The first of its fitted arrays has a row for each bit.
    """

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
        return self._map_bits(X, lambda bits: signs(bits, dtype=namespace(bits).int8, xp=namespace(bits)))

    def _encode(self, X: Any) -> Array:
        return self._map_bits(X, lambda bits: pack_bits(bits, xp=namespace(bits)))

    def _map_bits(self, X: Any, function: Callable[[Array], Array]) -> Array:
        """Map ``function(bits)`` over blocks of rows; bits are booleans (m, n_bits)."""
        raise NotImplementedError

    @property
    def _n_features_out(self) -> int:
        return int(getattr(self, self._fitted_arrays[0]).shape[0])

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = []  # signs are int8 whatever comes in
        return tags


class LinearEncoder(BitEncoder):
    """Base of encoders of the form ``bit_k(x) = [x . w_k >= t_k]``.

    A subclass learns ``components_`` (n_bits, d), which is W', and ``threshold_`` (n_bits,) in ``_learn``.
    """

    components_: Array
    threshold_: Array
    _fitted_arrays: tuple[str, ...] = ("components_", "threshold_")

    @overload
    def encode(
        self, X: np.ndarray, *, precision: str = ..., out: Any = ..., on_invalid: str = ...
    ) -> NDArray[np.uint8]: ...
    @overload
    def encode(self, X: Any, *, precision: str = ..., out: Any = ..., on_invalid: str = ...) -> Array: ...
    def encode(
        self,
        X: Any,
        *,
        precision: str = "exact",
        out: Array | None = None,
        on_invalid: str = "raise",
    ) -> Array:
        """Encode rows as packed binary codes.

        Parameters
        ----------
        X : rows (n, n_features)
            Whatever ``fit`` takes, from one row on, and a Dask array always.
        precision : {"exact", "accurate", "fast"}, default="exact"
            On a GPU, "fast" multiplies once on tensor cores, in TF32 or in the type of X, and "accurate" three times,
            with an error of the size of float32's. "exact" multiplies in X's float type (float32 at least), everywhere.
        out : array (n, ceil(n_bits / 8)) of uint8, optional
            Where to write the codes to, such as a memory map; in X's namespace, on X's device. Not for a Dask array.
        on_invalid : {"raise", "skip", "zero"}, default="raise"
            What to do about rows with NaN or inf: raise an error that names the first, leave them out, or give them
            codes of zeros. The latter two warn, with the rows' numbers in ``warning.rows``. Not for a Dask array.

        Returns
        -------
        array (n, ceil(n_bits / 8)) of uint8
            Bit k of row i is ``codes[i, k // 8] >> (k % 8) & 1``; in X's namespace, on X's device; ``out`` if given.
            For data frames, files and lists of numbers it is a NumPy array; for a Dask array a Dask array, computed
            when it is.
        """
        X, invalid = self._fill_invalid(X, on_invalid)
        with self._opened(X, "components_", "threshold_") as (rows, W_t, t):
            # codes of invalid rows may be dropped, so that `out` is filled at the end
            codes = rows.encode(W_t.T, t, precision=precision, out=out if on_invalid == "raise" else None)
        codes = _settled(self._returned(codes, rows), invalid(), on_invalid)
        if out is None or codes is out:
            return codes
        if tuple(out.shape) != tuple(codes.shape):
            raise ValueError(f"out has shape {tuple(out.shape)}; these codes have {tuple(codes.shape)}")
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
        with self._opened(X, "components_", "threshold_") as (rows, W_t, t):
            scores = rows.map_scores(W_t.T, t, lambda scores, t: scores - t, to_origin=True)
        return self._returned(scores, rows)

    def to_faiss(self, kind: str = "flat", *, n_lists: int = 1024) -> Any:
        """Make an empty Faiss index whose codes are those of this encoder.

        Parameters
        ----------
        kind : {"flat", "ivf", "hnsw", "asymmetric"}, default="flat"
            "flat" encodes rows and queries and compares all codes by Hamming distance. "asymmetric" encodes rows only,
            and compares float queries with all codes at fast-scan speed, by the distances of
            `HammingIndex.search_asymmetric` rounded to 8 bits per table entry. "ivf" (an inverted index) and "hnsw" (a
            graph) take codes, find neighbors by Hamming distance without looking at every code, and may miss some.
        n_lists : int, default=1024
            Lists of the inverted index; Faiss advises 4 to 16 times the square root of the number of rows.

        Returns
        -------
        faiss.IndexLSH for "flat"
            Trained: ``sa_encode`` gives the codes of `encode`, ``add`` and ``search`` take floats. Training it again
            would replace the thresholds.
        faiss.IndexPreTransform (a LinearTransform and an IndexPQFastScan) for "asymmetric"
            Trained: ``add`` and ``search`` take floats, and a larger score is nearer. For the cosine, normalize rows
            and queries, before `fit` too.
        faiss.IndexBinaryIVF for "ivf"
            To be trained with codes; ``train``, ``add`` and ``search`` take codes, ``nprobe`` says how many lists to
            read.
        faiss.IndexBinaryHNSW for "hnsw"
            ``add`` and ``search`` take codes.

        Examples
        --------
        >>> import numpy as np, scq_gpu as scq
        >>> X = np.random.default_rng(0).normal(size=(200, 16)).astype(np.float32)
        >>> encoder = scq.OgE(n_bits=12, random_state=0).fit(X)
        >>> bool((encoder.to_faiss().sa_encode(X) == encoder.encode(X)).all())
        True
        >>> index = encoder.to_faiss("asymmetric")
        >>> index.add(X)
        >>> scores, ids = index.search(X[:5], 3)
        """
        check_choice(kind, name="kind", choices=faiss_index.KINDS)
        check_is_fitted(self)
        if kind == "flat":
            return faiss_index.make_index(*self._host_map())
        if kind == "asymmetric":
            return faiss_index.make_asymmetric_index(unit_map(self))
        n_lists = check_integer(n_lists, name="n_lists", minimum=1)
        return faiss_index.make_binary_index(self.n_bits, kind, n_lists=n_lists)

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
        model = exports.make_onnx(*self._host_map(), encoder=type(self).__name__)
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
        return exports.make_torch(*self._host_map())

    def _host_map(self) -> tuple[np.ndarray, np.ndarray]:
        """Return W' and t on the host in float32, in which exported encoders work."""
        check_is_fitted(self)
        return to_host(self.components_).astype(np.float32), to_host(self.threshold_).astype(np.float32)

    def _map_bits(self, X: Any, function: Callable[[Array], Array]) -> Array:
        with self._opened(X, "components_", "threshold_") as (rows, W_t, t):
            result = rows.map_scores(W_t.T, t, lambda scores, t: function(scores >= t), to_origin=True)
        return self._returned(result, rows)


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
    encoder = from_tensors(*read_model(path), path=path)
    return encoder if device is None else encoder.to(device)


def from_tensors(tensors: dict[str, np.ndarray], facts: dict[str, Any], *, path: str | os.PathLike[str]) -> Encoder:
    """Make the encoder that a model file holds, once all of it is known to fit."""
    name = facts.get("encoder") if isinstance(facts, dict) else None
    if not isinstance(name, str) or name not in _ENCODERS:
        raise ModelFileError(f"{path} holds an encoder {str(name)[:100]!r}; this scq_gpu knows {', '.join(_ENCODERS)}")
    kind: Any = _ENCODERS[name]
    try:
        check_stored(tensors, facts, kind)
    except ValueError as error:
        raise ModelFileError(
            f"{os.fspath(path)} does not hold what its header says: {error}; save the encoder again, with this version"
        ) from error
    given = {name: tuple(value) if isinstance(value, list) else value for name, value in facts["params"].items()}
    encoder: Encoder = kind(**given)
    for name, value in tensors.items():
        setattr(encoder, name.removeprefix("param."), value)
    for name, value in facts["fitted"].items():
        setattr(encoder, name, np.asarray(value, dtype=object) if name == "feature_names_in_" else value)
    return encoder


def _settled(codes: Array, bad: np.ndarray, on_invalid: str) -> Array:
    """Drop or clear the codes of invalid rows, and warn of them."""
    if bad.size:
        warn_caller(InvalidRowsWarning(bad, n=codes.shape[0], on_invalid=on_invalid))
    return settle_codes(codes, bad, on_invalid)
