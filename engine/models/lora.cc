#include "engine/models/lora.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "common/status_macros.h"
#include "engine/ops/dora/dora.h"
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
constexpr absl::string_view kMagnitudeChange = ".lora_magnitude_change";

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
  if (absl::ConsumeSuffix(&parameter, kDown) || absl::ConsumeSuffix(&parameter, kUp) ||
      absl::ConsumeSuffix(&parameter, kMagnitudeChange)) {
    return parameter;
  }
  return "";
}

std::string LoraDownName(absl::string_view layer) { return absl::StrCat(layer, kDown); }
std::string LoraUpName(absl::string_view layer) { return absl::StrCat(layer, kUp); }
std::string MagnitudeChangeName(absl::string_view layer) {
  return absl::StrCat(layer, kMagnitudeChange);
}
bool IsMagnitudeChange(absl::string_view parameter) {
  return absl::EndsWith(parameter, kMagnitudeChange);
}

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

LoraLayers::Part LoraLayers::PartOf(ValueId weight, ValueId bias, int64_t column, bool transposed) {
  const graph::Value& value = b_.ValueOf(weight);
  Part part = {.layer = std::string(absl::StripSuffix(value.name, ".weight")),
               .column = column,
               .out = value.shape[transposed ? 0 : 1],
               .weight = weight,
               .bias = bias};
  part.adapted = IsTarget(part.layer);
  return part;
}

// They follow each other in their block: one product serves them all.
std::vector<ValueId> LoraLayers::Down(const std::vector<Part>& parts, int64_t in) {
  std::vector<ValueId> weights;
  const double stddev = 1 / std::sqrt(3.0 * static_cast<double>(in));
  for (const Part& part : parts) {
    if (!part.adapted) continue;
    weights.push_back(b_.Parameter(LoraDownName(part.layer), {model_.lora().rank(), in},
                                   Initializer::kUniform, stddev));
  }
  return weights;
}

std::vector<ValueId> LoraLayers::Up(const std::vector<Part>& parts) {
  std::vector<ValueId> weights;
  for (const Part& part : parts) {
    if (!part.adapted) continue;
    weights.push_back(b_.Parameter(LoraUpName(part.layer), {part.out, model_.lora().rank()},
                                   Initializer::kZeros));
  }
  return weights;
}

ValueId LoraLayers::Adapt(absl::string_view name, ValueId x, ValueId base,
                          const std::vector<Part>& parts, bool transposed) {
  const auto named = [&](absl::string_view suffix) { return absl::StrCat(name, ".lora", suffix); };
  if (dropout_ > 0) x = ops::Dropout(b_, named(".dropped"), x, dropout_);
  const std::vector<ValueId> down = Down(parts, b_.Dimension(name, "x", x, 1));
  // They are small, and all that is learnt.
  ValueId h = ops::LinearRows(b_, named(".down"), x, down, {}, /*never_fp8=*/true);
  const double scale = LoraScale(model_.lora());
  if (scale != 1) h = ops::Scale(b_, named(".scaled"), h, scale);
  std::vector<int64_t> columns;
  for (const Part& part : parts) {
    if (part.adapted) columns.push_back(part.column);
  }
  const std::vector<ValueId> up = Up(parts);
  const ValueId y = ops::Lora(b_, named(""), base, h, up, columns);
  return model_.lora().dora() ? Magnify(name, y, parts, down, up, transposed) : y;
}

ValueId LoraLayers::Magnify(absl::string_view name, ValueId y, const std::vector<Part>& parts,
                            const std::vector<ValueId>& down, const std::vector<ValueId>& up,
                            bool transposed) {
  std::vector<ops::DoraPart> magnified;
  size_t adapter = 0;
  for (const Part& part : parts) {
    ops::DoraPart& to = magnified.emplace_back();
    to.column = part.column;
    to.bias = part.bias;
    if (!part.adapted) continue;
    to.norms = ops::DoraNorms(b_, absl::StrCat(name, ".norms", adapter), part.weight, down[adapter],
                              up[adapter], LoraScale(model_.lora()), transposed);
    to.change = b_.Parameter(MagnitudeChangeName(part.layer), {part.out}, Initializer::kZeros);
    ++adapter;
  }
  return ops::Dora(b_, absl::StrCat(name, ".dora"), y, magnified);
}

ValueId LoraLayers::Linear(absl::string_view name, ValueId x, ValueId weight, ValueId bias) {
  const Part part = PartOf(weight, bias, 0, /*transposed=*/false);
  const bool apart = part.adapted && model_.lora().dora();
  const ValueId base = ops::Linear(b_, name, x, weight, apart ? graph::kNoValue : bias);
  if (base == graph::kNoValue || !part.adapted) return base;
  return Adapt(name, x, base, {part}, /*transposed=*/false);
}

ValueId LoraLayers::LinearRows(absl::string_view name, ValueId x, absl::Span<const ValueId> weights,
                               absl::Span<const ValueId> biases) {
  std::vector<Part> parts;
  bool adapted = false;
  int64_t column = 0;
  for (size_t i = 0; i < weights.size(); ++i) {
    const ValueId bias = i < biases.size() ? biases[i] : graph::kNoValue;
    parts.push_back(PartOf(weights[i], bias, column, /*transposed=*/true));
    column += parts.back().out;
    adapted |= parts.back().adapted;
  }
  // A magnitude is not the bias's: that is added behind it.
  const bool apart = adapted && model_.lora().dora();
  const ValueId base =
      ops::LinearRows(b_, name, x, weights, apart ? absl::Span<const ValueId>() : biases);
  if (base == graph::kNoValue || !adapted) return base;
  return Adapt(name, x, base, parts, /*transposed=*/true);
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
