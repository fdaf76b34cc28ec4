// Stands in for the sorts that CuPy compiles from Thrust: the functions behind cupy/cuda/thrust.pyx, which is compiled
// as it is, by std::stable_sort. No complex types.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <stdexcept>
#include <vector>

#include "device.h"

namespace {
template <class T>
bool before(const T& a, const T& b) {  // NaN last, as NumPy has it
    if constexpr (std::is_floating_point_v<T> || std::is_same_v<T, _Float16>) {
        if (std::isnan(float(a))) return false;
        if (std::isnan(float(b))) return true;
    }
    return a < b;
}
template <class F>
void by_type(int id, F f) {
    switch (id) {
        case 0: return f(int8_t());
        case 1: return f(uint8_t());
        case 2: return f(int16_t());
        case 3: return f(uint16_t());
        case 4: return f(int32_t());
        case 5: return f(uint32_t());
        case 6: return f(int64_t());
        case 7: return f(uint64_t());
        case 8: return f(_Float16());
        case 9: return f(float());
        case 10: return f(double());
        case 13: return f(uint8_t());
        default: throw std::runtime_error("the stand-in does not sort complex numbers");
    }
}
}  // namespace

void thrust_sort(int type, void* data, size_t*, const std::vector<ptrdiff_t>& shape, intptr_t stream, void*) {
    standin::count("thrust sort");
    const ptrdiff_t width = shape.back();
    ptrdiff_t rows = 1;
    for (size_t i = 0; i + 1 < shape.size(); ++i) rows *= shape[i];
    by_type(type, [&](auto zero) {
        using T = decltype(zero);
        standin::enqueue(reinterpret_cast<void*>(stream), [=] {
            T* p = static_cast<T*>(data);
            for (ptrdiff_t r = 0; r < rows; ++r) std::stable_sort(p + r * width, p + (r + 1) * width, before<T>);
        });
    });
}
void thrust_argsort(int type, size_t* index, void* data, void*, const std::vector<ptrdiff_t>& shape, intptr_t stream,
                    void*) {
    standin::count("thrust argsort");
    const ptrdiff_t width = shape.back();
    ptrdiff_t rows = 1;
    for (size_t i = 0; i + 1 < shape.size(); ++i) rows *= shape[i];
    by_type(type, [&](auto zero) {
        using T = decltype(zero);
        standin::enqueue(reinterpret_cast<void*>(stream), [=] {
            for (ptrdiff_t r = 0; r < rows; ++r) {
                T* p = static_cast<T*>(data) + r * width;
                size_t* out = index + r * width;
                std::iota(out, out + width, size_t(0));
                std::stable_sort(out, out + width, [p](size_t a, size_t b) { return before<T>(p[a], p[b]); });
                std::vector<T> sorted(static_cast<size_t>(width));
                for (ptrdiff_t i = 0; i < width; ++i) sorted[size_t(i)] = p[out[i]];
                std::copy(sorted.begin(), sorted.end(), p);
            }
        });
    });
}
void thrust_lexsort(int type, size_t* index, void* keys, size_t k, size_t n, intptr_t stream, void*) {
    standin::count("thrust lexsort");
    by_type(type, [&](auto zero) {
        using T = decltype(zero);
        standin::enqueue(reinterpret_cast<void*>(stream), [=] {
            std::iota(index, index + n, size_t(0));
            for (size_t i = 0; i < k; ++i) {
                const T* p = static_cast<const T*>(keys) + i * n;
                std::stable_sort(index, index + n, [p](size_t a, size_t b) { return before<T>(p[a], p[b]); });
            }
        });
    });
}
