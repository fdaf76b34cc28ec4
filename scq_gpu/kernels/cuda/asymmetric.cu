// Float queries against packed codes: the k rows of least score, ties by lowest row.
//
//   codes    (n, n_bytes) bytes, rows code_stride bytes apart; bit j in byte j / 8 at position j % 8
//   gains    (n_queries, n_bits) float32: what bit j, where it is set, adds to the score of a row
//   keys     (n_queries, n) uint32: scores as integers in the same order, NaN counting as inf
//   scores   (n_queries, k) float32 and ids (n_queries, k) int64: the k least, in no order of scores but, of equal scores,
//            by row. The host sorts them.
//
//   asymmetric_scores   block  256 threads, a row each, for CHUNK_ITEMS rows and QUERIES queries, whose sums they hold
//                       grid   query tiles x chunks of rows, query tiles fastest: blocks that share codes run together
//                       shared for each query and 4 bits of the code a table of 16 sums. 16 floats are 16 banks: whatever
//                              rows a warp looks up, no two lanes are in each other's way.
//   asymmetric_select   block  256 threads, grid one per query
//                       shared a histogram of 2048 bins
//
// The k-th least key is found 11 bits at a time, from the highest: a histogram says in which bin it is. What is below it
// is among the k, and of what equals it the first rows. Each of 8 warps counts and then collects its own stretch of rows.
//
// Compiled with -DQUERIES, -DCHUNK_ITEMS.
#include "ptx.cuh"

#define THREADS 256
#define WARPS (THREADS / 32)
#define DIGIT_BITS 11
#define BINS (1 << DIGIT_BITS)
#define ALL_LANES 0xffffffffu

struct Table { float sum[QUERIES][16]; };  // of the four bits of a code that have one of 16 values

