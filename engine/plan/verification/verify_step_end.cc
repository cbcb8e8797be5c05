// Verification, part 3: what must have been done when a step is over, and how often.
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "engine/plan/statistics.h"
#include "engine/plan/verification/step_simulation.h"

namespace milepost::plan {
namespace {

using graph::kNoValue;
using graph::ValueKind;

}  // namespace

absl::Status StepSimulation::CheckEnd() const {
  MP_RETURN_IF_ERROR(CheckResults());
  if (!training_) return absl::OkStatus();
  MP_RETURN_IF_ERROR(CheckStatistics());
  MP_RETURN_IF_ERROR(CheckScalings());
  if (scalar_reductions_ != 1) {
    return absl::InternalError(
        absl::StrCat("the scalars are reduced ", scalar_reductions_, " times"));
  }
  if (norm_reductions_ != NormReductions()) {
    return absl::InternalError(
        absl::StrCat("the norms of updates are reduced ", norm_reductions_, " times"));
  }
  const bool gathers_after = plan_.options.Shards() > 1 && !plan_.options.ShardsParameters();
  const int gathers = gathers_after ? 1 : 0;
  for (size_t i = 0; i < groups_.size(); ++i) {
    const Group& group = groups_[i];
    if (plan_.groups[i].frozen) {
      MP_RETURN_IF_ERROR(CheckUntouched(i));
      continue;
    }
    if (group.additions != (plan_.groups[i].shared ? 1 : 0)) {
      return absl::InternalError(absl::StrCat("group ", plan_.groups[i].name, ": the gradients of ",
                                              "stages are added ", group.additions, " times"));
    }
    if (group.reductions == Reductions(i) && group.across == AcrossReplicas() && group.norms == 1 &&
        group.updates == 1 && group.averages == Averages() && group.gathers == gathers &&
        group.forgets == (plan_.groups[i].Compressed() ? 1 : 0) && group.copies == Returns(i) &&
        group.returns == Returns(i)) {
      MP_RETURN_IF_ERROR(CheckOnDisk(i));
      continue;
    }
    return absl::InternalError(absl::StrCat(
        "group ", plan_.groups[i].name, ": ", group.reductions, " reductions, ", group.norms,
        " norms, ", group.updates, " updates, ", group.averages, " averages and ", group.gathers,
        " gathers, ", group.copies, " copies and ", group.returns, " returns; expected ",
        Reductions(i), ", 1, 1, ", Averages(), ", ", gathers, ", ", Returns(i), " and ", Returns(i),
        "; errors are forgotten ", group.forgets, " times"));
  }
  return absl::OkStatus();
}

absl::Status StepSimulation::CheckResults() const {
  const graph::Graph& graph = program_.graph;
  const bool generates = graph.losses.empty();
  bool complete = !generates || (graph.logits != kNoValue && valid_[graph.logits]);
  for (const graph::LossHead& head : graph.losses) {
    complete &= valid_[head.sums] || !plan_.options.IsLastStage();
  }
  for (size_t id = 0; id < graph.values.size(); ++id) {
    if (graph.values[id].kind != ValueKind::kCache) continue;
    complete &= valid_[id] && written_in_[id] == micro_steps_ - 1;
  }
  if (complete) return absl::OkStatus();
  return absl::InternalError("a result of the program is not written");
}

// Ranks that make statistics of their own rows agree at the end of a step.
absl::Status StepSimulation::CheckStatistics() const {
  const int expected = plan_.options.world > 1 && StatisticsDiffer(program_.graph) ? 1 : 0;
  if (averages_ != expected) {
    return absl::InternalError(absl::StrCat("the running statistics are averaged ", averages_,
                                            " times, expected ", expected));
  }
  for (const graph::Statistic& statistic : program_.graph.statistics) {
    if (valid_[statistic.value] && written_in_[statistic.value] == micro_steps_ - 1) continue;
    return absl::InternalError(
        absl::StrCat(ValueOf(statistic.value).name, " is not moved by the last micro-step"));
  }
  return absl::OkStatus();
}

absl::Status StepSimulation::CheckScalings() const {
  const int expected = program_.graph.scalings.empty() ? 0 : 1;
  if (amax_gathers_ == expected && scaling_updates_ == expected) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("the scalings are updated ", scaling_updates_,
                                          " times from ", amax_gathers_, " gathers"));
}

absl::Status StepSimulation::CheckOnDisk(size_t index) const {
  const int expected = plan_.groups[index].disk_turn >= 0 ? 1 : 0;
  if (groups_[index].reads == expected && groups_[index].writes == expected) {
    return absl::OkStatus();
  }
  return absl::InternalError(absl::StrCat("group ", plan_.groups[index].name, ": its state is ",
                                          "read ", groups_[index].reads, " times and written ",
                                          groups_[index].writes, " times"));
}

absl::Status StepSimulation::CheckUntouched(size_t index) const {
  const Group& group = groups_[index];
  if (group.reductions + group.across + group.rounds + group.norms + group.updates + group.gathers +
              group.averages ==
          0 &&
      group.prepared == 0 && group.copies + group.returns + group.reads + group.writes == 0) {
    return absl::OkStatus();
  }
  return absl::InternalError(
      absl::StrCat("group ", plan_.groups[index].name, " is frozen, but reduced or updated"));
}

}  // namespace milepost::plan
