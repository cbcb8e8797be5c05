// What the ops of one kind have cost.
#ifndef MILEPOST_ENGINE_RUNTIME_OP_TIME_H_
#define MILEPOST_ENGINE_RUNTIME_OP_TIME_H_

#include <cstdint>

#include "engine/graph/graph.h"

namespace milepost::runtime {

struct OpKindTime {
  graph::OpKind kind;
  graph::Phase phase;
  int64_t runs = 0;
  double seconds = 0;
  double flops = 0;  // of matrix products
  double bytes = 0;  // read and written, at least
};

}  // namespace milepost::runtime

#endif  // MILEPOST_ENGINE_RUNTIME_OP_TIME_H_
