"""Balance and correlation of the bits of codes, and what to think of them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from scq_gpu._core.arrays import Array, row_slices, to_host
from scq_gpu._core.codes import unpack
from scq_gpu._core.validate import check_codes, check_integer

_BLOCK_ROWS = 1 << 16
_RARE = 0.05  # a bit set in fewer of the codes, or not set in fewer, tells little: at most 0.29 of a balanced one's bit
_ALIKE = 0.9  # two bits correlated more than that agree, or differ, in more than 95 % of the codes
_EVEN = 30  # percent: a bit set in 30 to 70 % of the codes tells at least 0.88 of a balanced one's bit
_APART = 0.5  # a correlation up to which a bit is worth having
_NAMED = 4  # bits or pairs listed in a sentence


class BitStatistics(NamedTuple):
    """How the bits of codes are spread."""

    shares: np.ndarray  # (L,): in which share of the codes each bit is set
    correlation: np.ndarray  # (L, L), with 0 on the diagonal and for bits that never change

    @property
    def constant(self) -> np.ndarray:
        """Numbers of the bits that never change."""
        return np.flatnonzero((self.shares == 0) | (self.shares == 1))

    @property
    def most_alike(self) -> float:
        """The largest correlation between two bits, without its sign."""
        return float(np.abs(self.correlation).max())

    def verdicts(self) -> tuple[str, str]:
        """A sentence each about balance and correlation: what was found, and whether it is good."""
        low, high = 100 * self.shares.min(), 100 * self.shares.max()
        balance = "that is good" if low >= _EVEN and high <= 100 - _EVEN else f"good is {_EVEN} to {100 - _EVEN} %"
        likeness = "that is good" if self.most_alike <= _APART else f"good is {_decimal(_APART)} or less"
        return (
            f"Here {low:.0f} to {high:.0f} %: {balance}.",
            f"Here at most {_decimal(self.most_alike)}, of either sign: {likeness}.",
        )

    def warnings(self) -> list[str]:
        """A sentence for each thing that is wrong with the bits."""
        found = []
        if len(self.constant):
            found.append(
                f"{_name_bits(self.constant)} never {_verb(self.constant, 'change')}: nothing is told by them."
            )
        rare = np.flatnonzero(np.minimum(self.shares, 1 - self.shares) < _RARE)
        rare = np.setdiff1d(rare, self.constant)
        if len(rare):
            least = 100 * np.minimum(self.shares, 1 - self.shares)[rare].min()
            found.append(
                f"{_name_bits(rare)} {_verb(rare, 'is', 'are')} nearly always the same (the rarer value in as few as "
                f"{least:.1f} % of the codes): little is told by them."
            )
        first, second = np.nonzero(np.triu(np.abs(self.correlation) > _ALIKE, 1))
        order = np.argsort(-np.abs(self.correlation[first, second]), kind="stable")
        pairs = [
            f"{i} and {j} (correlation {_decimal(self.correlation[i, j])})"
            for i, j in zip(first[order][:_NAMED], second[order][:_NAMED], strict=True)
        ]
        if pairs:
            more = len(first) - len(pairs)
            listed = "; ".join(pairs) + (f"; and {more} pairs more" if more > 0 else "")
            found.append(f"Some bits tell the same as others: {listed}. One of each pair adds next to nothing.")
        return found


def bit_statistics(codes: Array, n_bits: int) -> BitStatistics:
    """Balance and correlation of the bits of codes (n, ceil(n_bits / 8))."""
    n_bits = check_integer(n_bits, name="n_bits", minimum=1)
    codes = check_codes(codes, n_bits)
    if codes.ndim != 2 or not codes.shape[0]:
        raise ValueError(f"codes have shape {tuple(codes.shape)}; (n, {-(-n_bits // 8)}) with n >= 1 is wanted")
    n, both = codes.shape[0], np.zeros((n_bits, n_bits))
    for part in row_slices(n, _BLOCK_ROWS):
        bits = (unpack(to_host(codes[part, :]), n_bits) > 0).astype(np.float32)
        both += bits.T @ bits  # whole numbers far below 2**24: exact
    ones = np.diag(both).copy()
    covariance = both / n - np.outer(ones, ones) / n**2
    spread = np.sqrt(np.diag(covariance))
    spread[ones % n == 0] = np.inf
    correlation = covariance / np.outer(spread, spread)
    np.fill_diagonal(correlation, 0)
    return BitStatistics(ones / n, correlation)


def _name_bits(bits: np.ndarray) -> str:
    """The bits by number, the first few of them."""
    listed = ", ".join(str(bit) for bit in bits[:_NAMED])
    more = f" and {len(bits) - _NAMED} more" if len(bits) > _NAMED else ""
    return f"Bit {listed}" if len(bits) == 1 else f"Bits {listed}{more}"


def _verb(bits: np.ndarray, one: str, many: str | None = None) -> str:
    if many is None:
        return f"{one}s" if len(bits) == 1 else one
    return one if len(bits) == 1 else many


def _decimal(x: float) -> str:
    return f"{x:.2f}".replace("0.", ".", 1) if abs(x) < 0.995 else f"{x:.2f}"
