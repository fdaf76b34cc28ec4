"""Encoding rows of NumPy arrays, compiled; imported only where llvmlite is used.

W is cut into panels of 64 bytes: 16 columns of float32, 8 of float64. A tile is six rows times a panel: twelve vector
registers of 32 bytes, in which the scores are summed over all of d and from which only bits leave. Only W is packed,
once, and the next six rows are fetched while these are multiplied. A general matrix product cannot do that for so few
columns. The sum of a score runs in one order for any batch and number of threads, so a row has the same code alone as
among millions.

The loops are LLVM modules in vectors as wide as a panel, which a compiler would not find by itself. Instructions are
only selected and scheduled, in some hundredths of a second at the first call of a process. numba would take most of a
second: it has to be imported, infers types and runs every optimization.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from llvmlite import binding, ir

from scq_gpu._core.machine import PIECE, allowed_threads, check_stopped, over_tasks

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

_INDEX = ir.IntType(64)
_compiling = threading.Lock()


def encode_into(out: np.ndarray, X: np.ndarray, W: np.ndarray, t: np.ndarray) -> bool:
    """Write the codes of rows X (n, d) of any type and layout, and tell if all scores were finite.

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
    """W and t in the layout of the compiled loop."""

    def __init__(self, W: np.ndarray, t: np.ndarray) -> None:
        self.dtype = W.dtype
        self._panels = _panels(W, t)  # held: the loop has only their address
        self._arguments = self._panels.ctypes.data, self._panels.shape[0], W.shape[0]
        self._loop = _machine_code(_encode, W.dtype.char)

    def encode(self, rows: int, stride: int, n: int, codes: int, width: int) -> int:
        """Write the codes of the n rows at one address to another; return 0 if all scores were finite.

        Rows are ``stride`` bytes apart, have the type of W and no gaps between columns; codes have ``width`` bytes and
        no gaps.
        """
        return self._loop(rows, stride, n, codes, width, *self._arguments)


def _panels(W: np.ndarray, t: np.ndarray) -> np.ndarray:
    """Pack W as (panels, d + 1, columns), t in the last row of each. A padding column never reaches its threshold."""
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
    """Encode on this thread; return 0 if all scores were finite.

    Rows that cannot be read where they are go through a buffer, and so do codes that cannot be written there.
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
    """Convert X to the type and layout of ``out``, which is row-major."""
    # NumPy takes several times as long for this
    if X.dtype == np.float16 and out.dtype == np.float32:
        halves = np.ascontiguousarray(X, dtype=np.float16)
        _machine_code(_widen)(halves.ctypes.data, out.ctypes.data, out.size)
    else:
        np.copyto(out, X, casting="unsafe")
    return out


def _encode(char: str) -> ir.Function:
    """Build the loop that writes codes (n, width) of n rows and returns 0 if all scores are finite; counts are >= 1."""
    number = {"f": ir.FloatType(), "d": ir.DoubleType()}[char]
    octets = _PANEL_BYTES // np.dtype(char).itemsize // 8
    function, builder = _function("encode", 8)
    X, stride, n, codes, width, panels, n_panels, d = function.args
    weight_bytes, last_byte = builder.mul(d, _INDEX(_PANEL_BYTES)), builder.sub(width, _INDEX(1))
    panel_bytes = builder.add(weight_bytes, _INDEX(_PANEL_BYTES))
    nonfinite = [_INDEX(0)]
    with _loop(builder, _INDEX(0), n, _REUSED_ROWS, nonfinite) as first:
        end = _smaller(builder, n, builder.add(first, _INDEX(_REUSED_ROWS)))
        last_row = builder.sub(end, _INDEX(1))
        with _loop(builder, _INDEX(0), n_panels, 1, nonfinite) as p:
            panel = builder.add(panels, builder.mul(p, panel_bytes))
            threshold = builder.add(panel, weight_bytes)
            with _loop(builder, first, end, _TILE_ROWS, nonfinite) as i:
                # if fewer rows are left, the last one is computed again and written to the same place
                at = [_smaller(builder, builder.add(i, _INDEX(r)), last_row) for r in range(_TILE_ROWS)]
                rows = [builder.add(X, builder.mul(stride, row)) for row in at]
                ahead = builder.add(X, builder.mul(stride, builder.add(i, _INDEX(_TILE_ROWS))))
                scores = _scores(builder, number, rows, ahead, panel, d)
                bits, found = _bits(builder, scores, threshold)
                nonfinite[0] = builder.or_(nonfinite[0], found)
                # in reverse: the octet before overwrites one that has no place
                for octet in reversed(range(octets)):
                    byte = _smaller(builder, builder.add(builder.mul(p, _INDEX(octets)), _INDEX(octet)), last_byte)
                    for row, mask in zip(at, bits, strict=True):
                        place = builder.add(codes, builder.add(builder.mul(row, width), byte))
                        value = builder.trunc(builder.lshr(mask, mask.type(8 * octet)), ir.IntType(8))
                        builder.store(value, _pointer(builder, place, ir.IntType(8)))
    builder.ret(nonfinite[0])
    return function


def _smaller(builder: ir.IRBuilder, x: Any, y: Any) -> Any:
    return builder.select(builder.icmp_signed("<", x, y), x, y)


def _scores(builder: ir.IRBuilder, number: ir.Type, rows: list[Any], ahead: Any, panel: Any, d: Any) -> list[Any]:
    """Multiply the rows at these addresses with a panel: for each a vector of the panel's columns."""
    size = 4 if isinstance(number, ir.FloatType) else 8
    columns = _PANEL_BYTES // size
    vector, lane = ir.VectorType(number, columns), ir.IntType(32)
    undefined, everywhere = ir.Constant(vector, ir.Undefined), ir.Constant(ir.VectorType(lane, columns), [0] * columns)
    starts, panel_rows = [_pointer(builder, row, number) for row in rows], _pointer(builder, panel, vector)
    scores = [ir.Constant(vector, [0.0] * columns)] * len(rows)
    even = builder.and_(d, _INDEX(-_UNROLLED))
    for first, end, step in [(_INDEX(0), even, _UNROLLED), (even, d, 1)]:
        with _loop(builder, first, end, step, scores) as start:
            fetched = builder.add(ahead, builder.mul(start, _INDEX(_TILE_ROWS * size)))
            for further in range(0, step * _TILE_ROWS * size, _FETCHED_BYTES[size]):
                _prefetch(builder, builder.add(fetched, _INDEX(further)))
            for k in [builder.add(start, _INDEX(further)) for further in range(step)]:
                w = builder.load(builder.gep(panel_rows, [k]), align=8)
                for r, row in enumerate(starts):
                    x = builder.insert_element(undefined, builder.load(builder.gep(row, [k])), lane(0))
                    product = builder.fmul(builder.shuffle_vector(x, undefined, everywhere), w, flags=("contract",))
                    scores[r] = builder.fadd(scores[r], product, flags=("contract",))
    return scores


