"""`VectorIndex`: nearest neighbors of vectors. Codes find candidates, and the vectors re-rank them."""

from __future__ import annotations

import json
import mmap
import os
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np

from scq_gpu._core.arrays import Array, is_array, like, on_device_of_arguments, to_host
from scq_gpu._core.validate import METRICS, check_choice, check_integer, check_rows
from scq_gpu.encoders.base import LinearEncoder, from_tensors
from scq_gpu.encoders.opq import OPQ
from scq_gpu.encoders.scq import OgE
from scq_gpu.rows.changed import normalize_rows
from scq_gpu.rows.sources import RowSource, memory_map, open_rows
from scq_gpu.search import index_file
from scq_gpu.search.ids import check_ids, decode_ids, from_bytes, is_text, numbers_after, to_bytes
from scq_gpu.search.index import HammingIndex
from scq_gpu.search.rescoring import rescore, take_rows
from scq_gpu.search.state import no_answers, split_rows


@dataclass(frozen=True)
class _Vectors:
    """Vectors of an index: the rows of several arrays or memory maps, end to end."""

    parts: tuple[Any, ...]

    @property
    def shape(self) -> tuple[int, int]:
        return sum(part.shape[0] for part in self.parts), int(self.parts[0].shape[1])

    def __getitem__(self, rows: np.ndarray) -> np.ndarray:
        """Return rows by ascending number, on the host."""
        pieces = split_rows(self.parts, rows)
        return np.concatenate([to_host(take_rows(part, mine)) for part, mine, _ in pieces if mine.size])


