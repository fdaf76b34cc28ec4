// Float queries against packed codes: the k rows of least score, ties by lowest row.
//
//   codes    (n, n_bytes) bytes, rows code_stride bytes apart; bit j in byte j / 8 at position j % 8
//   gains    (n_queries, n_bits) float32: what bit j, where it is set, adds to the score of a row
//   tables   (n_queries, n_bytes, 256) float32: what a byte of each value adds to it, for codes of cells
//   allowed  (ceil(rows / 32),) uint32: bit r % 32 of word r / 32 says that row r may be found; null if all may. The first
//            code is that of row first_row.
//   keys     (n_queries, plane) uint32: scores as integers in the same order, NaN counting as inf; NONE is above all of
//            them and stands for no row
//
//   asymmetric_scores   block  256 threads, a row each, for chunk_items rows and QUERIES queries, whose sums they hold
//                       grid   query tiles x chunks of rows, query tiles fastest: blocks that share codes run together
//                       shared for each query and 4 bits of the code a table of 16 sums. 16 floats are 16 banks: whatever
//                              rows a warp looks up, no two lanes are in each other's way.
//   cell_scores         the same with a table of 256 entries for each query and byte. Where not all bytes have room, a
//                       launch adds up some of them, and keys hold the sums between launches.
//   asymmetric_select   block  256 threads; the k least of a piece of the keys of a query, in no order of scores but, of
//                              equal scores, by row; NONE where there are fewer. What the pieces leave goes through it
//                              again, until one piece is left.
//                       grid   queries x pieces
//                       shared a histogram of 2048 bins
//   asymmetric_order    block  256 threads, one of the k results of a query each, whose place is the number of results
//                              before it
//                       grid   queries x ceil(k / 256)
//
// The k-th least key is found 11 bits at a time, from the highest: a histogram says in which bin it is. What is below it
// is among the k, and of what equals it the first rows. Each of 8 warps counts and then collects its own stretch of rows.
//
// Compiled with -DQUERIES.
#include "ptx.cuh"

#define THREADS 256
#define WARPS (THREADS / 32)
#define DIGIT_BITS 11
#define BINS (1 << DIGIT_BITS)
#define ALL_LANES 0xffffffffu
#define NONE 0xffffffffu

