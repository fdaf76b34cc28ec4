// Stands in for libcurand.so.10: numbers of the right distribution by the C++ library, not those that cuRAND gives for
// the same seed. Offsets and orderings are ignored.
#include <cstdint>
#include <random>

#include "device.h"

namespace {
struct Generator {
    std::mt19937_64 engine;
    void* stream = nullptr;
};
template <class T, class D>
int fill(Generator* g, T* out, size_t n, D make) {
    standin::count("curand calls");
    standin::enqueue(g->stream, [=] {
        D draw = make;
        for (size_t i = 0; i < n; ++i) out[i] = T(draw(g->engine));
    });
    return 0;
}
}  // namespace
extern "C" {
int curandCreateGenerator(Generator** g, int) {
    *g = new Generator;
    return 0;
}
int curandDestroyGenerator(Generator* g) {
    delete g;
    return 0;
}
int curandGetVersion(int* v) {
    *v = 10400;
    return 0;
}
int curandSetStream(Generator* g, void* s) {
    g->stream = s;
    return 0;
}
int curandSetPseudoRandomGeneratorSeed(Generator* g, unsigned long long seed) {
    g->engine.seed(seed);
    return 0;
}
int curandSetGeneratorOffset(Generator*, unsigned long long) { return 0; }
int curandSetGeneratorOrdering(Generator*, int) { return 0; }
int curandGenerate(Generator* g, unsigned* p, size_t n) {
    return fill(g, p, n, std::uniform_int_distribution<unsigned>());
}
int curandGenerateLongLong(Generator* g, unsigned long long* p, size_t n) {
    return fill(g, p, n, std::uniform_int_distribution<unsigned long long>());
}
int curandGenerateUniform(Generator* g, float* p, size_t n) {
    return fill(g, p, n, std::uniform_real_distribution<float>());
}
int curandGenerateUniformDouble(Generator* g, double* p, size_t n) {
    return fill(g, p, n, std::uniform_real_distribution<double>());
}
int curandGenerateNormal(Generator* g, float* p, size_t n, float m, float s) {
    return fill(g, p, n, std::normal_distribution<float>(m, s));
}
int curandGenerateNormalDouble(Generator* g, double* p, size_t n, double m, double s) {
    return fill(g, p, n, std::normal_distribution<double>(m, s));
}
int curandGenerateLogNormal(Generator* g, float* p, size_t n, float m, float s) {
    return fill(g, p, n, std::lognormal_distribution<float>(m, s));
}
int curandGenerateLogNormalDouble(Generator* g, double* p, size_t n, double m, double s) {
    return fill(g, p, n, std::lognormal_distribution<double>(m, s));
}
int curandGeneratePoisson(Generator* g, unsigned* p, size_t n, double l) {
    return fill(g, p, n, std::poisson_distribution<unsigned>(l));
}
}