class VectorIndex:
    """Index of vectors, such as embeddings, that are found by their codes and re-ranked exactly.

    Each vector becomes a code of ``n_bits`` bits. A search scores all codes against the float query
    (`HammingIndex.search_asymmetric`), reads the vectors of the best candidates from their array, memory map or file,
    and re-ranks them exactly. Threads may search, add and remove at the same time.

    Parameters
    ----------
    X : array (n, d), memory map, path, result of `scq_gpu.io.open_rows`, or None
        The vectors. With None the index begins empty, and ``encoder`` must be fitted.
    n_bits : int, default=128
        Length of the codes, unless ``encoder`` is given.
    metric : {"l2", "cosine", "ip"}, default="l2"
        Squared Euclidean distance, one minus the cosine, or the negative inner product: small is near.
    encoder : encoder, optional
        A linear encoder, such as `OgE` or `ITQ`, or `OPQ`, which keeps more neighbors per byte and takes longer to
        fit. Used as it is if fitted, else fitted to X; by default ``OgE(n_bits)``.
    ids : array (n,) of integers or strings, optional
        Unique; integers are 0 or more. By default the rows are numbered 0, 1, 2, ...
    keep_vectors : bool, default=True
        Keep the vectors, to re-rank candidates exactly. Without them, distances are estimates from codes alone.
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
        n_bits: int = 128,
        *,
        metric: str = "l2",
        encoder: Any = None,
        ids: Array | None = None,
        keep_vectors: bool = True,
        device: str | None = None,
        random_state: Any = None,
    ) -> None:
        self.metric: str = check_choice(metric, name="metric", choices=METRICS)
        self.encoder: Any = OgE(n_bits, device=device, random_state=random_state) if encoder is None else encoder
        self._lock = threading.Lock()
        if not isinstance(self.encoder, LinearEncoder | OPQ):
            raise TypeError(
                f"{type(self.encoder).__name__} is not a linear encoder or OPQ, which searching with floats needs; "
                "pass one, such as OgE or ITQ, or search its codes with HammingIndex"
            )
        fitted = self.encoder.__sklearn_is_fitted__()
        if X is None and not fitted:
            raise ValueError("an index without vectors needs a fitted encoder: pass X, or encoder=...fit(X)")
        rows = np.zeros((0, self.encoder.n_features_in_), dtype=np.float32) if X is None else _as_input(X)
        self._vectors = _Vectors(() if X is None else (_readable(rows),)) if keep_vectors else None
        if not fitted:
            self.encoder.fit(self._prepared(rows))
        self._index = HammingIndex(self._encode(rows), self.n_bits, ids, encoder=self.encoder)
        self._ids_of_rows = np.arange(rows.shape[0]) if ids is None else check_ids(ids, n=rows.shape[0])

    @property
    def n_bits(self) -> int:
        """Return the length of the codes."""
        return int(self.encoder.n_bits)

    @property
    def bytes_per_row(self) -> int:
        """Return the bytes of a row in the index, without its vector."""
        return self._index.bytes_per_row

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _lock=threading.Lock())

    def __len__(self) -> int:
        return len(self._index)

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
        """Return the k nearest vectors of each query.

        Parameters
        ----------
        queries : array (q, d)
        k : int, default=10
        candidates : int, optional
            Number of vectors to re-rank per query, of those that the codes find; by default 20 k, and at least 200.
            More candidates find more of the true neighbors and take longer.
        allowed : array of ids, or boolean mask (n,), optional
            As in `HammingIndex.search`. Candidates come from these alone.

        Returns
        -------
        distances : array (q, k)
            Ascending, by the metric: exact if vectors are kept, otherwise estimates. inf is padding.
        ids : array (q, k)
            As in `HammingIndex.search`.
        """
        k = check_integer(k, name="k", minimum=1)
        # Codes and vectors of one moment
        with self._lock:
            index, vectors, ids_of_rows = self._index.snapshot(), self._vectors, self._ids_of_rows
        Q = check_rows(queries, min_rows=0)
        if not len(index) or not Q.shape[0]:
            far, none = no_answers((Q.shape[0], k), np.float32(np.inf), beside=Q)
            return far, np.full((Q.shape[0], k), "") if is_text(ids_of_rows) else none
        m = k
        if vectors is not None:
            least = max(20 * k, 200) if candidates is None else candidates
            m = max(k, min(check_integer(least, name="candidates", minimum=1), len(index)))
        Q_encoder = self._prepared(Q, label="queries")
        if isinstance(Q_encoder, RowSource):
            Q_encoder = next(iter(Q_encoder.blocks(Q.shape[0])))
        distances, ids = index.search_asymmetric(self.encoder, Q_encoder, m, metric=self.metric, allowed=allowed)
        if vectors is None:
            return distances, ids
        no_id = b"" if is_text(ids_of_rows) else -1
        found = np.strings.encode(ids, "utf-8") if is_text(ids_of_rows) else to_host(ids)
        order = self._order_of(ids_of_rows)
        rows = found
        # Vectors are in the order in which they were added, so a found id is looked up among sorted ones
        if order is not None:
            place = np.searchsorted(ids_of_rows, found, sorter=order)
            rows = np.where(found != no_id, order[np.minimum(place, len(order) - 1)], -1)
        distances, rows = rescore(Q, vectors, rows, metric=self.metric)
        near, chosen = to_host(distances), to_host(rows)
        found = np.where(chosen >= 0, ids_of_rows[np.maximum(chosen, 0)], no_id)
        # Rows of equal distance come by row number, and are ordered by id
        best = np.lexsort((found, near), axis=1)[:, :k]
        near, found = (np.take_along_axis(x, best, axis=1) for x in (near, found))
        return like(near, distances), decode_ids(found) if is_text(found) else like(found, distances)

    def _order_of(self, ids_of_rows: np.ndarray) -> np.ndarray | None:
        """Return the order that sorts the ids of the vectors, kept until they change; None if ids are row numbers."""
        known, order = getattr(self, "_sorted", (None, None))
        if known is not ids_of_rows:
            numbered = not is_text(ids_of_rows) and bool((ids_of_rows == np.arange(len(ids_of_rows))).all())
            order = None if numbered else np.argsort(ids_of_rows, kind="stable")
            self._sorted = ids_of_rows, order
        return order

    @property
    def ids(self) -> np.ndarray:
        """Return the ids of all vectors, ascending."""
        return self._index.ids

    def add(self, X: Any, ids: Array | None = None) -> Self:
        """Add vectors and return the index; the encoder stays as it is.

        Parameters
        ----------
        X : array (n, d), memory map, path, or result of `scq_gpu.io.open_rows`
        ids : array (n,) of integers or strings, optional
            By default the numbers after the largest id so far; string ids must be given.
        """
        rows = _as_input(X)
        part = None if self._vectors is None else _readable(rows)
        codes = self._encode(rows)
        with self._lock:
            n, known, live = rows.shape[0], self._ids_of_rows, self._index.encoded_ids
            if ids is None:
                new = numbers_after(np.sort(known), n) if len(live) or not is_text(known) else np.arange(n)
            else:
                new = check_ids(ids, n=n, existing=live)
            clash = np.intersect1d(live, new) if len(live) else live[:0]
            if clash.size:
                raise ValueError(f"id {decode_ids(clash)[0]} is in the index already; ids must be unique")
            given = None if ids is None and not self._index.has_ids else decode_ids(new)
            # The first vectors choose the array namespace of the codes
            if not len(known):
                self._index = HammingIndex(codes, self.n_bits, given, encoder=self.encoder)
            else:
                self._index.add(codes, given)
            self._append(part, new)
        return self

    def remove(self, ids: Array) -> Self:
        """Remove vectors by id, each of which must be in the index, and return the index.

        Parameters
        ----------
        ids : array (m,) of integers or strings
        """
        with self._lock:
            if not len(self._ids_of_rows):
                raise KeyError("the index is empty, so nothing can be removed")
            self._index.remove(ids)
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
        rows = _as_input(X)
        part = None if self._vectors is None else _readable(rows)
        codes = self._encode(rows)
        with self._lock:
            if not len(self._ids_of_rows):
                raise KeyError("the index is empty, so nothing can be updated")
            self._index.update(ids, codes)
            self._append(part, check_ids(ids, n=rows.shape[0]))
        return self

    def _append(self, part: Any, new: np.ndarray) -> None:
        """Append vectors; rows that had these ids before, removed or replaced, are orphaned."""
        if self._vectors is not None:
            self._vectors = _Vectors((*self._vectors.parts, part))
        known = self._ids_of_rows
        # Kinds of ids mix only if all rows of the first kind are orphaned
        if is_text(known) != is_text(new):
            known = np.full(len(known), b"" if is_text(new) else -1, dtype=new.dtype)
        elif len(known):
            known = np.where(np.isin(known, new), b"" if is_text(new) else -1, known)
        self._ids_of_rows = np.concatenate([known, new])

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the index to one safetensors file: codes, ids, encoder, and vectors that are in memory.

        Vectors in a file stay there, and their path is written.

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
        if not len(self._ids_of_rows):
            raise ValueError("the index is empty; add vectors before saving it")
        with self._lock:
            stored, vectors, ids_of_rows = self._index.tensors(), self._vectors, self._ids_of_rows
        tensors, facts = self.encoder._to_tensors()
        stored |= {f"encoder.{name}": [np.atleast_1d(x)] for name, x in tensors.items()}
        shapes = {name: list(x.shape) for name, x in tensors.items()}
        metadata = {"format": index_file.VECTOR_FORMAT, "n_bits": str(self.n_bits), "distance": "hamming"}
        metadata |= {"metric": self.metric, "encoder": json.dumps(facts), "encoder_shapes": json.dumps(shapes)}
        if vectors is not None and vectors.parts:
            stored["rows"] = [to_bytes(ids_of_rows)]
            file = _file_of(vectors.parts[0]) if len(vectors.parts) == 1 else None
            if file is not None:
                metadata["vectors"] = str(file)
            else:
                dtype = np.result_type(*(to_host(part[:1]).dtype for part in vectors.parts))
                stored["vectors"] = [to_host(part).astype(dtype, copy=False) for part in vectors.parts]
        index_file.write(path, stored, metadata)

    @classmethod
    def load(
        cls, path: str | os.PathLike[str], *, vectors: Any = None, metric: str | None = None, verify: bool = False
    ) -> VectorIndex:
        """Open an index that `save` wrote; codes and vectors are memory-mapped, not read.

        Parameters
        ----------
        path : path-like
        vectors : array (n, d), memory map or path, optional
            The vectors, if their file has moved.
        metric : str, optional
            If given, an index of another metric is rejected.
        verify : bool, default=False
            Read the whole file and compare the digests that `save` wrote into it.
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
        index._lock = threading.Lock()
        index._index = HammingIndex.from_stored(stored, encoder=index.encoder)
        known = index._index.encoded_ids
        rows = index._ids_of_rows = np.array(from_bytes(stored.extra["rows"]) if "rows" in stored.extra else known)
        if rows.ndim != 1 or (len(known) and (rows.dtype.kind != known.dtype.kind or not np.isin(known, rows).all())):
            raise ValueError(f"{os.fspath(path)!r} has codes with ids that none of its vectors has; write it again")
        index._vectors = None
        found = vectors if vectors is not None else stored.extra.get("vectors", facts.get("vectors"))
        if vectors is None and isinstance(found, str) and not os.path.exists(found):
            raise FileNotFoundError(f"the vectors of {path} were in {found}, which does not exist; pass vectors=...")
        if found is not None:
            index._vectors = _Vectors((_readable(_as_input(found)),))
            if index._vectors.shape != (len(rows), encoder.n_features_in_):
                raise ValueError(
                    f"the vectors have shape {index._vectors.shape}, and those of {path} have "
                    f"{(len(rows), encoder.n_features_in_)}; pass the vectors it was made of"
                )
        return index

    def _prepared(self, rows: Any, *, label: str = "X") -> Any:
        """Return rows as the encoder takes them, normalized for the cosine."""
        return normalize_rows(rows, label=label) if self.metric == "cosine" else rows

    def _encode(self, rows: Any) -> Array:
        codes: Array = self.encoder.encode(self._prepared(rows))
        return codes


