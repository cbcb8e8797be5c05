// Where a piece of a tensor's state lies in host memory: what a restore fills and a save reads.
#ifndef MILEPOST_ENGINE_RUNTIME_EXECUTOR_STATE_INTERVAL_H_
#define MILEPOST_ENGINE_RUNTIME_EXECUTOR_STATE_INTERVAL_H_

#include <cstdint>

namespace milepost::runtime {

// A contiguous piece of one tensor's state: elements [begin, end), flat, row-major.
struct StateInterval {
  int32_t tensor = 0;  // index into the list of state tensors
  int64_t begin = 0;
  int64_t end = 0;
  char* data = nullptr;  // host memory; element 0 of the interval
};

}  // namespace milepost::runtime

#endif  // MILEPOST_ENGINE_RUNTIME_EXECUTOR_STATE_INTERVAL_H_
