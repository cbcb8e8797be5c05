// Heads beside a family's own (v1::TaskHeadSpec): linear layers over what the trunk makes, each
// with a cross-entropy loss over labels of its own.
//
//   AddTokenHeads(model, options, y, b);   // y [N,C]; last, in the block of the family's own head
//
// Parameters "heads.<name>.weight" [classes, C] and "heads.<name>.bias" [classes], in every mode;
// but for generation an input "labels.<name>" i32[N] (-1: ignored) and a loss head "<name>".
#ifndef MILEPOST_ENGINE_MODELS_TASK_HEADS_H_
#define MILEPOST_ENGINE_MODELS_TASK_HEADS_H_

#include <string>

#include "absl/strings/string_view.h"
#include "engine/graph/builder.h"
#include "engine/models/model.h"

namespace milepost::v1 {
class ModelSpec;
}

namespace milepost::models {

// The graph's input, and the data source's field, of a head's labels: "labels.<name>".
std::string LabelsInput(absl::string_view head);

// The weight of the family's own loss.
double HeadWeight(const v1::ModelSpec& model);

// Weights: normal(0, 0.02); biases 0. Logits exist in chunks no larger than the family's own.
void AddTokenHeads(const v1::ModelSpec& model, const ModelOptions& options, graph::ValueId x,
                   graph::Builder& b);

// Over one row of features for each image. Weights: normal(0, 1 / sqrt(3 C)), the deviation of
// torch's nn.Linear; biases 0.
void AddFeatureHeads(const v1::ModelSpec& model, const ModelOptions& options, graph::ValueId x,
                     graph::Builder& b);

}  // namespace milepost::models

#endif  // MILEPOST_ENGINE_MODELS_TASK_HEADS_H_
