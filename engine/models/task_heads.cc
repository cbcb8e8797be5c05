#include "engine/models/task_heads.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "common/spec/model_sizes.h"
#include "engine/ops/classifier/classifier.h"
#include "engine/ops/linear/linear.h"
#include "engine/ops/lm_head/lm_head.h"
#include "milepost/v1/job_spec.pb.h"

namespace milepost::models {
namespace {

using graph::Builder;
using graph::Initializer;
using graph::ValueId;

struct Layer {
  ValueId weight;
  ValueId bias;
};

Layer Parameters(const v1::TaskHeadSpec& head, int64_t width, double stddev, Builder& b) {
  const std::string name = absl::StrCat("heads.", head.name());
  const ValueId weight =
      b.Parameter(name + ".weight", {head.classes(), width}, Initializer::kNormal, stddev);
  return {weight, b.Parameter(name + ".bias", {head.classes()}, Initializer::kZeros)};
}

ValueId Labels(const v1::TaskHeadSpec& head, Builder& b) {
  return b.Input(LabelsInput(head.name()), DType::kI32, {b.rows()});
}

double Weight(const v1::TaskHeadSpec& head) { return head.has_weight() ? head.weight() : 1; }

}  // namespace

std::string LabelsInput(absl::string_view head) { return absl::StrCat("labels.", head); }

double HeadWeight(const v1::ModelSpec& model) {
  return model.has_head_weight() ? model.head_weight() : 1;
}

void AddTokenHeads(const v1::ModelSpec& model, const ModelOptions& options, ValueId x, Builder& b) {
  const ModelSizes sizes = SizesOf(model);
  for (const v1::TaskHeadSpec& head : model.heads()) {
    const Layer layer = Parameters(head, sizes.width, 0.02, b);
    if (options.mode == Mode::kGeneration) continue;
    const int64_t bounded = std::max<int64_t>(
        16, options.lm_head_chunk_rows * sizes.vocabulary / std::max<int64_t>(1, head.classes()));
    const int64_t chunk = options.lm_head_chunk_rows == 0 ? b.rows() : std::min(b.rows(), bounded);
    ops::TokenClassifierLoss(b, head.name(), x, layer.weight, layer.bias, Labels(head, b), chunk,
                             Weight(head));
  }
}

void AddFeatureHeads(const v1::ModelSpec& model, const ModelOptions& options, ValueId x,
                     Builder& b) {
  const int64_t width = SizesOf(model).width;
  const double stddev = std::sqrt(1.0 / (3.0 * static_cast<double>(width)));
  for (const v1::TaskHeadSpec& head : model.heads()) {
    const Layer layer = Parameters(head, width, stddev, b);
    if (options.mode == Mode::kGeneration) continue;
    const ValueId logits = ops::LinearRows(b, absl::StrCat("heads.", head.name(), ".logits"), x,
                                           {layer.weight}, {layer.bias});
    ops::ClassifierLoss(b, head.name(), logits, Labels(head, b), /*label_smoothing=*/0,
                        Weight(head));
  }
}

}  // namespace milepost::models
