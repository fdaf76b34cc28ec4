"""`VectorIndex`: vectors in, their nearest neighbors out. Codes find the candidates, the vectors order them."""

from __future__ import annotations

import json
import mmap
import os
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np

from scq_gpu._core.arrays import Array, device_of, from_host, is_array, namespace, to_host
from scq_gpu._core.bits import code_bytes
from scq_gpu._core.devices import on_device_of_arguments
from scq_gpu._core.factors import FACTOR_BYTES
from scq_gpu._core.validate import METRICS, check_choice, check_integer, check_rows
from scq_gpu.encoders.base import LinearEncoder, from_tensors
from scq_gpu.encoders.scq import OgE
from scq_gpu.rows.normalized import NormalizedRows
from scq_gpu.rows.sources import RowSource, memory_map, open_rows
from scq_gpu.search import index_file
from scq_gpu.search.ids import as_words, check_ids, from_bytes, is_text, numbers_after, to_bytes
from scq_gpu.search.index import HammingIndex
from scq_gpu.search.rescoring import rescore, take_rows

__all__ = ["VectorIndex"]

_RESCORED, _LEAST_RESCORED = 20, 200  # candidates per answer wanted, and at the least


@dataclass(frozen=True)
class _Vectors:
    """The vectors behind an index, where they are: rows of several arrays or memory maps, laid end to end."""

    parts: tuple[Any, ...]

    @property
    def shape(self) -> tuple[int, int]:
        return sum(part.shape[0] for part in self.parts), int(self.parts[0].shape[1])

    def __getitem__(self, rows: np.ndarray) -> np.ndarray:
        """Rows by ascending number, on the host."""
        firsts = np.cumsum([0, *(part.shape[0] for part in self.parts)])
        found = []
        for part, first, last in zip(self.parts, firsts, firsts[1:], strict=False):
            mine = rows[(rows >= first) & (rows < last)] - first
            if mine.size:
                found.append(to_host(take_rows(part, mine)))
        return np.concatenate(found)


