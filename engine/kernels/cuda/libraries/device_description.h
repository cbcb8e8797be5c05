// A GPU described to cuDNN, so that its graphs can be checked where there is none.
//
//   auto graphs = CudnnGraphs::ForDevice(HopperH200());   // cudnn_graphs.h
//
// Plain data; no CUDA needed.
#ifndef MILEPOST_ENGINE_KERNELS_CUDA_LIBRARIES_DEVICE_DESCRIPTION_H_
#define MILEPOST_ENGINE_KERNELS_CUDA_LIBRARIES_DEVICE_DESCRIPTION_H_

#include <cstdint>
#include <string>

namespace milepost::kernels::cuda {

// As cudaDeviceGetAttribute has them; frequencies in kHz.
struct DeviceDescription {
  std::string name;
  int compute_capability = 0;  // 10 major + minor: 90
  int driver_version = 0;      // 1000 major + 10 minor: 13000
  int multiprocessors = 0;
  int64_t memory_bytes = 0;
  int64_t l2_bytes = 0;
  int shared_per_block = 49152;
  int shared_per_block_optin = 0;
  int reserved_shared_per_block = 1024;
  int registers_per_block = 65536;
  int registers_per_multiprocessor = 65536;
  int blocks_per_multiprocessor = 32;
  int threads_per_block = 1024;
  int threads_per_multiprocessor = 2048;
  int clock_khz = 0;
  int memory_clock_khz = 0;
};

DeviceDescription HopperH200();

// The representation that cuDNN 9.8 and later reads (CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION).
std::string CudnnJson(const DeviceDescription& device);

}  // namespace milepost::kernels::cuda

#endif  // MILEPOST_ENGINE_KERNELS_CUDA_LIBRARIES_DEVICE_DESCRIPTION_H_