def _as_input(X: Any) -> Any:
    """Return vectors as an array or a source of rows; a path is opened, as a memory map if the format allows."""
    if isinstance(X, str | os.PathLike):
        mapped = memory_map(X)
        return open_rows(X) if mapped is None else mapped
    return X if isinstance(X, RowSource) else check_rows(X, min_rows=0)


def _readable(rows: Any) -> Any:
    """Return vectors that can be read row by row, or raise."""
    if is_array(rows):
        return rows
    raise ValueError(
        f"{rows.label} cannot be read row by row, which re-ranking candidates needs: pass keep_vectors=False, or the "
        "path of an .npy, .fbin, .u8bin or .i8bin file, or an array"
    )


def _file_of(part: Any) -> Path | None:
    """Return the file that holds exactly these vectors, or None."""
    if not isinstance(part, np.memmap) or part.filename is None:
        return None
    path = Path(str(part.filename)).resolve()
    try:
        whole: Any = memory_map(path)
    except (OSError, ValueError):
        return None
    return path if whole is not None and _place(whole) == _place(part) else None


def _place(x: Any) -> tuple[Any, ...]:
    """Return the place of a memory map in its file: its first byte, shape, strides and type."""
    begin = x.ctypes.data - np.frombuffer(x._mmap, dtype=np.uint8).ctypes.data
    return x.offset - x.offset % mmap.ALLOCATIONGRANULARITY + begin, x.shape, x.strides, x.dtype
