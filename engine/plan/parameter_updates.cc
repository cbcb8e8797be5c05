#include "engine/plan/parameter_updates.h"

#include <algorithm>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/status_macros.h"

namespace milepost::plan {
namespace {

// The fewest characters to insert, remove or replace in `pattern` until it matches `name` or the
// end of it from behind a dot on; 0: it does.
int Changes(absl::string_view pattern, absl::string_view name) {
  const size_t n = name.size();
  std::vector<int> row(n + 1), next(n + 1);
  for (size_t j = 0; j <= n; ++j) {  // nothing of the pattern used: what comes before is free
    const bool start = j == 0 || name[j - 1] == '.';
    row[j] = start ? 0 : row[j - 1] + 1;
  }
  for (const char p : pattern) {
    for (size_t j = 0; j <= n; ++j) {
      if (p == '*') {
        next[j] = j == 0 ? row[0] : std::min(row[j], next[j - 1]);
        continue;
      }
      next[j] = row[j] + 1;
      if (j == 0) continue;
      const int other = p == '?' || p == name[j - 1] ? 0 : 1;
      next[j] = std::min({next[j], next[j - 1] + 1, row[j - 1] + other});
    }
    std::swap(row, next);
  }
  return row[n];
}

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
    if (op.kind == graph::OpKind::kLinearBackwardInput) continue;
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

// What the optimizer does to each parameter, before any group has its say.
std::vector<ParameterUpdate> Defaults(const v1::OptimizerSpec& spec, const graph::Graph& graph,
                                      Optimizer optimizer) {
  const std::vector<bool> hidden = HiddenMatrices(graph);
  std::vector<ParameterUpdate> updates;
  for (size_t i = 0; i < hidden.size(); ++i) {
    ParameterUpdate& update = updates.emplace_back(ParameterUpdate{.optimizer = optimizer});
    const bool vector = graph.values[graph.parameters[i].value].shape.size() < 2;
    switch (optim::DefinitionOf(optimizer).updates) {
      case optim::Updates::kAll:
        break;
      case optim::Updates::kMatrices:
        if (vector) update.optimizer = Optimizer::kAdamW;
        break;
      case optim::Updates::kHiddenMatrices:
        if (hidden[i]) break;
        update.optimizer = Optimizer::kAdamW;
        if (spec.lr() > 0) update.lr_scale = static_cast<float>(spec.adamw_lr() / spec.lr());
    }
  }
  return updates;
}

absl::Status MatchesNothing(const v1::OptimizerSpec& spec, int index,
                            const std::vector<std::string>& names) {
  const std::string& pattern = spec.groups(index).match();
  const std::string field = absl::StrCat("train.optimizer.groups[", index, "].match: '", pattern);
  const NamePattern compiled(pattern);
  for (const std::string& name : names) {
    if (!compiled.Matches(name)) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(field, "' matches nothing that an entry before it does not match (", name,
                     " among others): the first match counts, so put it further up"));
  }
  return absl::InvalidArgumentError(
      absl::StrCat(field, "' matches no parameter; the nearest are ",
                   absl::StrJoin(NearestToPattern(pattern, names, 3), ", ")));
}

void Apply(const v1::ParameterGroupSpec& group, ParameterUpdate& update) {
  update.frozen = group.freeze();
  if (group.has_lr_scale()) update.lr_scale *= static_cast<float>(group.lr_scale());
  if (group.has_weight_decay()) update.weight_decay = static_cast<float>(group.weight_decay());
}

}  // namespace

NamePattern::NamePattern(absl::string_view pattern) {
  for (const char p : pattern) {
    if (p == '*') {
      loops_.resize(std::max(loops_.size(), Word(length_) + 1), 0);
      loops_[Word(length_)] |= Bit(length_);
      continue;
    }
    for (int c = 0; c < 256; ++c) {
      if (p != '?' && static_cast<unsigned char>(p) != c) continue;
      steps_[c].resize(std::max(steps_[c].size(), Word(length_) + 1), 0);
      steps_[c][Word(length_)] |= Bit(length_);
    }
    ++length_;
  }
  const size_t words = Word(length_) + 1;
  loops_.resize(words, 0);
  for (std::vector<uint64_t>& step : steps_) step.resize(words, 0);
}

// Each position of the pattern is a bit: all that may be reached so far are carried along at once.
bool NamePattern::Matches(absl::string_view name) const {
  std::vector<uint64_t> reached(loops_.size(), 0);
  reached[0] = 1;
  for (size_t i = 0; i < name.size(); ++i) {
    const std::vector<uint64_t>& step = steps_[static_cast<unsigned char>(name[i])];
    uint64_t carry = 0;
    for (size_t word = 0; word < reached.size(); ++word) {
      const uint64_t moved = reached[word] & step[word];
      const uint64_t stayed = reached[word] & loops_[word];
      reached[word] = moved << 1 | carry | stayed;
      carry = moved >> 63;
    }
    if (name[i] == '.') reached[0] |= 1;
  }
  return (reached[Word(length_)] & Bit(length_)) != 0;
}

bool MatchesName(absl::string_view pattern, absl::string_view name) {
  return NamePattern(pattern).Matches(name);
}

std::vector<std::string> NearestToPattern(absl::string_view pattern,
                                          const std::vector<std::string>& names, size_t count) {
  std::vector<int> changes;
  for (const std::string& name : names) changes.push_back(Changes(pattern, name));
  std::vector<size_t> order(names.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return changes[a] < changes[b]; });
  order.resize(std::min(count, order.size()));
  std::vector<std::string> nearest;
  for (size_t i : order) nearest.push_back(names[i]);
  return nearest;
}

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
  std::vector<NamePattern> patterns;
  for (const v1::ParameterGroupSpec& group : spec.groups()) patterns.emplace_back(group.match());
  size_t frozen = 0;
  for (size_t i = 0; i < names.size(); ++i) {
    ParameterUpdate& update = updates.by_parameter[i];
    for (int g = 0; g < spec.groups_size(); ++g) {
      if (!patterns[static_cast<size_t>(g)].Matches(names[i])) continue;
      Apply(spec.groups(g), update);
      ++updates.groups[g].tensors;
      updates.groups[g].parameters +=
          graph::Elements(graph.values[graph.parameters[i].value].shape);
      break;
    }
    frozen += update.frozen ? 1 : 0;
  }
  for (int g = 0; g < spec.groups_size(); ++g) {
    if (updates.groups[g].tensors == 0) return MatchesNothing(spec, g, names);
  }
  if (frozen == names.size()) {
    return absl::InvalidArgumentError(
        "train.optimizer.groups: every parameter is frozen, so there is nothing to train");
  }
  return updates;
}

}  // namespace milepost::plan
