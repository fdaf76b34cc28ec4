// Open addressing with linear probing. Slots are erased by moving later ones back, so none is left behind as a tombstone.
//
// Ids may come from somebody who would like all of them in one slot, so the hash has a key that is drawn at random in
// each process: SipHash-1-3 (J.-P. Aumasson, D. J. Bernstein, "SipHash: a fast short-input PRF", 2012).
#include "ids.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <random>
#include <type_traits>
#include <utility>
#include <vector>

namespace scq {
namespace {

constexpr int64_t AHEAD = 32;  // ids that are hashed, and their slots fetched, before the first of them is looked up
constexpr double FULL = 0.75, GROWN = 0.6;  // of the slots

class Hash {
 public:
  uint64_t operator()(const uint8_t* bytes, size_t length) const {
    uint64_t v[4] = {key_[0] ^ 0x736f6d6570736575, key_[1] ^ 0x646f72616e646f6d, key_[0] ^ 0x6c7967656e657261,
                     key_[1] ^ 0x7465646279746573};
    uint64_t word;
    size_t i = 0;
    for (; i + 8 <= length; i += 8) {
      std::memcpy(&word, bytes + i, 8);
      take(v, word);
    }
    word = (uint64_t)length << 56;
    for (size_t j = i; j < length; j++) word |= (uint64_t)bytes[j] << 8 * (j - i);
    take(v, word);
    v[2] ^= 0xff;
    for (int i = 0; i < 3; i++) round(v);
    return v[0] ^ v[1] ^ v[2] ^ v[3];
  }

 private:
  static void take(uint64_t* v, uint64_t word) {
    v[3] ^= word;
    round(v);
    v[0] ^= word;
  }
  static uint64_t rotated(uint64_t x, int bits) { return x << bits | x >> (64 - bits); }
  static void round(uint64_t* v) {
    v[0] += v[1], v[2] += v[3];
    v[1] = rotated(v[1], 13) ^ v[0], v[3] = rotated(v[3], 16) ^ v[2];
    v[0] = rotated(v[0], 32);
    v[2] += v[1], v[0] += v[3];
    v[1] = rotated(v[1], 17) ^ v[2], v[3] = rotated(v[3], 21) ^ v[0];
    v[2] = rotated(v[2], 32);
  }
  static uint64_t drawn() {
    std::random_device source;
    return (uint64_t)source() << 32 ^ source();
  }
  uint64_t key_[2] = {drawn(), drawn()};
};

const Hash& hash() {
  static const Hash of_process;
  return of_process;
}

// What a slot keeps of an id: the number itself.
class Numbers {
 public:
  using Key = int64_t;
  struct Id {
    int64_t number;
    uint64_t hash;
  };
  static Id get(const Ids& ids, int64_t i) {
    int64_t number = ((const int64_t*)ids.data)[i];
    return {number, hash_of(number)};
  }
  static uint64_t hash_of(Key key) { return hash()((const uint8_t*)&key, sizeof key); }
  static bool same(Key key, const Id& id) { return key == id.number; }
  static Key keep(const Id& id) { return id.number; }
  static void drop(Key) {}
};

// Or the hash of the string, which then need not be read again, and where its length and bytes lie among those of all.
class Strings {
 public:
  struct Key {
    uint64_t hash, at;
  };
  struct Id {
    const uint8_t* bytes;
    uint64_t length, hash;
  };
  static Id get(const Ids& ids, int64_t i) {
    const uint8_t* bytes = (const uint8_t*)ids.data + i * ids.width;
    int64_t length = ids.width;
    while (length && !bytes[length - 1]) length--;
    return {bytes, (uint64_t)length, hash()(bytes, length)};
  }
  static uint64_t hash_of(const Key& key) { return key.hash; }
  bool same(const Key& key, const Id& id) const {
    return key.hash == id.hash && length(key) == id.length && !std::memcmp(&bytes_[key.at] + 8, id.bytes, id.length);
  }
  Key keep(const Id& id) {
    size_t at = bytes_.size();
    bytes_.resize(at + 8 + id.length);
    std::memcpy(&bytes_[at], &id.length, 8);
    std::memcpy(&bytes_[at] + 8, id.bytes, id.length);
    return {id.hash, at};
  }
  Key keep(const Key& key, const Strings& other) {
    return keep(Id{&other.bytes_[key.at] + 8, other.length(key), key.hash});
  }
  void drop(const Key& key) { dropped_ += 8 + length(key); }
  bool make_space(const Strings& other) {
    try {
      bytes_.reserve(other.bytes_.size() - other.dropped_);
    } catch (const std::bad_alloc&) {
      return false;
    }
    return true;
  }
  bool wasteful() const { return dropped_ > 4096 + bytes_.size() / 2; }

 private:
  uint64_t length(const Key& key) const {
    uint64_t length;
    std::memcpy(&length, &bytes_[key.at], 8);
    return length;
  }
  std::vector<uint8_t> bytes_;
  size_t dropped_ = 0;
};

template <class Keys>
class Table final : public IdMap {
 public:
  int64_t size() const override { return size_; }

