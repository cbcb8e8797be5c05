// Low-rank adapters beside a model's linear layers (Hu et al., "LoRA", 2021): what a family calls
// instead of ops::Linear and ops::LinearRows. Where the spec has no `lora` it is the same.
//
//   LoraLayers layers(model, options, b);
//   const ValueId qkv = layers.LinearRows(name, x, {q, k, v});   // with adapters, where targeted
//   ...
//   return layers.Finish(std::move(b).Finish());   // says which parameters are trained
//
// The adapters of the layer NAME.weight are NAME.lora_A.weight [rank, in], which starts as
// torch's nn.Linear does, and NAME.lora_B.weight [out, rank], which starts at 0 (PEFT's names
// behind "base_model.model.", and its initial values). A layer whose weight is trained in full has
// none. Layers whose outputs lie side by side share the dropout of what goes into them. With `dora`
// there is NAME.lora_magnitude_change [out] too, which starts at 0: PEFT's magnitude vector is the
// norms of W's rows plus this (ops/dora/dora.h). Not thread-safe.
#ifndef MILEPOST_ENGINE_MODELS_LORA_H_
#define MILEPOST_ENGINE_MODELS_LORA_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "engine/graph/builder.h"
#include "engine/graph/name_pattern.h"
#include "engine/models/model.h"

namespace milepost::v1 {
class LoraSpec;
class ModelSpec;
}  // namespace milepost::v1

namespace milepost::models {

// What the adapters' product is multiplied by: alpha / rank, or alpha / sqrt(rank).
double LoraScale(const v1::LoraSpec& lora);

// "h.0.attn.c_attn" of the layer that a parameter of adapters belongs to; empty: it is none.
absl::string_view AdaptedLayer(absl::string_view parameter);

// Of its adapters the first matrix, A, and the second, B.
std::string LoraDownName(absl::string_view layer);
std::string LoraUpName(absl::string_view layer);
// With `dora`: what its magnitudes have changed by.
std::string MagnitudeChangeName(absl::string_view layer);
bool IsMagnitudeChange(absl::string_view parameter);

class LoraLayers {
 public:
  // All outlive it.
  LoraLayers(const v1::ModelSpec& model, const ModelOptions& options, graph::Builder& b);

  graph::ValueId Linear(absl::string_view name, graph::ValueId x, graph::ValueId weight,
                        graph::ValueId bias);
  graph::ValueId LinearRows(absl::string_view name, graph::ValueId x,
                            absl::Span<const graph::ValueId> weights,
                            absl::Span<const graph::ValueId> biases = {});

  // Layers that follow have no adapters, or have them again.
  void SetReference(bool reference) { reference_ = reference; }

  // INVALID_ARGUMENT: a pattern of `targets` or `also_train` matches nothing; it names the nearest.
  absl::StatusOr<graph::Graph> Finish(absl::StatusOr<graph::Graph> built) const;

 private:
  // The part of a layer's output that one weight makes.
  struct Part {
    std::string layer;
    int64_t column;
    int64_t out;
    graph::ValueId weight;
    graph::ValueId bias;  // kNoValue: none
    bool adapted = false;
  };
  bool IsTarget(const std::string& layer);
  Part PartOf(graph::ValueId weight, graph::ValueId bias, int64_t column, bool transposed);
  // Some of the parts are adapted. With `dora` the base is without biases. `transposed`: weights
  // are [out, in].
  graph::ValueId Adapt(absl::string_view name, graph::ValueId x, graph::ValueId base,
                       const std::vector<Part>& parts, bool transposed);
  graph::ValueId Magnify(absl::string_view name, graph::ValueId y, const std::vector<Part>& parts,
                         const std::vector<graph::ValueId>& down,
                         const std::vector<graph::ValueId>& up, bool transposed);
  std::vector<graph::ValueId> Down(const std::vector<Part>& parts, int64_t in);
  std::vector<graph::ValueId> Up(const std::vector<Part>& parts);
  absl::Status Trained(graph::Graph& graph) const;

  const v1::ModelSpec& model_;
  graph::Builder& b_;
  const Mode mode_;
  const double dropout_;
  bool reference_ = false;
  std::vector<graph::NamePattern> targets_;
  std::vector<graph::NamePattern> in_full_;
  std::vector<bool> used_;           // of the targets
  std::vector<std::string> layers_;  // all that could be targets
};

}  // namespace milepost::models

#endif  // MILEPOST_ENGINE_MODELS_LORA_H_
