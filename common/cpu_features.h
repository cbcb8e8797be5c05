// Which instructions for bf16 this host's CPU has, according to the kernel.
//
//   if (!HostMultipliesBf16().Any()) ...  // bf16 is as fast as fp32 here, not faster
//
// Thread-safe; blocks on /proc/cpuinfo.
#ifndef MILEPOST_COMMON_CPU_FEATURES_H_
#define MILEPOST_COMMON_CPU_FEATURES_H_

#include <string>

namespace milepost {

struct Bf16Instructions {
  // AVX512_BF16's dot product, on a CPU where it beats fp32's multiply-add. Intel's cores from
  // Golden Cove on start one in two cycles, and two multiply-adds in each: half of fp32's rate.
  bool dot = false;
  bool tiles = false;  // AMX

  bool Any() const { return dot || tiles; }
};

// Those with which bf16 is faster than fp32. `root` is put before /proc, for tests.
Bf16Instructions HostMultipliesBf16(const std::string& root = "");

}  // namespace milepost

#endif  // MILEPOST_COMMON_CPU_FEATURES_H_
