// One scan for Hamming distances and float queries: sums of table entries, two tables of 16 for each byte of a code, and
// the rows of least sum kept.
//
// Codes lie in blocks of 64 rows, the bytes of the rows side by side (kernels.h), so one instruction looks up a register
// of rows. Rows that come one after the other are turned into blocks in cache, as they are scanned.
//
// Hamming distance: the entry of value v is popcount(v ^ q). Sums are exact; those of up to 254 fit a byte.
// Float queries: with e(v) >= 0 the entry above the least of its table, m the sum of the least entries and any unit u,
//
//     score = m + sum e(v) >= m + u sum r(v),   r = floor(e / u).
//
// Sums of r in 16 bits bound the score from below. A row whose bound is beyond the k-th best so far is passed over, and
// the others, a few in a thousand, are scored exactly.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "kernels.h"
#include "sums.h"
#include "transpose.h"

namespace scq::SCQ_ISA {
namespace {

constexpr int64_t CHUNK_BYTES = 1 << 17;  // of codes that stay in L2 while query after query goes over them
constexpr int GROUP = 4;                  // queries that share a block in registers
constexpr int WIDE_GROUP = WIDTH == 32 ? 2 : 4;
constexpr int64_t TILE = 64;              // queries that share a chunk
constexpr int64_t KEPT = 1 << 22;         // rows that a thread keeps for them, at most
constexpr int64_t BLOCKS_AT_ONCE = 16;    // of codes of cells, between looks at the bound
constexpr int64_t SAMPLED_BLOCKS = 64;    // from which limits are chosen: 4,096 rows, 205 of them in the best 5 %

// ---- the rows that are kept ----

// The k least of what was offered, by score and row.
template <class Score>
class Nearest {
 public:
  Nearest(int64_t k, std::atomic<Score>* shared) : k_(k), shared_(shared) {}

  // The largest score that may still be among the least. Rows come in ascending order, so one with the score of the
  // worst is too late here; where other threads found k rows of a score, a lower row of that score may be here.
  Score bound() const {
    Score mine = std::numeric_limits<Score>::max();
    if constexpr (std::numeric_limits<Score>::has_infinity) mine = std::numeric_limits<Score>::infinity();
    if ((int64_t)heap_.size() == k_) mine = heap_.front().first - (std::is_integral_v<Score> ? 1 : 0);
    return shared_ ? std::min(mine, shared_->load(std::memory_order_relaxed)) : mine;
  }

  void offer(Score score, int64_t row) {
    std::pair<Score, int64_t> hit(score, row);
    if ((int64_t)heap_.size() == k_) {
      if (!(hit < heap_.front())) return;
      std::pop_heap(heap_.begin(), heap_.end());
      heap_.back() = hit;
    } else {
      heap_.push_back(hit);
    }
    std::push_heap(heap_.begin(), heap_.end());
    if (shared_ && (int64_t)heap_.size() == k_) {
      Score worst = heap_.front().first, known = shared_->load(std::memory_order_relaxed);
      while (worst < known && !shared_->compare_exchange_weak(known, worst, std::memory_order_relaxed)) {
      }
    }
  }

  std::vector<std::pair<Score, int64_t>>& heap() { return heap_; }

 private:
  int64_t k_;
  std::atomic<Score>* shared_;
  std::vector<std::pair<Score, int64_t>> heap_;
};

// Every row within a radius of one query.
class Within {
 public:
  Within(int64_t query, int32_t radius, Pairs* found) : query_(query), radius_(radius), found_(found) {}
  int32_t bound() const { return radius_; }
  void offer(int32_t distance, int64_t row) {
    found_->query.push_back(query_);
    found_->distance.push_back(distance);
    found_->row.push_back(row);
  }

 private:
  int64_t query_;
  int32_t radius_;
  Pairs* found_;
};

// ---- what is summed ----

struct Block {
  const uint8_t* bytes;
  int64_t first_row;  // the place of its first row
};

// The rows of a block that there are, and that may be found.
uint64_t allowed_rows(const Part& part, int64_t block) {
  uint64_t allowed = part.allowed ? part.allowed[block] : ~0ull;
  int64_t left = part.rows - block * 64;
  return left < 64 ? allowed & ((1ull << left) - 1) : allowed;
}

class Hamming {
 public:
  using Score = int32_t;
  static constexpr bool high_only = false;

