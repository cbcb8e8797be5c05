#include "common/poll.h"

#include <poll.h>

#include <algorithm>

#include "absl/time/clock.h"

namespace milepost {

int PollTimeoutMillis(absl::Time deadline) {
  absl::Duration left = std::min(deadline - absl::Now(), absl::Minutes(1));
  if (left <= absl::ZeroDuration()) return 0;
  return static_cast<int>(absl::ToInt64Milliseconds(left)) + 1;
}

bool PollFd(int fd, short events, absl::Time deadline) {
  while (true) {
    pollfd entry = {fd, events, 0};
    if (poll(&entry, 1, PollTimeoutMillis(deadline)) > 0) return true;
    if (absl::Now() >= deadline) return false;
  }
}

}  // namespace milepost
