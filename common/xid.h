// What the error codes of NVIDIA's driver ("XID") mean, after NVIDIA's "XID errors" reference.
//
//   XidText(94)  // "94, memory error that ended one program"
//
// Pure and thread-safe.
#ifndef MILEPOST_COMMON_XID_H_
#define MILEPOST_COMMON_XID_H_

#include <string>

namespace milepost {

// Whether a GPU with this error is not to be trusted until it has been reset, or checked.
bool XidNeedsCheck(int code);

// The code, and its meaning where it is one of those that training meets.
std::string XidText(int code);

}  // namespace milepost

#endif  // MILEPOST_COMMON_XID_H_
