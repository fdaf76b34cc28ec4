// From a kernel of a compiled module to its threads: driver.cpp asks, fibers.cpp does it.
#pragma once
#include <cstddef>
#include <string>

#include "fibers.h"

namespace standin {
// Returns what went wrong, or nothing. `args` are pointers to the kernel's arguments.
std::string run_grid(SimMode mode, void (*run)(void** args), void** args, SimIndex grid, SimIndex block, size_t shared);
}  // namespace standin
