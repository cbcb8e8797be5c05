// A warning about the coordinator for whoever makes a call, whatever the call's answer is: its
// store is damaged.
#ifndef MILEPOST_COMMON_RPC_WARNING_H_
#define MILEPOST_COMMON_RPC_WARNING_H_

namespace milepost {

// A key in the trailing metadata of an accepted call: a text for people of at most 1 KiB. Absent:
// there is no warning.
inline constexpr char kWarningKey[] = "milepost-warning-bin";

}  // namespace milepost

#endif  // MILEPOST_COMMON_RPC_WARNING_H_
