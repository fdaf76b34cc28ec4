// Exact top-k and range search over packed codes by Hamming distance.
//
//   database (N_WORDS, plane) uint32: word w of item i at [w][i]; plane >= n is a multiple of 4, rows 16-byte aligned.
//            A word holds the bytes of a code in order (little endian), so bit k of a code is bit k % 32 of word k / 32;
//            padding bits are 0 and count nothing
//   queries  (n_queries, n_bytes) bytes, of codes as they are
//   allowed  (ceil(n / 32),) uint32: bit i % 32 of word i / 32 says that item i may be found; null if all may
//
//   block    256 threads = 8 warps. A warp owns QUERIES_PER_WARP queries; the block's QUERIES queries share each tile of
//            TILE_ITEMS items in shared memory, so that the database is read once for all of them. For a few queries a
//            block compiled with QUERIES_PER_WARP = 0 takes one, and its warps share the items: 32 ITEMS neighbors each.
//   grid     query tiles x chunks of the database, query tiles fastest: blocks that share a chunk run together.
//
// Distances are small integers, so the k nearest are found by counting, without a sort. hamming_count makes a histogram
// of the distances of every (query, chunk). hamming_plan turns it into the place in the result where the first item of
// each (chunk, distance) belongs: after all smaller distances, and after equal ones in earlier chunks. hamming_collect
// walks the items again in order and puts each in its place. Equal distances therefore come out by lowest id, always.
//
// Compiled with -DN_WORDS, -DQUERIES_PER_WARP, -DTILE_ITEMS.
#include "ptx.cuh"

#define THREADS 256
#define WARPS (THREADS / 32)
#define ITEMS 4
#define BINS (32 * N_WORDS + 1)
#define ALL_LANES 0xffffffffu
#if N_WORDS > 16 && QUERIES_PER_WARP           // blocks of a multiprocessor; left to itself, NVRTC aims at more and spills
#define BLOCKS 2
#else
#define BLOCKS 4
#endif
#if QUERIES_PER_WARP
#define QUERIES (WARPS * QUERIES_PER_WARP)
#define WARP_QUERIES QUERIES_PER_WARP
#else
#define QUERIES 1
#define WARP_QUERIES 1
#endif

struct Codes {
    const uint32_t* database;
    const uint8_t* queries;
    const uint32_t* allowed;
    int64_t n, plane, chunk_items;
    int n_queries, n_bytes, chunks;
};
#define CODES                                                                                                        \
    const uint32_t *__restrict__ database, const uint8_t *__restrict__ queries, const uint32_t *__restrict__ allowed, \
        int64_t n, int64_t plane, int64_t chunk_items, int n_queries, int n_bytes, int chunks
#define GIVEN_CODES \
    { database, queries, allowed, n, plane, chunk_items, n_queries, n_bytes, chunks }

struct Place {                                 // what a block works on
    int64_t chunk, first, last;                // items [first, last)
    int query;                                 // first query of this warp
    int slot, lane, warp;                      // slot: first query of this warp within the block

    __device__ __forceinline__ explicit Place(const Codes& codes) {
        const int query_tiles = (codes.n_queries + QUERIES - 1) / QUERIES;
        chunk = blockIdx.x / query_tiles;
        first = chunk * codes.chunk_items;
        last = min(codes.n, first + codes.chunk_items);
        lane = threadIdx.x % 32;
        warp = threadIdx.x / 32;
        slot = warp * QUERIES_PER_WARP;
        query = int(blockIdx.x % query_tiles) * QUERIES + slot;
    }
};

// Which of the 32 items from `item` on, a multiple of 32, may be found.
__device__ __forceinline__ uint32_t open_items(const Codes& codes, const Place& place, int64_t item) {
    if (item >= place.last) return 0;
    const uint32_t open = codes.allowed ? codes.allowed[item / 32] : ALL_LANES;
    return place.last - item < 32 ? open & ((1u << (place.last - item)) - 1) : open;
}

