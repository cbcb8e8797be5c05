// Internal to the CPU backend and to the rooms of ops: the gradients of a layer's biases.
#ifndef MILEPOST_ENGINE_RUNTIME_CPU_CPU_BIAS_GRADIENTS_H_
#define MILEPOST_ENGINE_RUNTIME_CPU_CPU_BIAS_GRADIENTS_H_

#include <algorithm>
#include <cstdint>
#include <vector>

#include "engine/kernels/cpu/elementwise.h"
#include "engine/runtime/executor/op_binding.h"

namespace milepost::runtime {

struct BiasBytes {
  char* data;
  int64_t count;
};

// Where biases, or their gradients, lie.
inline std::vector<BiasBytes> BiasesOf(const OpBinding& b,
                                       const std::vector<graph::ValueId>& values) {
  std::vector<BiasBytes> biases;
  for (const graph::ValueId id : values) {
    const graph::Value& value = b.ValueOf(id);
    biases.push_back({b.ValueAt(id), graph::Elements(value.shape) * ByteSize(value.dtype)});
  }
  return biases;
}

// dbias (+)= the columns' sums of dy.
template <typename T>
struct BiasGradients {
  void Run(bool accumulate) const {
    if (biases.empty()) return;
    if (biases.size() == 1) {
      auto* out = reinterpret_cast<float*>(biases[0].data);
      return kernels::BiasGradient<T>(dy, rows, width, accumulate, out, workspace);
    }
    kernels::BiasGradient<T>(dy, rows, width, false, sums, workspace);
    const float* from = sums;
    for (const BiasBytes& bias : biases) {
      auto* out = reinterpret_cast<float*>(bias.data);
      const int64_t n = bias.count / static_cast<int64_t>(sizeof(float));
      accumulate ? kernels::Accumulate(from, n, out) : static_cast<void>(std::copy_n(from, n, out));
      from += n;
    }
  }

  const T* dy;
  int64_t rows;
  int64_t width;
  std::vector<BiasBytes> biases;
  void* workspace;
  float* sums;  // several biases only
};

}  // namespace milepost::runtime

#endif  // MILEPOST_ENGINE_RUNTIME_CPU_CPU_BIAS_GRADIENTS_H_