  Hamming(const uint8_t* queries, int64_t n, int64_t width)
      : width_(width), tables_(hamming_tables(queries, n, width)) {}

  int64_t stretch() const { return HAMMING_STRETCH; }
  const uint8_t* table(int64_t q) const { return &tables_[q * width_ * 32]; }
  int64_t limit(int64_t, int32_t bound) const { return std::min<int64_t>(bound, 8 * width_); }
  bool in_bytes(int64_t most) const { return width_ <= HAMMING_STRETCH || most < 255; }

  template <class Kept>
  void offer(int64_t, uint64_t rows, const uint16_t* sums, const Block& block, Kept& kept) const {
    for (; rows; rows &= rows - 1) {
      int r = __builtin_ctzll(rows);
      kept.offer(sums[r], block.first_row + r);
    }
  }

 private:
  int64_t width_;
  std::vector<uint8_t> tables_;
};

// Where the sums of tables that are rounded down to bytes begin, and their unit.
struct Rounded {
  float start, unit;

  // the largest sum of a row whose score may be within the bound
  int64_t limit(float bound) const {
    if (std::isinf(start)) return 65535;
    double steps = ((double)bound - start) / unit;
    return steps >= 0 ? (int64_t)std::min(steps, 65535.0) : -1;
  }
};

// Round tables of `size` entries down to bytes. Entries of `together` tables add up to at most 255, and those of all
// tables to at most 65535. The exact score is a sum of float32, which may be below the true one by its rounding: so much
// is taken off the start.
Rounded round_down(const float* entries, int64_t tables, int64_t size, int64_t together, uint8_t* out) {
  std::vector<double> least(tables);
  double start = 0, most = 0, widest = 0, total = 0;
  for (int64_t i = 0; i < tables; i += together) {
    double range = 0;
    for (int64_t t = i; t < i + together; t++) {
      auto [low, high] = std::minmax_element(entries + t * size, entries + (t + 1) * size);
      least[t] = *low;
      start += *low;
      most += std::max(std::fabs((double)*low), std::fabs((double)*high));
      range += (double)*high - *low;
    }
    widest = std::max(widest, range);
    total += range;
  }
  if (!(most < 1e37)) {
    // sums of these numbers may overflow: no row is passed over
    std::fill(out, out + tables * size, (uint8_t)0);
    return {-std::numeric_limits<float>::infinity(), 1};
  }
  double steps = std::max(widest / 254, total / 65000);
  float unit = steps > 1e-37 ? (float)steps : 1;
  for (int64_t t = 0; t < tables; t++)
    for (int64_t v = 0; v < size; v++)
      out[t * size + v] = (uint8_t)std::min((entries[t * size + v] - least[t]) * ((1 - 1e-9) / unit), 255.0);
  double rounding = (double)(tables + 16) * std::numeric_limits<float>::epsilon() * most;
  return {(float)(start - rounding), unit};
}

class Scores {
 public:
  using Score = float;
  static constexpr bool high_only = false;

  Scores(const Tables& tables, int64_t width)
      : width_(width), given_(tables), tables_(tables.queries * width * 32), rounded_(tables.queries) {
    for (int64_t q = 0; q < tables.queries; q++)
      rounded_[q] = round_down(tables.entries + q * width * 32, 2 * width, 16, 2, &tables_[q * width * 32]);
  }

  int64_t stretch() const { return 1; }
  const uint8_t* table(int64_t q) const { return &tables_[q * width_ * 32]; }
  bool in_bytes(int64_t) const { return false; }

  int64_t limit(int64_t q, float bound) const { return rounded_[q].limit(bound); }

  template <class Kept>
  void offer(int64_t q, uint64_t rows, const uint16_t*, const Block& block, Kept& kept) const {
    const float* entries = given_.entries + q * width_ * 32;
    for (; rows; rows &= rows - 1) {
      int r = __builtin_ctzll(rows);
      float score = 0;
      for (int64_t c = 0; c < width_; c++) {
        uint8_t v = block.bytes[c * 64 + r];
        score += entries[32 * c + (v & 15)] + entries[32 * c + 16 + (v >> 4)];
      }
      kept.offer(std::isnan(score) ? std::numeric_limits<float>::infinity() : score, block.first_row + r);
    }
  }

 private:
  int64_t width_;
  Tables given_;
  std::vector<uint8_t> tables_;
  std::vector<Rounded> rounded_;
};

// Product codes: a byte is one of 256 cells, with an entry each.
class Cells {
 public:
  using Score = float;
  static constexpr bool high_only = true;

