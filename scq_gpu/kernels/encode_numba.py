"""Encoding rows of NumPy arrays, compiled; imported only when numba is used.

W is cut into panels of 64 bytes: 16 columns of float32, 8 of float64. A tile is six rows times a panel: twelve vector
registers of 32 bytes, in which the scores are summed up over all of d and from which only bits leave. Nothing is packed
but W, once; the next six rows are fetched while these are multiplied. That is what a general matrix product cannot do
for so few columns, and why this is faster. The sum of a score runs in one order whatever the batch and the number of
threads, so a row has the same code alone as among millions.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from scq_gpu.kernels.threads import PIECE, allowed_threads, check_stopped, compiled, over_tasks

_PANEL_BYTES = 64
_TILE_ROWS = 6
_REUSED_ROWS = 96  # that stay in L2 while panel after panel goes over them
_BLOCK_BYTES = 1 << 20  # of each thread's buffers
_TASK_FLOPS = 1 << 24  # less is not worth a thread
_TASKS_PER_THREAD = 8  # so that a thread held up elsewhere does not hold up the whole

_HALF_SCALE = np.float32(2.0**112)  # between the exponents of float16 and float32
_HALF_MAX = np.float32(65504)


def encode_rows(X: np.ndarray, W: np.ndarray, t: np.ndarray, out: np.ndarray) -> bool:
    """Write the codes of rows X (n, d) of any type and layout, and say whether all scores were finite.

    W (d, n_bits) and t (n_bits,) have the type to multiply in; out (n, bytes) may have any layout.
    """
    n, d = X.shape
    out = np.asarray(out)  # of a memory map, which compiled code does not know
    panels, thresholds = _panels(W, t)
    flops = 2 * n * d * W.shape[1]
    tasks = min(max(1, flops // _TASK_FLOPS), _TASKS_PER_THREAD * allowed_threads(), n)
    nonfinite = [0] * tasks

    def task(number: int) -> None:
        first, end = n * number // tasks, n * (number + 1) // tasks
        nonfinite[number] = _encode_range(X[first:end], panels, thresholds, out[first:end])

    over_tasks([(task, number) for number in range(tasks)])
    return not any(nonfinite)


def _panels(W: np.ndarray, t: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """W as (panels, d, columns) and t as (panels, columns); a padding column never reaches its threshold."""
    d, n_bits = W.shape
    columns = _PANEL_BYTES // W.itemsize
    count = -(-n_bits // columns)
    panels = np.zeros((count, d, columns), dtype=W.dtype)
    thresholds = np.full((count, columns), np.inf, dtype=W.dtype)
    for p in range(count):
        part = W[:, p * columns : (p + 1) * columns]
        panels[p, :, : part.shape[1]] = part
        thresholds[p, : part.shape[1]] = t[p * columns : (p + 1) * columns]
    return panels, thresholds


def _encode_range(X: np.ndarray, panels: np.ndarray, thresholds: np.ndarray, out: np.ndarray) -> int:
    """Encode on this thread; not 0 if a score was not finite.

    Rows that can be read, and codes that can be written, where they are go in one piece; others through a buffer.
    """
    n, d = X.shape
    dtype = panels.dtype
    readable = X.dtype == dtype and X.flags.aligned and (d == 1 or X.strides[1] == dtype.itemsize)
    writable = out.flags.c_contiguous
    size = min(n, max(_TILE_ROWS, _BLOCK_BYTES // (d * dtype.itemsize + out.shape[1])))
    if readable and writable:
        size = max(_REUSED_ROWS, PIECE * 8 // (d * out.shape[1] * 8) // _REUSED_ROWS * _REUSED_ROWS)
    rows = None if readable else np.empty((size, d), dtype=dtype)
    codes = None if writable else np.empty((size, out.shape[1]), dtype=np.uint8)
    nonfinite = 0
    for start in range(0, n, size):
        check_stopped()
        block, target = X[start : start + size], out[start : start + size]
        source = block if rows is None else _convert(block, rows[: len(block)])
        written = target if codes is None else codes[: len(block)]
        nonfinite |= _encode_block(source.ctypes.data, source.strides[0], panels, thresholds, written)
        if codes is not None:
            target[...] = written
    return nonfinite


def _convert(X: np.ndarray, out: np.ndarray) -> np.ndarray:
    """X in the type and layout of ``out``, which is row-major."""
    if X.dtype == np.float16 and out.dtype == np.float32:  # NumPy takes several times as long
        _widen(np.ascontiguousarray(X).reshape(-1).view(np.int16), out.reshape(-1))
    else:
        np.copyto(out, X, casting="unsafe")
    return out


@intrinsic
def _as_float32(typingctx: Any, bits: Any) -> Any:
    """The float32 of these bits."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], ir.FloatType())

    return types.float32(types.uint32), generate


@compiled()
def _widen(halves, out):  # type: ignore[no-untyped-def]
    """float16 to float32: the bits in their new places, times what the exponents differ by; NaN and inf kept."""
    for i in range(halves.shape[0]):
        bits = np.uint32((np.int32(halves[i]) << np.int32(13)) & np.int32(-0x70002000))
        nonfinite = abs(_as_float32(bits) * _HALF_SCALE) > _HALF_MAX
        out[i] = _as_float32(bits | (np.uint32(0x7F800000) if nonfinite else np.uint32(0))) * _HALF_SCALE


