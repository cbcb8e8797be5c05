// For a thread that mostly waits, and whose work others wait for: of messages between ranks, beside
// threads that compute.
//
//   std::thread([] { TakeShortSlices(); ... });
//
// Linux gives a core to a thread that wakes up only at the end of the running thread's slice, a
// millisecond or so, where neither has had less than its share. From 6.12 on a thread with shorter
// slices goes first (sched_setattr(2), sched_runtime). That needs no right, and the thread's share
// of the cores and its nice value stay. Elsewhere nothing changes. Does not block.
#ifndef MILEPOST_COMMON_SHORT_SLICES_H_
#define MILEPOST_COMMON_SHORT_SLICES_H_

namespace milepost {

// Of the thread that calls it. A thread of another policy than SCHED_OTHER stays as it is.
void TakeShortSlices();

}  // namespace milepost

#endif  // MILEPOST_COMMON_SHORT_SLICES_H_
