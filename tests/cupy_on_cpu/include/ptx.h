// Stands in for the inline PTX of our kernels: rewrite_source.py turns every asm statement into one of these calls,
// operands in the order %0, %1, ..., those that are written by reference.
// Bytes of a cp.async land when they are waited for.
#pragma once
#include "fibers.h"
#include "tensor_core.h"

inline size_t __cvta_generic_to_shared(const void* p) {
    return size_t(static_cast<const char*>(p) - static_cast<char*>(sim_state.shared));
}

namespace sim {
template <class Number, int A_WORDS>
inline void mma(float& c0, float& c1, float& c2, float& c3, const uint32_t* words) {
    sim_exchange(0xffffffffu, words, A_WORDS + A_WORDS / 2);
    tensor_core::mma<Number, A_WORDS>({&c0, &c1, &c2, &c3}, sim_state.lane, sim_word);
}
}  // namespace sim
inline void sim_cp_async_16(uint32_t to, const void* from) {
    if (to % 16 || uintptr_t(from) % 16) {
        fprintf(stderr, "stand-in: misaligned cp.async\n");
        abort();
    }
    sim_async_copy(static_cast<char*>(sim_state.shared) + to, from);
}
inline void sim_cp_async_commit() { sim_async_commit(); }
inline void sim_cp_async_wait(int left) { sim_async_wait(left); }
inline void sim_cvt_f32_f16(float& to, uint16_t from) { to = tensor_core::F16::get(from, 0); }
inline void sim_cvt_rn_f16_f32(uint16_t& to, float from) {
    const _Float16 f = _Float16(from);
    memcpy(&to, &f, 2);
}
#define SIM_MMA4(name, type)                                                                                         \
    inline void name(float& c0, float& c1, float& c2, float& c3, uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, \
                     uint32_t b0, uint32_t b1) {                                                                     \
        const uint32_t words[6] = {a0, a1, a2, a3, b0, b1};                                                          \
        sim::mma<type, 4>(c0, c1, c2, c3, words);                                                                    \
    }
SIM_MMA4(sim_mma_m16n8k8_tf32, tensor_core::Tf32)
SIM_MMA4(sim_mma_m16n8k16_f16, tensor_core::F16)
SIM_MMA4(sim_mma_m16n8k16_bf16, tensor_core::BF16)
inline void sim_mma_m16n8k8_f16(float& c0, float& c1, float& c2, float& c3, uint32_t a0, uint32_t a1, uint32_t b0) {
    const uint32_t words[3] = {a0, a1, b0};
    sim::mma<tensor_core::F16, 2>(c0, c1, c2, c3, words);
}
