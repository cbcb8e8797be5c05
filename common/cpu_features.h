// Which instructions this host's CPU has, according to the kernel.
//
//   if (!HostMultipliesBf16()) ...  // bf16 is as fast as fp32 here, not faster
//
// Thread-safe; blocks on /proc/cpuinfo.
#ifndef MILEPOST_COMMON_CPU_FEATURES_H_
#define MILEPOST_COMMON_CPU_FEATURES_H_

#include <string>

namespace milepost {

// True when the CPU has AVX512_BF16; CPUs with AMX have it too. `root` is put before /proc, for
// tests.
bool HostMultipliesBf16(const std::string& root = "");

}  // namespace milepost

#endif  // MILEPOST_COMMON_CPU_FEATURES_H_
