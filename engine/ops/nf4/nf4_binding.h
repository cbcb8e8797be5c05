// What the binders of bases in 4 bits share.
#ifndef MILEPOST_ENGINE_OPS_NF4_NF4_BINDING_H_
#define MILEPOST_ENGINE_OPS_NF4_NF4_BINDING_H_

#include <cstdint>
#include <vector>

#include "engine/runtime/executor/op_binding.h"

namespace milepost::ops {

// One tensor to unpack.
template <typename T>
struct Nf4Part {
  const uint8_t* packed;
  int64_t elements;
  T* out;
};

template <typename T>
std::vector<Nf4Part<T>> Nf4PartsOf(const runtime::OpBinding& b) {
  std::vector<Nf4Part<T>> parts;
  for (int i = 0; i < static_cast<int>(b.planned.op.outputs.size()); ++i) {
    parts.push_back({b.Input<uint8_t>(i), graph::Elements(b.OutputShape(i)), b.Output<T>(i)});
  }
  return parts;
}

}  // namespace milepost::ops

#endif  // MILEPOST_ENGINE_OPS_NF4_NF4_BINDING_H_
