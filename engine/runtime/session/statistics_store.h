// A rank's running statistics inside the arena, as state tensors of kind "statistic", the right
// factors of its gradients, of kind "factor", and the scalings of its 8-bit tensors, as one of kind
// "scaling". Every rank holds all of them, the same on all; one saves them.
//
//   StatisticsStore statistics(plan, plan.train.graph, arena.data(), /*first_tensor=*/n);
//   statistics.Initialize();
#ifndef MILEPOST_ENGINE_RUNTIME_SESSION_STATISTICS_STORE_H_
#define MILEPOST_ENGINE_RUNTIME_SESSION_STATISTICS_STORE_H_

#include <cstdint>
#include <vector>

#include "absl/strings/string_view.h"
#include "engine/dtype/dtype.h"
#include "engine/plan/step_plan.h"
#include "engine/runtime/executor/state_interval.h"
#include "milepost/v1/checkpoint.pb.h"

namespace milepost::runtime {

class StatisticsStore {
 public:
  // Its tensors are numbered from `first_tensor` on. What it is given must outlive it.
  StatisticsStore(const plan::StepPlan& plan, const graph::Graph& graph, char* arena,
                  int32_t first_tensor);

  const std::vector<v1::TensorInfo>& tensors() const { return tensors_; }
  // All of every tensor, in order.
  const std::vector<StateInterval>& intervals() const { return intervals_; }
  void Initialize() const;
  // These alone: a checkpoint of another precision has none.
  void InitializeScalings() const;
  // No step has added to the scalings; false where there are none.
  bool HasNewScalings() const;

 private:
  void Add(absl::string_view name, const char* kind, DType dtype, const std::vector<int64_t>& shape,
           char* data);
  void AddFactors(const plan::StepPlan& plan, const graph::Graph& graph, char* arena);

  const graph::Graph& graph_;
  const int32_t first_tensor_;
  std::vector<v1::TensorInfo> tensors_;
  std::vector<StateInterval> intervals_;
};

}  // namespace milepost::runtime

#endif  // MILEPOST_ENGINE_RUNTIME_SESSION_STATISTICS_STORE_H_