// The block's queries as words; the caller waits for the block before it reads them.
__device__ __forceinline__ void load_queries(uint32_t (*words)[N_WORDS], const Codes& codes, const Place& place) {
    for (int i = threadIdx.x; i < QUERIES * N_WORDS; i += THREADS) {
        const int64_t query = place.query - place.slot + i / N_WORDS;
        uint32_t word = 0;
#pragma unroll
        for (int b = 0; b < 4; ++b) {
            const int byte = i % N_WORDS * 4 + b;
            if (query < codes.n_queries && byte < codes.n_bytes)
                word |= uint32_t(codes.queries[query * codes.n_bytes + byte]) << 8 * b;
        }
        words[i / N_WORDS][i % N_WORDS] = word;
    }
}

// Puts the hits among 32 neighboring items in their places, in order; next holds the next place of each distance.
__device__ __forceinline__ void put_hits(uint32_t* next, bool hit, uint32_t distance, int lane, int64_t item, int* distances,
                                         int64_t* ids, int k) {
    if (__ballot_sync(ALL_LANES, hit) == 0) return;
    const uint32_t peers = __match_any_sync(ALL_LANES, hit ? distance : ALL_LANES);  // lanes at the same distance
    const uint32_t rank = __popc(peers & ((1u << lane) - 1));
    uint32_t* free_place = &next[hit ? distance : 0];
    const uint32_t at = *free_place + rank;
    __syncwarp();  // all have read before the first of the peers moves on
    if (hit && rank == 0) *free_place += __popc(peers);
    __syncwarp();
    if (hit && at < uint32_t(k)) {
        distances[at] = int(distance);
        ids[at] = item;
    }
}

#if QUERIES_PER_WARP

struct Scan {                                  // shared memory of every kernel that walks the database
    uint32_t tile[2][N_WORDS][TILE_ITEMS];     // one is copied while the other is read
    uint32_t query[QUERIES][N_WORDS];
};

__device__ __forceinline__ void load_tile(Scan& s, const Codes& codes, int64_t item, int buffer) {
    for (int i = threadIdx.x; i < N_WORDS * TILE_ITEMS / 4; i += THREADS) {
        const int w = i / (TILE_ITEMS / 4), c = i % (TILE_ITEMS / 4) * 4;
        if (item + c < codes.plane) COPY16(&s.tile[buffer][w][c], codes.database + w * codes.plane + item + c);
    }
    COPY_COMMIT();
}

// Calls visit(q, item, distance, open) for the warp's queries q = 0 ... QUERIES_PER_WARP - 1 and all items of the chunk,
// 32 neighboring items at a time and in order; all lanes together, also where an item may not be found.
template <typename Visit>
__device__ __forceinline__ void visit_pairs(Scan& s, const Codes& codes, const Place& place, Visit visit) {
    load_queries(s.query, codes, place);
    load_tile(s, codes, place.first, 0);
    int buffer = 0;
    for (int64_t item = place.first; item < place.last; item += TILE_ITEMS, buffer ^= 1) {
        COPY_WAIT(0);
        __syncthreads();  // this tile has landed for all threads, and nobody still reads the one overwritten next
        if (item + TILE_ITEMS < place.last) load_tile(s, codes, item + TILE_ITEMS, buffer ^ 1);
        if (place.query >= codes.n_queries) continue;
        for (int c = 0; c < TILE_ITEMS; c += 32) {
            const uint32_t open = open_items(codes, place, item + c);
            if (open == 0) continue;
            uint32_t code[N_WORDS];
#pragma unroll
            for (int w = 0; w < N_WORDS; ++w) code[w] = s.tile[buffer][w][c + place.lane];
#pragma unroll
            for (int q = 0; q < QUERIES_PER_WARP; ++q) {
                uint32_t distance = 0;
#pragma unroll
                for (int w = 0; w < N_WORDS; ++w) distance += __popc(code[w] ^ s.query[place.slot + q][w]);
                visit(q, item + c + place.lane, distance, open >> place.lane & 1);
            }
        }
    }
}

#else

#define STEP (THREADS * ITEMS)                 // items of the block between two barriers

struct Scan {
    uint32_t query[1][N_WORDS];
    uint32_t hits[2][WARPS];                   // of the warps in a step, and in the one before
};

