#include "coordinator/rpc/admission.h"

#include <algorithm>
#include <string>
#include <utility>

#include "common/status_macros.h"
#include "engine/plan/admission.h"
#include "engine/plan/planner.h"
#include "engine/plan/required_bytes.h"

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

}  // namespace

absl::StatusOr<AdmittedSpec> AdmitWhatFits(const v1::JobSpec& spec, const KnownPlace& known) {
  const int asked = spec.resources().threads_per_rank();
  const int threads = std::max(1, asked > 0 ? asked : known.threads);
  MP_ASSIGN_OR_RETURN(const plan::DeviceProfile profile, plan::ProfileOf(spec, threads));
  const bool host_memory = spec.resources().device() != v1::DEVICE_KIND_CUDA;
  plan::RankPlace place = {.host_memory = host_memory, .profile = profile, .threads = threads};
  SetMemory(spec, known.least_memory,
            host_memory ? "the smallest slot of the workers" : "the smallest GPU of the workers",
            &place);
  if (!host_memory) place.host_bytes = known.most_host_memory;
  MP_ASSIGN_OR_RETURN(plan::Resolved resolved, plan::ResolveAuto(spec, place));
  MP_ASSIGN_OR_RETURN(const plan::PlanOptions options,
                      plan::OptionsFromSpec(resolved.spec, place.threads));
  const auto plan = plan::PlanTraining(resolved.spec, options);
  if (!plan.ok()) return Annotate(plan.status(), "the step cannot be planned");
  SetMemory(spec, known.most_memory,
            host_memory ? "the largest slot of the workers" : "the largest GPU of the workers",
            &place);
  MP_RETURN_IF_ERROR(plan::CheckFits(resolved.spec, *plan, place));
  const int64_t slot_bytes =
      host_memory ? 0
                  : plan::RequiredBytes(*plan, plan->arena_bytes, host_memory) + ReservedBytes();
  return AdmittedSpec{std::move(resolved.spec), std::move(resolved.choices), slot_bytes};
}

}  // namespace milepost::coordinator