__device__ __forceinline__ uint32_t to_key(float score) {
    const uint32_t bits = __float_as_uint(score == score ? score + 0.f : __uint_as_float(0x7f800000u));  // -0 becomes 0
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

__device__ __forceinline__ float to_score(uint32_t key) {
    return __uint_as_float(key & 0x80000000u ? key & 0x7fffffffu : ~key);
}

extern "C" __global__ void __launch_bounds__(THREADS)
asymmetric_scores(const uint8_t* __restrict__ codes, const float* __restrict__ gains, uint32_t* __restrict__ keys,
                  int64_t n, int64_t code_stride, int n_bytes, int n_bits, int n_queries) {
    DYNAMIC_SHARED(Table, tables);  // 2 n_bytes of them
    const int query_tiles = (n_queries + QUERIES - 1) / QUERIES;
    const int first_query = int(blockIdx.x % query_tiles) * QUERIES, queries = min(QUERIES, n_queries - first_query);
    const int64_t first = int64_t(blockIdx.x / query_tiles) * CHUNK_ITEMS, last = min(n, first + CHUNK_ITEMS);

    for (int i = threadIdx.x; i < 2 * n_bytes * QUERIES; i += THREADS) {
        const int four = i / QUERIES, q = i % QUERIES;
        float gain[4];
#pragma unroll
        for (int j = 0; j < 4; ++j)
            gain[j] = q < queries && 4 * four + j < n_bits ? gains[int64_t(first_query + q) * n_bits + 4 * four + j] : 0.f;
#pragma unroll
        for (int value = 0; value < 16; ++value) {
            float sum = 0.f;
#pragma unroll
            for (int j = 0; j < 4; ++j) sum += value >> j & 1 ? gain[j] : 0.f;
            tables[four].sum[q][value] = sum;
        }
    }
    __syncthreads();  // the tables are complete

    for (int64_t item = first + threadIdx.x; item < last; item += THREADS) {
        const uint8_t* code = codes + item * code_stride;
        float sum[QUERIES] = {};
        for (int b = 0; b < n_bytes; ++b) {
            const int byte = code[b];
#pragma unroll
            for (int q = 0; q < QUERIES; ++q) {
                sum[q] += tables[2 * b].sum[q][byte & 15];
                sum[q] += tables[2 * b + 1].sum[q][byte >> 4];
            }
        }
#pragma unroll
        for (int q = 0; q < QUERIES; ++q) {
            if (q >= queries) break;
            keys[int64_t(first_query + q) * n + item] = to_key(sum[q]);
        }
    }
}

struct Select {
    uint32_t bin[BINS];
    uint32_t digit, left;      // of the k-th least key; how many of the k are in its bin
    int64_t found[WARPS][2];   // per warp: keys below the k-th, keys equal to it
};

// The bin that holds the `left`-th key, counted from 1, and its place within the bin: by one warp, each lane a stretch.
__device__ __forceinline__ void find_bin(Select& s, int lane, uint32_t left) {
    constexpr int SPAN = BINS / 32;
    uint32_t sum = 0;
    for (int bin = lane * SPAN; bin < (lane + 1) * SPAN; ++bin) sum += s.bin[bin];
    uint32_t before = sum;
    for (int by = 1; by < 32; by *= 2) {
        const uint32_t other = __shfl_up_sync(ALL_LANES, before, by);
        before += lane >= by ? other : 0;
    }
    before -= sum;
    if (left <= before || left > before + sum) return;
    int bin = lane * SPAN;
    for (; left > before + s.bin[bin]; ++bin) before += s.bin[bin];
    s.digit = bin;
    s.left = left - before;
}

// Calls visit(hits below, hits equal, key, item) for each 32 neighboring items of the warp's stretch, in order.
template <typename Visit>
__device__ __forceinline__ void visit_stretch(const uint32_t* keys, int64_t n, uint32_t kth, Visit visit) {
    const int64_t stretch = (n + THREADS - 1) / THREADS * 32, begin = threadIdx.x / 32 * stretch;
    const int64_t end = min(n, begin + stretch);
    for (int64_t item = begin + threadIdx.x % 32; item - threadIdx.x % 32 < end; item += 32) {
        const uint32_t key = item < end ? keys[item] : 0xffffffffu;
        visit(__ballot_sync(ALL_LANES, item < end && key < kth), __ballot_sync(ALL_LANES, item < end && key == kth), key, item);
    }
}

// 4 blocks a multiprocessor are enough; held to 8, NVRTC 13 spills two registers for sm_100.
extern "C" __global__ void __launch_bounds__(THREADS, 4)
asymmetric_select(const uint32_t* __restrict__ all_keys, float* __restrict__ scores, int64_t* __restrict__ ids, int64_t n,
                  int64_t first_id, int k) {
    DYNAMIC_SHARED(Select, s);
    const uint32_t* keys = all_keys + blockIdx.x * n;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    uint32_t kth = 0, known = 0, left = k;  // the key found so far, and which of its bits are known
    for (int shift = 32 - DIGIT_BITS; known != 0xffffffffu; shift = max(shift - DIGIT_BITS, 0)) {
        for (int bin = threadIdx.x; bin < BINS; bin += THREADS) s->bin[bin] = 0;
        __syncthreads();  // empty before the first is counted
        for (int64_t item = threadIdx.x; item < n; item += THREADS) {
            const uint32_t key = keys[item];
            if ((key & known) == kth) atomicAdd(&s->bin[(key & ~known) >> shift], 1u);
        }
        __syncthreads();  // all are counted
        if (warp == 0) find_bin(*s, lane, left);
        __syncthreads();  // the bin is found, and nobody still reads the counts
        kth |= s->digit << shift;
        left = s->left;
        known |= 0xffffffffu << shift;
    }

    int64_t below = 0, equal = 0;
    visit_stretch(keys, n, kth, [&](uint32_t hits_below, uint32_t hits_equal, uint32_t, int64_t) {
        below += __popc(hits_below);
        equal += __popc(hits_equal);
    });
    if (lane == 0) {
        s->found[warp][0] = below;
        s->found[warp][1] = equal;
    }
    __syncthreads();  // every warp knows how many come before its own
    below = 0, equal = k - int64_t(left);
    for (int w = 0; w < warp; ++w) {
        below += s->found[w][0];
        equal += s->found[w][1];
    }
    visit_stretch(keys, n, kth, [&](uint32_t hits_below, uint32_t hits_equal, uint32_t key, int64_t item) {
        const uint32_t mine = 1u << lane, before = mine - 1;
        const int64_t at = hits_below & mine ? below + __popc(hits_below & before) : equal + __popc(hits_equal & before);
        if ((hits_below | hits_equal) & mine && at < k) {
            scores[blockIdx.x * int64_t(k) + at] = to_score(key);
            ids[blockIdx.x * int64_t(k) + at] = first_id + item;
        }
        below += __popc(hits_below);
        equal += __popc(hits_equal);
    });
}
