#include "engine/plan/parameter_updates.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/status_macros.h"
#include "engine/graph/name_pattern.h"

namespace milepost::plan {
namespace {

std::vector<std::string> NamesOf(const graph::Graph& graph) {
  std::vector<std::string> names;
  for (const graph::Parameter& p : graph.parameters) names.push_back(graph.values[p.value].name);
  return names;
}

// Matrices that nothing but linear layers use: not embeddings, nor a head that makes a loss, nor
// one whose results a loss takes as they are.
std::vector<bool> HiddenMatrices(const graph::Graph& graph) {
  std::vector<bool> other(graph.values.size(), false);
  std::vector<bool> logits(graph.values.size(), false);
  for (const graph::Op& op : graph.ops) {
    if (op.kind == graph::OpKind::kClassifierLoss ||
        op.kind == graph::OpKind::kClassifierLossBackward) {
      logits[op.inputs[0]] = true;
    }
  }
  for (const graph::Op& op : graph.ops) {
    if (op.kind == graph::OpKind::kLinearBackwardInput ||
        op.kind == graph::OpKind::kLoraBackwardInput || op.kind == graph::OpKind::kLora ||
        op.kind == graph::OpKind::kDoraNorms || op.kind == graph::OpKind::kExpertLinear ||
        op.kind == graph::OpKind::kExpertLinearBackwardInput) {
      continue;
    }
    if (op.kind == graph::OpKind::kLinear && !logits[op.outputs[0].value]) continue;
    for (graph::ValueId input : op.inputs) {
      if (input != graph::kNoValue) other[input] = true;
    }
  }
  std::vector<bool> hidden;
  for (const graph::Parameter& p : graph.parameters) {
    hidden.push_back(graph.values[p.value].shape.size() == 2 && !other[p.value]);
  }
  return hidden;
}

ParameterUpdate DefaultOf(const v1::OptimizerSpec& spec, Optimizer optimizer, bool vector,
                          bool hidden_matrix) {
  ParameterUpdate update = {.optimizer = optimizer};
  switch (optim::DefinitionOf(optimizer).updates) {
    case optim::Updates::kAll:
      break;
    case optim::Updates::kMatrices:
      if (vector) update.optimizer = Optimizer::kAdamW;
      break;
    case optim::Updates::kHiddenMatrices:
      if (hidden_matrix) break;
      update.optimizer = Optimizer::kAdamW;
      if (spec.lr() > 0) update.lr_scale = static_cast<float>(spec.adamw_lr() / spec.lr());
  }
  return update;
}

// What the optimizer does to each parameter, before any group has its say.
std::vector<ParameterUpdate> Defaults(const v1::OptimizerSpec& spec, const graph::Graph& graph,
                                      Optimizer optimizer) {
  const std::vector<bool> hidden = HiddenMatrices(graph);
  std::vector<ParameterUpdate> updates;
  for (size_t i = 0; i < hidden.size(); ++i) {
    const bool vector = graph.values[graph.parameters[i].value].shape.size() < 2;
    updates.push_back(DefaultOf(spec, optimizer, vector, hidden[i]));
  }
  return updates;
}

absl::Status MatchesNothing(const v1::OptimizerSpec& spec, int index, const graph::Graph& graph,
                            const std::vector<std::string>& names) {
  const std::string& pattern = spec.groups(index).match();
  const std::string field = absl::StrCat("train.optimizer.groups[", index, "].match: '", pattern);
  const graph::NamePattern compiled(pattern);
  for (size_t i = 0; i < names.size(); ++i) {
    const std::string& name = names[i];
    if (!compiled.Matches(name)) continue;
    if (graph.parameters[i].base) {
      return absl::InvalidArgumentError(
          absl::StrCat(field, "' matches only what is not trained (", name,
                       ", among others): where there are adapters, name these, as in "
                       "*.lora_A.weight, or list it in model.lora.also_train"));
    }
    return absl::InvalidArgumentError(
        absl::StrCat(field, "' matches nothing that an entry before it does not match (", name,
                     " among others): the first match counts, so put it further up"));
  }
  return absl::InvalidArgumentError(
      absl::StrCat(field, "' matches no parameter; the nearest are ",
                   absl::StrJoin(graph::NearestToPattern(pattern, names, 3), ", ")));
}

void Apply(const v1::ParameterGroupSpec& group, ParameterUpdate& update) {
  update.frozen = group.freeze();
  if (group.has_lr_scale()) update.lr_scale *= static_cast<float>(group.lr_scale());
  if (group.has_weight_decay()) update.weight_decay = static_cast<float>(group.weight_decay());
}

}  // namespace

absl::StatusOr<ParameterUpdates> UpdatesOf(const v1::OptimizerSpec& spec, const graph::Graph& graph,
                                           Optimizer optimizer) {
  const std::vector<std::string> names = NamesOf(graph);
  ParameterUpdates updates = {.by_parameter = Defaults(spec, graph, optimizer)};
  if (optimizer == Optimizer::kMuon &&
      std::none_of(updates.by_parameter.begin(), updates.by_parameter.end(),
                   [](const ParameterUpdate& u) { return u.optimizer == Optimizer::kMuon; })) {
    return absl::InvalidArgumentError(
        "train.optimizer.type: muon updates the matrices of a model's layers, and this model has "
        "none: take adamw, sgd or lamb");
  }
  for (const v1::ParameterGroupSpec& group : spec.groups()) {
    updates.groups.push_back({.match = group.match(),
                              .lr_scale = group.has_lr_scale() ? group.lr_scale() : 1,
                              .weight_decay = group.has_weight_decay()
                                                  ? std::optional<double>(group.weight_decay())
                                                  : std::nullopt,
                              .frozen = group.freeze()});
  }
  std::vector<graph::NamePattern> patterns;
  for (const v1::ParameterGroupSpec& group : spec.groups()) patterns.emplace_back(group.match());
  size_t frozen = 0;
  for (size_t i = 0; i < names.size(); ++i) {
    ParameterUpdate& update = updates.by_parameter[i];
    if (graph.parameters[i].base) {
      update.frozen = true;
      ++frozen;
      continue;
    }
    for (int g = 0; g < spec.groups_size(); ++g) {
      if (!patterns[static_cast<size_t>(g)].Matches(names[i])) continue;
      Apply(spec.groups(g), update);
      ++updates.groups[g].tensors;
      updates.groups[g].parameters += graph.ElementsOf(graph.parameters[i]);
      break;
    }
    frozen += update.frozen ? 1 : 0;
  }
  for (int g = 0; g < spec.groups_size(); ++g) {
    if (updates.groups[g].tensors == 0) return MatchesNothing(spec, g, graph, names);
  }
  if (frozen == names.size()) {
    return absl::InvalidArgumentError(
        "train.optimizer.groups: every parameter is frozen, so there is nothing to train");
  }
  return updates;
}

}  // namespace milepost::plan
