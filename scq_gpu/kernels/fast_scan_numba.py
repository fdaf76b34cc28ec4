"""Coarse sums of a query over columns of codes, in vectors, by which `asymmetric_numba` skips rows.

A group is 64 rows, in two vectors of 32 bytes. A column holds 4 bits of each row of a group, a byte a row; a word of 8
bytes has 16 columns. The entries of a column's table are found by one instruction where the processor has one for a
table of 16 bytes. Eight tables are added up in bytes, with saturation, and those sums in 16 bits, each vector giving
two of 16 rows: the bytes at its even places and those at its odd ones. So the rows of a vector are 0, 16, 1, 17, ...
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

GROUP = 64  # rows: the bits of a mask

_LANES = 32
_BYTE, _SHORT, _LANE, _INDEX, _FLOAT = ir.IntType(8), ir.IntType(16), ir.IntType(32), ir.IntType(64), ir.FloatType()
_TABLE, _ROWS = ir.VectorType(_BYTE, 16), ir.VectorType(_BYTE, _LANES)
_SUMS, _SCORES = ir.VectorType(_SHORT, 16), ir.VectorType(_FLOAT, 16)


@intrinsic
def to_columns(typingctx: Any, codes: Any, at: Any, width: Any, columns: Any, group: Any) -> Any:
    """Write 64 rows of ``width`` bytes, from byte ``at`` of the codes on, to columns[group] (words, 16, 64).

    The last word of a row may reach into the next row, and that of the last row beyond it: their tables are zeros.
    """
    return types.void(codes, types.intp, types.intp, columns, types.intp), _generate_columns


def _generate_columns(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    """Generate `to_columns`: bytes are transposed 8 by 8, and then words of eight rows likewise."""
    codes, at, width, columns, group = arguments
    source = _address(context, builder, signature.args[0], codes, at)
    words = _length(context, builder, signature.args[3], columns, 1)
    size = builder.mul(words, _INDEX(16 * GROUP))
    target = _address(context, builder, signature.args[3], columns, builder.mul(group, size))
    bytes_of_eight, eight = ir.VectorType(_BYTE, 64), ir.VectorType(_INDEX, 8)
    with _loop(builder, words, []) as (word, _):
        tiles = []
        for lanes in range(0, GROUP, 8):
            tile = ir.Constant(eight, ir.Undefined)
            for i, lane in enumerate(range(lanes, lanes + 8)):
                row = lane // 32 * 32 + lane % 32 // 2 + lane % 2 * 16
                at = builder.add(builder.mul(width, _INDEX(row)), builder.mul(word, _INDEX(8)))
                tile = builder.insert_element(tile, _load(builder, source, at, _INDEX), _LANE(i))
            across = _shuffle(builder, builder.bitcast(tile, bytes_of_eight), [i % 8 * 8 + i // 8 for i in range(64)])
            tiles.append(builder.bitcast(across, eight))
        for b, column in enumerate(_transpose(builder, tiles)):
            values = builder.bitcast(column, bytes_of_eight)
            at = builder.add(builder.mul(word, _INDEX(16 * GROUP)), _INDEX(2 * b * GROUP))
            _store(builder, builder.and_(values, _repeat(values.type, 15)), target, at)
            high = builder.lshr(values, _repeat(values.type, 4))
            _store(builder, high, target, builder.add(at, _INDEX(GROUP)))
    return context.get_dummy_value()


def _transpose(builder: Any, rows: Sequence[Any]) -> list[Any]:
    """Transpose eight vectors of eight numbers: 2 by 2 numbers change places, then 2 by 2 of those, and so on."""
    rows = list(rows)
    for step in (1, 2, 4):
        left = [i if not i & step else i + 8 - step for i in range(8)]
        for r in (r for r in range(8) if not r & step):
            upper, lower = rows[r], rows[r + step]
            rows[r] = _shuffle(builder, upper, left, lower)
            rows[r + step] = _shuffle(builder, upper, [i + step for i in left], lower)
    return rows


@intrinsic
def pass_sums(typingctx: Any, columns: Any, group: Any, tables: Any, query: Any, limit: Any) -> Any:
    """Mask the rows of columns[group] whose coarse sum, with tables[query] (words, 16, 16), is within the limit."""
    return types.uint64(columns, types.intp, tables, types.intp, types.uint16), _generate_pass_sums


def _generate_pass_sums(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    limit = _everywhere(builder, arguments[4], _SUMS)
    sums = _coarse_sums(context, builder, signature, arguments)
    return _mask(builder, [builder.icmp_unsigned("<=", some, limit) for some in sums])


@intrinsic
def pass_scores(
    typingctx: Any, columns: Any, group: Any, tables: Any, query: Any, limit: Any, start: Any, unit: Any, factors: Any
) -> Any:
    """Mask the rows whose bound, offset + scale * (start + unit * coarse sum), does not exceed the limit.

    Offsets and scales are the two rows of ``factors``; a bound that is not a number does not exceed anything.
    """
    numbers = (types.float32,) * 3
    return types.uint64(columns, types.intp, tables, types.intp, *numbers, factors), _generate_pass_scores


def _generate_pass_scores(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    limit, start, unit = (_everywhere(builder, x, _SCORES) for x in arguments[4:7])
    factors = _address(context, builder, signature.args[7], arguments[7], _INDEX(0))
    scales = builder.mul(_length(context, builder, signature.args[7], arguments[7], 1), _INDEX(4))
    passed = []
    for i, some in enumerate(_coarse_sums(context, builder, signature, arguments)):
        at = builder.add(builder.mul(arguments[1], _INDEX(4 * GROUP)), _INDEX(4 * 16 * i))
        offset = _load(builder, factors, at, _SCORES)
        scale = _load(builder, factors, builder.add(at, scales), _SCORES)
        bound = builder.fadd(builder.fmul(builder.uitofp(some, _SCORES), unit), start)
        bound = builder.fadd(builder.fmul(bound, scale), offset)
        passed.append(builder.fcmp_unordered("<=", bound, limit))
    return _mask(builder, passed)


def _coarse_sums(context: Any, builder: Any, signature: Any, arguments: Any) -> list[Any]:
    """Compute the coarse sums of a query over a group: four vectors of 16 rows."""
    columns, group, tables, query = arguments[:4]
    words = _length(context, builder, signature.args[0], columns, 1)
    at = builder.mul(builder.mul(group, words), _INDEX(16 * GROUP))
    values = _address(context, builder, signature.args[0], columns, at)
    at = builder.mul(builder.mul(query, words), _INDEX(16 * 16))
    entries = _address(context, builder, signature.args[2], tables, at)
    find = _finder(context)
    with _loop(builder, words, [_repeat(_SUMS, 0)] * 4) as (word, sums):
        for eight in range(2):
            added: list[Any] = [_repeat(_ROWS, 0)] * 2
            for t in range(8 * eight, 8 * eight + 8):
                at = builder.mul(builder.add(builder.mul(word, _INDEX(16)), _INDEX(t)), _INDEX(16))
                table = _load(builder, entries, at, _TABLE)
                for half in range(2):
                    column = builder.add(builder.mul(at, _INDEX(GROUP // 16)), _INDEX(half * _LANES))
                    found = find(builder, table, _load(builder, values, column, _ROWS))
                    added[half] = _add(builder, added[half], found)
            for half in range(2):
                both = builder.bitcast(added[half], _SUMS)
                even, odd = builder.and_(both, _repeat(_SUMS, 255)), builder.lshr(both, _repeat(_SUMS, 8))
                sums[2 * half] = _add(builder, sums[2 * half], even)
                sums[2 * half + 1] = _add(builder, sums[2 * half + 1], odd)
    return sums


def _finder(context: Any) -> Callable[[Any, Any, Any], Any]:
    """Return a function that finds the entries of a table for the 32 values of a column on this processor."""
    triple, _, features = context.codegen().magic_tuple()
    if "+avx2" in features:
        return lambda builder, table, values: _call(
            builder, "llvm.x86.avx2.pshuf.b", _shuffle(builder, table, [*range(16)] * 2), values
        )

    def find(builder: Any, table: Any, values: Any) -> Any:
        halves = (_shuffle(builder, values, range(first, first + 16)) for first in (0, 16))
        if triple.startswith(("aarch64", "arm64")):
            found = [_call(builder, "llvm.aarch64.neon.tbl1.v16i8", table, half) for half in halves]
        else:
            found = [_find_each(builder, table, half) for half in halves]
        return _shuffle(builder, found[0], range(32), found[1])

    return find


def _find_each(builder: Any, table: Any, values: Any) -> Any:
    """Find the entries for 16 values one by one; the compiler knows where that is one instruction."""
    found = ir.Constant(_TABLE, ir.Undefined)
    for i in range(16):
        entry = builder.extract_element(table, builder.extract_element(values, _LANE(i)))
        found = builder.insert_element(found, entry, _LANE(i))
    return found


def _mask(builder: Any, passed: Sequence[Any]) -> Any:
    """Pack comparisons of 16 rows each into the bits of one number."""
    mask = _INDEX(0)
    for i, some in enumerate(passed):
        bits = builder.zext(builder.bitcast(some, _SHORT), _INDEX)
        mask = builder.or_(mask, builder.shl(bits, _INDEX(16 * i)))
    return mask


@contextmanager
def _loop(builder: Any, count: Any, start: Sequence[Any]) -> Iterator[tuple[Any, list[Any]]]:
    """Repeat the code of a with block ``count`` times, at least once: its index, and values it carries along.

    The block puts new values into the list, which afterwards holds the last ones.
    """
    before, body, after = builder.block, builder.append_basic_block("body"), builder.append_basic_block("after")
    builder.branch(body)
    builder.position_at_end(body)
    index, *carried = phis = [builder.phi(x.type) for x in (count, *start)]
    values = list(carried)
    yield index, values
    following = builder.add(index, _INDEX(1))
    for phi, first, next_value in zip(phis, (_INDEX(0), *start), (following, *values), strict=True):
        phi.add_incoming(first, before)
        phi.add_incoming(next_value, builder.block)
    builder.cbranch(builder.icmp_signed("<", following, count), body, after)
    builder.position_at_end(after)


def _length(context: Any, builder: Any, kind: Any, array: Any, axis: int) -> Any:
    return builder.extract_value(context.make_array(kind)(context, builder, array).shape, axis)


def _address(context: Any, builder: Any, kind: Any, array: Any, offset: Any) -> Any:
    """Return the address of a byte of an array's data."""
    data = context.make_array(kind)(context, builder, array).data
    return builder.gep(builder.bitcast(data, _BYTE.as_pointer()), [offset])


