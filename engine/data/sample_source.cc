#include "engine/data/sample_source.h"

#include <algorithm>

#include "common/check.h"

namespace milepost::data {

absl::StatusOr<int64_t> SampleSource::CountTargets(size_t field, int64_t, int64_t count) const {
  MP_CHECK(fields()[field].targets != kVaries) << fields()[field].name;
  return fields()[field].targets * count;
}

bool TargetsVary(const SampleSource& source) {
  return std::any_of(source.fields().begin(), source.fields().end(),
                     [](const Field& field) { return field.targets == kVaries; });
}

}  // namespace milepost::data
