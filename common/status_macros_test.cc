#include "common/status_macros.h"

#include <gtest/gtest.h>

namespace milepost {
namespace {

absl::StatusOr<int> Half(int x) {
  if (x % 2 != 0) return absl::InvalidArgumentError("odd");
  return x / 2;
}

absl::StatusOr<int> Quarter(int x) {
  MP_ASSIGN_OR_RETURN(int half, Half(x));
  MP_ASSIGN_OR_RETURN(int quarter, Half(half));
  return quarter;
}

TEST(StatusMacrosTest, ReturnsEarlyWithTheFailure) {
  EXPECT_EQ(*Quarter(8), 2);
  EXPECT_EQ(Quarter(6).status(), absl::InvalidArgumentError("odd"));
}

TEST(StatusMacrosTest, AnnotateKeepsCodeAndPayload) {
  absl::Status status = absl::DataLossError("bad checksum");
  status.SetPayload("url", absl::Cord("payload"));
  absl::Status annotated = Annotate(status, "chunk 3");
  EXPECT_EQ(annotated.code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(annotated.message(), "chunk 3: bad checksum");
  EXPECT_EQ(annotated.GetPayload("url"), absl::Cord("payload"));
}

}  // namespace
}  // namespace milepost
