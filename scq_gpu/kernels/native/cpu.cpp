// Which instruction sets this build has kernels for, and which of them this processor has.
#include <cstring>

#include "kernels.h"

#define SCQ_DECLARE(isa)                                                                                            \
  namespace scq::isa {                                                                                              \
  void to_blocks(const uint8_t*, int64_t, int64_t, uint8_t*);                                                       \
  void to_rows(const uint8_t*, int64_t, int64_t, uint8_t*);                                                         \
  bool nearest(const Call&, const std::vector<Part>&, int64_t, const uint8_t*, int64_t, int64_t, int32_t*, int64_t*); \
  bool within(const Call&, const std::vector<Part>&, int64_t, const uint8_t*, int64_t, int64_t, std::vector<Pairs>&); \
  bool least(const Call&, const std::vector<Part>&, int64_t, const Tables&, int64_t, float*, int64_t*);             \
  bool cells(const Call&, const std::vector<Part>&, int64_t, const float*, int64_t, int64_t, int64_t, float*, int64_t*); \
  bool rank(const Call&, const uint8_t*, int64_t, int64_t, const uint8_t*, int64_t, const uint64_t*,                \
            const uint64_t*, int64_t, bool, int, int64_t, int64_t, int64_t*, int64_t*, double*, int64_t*);          \
  bool encode(const Call&, const void*, int64_t, int64_t, char, const void*, int64_t, int64_t, int64_t, int64_t,    \
              const void*, bool, uint8_t*, bool*);                                                                  \
  bool quantize(const Call&, const void*, int64_t, int64_t, char, const Quantizer&, uint8_t*, bool*);               \
  bool add_by_cell(const Call&, const uint8_t*, const void*, bool, int64_t, int64_t, int64_t, double*);             \
  }
#define SCQ_KERNELS(isa) \
  { #isa, isa::to_blocks, isa::to_rows, isa::nearest, isa::within, isa::least, isa::cells, isa::rank, isa::encode, \
    isa::quantize, isa::add_by_cell }

#if defined(SCQ_X86)
SCQ_DECLARE(avx512)
SCQ_DECLARE(avx2)
#endif
#if defined(SCQ_ARM)
SCQ_DECLARE(neon)
#endif
SCQ_DECLARE(base)

namespace scq {
namespace {

// the best first
const Kernels ALL[] = {
#if defined(SCQ_X86)
    SCQ_KERNELS(avx512),
    SCQ_KERNELS(avx2),
#endif
#if defined(SCQ_ARM)
    SCQ_KERNELS(neon),
#endif
    SCQ_KERNELS(base),
};

bool runs_here(const char* name) {
#if defined(SCQ_X86) && !defined(SCQ_EMULATED)
  __builtin_cpu_init();
  bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
  if (!std::strcmp(name, "avx2")) return avx2;
  if (!std::strcmp(name, "avx512"))
    return avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
#endif
  return name != nullptr;
}

}  // namespace

const Kernels* kernels(const char* name) {
  for (const Kernels& some : ALL)
    if (!std::strcmp(some.name, name) && runs_here(name)) return &some;
  return nullptr;
}

std::vector<const char*> available() {
  std::vector<const char*> names;
  for (const Kernels& some : ALL)
    if (runs_here(some.name)) names.push_back(some.name);
  return names;
}

}  // namespace scq
