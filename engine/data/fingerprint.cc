#include "engine/data/fingerprint.h"

#include <algorithm>
#include <cstring>

#include "common/check.h"
#include "common/checksum.h"

namespace milepost::data {

void Fingerprint::Add(absl::string_view bytes) {
  const uint64_t parts[2] = {value_, Xxh3(bytes)};
  value_ = Xxh3(parts, sizeof parts);
}

void Fingerprint::Add(int64_t number) {
  Add(absl::string_view(reinterpret_cast<const char*>(&number), sizeof number));
}

void Fingerprint::Add(absl::Span<const int32_t> numbers) {
  Add(absl::string_view(reinterpret_cast<const char*>(numbers.data()),
                        numbers.size() * sizeof(int32_t)));
}

std::vector<int64_t> Fingerprint::Places(int64_t count, int64_t most) {
  MP_CHECK(most >= 2) << most;
  std::vector<int64_t> places;
  const int64_t wanted = std::min(count, most);
  for (int64_t i = 0; i < wanted; ++i) {
    // In two parts: their product may not fit.
    const int64_t steps = wanted - 1;
    places.push_back(steps == 0 ? 0 : (count - 1) / steps * i + (count - 1) % steps * i / steps);
  }
  return places;
}

uint64_t FingerprintOf(absl::Span<const TensorBytes> tensors) {
  constexpr int64_t kPlaces = 8;
  constexpr int64_t kBytes = 64;  // at each of them
  Fingerprint print;
  for (const TensorBytes& tensor : tensors) {
    const auto size = static_cast<int64_t>(tensor.bytes.size());
    print.Add(tensor.name);
    print.Add(tensor.dtype);
    print.Add(size);
    for (const int64_t piece : Fingerprint::Places((size + kBytes - 1) / kBytes, kPlaces)) {
      print.Add(tensor.bytes.substr(static_cast<size_t>(piece * kBytes), kBytes));
    }
  }
  return std::max<uint64_t>(print.value(), 1);
}

}  // namespace milepost::data
