// The Python module: checks every argument, releases the GIL, and calls the kernels of the chosen instruction set.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <mutex>
#include <optional>
#include <string>

#include "ids.h"
#include "kernels.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

template <class T, int N>
using Array = nb::ndarray<T, nb::ndim<N>, nb::c_contig, nb::device::cpu>;
using Codes = Array<const uint8_t, 2>;

const scq::Kernels* chosen = nullptr;

[[noreturn]] void refuse(const std::string& message) { throw nb::value_error(message.c_str()); }

void check(bool right, const char* message) {
  if (!right) refuse(message);
}

// Run `function(call)` without the GIL; a signal that Python handles with an exception ends it.
template <class Function>
void without_gil(int threads, Function&& function) {
  check(threads >= 1, "threads must be at least 1");
  bool done;
  {
    nb::gil_scoped_release released;
    done = function(scq::Call{threads, [] {
      nb::gil_scoped_acquire held;
      return PyErr_CheckSignals() != 0;
    }});
  }
  if (!done) throw nb::python_error();
}

// Rows to search: codes, which of them may be found, and the place of the first, by default the one after the part before.
struct Rows {
  Codes codes;
  int64_t count;
  bool blocked;
  std::optional<Array<const uint64_t, 1>> allowed;
  std::optional<int64_t> first;

  Rows(Codes codes, int64_t count, bool blocked, std::optional<Array<const uint64_t, 1>> allowed,
       std::optional<int64_t> first)
      : codes(codes), count(count), blocked(blocked), allowed(allowed), first(first) {
    check(!first || (*first >= 0 && *first <= INT64_MAX - count), "the place of a part's first row must be at least 0");
    check(count >= 0, "a part needs a count of rows of at least 0");
    int64_t blocks = (count + 63) / 64;
    // blocks come as (blocks, 64 * width)
    check(blocked ? (int64_t)codes.shape(0) >= blocks && codes.shape(1) % 64 == 0 : (int64_t)codes.shape(0) >= count,
          "a part has fewer codes than rows");
    check(!allowed || (int64_t)allowed->shape(0) >= blocks, "the bitset is shorter than the codes");
  }

  int64_t width() const { return blocked ? (int64_t)codes.shape(1) / 64 : (int64_t)codes.shape(1); }
};

std::vector<scq::Part> parts_of(const std::vector<const Rows*>& parts, int64_t width) {
  check(width >= 1, "codes need at least one byte");
  std::vector<scq::Part> found;
  int64_t next = 0;
  for (const Rows* rows : parts) {
    check(rows != nullptr && rows->width() == width, "codes and queries differ in width");
    int64_t first = rows->first.value_or(next);
    check(first >= next, "parts must come in the order of their places, and may not overlap");
    next = first + rows->count;
    found.push_back({rows->codes.data(), first, rows->count, rows->blocked,
                     rows->allowed ? rows->allowed->data() : nullptr});
  }
  return found;
}

template <class Out, class In>
void check_answer(const Out& out, const In& rows, int64_t n_queries) {
  check((int64_t)out.shape(0) == n_queries && (int64_t)rows.shape(0) == n_queries && out.shape(1) == rows.shape(1),
        "the answer does not have the shape (queries, k)");
}

void nearest(const std::vector<const Rows*>& parts, Codes queries, Array<int32_t, 2> distances, Array<int64_t, 2> rows,
             int threads) {
  int64_t width = queries.shape(1), n = queries.shape(0), k = distances.shape(1);
  check_answer(distances, rows, n);
  auto found = parts_of(parts, width);
  without_gil(threads, [&](const scq::Call& call) {
    return chosen->nearest(call, found, width, queries.data(), n, k, distances.data(), rows.data());
  });
}

void least(const std::vector<const Rows*>& parts, Array<const float, 4> entries, Array<float, 2> scores,
           Array<int64_t, 2> rows, int threads) {
  int64_t n = entries.shape(0), width = entries.shape(1), k = scores.shape(1);
  check(entries.shape(2) == 2 && entries.shape(3) == 16, "entries must have the shape (queries, bytes, 2, 16)");
  check_answer(scores, rows, n);
  auto found = parts_of(parts, width);
  scq::Tables tables{entries.data(), n};
  without_gil(threads, [&](const scq::Call& call) {
    return chosen->least(call, found, width, tables, k, scores.data(), rows.data());
  });
}

