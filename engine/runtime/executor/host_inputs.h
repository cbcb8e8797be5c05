// Internal to the session: where a program's inputs lie in the arena, field by field of the source
// that fills them.
#ifndef MILEPOST_ENGINE_RUNTIME_EXECUTOR_HOST_INPUTS_H_
#define MILEPOST_ENGINE_RUNTIME_EXECUTOR_HOST_INPUTS_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/data/sample_source.h"
#include "engine/plan/step_plan.h"

namespace milepost::runtime {

// That a run of the training program takes: those of a step in a pipeline's stage, those that are
// side by side otherwise.
inline int64_t MicroBatchesOfRun(const plan::StepPlan& plan) {
  return plan.options.accumulation / plan.options.MicroSteps();
}

class HostInputs {
 public:
  // Of a micro-batch of the step, where a program has them all. A context rank has its part of each
  // sample, but for inputs that are whole. INTERNAL when the source's fields are not the program's
  // inputs.
  static absl::StatusOr<HostInputs> Find(const plan::StepPlan& plan, const plan::Program& program,
                                         char* arena, const data::SampleSource& source,
                                         int64_t micro_batch = 0, int context_rank = 0);

  // A micro-batch that is in host memory already.
  void Copy(const std::vector<std::vector<char>>& fields) const;
  // Samples [first, first + count) of the source, and behind them, up to the micro-batch's size,
  // samples without targets.
  absl::Status FetchPadded(const data::SampleSource& source, int64_t first, int64_t count) const;
  // The source's field that loss head `head` of the program has its targets from.
  size_t TargetField(size_t head) const { return target_fields_[head]; }

 private:
  struct Place {
    char* data;
    int64_t sample_bytes;
    int64_t own_begin;  // what the input has of them
    int64_t own_bytes;
    int64_t bytes;  // of the input: a micro-batch
    bool targets;
  };

  static void CopySamples(const Place& place, const char* samples, int64_t count);

  std::vector<Place> places_;                       // by field
  mutable std::vector<std::vector<char>> fetched_;  // likewise, where the input has a part of them
  std::vector<size_t> target_fields_;               // by loss head
};

}  // namespace milepost::runtime

#endif  // MILEPOST_ENGINE_RUNTIME_EXECUTOR_HOST_INPUTS_H_
