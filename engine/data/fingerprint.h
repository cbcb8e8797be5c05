// What tells one set of training data from another without reading all of it: how much there is,
// and what lies at places that are spread over it. Other data, more of them or less show; a change
// that lies between the places does not.
//
//   Fingerprint print;
//   print.Add(file.size());
//   for (int64_t place : Fingerprint::Places(file.size(), kFingerprintPlaces)) {
//     print.Add(what lies there);
//   }
//   uint64_t value = print.value();
//
// The same value on every machine: checkpoints keep it, so what is added must never change. Not
// thread-safe. Detects mistakes, not forgery.
#ifndef MILEPOST_ENGINE_DATA_FINGERPRINT_H_
#define MILEPOST_ENGINE_DATA_FINGERPRINT_H_

#include <cstdint>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace milepost::data {

// Looked at of one source, over all its files.
inline constexpr int64_t kFingerprintPlaces = 64;

class Fingerprint {
 public:
  void Add(absl::string_view bytes);
  void Add(int64_t number);
  void Add(absl::Span<const int32_t> numbers);

  uint64_t value() const { return value_; }

  // At most `most` (>= 2) of [0, count), in order, the first and the last among them.
  static std::vector<int64_t> Places(int64_t count, int64_t most);

 private:
  uint64_t value_ = 0;
};

}  // namespace milepost::data

#endif  // MILEPOST_ENGINE_DATA_FINGERPRINT_H_