void cells(const std::vector<const Rows*>& parts, Array<const float, 3> entries, int64_t keep, Array<float, 2> scores,
           Array<int64_t, 2> rows, int threads) {
  int64_t n = entries.shape(0), width = entries.shape(1), k = scores.shape(1);
  check(entries.shape(2) == 256, "entries must have the shape (queries, bytes, 256)");
  check(keep >= 1, "keep must be at least 1");
  check_answer(scores, rows, n);
  auto found = parts_of(parts, width);
  without_gil(threads, [&](const scq::Call& call) {
    return chosen->cells(call, found, width, entries.data(), n, keep, k, scores.data(), rows.data());
  });
}

template <class T>
nb::ndarray<nb::numpy, T, nb::ndim<1>> joined(const std::vector<scq::Pairs>& pairs, std::vector<T> scq::Pairs::*field) {
  size_t size = 0;
  for (const auto& some : pairs) size += (some.*field).size();
  T* data = new T[size + 1];
  nb::capsule owner(data, [](void* p) noexcept { delete[] (T*)p; });
  T* to = data;
  for (const auto& some : pairs) to = std::copy((some.*field).begin(), (some.*field).end(), to);
  return nb::ndarray<nb::numpy, T, nb::ndim<1>>(data, {size}, owner);
}

auto within(const std::vector<const Rows*>& parts, Codes queries, int64_t radius, int threads) {
  int64_t width = queries.shape(1);
  check(radius >= 0, "the radius must be at least 0");
  auto found = parts_of(parts, width);
  std::vector<scq::Pairs> pairs;
  without_gil(threads, [&](const scq::Call& call) {
    return chosen->within(call, found, width, queries.data(), queries.shape(0), std::min(radius, 8 * width), pairs);
  });
  return std::make_tuple(joined(pairs, &scq::Pairs::query), joined(pairs, &scq::Pairs::distance),
                         joined(pairs, &scq::Pairs::row));
}

void rank(Codes codes, Codes queries, Array<const uint64_t, 2> labels, Array<const uint64_t, 2> query_labels,
          bool shared, int average, int64_t at, int64_t k, Array<int64_t, 2> counts, Array<int64_t, 2> hits,
          Array<double, 1> precision_sums, Array<int64_t, 1> top_hits, int threads) {
  int64_t n = codes.shape(0), width = codes.shape(1), q = queries.shape(0);
  check(width >= 1 && width < 4096 && (int64_t)queries.shape(1) == width, "codes and queries differ in width");
  check((int64_t)labels.shape(0) == n && (int64_t)query_labels.shape(0) == q &&
            labels.shape(1) == query_labels.shape(1) && labels.shape(1) >= 1,
        "labels do not fit the codes");
  check((int64_t)counts.shape(0) == q && (int64_t)hits.shape(0) == q && (int64_t)counts.shape(1) == 8 * width + 1 &&
            (int64_t)hits.shape(1) == 8 * width + 1 && (int64_t)precision_sums.shape(0) == q &&
            (int64_t)top_hits.shape(0) == q,
        "the answers do not have the shape of the queries");
  without_gil(threads, [&](const scq::Call& call) {
    return chosen->rank(call, codes.data(), n, width, queries.data(), q, labels.data(), query_labels.data(),
                        labels.shape(1), shared, average, at, k, counts.data(), hits.data(), precision_sums.data(),
                        top_hits.data());
  });
}

template <int N>
using Floats = nb::ndarray<nb::ro, nb::ndim<N>, nb::device::cpu>;
template <int N>
using Dense = nb::ndarray<nb::ro, nb::ndim<N>, nb::c_contig, nb::device::cpu>;

// The type of rows whose columns touch, to be multiplied in double or in float.
char type_of(const Floats<2>& X, bool in_double) {
  nb::dlpack::dtype type = X.dtype(), half{(uint8_t)nb::dlpack::dtype_code::Float, 16, 1};
  char kind = type == nb::dtype<double>() ? 'd' : type == nb::dtype<float>() ? 'f' : type == half ? 'e' : 'B';
  check(in_double ? kind == 'd' : kind == 'f' || kind == 'e' || type == nb::dtype<uint8_t>(),
        "X must be float32, float16 or uint8 with W of float32, or float64 with W of float64");
  check(X.shape(1) == 1 || X.stride(1) == 1, "the columns of X must touch");
  check((uintptr_t)X.data() % (type.bits / 8) == 0, "X must be aligned");
  return kind;
}

