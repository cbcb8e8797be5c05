// Heads beside the family's own (v1::TaskHeadSpec). Each is a linear layer over the trunk's output,
// with a cross-entropy loss over its own labels.
//
//   AddTokenHeads(model, options, y, b);   // y [N,C]; call it last, in the block of the own head
//
// In every mode a head has the parameters "heads.<name>.weight" [classes, C] and
// "heads.<name>.bias" [classes]. Except for generation it also has an input "labels.<name>" i32[N]
// (-1 is ignored) and a loss head "<name>".
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

// The name of the graph's input, and of the data source's field, for a head's labels:
// "labels.<name>".
std::string LabelsInput(absl::string_view head);

// The weight of the loss of the family's own head.
double HeadWeight(const v1::ModelSpec& model);

// Initial weights: normal(0, 0.02); biases 0. Logits exist in chunks no larger than the family's
// own.
void AddTokenHeads(const v1::ModelSpec& model, const ModelOptions& options, graph::ValueId x,
                   graph::Builder& b);

// Adds heads over one row of features per image. Initial weights: normal(0, 1 / sqrt(3 C)), the
// deviation of torch's nn.Linear; biases 0.
void AddFeatureHeads(const v1::ModelSpec& model, const ModelOptions& options, graph::ValueId x,
                     graph::Builder& b);

}  // namespace milepost::models

#endif  // MILEPOST_ENGINE_MODELS_TASK_HEADS_H_
