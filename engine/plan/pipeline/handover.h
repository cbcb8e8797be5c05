// Stages of a pipeline that work through their orders and hand on to each other: whether they get
// to their end, and when each pass begins. Of schedule.h: CheckOrders and TimelineOf.
//
//   Handover handover(orders, times, /*transfer=*/0.1);
//   MP_RETURN_IF_ERROR(handover.Run());
//   const std::vector<std::vector<TimedPass>> timeline = std::move(handover).Timeline();
//
// Pure.
#ifndef MILEPOST_ENGINE_PLAN_PIPELINE_HANDOVER_H_
#define MILEPOST_ENGINE_PLAN_PIPELINE_HANDOVER_H_

#include <cstddef>
#include <vector>

#include "absl/status/status.h"
#include "engine/plan/pipeline/schedule.h"

namespace milepost::plan {

class Handover {
 public:
  // `times`: as TimelineOf has them; none: nothing takes time.
  explicit Handover(const std::vector<StageOrder>& orders, std::vector<PassTimes> times = {},
                    double transfer = 0);

  // Before Run: Receives::kWhenNeeded.
  void ReceiveWhenNeeded();

  // Everything begins as early as it can, whatever the order in which this takes it. INTERNAL with
  // the stages that do not get to their end.
  absl::Status Run();

  // Of a run that came to its end: by stage.
  std::vector<std::vector<TimedPass>> Timeline() &&;

 private:
  // A send or a receive, as a stream of a stage comes to it.
  struct Event {
    bool send = false;
    size_t pass = 0;
    size_t computed = 0;  // how many passes have ended when it can take place
  };
  struct Stage {
    std::vector<Pass> passes;
    std::vector<Event> streams[2];  // activations, gradients
    size_t at[2] = {0, 0};
    size_t computed = 0;
    std::vector<bool> received, sent;
    std::vector<double> received_at, sent_at;
    double stream_free[2] = {0, 0};
    std::vector<TimedPass> timed;  // those that are computed
  };

  int RunOf(size_t s, const Pass& pass) const;
  bool Receives(size_t s, const Pass& pass) const;
  bool Sends(size_t s, const Pass& pass) const;
  void Add(size_t s, const StageOrder& order);
  bool Compute(size_t s);
  const Event* Ready(size_t s, size_t stream) const;
  bool Transfer(size_t s, size_t stream);

  std::vector<PassTimes> times_;  // by run of blocks
  const double transfer_;
  int runs_ = 0;  // of blocks, of all stages
  std::vector<Stage> stages_;
};

}  // namespace milepost::plan

#endif  // MILEPOST_ENGINE_PLAN_PIPELINE_HANDOVER_H_
