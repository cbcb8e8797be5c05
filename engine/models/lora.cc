#include "engine/models/lora.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "common/status_macros.h"
#include "engine/ops/dropout/dropout.h"
#include "engine/ops/linear/linear.h"
#include "engine/ops/lora/lora.h"
#include "engine/ops/scale/scale.h"
#include "milepost/v1/job_spec.pb.h"

namespace milepost::models {
namespace {

using graph::Initializer;
using graph::ValueId;

constexpr absl::string_view kDown = ".lora_A.weight";
constexpr absl::string_view kUp = ".lora_B.weight";

// Heads are new in any case: nothing that was trained before has them.
bool IsNew(absl::string_view parameter) {
  return !AdaptedLayer(parameter).empty() || absl::StartsWith(parameter, "heads.");
}

absl::Status NoMatch(absl::string_view field, int index, absl::string_view pattern,
                     const std::vector<std::string>& names, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(
      "model.lora.", field, "[", index, "]: '", pattern, "' matches no ", what,
      "; the nearest are ", absl::StrJoin(graph::NearestToPattern(pattern, names, 3), ", ")));
}

}  // namespace

double LoraScale(const v1::LoraSpec& lora) {
  const auto rank = static_cast<double>(lora.rank());
  const double alpha = lora.has_alpha() ? lora.alpha() : rank;
  return alpha / (lora.rank_stabilized() ? std::sqrt(rank) : rank);
}

absl::string_view AdaptedLayer(absl::string_view parameter) {
  if (absl::ConsumeSuffix(&parameter, kDown) || absl::ConsumeSuffix(&parameter, kUp)) {
    return parameter;
  }
  return "";
}

std::string LoraDownName(absl::string_view layer) { return absl::StrCat(layer, kDown); }
std::string LoraUpName(absl::string_view layer) { return absl::StrCat(layer, kUp); }

LoraLayers::LoraLayers(const v1::ModelSpec& model, const ModelOptions& options, graph::Builder& b)
    : model_(model),
      b_(b),
      mode_(options.mode),
      dropout_(options.mode == Mode::kTraining ? model.lora().dropout() : 0),
      used_(static_cast<size_t>(model.lora().targets_size()), false) {
  for (const std::string& target : model.lora().targets()) targets_.emplace_back(target);
  for (const std::string& name : model.lora().also_train()) in_full_.emplace_back(name);
}

bool LoraLayers::IsTarget(const std::string& layer) {
  if (!model_.has_lora() || reference_) return false;
  layers_.push_back(layer);
  bool target = targets_.empty();
  for (size_t i = 0; i < targets_.size(); ++i) {
    if (!targets_[i].Matches(layer)) continue;
    used_[i] = true;
    target = true;
  }
  const std::string weight = absl::StrCat(layer, ".weight");
  return target && std::none_of(in_full_.begin(), in_full_.end(),
                                [&](const auto& pattern) { return pattern.Matches(weight); });
}

// They follow each other in their block: one product serves them all.
std::vector<ValueId> LoraLayers::Down(const std::vector<Part>& parts, int64_t in) {
  std::vector<ValueId> weights;
  const double stddev = 1 / std::sqrt(3.0 * static_cast<double>(in));
  for (const Part& part : parts) {
    weights.push_back(b_.Parameter(LoraDownName(part.layer), {model_.lora().rank(), in},
                                   Initializer::kUniform, stddev));
  }
  return weights;
}

std::vector<ValueId> LoraLayers::Up(const std::vector<Part>& parts) {
  std::vector<ValueId> weights;
  for (const Part& part : parts) {
    weights.push_back(b_.Parameter(LoraUpName(part.layer), {part.out, model_.lora().rank()},
                                   Initializer::kZeros));
  }
  return weights;
}

ValueId LoraLayers::Adapt(absl::string_view name, ValueId x, ValueId base,
                          const std::vector<Part>& parts) {
  if (parts.empty()) return base;
  const auto named = [&](absl::string_view suffix) { return absl::StrCat(name, ".lora", suffix); };
  if (dropout_ > 0) x = ops::Dropout(b_, named(".dropped"), x, dropout_);
  const std::vector<ValueId> down = Down(parts, b_.Dimension(name, "x", x, 1));
  // They are small, and all that is learnt.
  ValueId h = ops::LinearRows(b_, named(".down"), x, down, {}, /*never_fp8=*/true);
  const double scale = LoraScale(model_.lora());
  if (scale != 1) h = ops::Scale(b_, named(".scaled"), h, scale);
  std::vector<int64_t> columns;
  for (const Part& part : parts) columns.push_back(part.column);
  return ops::Lora(b_, named(""), base, h, Up(parts), columns);
}

ValueId LoraLayers::Linear(absl::string_view name, ValueId x, ValueId weight, ValueId bias) {
  const ValueId base = ops::Linear(b_, name, x, weight, bias);
  if (base == graph::kNoValue) return base;
  const graph::Value& value = b_.ValueOf(weight);
  Part part = {std::string(absl::StripSuffix(value.name, ".weight")), 0, value.shape[1]};
  if (!IsTarget(part.layer)) return base;
  return Adapt(name, x, base, {std::move(part)});
}

ValueId LoraLayers::LinearRows(absl::string_view name, ValueId x, absl::Span<const ValueId> weights,
                               absl::Span<const ValueId> biases) {
  const ValueId base = ops::LinearRows(b_, name, x, weights, biases);
  if (base == graph::kNoValue) return base;
  std::vector<Part> parts;
  int64_t column = 0;
  for (const ValueId weight : weights) {
    const graph::Value& value = b_.ValueOf(weight);
    Part part = {std::string(absl::StripSuffix(value.name, ".weight")), column, value.shape[0]};
    column += part.out;
    if (IsTarget(part.layer)) parts.push_back(std::move(part));
  }
  return Adapt(name, x, base, parts);
}

absl::StatusOr<graph::Graph> LoraLayers::Finish(absl::StatusOr<graph::Graph> built) const {
  if (!built.ok() || !model_.has_lora()) return built;
  for (size_t i = 0; i < used_.size(); ++i) {
    if (used_[i]) continue;
    const int index = static_cast<int>(i);
    return NoMatch("targets", index, model_.lora().targets(index), layers_, "layer");
  }
  MP_RETURN_IF_ERROR(Trained(*built));
  return built;
}

absl::Status LoraLayers::Trained(graph::Graph& graph) const {
  std::vector<std::string> names;
  for (graph::Parameter& parameter : graph.parameters) {
    const std::string& name = graph.values[parameter.value].name;
    parameter.base = !IsNew(name);
    if (parameter.base) names.push_back(name);
  }
  const auto& patterns = model_.lora().also_train();
  for (int i = 0; i < patterns.size(); ++i) {
    const graph::NamePattern pattern(patterns[i]);
    bool any = false;
    for (graph::Parameter& parameter : graph.parameters) {
      if (!pattern.Matches(graph.values[parameter.value].name)) continue;
      parameter.base = false;
      any = true;
    }
    // Generation builds no further heads.
    if (!any && mode_ != Mode::kGeneration) {
      return NoMatch("also_train", i, patterns[i], names, "parameter");
    }
  }
  return absl::OkStatus();
}

}  // namespace milepost::models
