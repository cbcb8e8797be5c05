#include "engine/plan/passes/flat_groups.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/round_up.h"
#include "engine/plan/compression.h"

namespace milepost::plan {
namespace {

// What the parameters of a group have in common: their block, how they are updated, their type, and
// whether tensor ranks divide them or make parts of their gradients, whether other pipeline stages
// have them too, whether they are of experts that ranks share out, and how many tensor ranks have
// the same part.
using GroupKey = std::tuple<int, bool, bool, DType, Optimizer, bool, bool, bool, bool, int>;

GroupKey KeyOf(const FlatGroup& group) {
  return {group.block,
          group.frozen,
          group.base,
          group.parameter_dtype,
          group.frozen ? Optimizer::kAdamW : group.optimizer,
          group.divided,
          group.partial,
          group.shared,
          group.of_experts,
          group.sharers};
}

// The group that the parameter belongs to, but for what groups hold.
FlatGroup GroupOf(const graph::Graph& graph, const graph::Parameter& parameter,
                  const ParameterUpdate& update) {
  const graph::Value& value = graph.values[parameter.value];
  return {.block = value.block,
          .optimizer = update.optimizer,
          .frozen = update.frozen,
          .base = update.frozen && parameter.base,
          .divided = !parameter.division.whole(),
          .partial = parameter.partial && !update.frozen,
          .sharers = static_cast<int>(parameter.division.sharers),
          .shared = parameter.shared,
          .of_experts = parameter.of_experts,
          .parameter_dtype = value.dtype};
}

// In block order; of a block those first that the plan's optimizer updates, and the frozen last.
template <typename UpdateOf>
std::vector<FlatGroup> EmptyGroups(const graph::Graph& graph, Optimizer main, UpdateOf update_of,
                                   bool elsewhere) {
  std::vector<FlatGroup> groups;
  std::set<GroupKey> keys;
  for (size_t i = 0; i < graph.parameters.size(); ++i) {
    if (graph.parameters[i].elsewhere != elsewhere) continue;
    const ParameterUpdate update = update_of(i);
    FlatGroup group = GroupOf(graph, graph.parameters[i], update);
    if (!keys.insert(KeyOf(group)).second) continue;
    const bool other = update.optimizer != main;
    group.name = absl::StrCat(graph.blocks[group.block], group.divided ? " (divided)" : "",
                              group.partial ? " (parts)" : "", group.shared ? " (shared)" : "",
                              group.of_experts ? " (experts)" : "",
                              group.sharers > 1 ? absl::StrCat(" (of ", group.sharers, ")") : "",
                              group.Packed()  ? " (base, nf4)"
                              : group.base    ? " (base)"
                              : update.frozen ? " (frozen)"
                              : other         ? absl::StrCat(" (", Name(update.optimizer), ")")
                                              : "");
    groups.push_back(std::move(group));
  }
  std::stable_sort(groups.begin(), groups.end(), [main](const FlatGroup& a, const FlatGroup& b) {
    const auto rank = [main](const FlatGroup& g) {
      return std::tuple(g.block, g.frozen, g.base, g.Packed(), g.optimizer != main, !g.divided,
                        g.partial, g.shared, g.of_experts, g.sharers);
    };
    return rank(a) < rank(b);
  });
  return groups;
}

}  // namespace

std::vector<FlatGroup> MakeFlatGroups(const graph::Graph& graph,
                                      const std::vector<ParameterUpdate>& updates,
                                      const PlanOptions& options, bool elsewhere) {
  const auto update_of = [&](size_t parameter) {
    return updates.empty() ? ParameterUpdate{.optimizer = options.optimizer} : updates[parameter];
  };
  std::vector<FlatGroup> groups = EmptyGroups(graph, options.optimizer, update_of, elsewhere);
  std::map<GroupKey, FlatGroup*> group_of;
  for (FlatGroup& group : groups) {
    group.state_dtype = options.state_dtype;
    group.master_dtype =
        group.Packed() ? group.parameter_dtype : options.MasterDType(group.frozen, group.base);
    if (group.Needs() == optim::StepNeeds::kWholeMatrices)
      group.product_dtype = options.orthogonalization;
    group_of[KeyOf(group)] = &group;
  }
  for (size_t i = 0; i < graph.parameters.size(); ++i) {
    const graph::Parameter& parameter = graph.parameters[i];
    if (parameter.elsewhere != elsewhere) continue;
    const graph::Value& value = graph.values[parameter.value];
    const ParameterUpdate update = update_of(i);
    FlatGroup& group = *group_of.at(KeyOf(GroupOf(graph, parameter, update)));
    const int64_t elements = graph::Elements(value.shape);
    const int64_t begin = RoundUp(group.padded_elements, ParameterAlignmentOf(group.optimizer));
    group.parameters.push_back({.parameter = static_cast<int>(i),
                                .name = value.name,
                                .shape = value.shape,
                                .begin = begin,
                                .elements = elements,
                                .decay = parameter.decay,
                                .lr_scale = update.lr_scale,
                                .weight_decay = update.weight_decay});
    if (!group.frozen) {
      group.parameters.back().rank = FactorRank(value.shape, options.powersgd_rank);
    }
    group.elements += elements;
    group.padded_elements = begin + elements;
  }
  int64_t norms = 0;
  for (FlatGroup& group : groups) {
    const int64_t alignment =
        std::max(options.shard_alignment, ParameterAlignmentOf(group.optimizer));
    group.padded_elements = RoundUp(group.padded_elements, options.world * alignment);
    group.first_norm = norms;
    if (group.Needs() == optim::StepNeeds::kTensorNorms && !group.frozen) {
      norms += static_cast<int64_t>(group.parameters.size());
    }
    group.shard_elements = group.padded_elements / group.Shards(options);
  }
  return groups;
}

}  // namespace milepost::plan