def _load(builder: Any, base: Any, offset: Any, kind: Any) -> Any:
    return builder.load(builder.bitcast(builder.gep(base, [offset]), kind.as_pointer()), align=1)


def _store(builder: Any, value: Any, base: Any, offset: Any) -> None:
    builder.store(value, builder.bitcast(builder.gep(base, [offset]), value.type.as_pointer()), align=1)


def _repeat(kind: Any, value: int) -> Any:
    """Make a vector with a constant in every lane."""
    return ir.Constant(kind, [value] * kind.count)


def _everywhere(builder: Any, x: Any, kind: Any) -> Any:
    """Make a vector with a number in every lane."""
    one = builder.insert_element(ir.Constant(kind, ir.Undefined), x, _LANE(0))
    return _shuffle(builder, one, [0] * kind.count)


def _shuffle(builder: Any, x: Any, order: Sequence[int], y: Any = None) -> Any:
    """Reorder the lanes of a vector, or of two one after the other."""
    lanes = ir.Constant(ir.VectorType(_LANE, len(order)), list(order))
    return builder.shuffle_vector(x, ir.Constant(x.type, ir.Undefined) if y is None else y, lanes)


def _add(builder: Any, x: Any, y: Any) -> Any:
    """Add unsigned numbers with saturation."""
    return _call(builder, f"llvm.uadd.sat.v{x.type.count}i{x.type.element.width}", x, y)


def _call(builder: Any, name: str, x: Any, y: Any) -> Any:
    """Call one of LLVM's functions of two vectors of one type."""
    function = builder.module.globals.get(name)
    if function is None:
        function = ir.Function(builder.module, ir.FunctionType(x.type, [x.type, y.type]), name)
    return builder.call(function, [x, y])
