#include "common/clock.h"

#include <gtest/gtest.h>

#include <string>

namespace milepost {
namespace {

TEST(CheckWallClock, RefusesAClockThatWasNeverSet) {
  EXPECT_EQ(CheckWallClock(Clock::Real()->Now()), absl::OkStatus());
  for (const absl::Time now : {absl::UnixEpoch(), absl::UnixEpoch() - absl::Hours(24),
                               absl::UnixEpoch() + absl::Hours(24), absl::InfinitePast()}) {
    EXPECT_EQ(CheckWallClock(now).code(), absl::StatusCode::kFailedPrecondition) << now;
  }
  const absl::Status status = CheckWallClock(absl::UnixEpoch() - absl::Hours(1));
  EXPECT_EQ(status.message(),
            "this host's clock says 1969-12-31 23:00: set it (timedatectl, or chronyd makes it "
            "right by the network)");
}

}  // namespace
}  // namespace milepost
