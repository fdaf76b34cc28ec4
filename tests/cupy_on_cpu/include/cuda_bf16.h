// Stands in for CUDA's cuda_bf16.h, as far as CuPy's cupy/bfloat16.cuh asks: conversions. No arithmetic functions, no
// __nv_bfloat162.
#pragma once
#include <string.h>
struct __nv_bfloat16 {
    unsigned short bits;
    __nv_bfloat16() = default;
    __nv_bfloat16(float v) {
        unsigned u;
        memcpy(&u, &v, 4);
        bits = (u & 0x7fffffffu) > 0x7f800000u ? 0x7fff : (unsigned short)((u + 0x7fffu + (u >> 16 & 1u)) >> 16);
    }
    operator float() const {
        unsigned u = unsigned(bits) << 16;
        float f;
        memcpy(&f, &u, 4);
        return f;
    }
};
inline unsigned short __bfloat16_as_ushort(__nv_bfloat16 v) { return v.bits; }
inline __nv_bfloat16 __ushort_as_bfloat16(unsigned short x) {
    __nv_bfloat16 v;
    v.bits = x;
    return v;
}
inline bool __hisnan(__nv_bfloat16 v) { return (v.bits & 0x7fff) > 0x7f80; }
inline bool __hisinf(__nv_bfloat16 v) { return (v.bits & 0x7fff) == 0x7f80; }
