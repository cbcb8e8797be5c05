// poll(2) on one descriptor with an absolute deadline.
#ifndef MILEPOST_COMMON_POLL_H_
#define MILEPOST_COMMON_POLL_H_

#include "absl/time/time.h"

namespace milepost {

// Returns true once one of `events` (POLLIN, POLLOUT), a hang-up or an error is there. Returns
// false when `deadline`, by the clock of absl::Now, passed first. A change of that clock during the
// wait does not change how long it waits. An interrupting signal does not end the wait.
// InfinitePast only looks.
bool PollFd(int fd, short events, absl::Time deadline);

// The timeout for poll(2): milliseconds, rounded up, at most a minute. 0: no time is left.
int PollTimeoutMillis(absl::Duration left);

}  // namespace milepost

#endif  // MILEPOST_COMMON_POLL_H_