// The distances of the warp's items in a step: those from `item` on, 32 at a time, and which may be found.
struct Step {
    uint32_t distance[ITEMS], open[ITEMS];

    __device__ __forceinline__ Step(const Scan& s, const Codes& codes, const Place& place, int64_t item) {
#pragma unroll
        for (int j = 0; j < ITEMS; ++j) {
            open[j] = open_items(codes, place, item + 32 * j);
            distance[j] = 0;
        }
#pragma unroll 4
        for (int w = 0; w < N_WORDS; ++w) {
            const uint32_t* words = codes.database + w * codes.plane + item + place.lane;
            uint32_t code[ITEMS];
#pragma unroll
            for (int j = 0; j < ITEMS; ++j) code[j] = open[j] >> place.lane & 1 ? words[32 * j] : 0;
#pragma unroll
            for (int j = 0; j < ITEMS; ++j) distance[j] += __popc(code[j] ^ s.query[0][w]);
        }
    }

    __device__ __forceinline__ uint32_t within(int radius, int j, int lane) const {
        return open[j] >> lane & 1 && int(distance[j]) <= radius;
    }
};

// Calls visit(step, item) for each step of the block, item being the warp's first; all threads together.
template <typename Visit>
__device__ __forceinline__ void visit_steps(const Scan& s, const Codes& codes, const Place& place, Visit visit) {
    for (int64_t first = place.first; first < place.last; first += STEP) {
        const int64_t item = first + place.warp * 32 * ITEMS;
        visit(Step(s, codes, place, item), item);
    }
}

#endif

struct TopK {
    Scan scan;
    uint32_t bin[QUERIES][BINS];
};

// counts (n_queries, chunks, BINS) uint32: how many items of the chunk are at each distance
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
hamming_count(CODES, uint32_t* __restrict__ counts) {
    DYNAMIC_SHARED(TopK, s);
    const Codes codes = GIVEN_CODES;
    const Place place(codes);
    uint32_t* all_bins = s->bin[0];
    for (int i = threadIdx.x; i < QUERIES * BINS; i += THREADS) all_bins[i] = 0;
#if QUERIES_PER_WARP
    visit_pairs(s->scan, codes, place, [&](int q, int64_t, uint32_t distance, bool open) {
        if (open) atomicAdd(&s->bin[place.slot + q][distance], 1u);
    });
#else
    load_queries(s->scan.query, codes, place);
    __syncthreads();  // the query is there, and the bins are empty
    visit_steps(s->scan, codes, place, [&](const Step& step, int64_t) {
#pragma unroll
        for (int j = 0; j < ITEMS; ++j)
            if (step.open[j] >> place.lane & 1) atomicAdd(&s->bin[0][step.distance[j]], 1u);
    });
#endif
    __syncthreads();  // all are counted
    for (int i = threadIdx.x; i < QUERIES * BINS; i += THREADS) {
        const int64_t query = place.query - place.slot + i / BINS;
        if (query < n_queries) counts[(query * chunks + place.chunk) * BINS + i % BINS] = all_bins[i];
    }
}

struct Plan {
    uint32_t before[WARPS][BINS];              // first the counts of a warp's chunks, then of those before them
    uint32_t start[BINS];
    uint32_t found;
};

