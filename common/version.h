// The release that every binary reports. project() in CMakeLists.txt must have the same one.
#ifndef MILEPOST_COMMON_VERSION_H_
#define MILEPOST_COMMON_VERSION_H_

namespace milepost {

inline constexpr char kVersion[] = "0.1.0";

}  // namespace milepost

#endif  // MILEPOST_COMMON_VERSION_H_
