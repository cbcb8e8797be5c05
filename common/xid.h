// The meaning of the error codes of NVIDIA's driver ("XID"), after NVIDIA's "XID errors" reference.
//
//   XidText(94)  // "94, memory error that ended one program"
//
// Pure and thread-safe.
#ifndef MILEPOST_COMMON_XID_H_
#define MILEPOST_COMMON_XID_H_

#include <string>

namespace milepost {

// True when a GPU with this error must not be used until it has been reset or checked.
bool XidNeedsCheck(int code);

// The code, and its meaning if it is one of those seen in training.
std::string XidText(int code);

}  // namespace milepost

#endif  // MILEPOST_COMMON_XID_H_
