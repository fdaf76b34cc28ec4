// Rows by their places, out of several parts.
#include <algorithm>
#include <cstring>

#include "kernels.h"

namespace scq {
namespace {

constexpr int64_t PIECE_BYTES = 1 << 20;  // of a task: less takes no longer than to wake a thread

}  // namespace

bool take(const Call& call, const std::vector<Stretch>& parts, int64_t row_bytes, const int64_t* places, int64_t n,
          uint8_t* out, int64_t& unknown) {
  std::vector<const uint8_t*> rows(n);
  for (int64_t i = 0; i < n; i++) {
    auto behind = std::upper_bound(parts.begin(), parts.end(), places[i],
                                   [](int64_t place, const Stretch& part) { return place < part.first; });
    if (behind == parts.begin() || places[i] - behind[-1].first >= behind[-1].rows) {
      unknown = i;
      return true;
    }
    rows[i] = behind[-1].data + (places[i] - behind[-1].first) * row_bytes;
  }
  unknown = -1;
  int64_t step = std::max<int64_t>(1, PIECE_BYTES / std::max<int64_t>(1, row_bytes));
  return run((n + step - 1) / step, call.threads, call.interrupted, [&](Job&, int64_t number, int) {
    for (int64_t i = number * step; i < std::min(n, (number + 1) * step); i++)
      std::memcpy(out + i * row_bytes, rows[i], row_bytes);
  });
}

}  // namespace scq
