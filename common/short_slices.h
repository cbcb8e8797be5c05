// For a thread that mostly waits, and whose work others wait for: of messages between ranks, beside
// threads that compute.
//
//   std::thread([] { TakeShortSlices(); ... });
//
// A thread that wakes up mostly waits until the running thread's slice ends, a millisecond or so.
// From Linux 6.12 on it goes first if its own slices are shorter (sched_setattr(2),
// sched_runtime). That needs no right. The thread's share of the cores and its nice value stay.
// Elsewhere nothing changes. Does not block.
#ifndef MILEPOST_COMMON_SHORT_SLICES_H_
#define MILEPOST_COMMON_SHORT_SLICES_H_

namespace milepost {

// Of the thread that calls it. A thread of another policy than SCHED_OTHER stays as it is.
void TakeShortSlices();

}  // namespace milepost

#endif  // MILEPOST_COMMON_SHORT_SLICES_H_