__device__ __forceinline__ uint32_t to_key(float score) {
    const uint32_t bits = __float_as_uint(score == score ? score + 0.f : __uint_as_float(0x7f800000u));  // -0 becomes 0
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

__device__ __forceinline__ float to_score(uint32_t key) {
    return __uint_as_float(key == NONE ? 0x7f800000u : key & 0x80000000u ? key & 0x7fffffffu : ~key);
}

__device__ __forceinline__ bool is_open(const uint32_t* allowed, int64_t row) {
    return allowed == nullptr || allowed[row / 32] >> (row % 32) & 1;
}

struct Tile {                                  // what a block works on
    int64_t first, last;                       // rows [first, last)
    int query, queries;                        // the first query, and how many

    __device__ __forceinline__ Tile(int64_t n, int64_t chunk_items, int n_queries) {
        const int query_tiles = (n_queries + QUERIES - 1) / QUERIES;
        query = int(blockIdx.x % query_tiles) * QUERIES;
        queries = min(QUERIES, n_queries - query);
        first = int64_t(blockIdx.x / query_tiles) * chunk_items;
        last = min(n, first + chunk_items);
    }
};

// Calls visit(byte, value) for the bytes [begin, end) of a code, four of them in one load where they are aligned.
template <typename Visit>
__device__ __forceinline__ void visit_bytes(const uint8_t* code, int begin, int end, bool aligned, Visit visit) {
    int b = begin;
    if (aligned)
        for (; b + 4 <= end; b += 4) {
            const uint32_t word = *reinterpret_cast<const uint32_t*>(code + b);
#pragma unroll
            for (int j = 0; j < 4; ++j) visit(b + j, word >> 8 * j & 255);
        }
    for (; b < end; ++b) visit(b, uint32_t(code[b]));
}

__device__ __forceinline__ bool in_words(const uint8_t* codes, int64_t code_stride) {
    return (reinterpret_cast<size_t>(codes) | size_t(code_stride)) % 4 == 0;
}

struct Table { float sum[QUERIES][16]; };  // of the four bits of a code that have one of 16 values

extern "C" __global__ void __launch_bounds__(THREADS, 4)
asymmetric_scores(const uint8_t* __restrict__ codes, const float* __restrict__ gains, const uint32_t* __restrict__ allowed,
                  uint32_t* __restrict__ keys, int64_t n, int64_t code_stride, int64_t plane, int64_t chunk_items,
                  int64_t first_row, int n_bytes, int n_bits, int n_queries) {
    DYNAMIC_SHARED(Table, tables);  // 2 n_bytes of them
    const Tile tile(n, chunk_items, n_queries);
    for (int i = threadIdx.x; i < 2 * n_bytes * QUERIES; i += THREADS) {
        const int four = i / QUERIES, q = i % QUERIES;
        float gain[4];
#pragma unroll
        for (int j = 0; j < 4; ++j)
            gain[j] = q < tile.queries && 4 * four + j < n_bits ? gains[int64_t(tile.query + q) * n_bits + 4 * four + j] : 0.f;
#pragma unroll
        for (int value = 0; value < 16; ++value) {
            float sum = 0.f;
#pragma unroll
            for (int j = 0; j < 4; ++j) sum += value >> j & 1 ? gain[j] : 0.f;
            tables[four].sum[q][value] = sum;
        }
    }
    __syncthreads();  // the tables are complete

    const bool aligned = in_words(codes, code_stride);
    for (int64_t item = tile.first + threadIdx.x; item < tile.last; item += THREADS) {
        const bool open = is_open(allowed, first_row + item);
        float sum[QUERIES] = {};
        if (open)
            visit_bytes(codes + item * code_stride, 0, n_bytes, aligned, [&](int b, uint32_t value) {
#pragma unroll
                for (int q = 0; q < QUERIES; ++q) {
                    sum[q] += tables[2 * b].sum[q][value & 15];
                    sum[q] += tables[2 * b + 1].sum[q][value >> 4];
                }
            });
#pragma unroll
        for (int q = 0; q < QUERIES; ++q) {
            if (q >= tile.queries) break;
            keys[int64_t(tile.query + q) * plane + item] = open ? to_key(sum[q]) : NONE;
        }
    }
}

struct Cells { float of[QUERIES][256]; };  // of one byte

// Adds up the bytes [first_byte, last_byte), which have room for their tables.
extern "C" __global__ void __launch_bounds__(THREADS, 4)
cell_scores(const uint8_t* __restrict__ codes, const float* __restrict__ tables, const uint32_t* __restrict__ allowed,
            uint32_t* __restrict__ keys, int64_t n, int64_t code_stride, int64_t plane, int64_t chunk_items, int64_t first_row,
            int n_bytes, int first_byte, int last_byte, int n_queries) {
    DYNAMIC_SHARED(Cells, cells);  // last_byte - first_byte of them
    const Tile tile(n, chunk_items, n_queries);
    for (int i = threadIdx.x; i < (last_byte - first_byte) * QUERIES * 256; i += THREADS) {
        const int byte = i / (QUERIES * 256), q = i / 256 % QUERIES;
        const int64_t table = int64_t(tile.query + q) * n_bytes + first_byte + byte;
        cells[byte].of[q][i % 256] = q < tile.queries ? tables[table * 256 + i % 256] : 0.f;
    }
    __syncthreads();  // the tables are there

    const bool aligned = in_words(codes + first_byte, code_stride);
    for (int64_t item = tile.first + threadIdx.x; item < tile.last; item += THREADS) {
        const bool open = is_open(allowed, first_row + item);
        uint32_t* key = keys + int64_t(tile.query) * plane + item;
        float sum[QUERIES] = {};
#pragma unroll
        for (int q = 0; q < QUERIES; ++q)
            if (first_byte && q < tile.queries) sum[q] = __uint_as_float(key[q * plane]);
        if (open)
            visit_bytes(codes + item * code_stride + first_byte, 0, last_byte - first_byte, aligned, [&](int b, uint32_t value) {
#pragma unroll
                for (int q = 0; q < QUERIES; ++q) sum[q] += cells[b].of[q][value];
            });
#pragma unroll
        for (int q = 0; q < QUERIES; ++q) {
            if (q >= tile.queries) break;
            key[q * plane] = last_byte < n_bytes ? __float_as_uint(sum[q]) : open ? to_key(sum[q]) : NONE;
        }
    }
}

struct Select {
    uint32_t bin[BINS];
    uint32_t digit, left;      // of the k-th least key; how many of the k are in its bin
    int found[WARPS][2];       // per warp: keys below the k-th, keys equal to it
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
__device__ __forceinline__ void visit_stretch(const uint32_t* keys, int n, uint32_t kth, Visit visit) {
    const int stretch = (n + THREADS - 1) / THREADS * 32, begin = int(threadIdx.x / 32) * stretch, lane = threadIdx.x % 32;
    const int end = min(n, begin + stretch);
    for (int item = begin + lane; item - lane < end; item += 32) {
        const uint32_t key = item < end ? keys[item] : NONE;
        visit(__ballot_sync(ALL_LANES, item < end && key < kth), __ballot_sync(ALL_LANES, item < end && key == kth), key, item);
    }
}

// A query has fewer than 2^31 keys. Their rows are given, or count up from first_row. 4 blocks a multiprocessor are enough; held to 8, NVRTC 13
// spills two registers for sm_100.
extern "C" __global__ void __launch_bounds__(THREADS, 4)
asymmetric_select(const uint32_t* __restrict__ all_keys, const int64_t* __restrict__ rows, uint32_t* __restrict__ least,
                  int64_t* __restrict__ ids, int64_t first_row, int all, int piece, int pieces, int k) {
    DYNAMIC_SHARED(Select, s);
    const int start = int(blockIdx.x % pieces) * piece, n = min(all - start, piece), wanted = min(n, k);
    const int64_t from = blockIdx.x / pieces * int64_t(all) + start, to = blockIdx.x * int64_t(k);
    const uint32_t* keys = all_keys + from;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    uint32_t kth = 0, known = 0, left = wanted;  // the key found so far, and which of its bits are known
    for (int shift = 32 - DIGIT_BITS; known != 0xffffffffu; shift = max(shift - DIGIT_BITS, 0)) {
        for (int bin = threadIdx.x; bin < BINS; bin += THREADS) s->bin[bin] = 0;
        __syncthreads();  // empty before the first is counted
#pragma unroll 4
        for (int item = threadIdx.x; item < n; item += THREADS) {
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

    int below = 0, equal = 0;
    visit_stretch(keys, n, kth, [&](uint32_t hits_below, uint32_t hits_equal, uint32_t, int) {
        below += __popc(hits_below);
        equal += __popc(hits_equal);
    });
    if (lane == 0) {
        s->found[warp][0] = below;
        s->found[warp][1] = equal;
    }
    __syncthreads();  // every warp knows how many come before its own
    below = 0, equal = wanted - int(left);
    for (int w = 0; w < warp; ++w) {
        below += s->found[w][0];
        equal += s->found[w][1];
    }
    visit_stretch(keys, n, kth, [&](uint32_t hits_below, uint32_t hits_equal, uint32_t key, int item) {
        const uint32_t mine = 1u << lane, before = mine - 1;
        const int at = hits_below & mine ? below + __popc(hits_below & before) : equal + __popc(hits_equal & before);
        if ((hits_below | hits_equal) & mine && at < wanted) {
            least[to + at] = key;
            ids[to + at] = rows ? rows[from + item] : first_row + start + item;
        }
        below += __popc(hits_below);
        equal += __popc(hits_equal);
    });
    for (int i = wanted + threadIdx.x; i < k; i += THREADS) {
        least[to + i] = NONE;
        ids[to + i] = -1;
    }
}

// distances (n_queries, k) float32, ascending, and ids (n_queries, k) int64, the lowest first where distances are equal.
// A distance is a score, from keys or from scores, plus the query's base, if there is one, and at least `least`.
extern "C" __global__ void __launch_bounds__(THREADS)
asymmetric_order(const uint32_t* __restrict__ keys, const float* __restrict__ scores, const float* __restrict__ base,
                 const int64_t* __restrict__ rows, float* __restrict__ distances, int64_t* __restrict__ ids, int k, float least) {
    struct Entry { uint32_t key; int64_t row; };
    DYNAMIC_SHARED(Entry, tile);  // THREADS of them
    const int tiles = (k + THREADS - 1) / THREADS, mine = int(blockIdx.x % tiles) * THREADS + threadIdx.x;
    const int64_t query = blockIdx.x / tiles;
    const float added = base ? base[query] : 0.f;
    const auto entry = [&](int i) {
        if (i >= k || rows[query * k + i] < 0 || (keys && keys[query * k + i] == NONE)) return Entry{NONE, -1};
        const float score = (keys ? to_score(keys[query * k + i]) : scores[query * k + i]) + added;
        return Entry{to_key(score < least ? least : score), rows[query * k + i]};
    };
    const Entry own = entry(mine);
    int before = 0;
    for (int first = 0; first < k; first += THREADS) {
        __syncthreads();  // nobody still reads the last tile
        tile[threadIdx.x] = entry(first + threadIdx.x);
        __syncthreads();  // the tile is complete
        for (int i = 0; i < min(THREADS, k - first); ++i) {
            const bool tie = tile[i].key == own.key;
            before += tile[i].key < own.key || (tie && (tile[i].row < own.row || (tile[i].row == own.row && first + i < mine)));
        }
    }
    if (mine < k) {
        distances[query * k + before] = to_score(own.key);
        ids[query * k + before] = own.row;
    }
}
