// Batch norms of images (Ioffe and Szegedy 2015), with what is added to them and the ReLU behind.
//
//   const ValueId y = ops::BatchNorm(b, "bn1", x, parameters, {.relu = true});
//
// kBatchNormSums:       x[B,Y,X,C] -> sums f64[2,C]: of x and of its squares over N rows
// kReduceStatistics:    sums f64[2,C] -> the same, all-reduced over the ranks
// kBatchNormStatistics: sums, running mean, running variance, batches -> mean f32[C], rstd f32[C],
//                       and the three statistics, updated
// kBatchNormRunning:    running mean, running variance -> mean, rstd: what evaluation uses
// kBatchNorm:           x, mean, rstd, gamma[C], beta[C], residual[B,Y,X,C]|kNoValue -> y
//                       y = (x - mean) rstd gamma + beta + residual; max(0, y) with `relu`
// kBatchNormBackwardSums: x, mean, rstd, gamma, beta, dy, dy2|kNoValue, y|kNoValue
//                       -> sums f64[2,C], dgamma, dbeta, g|kNoValue
//                       g = dy + dy2 where the ReLU let through (told by y or, where it is
//                       kNoValue, by x); sums of g and of g xhat. dy2: what the second of two
//                       consumers of y adds to its gradient
// kBatchNormBackward:   x, mean, rstd, gamma, beta, g or dy, sums -> dx
//                       with `relu` dy goes through the ReLU here, told by x
// kAverageStatistics:   running statistics that are not synchronised: their mean over the ranks
#ifndef MILEPOST_ENGINE_OPS_BATCH_NORM_BATCH_NORM_H_
#define MILEPOST_ENGINE_OPS_BATCH_NORM_BATCH_NORM_H_

#include "absl/strings/string_view.h"
#include "engine/graph/builder.h"

namespace milepost::ops {

struct BatchNormParameters {
  graph::ValueId gamma = graph::kNoValue;
  graph::ValueId beta = graph::kNoValue;
  graph::ValueId running_mean = graph::kNoValue;  // statistics
  graph::ValueId running_variance = graph::kNoValue;
  graph::ValueId batches = graph::kNoValue;  // i64[]: how many have been seen
};

struct BatchNormOptions {
  bool training = true;                       // else the running statistics are used
  bool synchronised = false;                  // over the rows of all ranks
  bool relu = false;                          // y = max(0, ...)
  graph::ValueId residual = graph::kNoValue;  // added before the ReLU
  double epsilon = 1e-5;
  double momentum = 0.1;
};

// In training with its own statistics, of at least two rows, which also move the running ones.
graph::ValueId BatchNorm(graph::Builder& b, absl::string_view name, graph::ValueId x,
                         const BatchNormParameters& parameters, const BatchNormOptions& options);

}  // namespace milepost::ops

#endif  // MILEPOST_ENGINE_OPS_BATCH_NORM_BATCH_NORM_H_
