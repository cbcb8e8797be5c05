// The loss of direct preference optimisation (Rafailov et al., "Direct Preference Optimization",
// 2023), over pairs of documents that lie one behind the other in a sample; the first is preferred.
//
//   ops::PreferenceLoss(b, "dpo", log_probs, reference, documents, {.beta = 0.1});
//
// kPreferenceLoss:         log p f32[N], the reference's f32[N], documents i32[N], pairs i32[N]
//                          -> sums f64[3] (accumulate; graph::LossHead)
//                          pairs: not negative at the first row of a pair's first document, and
//                          -1 elsewhere. With d the sum of log p - the reference's over the rows of
//                          a document (0 in rows without a target) and m = beta (d(first) -
//                          d(second)), a pair's loss is -(1 - e) log sigmoid(m) - e log
//                          sigmoid(-m), with e = label_smoothing. Counted as correct: m > 0
// kPreferenceLossBackward: the same -> sums, the gradient of log p f32[N]
#ifndef MILEPOST_ENGINE_OPS_PREFERENCE_PREFERENCE_H_
#define MILEPOST_ENGINE_OPS_PREFERENCE_PREFERENCE_H_

#include "absl/strings/string_view.h"
#include "engine/graph/builder.h"

namespace milepost::ops {

struct PreferenceOptions {
  double beta = 0.1;           // above 0
  double label_smoothing = 0;  // [0, 0.5)
};

// Adds a loss head, called `name`, whose targets are the input "pairs".
graph::ValueId PreferenceLoss(graph::Builder& b, absl::string_view name, graph::ValueId log_probs,
                              graph::ValueId reference, graph::ValueId documents,
                              const PreferenceOptions& options);

}  // namespace milepost::ops

#endif  // MILEPOST_ENGINE_OPS_PREFERENCE_PREFERENCE_H_
