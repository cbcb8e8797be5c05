#include "common/incarnation.h"

#include <string>

#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/error_details.h"

namespace milepost {
namespace {

constexpr char kKnown[] = "known_incarnation";  // in the ErrorInfo

v1::ErrorInfo InfoOf(const absl::Status& status) {
  v1::ErrorInfo info;
  const auto payload =
      status.GetPayload(absl::StrCat(kDetailUrlPrefix, info.GetDescriptor()->name()));
  if (payload.has_value() && !info.ParseFromString(std::string(*payload))) info.Clear();
  return info;
}

}  // namespace

absl::Status Superseded(absl::string_view worker, int64_t incarnation, int64_t known) {
  absl::Status refusal = Refusal(
      v1::ERROR_REASON_WORKER_SUPERSEDED, worker,
      absl::StrCat(worker, ": incarnation ", incarnation, " is older than the known ", known,
                   ": another process with this id has started since; give each worker its own "
                   "--id"));
  v1::ErrorInfo info = InfoOf(refusal);
  (*info.mutable_metadata())[kKnown] = absl::StrCat(known);
  SetDetail(info, &refusal);
  return refusal;
}

std::optional<int64_t> KnownIncarnation(const absl::Status& status) {
  if (ReasonOf(status) != v1::ERROR_REASON_WORKER_SUPERSEDED) return std::nullopt;
  const v1::ErrorInfo info = InfoOf(status);
  const auto found = info.metadata().find(kKnown);
  int64_t known = 0;
  if (found == info.metadata().end() || !absl::SimpleAtoi(found->second, &known)) {
    return std::nullopt;
  }
  return known;
}

}  // namespace milepost
