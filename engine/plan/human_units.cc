#include "engine/plan/human_units.h"

#include <array>
#include <cstddef>

#include "absl/strings/str_format.h"

namespace milepost::plan {

std::string HumanBytes(double bytes) {
  constexpr std::array<const char*, 5> kUnits = {"B", "KiB", "MiB", "GiB", "TiB"};
  size_t unit = 0;
  while (bytes >= 1024 && unit + 1 < kUnits.size()) {
    bytes /= 1024;
    ++unit;
  }
  return absl::StrFormat("%.*f %s", unit == 0 ? 0 : 2, bytes, kUnits[unit]);
}

std::string HumanSeconds(double seconds) {
  if (seconds >= 1) return absl::StrFormat("%.2f s", seconds);
  return absl::StrFormat("%.2f ms", seconds * 1e3);
}

}  // namespace milepost::plan