// One block a query. counts becomes places (cut off at k) for all distances that are needed; radius (n_queries,) int32 is
// the largest of them. Each warp takes a stretch of chunks. What is missing of k results is filled with no_distance, -1.
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
hamming_plan(uint32_t* __restrict__ counts, int* __restrict__ radius, int* __restrict__ distances, int64_t* __restrict__ ids,
             int chunks, int k, int no_distance) {
    DYNAMIC_SHARED(Plan, s);
    const uint32_t limit = k;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, stretch = (chunks + WARPS - 1) / WARPS;
    const int first = min(chunks, warp * stretch), last = min(chunks, first + stretch);
    uint32_t* mine = counts + int64_t(blockIdx.x) * chunks * BINS;
    for (int bin = lane; bin < BINS; bin += 32) {
        uint32_t total = 0;
#pragma unroll 4
        for (int64_t c = first; c < last; ++c) total = min(total + mine[c * BINS + bin], limit);
        s->before[warp][bin] = total;
    }
    __syncthreads();  // the stretches are counted
    for (int bin = threadIdx.x; bin < BINS; bin += THREADS) {
        uint32_t total = 0;
        for (int w = 0; w < WARPS; ++w) {
            const uint32_t count = s->before[w][bin];
            s->before[w][bin] = total;
            total = min(total + count, limit);
        }
        s->start[bin] = total;
    }
    __syncthreads();  // the stretches are added up
    if (warp == 0) {  // exclusive prefix sum: each lane its own stretch of bins
        constexpr int SPAN = (BINS + 31) / 32;
        const int begin = min(lane * SPAN, BINS), end = min(begin + SPAN, BINS);
        uint32_t sum = 0;
        for (int bin = begin; bin < end; ++bin) sum += s->start[bin];
        uint32_t before = sum;
        for (int by = 1; by < 32; by *= 2) {
            const uint32_t other = __shfl_up_sync(ALL_LANES, before, by);
            before += lane >= by ? other : 0;
        }
        if (lane == 31) s->found = before;
        before -= sum;
        for (int bin = begin; bin < end; ++bin) {
            const uint32_t count = s->start[bin];
            s->start[bin] = before;
            before += count;
        }
    }
    __syncthreads();  // the prefix sums are there
    for (int bin = lane; bin < BINS && s->start[bin] < limit; bin += 32) {
        if (warp == 0 && (bin == BINS - 1 || s->start[bin + 1] >= limit)) radius[blockIdx.x] = bin;
        uint32_t at = min(s->start[bin] + s->before[warp][bin], limit);
#pragma unroll 4
        for (int64_t c = first; c < last; ++c) {
            const uint32_t count = mine[c * BINS + bin];
            mine[c * BINS + bin] = at;
            at = min(at + count, limit);
        }
    }
    for (int i = int(min(s->found, limit)) + threadIdx.x; i < k; i += THREADS) {
        distances[int64_t(blockIdx.x) * k + i] = no_distance;
        ids[int64_t(blockIdx.x) * k + i] = -1;
    }
}

// distances (n_queries, k) int32 and ids (n_queries, k) int64, by distance and then by id
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
hamming_collect(CODES, const uint32_t* __restrict__ places, const int* __restrict__ radius, int* __restrict__ distances,
                int64_t* __restrict__ ids, int k) {
    DYNAMIC_SHARED(TopK, s);
    const Codes codes = GIVEN_CODES;
    const Place place(codes);
    uint32_t* all_bins = s->bin[0];  // next free place, per query and distance
    for (int i = threadIdx.x; i < QUERIES * BINS; i += THREADS) {
        const int64_t query = place.query - place.slot + i / BINS;
        all_bins[i] = query < n_queries ? places[(query * chunks + place.chunk) * BINS + i % BINS] : 0;
    }
    int reach[WARP_QUERIES];
#pragma unroll
    for (int q = 0; q < WARP_QUERIES; ++q) reach[q] = place.query + q < n_queries ? radius[place.query + q] : -1;
#if QUERIES_PER_WARP
    visit_pairs(s->scan, codes, place, [&](int q, int64_t item, uint32_t distance, bool open) {
        const int64_t out = int64_t(place.query + q) * k;
        const bool hit = open && int(distance) <= reach[q];
        put_hits(s->bin[place.slot + q], hit, distance, place.lane, item, distances + out, ids + out, k);
    });
#else
    load_queries(s->scan.query, codes, place);
    __syncthreads();  // the query is there, and the places
    int turn = 0;
    visit_steps(s->scan, codes, place, [&](const Step& step, int64_t item) {
        uint32_t hits = 0;
#pragma unroll
        for (int j = 0; j < ITEMS; ++j) hits |= __ballot_sync(ALL_LANES, step.within(reach[0], j, place.lane));
        if (place.lane == 0) s->scan.hits[turn][place.warp] = hits;
        __syncthreads();  // every warp knows which have hits
        for (int w = 0; w < WARPS; ++w) {
            if (s->scan.hits[turn][w] == 0) continue;
            if (w == place.warp) {
#pragma unroll
                for (int j = 0; j < ITEMS; ++j)
                    put_hits(s->bin[0], step.within(reach[0], j, place.lane), step.distance[j], place.lane,
                             item + 32 * j + place.lane, distances + int64_t(place.query) * k, ids + int64_t(place.query) * k, k);
            }
            __syncthreads();  // the next warp goes on where this one ended
        }
        turn ^= 1;
    });
#endif
}

