// Stands in for what NVRTC knows without an include: CUDA's keywords, types and functions, for g++. compile_kernel.py
// puts it before every kernel source.
//
// Not there: textures, clocks, cooperative groups, dynamic parallelism, surfaces, and functions that neither CuPy's
// kernels nor ours use. Fast functions (__expf, ...) are the exact ones.
#pragma once
#include <assert.h>
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <limits>
#include <tuple>
#include <type_traits>
#include <utility>

#include "fibers.h"

#define __CUDACC_VER_MAJOR__ 13
#define __CUDACC_VER_MINOR__ 0
#define __global__
#define __device__
#define __host__
#define __constant__ __attribute__((visibility("default"))) /* found by name: RawModule.get_global */
#define __shared__ static /* blocks run one after the other */
#define __managed__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))
#define __grid_constant__

#define threadIdx sim_state.thread
#define blockIdx sim_state.block
#define blockDim sim_state.block_size
#define gridDim sim_state.grid_size
constexpr int warpSize = 32;

// ---- types
// ------------------------------------------------------------------------------------------------------------
#define SIM_VECTORS(T, name, align2, align4)                           \
    struct name##1 { T x; };                                           \
    struct alignas(align2) name##2 { T x, y; };                        \
    struct name##3 { T x, y, z; };                                     \
    struct alignas(align4) name##4 { T x, y, z, w; };                  \
    inline name##2 make_##name##2(T x, T y) { return {x, y}; }         \
    inline name##3 make_##name##3(T x, T y, T z) { return {x, y, z}; } \
    inline name##4 make_##name##4(T x, T y, T z, T w) { return {x, y, z, w}; }
SIM_VECTORS(signed char, char, 2, 4)
SIM_VECTORS(unsigned char, uchar, 2, 4)
SIM_VECTORS(short, short, 4, 8)
SIM_VECTORS(unsigned short, ushort, 4, 8)
SIM_VECTORS(int, int, 8, 16)
SIM_VECTORS(unsigned, uint, 8, 16)
SIM_VECTORS(long long, longlong, 16, 16)
SIM_VECTORS(unsigned long long, ulonglong, 16, 16)
SIM_VECTORS(float, float, 8, 16)
SIM_VECTORS(double, double, 16, 16)
struct dim3 {
    unsigned x = 1, y = 1, z = 1;
};

