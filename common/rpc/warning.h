// What whoever makes a call should know of the coordinator, whatever the call's answer: that its
// store is damaged.
#ifndef MILEPOST_COMMON_RPC_WARNING_H_
#define MILEPOST_COMMON_RPC_WARNING_H_

namespace milepost {

// In the trailing metadata of a call that was let in: a text of at most 1 KiB for people. Absent:
// there is nothing to tell.
inline constexpr char kWarningKey[] = "milepost-warning-bin";

}  // namespace milepost

#endif  // MILEPOST_COMMON_RPC_WARNING_H_