// counts (n_queries, chunks) int64: how many items of the chunk lie within the radius
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
hamming_range_count(CODES, int64_t* __restrict__ counts, int radius) {
    DYNAMIC_SHARED(Scan, s);
    const Codes codes = GIVEN_CODES;
    const Place place(codes);
    int64_t found[WARP_QUERIES] = {};
#if QUERIES_PER_WARP
    visit_pairs(*s, codes, place, [&](int q, int64_t, uint32_t distance, bool open) {
        found[q] += __popc(__ballot_sync(ALL_LANES, open && int(distance) <= radius));
    });
#else
    load_queries(s->query, codes, place);
    __syncthreads();  // the query is there
    visit_steps(*s, codes, place, [&](const Step& step, int64_t) {
#pragma unroll
        for (int j = 0; j < ITEMS; ++j) found[0] += __popc(__ballot_sync(ALL_LANES, step.within(radius, j, place.lane)));
    });
    if (place.lane == 0) s->hits[0][place.warp] = uint32_t(found[0]);
    __syncthreads();  // every warp has counted
    found[0] = 0;
    for (int w = 0; w < WARPS; ++w) found[0] += s->hits[0][w];
    if (place.warp) return;
#endif
#pragma unroll
    for (int q = 0; q < WARP_QUERIES; ++q)
        if (place.lane == 0 && place.query + q < n_queries) counts[int64_t(place.query + q) * chunks + place.chunk] = found[q];
}

// places (n_queries, chunks) int64: where the hits of a chunk begin; distances int32 and ids int64, per query by id
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
hamming_range_collect(CODES, const int64_t* __restrict__ places, int* __restrict__ distances, int64_t* __restrict__ ids,
                      int radius) {
    DYNAMIC_SHARED(Scan, s);
    const Codes codes = GIVEN_CODES;
    const Place place(codes);
    int64_t next[WARP_QUERIES];
#pragma unroll
    for (int q = 0; q < WARP_QUERIES; ++q)
        next[q] = place.query + q < n_queries ? places[int64_t(place.query + q) * chunks + place.chunk] : 0;
    const uint32_t before = (1u << place.lane) - 1;
#if QUERIES_PER_WARP
    visit_pairs(*s, codes, place, [&](int q, int64_t item, uint32_t distance, bool open) {
        const bool hit = open && int(distance) <= radius && place.query + q < n_queries;
        const uint32_t hits = __ballot_sync(ALL_LANES, hit);
        if (hit) {
            const int64_t out = next[q] + __popc(hits & before);
            distances[out] = int(distance);
            ids[out] = item;
        }
        next[q] += __popc(hits);
    });
#else
    load_queries(s->query, codes, place);
    __syncthreads();  // the query is there
    int turn = 0;
    visit_steps(*s, codes, place, [&](const Step& step, int64_t item) {
        uint32_t hits[ITEMS], count = 0;
#pragma unroll
        for (int j = 0; j < ITEMS; ++j) {
            hits[j] = __ballot_sync(ALL_LANES, step.within(radius, j, place.lane));
            count += __popc(hits[j]);
        }
        if (place.lane == 0) s->hits[turn][place.warp] = count;
        __syncthreads();  // every warp knows how many come before its own
        int64_t out = next[0];
        for (int w = 0; w < WARPS; ++w) {
            out += w < place.warp ? s->hits[turn][w] : 0;
            next[0] += s->hits[turn][w];
        }
#pragma unroll
        for (int j = 0; j < ITEMS; ++j) {
            if (hits[j] >> place.lane & 1) {
                const int64_t at = out + __popc(hits[j] & before);
                distances[at] = int(step.distance[j]);
                ids[at] = item + 32 * j + place.lane;
            }
            out += __popc(hits[j]);
        }
        turn ^= 1;
    });
#endif
}
