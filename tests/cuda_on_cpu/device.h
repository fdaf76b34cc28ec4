// What a CUDA kernel source needs in order to compile with g++ and run on the CPU.
//
// Every CUDA thread is a fiber (fibers.cpp). This half is compiled together with the kernel, so the sanitizers and the
// access counters see what a kernel does to memory; the scheduler is not instrumented.
//
// What is checked beyond the result: divergent barriers, collectives that lanes left early, shared memory read before it
// is written (poisoned with 0xFF), shared memory written past its end, asynchronous copies used before they are waited
// for (the bytes land only at the wait), and, under ThreadSanitizer, every missing barrier.
#pragma once
#define CUDA_ON_CPU 1
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <tuple>

#include "../cupy_on_cpu/include/tensor_core.h"

#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __align__(n) alignas(n)

struct uint3 { unsigned x, y, z; };
struct alignas(16) uint4 { unsigned x, y, z, w; };
struct alignas(8) uint2 { unsigned x, y; };

// ---- the scheduler's side, in fibers.cpp ----------------------------------------------------------------------------
uint3 sim_thread_index();
uint3 sim_block_index();
unsigned sim_lane();
void* sim_shared();
enum SimBarrier { SIM_BLOCK = 1, SIM_WARP = 2 };
void sim_wait(SimBarrier which, int line);                      // orders memory, as __syncthreads and __syncwarp do
void sim_exchange(const uint32_t* words, int n, int line);      // gathers words of a warp; orders no memory
uint32_t sim_word_of(unsigned lane, int i);
void sim_copy_later(void* to, const void* from);
void sim_copy_commit();
bool sim_copy_next(int groups_left, void** to, const void** from);
int sim_launch(const unsigned* grid, const unsigned* block, size_t shared, uint64_t seed, void (*body)(void*), void* args);

#define threadIdx (sim_thread_index())
#define blockIdx (sim_block_index())
#define __syncthreads() sim_wait(SIM_BLOCK, __LINE__)
#define __syncwarp() sim_wait(SIM_WARP, __LINE__)

// ---- scalars ----------------------------------------------------------------------------------------------------------
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline float __uint_as_float(unsigned u) { float f; memcpy(&f, &u, 4); return f; }
inline unsigned __float_as_uint(float f) { unsigned u; memcpy(&u, &f, 4); return u; }
inline float fmaf(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
template <class T> inline T min(T a, T b) { return a < b ? a : b; }
template <class T> inline T max(T a, T b) { return a > b ? a : b; }
inline int atomicOr(int* p, int v) { return __atomic_fetch_or(p, v, __ATOMIC_RELAXED); }
inline unsigned atomicAdd(unsigned* p, unsigned v) { return __atomic_fetch_add(p, v, __ATOMIC_RELAXED); }

// ---- warp collectives, full warps only ----------------------------------------------------------------------------------
inline unsigned sim_ballot(bool bit, int line) {
    uint32_t word = bit, all = 0;
    sim_exchange(&word, 1, line);
    for (unsigned lane = 0; lane < 32; ++lane) all |= sim_word_of(lane, 0) << lane;
    return all;
}
inline unsigned sim_match(uint32_t value, int line) {
    unsigned peers = 0;
    sim_exchange(&value, 1, line);
    for (unsigned lane = 0; lane < 32; ++lane) peers |= unsigned(sim_word_of(lane, 0) == value) << lane;
    return peers;
}
inline uint32_t sim_shuffle(uint32_t value, unsigned from, int line) {
    sim_exchange(&value, 1, line);
    return sim_word_of(from, 0);
}
#define __ballot_sync(mask, bit) sim_ballot(bit, __LINE__)
#define __match_any_sync(mask, value) sim_match(value, __LINE__)
#define __shfl_sync(mask, value, from) sim_shuffle(value, (from) & 31u, __LINE__)
#define __shfl_xor_sync(mask, value, bits) sim_shuffle(value, sim_lane() ^ (bits), __LINE__)
#define __shfl_up_sync(mask, value, by) sim_shuffle(value, sim_lane() < (by) ? sim_lane() : sim_lane() - (by), __LINE__)

// ---- what scq_gpu/kernels/cuda/ptx.cuh gives on a GPU -------------------------------------------------------------------
#define DYNAMIC_SHARED(T, name) T* name = static_cast<T*>(sim_shared())
#define COPY16(to, from) sim_copy_later(to, from)
#define COPY_COMMIT() sim_copy_commit()
#define COPY_WAIT(groups_left) sim_copy_wait(groups_left)
inline void sim_copy_wait(int groups_left) {
    void* to;
    const void* from;
    while (sim_copy_next(groups_left, &to, &from)) *static_cast<uint4*>(to) = *static_cast<const uint4*>(from);
}
inline float half_to_float(uint16_t h) { return tensor_core::F16::get(h, 0); }

inline uint16_t float_to_half(float x) { const _Float16 f = _Float16(x); uint16_t h; memcpy(&h, &f, 2); return h; }

// D = A B + D on fragments spread over a warp.
template <class Number> void sim_mma(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], int line) {
    const uint32_t words[6] = {a[0], a[1], a[2], a[3], b[0], b[1]};
    sim_exchange(words, 6, line);
    tensor_core::mma<Number, 4>({&c[0], &c[1], &c[2], &c[3]}, sim_lane(), sim_word_of);
}
#define MMA_TF32(c, a, b) sim_mma<tensor_core::Tf32>(c, a, b, __LINE__)
#define MMA_F16(c, a, b) sim_mma<tensor_core::F16>(c, a, b, __LINE__)
#define MMA_BF16(c, a, b) sim_mma<tensor_core::BF16>(c, a, b, __LINE__)

// ---- exported entry points: one launch and one list of argument sizes a kernel --------------------------------------------
template <class... Args> struct SimCall {
    void (*kernel)(Args...);
    void** args;
    template <size_t... I> void run(std::index_sequence<I...>) { kernel(*static_cast<Args*>(args[I])...); }
    static void body(void* self) { static_cast<SimCall*>(self)->run(std::index_sequence_for<Args...>{}); }
};
template <class... Args>
int sim_call(void (*kernel)(Args...), const unsigned* grid, const unsigned* block, size_t shared, uint64_t seed, void** args) {
    SimCall<Args...> call{kernel, args};
    return sim_launch(grid, block, shared, seed, SimCall<Args...>::body, &call);
}
template <class... Args> int sim_sizes(void (*)(Args...), int* sizes) {
    const int all[] = {int(sizeof(Args))...};
    memcpy(sizes, all, sizeof all);
    return int(sizeof...(Args));
}
#define SIM_EXPORT(kernel)                                                                                                \
    extern "C" int sim_run_##kernel(const unsigned* g, const unsigned* b, size_t shared, uint64_t seed, void** args) {   \
        return sim_call(kernel, g, b, shared, seed, args);                                                                \
    }                                                                                                                     \
    extern "C" int sim_sizes_##kernel(int* sizes) { return sim_sizes(kernel, sizes); }