class VectorIndex:
    """Vectors, found by their codes and ordered by themselves: an index for people who hold embeddings.

    Each vector becomes a code of ``n_bits`` bits. A search scores all codes against the float query
    (`HammingIndex.search_asymmetric`), reads the vectors of the best candidates where they are (an array, a memory map,
    a file), and orders those exactly. Threads may search, add and remove at the same time.

    Parameters
    ----------
    X : array (n, d), memory map, path, what `scq_gpu.io.open_rows` gives, or None
        The vectors. With None the index begins empty, and ``encoder`` must be fitted.
    n_bits : int, default=128
        Length of the codes, unless ``encoder`` says.
    metric : {"l2", "cosine", "ip"}, default="l2"
        Squared Euclidean distance, one minus the cosine, or the negative inner product: small is near.
    encoder : encoder, optional
        Used if it is fitted, else fitted to X; by default ``OgE(n_bits)``.
    ids : array (n,) of integers or strings, optional
        Unique; integers are 0 or more. By default the rows are numbered 0, 1, 2, ...
    keep_vectors : bool, default=True
        Whether vectors are kept, to order candidates exactly. Without, distances are estimates from codes alone.
    factors : bool, default=False
        Whether to keep four bytes more per row, which make estimates better where norms vary.
    device : str, optional
        Where the default encoder works; None follows X.
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
        n_bits: int = 128,
        *,
        metric: str = "l2",
        encoder: Any = None,
        ids: Array | None = None,
        keep_vectors: bool = True,
        factors: bool = False,
        device: str | None = None,
        random_state: Any = None,
    ) -> None:
        self.metric: str = check_choice(metric, name="metric", choices=METRICS)
        self.factors = bool(factors)
        self.encoder: Any = OgE(n_bits, device=device, random_state=random_state) if encoder is None else encoder
        self._lock = threading.Lock()
        if not isinstance(self.encoder, LinearEncoder):
            raise TypeError(
                f"{type(self.encoder).__name__} is not a linear encoder, which searching with floats needs; pass one, "
                "such as OgE or ITQ, or search its codes with HammingIndex"
            )
        fitted = self.encoder.__sklearn_is_fitted__()
        if X is None:
            if not fitted:
                raise ValueError("an index without vectors needs a fitted encoder: pass X, or encoder=...fit(X)")
            self._vectors = _Vectors(()) if keep_vectors else None
            self._index: HammingIndex | None = None
            self._ids_of_rows = np.zeros(0, dtype=np.int64)
            return
        rows = _as_input(X)
        self._vectors = _Vectors((_readable(rows),)) if keep_vectors else None
        if not fitted:
            self.encoder.fit(self._prepared(rows))
        self._index = HammingIndex(self._encode(rows), self.n_bits, ids, encoder=self.encoder)
        self._ids_of_rows = np.arange(rows.shape[0]) if ids is None else check_ids(ids, n=rows.shape[0])

    @property
    def n_bits(self) -> int:
        """Length of the codes."""
        return int(self.encoder.n_bits)

    @property
    def bytes_per_row(self) -> int:
        """Bytes that a row takes in the index, its vector aside."""
        if self._index is not None:
            return self._index.bytes_per_row
        return code_bytes(self.n_bits) + (FACTOR_BYTES if self.factors else 0)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _lock=threading.Lock())

    def __len__(self) -> int:
        return 0 if self._index is None else len(self._index)

    def __repr__(self) -> str:
        where = "no vectors"
        if self._vectors is not None:
            mapped = bool(self._vectors.parts) and all(isinstance(part, np.memmap) for part in self._vectors.parts)
            where = "vectors in a file" if mapped else "vectors in memory"
        return (
            f"VectorIndex(n={len(self)}, n_bits={self.n_bits}, metric={self.metric!r}, "
            f"bytes_per_row={self.bytes_per_row}, {where})"
        )

    @on_device_of_arguments
    def search(
        self, queries: Array, k: int = 10, *, candidates: int | None = None, allowed: Any = None
    ) -> tuple[Array, Array]:
        """The k nearest vectors of each query.

        Parameters
        ----------
        queries : array (q, d)
        k : int, default=10
        candidates : int, optional
            How many vectors to read and order per query, of those that the codes find; by default 20 k, and 200 at the
            least. More find more of the true neighbors and take longer.
        allowed : array of ids, or boolean mask (n,), optional
            What may be found: some ids, of which those that are not in the index are passed over, or a mask in the
            order of `ids`. Candidates are sought among these alone.

        Returns
        -------
        distances : array (q, k)
            Ascending, by the metric: exact where vectors are kept, otherwise estimates. inf where there are fewer than
            k vectors.
        ids : array (q, k) of int64, or of strings if ids are strings (then NumPy's, wherever the queries are)
            Lowest id first inside a distance; -1, or the empty string, where there are fewer than k vectors.
        """
        k = check_integer(k, name="k", minimum=1)
        with self._lock:  # one moment: what is found is what is looked up
            index = None if self._index is None else self._index._snapshot()
            vectors, ids_of_rows = self._vectors, self._ids_of_rows
        Q = check_rows(queries, min_rows=0)
        if index is None or not len(index) or not Q.shape[0]:
            xp, device = namespace(Q), device_of(Q)
            far = xp.full((Q.shape[0], k), xp.inf, dtype=xp.float32, device=device)
            if is_text(ids_of_rows):
                return far, np.full((Q.shape[0], k), "")
            return far, xp.full((Q.shape[0], k), -1, dtype=xp.int64, device=device)
        wanted = max(_RESCORED * k, _LEAST_RESCORED) if candidates is None else candidates
        m = k if vectors is None else max(k, min(check_integer(wanted, name="candidates", minimum=1), len(index)))
        prepared = _concatenated(self._prepared(Q, label="queries"))
        distances, places, state = index._nearest(self.encoder, prepared, m, metric=self.metric, allowed=allowed)
        if vectors is None:
            return distances, state.to_ids(places)
        place = to_host(places)
        order = np.argsort(ids_of_rows, kind="stable")
        row_of = order[np.searchsorted(ids_of_rows[order], state.known)]  # of each code, which row its vector is
        rows = np.where(place >= 0, row_of[place], -1) if len(row_of) else np.full_like(place, -1)
        distances, rows = rescore(Q, vectors, rows, metric=self.metric)
        near, chosen = to_host(distances), to_host(rows)
        none = b"" if is_text(ids_of_rows) else -1
        found = np.where(chosen >= 0, ids_of_rows[np.maximum(chosen, 0)], none)
        best = np.lexsort((found, near), axis=1)[:, :k]  # rows of equal distance came by row number
        near, found = (np.take_along_axis(x, best, axis=1) for x in (near, found))
        xp, device = namespace(distances), device_of(distances)
        d_best = from_host(near, xp=xp, device=device)
        return d_best, as_words(found) if is_text(found) else from_host(found, xp=xp, device=device)

    @property
    def ids(self) -> np.ndarray:
        """The ids of all vectors, ascending."""
        return np.zeros(0, dtype=np.int64) if self._index is None else self._index.ids

    def add(self, X: Any, ids: Array | None = None) -> Self:
        """Add vectors, encoded by the encoder as it is.

        Parameters
        ----------
        X : array (n, d), memory map, path, or what `scq_gpu.io.open_rows` gives
        ids : array (n,) of integers or strings, optional
            By default the numbers after the largest id so far; where ids are strings, they must be given.

        Returns
        -------
        VectorIndex
            The index itself.
        """
        rows = _as_input(X)
        part = None if self._vectors is None else _readable(rows)
        codes = self._encode(rows)
        with self._lock:
            n, known = rows.shape[0], self._ids_of_rows
            live = known[:0] if self._index is None else self._index._state.known
            if ids is None:
                new = numbers_after(np.sort(known), n) if len(live) or not is_text(known) else np.arange(n)
            else:
                new = check_ids(ids, n=n, like=live)
            clash = np.intersect1d(live, new) if len(live) else live[:0]
            if clash.size:
                raise ValueError(f"id {as_words(clash)[0]} is in the index already; ids must be unique")
            if self._index is None:
                self._index = HammingIndex(
                    codes, self.n_bits, None if ids is None else as_words(new), encoder=self.encoder
                )
            else:
                self._index.add(codes, None if ids is None and self._index._numbers_rows else as_words(new))
            self._append(part, new)
        return self

    def remove(self, ids: Array) -> Self:
        """Remove vectors by id; each must be there.

        Parameters
        ----------
        ids : array (m,) of integers or strings

        Returns
        -------
        VectorIndex
            The index itself.
        """
        with self._lock:
            if self._index is None:
                raise KeyError("the index is empty, so nothing can be removed")
            self._index.remove(ids)
        return self

    def update(self, ids: Array, X: Any) -> Self:
        """Replace vectors by id; each must be there.

        Parameters
        ----------
        ids : array (m,) of integers or strings
        X : array (m, d), memory map, path, or what `scq_gpu.io.open_rows` gives

        Returns
        -------
        VectorIndex
            The index itself.

        Examples
        --------
        >>> import numpy as np, scq_gpu as scq
        >>> X = np.random.default_rng(0).normal(size=(500, 16)).astype(np.float32)
        >>> index = scq.VectorIndex(X, n_bits=16, random_state=0).update([3], -X[:1])
        >>> int(index.search(-X[:1], k=1)[1][0, 0])
        3
        """
        rows = _as_input(X)
        part = None if self._vectors is None else _readable(rows)
        codes = self._encode(rows)
        with self._lock:
            if self._index is None:
                raise KeyError("the index is empty, so nothing can be updated")
            self._index.update(ids, codes)
            self._append(part, check_ids(ids, n=rows.shape[0]))
        return self

    def _append(self, part: Any, new: np.ndarray) -> None:
        """Vectors behind those there are; rows that had these ids before, removed or replaced, become nobody's."""
        if self._vectors is not None:
            self._vectors = _Vectors((*self._vectors.parts, part))
        known = self._ids_of_rows
        if is_text(known) != is_text(new):  # nobody's: kinds mix only where nothing is left of the first
            known = np.full(len(known), b"" if is_text(new) else -1, dtype=new.dtype)
        elif len(known):
            known = np.where(np.isin(known, new), b"" if is_text(new) else -1, known)
        self._ids_of_rows = np.concatenate([known, new])

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the index to one safetensors file: codes, ids, encoder, and vectors that are in memory.

        Vectors in a file stay there: the index remembers the path.

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
        if self._index is None:
            raise ValueError("the index is empty; add vectors before saving it")
        with self._lock:
            codes, ids, factors = self._index.tensors()
            vectors, ids_of_rows = self._vectors, self._ids_of_rows
        tensors, facts = self.encoder._to_tensors()
        extra = {f"encoder.{name}": [np.atleast_1d(x)] for name, x in tensors.items()}
        shapes = {name: list(x.shape) for name, x in tensors.items()}
        metadata = {"metric": self.metric, "encoder": json.dumps(facts), "encoder_shapes": json.dumps(shapes)}
        if vectors is not None and vectors.parts:
            extra["rows"] = [to_bytes(ids_of_rows)]
            file = _file_of(vectors.parts[0]) if len(vectors.parts) == 1 else None
            if file is not None:
                metadata["vectors"] = str(file)
            else:
                dtype = np.result_type(*(_dtype(part) for part in vectors.parts))
                extra["vectors"] = [to_host(part).astype(dtype, copy=False) for part in vectors.parts]
        index_file.write(
            path, codes, ids, factors, n_bits=self.n_bits, facts=metadata, extra=extra, format=index_file.VECTOR_FORMAT
        )

    @classmethod
    def load(
        cls, path: str | os.PathLike[str], *, vectors: Any = None, metric: str | None = None, verify: bool = False
    ) -> VectorIndex:
        """Open an index that `save` wrote; codes and vectors are memory-mapped, not read.

        Parameters
        ----------
        path : path-like
        vectors : array (n, d), memory map or path, optional
            The vectors, if the file that they were in has moved.
        metric : str, optional
            If given, checked: an index of another metric is refused.
        verify : bool, default=False
            Whether to read all of the file and compare the digests that `save` wrote into it.

        Returns
        -------
        VectorIndex
        """
        stored = index_file.read(path, format=index_file.VECTOR_FORMAT, verify=verify)
        facts = stored.facts
        try:
            made_for = check_choice(facts["metric"], name="metric", choices=METRICS)
            shapes = json.loads(facts["encoder_shapes"])
            tensors = {name: np.array(stored.extra[f"encoder.{name}"]).reshape(shape) for name, shape in shapes.items()}
            encoder = from_tensors(tensors, json.loads(facts["encoder"]), path=path)
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            raise ValueError(f"{os.fspath(path)!r} is not a usable vector index: {error}; write it again") from error
        if metric is not None and check_choice(metric, name="metric", choices=METRICS) != made_for:
            raise ValueError(f"{path} was made for metric={made_for!r}, not {metric!r}: make another index")
        if encoder.n_bits != stored.n_bits:
            raise ValueError(f"{path} holds codes of {stored.n_bits} bits and an encoder of {encoder.n_bits}")
        index = cls.__new__(cls)
        index.metric, index.encoder = made_for, encoder
        index.factors, index._lock = stored.factors is not None, threading.Lock()
        index._index = HammingIndex.from_stored(stored, encoder=index.encoder)
        index._ids_of_rows = np.array(
            from_bytes(stored.extra["rows"]) if "rows" in stored.extra else index._index._state.known
        )
        rows, known = index._ids_of_rows, index._index._state.known
        if rows.ndim != 1 or (len(known) and (rows.dtype.kind != known.dtype.kind or not np.isin(known, rows).all())):
            raise ValueError(f"{os.fspath(path)!r} has codes with ids that none of its vectors has; write it again")
        index._vectors = None
        found = vectors if vectors is not None else stored.extra.get("vectors", facts.get("vectors"))
        if vectors is None and isinstance(found, str) and not os.path.exists(found):
            raise FileNotFoundError(f"the vectors of {path} were in {found}, which does not exist; pass vectors=...")
        if found is not None:
            index._vectors = _Vectors((_readable(_as_input(found)),))
            if index._vectors.shape != (len(index._ids_of_rows), index.encoder.n_features_in_):
                raise ValueError(f"the vectors have shape {index._vectors.shape}; {path} is about others")
        return index

    def _prepared(self, rows: Any, *, label: str = "X") -> Any:
        """Rows as the encoder is to see them."""
        return NormalizedRows(rows, label=label) if self.metric == "cosine" else rows

    def _encode(self, rows: Any) -> Array:
        options = {"factors": True} if self.factors else {}
        return self.encoder.encode(self._prepared(rows), **options)


def _as_input(X: Any) -> Any:
    """Vectors as an array or a source of rows; a path is opened, as a memory map where the format allows."""
    if isinstance(X, str | os.PathLike):
        mapped = memory_map(X)
        return open_rows(X) if mapped is None else mapped
    return X if isinstance(X, RowSource) else check_rows(X, min_rows=0)


def _readable(rows: Any) -> Any:
    """Vectors that can be read row by row."""
    if is_array(rows):
        return rows
    raise ValueError(
        f"{rows.label} cannot be read row by row, which ordering candidates needs: pass keep_vectors=False, or the "
        "path of an .npy, .fbin, .u8bin or .i8bin file, or an array"
    )


def _file_of(part: Any) -> Path | None:
    """The file that vectors are all of, so that its path tells them; None for parts of files, and for others."""
    if not isinstance(part, np.memmap) or part.filename is None:
        return None
    path = Path(str(part.filename)).resolve()
    try:
        whole: Any = memory_map(path)
    except (OSError, ValueError):
        return None
    return path if whole is not None and _place(whole) == _place(part) else None


def _place(x: Any) -> tuple[Any, ...]:
    """Where in its file a memory map lies: its first byte, shape, strides and type."""
    begin = x.ctypes.data - np.frombuffer(x._mmap, dtype=np.uint8).ctypes.data
    return x.offset - x.offset % mmap.ALLOCATIONGRANULARITY + begin, x.shape, x.strides, x.dtype


def _concatenated(rows: Any) -> Array:
    """Queries as one array."""
    if not isinstance(rows, RowSource):
        return rows
    blocks = list(rows.blocks(rows.shape[0]))
    return blocks[0]


def _dtype(x: Array) -> np.dtype:
    return to_host(x[:1]).dtype
