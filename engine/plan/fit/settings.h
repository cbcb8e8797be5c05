// The memory settings of a job, and the search for those that fit: what `auto` fields are chosen
// by, and what a job that does not fit is told.
//
//   MP_ASSIGN_OR_RETURN(std::vector<Setting> settings, Search(spec, space, place));
//
// Pure and deterministic; makes a few drafts of the plan for each combination it looks at.
#ifndef MILEPOST_ENGINE_PLAN_FIT_SETTINGS_H_
#define MILEPOST_ENGINE_PLAN_FIT_SETTINGS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/plan/estimates/device_profile.h"
#include "engine/plan/planning.h"
#include "engine/plan/step_plan.h"
#include "milepost/v1/job_spec.pb.h"

namespace milepost::plan {

// Where a job's ranks would run.
struct RankPlace {
  int64_t memory_bytes = 0;  // that each may use; 0: not known
  std::string memory_of;     // for people: "an h200", "this host over 2 ranks"
  // The memory is a host's, which copies of checkpoints take part of too; else a device's own.
  bool host_memory = true;
  // Beside a device's own memory: what each rank may use of its host's; 0: not known.
  int64_t host_bytes = 0;
  DeviceProfile profile;  // of one rank: ForThreads has been applied
  int threads = 1;
  // What looking for settings that do may use up; nullptr: whatever it takes.
  Planning* planning = nullptr;
};

// What can be changed about a job's memory and time without changing what it computes.
struct Setting {
  int tensor = 1;    // resources.mesh.tensor
  int pipeline = 1;  // resources.mesh.pipeline
  int context = 1;   // resources.mesh.context
  int expert = 1;    // resources.mesh.expert; of the data and context ranks
  PipelineSchedule schedule = PipelineSchedule::kOneForwardOneBackward;
  int chunks = 1;  // resources.mesh.chunks
  int64_t micro = 1;
  int64_t accumulation = 1;
  int side_by_side = 1;  // train.batch.side_by_side
  int stage = 0;
  int group = 0;  // train.zero.group
  Recompute recompute = Recompute::kNone;
  int64_t recompute_budget = 0;  // with kBudget
  bool offload = false;          // train.offload.optimizer: host
  // Filled in by Search.
  int64_t bytes = 0;       // that a rank needs (required_bytes.h)
  int64_t host_bytes = 0;  // of its host's memory
  double seconds = 0;      // expected of a step

  int ModelRanks() const { return tensor * pipeline * context; }  // with the same samples
};

// Micro-batches, stages, recomputations and offloads to combine. Micro-batches ascend and divide
// the sequences of a rank.
struct SettingSpace {
  std::vector<int64_t> micros;
  std::vector<int> stages;
  std::vector<Recompute> recomputes;
  std::vector<bool> offloads = {false};
};

// The spec, and after it what train.memory: low may make of it: each keeps fewer bytes than the one
// before, and the one that does the least harm comes first. All of them have train.memory: exact.
// Pure; empty never.
std::vector<v1::JobSpec> StoragesOf(const v1::JobSpec& spec);

// The divisors of the sequences that a rank has of the global batch, up to `most`, ascending.
std::vector<int64_t> MicrosUpTo(const v1::JobSpec& spec, int64_t most);

// The setting that the spec gives; its fields that are `auto` have the space's first value.
Setting SettingOf(const v1::JobSpec& spec);
v1::JobSpec WithSetting(v1::JobSpec spec, const Setting& setting);

// The bytes and the seconds of a setting. `exact`: as PlanTraining packs it; otherwise the least
// that any packing needs, in a fraction of the time.
absl::Status Assess(const v1::JobSpec& spec, const RankPlace& place, bool exact, Setting* setting);

// Whether what Assess has found is no more than the place has, as far as that is known.
bool Fits(const Setting& setting, const RankPlace& place);

// For each stage, recomputation and offload of the space the largest micro-batch that fits, where
// one does: by the least bytes, so that a setting here may turn out not to fit by a little. Needs
// place.memory_bytes. The errors are PlanTraining's.
absl::StatusOr<std::vector<Setting>> Search(const v1::JobSpec& spec, const SettingSpace& space,
                                            const RankPlace& place);

// "train.zero.stage 2, train.recompute full": what differs from `before`; empty: nothing.
std::string Difference(const Setting& before, const Setting& after);

}  // namespace milepost::plan

#endif  // MILEPOST_ENGINE_PLAN_FIT_SETTINGS_H_