// Rows of any of these types; returns whether all scores were finite.
bool encode(Floats<2> X, Floats<2> W, Dense<1> t, Array<uint8_t, 2> codes, int threads) {
  int64_t n = X.shape(0), d = X.shape(1), n_bits = W.shape(1);
  bool in_double = W.dtype() == nb::dtype<double>();
  check(in_double || W.dtype() == nb::dtype<float>(), "W must be float32 or float64");
  check(t.dtype() == W.dtype() && (int64_t)t.shape(0) == n_bits && (int64_t)W.shape(0) == d && d >= 1 && n_bits >= 1,
        "X, W and t do not fit each other");
  check((int64_t)codes.shape(0) == n && (int64_t)codes.shape(1) == (n_bits + 7) / 8, "the codes have another shape");
  char kind = type_of(X, in_double);
  bool finite = true;
  without_gil(threads, [&](const scq::Call& call) {
    return chosen->encode(call, X.data(), n, X.stride(0) * (int64_t)X.itemsize(), kind, W.data(), d, n_bits, W.stride(0), W.stride(1),
                          t.data(), in_double, codes.data(), &finite);
  });
  return finite;
}

bool quantize(Floats<2> X, std::optional<Dense<1>> mean, std::optional<Floats<2>> W, Dense<3> cells, Dense<2> halves,
              Array<uint8_t, 2> codes, int threads) {
  int64_t n = X.shape(0), d = X.shape(1), n_bytes = cells.shape(0), w = cells.shape(2);
  bool in_double = cells.dtype() == nb::dtype<double>();
  check(in_double || cells.dtype() == nb::dtype<float>(), "cells must be float32 or float64");
  check(n_bytes >= 1 && w >= 1 && cells.shape(1) == 256 && halves.dtype() == cells.dtype() &&
            halves.shape(0) == cells.shape(0) && halves.shape(1) == 256,
        "cells must have the shape (bytes, 256, width), and halves (bytes, 256)");
  check(mean.has_value() == W.has_value(), "mean and W come together");
  check(W ? mean->dtype() == cells.dtype() && W->dtype() == cells.dtype() && (int64_t)mean->shape(0) == d &&
                (int64_t)W->shape(0) == d && (int64_t)W->shape(1) == n_bytes * w
          : X.dtype() == cells.dtype() && d == n_bytes * w,
        "X, W and cells do not fit each other");
  check((int64_t)codes.shape(0) == n && (int64_t)codes.shape(1) == n_bytes, "the codes have another shape");
  char kind = type_of(X, in_double);
  bool finite = true;
  scq::Quantizer by{mean ? mean->data() : nullptr, W ? W->data() : nullptr, cells.data(), halves.data(), d, n_bytes, w,
                    W ? W->stride(0) : 0, W ? W->stride(1) : 0, in_double};
  without_gil(threads, [&](const scq::Call& call) {
    return chosen->quantize(call, X.data(), n, X.stride(0) * (int64_t)X.itemsize(), kind, by, codes.data(), &finite);
  });
  return finite;
}

void add_by_cell(Codes codes, Dense<2> Y, Array<double, 3> sums, int threads) {
  int64_t n = codes.shape(0), n_bytes = codes.shape(1), w = (int64_t)sums.shape(2) - 1;
  bool in_double = Y.dtype() == nb::dtype<double>();
  check(in_double || Y.dtype() == nb::dtype<float>(), "Y must be float32 or float64");
  check(w >= 1 && (int64_t)sums.shape(0) == n_bytes && sums.shape(1) == 256 && (int64_t)Y.shape(0) == n &&
            (int64_t)Y.shape(1) == n_bytes * w,
        "codes, Y and sums do not fit each other");
  without_gil(threads, [&](const scq::Call& call) {
    return chosen->add_by_cell(call, codes.data(), Y.data(), in_double, n, n_bytes, w, sums.data());
  });
}