// ---- numbers
// ----------------------------------------------------------------------------------------------------------
template <class To, class From>
inline To sim_bits(From from) {
    static_assert(sizeof(To) == sizeof(From));
    To to;
    memcpy(&to, &from, sizeof to);
    return to;
}
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
inline int __clz(int x) { return x ? __builtin_clz(unsigned(x)) : 32; }
inline int __clzll(long long x) { return x ? __builtin_clzll((unsigned long long)x) : 64; }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __ffsll(long long x) { return __builtin_ffsll(x); }
inline unsigned __brev(unsigned x) {
    unsigned r = 0;
    for (int i = 0; i < 32; ++i) r |= (x >> i & 1u) << (31 - i);
    return r;
}
inline float __uint_as_float(unsigned u) { return sim_bits<float>(u); }
inline unsigned __float_as_uint(float f) { return sim_bits<unsigned>(f); }
inline float __int_as_float(int u) { return sim_bits<float>(u); }
inline int __float_as_int(float f) { return sim_bits<int>(f); }
inline double __longlong_as_double(long long u) { return sim_bits<double>(u); }
inline long long __double_as_longlong(double f) { return sim_bits<long long>(f); }
inline unsigned __umulhi(unsigned a, unsigned b) { return unsigned((unsigned long long)a * b >> 32); }
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
    return (unsigned long long)((unsigned __int128)a * b >> 64);
}
inline float __fmaf_rn(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
inline float __fmul_rn(float a, float b) {
    volatile float r = a * b;
    return r;
}
inline float __fadd_rn(float a, float b) {
    volatile float r = a + b;
    return r;
}
inline double __dmul_rn(double a, double b) {
    volatile double r = a * b;
    return r;
}
inline double __dadd_rn(double a, double b) {
    volatile double r = a + b;
    return r;
}
inline float __expf(float x) { return expf(x); }
inline float __logf(float x) { return logf(x); }
inline float __fdividef(float a, float b) { return a / b; }
inline float rsqrtf(float x) { return 1 / sqrtf(x); }
inline float rsqrt(float x) { return 1 / sqrtf(x); }
inline double rsqrt(double x) { return 1 / sqrt(x); }
template <class T>
inline T __ldg(const T* p) {
    return *p;
}
template <class A, class B, class = std::enable_if_t<std::is_arithmetic_v<A> && std::is_arithmetic_v<B>>>
inline std::common_type_t<A, B> min(A a, B b) {
    using T = std::common_type_t<A, B>;
    if constexpr (std::is_floating_point_v<T>)
        return std::fmin(T(a), T(b));
    else
        return T(a) < T(b) ? T(a) : T(b);
}
template <class A, class B, class = std::enable_if_t<std::is_arithmetic_v<A> && std::is_arithmetic_v<B>>>
inline std::common_type_t<A, B> max(A a, B b) {
    using T = std::common_type_t<A, B>;
    if constexpr (std::is_floating_point_v<T>)
        return std::fmax(T(a), T(b));
    else
        return T(a) > T(b) ? T(a) : T(b);
}

// ---- atomics: threads run one at a time
// ---------------------------------------------------------------------------------
#define SIM_ATOMIC(T, name, value) \
    inline T name(T* p, T v) {     \
        const T old = *p;          \
        *p = value;                \
        return old;                \
    }
#define SIM_ATOMICS(T)                          \
    SIM_ATOMIC(T, atomicExch, v)                \
    SIM_ATOMIC(T, atomicMin, v < old ? v : old) \
    SIM_ATOMIC(T, atomicMax, v > old ? v : old) \
    SIM_ATOMIC(T, atomicAnd, old& v)            \
    SIM_ATOMIC(T, atomicOr, old | v)            \
    SIM_ATOMIC(T, atomicXor, old ^ v)           \
    inline T atomicCAS(T* p, T expected, T v) { \
        const T old = *p;                       \
        if (old == expected) *p = v;            \
        return old;                             \
    }
SIM_ATOMICS(int)
SIM_ATOMICS(unsigned)
SIM_ATOMICS(unsigned long long)
SIM_ATOMIC(long long, atomicMin, v < old ? v : old)
SIM_ATOMIC(long long, atomicMax, v > old ? v : old)
SIM_ATOMIC(int, atomicAdd, old + v)
SIM_ATOMIC(unsigned, atomicAdd, old + v)
SIM_ATOMIC(unsigned long long, atomicAdd, old + v)
SIM_ATOMIC(float, atomicAdd, old + v)
SIM_ATOMIC(double, atomicAdd, old + v)
SIM_ATOMIC(int, atomicSub, old - v)
SIM_ATOMIC(unsigned, atomicSub, old - v)
inline void __threadfence() {}
inline void __threadfence_block() {}
inline void __threadfence_system() {}

#include "warp.h"
#include "ptx.h"

// ---- entry points
// -------------------------------------------------------------------------------------------------------
template <class... Args>
struct SimCall {
    template <size_t... I>
    static void run(void (*kernel)(Args...), void** args, std::index_sequence<I...>) {
        kernel(*static_cast<std::remove_reference_t<Args>*>(args[I])...);
    }
};
template <class... Args>
inline void sim_call(void (*kernel)(Args...), void** args) {
    SimCall<Args...>::run(kernel, args, std::index_sequence_for<Args...>{});
}
template <class... Args>
inline int sim_sizes(void (*)(Args...), int* sizes) {
    const int all[] = {int(sizeof(Args))..., 0};
    memcpy(sizes, all, sizeof all);
    return int(sizeof...(Args));
}
#define SIM_EXPORT(kernel, name)                                                                                   \
    extern "C" __attribute__((visibility("default"))) void sim_run_##name(void** args) { sim_call(kernel, args); } \
    extern "C" __attribute__((visibility("default"))) int sim_sizes_##name(int* sizes) {                           \
        return sim_sizes(kernel, sizes);                                                                           \
    }
#define SIM_MODE(mode) extern "C" __attribute__((visibility("default"))) const int sim_mode = mode;
