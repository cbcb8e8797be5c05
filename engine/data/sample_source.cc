#include "engine/data/sample_source.h"

#include <algorithm>

#include "absl/container/inlined_vector.h"
#include "common/check.h"
#include "common/status_macros.h"

namespace milepost::data {

absl::StatusOr<int64_t> SampleSource::CountTargets(size_t field, int64_t, int64_t count) const {
  MP_CHECK(fields()[field].targets != kVaries) << fields()[field].name;
  return fields()[field].targets * count;
}

absl::StatusOr<int64_t> SampleSource::CountDocuments(int64_t, int64_t) const { return 0; }

absl::StatusOr<int64_t> CountByFetching(const SampleSource& source, size_t field, int64_t first,
                                        int64_t count) {
  // Kept by the thread: this is part of steps, which allocate nothing.
  static thread_local std::vector<int32_t> scratch;
  const auto elements = [](const Field& each) {
    return static_cast<size_t>(each.sample_bytes) / sizeof(int32_t);
  };
  size_t all = 0;
  for (const Field& each : source.fields()) all += elements(each);
  if (scratch.size() < all) scratch.resize(all);
  absl::InlinedVector<char*, kInlineFields> into;
  int32_t* next = scratch.data();
  for (const Field& each : source.fields()) {
    into.push_back(reinterpret_cast<char*>(next));
    next += elements(each);
  }
  const auto* targets = reinterpret_cast<const int32_t*>(into[field]);
  const size_t of_one = elements(source.fields()[field]);
  int64_t valid = 0;
  for (int64_t number = first; number < first + count; ++number) {
    MP_RETURN_IF_ERROR(source.Fetch(number, 1, absl::MakeSpan(into)));
    valid += std::count_if(targets, targets + of_one, [](int32_t target) { return target >= 0; });
  }
  return valid;
}

bool TargetsVary(const SampleSource& source) {
  return std::any_of(source.fields().begin(), source.fields().end(),
                     [](const Field& field) { return field.targets == kVaries; });
}

}  // namespace milepost::data
