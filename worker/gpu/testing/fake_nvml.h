// An NVML without a driver. A test describes its GPUs and breaks them.
//
//   FakeNvml fake;
//   fake.gpus = {{.uuid = "GPU-a"}, {.uuid = "GPU-b"}};
//   auto nvml = Nvml::Open(fake.Functions(), fake_sysfs);
//   fake.gpus[1].error = kNvmlGpuIsLost;
//
// Only one may exist at a time, because NVML's functions have no context. Fields may be changed
// between calls.
#ifndef MILEPOST_WORKER_GPU_TESTING_FAKE_NVML_H_
#define MILEPOST_WORKER_GPU_TESTING_FAKE_NVML_H_

#include <deque>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "worker/gpu/nvml_functions.h"

namespace milepost::worker {

struct FakeGpu {
  std::string model = "NVIDIA H200";
  std::string uuid = "GPU-0";
  unsigned long long memory = 141ull << 30;
  unsigned long long used = 1ull << 30;
  int major = 9, minor = 0;
  unsigned int bus = 0x3b;
  int error = kNvmlSuccess;  // returned by every call about this GPU
  bool no_handle = false;    // the GPU cannot even be found
  unsigned int mig = 0;
  unsigned int utilization = 97;
  unsigned int milliwatts = 650'000;
  unsigned int celsius = 61;
  unsigned int sm_mhz = 1755;
  unsigned long long throttle = 0;
  unsigned long long ecc = 0;
  unsigned int nvlinks = 18;
  unsigned int broken_nvlinks = 0;  // the last ones
  // What the NVLinks have carried, and when that was read (microseconds).
  unsigned long long sent_kib = 1000, received_kib = 2000;
  long long counted_at = 1;
};

class FakeNvml {
 public:
  FakeNvml();
  ~FakeNvml();

  // All functions. A test removes those that an old driver lacks.
  static NvmlFunctions Functions();

  int init_error = kNvmlSuccess;
  std::vector<FakeGpu> gpus;
  std::deque<std::pair<int, int>> xids;  // (gpu, code); EventSetWait takes them
  int opened = 0;                        // calls of Init minus calls of Shutdown
  std::mutex mutex;                      // every call holds it; lock it to change fields meanwhile
};

}  // namespace milepost::worker

#endif  // MILEPOST_WORKER_GPU_TESTING_FAKE_NVML_H_