def _bits(builder: ir.IRBuilder, scores: list[Any], threshold: Any) -> tuple[list[Any], Any]:
    """Return for each vector of scores the bits of those that reach the threshold, and 0 if all are finite."""
    vector = scores[0].type
    mask = ir.IntType(vector.count)
    t = builder.load(_pointer(builder, threshold, vector), align=8)
    bits, nonfinite = [], ir.Constant(vector, [0.0] * vector.count)
    for score in scores:
        bits.append(builder.bitcast(builder.fcmp_ordered(">=", score, t), mask))
        # stays 0, or becomes NaN for good
        nonfinite = builder.fadd(nonfinite, builder.fsub(score, score))
    return bits, builder.zext(builder.bitcast(builder.fcmp_unordered("uno", nonfinite, nonfinite), mask), _INDEX)


def _prefetch(builder: ir.IRBuilder, address: Any) -> None:
    """Ask for the cache line at an address, which need not exist."""
    byte, flag = ir.IntType(8), ir.IntType(32)
    name = "llvm.prefetch.p0i8"
    function = builder.module.globals.get(name)
    if function is None:
        kind = ir.FunctionType(ir.VoidType(), [byte.as_pointer(), flag, flag, flag])
        function = ir.Function(builder.module, kind, name)
    builder.call(function, [_pointer(builder, address, byte), flag(0), flag(3), flag(1)])  # to read, keep, data


def _widen() -> ir.Function:
    """Build the loop that makes float32 from n float16: bits moved, times the difference of the exponents."""
    function, builder = _function("widen", 3)
    halves, out, n = function.args
    whole = builder.and_(n, _INDEX(-_WIDENED))
    for start, end, lanes in [(_INDEX(0), whole, _WIDENED), (whole, n, 1)]:
        with _loop(builder, start, end, lanes, []) as i:
            source, target = (builder.add(x, builder.mul(i, _INDEX(size))) for x, size in ((halves, 2), (out, 4)))
            _widen_vector(builder, source, target, lanes)
    builder.ret(_INDEX(0))
    return function


