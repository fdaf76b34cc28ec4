// A hash map from ids, which are numbers or strings, to the places of rows.
#pragma once
#include <cstdint>
#include <memory>

namespace scq {

// Numbers, or strings in rows of `width` bytes with zeros behind them.
struct Ids {
  const void* data;
  int64_t count, width;
};

// Not for several threads at once. What fails changes nothing.
class IdMap {
 public:
  static std::unique_ptr<IdMap> of_numbers();
  static std::unique_ptr<IdMap> of_strings();
  virtual ~IdMap() = default;

  virtual int64_t size() const = 0;

  // The place of each id, -1 for those that are not there.
  virtual void find(const Ids&, int64_t* places) const = 0;

  // Returns -1, or the number of the first id that is there already or comes twice.
  virtual int64_t insert(const Ids&, const int64_t* places) = 0;

  // Return -1, or the number of the first id that is not there; one that is erased twice is not.
  virtual int64_t move(const Ids&, const int64_t* places) = 0;
  virtual int64_t erase(const Ids&) = 0;
};

}  // namespace scq