  void find(const Ids& ids, int64_t* places) const override {
    each(ids, [&](int64_t i, const auto& id) {
      places[i] = slots_[slot_of(id)].place - 1;
      return true;
    });
  }

  int64_t insert(const Ids& ids, const int64_t* places) override {
    reserve(size_ + ids.count);
    int64_t inserted = 0;
    auto take_back = [&] {
      for (int64_t i = 0; i < inserted; i++) erase_slot(slot_of(keys_.get(ids, i)));
      gather();
    };
    try {
      inserted = each(ids, [&](int64_t i, const auto& id) {
        Slot& slot = slots_[slot_of(id)];
        if (slot.place) return false;
        slot = {keys_.keep(id), places[i] + 1};
        size_++, inserted++;
        return true;
      });
    } catch (...) {
      take_back();
      throw;
    }
    if (inserted == ids.count) return -1;
    take_back();
    return inserted;
  }

  int64_t move(const Ids& ids, const int64_t* places) override {
    int64_t known = each(ids, [&](int64_t, const auto& id) { return slots_[slot_of(id)].place != 0; });
    if (known < ids.count) return known;
    each(ids, [&](int64_t i, const auto& id) {
      slots_[slot_of(id)].place = places[i] + 1;
      return true;
    });
    return -1;
  }

  int64_t erase(const Ids& ids) override {
    // The slots to erase have a negative place meanwhile, so an id that comes twice is noticed
    int64_t known = each(ids, [&](int64_t, const auto& id) {
      int64_t& place = slots_[slot_of(id)].place;
      if (place <= 0) return false;
      place = -place;
      return true;
    });
    each({ids.data, known, ids.width}, [&](int64_t, const auto& id) {
      size_t s = slot_of(id);
      if (known < ids.count) slots_[s].place *= -1;
      else erase_slot(s);
      return true;
    });
    gather();
    return known < ids.count ? known : -1;
  }

 private:
  struct Slot {
    typename Keys::Key key;
    int64_t place;  // plus one; 0 for an empty slot
  };

  // Call `function(i, id)` for each id until it returns false; return how many times it returned true.
  template <class Function>
  int64_t each(const Ids& ids, Function&& function) const {
    typename Keys::Id ahead[AHEAD];
    for (int64_t first = 0; first < ids.count; first += AHEAD) {
      int64_t count = std::min(AHEAD, ids.count - first);
      for (int64_t i = 0; i < count; i++) {
        ahead[i] = keys_.get(ids, first + i);
        __builtin_prefetch(&slots_[home(ahead[i].hash)]);
      }
      for (int64_t i = 0; i < count; i++)
        if (!function(first + i, ahead[i])) return first + i;
    }
    return ids.count;
  }

  size_t home(uint64_t hash) const { return (size_t)((unsigned __int128)hash * slots_.size() >> 64); }
  size_t after(size_t s) const { return s + 1 == slots_.size() ? 0 : s + 1; }
  size_t steps(size_t from, size_t to) const { return to >= from ? to - from : to + slots_.size() - from; }

  // The slot of an id, or the empty one where it would be.
  size_t slot_of(const typename Keys::Id& id) const {
    size_t s = home(id.hash);
    while (slots_[s].place && !keys_.same(slots_[s].key, id)) s = after(s);
    return s;
  }

  void erase_slot(size_t hole) {
    keys_.drop(slots_[hole].key);
    // A later id moves into the hole, unless its search begins behind it
    for (size_t s = after(hole); slots_[s].place; s = after(s))
      if (steps(home(Keys::hash_of(slots_[s].key)), s) >= steps(hole, s)) {
        slots_[hole] = slots_[s];
        hole = s;
      }
    slots_[hole].place = 0;
    size_--;
  }

  void reserve(int64_t size) {
    if ((double)size <= FULL * (double)slots_.size()) return;
    std::vector<Slot> slots(std::max<size_t>((size_t)((double)size / GROWN) + 2, slots_.size() * 3 / 2));
    slots_.swap(slots);
    for (const Slot& slot : slots)
      if (slot.place) {
        size_t s = home(Keys::hash_of(slot.key));
        while (slots_[s].place) s = after(s);
        slots_[s] = slot;
      }
  }

  // Leave the bytes of erased strings behind if they are many.
  void gather() {
    if constexpr (std::is_same_v<Keys, Strings>) {
      if (!keys_.wasteful()) return;
      Strings kept;
      if (!kept.make_space(keys_)) return;
      for (Slot& slot : slots_)
        if (slot.place) slot.key = kept.keep(slot.key, keys_);
      keys_ = std::move(kept);
    }
  }

  Keys keys_;
  std::vector<Slot> slots_ = std::vector<Slot>(4);  // one of them, at least, is empty
  int64_t size_ = 0;
};

}  // namespace

std::unique_ptr<IdMap> IdMap::of_numbers() { return std::make_unique<Table<Numbers>>(); }
std::unique_ptr<IdMap> IdMap::of_strings() { return std::make_unique<Table<Strings>>(); }

}  // namespace scq