def _widen_vector(builder: ir.IRBuilder, halves: Any, out: Any, lanes: int) -> None:
    """Convert ``lanes`` numbers from one address to another; NaN and inf are kept."""
    short, whole, single = (ir.VectorType(kind, lanes) for kind in (ir.IntType(16), ir.IntType(32), ir.FloatType()))

    def all_of(kind: ir.VectorType, value: float) -> ir.Constant:
        return ir.Constant(kind, [value] * lanes)

    scale = all_of(single, _HALF_SCALE)
    bits = builder.sext(builder.load(_pointer(builder, halves, short), align=1), whole)
    bits = builder.and_(builder.shl(bits, all_of(whole, 13)), all_of(whole, -0x70002000))
    size = builder.fmul(builder.bitcast(builder.and_(bits, all_of(whole, 0x7FFFFFFF)), single), scale)
    nonfinite = builder.fcmp_ordered(">", size, all_of(single, _HALF_MAX))
    kept = builder.select(nonfinite, all_of(whole, 0x7F800000), all_of(whole, 0))
    widened = builder.fmul(builder.bitcast(builder.or_(bits, kept), single), scale)
    builder.store(widened, _pointer(builder, out, single), align=4)


# ---- functions of LLVM, compiled in memory for this processor ----


def _function(name: str, n_arguments: int) -> tuple[ir.Function, ir.IRBuilder]:
    """Make a function of integers and addresses that returns an integer, in its own module, and its builder."""
    module = ir.Module(name)
    made = ir.Function(module, ir.FunctionType(_INDEX, [_INDEX] * n_arguments), name)
    return made, ir.IRBuilder(made.append_basic_block("start"))


@contextlib.contextmanager
def _loop(builder: ir.IRBuilder, start: Any, end: Any, step: int, values: list[Any]) -> Iterator[Any]:
    """Build the ``with`` block inside ``for i in range(start, end, step)`` and yield i.

    The block finds in ``values`` those of this round and leaves those of the next, in the end the last ones.
    """
    before = builder.block
    head, body, after = (builder.append_basic_block(name) for name in ("head", "body", "after"))
    builder.branch(head)
    builder.position_at_end(head)
    phis = [builder.phi(first.type) for first in (start, *values)]
    for phi, first in zip(phis, (start, *values), strict=True):
        phi.add_incoming(first, before)
    i, values[:] = phis[0], phis[1:]
    builder.cbranch(builder.icmp_signed("<", i, end), body, after)
    builder.position_at_end(body)
    yield i
    for phi, following in zip(phis, (builder.add(i, _INDEX(step)), *values), strict=True):
        phi.add_incoming(following, builder.block)
    builder.branch(head)
    builder.position_at_end(after)
    values[:] = phis[1:]


def _pointer(builder: ir.IRBuilder, address: Any, kind: ir.Type) -> Any:
    """Convert an address to a pointer to values of that type."""
    return builder.inttoptr(address, kind.as_pointer())


def _machine_code(build: Callable[..., ir.Function], *arguments: Any) -> Callable[..., int]:
    """Compile the function of integers ``build(*arguments)``, once per process, to be called without the GIL."""
    with _compiling:
        return _compile(build, *arguments)


@functools.cache
def _compile(build: Callable[..., ir.Function], *arguments: Any) -> Callable[..., int]:
    made = build(*arguments)
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    target = binding.Target.from_triple(binding.get_process_triple())
    machine = target.create_target_machine(
        cpu=os.environ.get("NUMBA_CPU_NAME") or binding.get_host_cpu_name(),
        features=_features(),
        opt=3,
        reloc="static" if target.name.startswith("x86") else "default",
        codemodel="jitdefault",
        jit=True,
    )
    made.module.triple, made.module.data_layout = target.triple, str(machine.target_data)
    engine = binding.create_mcjit_compiler(binding.parse_assembly(str(made.module)), machine)
    engine.finalize_object()
    address = engine.get_function_address(made.name)
    call: Any = ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * len(made.args))(address)
    # the engine owns the memory of the code
    call.engine = engine
    return call  # type: ignore[no-any-return]


def _features() -> str:
    """Return the features of the processor, or those that numba's environment variables name."""
    generic = os.environ.get("NUMBA_CPU_NAME", "").lower() == "generic"
    told = os.environ.get("NUMBA_CPU_FEATURES", "" if generic else None)
    if told is not None:
        return told
    try:
        return str(binding.get_host_cpu_features().flatten())
    # LLVM does not know them for this architecture
    except RuntimeError:
        return ""
