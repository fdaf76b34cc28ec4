"""`VectorIndex`: nearest neighbors of vectors. Codes find candidates, and the vectors re-rank them."""

from __future__ import annotations

import copy
import json
import os
from pathlib import Path
from typing import Any, Self

import numpy as np

from scq_gpu._core.arrays import Array, compute_dtype, device_of, is_array, namespace, on_device_of_arguments, to_host
from scq_gpu._core.machine import check_room
from scq_gpu._core.validate import METRICS, check_choice, check_integer, check_padding_room, check_rows, unit_rows
from scq_gpu.encoders.base import LinearEncoder, from_tensors
from scq_gpu.encoders.opq import OPQ
from scq_gpu.index.vectors import FORMATS, Format, VectorFile, VectorFileError, Vectors, file_of
from scq_gpu.rows.changed import normalize_rows
from scq_gpu.rows.sources import JoinedRows, RowSource, memory_map, open_rows
from scq_gpu.rows.sources.base import FileRows
from scq_gpu.search import index_file
from scq_gpu.search.answers import no_answers, search_floats
from scq_gpu.search.columns import make_codes
from scq_gpu.search.rescoring import rescore
from scq_gpu.search.store import RowsById, Store

_DEFAULT_BITS = 128


class VectorIndex(RowsById):
    """Index of vectors, such as embeddings, that are found by their codes and re-ranked exactly.

    Each vector becomes a code. A search scores all codes against the float query, reads the vectors of the best
    candidates from memory or a file, and re-ranks them exactly.

    Rows keep the order in which they came. Ties go to the row that came first, and `ids` and masks are in that order;
    an updated row keeps its place. Threads may search, add, update and remove at the same time: a search sees the rows
    as they were when it began, and waits for nobody. Adding, updating and removing cost what they touch.

    Parameters
    ----------
    X : array (n, d), memory map, path, result of `scq_gpu.io.open_rows`, or None
        The vectors. A path may be a file of any format of `scq_gpu.io.open_rows`, a folder of such files, or a pattern.
        With None the index begins empty, and ``encoder`` must be fitted.
    n_bits : int, optional
        Length of the codes, unless ``encoder`` is given: a multiple of 8, by default 128, or 8 for each dimension of
        vectors with fewer than 16.
    metric : {"l2", "cosine", "ip"}, default="l2"
        Squared Euclidean distance, one minus the cosine, or the negative inner product: small is near.
    encoder : encoder, optional
        `OPQ`, or a linear encoder, such as `OgE` or `ITQ`, whose codes keep fewer neighbors per byte, can be of any
        length, and can be searched by Hamming distance elsewhere. Used as it is if fitted, else fitted to X; by default
        ``OPQ(n_bits)``.
    ids : array (n,) of integers or strings, optional
        Unique; integers are 0 or more, and UUIDs become strings. By default the rows are numbered 0, 1, 2, ...
    id_column : str, optional
        Column of a Parquet or Arrow file with the ids.
    vector_column : str or list of str, optional
        Column or array of a file with the vectors; see `scq_gpu.io.open_rows`.
    keep_vectors : bool, "float16", "int8" or path, default=True
        What candidates are re-ranked by. True keeps the vectors in their own type: those of a memory map, or of an
        .npy, .fbin, .u8bin or .i8bin file, stay in their file, others are copied into memory. "float16" and "int8"
        (with a scale for each vector) keep rounded ones in memory. A path of an .npy file, which must not exist, writes
        them there as they come. False keeps none, and distances are estimates from codes alone.
    device : str, optional
        Device of the default encoder; None follows X.
    random_state : int, Generator or None, default=None
        Seed of the default encoder.

    Attributes
    ----------
    encoder : encoder
        Fitted.
    metric : str
    n_bits : int

    Examples
    --------
    >>> import numpy as np, scq_gpu as scq
    >>> X = np.random.default_rng(0).normal(size=(2000, 64)).astype(np.float32)
    >>> index = scq.VectorIndex(X, n_bits=32, metric="cosine", random_state=0)
    >>> distances, ids = index.search(X[:5], k=3)
    >>> ids[:, 0].tolist()
    [0, 1, 2, 3, 4]
    >>> index
    VectorIndex(n=2000, n_bits=32, metric='cosine', bytes_per_row=4, vectors in memory)
    """

    def __init__(
        self,
        X: Any = None,
        n_bits: int | None = None,
        *,
        metric: str = "l2",
        encoder: Any = None,
        ids: Array | None = None,
        id_column: str | None = None,
        vector_column: str | list[str] | None = None,
        keep_vectors: bool | str | os.PathLike[str] = True,
        device: str | None = None,
        random_state: Any = None,
    ) -> None:
        self.metric: str = check_choice(metric, name="metric", choices=METRICS)
        if not isinstance(keep_vectors, bool | str | os.PathLike) or keep_vectors == "":
            raise TypeError(f"keep_vectors={keep_vectors!r}; True, False, 'float16', 'int8' or a path is expected")
        self._keep = keep_vectors
        self._saved = False
        self._written: set[Path] = set()  # files that this index has written vectors to
        rows = None if X is None else _open(X, vector_column)
        if encoder is None:
            # A byte of OPQ needs a dimension at least
            bits = min(_DEFAULT_BITS, 8 * rows.shape[1]) if n_bits is None and rows is not None else n_bits
            encoder = OPQ(bits or _DEFAULT_BITS, device=device, random_state=random_state)
        self.encoder: Any = encoder
        if not isinstance(self.encoder, LinearEncoder | OPQ):
            raise TypeError(
                f"{type(self.encoder).__name__} is not a linear encoder or OPQ, which searching with floats needs; "
                "pass one, such as OgE or ITQ, or search its codes with HammingIndex"
            )
        fitted = self.encoder.__sklearn_is_fitted__()
        if rows is None:
            if not fitted:
                raise ValueError("an index without vectors needs a fitted encoder: pass X, or encoder=...fit(X)")
            rows = np.zeros((0, self.encoder.n_features_in_), dtype=np.float32)
        if id_column is not None:
            if ids is not None:
                raise ValueError(f"both ids and id_column={id_column!r} are given; pass one")
            ids = _ids_of(rows, id_column)
        if not fitted:
            self.encoder.fit(self._prepared(rows))
        codes = self._encode(rows)
        empty = Store.of(make_codes(codes[:0, :], "hamming"), None, self._empty_vectors(rows))
        self._store = Store.of(
            make_codes(codes, "hamming"), ids, self._appended(empty.state.vectors, self._sources(rows))
        )

    @property
    def n_bits(self) -> int:
        """Return the length of the codes."""
        return int(self.encoder.n_bits)

    @property
    def bytes_per_row(self) -> int:
        """Return the bytes of a row in the index, without its vector."""
        state = self._store.state
        return state.codes.width + state.id_bytes

    def __copy__(self) -> Self:
        same = object.__new__(type(self))
        vars(same).update(self.__getstate__(), _store=copy.copy(self._store))
        return same

    def __getstate__(self) -> dict[str, Any]:
        # A file has one index that writes to it; from now on a copy needs it, too
        self._saved = self._saved or bool(self._written)
        return vars(self) | {"_written": set(), "_keep": True if self._written else self._keep}

    def __repr__(self) -> str:
        vectors = self._store.state.vectors
        return (
            f"VectorIndex(n={len(self)}, n_bits={self.n_bits}, metric={self.metric!r}, "
            f"bytes_per_row={self.bytes_per_row}, {'no vectors' if vectors is None else vectors.where})"
        )

    @on_device_of_arguments
    def search(
        self, queries: Array, k: int = 10, *, candidates: int | None = None, allowed: Any = None
    ) -> tuple[Array, Array]:
        """Return the k nearest vectors of each query.

        Parameters
        ----------
        queries : array (q, d), or (d,) for one
        k : int, default=10
        candidates : int, optional
            Number of vectors to re-rank per query, of those that the codes find; by default 20 k, and at least 200.
            More candidates find more of the true neighbors and take longer.
        allowed : Selection, array of ids, or boolean mask (n,), optional
            Rows that may be found: what `select` returns or takes.

        Returns
        -------
        distances : array (q, k), or (k,) for one query
            Ascending, by the metric: exact if vectors are kept, otherwise estimates. inf is padding.
        ids : array of the same shape
            -1, or the empty string, is padding. Among equal distances the row that came first comes first.
        """
        k = check_integer(k, name="k", minimum=1)
        one = is_array(queries) and queries.ndim == 1
        Q = check_rows(queries[None, :] if one else queries, min_rows=0)
        state, words, n = self._store.searched(allowed)
        check_padding_room(k, queries=Q.shape[0], n=n)
        wanted = max(20 * k, 200) if candidates is None else check_integer(candidates, name="candidates", minimum=1)
        m = k if state.vectors is None else max(k, min(wanted, n))
        if n and Q.shape[0]:
            unit = self._unit(Q)
            d, places = search_floats(state.codes, self.encoder, unit, m, metric=self.metric, allowed=words, n=n)
            if state.vectors is not None:
                d, places = rescore(Q, state.vectors, to_host(places), k=k, metric=self.metric)
        else:
            d, places = no_answers((Q.shape[0], k), np.float32(np.inf), beside=Q)
        ids = state.found_ids(places)
        return (d[0, ...], ids[0, ...]) if one else (d, ids)

    def add(self, X: Any, ids: Array | None = None) -> Self:
        """Add vectors and return the index; the encoder stays as it is.

        Parameters
        ----------
        X : array (n, d), memory map, path, or result of `scq_gpu.io.open_rows`
        ids : array (n,) of integers or strings, optional
            By default the numbers after the largest id so far; string ids must be given.
        """
        rows = _open(X)
        codes = self._encode(rows)

        # The first vectors choose the array namespace of the codes, and the type of vectors
        def empty() -> tuple[Any, Any]:
            return make_codes(codes[:0, :], "hamming"), self._empty_vectors(rows)

        self._check_beside(codes)
        self._store.add(codes, ids, self._sources(rows), empty=empty)
        return self

    def update(self, ids: Array, X: Any) -> Self:
        """Replace vectors by id, each of which must be in the index, and return the index.

        Parameters
        ----------
        ids : array (m,) of integers or strings
        X : array (m, d), memory map, path, or result of `scq_gpu.io.open_rows`

        Examples
        --------
        >>> import numpy as np, scq_gpu as scq
        >>> X = np.random.default_rng(0).normal(size=(500, 16)).astype(np.float32)
        >>> index = scq.VectorIndex(X, n_bits=16, random_state=0).update([3], -X[:1])
        >>> int(index.search(-X[:1], k=1)[1][0, 0])
        3
        """
        rows = _open(X)
        codes = self._encode(rows)
        self._check_beside(codes)
        kept = self._store.state.vectors is not None
        self._store.update(ids, codes, to_host(rows if is_array(rows) else np.asarray(rows)) if kept else None)
        self._tidy()
        return self

    def remove(self, ids: Array) -> Self:
        """Remove vectors by id, each of which must be in the index, and return the index.

        Parameters
        ----------
        ids : array (m,) of integers or strings
        """
        self._store.remove(ids)
        self._tidy()
        return self

    def get(self, ids: Array) -> np.ndarray:
        """Return the vectors with these ids, each of which must be in the index, as they are kept.

        Parameters
        ----------
        ids : array (m,) of integers or strings

        Returns
        -------
        array (m, d)
        """
        state, places = self._store.get(ids)
        if state.vectors is None:
            raise ValueError("the index keeps no vectors; make it with another keep_vectors than False")
        found: np.ndarray = state.vectors.take(places)
        return found

    def compact(self) -> Self:
        """Free the memory of removed and replaced vectors now, and return the index.

        It is done by itself when they are a quarter of all.
        """
        super().compact()
        self._tidy()
        return self

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the index to one safetensors file: codes, ids, encoder, and vectors that are in memory.

        Removed and replaced vectors are not in it. Vectors in a file stay there: their path is written, with facts by
        which `load` knows the file again.

        Parameters
        ----------
        path : path-like
            An existing file is replaced only once the new one is complete.

        Examples
        --------
        >>> import numpy as np, tempfile, scq_gpu as scq
        >>> X = np.random.default_rng(0).normal(size=(500, 16)).astype(np.float32)
        >>> index = scq.VectorIndex(X, n_bits=16, random_state=0)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     index.save(f"{folder}/i.safetensors")
        ...     same = scq.VectorIndex.load(f"{folder}/i.safetensors")
        ...     bool((same.search(X[:3])[1] == index.search(X[:3])[1]).all())
        True
        """
        if not len(self):
            raise ValueError("the index is empty; add vectors before saving it")
        if self._written:
            self._store.compact()
        state, next_id = self._store.state, self._store.next_id
        stored = state.tensors()
        tensors, facts = self.encoder._to_tensors()
        stored |= {f"encoder.{name}": index_file.Tensor.of(np.atleast_1d(x)) for name, x in tensors.items()}
        shapes = {name: list(x.shape) for name, x in tensors.items()}
        metadata = {"format": index_file.VECTOR_FORMAT, "n_bits": str(self.n_bits), "distance": "hamming"}
        metadata |= {"metric": self.metric, "encoder": json.dumps(facts), "encoder_shapes": json.dumps(shapes)}
        metadata |= {"next_id": str(next_id), "keep_vectors": str(self._keep)}
        if state.vectors is not None:
            vectors, metadata["vectors"] = state.vectors.tensors(state.places())
            stored |= vectors
        index_file.write(path, stored, metadata)
        self._saved = True
        self._tidy(saved=True)

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        *,
        vectors: str | os.PathLike[str] | None = None,
        metric: str | None = None,
        verify: bool = False,
    ) -> VectorIndex:
        """Open an index that `save` wrote; vectors are read when they are needed.

        Parameters
        ----------
        path : path-like
        vectors : path-like, optional
            The file of the vectors, or the folder of their files, if they have moved or were copied.
        metric : str, optional
            If given, an index of another metric is rejected.
        verify : bool, default=False
            Read the whole file and compare the digests that `save` wrote into it.
        """
        stored = index_file.read(path, format=index_file.VECTOR_FORMAT, verify=verify)
        facts, where = stored.facts, Path(path)
        try:
            made_for = check_choice(facts["metric"], name="metric", choices=METRICS)
            shapes = json.loads(facts["encoder_shapes"])
            tensors = {name: np.array(stored.extra[f"encoder.{name}"]).reshape(shape) for name, shape in shapes.items()}
            encoder = from_tensors(tensors, json.loads(facts["encoder"]), path=path)
            if encoder.n_bits != stored.n_bits:
                raise ValueError(f"it holds codes of {stored.n_bits} bits and an encoder of {encoder.n_bits}")
            column, kept = None, facts["keep_vectors"]
            if "vectors" in facts:
                inside, held = None, stored.extra.get("vectors")
                if held is not None:
                    if held.ndim != 2:
                        raise ValueError(f"its vectors have the shape {held.shape}")
                    shape = (int(held.shape[0]), int(held.shape[1]))
                    inside = VectorFile.open(where, stored.offsets["vectors"], held.dtype, shape, "index")
                    # Another index took its place just now
                    if inside.file.inode != stored.inode:
                        return cls.load(path, vectors=vectors, metric=metric, verify=verify)
                moved = None if vectors is None else Path(vectors)
                column = Vectors.from_tensors(facts["vectors"], stored.extra, inside, moved)
                if column.shape != (len(stored.codes), encoder.n_features_in_):
                    raise ValueError(
                        f"its vectors have the shape {column.shape}, and its codes are of "
                        f"{(len(stored.codes), encoder.n_features_in_)}"
                    )
        except VectorFileError:
            raise
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            raise ValueError(f"{os.fspath(path)!r} is not a usable vector index: {error}; write it again") from error
        if metric is not None and check_choice(metric, name="metric", choices=METRICS) != made_for:
            raise ValueError(f"{path} was made for metric={made_for!r}, not {metric!r}: make another index")
        index = cls.__new__(cls)
        index.metric, index.encoder = made_for, encoder
        index._keep = kept if kept in FORMATS else column is not None
        index._saved = True
        index._written = set() if column is None else set(column.own_files())
        index._store = Store.from_file(stored, vectors=column)
        return index

    # ---- rows as they come ----

    def _prepared(self, rows: Any, *, label: str = "X") -> Any:
        """Return rows as the encoder takes them, normalized for the cosine."""
        return normalize_rows(rows, label=label) if self.metric == "cosine" else rows

    def _unit(self, Q: Array) -> Array:
        """Return queries as the encoder takes them."""
        if self.metric != "cosine":
            return Q
        xp = namespace(Q)
        floats = xp.astype(Q, compute_dtype(Q.dtype, xp=xp, device=device_of(Q)), copy=False)
        return unit_rows(floats, lambda row: f"row {row} of queries")

    def _encode(self, rows: Any) -> Array:
        codes: Array = self.encoder.encode(self._prepared(rows))
        return codes

    def _check_beside(self, codes: Array) -> None:
        """Reject codes of another namespace than those of the index."""
        mine = self._store.state.codes.sample
        if len(self) and namespace(mine) is not namespace(codes):
            raise ValueError(
                f"X is {namespace(codes).__name__} and the codes of the index are {namespace(mine).__name__}; convert X"
            )

    def _empty_vectors(self, rows: Any) -> Vectors | None:
        """Return a column for vectors like these, or None if none are kept."""
        if self._keep is False:
            return None
        if self._keep in FORMATS:
            return Vectors(Format(np.dtype(str(self._keep)), rows.shape[1], scaled=self._keep == "int8"))
        sample = to_host(rows.sample() if isinstance(rows, RowSource) else rows[:1, :])
        dtype = sample.dtype.newbyteorder("=")
        if self._keep is True:
            return Vectors(Format(dtype, rows.shape[1]))
        if self._written:
            column: Vectors = self._store.state.vectors
            return column
        column = Vectors.to_file(Path(self._keep), dtype, rows.shape[1])
        self._written = set(column.own_files())
        return column

    def _sources(self, rows: Any) -> list[Any] | None:
        """Return the vectors as `Vectors.append` takes them: files, arrays and sources."""
        if self._keep is False:
            return None
        if isinstance(rows, JoinedRows):
            return [source for part in rows.parts for source in self._sources(part) or []]
        if isinstance(rows, FileRows) and isinstance(rows.path, Path):
            mapped = memory_map(rows.path)
            rows = rows if mapped is None else mapped
        if self._keep is True:
            if isinstance(rows, np.ndarray) and (file := file_of(rows)) is not None:
                return [file]
            if isinstance(rows, RowSource):
                size = rows.shape[0] * rows.shape[1] * np.dtype(rows.dtype).itemsize
                fix = "keep fewer bytes of them (keep_vectors='float16' or 'int8'), or pass keep_vectors=PATH or False"
                check_room(size, f"the vectors of {rows.label}", fix=fix)
        return [rows]

    def _appended(self, column: Vectors | None, sources: list[Any] | None) -> Vectors | None:
        return None if column is None or sources is None else column.append(sources)

    def _tidy(self, *, saved: bool = False) -> None:
        """Remove files of vectors that the index wrote before, unless a saved index needs them."""
        if self._written:
            files = set(self._store.state.vectors.own_files())
            self._written |= files
            if saved or not self._saved:
                for path in self._written - files:
                    path.unlink(missing_ok=True)
                self._written = files


def _open(X: Any, name: str | list[str] | None = None) -> Any:
    """Return vectors as an array or a source of rows; a path is opened, as a memory map if the format allows."""
    if isinstance(X, str | os.PathLike):
        mapped = memory_map(X) if name is None else None
        return open_rows(X, name=name) if mapped is None else mapped
    if name is not None:
        raise ValueError(f"vector_column={name!r} names a part of a file, and X is {type(X).__name__}; pass a path")
    return X if isinstance(X, RowSource) else check_rows(X, min_rows=0)


def _ids_of(rows: Any, column: str) -> np.ndarray:
    """Return the ids in a column of a file."""
    if not isinstance(rows, RowSource):
        raise ValueError(f"id_column={column!r} needs a file with columns (Parquet, Arrow); pass ids=... instead")
    rows.id_type(column)
    pieces = [piece.to_numpy(zero_copy_only=False) for piece in rows.ids(column, 1 << 18)]
    return np.concatenate(pieces) if pieces else np.zeros(0, dtype=np.int64)