  Cells(const float* entries, int64_t width) : width_(width), entries_(entries) {}

  template <class Kept>
  void offer(int64_t q, uint64_t rows, const uint16_t*, const Block& block, Kept& kept) const {
    const float* entries = entries_ + q * width_ * 256;
    for (; rows; rows &= rows - 1) {
      int r = __builtin_ctzll(rows);
      float score = 0;
      for (int64_t c = 0; c < width_; c++) score += entries[256 * c + block.bytes[c * 64 + r]];
      kept.offer(std::isnan(score) ? std::numeric_limits<float>::infinity() : score, block.first_row + r);
    }
  }

 protected:
  int64_t width_;
  const float* entries_;
};

// The high nibble of a byte is one of 16 groups of cells. The sums of the groups' mean entries say which rows are worth
// the sum of their cells' entries: those up to a limit that `choose_limits` finds.
class GroupedCells : public Cells {
 public:
  GroupedCells(const float* entries, int64_t n, int64_t width)
      : Cells(entries, width), tables_(n * width * 32), limits_(n, 65535) {
    std::vector<double> means(width * 16);
    for (int64_t q = 0; q < n; q++) {
      double widest = 0;
      for (int64_t c = 0; c < width; c++) {
        for (int group = 0; group < 16; group++) {
          const float* e = entries + (q * width + c) * 256 + 16 * group;
          means[16 * c + group] = std::accumulate(e, e + 16, 0.0) / 16;
        }
        auto [low, high] = std::minmax_element(&means[16 * c], &means[16 * c] + 16);
        double least = *low;
        widest = std::max(widest, *high - least);
        for (int group = 0; group < 16; group++) means[16 * c + group] -= least;
      }
      // two entries fit a byte, and all of them 16 bits
      double unit = std::max(widest / 127, widest * (double)width / 65000);
      for (int64_t i = 0; i < 16 * width; i++)
        tables_[q * width * 32 + i / 16 * 32 + 16 + i % 16] = (uint8_t)(unit > 0 && std::isfinite(unit) ? means[i] / unit + 0.5 : 0);
    }
  }

  int64_t stretch() const { return 2; }
  const uint8_t* table(int64_t q) const { return &tables_[q * width_ * 32]; }
  bool in_bytes(int64_t) const { return false; }
  int64_t largest() const { return std::min<int64_t>(127 * width_, 65535); }
  int64_t limit(int64_t q, float) const { return limits_[q]; }
  void set_limit(int64_t q, int64_t limit) { limits_[q] = limit; }

 private:
  std::vector<uint8_t> tables_;
  std::vector<int64_t> limits_;
};

#if SCQ_AVX512
// Where one instruction looks up 64 cells, sums of all entries in bytes bound the scores of all rows, as in `Scores`.
class BoundedCells : public Cells {
 public:
  BoundedCells(const float* entries, int64_t n, int64_t width)
      : Cells(entries, width), tables_(n * width * 256), rounded_(n) {
    for (int64_t q = 0; q < n; q++)
      rounded_[q] = round_down(entries + q * width * 256, width, 256, 1, &tables_[q * width * 256]);
  }

  template <class Kept>
  void scan(int64_t q, const Part& part, const uint8_t* blocks, int64_t first, int64_t count, Kept& kept) const {
    uint64_t rows[BLOCKS_AT_ONCE];
    for (int64_t start = 0; start < count; start += BLOCKS_AT_ONCE) {
      int64_t limit = rounded_[q].limit(kept.bound()), height = std::min(BLOCKS_AT_ONCE, count - start);
      if (limit < 0) continue;
      rows_below(blocks + start * 64 * width_, height, width_, &tables_[q * width_ * 256], limit, rows);
      for (int64_t b = 0; b < height; b++) {
        int64_t number = first + start + b;
        rows[b] &= allowed_rows(part, number);
        if (rows[b]) offer(q, rows[b], nullptr, {blocks + (start + b) * 64 * width_, part.first + number * 64}, kept);
      }
    }
  }

