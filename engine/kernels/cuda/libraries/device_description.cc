#include "engine/kernels/cuda/libraries/device_description.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace milepost::kernels::cuda {

DeviceDescription HopperH200() {
  return {.name = "NVIDIA H200",
          .compute_capability = 90,
          .driver_version = 13000,
          .multiprocessors = 132,
          .memory_bytes = int64_t{140} << 30,
          .l2_bytes = int64_t{60} << 20,
          .shared_per_block_optin = 232448,
          .clock_khz = 1980000,
          .memory_clock_khz = 3201000};
}

std::string CudnnJson(const DeviceDescription& device) {
  std::string name;  // without what would need escaping
  for (const char c : device.name) {
    if (c >= ' ' && c < 127 && c != '"' && c != '\\') name.push_back(c);
  }
  std::string json = absl::StrCat("{\"deviceName\":\"", name, "\"");
  const std::pair<const char*, int64_t> numbers[] = {
      {"cudaDeviceId", 0},
      {"deviceVer", device.compute_capability * 10},
      {"driverVer", device.driver_version},
      {"multiProcessorCount", device.multiprocessors},
      {"totalGlobalMem", device.memory_bytes},
      {"l2CacheSize", device.l2_bytes},
      {"maxSharedMemoryPerBlock", device.shared_per_block},
      {"maxSharedMemoryPerBlockOptin", device.shared_per_block_optin},
      {"reservedSharedMemoryPerBlock", device.reserved_shared_per_block},
      {"regsPerBlock", device.registers_per_block},
      {"maxRegistersPerSM", device.registers_per_multiprocessor},
      {"maxCtasPerSM", device.blocks_per_multiprocessor},
      {"maxThreadsPerBlock", device.threads_per_block},
      {"maxThreadsPerSM", device.threads_per_multiprocessor},
      {"smClockRateKHz", device.clock_khz},
      {"memClockRateKHz", device.memory_clock_khz},
      {"warpSize", 32},
      {"pciDeviceId", 0},
      {"isTccDriver", 0},
      {"supportCoopLaunch", 1}};
  for (const auto& [key, value] : numbers) absl::StrAppend(&json, ",\"", key, "\":", value);
  absl::StrAppend(&json, ",\"maxGridSize\":[2147483647,65535,65535]",
                  ",\"maxBlockSize\":[1024,1024,64]}");
  return json;
}

}  // namespace milepost::kernels::cuda
