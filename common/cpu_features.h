// What this host's CPU has instructions for, as the kernel tells it.
//
//   if (!HostMultipliesBf16()) ...  // bf16 is as fast as fp32 here, not faster
//
// Thread-safe; blocks on /proc/cpuinfo.
#ifndef MILEPOST_COMMON_CPU_FEATURES_H_
#define MILEPOST_COMMON_CPU_FEATURES_H_

#include <string>

namespace milepost {

// AVX512_BF16, which CPUs with AMX have too. `root` stands before /proc; tests use it.
bool HostMultipliesBf16(const std::string& root = "");

}  // namespace milepost

#endif  // MILEPOST_COMMON_CPU_FEATURES_H_
