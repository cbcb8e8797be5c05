#include "common/error_details.h"

#include <gtest/gtest.h>

#include <string>

#include "common/status_macros.h"

namespace milepost {
namespace {

template <typename Detail>
Detail Taken(const absl::Status& status) {
  Detail detail;
  const auto payload =
      status.GetPayload(std::string(kDetailUrlPrefix) + Detail::descriptor()->name());
  EXPECT_TRUE(payload.has_value() && detail.ParseFromString(std::string(*payload))) << status;
  return detail;
}

TEST(ErrorDetailsTest, ARefusalHasTheReasonsCodeAndInfo) {
  const absl::Status status = Refusal(v1::ERROR_REASON_JOB_NOT_FOUND, "jobs/7", "no such job");
  EXPECT_TRUE(absl::IsNotFound(status));
  EXPECT_EQ(status.message(), "no such job");
  const auto info = Taken<v1::ErrorInfo>(status);
  EXPECT_EQ(info.reason(), "JOB_NOT_FOUND");
  EXPECT_EQ(info.domain(), "milepost");
  EXPECT_EQ(info.metadata().at("subject"), "jobs/7");
  EXPECT_EQ(ReasonOf(Annotate(status, "elements[3]")), v1::ERROR_REASON_JOB_NOT_FOUND);
}

TEST(ErrorDetailsTest, PreconditionsAndLimitsSayWhatOf) {
  const auto failure = Taken<v1::PreconditionFailure>(
      Refusal(v1::ERROR_REASON_CHECKPOINT_PINNED, "checkpoints/4", "it is pinned"));
  ASSERT_EQ(failure.violations_size(), 1);
  EXPECT_EQ(failure.violations(0).type(), "CHECKPOINT_PINNED");
  EXPECT_EQ(failure.violations(0).subject(), "checkpoints/4");
  EXPECT_EQ(failure.violations(0).description(), "it is pinned");
  const absl::Status limited = RetryAfter(
      Refusal(v1::ERROR_REASON_RATE_LIMITED, "users/a", "too fast"), absl::Milliseconds(1500));
  EXPECT_TRUE(absl::IsResourceExhausted(limited));
  EXPECT_EQ(Taken<v1::QuotaFailure>(limited).violations(0).subject(), "users/a");
  EXPECT_EQ(RetryDelayOf(limited), absl::Milliseconds(1500));
  EXPECT_EQ(RetryDelayOf(absl::ResourceExhaustedError("")), std::nullopt);
}

// Headers have room for some kilobytes alone.
TEST(ErrorDetailsTest, LongNamesAreCut) {
  const absl::Status status =
      Refusal(v1::ERROR_REASON_QUEUE_NOT_EMPTY, std::string(5000, 'x'), std::string(5000, 'y'));
  EXPECT_EQ(Taken<v1::ErrorInfo>(status).metadata().at("subject").size(), 200u);
  EXPECT_EQ(Taken<v1::PreconditionFailure>(status).violations(0).description().size(), 1024u);
}

TEST(ErrorDetailsTest, EveryReasonHasACodeAndAName) {
  const auto* type = v1::ErrorReason_descriptor();
  for (int i = 0; i < type->value_count(); ++i) {
    const auto reason = static_cast<v1::ErrorReason>(type->value(i)->number());
    if (reason == v1::ERROR_REASON_UNSPECIFIED) continue;
    EXPECT_NE(CodeOf(reason), absl::StatusCode::kUnknown) << type->value(i)->name();
    EXPECT_EQ(ReasonOfName(ReasonName(reason)), reason);
  }
  EXPECT_EQ(CodeOf(v1::ERROR_REASON_TOKEN_EXPIRED), absl::StatusCode::kUnauthenticated);
  EXPECT_EQ(CodeOf(v1::ERROR_REASON_NOT_ACTIVE_COORDINATOR), absl::StatusCode::kUnavailable);
  EXPECT_EQ(ReasonOfName("NO_SUCH_REASON"), v1::ERROR_REASON_UNSPECIFIED);
  EXPECT_EQ(ReasonOf(absl::NotFoundError("")), v1::ERROR_REASON_UNSPECIFIED);
}

}  // namespace
}  // namespace milepost
