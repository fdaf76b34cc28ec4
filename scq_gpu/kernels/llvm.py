"""Machine code for this processor from LLVM modules, in memory and within hundredths of a second.

numba would take most of a second for the same: it is imported, infers types and runs every optimization. Modules here
are written as they are to run, so instructions are only selected and scheduled. Imported only where llvmlite is used.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import threading
from collections.abc import Callable, Iterator
from typing import Any

from llvmlite import binding, ir

INDEX = ir.IntType(64)
_compiling = threading.Lock()


def function(name: str, n_arguments: int) -> tuple[ir.Function, ir.IRBuilder]:
    """A function of integers and addresses that returns an integer, in a module of its own, and its builder."""
    module = ir.Module(name)
    made = ir.Function(module, ir.FunctionType(INDEX, [INDEX] * n_arguments), name)
    return made, ir.IRBuilder(made.append_basic_block("start"))


@contextlib.contextmanager
def loop(builder: ir.IRBuilder, start: Any, end: Any, step: int, values: list[Any]) -> Iterator[Any]:
    """Build what the ``with`` block builds inside ``for i in range(start, end, step)``; gives i.

    The block finds in ``values`` those of this round, and leaves there those of the next; then they are the last ones.
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
    for phi, following in zip(phis, (builder.add(i, INDEX(step)), *values), strict=True):
        phi.add_incoming(following, builder.block)
    builder.branch(head)
    builder.position_at_end(after)
    values[:] = phis[1:]


def pointer(builder: ir.IRBuilder, address: Any, kind: ir.Type) -> Any:
    """An address as a pointer to values of that type."""
    return builder.inttoptr(address, kind.as_pointer())


def compiled(build: Callable[..., ir.Function], *arguments: Any) -> Callable[..., int]:
    """The function ``build(*arguments)``, to be called with integers, without the GIL; compiled once per process."""
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
    call.engine = engine  # whose memory the code is in
    return call  # type: ignore[no-any-return]


def _features() -> str:
    """What the processor can do, or what numba is told of it by variables of the environment."""
    generic = os.environ.get("NUMBA_CPU_NAME", "").lower() == "generic"
    told = os.environ.get("NUMBA_CPU_FEATURES", "" if generic else None)
    if told is not None:
        return told
    try:
        return str(binding.get_host_cpu_features().flatten())
    except RuntimeError:  # not known for this architecture
        return ""
