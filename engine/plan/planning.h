// What the plans of one request may use up together, and what they share.
//
//   Planning planning(kLimitsOfRequest, [&] { return StillWanted(); });
//   place.planning = &planning;
//   absl::StatusOr<Resolved> resolved = ResolveAuto(spec, place);  // ends where the request ends
//
// Work is counted and not timed, so that a spec is planned or refused alike on every machine; how
// long a request is wanted is for its caller to say. For one thread.
#ifndef MILEPOST_ENGINE_PLAN_PLANNING_H_
#define MILEPOST_ENGINE_PLAN_PLANNING_H_

#include <cstdint>
#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "engine/plan/step_plan.h"

namespace milepost::plan {

// One unit of work is one op of a training program, of up to 16 operands, taken through the passes
// once: some microseconds. An op with more, as a layer's experts have them, counts as several.
inline int64_t WorkOf(const graph::Op& op) {
  constexpr size_t kOperandsOfAnOp = 16;
  return static_cast<int64_t>(1 + (op.inputs.size() + op.outputs.size()) / kOperandsOfAnOp);
}

struct PlanningLimits {
  int64_t work = 0;  // 0: no limit
  int64_t ops = 0;   // of one training program, which its memory goes with; 0: no limit
};

// What a request to a service may take: no more than 2 s and 200 MB on a machine of today.
inline constexpr PlanningLimits kLimitsOfRequest = {.work = 200'000, .ops = 20'000};

class Planning {
 public:
  // Asked at least once for every kWorkBetween units of work. Not OK: planning ends with it.
  using MayGoOn = std::function<absl::Status()>;
  static constexpr int64_t kWorkBetween = 1000;
  // What a draft takes besides its ops.
  static constexpr int64_t kWorkOfDraft = 100;

  explicit Planning(PlanningLimits limits, MayGoOn may_go_on = nullptr)
      : limits_(limits), may_go_on_(std::move(may_go_on)) {}

  // To be called before the work is done. What it says once it says again: RESOURCE_EXHAUSTED, with
  // what would do, or what the caller said.
  absl::Status Spend(int64_t work);
  // A training program of so many ops is to be made.
  absl::Status Make(int64_t ops);

  int64_t spent() const { return spent_; }
  // A limit has been reached.
  bool exhausted() const { return exhausted_; }

  // Which blocks are recomputed within a budget is the same for many numbers of ranks: by all that
  // it depends on.
  std::map<std::vector<int64_t>, std::vector<Recompute>>& recomputes() { return recomputes_; }

 private:
  const PlanningLimits limits_;
  const MayGoOn may_go_on_;
  absl::Status status_;
  bool exhausted_ = false;
  int64_t spent_ = 0;
  int64_t asked_at_ = -kWorkBetween;
  std::map<std::vector<int64_t>, std::vector<Recompute>> recomputes_;
};

// Of no planning at all: nothing is bounded.
inline absl::Status Spend(Planning* planning, int64_t work) {
  return planning == nullptr ? absl::OkStatus() : planning->Spend(work);
}

}  // namespace milepost::plan

#endif  // MILEPOST_ENGINE_PLAN_PLANNING_H_
