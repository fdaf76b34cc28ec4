// Stands in for the inline PTX of our kernels: rewrite_source.py turns every asm statement into one of these calls,
// operands in the order %0, %1, ..., those that are written by reference.
//
// Not there: how tensor cores round. Sums of an mma are taken in double and rounded once; TF32 operands lose their low
// bits here, as in hardware. Bytes of a cp.async land when they are waited for.
#pragma once
#include "fibers.h"

inline size_t __cvta_generic_to_shared(const void* p) {
    return size_t(static_cast<const char*>(p) - static_cast<char*>(sim_state.shared));
}

namespace sim {
inline float half(uint16_t h) {
    _Float16 f;
    memcpy(&f, &h, 2);
    return float(f);
}
struct Tf32 {
    static constexpr int per_word = 1;
    static float get(uint32_t w, int) { return __uint_as_float(w & 0xffffe000u); }
};
struct F16 {
    static constexpr int per_word = 2;
    static float get(uint32_t w, int i) { return half(uint16_t(w >> 16 * i)); }
};
struct BF16 {
    static constexpr int per_word = 2;
    static float get(uint32_t w, int i) { return __uint_as_float(w >> 16 * i << 16); }
};
// mma.sync.m16n8k8 (tf32) and m16n8k16 (f16, bf16), fragments as the PTX manual lays them out: element (row, k) of A is
// in lane 4 (row % 8) + k' % 4 where k' counts words, in register row / 8 + 2 (k' / 4); B is (k, column) in lane 4
// column + k' % 4, register k' / 4; C is (row, column) in lane 4 (row % 8) + column / 2, register column % 2 + 2 (row /
// 8).
template <class Number, int A_WORDS>
inline void mma(float& c0, float& c1, float& c2, float& c3, const uint32_t* words) {
    constexpr int DEPTH = A_WORDS * 2;  // words along k
    const unsigned lane = sim_state.lane;
    sim_exchange(0xffffffffu, words, A_WORDS + A_WORDS / 2);
    float* c[4] = {&c0, &c1, &c2, &c3};
    for (int e = 0; e < 4; ++e) {
        const unsigned row = lane / 4 + 8 * unsigned(e / 2), column = lane % 4 * 2 + unsigned(e % 2);
        double sum = *c[e];
        for (unsigned k = 0; k < DEPTH; ++k)
            for (int i = 0; i < Number::per_word; ++i)
                sum += double(Number::get(sim_word(row % 8 * 4 + k % 4, int(row / 8 + k / 4 * 2)), i)) *
                       double(Number::get(sim_word(column * 4 + k % 4, int(A_WORDS + k / 4)), i));
        *c[e] = float(sum);
    }
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
inline void sim_cvt_f32_f16(float& to, uint16_t from) { to = sim::half(from); }
#define SIM_MMA4(name, type)                                                                                         \
    inline void name(float& c0, float& c1, float& c2, float& c3, uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, \
                     uint32_t b0, uint32_t b1) {                                                                     \
        const uint32_t words[6] = {a0, a1, a2, a3, b0, b1};                                                          \
        sim::mma<type, 4>(c0, c1, c2, c3, words);                                                                    \
    }
SIM_MMA4(sim_mma_m16n8k8_tf32, sim::Tf32)
SIM_MMA4(sim_mma_m16n8k16_f16, sim::F16)
SIM_MMA4(sim_mma_m16n8k16_bf16, sim::BF16)
inline void sim_mma_m16n8k8_f16(float& c0, float& c1, float& c2, float& c3, uint32_t a0, uint32_t a1, uint32_t b0) {
    const uint32_t words[3] = {a0, a1, b0};
    sim::mma<sim::F16, 2>(c0, c1, c2, c3, words);
}