void take(const std::vector<Codes>& parts, Array<const int64_t, 1> firsts, Array<const int64_t, 1> places,
          Array<uint8_t, 2> out, int threads) {
  int64_t row_bytes = out.shape(1), next = 0, unknown;
  check(firsts.shape(0) == parts.size(), "firsts must have one place for each part");
  check(out.shape(0) == places.shape(0), "out must have one row for each place");
  std::vector<scq::Stretch> found;
  for (size_t i = 0; i < parts.size(); i++) {
    int64_t first = firsts.data()[i], rows = parts[i].shape(0);
    check((int64_t)parts[i].shape(1) == row_bytes, "the rows of all parts and of out must have the same width");
    check(first >= next && first <= INT64_MAX - rows, "parts must come in the order of their places, and may not overlap");
    next = first + rows;
    found.push_back({parts[i].data(), first, rows});
  }
  without_gil(threads, [&](const scq::Call& call) {
    return scq::take(call, found, row_bytes, places.data(), places.shape(0), out.data(), unknown);
  });
  if (unknown >= 0) refuse("place " + std::to_string(places.data()[unknown]) + " is in none of the parts");
}

int64_t read_rows(int file, int64_t offset, Array<const int64_t, 1> numbers, Array<uint8_t, 2> out, int threads) {
  int64_t n = numbers.shape(0), row_bytes = out.shape(1), missing;
  check((int64_t)out.shape(0) == n, "out must have one row for each number");
  const int64_t* end = numbers.data() + n;
  check(offset >= 0 && std::all_of(numbers.data(), end, [&](int64_t row) {
          return row >= 0 && row_bytes <= INT64_MAX - offset && row <= (INT64_MAX - offset - row_bytes) / std::max<int64_t>(1, row_bytes);
        }), "rows must lie in what a file can hold");
  without_gil(threads, [&](const scq::Call& call) {
    return scq::read_rows(call, file, offset, row_bytes, numbers.data(), n, out.data(), missing);
  });
  return missing;
}

// A map of ids for Python threads: calls with many ids release the GIL, so a lock of its own keeps others out.
class IdMap {
 public:
  using Places = Array<const int64_t, 1>;
  using Given = nb::ndarray<nb::ro, nb::c_contig, nb::device::cpu>;

  explicit IdMap(bool text) : text_(text), map_(text ? scq::IdMap::of_strings() : scq::IdMap::of_numbers()) {}

  int64_t size() {
    return alone(0, [&] { return map_->size(); });
  }
  int64_t insert(Given given, Places places) {
    scq::Ids ids = checked(given, places);
    return alone(ids.count, [&] { return map_->insert(ids, places.data()); });
  }
  int64_t move(Given given, Places places) {
    scq::Ids ids = checked(given, places);
    return alone(ids.count, [&] { return map_->move(ids, places.data()); });
  }
  int64_t erase(Given given) {
    scq::Ids ids = checked(given);
    return alone(ids.count, [&] { return map_->erase(ids); });
  }
  void find(Given given, Array<int64_t, 1> places) {
    scq::Ids ids = checked(given);
    check((int64_t)places.shape(0) == ids.count, "there must be a place for each id");
    alone(ids.count, [&] { map_->find(ids, places.data()); return 0; });
  }

 private:
  static constexpr int64_t FEW = 4096;

  scq::Ids checked(const Given& given) const {
    if (text_)
      check(given.ndim() == 2 && given.dtype() == nb::dtype<uint8_t>(), "ids must be uint8 of shape (n, width)");
    else
      check(given.ndim() == 1 && given.dtype() == nb::dtype<int64_t>(), "ids must be int64 of shape (n,)");
    return {given.data(), (int64_t)given.shape(0), text_ ? (int64_t)given.shape(1) : 0};
  }
  scq::Ids checked(const Given& given, const Places& places) const {
    scq::Ids ids = checked(given);
    check((int64_t)places.shape(0) == ids.count, "there must be a place for each id");
    const int64_t *p = places.data(), *end = p + ids.count;
    check(std::all_of(p, end, [](int64_t place) { return place >= 0 && place < INT64_MAX; }), "places must be at least 0");
    return ids;
  }

  template <class Function>
  int64_t alone(int64_t count, Function&& function) {
    // No thread waits for the lock with the GIL, which the one that has the lock may want back
    std::unique_lock<std::mutex> lock(mutex_, std::defer_lock);
    if (count <= FEW && lock.try_lock()) return function();
    nb::gil_scoped_release released;
    std::lock_guard<std::mutex> waited(mutex_);
    return function();
  }

  bool text_;
  std::mutex mutex_;
  std::unique_ptr<scq::IdMap> map_;
};