 private:
  std::vector<uint8_t> tables_;
  std::vector<Rounded> rounded_;
};
#endif

// ---- the scan ----

// Go over the blocks of a part with Q queries from number q on, with sums in bytes or in words.
template <int Q, bool InBytes, class Kind, class Kept>
void scan_group(const Kind& kind, int64_t q, const Part& part, const uint8_t* blocks, int64_t first, int64_t count,
                int64_t width, Kept* kept) {
  const uint8_t* tables[Q];
  int64_t limits[Q];
  for (int i = 0; i < Q; i++) {
    tables[i] = kind.table(q + i);
    limits[i] = kind.limit(q + i, kept[i].bound());
  }
  auto take = [&](const auto& sums, uint64_t allowed, const Block& block) {
    uint16_t stored[64];
    for (int i = 0; i < Q; i++) {
      uint64_t rows = 0;
      if (limits[i] >= 0) rows = rows_below(sums, i, limits[i]) & allowed;
      if (!rows) continue;
      if constexpr (!Kind::high_only) store(sums, i, stored);
      kind.offer(q + i, rows, stored, block, kept[i]);
      limits[i] = kind.limit(q + i, kept[i].bound());
    }
  };
  for (int64_t b = 0; b < count; b++) {
    uint64_t allowed = allowed_rows(part, first + b);
    if (!allowed) continue;
    Block block{blocks + b * 64 * width, part.first + (first + b) * 64};
    if constexpr (InBytes) {
      ByteSums<Q> sums;
      sum_in_bytes<Q>(block.bytes, width, tables, sums);
      take(sums, allowed, block);
    } else {
      WordSums<Q> sums;
      sum_in_words<Q, Kind::high_only>(block.bytes, width, tables, kind.stretch(), sums);
      take(sums, allowed, block);
    }
  }
}

struct Chunk {
  const Part* part;
  int64_t first, count;  // blocks
};

std::vector<Chunk> cut(const std::vector<Part>& parts, int64_t width) {
  std::vector<Chunk> chunks;
  int64_t height = std::max<int64_t>(1, CHUNK_BYTES / (64 * width));
  for (const Part& part : parts) {
    int64_t blocks = (part.rows + 63) / 64;
    for (int64_t first = 0; first < blocks; first += height)
      chunks.push_back({&part, first, std::min(height, blocks - first)});
  }
  return chunks;
}

// Go over the blocks of a chunk.
template <class Kind, class Kept>
void go_over(const Kind& kind, const Chunk& chunk, const uint8_t* blocks, int64_t q, int64_t end, int64_t width,
             Kept* kept) {
  // Limits only fall, so sums that fit bytes at the start of a chunk do so to its end.
  auto in_bytes = [&](int64_t size) {
    int64_t most = -1;
    for (int64_t i = 0; i < size; i++) most = std::max(most, kind.limit(q + i, kept[i].bound()));
    return kind.in_bytes(most);
  };
  while (q < end) {
    auto go = [&](auto size, auto bytes) {
      scan_group<size, bytes>(kind, q, *chunk.part, blocks, chunk.first, chunk.count, width, kept);
      q += size;
      kept += size;
    };
    if (end - q >= GROUP && in_bytes(GROUP)) go(std::integral_constant<int, GROUP>(), std::true_type());
    else if (end - q >= WIDE_GROUP && !in_bytes(WIDE_GROUP))
      go(std::integral_constant<int, WIDE_GROUP>(), std::false_type());
    else if (in_bytes(1)) go(std::integral_constant<int, 1>(), std::true_type());
    else go(std::integral_constant<int, 1>(), std::false_type());
  }
}

#if SCQ_AVX512
template <class Kept>
void go_over(const BoundedCells& kind, const Chunk& chunk, const uint8_t* blocks, int64_t q, int64_t end, int64_t,
             Kept* kept) {
  for (; q < end; q++, kept++) kind.scan(q, *chunk.part, blocks, chunk.first, chunk.count, *kept);
}
#endif

// Go over a chunk with queries q .. end - 1. Codes that lie row by row are laid out in `scratch` first.
template <class Kind, class Kept>
void scan_chunk(const Kind& kind, const Chunk& chunk, int64_t q, int64_t end, int64_t width,
                std::vector<uint8_t>& scratch, Kept* kept) {
  const Part& part = *chunk.part;
  const uint8_t* blocks = part.codes + chunk.first * 64 * width;
  if (!part.blocked) {
    scratch.resize(std::max<size_t>(scratch.size(), chunk.count * 64 * width));
    int64_t rows = std::min(chunk.count * 64, part.rows - chunk.first * 64);
    lay_out(blocks, rows, width, scratch.data(), (part.rows - chunk.first * 64 - rows) * width);
    blocks = scratch.data();
  }
  go_over(kind, chunk, blocks, q, end, width, kept);
}

// ---- searches ----

// Copy the best of each query to the answer.
template <class Score>
void write(std::vector<std::pair<Score, int64_t>>& hits, int64_t k, Score* scores, int64_t* rows) {
  std::sort(hits.begin(), hits.end());
  for (int64_t i = 0; i < std::min<int64_t>(k, hits.size()); i++) scores[i] = hits[i].first, rows[i] = hits[i].second;
}

template <class Kind, class Score = typename Kind::Score>
bool find_least(const Call& call, const std::vector<Part>& parts, int64_t width, const Kind& kind, int64_t n_queries,
                int64_t k, Score* scores, int64_t* rows) {
  std::vector<Chunk> chunks = cut(parts, width);
  int64_t n = 0;
  for (const Part& part : parts) n += part.rows;
  int64_t kept = std::min(k, n);
  if (!kept || !n_queries) return true;
  // Enough queries for every thread: each takes some of them through all rows. Otherwise the threads share the rows.
  if (n_queries >= GROUP * call.threads) {
    int64_t per_thread = (n_queries + call.threads - 1) / call.threads;
    int64_t tile = std::min({TILE, (per_thread + GROUP - 1) / GROUP * GROUP, std::max<int64_t>(1, KEPT / kept)});
    return run((n_queries + tile - 1) / tile, call.threads, call.interrupted, [&](Job& job, int64_t number, int) {
      int64_t q = number * tile, end = std::min(n_queries, q + tile);
      std::vector<uint8_t> scratch;
      std::vector<Nearest<Score>> nearest(end - q, Nearest<Score>(kept, nullptr));
      for (const Chunk& chunk : chunks) {
        if (job.stopped()) return;
        scan_chunk(kind, chunk, q, end, width, scratch, nearest.data());
      }
      for (int64_t i = q; i < end; i++) write(nearest[i - q].heap(), k, scores + i * k, rows + i * k);
    });
  }
  struct Mine {
    std::vector<uint8_t> scratch;
    std::vector<Nearest<Score>> nearest;
  };
  std::vector<std::atomic<Score>> bounds(n_queries);
  for (auto& bound : bounds)
    bound = std::numeric_limits<Score>::has_infinity ? std::numeric_limits<Score>::infinity()
                                                     : std::numeric_limits<Score>::max();
  std::vector<Mine> of_thread(call.threads);
  bool done = run(chunks.size(), call.threads, call.interrupted, [&](Job&, int64_t number, int thread) {
    Mine& mine = of_thread[thread];
    if (mine.nearest.empty())
      for (int64_t i = 0; i < n_queries; i++) mine.nearest.emplace_back(kept, &bounds[i]);
    scan_chunk(kind, chunks[number], 0, n_queries, width, mine.scratch, mine.nearest.data());
  });
  if (!done) return false;
  return run(n_queries, n_queries * k < 4096 ? 1 : call.threads, call.interrupted, [&](Job&, int64_t q, int) {
    std::vector<std::pair<Score, int64_t>> hits;
    for (Mine& mine : of_thread)
      if (!mine.nearest.empty()) {
        auto& heap = mine.nearest[q].heap();
        hits.insert(hits.end(), heap.begin(), heap.end());
      }
    write(hits, k, scores + q * k, rows + q * k);
  });
}

}  // namespace

void to_blocks(const uint8_t* codes, int64_t rows, int64_t width, uint8_t* blocks) {
  lay_out(codes, rows, width, blocks, 0);
}

void to_rows(const uint8_t* blocks, int64_t rows, int64_t width, uint8_t* codes) {
  for (int64_t row = 0; row < rows; row++)
    for (int64_t c = 0; c < width; c++) codes[row * width + c] = blocks[(row / 64 * width + c) * 64 + row % 64];
}

bool nearest(const Call& call, const std::vector<Part>& parts, int64_t width, const uint8_t* queries,
             int64_t n_queries, int64_t k, int32_t* distances, int64_t* rows) {
  return find_least(call, parts, width, Hamming(queries, n_queries, width), n_queries, k, distances, rows);
}

bool least(const Call& call, const std::vector<Part>& parts, int64_t width, const Tables& tables, int64_t k,
           float* scores, int64_t* rows) {
  return find_least(call, parts, width, Scores(tables, width), tables.queries, k, scores, rows);
}

// For each query the sum of groups up to which about `keep` of the allowed rows lie, from a sample of blocks.
bool choose_limits(const Call& call, const std::vector<Part>& parts, int64_t width, GroupedCells& kind,
                   int64_t n_queries, int64_t keep, int64_t& rows_allowed) {
  int64_t blocks = 0;
  for (const Part& part : parts) blocks += (part.rows + 63) / 64;
  int64_t step = std::max<int64_t>(1, blocks / SAMPLED_BLOCKS), b = 0;
  std::vector<uint8_t> bytes;
  std::vector<uint64_t> allowed;
  rows_allowed = 0;
  for (const Part& part : parts) {
    int64_t count = (part.rows + 63) / 64;
    if (!part.allowed) rows_allowed += part.rows;
    for (int64_t i = 0; part.allowed && i < count; i++) rows_allowed += __builtin_popcountll(allowed_rows(part, i));
    for (; b < count; b += step) {
      bytes.resize(bytes.size() + 64 * width);
      uint8_t* block = bytes.data() + bytes.size() - 64 * width;
      const uint8_t* from = part.codes + b * 64 * width;
      if (part.blocked) std::memcpy(block, from, 64 * width);
      else lay_out(from, std::min<int64_t>(64, part.rows - b * 64), width, block, 0);
      allowed.push_back(allowed_rows(part, b));
    }
    b -= count;
  }
  if (keep >= rows_allowed) return true;
  return run(n_queries, call.threads, call.interrupted, [&](Job&, int64_t q, int) {
    std::vector<int32_t> counts(kind.largest() + 1);
    const uint8_t* table = kind.table(q);
    int64_t sampled = 0;
    for (size_t i = 0; i < allowed.size(); i++) {
      WordSums<1> found;
      uint16_t stored[64];
      sum_in_words<1, true>(bytes.data() + i * 64 * width, width, &table, kind.stretch(), found);
      store(found, 0, stored);
      sampled += __builtin_popcountll(allowed[i]);
      for (uint64_t rows = allowed[i]; rows; rows &= rows - 1) counts[stored[__builtin_ctzll(rows)]]++;
    }
    if (!sampled) return;
    int64_t left = (int64_t)((double)keep / rows_allowed * sampled), limit = 0;
    while ((left -= counts[limit]) >= 0) limit++;
    kind.set_limit(q, limit);
  });
}

bool cells(const Call& call, const std::vector<Part>& parts, int64_t width, const float* entries, int64_t n_queries,
           int64_t keep, int64_t k, float* scores, int64_t* rows) {
#if SCQ_AVX512
  if (has_wide_lookup()) {
    BoundedCells kind(entries, n_queries, width);
    return find_least(call, parts, width, kind, n_queries, k, scores, rows);
  }
#endif
  GroupedCells kind(entries, n_queries, width);
  int64_t rows_allowed, found;
  bool done = choose_limits(call, parts, width, kind, n_queries, std::max(keep, k), rows_allowed) &&
              find_least(call, parts, width, kind, n_queries, k, scores, rows);
  found = std::min(k, rows_allowed);
  // where the sample misled, fewer than k rows were scored: all of them, then
  for (int64_t q = 0; q < n_queries && done && found; q++)
    if (rows[q * k + found - 1] < 0)
      done = find_least(call, parts, width, GroupedCells(entries + q * width * 256, 1, width), 1, k, scores + q * k, rows + q * k);
  return done;
}

bool within(const Call& call, const std::vector<Part>& parts, int64_t width, const uint8_t* queries,
            int64_t n_queries, int64_t radius, std::vector<Pairs>& found) {
  std::vector<Chunk> chunks = cut(parts, width);
  Hamming kind(queries, n_queries, width);
  std::vector<std::vector<uint8_t>> scratch(call.threads);
  found.assign(call.threads, Pairs());
  return run(chunks.size(), call.threads, call.interrupted, [&](Job& job, int64_t number, int thread) {
    for (int64_t q = 0; q < n_queries && !job.stopped(); q += TILE) {
      std::vector<Within> kept;
      int64_t end = std::min(n_queries, q + TILE);
      for (int64_t i = q; i < end; i++) kept.emplace_back(i, (int32_t)radius, &found[thread]);
      scan_chunk(kind, chunks[number], q, end, width, scratch[thread], kept.data());
    }
  });
}

}  // namespace scq::SCQ_ISA
