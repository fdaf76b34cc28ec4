// Exact top-k and range search over packed codes by Hamming distance.
//
//   database (N_WORDS, plane) uint32: word w of item i at [w][i]; plane >= n is a multiple of 4, rows 16-byte aligned
//   queries  (n_queries, N_WORDS) uint32
//            both hold the bytes of a code in order (little endian), so bit k of a code is bit k % 32 of word k / 32;
//            padding bits are 0 and count nothing
//
//   block    256 threads = 8 warps. A warp owns QUERIES_PER_WARP queries; the block's QUERIES queries share each tile of
//            TILE_ITEMS items in shared memory, so that the database is read once for all of them.
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
#define QUERIES (THREADS / 32 * QUERIES_PER_WARP)
#define BINS (32 * N_WORDS + 1)
#define ALL_LANES 0xffffffffu

struct Codes {
    const uint32_t* database;
    const uint32_t* queries;
    int64_t n, plane, chunk_items;
    int n_queries;
};

struct Scan {                                  // shared memory of every kernel that walks the database
    uint32_t tile[2][N_WORDS][TILE_ITEMS];     // one is copied while the other is read
    uint32_t query[QUERIES][N_WORDS];
};

struct Place {                                 // what a block works on
    int64_t chunk, first, last;                // items [first, last)
    int query;                                 // first query of this warp
    int slot, lane;                            // slot: first query of this warp within the block

    __device__ __forceinline__ explicit Place(const Codes& codes) {
        const int query_tiles = (codes.n_queries + QUERIES - 1) / QUERIES;
        chunk = blockIdx.x / query_tiles;
        first = chunk * codes.chunk_items;
        last = min(codes.n, first + codes.chunk_items);
        lane = threadIdx.x % 32;
        slot = threadIdx.x / 32 * QUERIES_PER_WARP;
        query = int(blockIdx.x % query_tiles) * QUERIES + slot;
    }
};

__device__ __forceinline__ void load_tile(Scan& s, const Codes& codes, int64_t item, int buffer) {
    for (int i = threadIdx.x; i < N_WORDS * TILE_ITEMS / 4; i += THREADS) {
        const int w = i / (TILE_ITEMS / 4), c = i % (TILE_ITEMS / 4) * 4;
        if (item + c < codes.plane) COPY16(&s.tile[buffer][w][c], codes.database + w * codes.plane + item + c);
    }
    COPY_COMMIT();
}

// Calls visit(q, item, distance) for the warp's queries q = 0 ... QUERIES_PER_WARP - 1 and all items of the chunk, 32
// neighboring items at a time and in order; all lanes together, also where item >= place.last.
template <typename Visit>
__device__ __forceinline__ void visit_pairs(Scan& s, const Codes& codes, const Place& place, Visit visit) {
    for (int i = threadIdx.x; i < QUERIES * N_WORDS; i += THREADS) {
        const int64_t at = int64_t(place.query - place.slot) * N_WORDS + i;
        s.query[i / N_WORDS][i % N_WORDS] = at < int64_t(codes.n_queries) * N_WORDS ? codes.queries[at] : 0;
    }
    load_tile(s, codes, place.first, 0);
    int buffer = 0;
    for (int64_t item = place.first; item < place.last; item += TILE_ITEMS, buffer ^= 1) {
        COPY_WAIT(0);
        __syncthreads();  // this tile has landed for all threads, and nobody still reads the one overwritten next
        if (item + TILE_ITEMS < place.last) load_tile(s, codes, item + TILE_ITEMS, buffer ^ 1);
        for (int c = place.lane; c < TILE_ITEMS; c += 32) {
            uint32_t code[N_WORDS];
#pragma unroll
            for (int w = 0; w < N_WORDS; ++w) code[w] = s.tile[buffer][w][c];
#pragma unroll
            for (int q = 0; q < QUERIES_PER_WARP; ++q) {
                uint32_t distance = 0;
#pragma unroll
                for (int w = 0; w < N_WORDS; ++w) distance += __popc(code[w] ^ s.query[place.slot + q][w]);
                visit(q, item + c, distance);
            }
        }
    }
}

