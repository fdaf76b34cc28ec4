"""Ways to keep vectors in a few bytes and search them with float queries, ours and others', under one interface.

`METHODS` maps a name to a class. One is made for a number of bits, the metric and a seed; ``train(X)`` learns from
rows, ``add(X)`` stores codes, ``search(Q, k)`` returns row numbers. ``bytes`` is what a row takes in all.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import scq_gpu as scq


class Unfit(ValueError):
    """A method has no code of this length for these rows."""


class Ours:
    """An encoder of ours, searched as `HammingIndex` does by default."""

    def __init__(self, make: Callable[[int, int], Any], bits: int, cosine: bool, seed: int) -> None:
        self.encoder, self.metric = make(bits, seed), "cosine" if cosine else "l2"
        self.bytes, self.index = -(-bits // 8), None

    def train(self, X: np.ndarray) -> None:
        try:
            self.encoder.fit(X)
        except ValueError as error:  # more bits than the rows have dimensions
            raise Unfit(str(error)) from None

    def add(self, X: np.ndarray) -> None:
        codes = self.encoder.encode(X)
        self.index = scq.HammingIndex(codes, self.encoder.n_bits) if self.index is None else self.index.add(codes)

    def search(self, Q: np.ndarray, k: int) -> np.ndarray:
        return self.index.search_asymmetric(self.encoder, Q, k, metric=self.metric)[1]


class Faiss:
    """An index of Faiss by its factory string; it takes a sample of the rows to train on where it needs fewer."""

    folder: Path | None = None
    """Where trained indexes are written."""

    def __init__(self, name: Callable[[int, int], str], bits: int, cosine: bool, seed: int) -> None:
        self._name, self.bits = name, bits

    def train(self, X: np.ndarray) -> None:
        import faiss

        self.index = faiss.index_factory(X.shape[1], self._name(self.bits, X.shape[1]))
        self.bytes = self.index.sa_code_size()
        self.index.train(X)
        if self.folder is not None:
            faiss.write_index(self.index, str(self.path(X)))

    def path(self, X: np.ndarray) -> Path:
        return self.folder / f"{self._name(self.bits, X.shape[1])}-{len(X)}x{X.shape[1]}.faiss"

    def read(self, X: np.ndarray) -> None:
        """Take an index that was trained on these rows."""
        import faiss

        self.index = faiss.read_index(str(self.path(X)))
        self.bytes = self.index.sa_code_size()

    def add(self, X: np.ndarray) -> None:
        self.index.add(X)

    def search(self, Q: np.ndarray, k: int) -> np.ndarray:
        return self.index.search(Q, k)[1]


class FaissResidual(Faiss):
    """A residual quantizer. It decodes every row for every query, so recall is measured on rows decoded once."""

    def search_decoded(self, Q: np.ndarray, k: int) -> np.ndarray:
        return scq.metrics.exact_neighbors(Q, self.index.reconstruct_n(0, self.index.ntotal), k=k)


class Turbovec:
    """turbovec ranks by the inner product alone: rows of length 1."""

    def __init__(self, bits: int, cosine: bool, seed: int) -> None:
        if not cosine:
            raise Unfit("turbovec has the inner product alone, which is no distance where lengths differ")
        self.bits, self.index = bits, None

    def train(self, X: np.ndarray) -> None:
        import turbovec

        self.index = turbovec.TurboQuantIndex(dim=X.shape[1], bit_width=self.bits // X.shape[1])
        self.index.add(X[:1024])
        small = len(self.index.to_bytes())
        self.index.add(X[:1024])
        self.bytes = round((len(self.index.to_bytes()) - small) / 1024)
        self.index = turbovec.TurboQuantIndex(dim=X.shape[1], bit_width=self.bits // X.shape[1])

    def add(self, X: np.ndarray) -> None:
        self.index.add(X)

    def search(self, Q: np.ndarray, k: int) -> np.ndarray:
        return self.index.search(Q, k=k)[1]


class Signs:
    """Signs of the features, as ``precision="ubinary"`` of sentence-transformers.

    Its search takes candidates by Hamming distance and orders them by the product of the query with the signs. Here all
    rows are ordered so, which is the best that it can find.
    """

    def __init__(self, bits: int, cosine: bool, seed: int) -> None:
        self.bytes, self._codes = bits // 8, []

    def train(self, X: np.ndarray) -> None:
        import faiss

        self.index = faiss.IndexBinaryFlat(8 * self.bytes)

    def add(self, X: np.ndarray) -> None:
        self._codes.append(scq.pack(X > 0))
        self.index.add(np.packbits(X > 0, axis=1))

    def codes(self) -> np.ndarray:
        return np.concatenate(self._codes)

    def search(self, Q: np.ndarray, k: int) -> np.ndarray:
        """Search as sentence-transformers does, with four times as many candidates."""
        rows = self.index.search(np.packbits(Q > 0, axis=1), 4 * k)[1]
        signs = scq.unpack(self.codes()[rows.ravel()], Q.shape[1]).reshape(*rows.shape, -1).astype(np.float32)
        best = np.argsort(-np.einsum("qd,qkd->qk", Q, signs), axis=1, kind="stable")[:, :k]
        return np.take_along_axis(rows, best, axis=1)

    def search_all(self, Q: np.ndarray, k: int) -> np.ndarray:
        signs = scq.unpack(self.codes(), Q.shape[1]).astype(np.float32)
        return scq.metrics.exact_neighbors(Q, signs, k=k, metric="ip")


def _rotated(bits: int, d: int, groups: int) -> int:
    """Return two axes for each bit, as far as there are any, in whole numbers for each group."""
    return min(2 * bits, d) // groups * groups


def _ours(make: Callable[[int, int], Any]) -> Callable[[int, bool, int], Any]:
    return lambda bits, cosine, seed: Ours(make, bits, cosine, seed)


def _faiss(name: Callable[[int, int], str], kind: type[Faiss] = Faiss) -> Callable[[int, bool, int], Any]:
    return lambda bits, cosine, seed: kind(name, bits, cosine, seed)


ENCODERS: dict[str, Callable[[int, int], Any]] = {
    "OPQ": lambda bits, seed: scq.OPQ(bits, random_state=seed),
    "OgE": lambda bits, seed: scq.OgE(bits, random_state=seed),
    "OnE": lambda bits, seed: scq.OnE(bits, random_state=seed),
    "ITQ": lambda bits, seed: scq.ITQ(bits, random_state=seed),
    "LSH": lambda bits, seed: scq.LSH(bits, random_state=seed),
    'OgE, preserve="classes"': lambda bits, seed: scq.OgE(bits, preserve="classes", random_state=seed),
    'OgE, solver="columnwise"': lambda bits, seed: scq.OgE(bits, solver="columnwise", random_state=seed),
}
SIGN = "sign of the features"
METHODS: dict[str, Callable[[int, bool, int], Any]] = {name: _ours(make) for name, make in ENCODERS.items()} | {
    "Faiss OPQ, 8 bits": _faiss(lambda L, d: f"OPQ{L // 8}_{_rotated(L, d, L // 8)},PQ{L // 8}"),
    "Faiss OPQ, 4 bits": _faiss(lambda L, d: f"OPQ{L // 4}_{_rotated(L, d, L // 4)},PQ{L // 4}x4fs"),
    # 8 bytes of a code are two floats
    "Faiss RaBitQ": _faiss(lambda L, d: f"PCAR{L - 64},RaBitQ"),
    "Faiss RQ": _faiss(lambda L, d: f"RQ{L // 8}x8", FaissResidual),
    "turbovec": Turbovec,
    SIGN: Signs,
}
