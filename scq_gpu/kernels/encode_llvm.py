"""Encoding rows of NumPy arrays, compiled; imported only where llvmlite is used.

W is cut into panels of 64 bytes: 16 columns of float32, 8 of float64. A tile is six rows times a panel: twelve vector
registers of 32 bytes, in which the scores are summed up over all of d and from which only bits leave. Nothing is packed
but W, once; the next six rows are fetched while these are multiplied. That is what a general matrix product cannot do
for so few columns, and why this is faster. The sum of a score runs in one order whatever the batch and the number of
threads, so a row has the same code alone as among millions.

The loops are written in LLVM's own language (`scq_gpu.kernels.llvm`), in vectors as wide as a panel, which a compiler
would not find by itself. They are ready some hundredths of a second after the first call of a process.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir

from scq_gpu.kernels import llvm
from scq_gpu.kernels.llvm import INDEX
from scq_gpu.kernels.threads import PIECE, allowed_threads, check_stopped, over_tasks

_PANEL_BYTES = 64
_TILE_ROWS = 6
_UNROLLED = 2  # columns of the rows per round of the innermost loop; with 4, rows from memory take up to twice the time
_FETCHED_BYTES = {4: 24, 8: 64}  # per prefetch, by the size of a number: the fastest for rows from memory
_REUSED_ROWS = 96  # that stay in L2 while panel after panel goes over them
_BLOCK_BYTES = 1 << 20  # of each thread's buffers
_TASK_FLOPS = 1 << 24  # less is not worth a thread
_TASKS_PER_THREAD = 8  # so that a thread held up elsewhere does not hold up the whole

_WIDENED = 16  # float16 at a time
_HALF_SCALE = 2.0**112  # between the exponents of float16 and float32
_HALF_MAX = 65504.0


def encode_rows(X: np.ndarray, W: np.ndarray, t: np.ndarray, out: np.ndarray) -> bool:
    """Write the codes of rows X (n, d) of any type and layout, and say whether all scores were finite.

    W (d, n_bits) and t (n_bits,) have the type to multiply in; out (n, bytes) may have any layout.
    """
    n, d = X.shape
    mapped = _Map(W, t)
    flops = 2 * n * d * W.shape[1]
    tasks = min(max(1, flops // _TASK_FLOPS), _TASKS_PER_THREAD * allowed_threads(), n)
    nonfinite = [0] * tasks

    def task(number: int) -> None:
        first, end = n * number // tasks, n * (number + 1) // tasks
        nonfinite[number] = _encode_range(X[first:end], mapped, out[first:end])

    over_tasks([(task, number) for number in range(tasks)])
    return not any(nonfinite)


class _Map:
    """W and t as the compiled loop wants them."""

    def __init__(self, W: np.ndarray, t: np.ndarray) -> None:
        self.dtype = W.dtype
        self._panels = _panels(W, t)  # held: the loop has only their address
        self._arguments = self._panels.ctypes.data, self._panels.shape[0], W.shape[0]
        self._loop = llvm.compiled(_encode, W.dtype.char)

    def encode(self, rows: int, stride: int, n: int, codes: int, width: int) -> int:
        """Write the codes of the n rows at one address to another; not 0 if a score was not finite.

        Rows are ``stride`` bytes apart, have the type of W and no gaps between columns; codes have ``width`` bytes and
        no gaps.
        """
        return self._loop(rows, stride, n, codes, width, *self._arguments)


def _panels(W: np.ndarray, t: np.ndarray) -> np.ndarray:
    """W as (panels, d + 1, columns), t in the last row of each; a padding column never reaches its threshold."""
    d, n_bits = W.shape
    columns = _PANEL_BYTES // W.itemsize
    count = -(-n_bits // columns)
    memory = np.zeros((count * (d + 1) + 1) * columns, dtype=W.dtype)
    start = -memory.ctypes.data % _PANEL_BYTES // W.itemsize  # where a cache line begins: a row of a panel is one
    panels = memory[start : start + memory.size - columns].reshape(count, d + 1, columns)
    panels[-1, d] = np.inf
    for p in range(count):
        part = slice(p * columns, (p + 1) * columns)
        used = min(columns, n_bits - p * columns)
        panels[p, :d, :used] = W[:, part]
        panels[p, d, :used] = t[part]
    return panels


def _encode_range(X: np.ndarray, mapped: _Map, out: np.ndarray) -> int:
    """Encode on this thread; not 0 if a score was not finite.

    Rows that can be read, and codes that can be written, where they are go in one piece; others through a buffer.
    """
    n, d = X.shape
    dtype = mapped.dtype
    readable = X.dtype == dtype and X.flags.aligned and (d == 1 or X.strides[1] == dtype.itemsize)
    writable = out.flags.c_contiguous
    size = min(n, max(_TILE_ROWS, _BLOCK_BYTES // (d * dtype.itemsize + out.shape[1])))
    if readable and writable:
        size = max(_REUSED_ROWS, PIECE * 8 // (d * out.shape[1] * 8) // _REUSED_ROWS * _REUSED_ROWS)
    rows = X if readable else np.empty((size, d), dtype=dtype)
    codes = out if writable else np.empty((size, out.shape[1]), dtype=np.uint8)
    row_address, code_address = rows.ctypes.data, codes.ctypes.data
    nonfinite = 0
    for start in range(0, n, size):
        check_stopped()
        count = min(size, n - start)
        if not readable:
            _convert(X[start : start + count], rows[:count])
        nonfinite |= mapped.encode(row_address, rows.strides[0], count, code_address, out.shape[1])
        if not writable:
            out[start : start + count] = codes[:count]
        row_address += size * rows.strides[0] if readable else 0
        code_address += size * codes.strides[0] if writable else 0
    return nonfinite


def _convert(X: np.ndarray, out: np.ndarray) -> np.ndarray:
    """X in the type and layout of ``out``, which is row-major."""
    if X.dtype == np.float16 and out.dtype == np.float32:  # NumPy takes several times as long
        halves = np.ascontiguousarray(X, dtype=np.float16)
        llvm.compiled(_widen)(halves.ctypes.data, out.ctypes.data, out.size)
    else:
        np.copyto(out, X, casting="unsafe")
    return out


def _encode(char: str) -> ir.Function:
    """Codes (n, width) of n rows ``stride`` bytes apart; gives 0 if all scores are finite. All counts are 1 or more."""
    number = {"f": ir.FloatType(), "d": ir.DoubleType()}[char]
    octets = _PANEL_BYTES // np.dtype(char).itemsize // 8
    function, builder = llvm.function("encode", 8)
    X, stride, n, codes, width, panels, n_panels, d = function.args
    weight_bytes, last_byte = builder.mul(d, INDEX(_PANEL_BYTES)), builder.sub(width, INDEX(1))
    panel_bytes = builder.add(weight_bytes, INDEX(_PANEL_BYTES))
    nonfinite = [INDEX(0)]
    with llvm.loop(builder, INDEX(0), n, _REUSED_ROWS, nonfinite) as first:
        end = _smaller(builder, n, builder.add(first, INDEX(_REUSED_ROWS)))
        last_row = builder.sub(end, INDEX(1))
        with llvm.loop(builder, INDEX(0), n_panels, 1, nonfinite) as p:
            panel = builder.add(panels, builder.mul(p, panel_bytes))
            threshold = builder.add(panel, weight_bytes)
            with llvm.loop(builder, first, end, _TILE_ROWS, nonfinite) as i:
                # where fewer rows are left, the last one again, to the same place
                at = [_smaller(builder, builder.add(i, INDEX(r)), last_row) for r in range(_TILE_ROWS)]
                rows = [builder.add(X, builder.mul(stride, row)) for row in at]
                ahead = builder.add(X, builder.mul(stride, builder.add(i, INDEX(_TILE_ROWS))))
                scores = _scores(builder, number, rows, ahead, panel, d)
                bits, found = _bits(builder, scores, threshold)
                nonfinite[0] = builder.or_(nonfinite[0], found)
                for octet in reversed(range(octets)):  # the one before overwrites one that has no place
                    byte = _smaller(builder, builder.add(builder.mul(p, INDEX(octets)), INDEX(octet)), last_byte)
                    for row, mask in zip(at, bits, strict=True):
                        place = builder.add(codes, builder.add(builder.mul(row, width), byte))
                        value = builder.trunc(builder.lshr(mask, mask.type(8 * octet)), ir.IntType(8))
                        builder.store(value, llvm.pointer(builder, place, ir.IntType(8)))
    builder.ret(nonfinite[0])
    return function


def _smaller(builder: ir.IRBuilder, x: Any, y: Any) -> Any:
    return builder.select(builder.icmp_signed("<", x, y), x, y)


def _scores(builder: ir.IRBuilder, number: ir.Type, rows: list[Any], ahead: Any, panel: Any, d: Any) -> list[Any]:
    """The products of the rows at these addresses with a panel, a vector of its columns each."""
    size = 4 if isinstance(number, ir.FloatType) else 8
    columns = _PANEL_BYTES // size
    vector, lane = ir.VectorType(number, columns), ir.IntType(32)
    undefined, everywhere = ir.Constant(vector, ir.Undefined), ir.Constant(ir.VectorType(lane, columns), [0] * columns)
    starts, panel_rows = [llvm.pointer(builder, row, number) for row in rows], llvm.pointer(builder, panel, vector)
    scores = [ir.Constant(vector, [0.0] * columns)] * len(rows)
    even = builder.and_(d, INDEX(-_UNROLLED))
    for first, end, step in [(INDEX(0), even, _UNROLLED), (even, d, 1)]:
        with llvm.loop(builder, first, end, step, scores) as start:
            fetched = builder.add(ahead, builder.mul(start, INDEX(_TILE_ROWS * size)))
            for further in range(0, step * _TILE_ROWS * size, _FETCHED_BYTES[size]):
                _prefetch(builder, builder.add(fetched, INDEX(further)))
            for k in [builder.add(start, INDEX(further)) for further in range(step)]:
                w = builder.load(builder.gep(panel_rows, [k]), align=8)
                for r, row in enumerate(starts):
                    x = builder.insert_element(undefined, builder.load(builder.gep(row, [k])), lane(0))
                    product = builder.fmul(builder.shuffle_vector(x, undefined, everywhere), w, flags=("contract",))
                    scores[r] = builder.fadd(scores[r], product, flags=("contract",))
    return scores


def _bits(builder: ir.IRBuilder, scores: list[Any], threshold: Any) -> tuple[list[Any], Any]:
    """For each vector of scores the bits that say which of them reach the threshold; not 0 if one is not finite."""
    vector = scores[0].type
    mask = ir.IntType(vector.count)
    t = builder.load(llvm.pointer(builder, threshold, vector), align=8)
    bits, nonfinite = [], ir.Constant(vector, [0.0] * vector.count)
    for score in scores:
        bits.append(builder.bitcast(builder.fcmp_ordered(">=", score, t), mask))
        nonfinite = builder.fadd(nonfinite, builder.fsub(score, score))  # 0, or NaN for good
    return bits, builder.zext(builder.bitcast(builder.fcmp_unordered("uno", nonfinite, nonfinite), mask), INDEX)


def _prefetch(builder: ir.IRBuilder, address: Any) -> None:
    """Ask for the cache line at an address, which need not exist."""
    byte, flag = ir.IntType(8), ir.IntType(32)
    name = "llvm.prefetch.p0i8"
    function = builder.module.globals.get(name)
    if function is None:
        kind = ir.FunctionType(ir.VoidType(), [byte.as_pointer(), flag, flag, flag])
        function = ir.Function(builder.module, kind, name)
    builder.call(function, [llvm.pointer(builder, address, byte), flag(0), flag(3), flag(1)])  # to read, keep, data


def _widen() -> ir.Function:
    """From n float16 float32: the bits in their new places, times what the exponents differ by; NaN and inf kept."""
    function, builder = llvm.function("widen", 3)
    halves, out, n = function.args
    whole = builder.and_(n, INDEX(-_WIDENED))
    for start, end, lanes in [(INDEX(0), whole, _WIDENED), (whole, n, 1)]:
        with llvm.loop(builder, start, end, lanes, []) as i:
            source, target = (builder.add(x, builder.mul(i, INDEX(size))) for x, size in ((halves, 2), (out, 4)))
            _widen_vector(builder, source, target, lanes)
    builder.ret(INDEX(0))
    return function


def _widen_vector(builder: ir.IRBuilder, halves: Any, out: Any, lanes: int) -> None:
    """That many of them, from one address to another."""
    short, whole, single = (ir.VectorType(kind, lanes) for kind in (ir.IntType(16), ir.IntType(32), ir.FloatType()))

    def all_of(kind: ir.VectorType, value: float) -> ir.Constant:
        return ir.Constant(kind, [value] * lanes)

    scale = all_of(single, _HALF_SCALE)
    bits = builder.sext(builder.load(llvm.pointer(builder, halves, short), align=1), whole)
    bits = builder.and_(builder.shl(bits, all_of(whole, 13)), all_of(whole, -0x70002000))
    size = builder.fmul(builder.bitcast(builder.and_(bits, all_of(whole, 0x7FFFFFFF)), single), scale)
    nonfinite = builder.fcmp_ordered(">", size, all_of(single, _HALF_MAX))
    kept = builder.select(nonfinite, all_of(whole, 0x7F800000), all_of(whole, 0))
    widened = builder.fmul(builder.bitcast(builder.or_(bits, kept), single), scale)
    builder.store(widened, llvm.pointer(builder, out, single), align=4)
