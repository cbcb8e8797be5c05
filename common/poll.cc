#include "common/poll.h"

#include <poll.h>

#include <algorithm>

#include "absl/time/clock.h"
#include "common/steady_time.h"

namespace milepost {

int PollTimeoutMillis(absl::Duration left) {
  if (left <= absl::ZeroDuration()) return 0;
  return static_cast<int>(absl::ToInt64Milliseconds(std::min(left, absl::Minutes(1)))) + 1;
}

bool PollFd(int fd, short events, absl::Time deadline) {
  const absl::Time end = SteadyNow() + (deadline - absl::Now());
  while (true) {
    pollfd entry = {fd, events, 0};
    if (poll(&entry, 1, PollTimeoutMillis(end - SteadyNow())) > 0) return true;
    if (SteadyNow() >= end) return false;
  }
}

}  // namespace milepost
