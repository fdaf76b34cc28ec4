// Counts the bytes a kernel loads from and stores to each of its arrays.
//
// The kernel is compiled with -fsanitize=thread, which calls a function before every memory access; here these functions
// count instead of looking for races. Arrays are announced by address; what lies in none of them (stacks, shared memory)
// is not counted.
#include <cstddef>
#include <cstdint>

namespace {
struct Range { uintptr_t begin, end; uint64_t loaded, stored; };
Range ranges[16];
int n_ranges;

void count(const void* address, size_t bytes, bool store) {
    const auto at = reinterpret_cast<uintptr_t>(address);
    for (Range* r = ranges; r < ranges + n_ranges; ++r)
        if (r->begin <= at && at < r->end) (store ? r->stored : r->loaded) += bytes;
}
}  // namespace

extern "C" {
void sim_count_clear() { n_ranges = 0; }
void sim_count_watch(uintptr_t begin, size_t bytes) { ranges[n_ranges++] = {begin, begin + bytes, 0, 0}; }
uint64_t sim_count_loaded(int i) { return ranges[i].loaded; }
uint64_t sim_count_stored(int i) { return ranges[i].stored; }

void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit(void*) {}
#define COUNT(bytes)                                                              \
    void __tsan_read##bytes(void* p) { count(p, bytes, false); }                  \
    void __tsan_write##bytes(void* p) { count(p, bytes, true); }                  \
    void __tsan_unaligned_read##bytes(void* p) { count(p, bytes, false); }        \
    void __tsan_unaligned_write##bytes(void* p) { count(p, bytes, true); }
COUNT(1)
COUNT(2)
COUNT(4)
COUNT(8)
COUNT(16)
void __tsan_read_range(void* p, size_t bytes) { count(p, bytes, false); }
void __tsan_write_range(void* p, size_t bytes) { count(p, bytes, true); }
#define COUNT_ATOMIC(what)                                                          \
    uint32_t __tsan_atomic32_##what(volatile uint32_t* p, uint32_t v, int) {        \
        count(const_cast<uint32_t*>(p), 4, false);                                  \
        count(const_cast<uint32_t*>(p), 4, true);                                   \
        return __atomic_##what(p, v, __ATOMIC_RELAXED);                             \
    }
COUNT_ATOMIC(fetch_add)
COUNT_ATOMIC(fetch_or)
}
