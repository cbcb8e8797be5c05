// poll(2) on one descriptor with an absolute deadline.
#ifndef MILEPOST_COMMON_POLL_H_
#define MILEPOST_COMMON_POLL_H_

#include "absl/time/time.h"

namespace milepost {

// True once one of `events` (POLLIN, POLLOUT), a hang-up or an error is there; false when
// `deadline`, by the clock of absl::Now, passed first; a clock that is set meanwhile does not
// change how long it waits. Goes on after an interrupting signal. InfinitePast only looks.
bool PollFd(int fd, short events, absl::Time deadline);

// What poll(2) takes: milliseconds, rounded up, at most a minute; 0 when nothing is left.
int PollTimeoutMillis(absl::Duration left);

}  // namespace milepost

#endif  // MILEPOST_COMMON_POLL_H_
