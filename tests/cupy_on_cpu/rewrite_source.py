"""CUDA C++ that g++ cannot take, or would make slow, as C++ that it can: pure functions from text to text.

Not a parser: the rewriting of CuPy's own kernels matches the text that CuPy 14 generates, and what does not match runs
as it is, every thread a fiber. Inline PTX that is not in the table is an error.
"""

from __future__ import annotations

import re

_MMA = r"\{%0,%1,%2,%3\},\{%4,%5,%6,%7\},\{%8,%9\},\{%0,%1,%2,%3\};"
# instruction: the function of include/ptx.h that takes its operands in the order %0, %1, ...
_PTX = {
    r"cp\.async\.cg\.shared\.global \[%0\], \[%1\], 16;": "sim_cp_async_16",
    r"cp\.async\.commit_group;": "sim_cp_async_commit",
    r"cp\.async\.wait_group %0;": "sim_cp_async_wait",
    r"cvt\.f32\.f16 %0, %1;": "sim_cvt_f32_f16",
    r"cvt\.rn\.f16\.f32 %0, %1;": "sim_cvt_rn_f16_f32",
    rf"mma\.sync\.aligned\.m16n8k8\.row\.col\.f32\.tf32\.tf32\.f32 {_MMA}": "sim_mma_m16n8k8_tf32",
    rf"mma\.sync\.aligned\.m16n8k16\.row\.col\.f32\.bf16\.bf16\.f32 {_MMA}": "sim_mma_m16n8k16_bf16",
    rf"mma\.sync\.aligned\.m16n8k16\.row\.col\.f32\.f16\.f16\.f32 {_MMA}": "sim_mma_m16n8k16_f16",
    r"mma\.sync\.aligned\.m16n8k8\.row\.col\.f32\.f16\.f16\.f32 "
    r"\{%0,%1,%2,%3\},\{%4,%5\},\{%6\},\{%0,%1,%2,%3\};": "sim_mma_m16n8k8_f16",
}
_INTEGER_TYPEDEF = re.compile(
    r"^\s*typedef\s+(?:unsigned\s+|signed\s+)?(?:char|short|int|long long)\s+u?int(?:8|16|32|64)_t;\s*$", re.M
)
_DYNAMIC_SHARED = re.compile(r"extern\s+__shared__\s+(?:__align__\s*\(\s*\d+\s*\)\s*)?([\w:<>\s]+?)\s*(\w+)\s*\[\s*\]")
_KERNEL = re.compile(r"__global__\s+(?:static\s+)?void\s*(?:__launch_bounds__\s*\([^)]*\)\s*)?(\w+)\s*\(")
_TREE_REDUCTION = re.compile(
    r"  unsigned int _tid = threadIdx\.x;\n(?P<offsets>.*?)"
    r"(?P<loop>  for \(ptrdiff_t _i_base.*?\) \{\n)(?P<own>    _type_reduce _s = .*?)    _sdata\[_tid\] = _s;\n"
    r"    __syncthreads\(\);\n(?P<tree>    for \(unsigned int _block = (?P<size>\d+) / 2;.*?\) \{\n)"
    r".*?    if \(_tid < _block_stride\) \{\n.*?\n    \}\n"
    r"(?P<write>    if \(_tid < _block_stride && _i < _out_ind\.size\(\)\) \{.*?\n    \}\n)  \}\n\}",
    re.S,
)
_SCAN = re.compile(
    r'extern "C" __global__ void (cupy_bsum_shfl|cupy_bsum_smem|cupy_scan_naive|cupy_scan_btree)\((.*?)\) \{', re.S
)


def without_comments(text: str) -> str:
    """The code alone."""
    return re.sub(r"//.*?$|/\*.*?\*/", "", text, flags=re.M | re.S)


def without_integer_typedefs(text: str) -> str:
    """Kernels for NVRTC, which has no <cstdint>, define its names themselves; here they are there already."""
    return _INTEGER_TYPEDEF.sub("", text)


def point_to_dynamic_shared(text: str) -> str:
    """``extern __shared__ T name[]`` as a pointer to the memory of the launch."""
    return _DYNAMIC_SHARED.sub(r"\1* \2 = reinterpret_cast<\1*>(sim_state.shared)", text)


def kernel_names(text: str) -> list[str]:
    """The kernels of a source that are no templates."""
    code = without_comments(text)
    names = []
    for match in _KERNEL.finditer(code):
        before = code[: match.start()]
        if "template" not in before[max(before.rfind(";"), before.rfind("}"), 0) :]:
            names.append(match[1])
    return names