@compiled()
def _encode_block(X, stride, panels, thresholds, codes):  # type: ignore[no-untyped-def]
    """Write the codes of rows at address X, ``stride`` bytes apart; not 0 if a score was not finite."""
    n, width = codes.shape
    octets = panels.shape[2] // 8
    bits = np.empty((_TILE_ROWS, octets), dtype=np.uint8)
    nonfinite = 0
    for first in range(0, n, _REUSED_ROWS):
        end = min(n, first + _REUSED_ROWS)
        for p in range(panels.shape[0]):
            for i in range(first, end, _TILE_ROWS):
                rows = min(_TILE_ROWS, end - i)
                nonfinite |= _tile(X + i * stride, stride, rows, panels[p], thresholds[p], bits)
                for octet in range(min(octets, width - p * octets)):
                    for r in range(rows):
                        codes[i + r, p * octets + octet] = bits[r, octet]
    return nonfinite


@intrinsic
def _tile(typingctx: Any, X: Any, stride: Any, rows: Any, panel: Any, threshold: Any, bits: Any) -> Any:
    """Bits of up to six rows (of the last one again where there are fewer); not 0 if a score is not finite."""
    signature = types.intp(types.intp, types.intp, types.intp, panel, threshold, bits)
    return signature, _generate_tile


def _generate_tile(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    """The code of `_tile`, in vectors as wide as a panel: the compiler would not find them by itself."""
    X, stride, rows, *arrays = arguments
    panel, threshold, bits = (
        context.make_array(kind)(context, builder, array)
        for kind, array in zip(signature.args[3:], arrays, strict=True)
    )
    number = context.get_value_type(signature.args[3].dtype)
    columns = _PANEL_BYTES // context.get_abi_sizeof(number)
    vector = ir.VectorType(number, columns)
    index, lane, mask = ir.IntType(64), ir.IntType(32), ir.IntType(columns)
    undefined, zeros = ir.Constant(vector, ir.Undefined), ir.Constant(vector, [0.0] * columns)
    everywhere = ir.Constant(ir.VectorType(lane, columns), [0] * columns)

    last = builder.sub(rows, index(1))
    at = [builder.select(builder.icmp_signed("<", index(r), rows), index(r), last) for r in range(_TILE_ROWS)]
    row = [builder.inttoptr(builder.add(X, builder.mul(stride, r)), number.as_pointer()) for r in at]
    panel_rows = builder.bitcast(panel.data, vector.as_pointer())
    d = builder.extract_value(panel.shape, 0)
    ahead = builder.add(X, builder.mul(stride, index(_TILE_ROWS)))
    before, loop, after = builder.block, builder.append_basic_block("loop"), builder.append_basic_block("after")
    builder.branch(loop)

    builder.position_at_end(loop)
    k = builder.phi(index)
    sums = [builder.phi(vector) for _ in range(_TILE_ROWS)]
    w = builder.load(builder.gep(panel_rows, [k]), align=8)
    _prefetch(builder, builder.add(ahead, builder.mul(k, index(_TILE_ROWS * context.get_abi_sizeof(number)))))
    added = []
    for r in range(_TILE_ROWS):
        x = builder.insert_element(undefined, builder.load(builder.gep(row[r], [k])), lane(0))
        product = builder.fmul(builder.shuffle_vector(x, undefined, everywhere), w, flags=("contract",))
        added.append(builder.fadd(sums[r], product, flags=("contract",)))
    following = builder.add(k, index(1))
    builder.cbranch(builder.icmp_signed("<", following, d), loop, after)
    for phi, start, step in [(k, index(0), following), *((s, zeros, a) for s, a in zip(sums, added, strict=True))]:
        phi.add_incoming(start, before)
        phi.add_incoming(step, loop)

    builder.position_at_end(after)
    t = builder.load(builder.bitcast(threshold.data, vector.as_pointer()), align=8)
    stored = builder.bitcast(bits.data, mask.as_pointer())
    nonfinite = zeros
    for r in range(_TILE_ROWS):
        reached = builder.bitcast(builder.fcmp_ordered(">=", added[r], t), mask)
        builder.store(reached, builder.gep(stored, [index(r)]), align=1)
        nonfinite = builder.fadd(nonfinite, builder.fsub(added[r], added[r]))  # 0, or NaN for good
    return builder.zext(builder.bitcast(builder.fcmp_unordered("uno", nonfinite, nonfinite), mask), index)


def _prefetch(builder: Any, address: Any) -> None:
    """Ask for the cache line at an address, which need not exist."""
    pointer, flag = ir.IntType(8).as_pointer(), ir.IntType(32)
    name = "llvm.prefetch.p0i8"
    function = builder.module.globals.get(name)
    if function is None:
        function = ir.Function(builder.module, ir.FunctionType(ir.VoidType(), [pointer, flag, flag, flag]), name)
    builder.call(function, [builder.inttoptr(address, pointer), flag(0), flag(3), flag(1)])  # to read, keep, data
