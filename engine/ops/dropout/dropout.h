// Dropout (Srivastava et al. 2014) by a counter-based mask: the same in the backward.
//
//   const ValueId y = ops::Dropout(b, "embedding.dropout", x, 0.1);
//
// kDropout: x[N,M] -> y[N,M]; also its own backward: dy[, dsum] -> dx
//           dsum: what other consumers of x added to its gradient
#ifndef MILEPOST_ENGINE_OPS_DROPOUT_DROPOUT_H_
#define MILEPOST_ENGINE_OPS_DROPOUT_DROPOUT_H_

#include "absl/strings/string_view.h"
#include "engine/graph/builder.h"

namespace milepost::ops {

// `dropout`: the probability, in [0, 1).
graph::ValueId Dropout(graph::Builder& b, absl::string_view name, graph::ValueId x, double dropout);

}  // namespace milepost::ops

#endif  // MILEPOST_ENGINE_OPS_DROPOUT_DROPOUT_H_