def serial_reduction(text: str) -> str | None:
    """A tree reduction of cupy/_core/_reduction.pyx, barrier by barrier in one thread; None for other kernels.

    The same sums in the same order.
    """
    match = _TREE_REDUCTION.search(text)
    if not match:
        return None
    body = f"""{match["loop"]}    for (unsigned int _tid = 0; _tid < {match["size"]}; ++_tid) {{
{match["offsets"]}{match["own"]}    _sdata[_tid] = _s;
    }}
{match["tree"]}      for (unsigned int _tid = 0; _tid < _block; ++_tid) {{ _REDUCE(_block); }}
    }}
    for (unsigned int _tid = 0; _tid < _block_stride; ++_tid) {{
    _type_reduce _s = _sdata[_tid];
    ptrdiff_t _i = _i_base + (_tid & (_block_stride - 1));
{match["write"]}    }}
  }}
}}"""
    return text[: match.start()] + body + text[match.end() :]


def serial_scan(text: str) -> str | None:
    """A scan kernel of cupy/_core/_routines_math.pyx as loops; None for other kernels."""
    match = _SCAN.search(text)
    if not match:
        return None
    body = text[match.end() :]
    op = re.search(r"x ([+*])= ", body)[1]
    size = int(re.search(r"n_warp = (\d+) / \d+", body)[1])
    identity = {"+": 0, "*": 1}[op]
    if "bsum" in match[1]:  # the total of every two blocks
        loops = f"""
  for (ptrdiff_t k = 0; k * {2 * size} < a.size(); ++k) {{
    O x = {identity};
    for (ptrdiff_t i = k * {2 * size}; i < a.size() && i < (k + 1) * {2 * size}; ++i) x {op}= a[i];
    b[k] = x;
  }}
}}
"""
    else:  # the scan of every block, from the total before it
        loops = f"""
  for (ptrdiff_t k = 0; k * {size} < a.size(); ++k) {{
    O x = {identity};
    const O before = k ? O(b[k - 1]) : O({identity});
    for (ptrdiff_t i = k * {size}; i < a.size() && i < (k + 1) * {size}; ++i) {{
      x {op}= a[i];
      out[i] = before {op} x;
    }}
  }}
}}
"""
    return text[: match.end()] + loops


def serial_loops(text: str) -> str:
    """A source whose CUPY_FOR loops are one plain loop."""
    includes = list(re.finditer(r"^\s*#include\s*<cupy/.*$", text, re.M))
    at = includes[-1].end() if includes else 0
    loop = "#undef CUPY_FOR\n#define CUPY_FOR(i, n) for (ptrdiff_t i = 0; i < (n); ++i)\n"
    return f"{text[:at]}\n#include <cupy/carray.cuh>\n{loop}{text[at:]}"


def call_for_ptx(text: str) -> str:
    """Every asm statement of a preprocessed source as a call of a function in include/ptx.h."""
    out, at = [], 0
    for match in re.finditer(r"\basm\s+(?:volatile\s*)?\(|\basm\s*\(", text):
        end = _closing(text, match.end())
        template, *operands = _split(text[match.end() : end - 1], ":")
        instruction = re.sub(r"\s+", " ", "".join(re.findall(r'"([^"]*)"', template)).strip())
        values = [
            re.fullmatch(r'\s*"[^"]*"\s*\((.*)\)\s*', operand, re.S)[1]
            for section in operands[:2]  # written, read; what follows are clobbers
            for operand in _split(section, ",")
            if operand.strip()
        ]
        function = next((name for pattern, name in _PTX.items() if re.fullmatch(pattern, instruction)), None)
        if function is None:
            raise ValueError(f"the stand-in does not know this PTX: {instruction}")
        out += [text[at : match.start()], f"{function}({', '.join(values)})"]
        at = end
    return "".join([*out, text[at:]])


def _closing(text: str, start: int) -> int:
    """The end of the parenthesis whose inside begins at start."""
    depth, end, quoted = 1, start, False
    while depth:
        if text[end] == '"':
            quoted = not quoted
        elif not quoted:
            depth += {"(": 1, ")": -1}.get(text[end], 0)
        end += 1
    return end


def _split(text: str, separator: str) -> list[str]:
    """Split at separators outside of brackets and strings."""
    parts, depth, quoted, current = [], 0, False, ""
    for i, c in enumerate(text):
        if c == '"' and (i == 0 or text[i - 1] != "\\"):
            quoted = not quoted
        if not quoted:
            depth += (c in "([{") - (c in ")]}")
        if c == separator and not quoted and depth == 0:
            parts.append(current)
            current = ""
        else:
            current += c
    return [*parts, current]