void to_blocks(Codes codes, Array<uint8_t, 2> blocks) {
  int64_t n = codes.shape(0), width = codes.shape(1);
  check((int64_t)blocks.shape(0) == (n + 63) / 64 && (int64_t)blocks.shape(1) == 64 * width,
        "the blocks must have the shape (ceil(n / 64), 64 * bytes)");
  nb::gil_scoped_release released;
  chosen->to_blocks(codes.data(), n, width, blocks.data());
}

void to_rows(Codes blocks, Array<uint8_t, 2> codes) {
  int64_t n = codes.shape(0), width = codes.shape(1);
  check((int64_t)blocks.shape(0) >= (n + 63) / 64 && (int64_t)blocks.shape(1) == 64 * width,
        "the blocks must have the shape (ceil(n / 64), 64 * bytes)");
  nb::gil_scoped_release released;
  chosen->to_rows(blocks.data(), n, width, codes.data());
}

void use(const std::string& name) {
  const scq::Kernels* found = scq::kernels(name.c_str());
  if (!found) {
    std::string names;
    for (const char* known : scq::available()) names += std::string(names.empty() ? "" : ", ") + known;
    refuse("SCQ_CPU=" + name + " has no kernels on this processor; it has " + names);
  }
  chosen = found;
}

}  // namespace

NB_MODULE(_core, m) {
  chosen = scq::kernels(scq::available().front());
  nb::class_<Rows>(m, "Rows").def(
      nb::init<Codes, int64_t, bool, std::optional<Array<const uint64_t, 1>>, std::optional<int64_t>>(),
      "codes"_a.noconvert(), "count"_a, "blocked"_a = false, "allowed"_a.noconvert() = nb::none(),
      "first"_a = nb::none());
  nb::class_<IdMap>(m, "IdMap")
      .def(nb::init<bool>(), "text"_a)
      .def("__len__", &IdMap::size)
      .def("insert", &IdMap::insert, "ids"_a.noconvert(), "places"_a.noconvert())
      .def("find", &IdMap::find, "ids"_a.noconvert(), "places"_a.noconvert())
      .def("move", &IdMap::move, "ids"_a.noconvert(), "places"_a.noconvert())
      .def("erase", &IdMap::erase, "ids"_a.noconvert());
  m.def("nearest", &nearest, "parts"_a, "queries"_a.noconvert(), "distances"_a.noconvert(), "rows"_a.noconvert(),
        "threads"_a);
  m.def("least", &least, "parts"_a, "entries"_a.noconvert(), "scores"_a.noconvert(), "rows"_a.noconvert(),
        "threads"_a);
  m.def("cells", &cells, "parts"_a, "entries"_a.noconvert(), "keep"_a, "scores"_a.noconvert(), "rows"_a.noconvert(),
        "threads"_a);
  m.def("within", &within, "parts"_a, "queries"_a.noconvert(), "radius"_a, "threads"_a);
  m.def("rank", &rank, "codes"_a.noconvert(), "queries"_a.noconvert(), "labels"_a.noconvert(),
        "query_labels"_a.noconvert(), "shared"_a, "average"_a, "at"_a, "k"_a, "counts"_a.noconvert(),
        "hits"_a.noconvert(), "precision_sums"_a.noconvert(), "top_hits"_a.noconvert(), "threads"_a);
  m.def("encode", &encode, "X"_a.noconvert(), "W"_a.noconvert(), "t"_a.noconvert(), "codes"_a.noconvert(),
        "threads"_a);
  m.def("quantize", &quantize, "X"_a.noconvert(), "mean"_a.noconvert().none(), "W"_a.noconvert().none(),
        "cells"_a.noconvert(), "halves"_a.noconvert(), "codes"_a.noconvert(), "threads"_a);
  m.def("add_by_cell", &add_by_cell, "codes"_a.noconvert(), "Y"_a.noconvert(), "sums"_a.noconvert(), "threads"_a);
  m.def("take", &take, "parts"_a.noconvert(), "firsts"_a.noconvert(), "places"_a.noconvert(), "out"_a.noconvert(), "threads"_a);
  m.def("read_rows", &read_rows, "file"_a, "offset"_a, "numbers"_a.noconvert(), "out"_a.noconvert(), "threads"_a);
  m.def("to_blocks", &to_blocks, "codes"_a.noconvert(), "blocks"_a.noconvert());
  m.def("to_rows", &to_rows, "blocks"_a.noconvert(), "codes"_a.noconvert());
  m.def("use", &use, "name"_a);
  m.def("in_use", [] { return chosen->name; });
  m.def("available", [] { return scq::available(); });
}
