#include "coordinator/rpc/submission_check.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/spec/sizes.h"
#include "common/status_macros.h"
#include "engine/plan/fit/fit.h"
#include "engine/plan/fit/required_bytes.h"
#include "engine/plan/fit/stage_drafts.h"
#include "engine/plan/planner/planner.h"

namespace milepost::coordinator {
namespace {

// The lesser of what the spec declares and what a rank may use of a slot's memory; 0: not known.
void SetMemory(const v1::JobSpec& spec, int64_t slot, const char* which, plan::RankPlace* place) {
  if (slot > 0 && !place->host_memory) {
    plan::DeviceProfile gpu = place->profile;
    gpu.memory_bytes = slot;
    slot = std::max<int64_t>(1, plan::UsableBytes(gpu));
  }
  const int64_t declared = spec.resources().memory();
  const bool by_spec = declared > 0 && (slot == 0 || declared <= slot);
  place->memory_bytes = by_spec ? declared : slot;
  place->memory_of = by_spec ? "a rank, as resources.memory says," : which;
}

// Of a GPU's memory, what a rank may not use.
int64_t ReservedBytes() {
  plan::DeviceProfile huge;
  huge.memory_bytes = int64_t{1} << 50;
  return huge.memory_bytes - plan::UsableBytes(huge);
}

using Place = plan::RankPlace;

absl::StatusOr<plan::StepPlan> PlanOf(const v1::JobSpec& spec, const Place& place) {
  MP_ASSIGN_OR_RETURN(plan::PlanOptions options, plan::OptionsFromSpec(spec, place.threads));
  MP_ASSIGN_OR_RETURN(options, plan::AtLargestStage(spec, options, place.planning));
  auto plan = plan::PlanTraining(spec, options, place.planning);
  if (!plan.ok()) return Annotate(plan.status(), "the step cannot be planned");
  return plan;
}

// To know what one of several sizes needs. Without what is not asked: where memory is not known no
// byte counts. The ranks that run it prove their plan themselves.
absl::StatusOr<plan::StepPlan> MeasureSize(const v1::JobSpec& spec, const Place& place) {
  MP_ASSIGN_OR_RETURN(plan::PlanOptions options, plan::OptionsFromSpec(spec, place.threads));
  MP_ASSIGN_OR_RETURN(options, plan::AtLargestStage(spec, options, place.planning));
  const bool bytes_count = !place.host_memory || place.memory_bytes > 0;
  auto plan = bytes_count ? plan::MeasureTraining(spec, options, place.planning)
                          : plan::DraftTraining(spec, options, place.planning);
  if (!plan.ok()) return Annotate(plan.status(), "the step cannot be planned");
  return plan;
}

int64_t SlotBytes(const plan::StepPlan& plan, const Place& place) {
  if (place.host_memory) return 0;
  return plan::RequiredBytes(plan, plan.arena_bytes, place.host_memory) + ReservedBytes();
}

// Every number of ranks with which the job fits. That the fewest do is the user's claim: a job that
// could not go on with them would wait for ever.
absl::StatusOr<std::vector<v1::JobSize>> SizesThatFit(const v1::JobSpec& spec, const Place& place) {
  std::vector<v1::JobSize> sizes;
  const std::vector<int> possible = PossibleSizes(spec);
  if (possible.size() == 1) return sizes;
  for (const int ranks : possible) {
    const v1::JobSpec sized = WithRanks(spec, ranks);
    MP_ASSIGN_OR_RETURN(const plan::StepPlan plan, MeasureSize(sized, place));
    const absl::Status fits = plan::CheckFits(sized, plan, place);
    if (!fits.ok() && ranks == LeastRanks(spec.resources())) {
      return Annotate(fits, absl::StrCat("resources.min_ranks: with ", ranks, " ranks"));
    }
    if (!fits.ok()) continue;
    v1::JobSize& size = sizes.emplace_back();
    size.set_ranks(ranks);
    size.set_slot_bytes(SlotBytes(plan, place));
  }
  return sizes;
}

absl::StatusOr<CheckedSpec> CheckWithin(const v1::JobSpec& spec, const KnownPlace& known,
                                        plan::Planning* planning) {
  const int asked = spec.resources().threads_per_rank();
  const int threads = std::max(1, asked > 0 ? asked : known.threads);
  MP_ASSIGN_OR_RETURN(const plan::DeviceProfile profile, plan::ProfileOf(spec, threads));
  const bool host_memory = spec.resources().device() != v1::DEVICE_KIND_CUDA;
  plan::RankPlace place = {
      .host_memory = host_memory, .profile = profile, .threads = threads, .planning = planning};
  SetMemory(spec, known.least_memory,
            host_memory ? "the smallest slot of the workers" : "the smallest GPU of the workers",
            &place);
  if (!host_memory) place.host_bytes = known.most_host_memory;
  MP_ASSIGN_OR_RETURN(plan::Resolved resolved, plan::ResolveAuto(spec, place));
  int64_t slot_bytes = 0;
  int64_t checkpoint_bytes = 0;
  SetMemory(spec, known.most_memory,
            host_memory ? "the largest slot of the workers" : "the largest GPU of the workers",
            &place);
  {  // one plan at a time: they are large
    MP_ASSIGN_OR_RETURN(const plan::StepPlan plan, PlanOf(resolved.spec, place));
    MP_RETURN_IF_ERROR(plan::CheckFits(resolved.spec, plan, place));
    slot_bytes = SlotBytes(plan, place);
    checkpoint_bytes = plan::CheckpointBytes(plan);
  }
  MP_ASSIGN_OR_RETURN(std::vector<v1::JobSize> sizes, SizesThatFit(resolved.spec, place));
  return CheckedSpec{std::move(resolved.spec), std::move(resolved.choices), slot_bytes,
                     std::move(sizes), checkpoint_bytes};
}

// Nothing is known of a script but what its spec says.
CheckedSpec CheckScriptJob(const v1::JobSpec& spec) {
  const v1::ResourceSpec& resources = spec.resources();
  const bool on_gpu = resources.device() == v1::DEVICE_KIND_CUDA;
  const int64_t slot_bytes = on_gpu ? resources.memory() : 0;
  CheckedSpec checked{.spec = spec, .slot_bytes = slot_bytes};
  const std::vector<int> possible = PossibleSizes(spec);
  if (possible.size() == 1) return checked;
  for (const int ranks : possible) {
    v1::JobSize& size = checked.sizes.emplace_back();
    size.set_ranks(ranks);
    size.set_slot_bytes(slot_bytes);
  }
  return checked;
}

}  // namespace

absl::StatusOr<CheckedSpec> CheckSubmission(const v1::JobSpec& spec, const KnownPlace& known,
                                            const StillWanted& still_wanted) {
  if (spec.has_script()) return CheckScriptJob(spec);
  plan::Planning planning(plan::kLimitsOfRequest, still_wanted);
  auto checked = CheckWithin(spec, known, &planning);
  // It would not do later either.
  if (planning.exhausted()) return absl::InvalidArgumentError(checked.status().message());
  return checked;
}

}  // namespace milepost::coordinator
