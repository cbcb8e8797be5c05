// Tells sets of training data apart without reading all of them. It uses the amount of data, and
// what lies at places spread over it. It notices other data, and more or less of them. It does not
// notice a change between the places.
//
//   Fingerprint print;
//   print.Add(file.size());
//   for (int64_t place : Fingerprint::Places(file.size(), kFingerprintPlaces)) {
//     print.Add(what lies there);
//   }
//   uint64_t value = print.value();
//
// The value is the same on every machine. Checkpoints keep it, so what is added must never change.
// Not thread-safe. It detects mistakes, not forgery.
#ifndef MILEPOST_ENGINE_DATA_FINGERPRINT_H_
#define MILEPOST_ENGINE_DATA_FINGERPRINT_H_

#include <cstdint>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace milepost::data {

// The number of places in one source, over all its files.
inline constexpr int64_t kFingerprintPlaces = 64;

class Fingerprint {
 public:
  void Add(absl::string_view bytes);
  void Add(int64_t number);
  void Add(absl::Span<const int32_t> numbers);

  uint64_t value() const { return value_; }

  // At most `most` (>= 2) numbers of [0, count), in order, with the first and the last.
  static std::vector<int64_t> Places(int64_t count, int64_t most);

 private:
  uint64_t value_ = 0;
};

struct TensorBytes {
  absl::string_view name;
  absl::string_view dtype;
  absl::string_view bytes;
};
// Of a model's weights: names, types and sizes, and what lies at a few places of each tensor.
// Never 0. Checkpoints keep it.
uint64_t FingerprintOf(absl::Span<const TensorBytes> tensors);

}  // namespace milepost::data

#endif  // MILEPOST_ENGINE_DATA_FINGERPRINT_H_
