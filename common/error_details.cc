#include "common/error_details.h"

#include <google/protobuf/descriptor.h>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/utf8.h"

namespace milepost {
namespace {

constexpr char kEnumPrefix[] = "ERROR_REASON_";
// Details travel in headers, which have at most 8 KiB.
constexpr size_t kMostSubjectBytes = 200;
constexpr size_t kMostDescriptionBytes = 1024;

template <typename Detail>
std::optional<Detail> DetailOf(const absl::Status& status) {
  const auto payload =
      status.GetPayload(absl::StrCat(kDetailUrlPrefix, Detail::descriptor()->name()));
  Detail detail;
  if (!payload.has_value() || !detail.ParseFromString(std::string(*payload))) return std::nullopt;
  return detail;
}

}  // namespace

std::string ReasonName(v1::ErrorReason reason) {
  return std::string(absl::StripPrefix(v1::ErrorReason_Name(reason), kEnumPrefix));
}

v1::ErrorReason ReasonOfName(absl::string_view name) {
  v1::ErrorReason reason = v1::ERROR_REASON_UNSPECIFIED;
  v1::ErrorReason_Parse(absl::StrCat(kEnumPrefix, name), &reason);
  return reason;
}

absl::StatusCode CodeOf(v1::ErrorReason reason) {
  // The numbers stand in blocks of 20, one for each code.
  static constexpr absl::StatusCode kCodes[] = {
      absl::StatusCode::kNotFound,          absl::StatusCode::kAlreadyExists,
      absl::StatusCode::kAborted,           absl::StatusCode::kFailedPrecondition,
      absl::StatusCode::kResourceExhausted, absl::StatusCode::kPermissionDenied,
      absl::StatusCode::kUnauthenticated,   absl::StatusCode::kUnavailable,
  };
  if (reason == v1::ERROR_REASON_UNSPECIFIED) return absl::StatusCode::kUnknown;
  const size_t block = static_cast<size_t>(reason) / 20;
  return block < std::size(kCodes) ? kCodes[block] : absl::StatusCode::kUnknown;
}

absl::Status Refusal(v1::ErrorReason reason, absl::string_view subject, absl::string_view message) {
  const std::string about = CutUtf8(subject, kMostSubjectBytes);
  const std::string description = CutUtf8(message, kMostDescriptionBytes);
  absl::Status status(CodeOf(reason), message);
  v1::ErrorInfo info;
  info.set_reason(ReasonName(reason));
  info.set_domain(kErrorDomain);
  if (!about.empty()) (*info.mutable_metadata())["subject"] = about;
  SetDetail(info, &status);
  if (absl::IsFailedPrecondition(status)) {
    v1::PreconditionFailure failure;
    auto* violation = failure.add_violations();
    violation->set_type(info.reason());
    violation->set_subject(about);
    violation->set_description(description);
    SetDetail(failure, &status);
  }
  if (absl::IsResourceExhausted(status)) {
    v1::QuotaFailure failure;
    failure.add_violations()->set_subject(about);
    failure.mutable_violations(0)->set_description(description);
    SetDetail(failure, &status);
  }
  return status;
}

absl::Status RetryAfter(absl::Status refusal, absl::Duration delay) {
  v1::RetryInfo info;
  info.mutable_retry_delay()->set_seconds(absl::ToInt64Seconds(delay));
  info.mutable_retry_delay()->set_nanos(static_cast<int32_t>(
      absl::ToInt64Nanoseconds(delay - absl::Seconds(info.retry_delay().seconds()))));
  SetDetail(info, &refusal);
  return refusal;
}

v1::ErrorReason ReasonOf(const absl::Status& status) {
  const auto info = DetailOf<v1::ErrorInfo>(status);
  const bool ours = info.has_value() && info->domain() == kErrorDomain;
  return ours ? ReasonOfName(info->reason()) : v1::ERROR_REASON_UNSPECIFIED;
}

std::optional<absl::Duration> RetryDelayOf(const absl::Status& status) {
  const auto info = DetailOf<v1::RetryInfo>(status);
  if (!info.has_value()) return std::nullopt;
  return absl::Seconds(info->retry_delay().seconds()) +
         absl::Nanoseconds(info->retry_delay().nanos());
}

void SetDetail(const google::protobuf::Message& detail, absl::Status* status) {
  status->SetPayload(absl::StrCat(kDetailUrlPrefix, detail.GetDescriptor()->name()),
                     absl::Cord(detail.SerializeAsString()));
}

}  // namespace milepost
