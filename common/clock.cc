#include "common/clock.h"

#include "absl/strings/str_cat.h"
#include "absl/time/civil_time.h"

namespace milepost {

namespace {
class RealClock : public Clock {
 public:
  absl::Time Now() override { return absl::Now(); }
};
}  // namespace

Clock* Clock::Real() {
  static RealClock* clock = new RealClock;
  return clock;
}

absl::Status CheckWallClock(absl::Time now) {
  if (now >= absl::FromCivil(absl::CivilYear(1971), absl::UTCTimeZone())) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "this host's clock says ", absl::FormatTime("%Y-%m-%d %H:%M", now, absl::UTCTimeZone()),
      ": set it (timedatectl, or chronyd makes it right by the network)"));
}

}  // namespace milepost
