// The few things CUDA C++ has no word for. Each wraps one instruction, because these strings are compiled but not executed
// where there is no GPU: the simulator in tests/cuda_on_cpu supplies its own versions and skips this file.
#ifndef CUDA_ON_CPU
#if defined(__NVCC__) && !defined(__CUDACC_RTC__)
#include <cstdint>
#else  // NVRTC, which is what CuPy compiles with, has no headers
typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef unsigned int uint32_t;
typedef long long int64_t;
#endif

// All shared memory is dynamic; the host says how much (scq_gpu/kernels/cuda/geometry.py).
#define DYNAMIC_SHARED(T, name)                          \
    extern __shared__ __align__(16) uint8_t bytes_of_shared[]; \
    T* name = reinterpret_cast<T*>(bytes_of_shared)

// Copies 16 aligned bytes from global to shared memory: asynchronously, past the registers, where the hardware can.
#if __CUDA_ARCH__ >= 800
#define COPY16(to, from)                                         \
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::  \
                 "r"((uint32_t)__cvta_generic_to_shared(to)), "l"(from) : "memory")
#define COPY_COMMIT() asm volatile("cp.async.commit_group;" ::: "memory")
#define COPY_WAIT(groups_left) asm volatile("cp.async.wait_group %0;" ::"n"(groups_left) : "memory")
#else
#define COPY16(to, from) (*reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(from))
#define COPY_COMMIT()
#define COPY_WAIT(groups_left)
#endif

__device__ __forceinline__ float half_to_float(uint16_t half) {
    float x;
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(half));
    return x;
}

__device__ __forceinline__ uint16_t float_to_half(float x) {
    uint16_t half;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(half) : "f"(x));
    return half;
}

// c += a b on tensor cores, a 16 x 8 words, b 8 words x 8 columns; a word is one tf32 or two 16-bit numbers.
#define MMA_C(c) "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
#define MMA_AB(a, b) "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1])
#define MMA(shape_and_types, c, a, b)                                                               \
    asm volatile("mma.sync.aligned." shape_and_types                                                \
                 " {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};" : MMA_C(c) : MMA_AB(a, b))
#define MMA_TF32(c, a, b) MMA("m16n8k8.row.col.f32.tf32.tf32.f32", c, a, b)
#define MMA_BF16(c, a, b) MMA("m16n8k16.row.col.f32.bf16.bf16.f32", c, a, b)
#if __CUDA_ARCH__ >= 800
#define MMA_F16(c, a, b) MMA("m16n8k16.row.col.f32.f16.f16.f32", c, a, b)
#else  // sm_75 has half the depth: first words 0-3 of every row, then words 4-7
#define MMA_HALF(c, a0, a1, b0)                                                    \
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32"                \
                 " {%0,%1,%2,%3},{%4,%5},{%6},{%0,%1,%2,%3};" : MMA_C(c) : "r"(a0), "r"(a1), "r"(b0))
#define MMA_F16(c, a, b) do { MMA_HALF(c, a[0], a[1], b[0]); MMA_HALF(c, a[2], a[3], b[1]); } while (0)
#endif
#endif
