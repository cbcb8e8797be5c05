// Times of day that were stored by a coordinator whose clock was another one: an older host's, or
// this one's before it was set. What is ahead of the clock here by more than it ever can be is
// brought back, so that a difference of clocks, however large, costs no more than the longest wait
// that the settings allow. What is behind cannot be told from time that has passed.
//
//   v1::JobRecord record = ...;   // as loaded
//   if (BoundTimes(now, config, &record)) ...   // it was changed
#ifndef MILEPOST_COORDINATOR_CORE_CLOCK_BOUNDS_H_
#define MILEPOST_COORDINATOR_CORE_CLOCK_BOUNDS_H_

#include "absl/time/time.h"
#include "coordinator/core/state.h"
#include "milepost/v1/store.pb.h"

namespace milepost::coordinator {

// A stop's deadline is not before one lease from now, either: the ranks may have heard of it, and
// not been able to say that they have left.
bool BoundTimes(absl::Time now, const Config& config, v1::JobRecord* record);

// A drain's jobs have no longer than they were given when it was asked for. The number of the
// worker's start, which comes from its clock, is one that a later start can exceed.
bool BoundTimes(absl::Time now, v1::WorkerRecord* record);

}  // namespace milepost::coordinator

#endif  // MILEPOST_COORDINATOR_CORE_CLOCK_BOUNDS_H_
