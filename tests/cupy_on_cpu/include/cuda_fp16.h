// Stands in for CUDA's cuda_fp16.h, as far as CuPy's cupy/float16.cuh asks: conversions by _Float16. No arithmetic
// functions, no __half2.
#pragma once
#include <string.h>
struct __half_raw {
    unsigned short x;
};
struct __half {
    _Float16 value;
    __half() = default;
    __half(float v) : value(_Float16(v)) {}
    explicit __half(double v) : value(_Float16(v)) {}
    explicit __half(int v) : value(_Float16(float(v))) {}
    explicit __half(unsigned v) : value(_Float16(float(v))) {}
    explicit __half(long long v) : value(_Float16(float(v))) {}
    explicit __half(unsigned long long v) : value(_Float16(float(v))) {}
    __half(const __half_raw& raw) { memcpy(&value, &raw.x, 2); }
    operator float() const { return float(value); }
    operator __half_raw() const {
        __half_raw raw;
        memcpy(&raw.x, &value, 2);
        return raw;
    }
};
typedef __half half;
inline unsigned short __half_as_ushort(__half h) { return __half_raw(h).x; }
inline __half __ushort_as_half(unsigned short x) { return __half(__half_raw{x}); }
inline __half __float2half(float x) { return __half(x); }
inline __half __float2half_rn(float x) { return __half(x); }
inline float __half2float(__half h) { return float(h); }
