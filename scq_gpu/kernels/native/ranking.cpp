// Rankings for the metrics: how many codes, and relevant codes, lie at each distance of a query. Distances are small
// integers, so a ranking is a histogram and nothing is sorted. A second pass looks at the order of the database inside
// ties, for average precision and for the first k.
#include <algorithm>

#include "kernels.h"
#include "sums.h"
#include "transpose.h"

namespace scq::SCQ_ISA {

namespace {

constexpr int64_t CHUNK = 1 << 13;  // rows whose keys and blocks stay in cache
constexpr int64_t TILE = 8;         // queries that share a chunk

enum Average { NONE, STANDARD, TRAPEZOID };

struct Data {
  const uint8_t* codes;
  int64_t n, width;
  const uint64_t* labels;
  int64_t label_words;
  bool shared;  // relevant: a label in common; otherwise the same label
};

// The state of one query between chunks of the second pass.
struct Cursor {
  std::vector<int64_t> rank, found;  // of each distance: codes, and relevant codes, that come before the next one
  int64_t tie, quota, hits;          // the distance of the k-th code, and how many of that distance are still taken
  double sum;
};

// keys[i] = 2 distance + relevant
void make_keys(const Data& data, const uint8_t* blocks, int64_t first, int64_t count, const uint8_t* table,
               const uint64_t* label, uint16_t* keys) {
  for (int64_t i = 0; i < count; i += 64) {
    WordSums<1> sums;
    sum_in_words<1>(blocks + i * data.width, data.width, &table, HAMMING_STRETCH, sums);
    store(sums, 0, keys + i);
  }
  const uint64_t* labels = data.labels + first * data.label_words;
  for (int64_t i = 0; i < count; i++, labels += data.label_words) {
    bool relevant = !data.shared && labels[0] == label[0];
    for (int64_t w = 0; data.shared && w < data.label_words; w++) relevant |= (labels[w] & label[w]) != 0;
    keys[i] = (uint16_t)(keys[i] << 1 | relevant);
  }
}

// Place the codes of a chunk at their ranks; add up the precision at the relevant ones up to rank `at`.
void follow(const uint16_t* keys, int64_t count, int average, int64_t at, Cursor& cursor) {
  for (int64_t i = 0; i < count && cursor.quota > 0; i++)
    if (keys[i] >> 1 == cursor.tie) cursor.hits += keys[i] & 1, cursor.quota--;
  if (average == NONE) return;
  for (int64_t i = 0; i < count; i++) {
    int64_t rank = ++cursor.rank[keys[i] >> 1];
    if (!(keys[i] & 1)) continue;
    double found = (double)++cursor.found[keys[i] >> 1];
    if (rank > at) continue;
    double precision = found / (double)rank;
    if (average == TRAPEZOID) precision = rank == 1 ? 1.0 : 0.5 * (precision + (found - 1) / (double)(rank - 1));
    cursor.sum += precision;
  }
}

}  // namespace

bool rank(const Call& call, const uint8_t* codes, int64_t n, int64_t width, const uint8_t* queries, int64_t n_queries,
          const uint64_t* labels, const uint64_t* query_labels, int64_t label_words, bool shared, int average,
          int64_t at, int64_t k, int64_t* counts, int64_t* hits, double* precision_sums, int64_t* top_hits) {
  Data data{codes, n, width, labels, label_words, shared};
  std::vector<uint8_t> tables = hamming_tables(queries, n_queries, width);
  int64_t levels = 8 * width + 1;
  return run((n_queries + TILE - 1) / TILE, call.threads, call.interrupted, [&](Job& job, int64_t number, int) {
    int64_t begin = number * TILE, size = std::min(TILE, n_queries - begin);
    std::vector<uint8_t> blocks(CHUNK * width);
    std::vector<uint16_t> keys(CHUNK);
    // four histograms: neighbors seldom wait for each other's store
    std::vector<int32_t> lanes(4 * 2 * levels);
    std::vector<Cursor> cursors(size);
    auto over_chunks = [&](auto&& use) {
      for (int64_t first = 0; first < n && !job.stopped(); first += CHUNK) {
        int64_t count = std::min(CHUNK, n - first);
        lay_out(codes + first * width, count, width, blocks.data(), (n - first - count) * width);
        for (int64_t i = 0; i < size; i++) {
          int64_t q = begin + i;
          make_keys(data, blocks.data(), first, count, &tables[q * width * 32], query_labels + q * label_words,
                    keys.data());
          use(i, count);
        }
      }
    };
    over_chunks([&](int64_t i, int64_t count) {
      int32_t* lane = lanes.data();
      std::fill(lanes.begin(), lanes.end(), 0);
      for (int64_t at_key = 0; at_key < count; at_key++) lane[at_key % 4 * 2 * levels + keys[at_key]]++;
      for (int64_t d = 0; d < levels; d++) {
        int64_t sums[2] = {0, 0};
        for (int l = 0; l < 4; l++)
          for (int relevant = 0; relevant < 2; relevant++) sums[relevant] += lane[l * 2 * levels + 2 * d + relevant];
        counts[(begin + i) * levels + d] += sums[0] + sums[1];
        hits[(begin + i) * levels + d] += sums[1];
      }
    });
    if (average == NONE && k == 0) return;
    for (int64_t i = 0; i < size; i++) {
      Cursor& cursor = cursors[i];
      cursor = {std::vector<int64_t>(levels), std::vector<int64_t>(levels), -1, 0, 0, 0.0};
      int64_t before = 0, relevant = 0;
      for (int64_t d = 0; d < levels; d++) {
        cursor.rank[d] = before;
        cursor.found[d] = relevant;
        // the last distance that begins before rank k
        if (before < k) cursor.tie = d, cursor.quota = k - before, cursor.hits = relevant;
        before += counts[(begin + i) * levels + d];
        relevant += hits[(begin + i) * levels + d];
      }
    }
    over_chunks([&](int64_t i, int64_t count) { follow(keys.data(), count, average, at, cursors[i]); });
    for (int64_t i = 0; i < size; i++) {
      precision_sums[begin + i] = cursors[i].sum;
      top_hits[begin + i] = cursors[i].hits;
    }
  });
}

}  // namespace scq::SCQ_ISA