struct TopK {
    Scan scan;
    uint32_t bin[QUERIES][BINS];
};

// counts (n_queries, chunks, BINS) uint32: how many items of the chunk are at each distance
extern "C" __global__ void __launch_bounds__(THREADS)
hamming_count(const uint32_t* __restrict__ database, const uint32_t* __restrict__ queries, uint32_t* __restrict__ counts,
              int64_t n, int64_t plane, int64_t chunk_items, int n_queries, int chunks) {
    DYNAMIC_SHARED(TopK, s);
    const Codes codes = {database, queries, n, plane, chunk_items, n_queries};
    const Place place(codes);
    uint32_t* bins = s->bin[place.slot];  // of all the warp's queries, one after the other
    for (int i = place.lane; i < QUERIES_PER_WARP * BINS; i += 32) bins[i] = 0;
    __syncwarp();
    visit_pairs(s->scan, codes, place, [&](int q, int64_t item, uint32_t distance) {
        if (item < place.last) atomicAdd(&bins[q * BINS + distance], 1u);
    });
    __syncwarp();
    for (int i = place.lane; i < QUERIES_PER_WARP * BINS; i += 32) {
        const int64_t query = place.query + i / BINS;
        if (query < n_queries) counts[(query * chunks + place.chunk) * BINS + i % BINS] = bins[i];
    }
}

// One block a query. counts becomes places (cut off at k); radius (n_queries,) int32 is the largest distance needed.
extern "C" __global__ void __launch_bounds__(THREADS)
hamming_plan(uint32_t* __restrict__ counts, int* __restrict__ radius, int chunks, int k) {
    DYNAMIC_SHARED(uint32_t, start);  // BINS of them
    const uint32_t limit = k;
    uint32_t* mine = counts + int64_t(blockIdx.x) * chunks * BINS;
    for (int bin = threadIdx.x; bin < BINS; bin += THREADS) {
        uint32_t total = 0;
        for (int64_t c = 0; c < chunks; ++c) total = min(total + mine[c * BINS + bin], limit);
        start[bin] = total;
    }
    __syncthreads();
    if (threadIdx.x < 32) {  // exclusive prefix sum: each lane its own stretch of bins
        constexpr int SPAN = (BINS + 31) / 32;
        const int lane = threadIdx.x, begin = min(lane * SPAN, BINS), end = min(begin + SPAN, BINS);
        uint32_t sum = 0;
        for (int bin = begin; bin < end; ++bin) sum += start[bin];
        uint32_t before = sum;
        for (int by = 1; by < 32; by *= 2) {
            const uint32_t other = __shfl_up_sync(ALL_LANES, before, by);
            before += lane >= by ? other : 0;
        }
        before -= sum;
        for (int bin = begin; bin < end; ++bin) {
            const uint32_t count = start[bin];
            start[bin] = before;
            before += count;
        }
    }
    __syncthreads();
    for (int bin = threadIdx.x; bin < BINS; bin += THREADS) {
        uint32_t at = min(start[bin], limit);
        if (at < limit && (bin == BINS - 1 || start[bin + 1] >= limit)) radius[blockIdx.x] = bin;
        for (int64_t c = 0; c < chunks; ++c) {
            const uint32_t count = mine[c * BINS + bin];
            mine[c * BINS + bin] = at;
            at = min(at + count, limit);
        }
    }
}

