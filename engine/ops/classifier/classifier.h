// The loss over logits that the model makes itself: cross entropy, with label smoothing (Szegedy et
// al. 2016).
//
//   ops::ClassifierLoss(b, "classes", logits, b.Targets(), 0.1);
//
// kClassifierLoss:         logits[N,V], targets i32[N] -> sums f64[3] (accumulate; graph::LossHead)
// kClassifierLossBackward: logits, targets -> sums, dlogits: as kLmHeadLossBackward
#ifndef MILEPOST_ENGINE_OPS_CLASSIFIER_CLASSIFIER_H_
#define MILEPOST_ENGINE_OPS_CLASSIFIER_CLASSIFIER_H_

#include "absl/strings/string_view.h"
#include "engine/graph/builder.h"

namespace milepost::ops {

// Adds a loss head; `label_smoothing` in [0, 1) as torch's cross_entropy has it.
graph::ValueId ClassifierLoss(graph::Builder& b, absl::string_view name, graph::ValueId logits,
                              graph::ValueId targets, double label_smoothing, double weight = 1);

}  // namespace milepost::ops

#endif  // MILEPOST_ENGINE_OPS_CLASSIFIER_CLASSIFIER_H_