// distances (n_queries, k) int32 and ids (n_queries, k) int64, by distance and then by id
extern "C" __global__ void __launch_bounds__(THREADS)
hamming_collect(const uint32_t* __restrict__ database, const uint32_t* __restrict__ queries,
                const uint32_t* __restrict__ places, const int* __restrict__ radius, int* __restrict__ distances,
                int64_t* __restrict__ ids, int64_t n, int64_t plane, int64_t chunk_items, int n_queries, int chunks, int k) {
    DYNAMIC_SHARED(TopK, s);
    const Codes codes = {database, queries, n, plane, chunk_items, n_queries};
    const Place place(codes);
    uint32_t* next = s->bin[place.slot];  // next free place, per query of the warp and distance
    for (int i = place.lane; i < QUERIES_PER_WARP * BINS; i += 32) {
        const int64_t query = place.query + i / BINS;
        next[i] = query < n_queries ? places[(query * chunks + place.chunk) * BINS + i % BINS] : 0;
    }
    int reach[QUERIES_PER_WARP];
#pragma unroll
    for (int q = 0; q < QUERIES_PER_WARP; ++q) reach[q] = place.query + q < n_queries ? radius[place.query + q] : -1;
    __syncwarp();
    visit_pairs(s->scan, codes, place, [&](int q, int64_t item, uint32_t distance) {
        const bool hit = item < place.last && int(distance) <= reach[q];
        if (__ballot_sync(ALL_LANES, hit) == 0) return;
        const uint32_t peers = __match_any_sync(ALL_LANES, hit ? distance : ALL_LANES);  // lanes at the same distance
        const uint32_t rank = __popc(peers & ((1u << place.lane) - 1));
        uint32_t* free_place = &next[q * BINS + (hit ? distance : 0)];
        const uint32_t at = *free_place + rank;
        __syncwarp();  // all have read before the first of the peers moves on
        if (hit && rank == 0) *free_place += __popc(peers);
        __syncwarp();
        if (hit && at < uint32_t(k)) {
            const int64_t out = int64_t(place.query + q) * k + at;
            distances[out] = int(distance);
            ids[out] = item;
        }
    });
}

// counts (n_queries, chunks) int64: how many items of the chunk lie within the radius
extern "C" __global__ void __launch_bounds__(THREADS)
hamming_range_count(const uint32_t* __restrict__ database, const uint32_t* __restrict__ queries, int64_t* __restrict__ counts,
                    int64_t n, int64_t plane, int64_t chunk_items, int n_queries, int chunks, int radius) {
    DYNAMIC_SHARED(Scan, s);
    const Codes codes = {database, queries, n, plane, chunk_items, n_queries};
    const Place place(codes);
    int64_t found[QUERIES_PER_WARP] = {};
    visit_pairs(*s, codes, place, [&](int q, int64_t item, uint32_t distance) {
        found[q] += __popc(__ballot_sync(ALL_LANES, item < place.last && int(distance) <= radius));
    });
#pragma unroll
    for (int q = 0; q < QUERIES_PER_WARP; ++q)
        if (place.lane == 0 && place.query + q < n_queries) counts[int64_t(place.query + q) * chunks + place.chunk] = found[q];
}

// places (n_queries, chunks) int64: where the hits of a chunk begin; distances int32 and ids int64, per query by id
extern "C" __global__ void __launch_bounds__(THREADS)
hamming_range_collect(const uint32_t* __restrict__ database, const uint32_t* __restrict__ queries,
                      const int64_t* __restrict__ places, int* __restrict__ distances, int64_t* __restrict__ ids,
                      int64_t n, int64_t plane, int64_t chunk_items, int n_queries, int chunks, int radius) {
    DYNAMIC_SHARED(Scan, s);
    const Codes codes = {database, queries, n, plane, chunk_items, n_queries};
    const Place place(codes);
    int64_t next[QUERIES_PER_WARP];
#pragma unroll
    for (int q = 0; q < QUERIES_PER_WARP; ++q)
        next[q] = place.query + q < n_queries ? places[int64_t(place.query + q) * chunks + place.chunk] : 0;
    visit_pairs(*s, codes, place, [&](int q, int64_t item, uint32_t distance) {
        const bool hit = item < place.last && int(distance) <= radius && place.query + q < n_queries;
        const uint32_t hits = __ballot_sync(ALL_LANES, hit);
        if (hit) {
            const int64_t out = next[q] + __popc(hits & ((1u << place.lane) - 1));
            distances[out] = int(distance);
            ids[out] = item;
        }
        next[q] += __popc(hits);
    });
}
