// The section lists that steps and evaluations are made of: each kind of micro-step, and of batch
// of an evaluation. One runs op by op at first, and is a graph from then on
// (backend/cuda_step_engine.h).
//
//   StepPieces pieces({.device = &device, .train = &plan.train, .capture = true});
//   MP_RETURN_IF_ERROR(pieces.MicroStep(*executor, context));   // enqueued
//   ...                                                         // the step is waited for
//   pieces.ReadTimers();
//   pieces.stream_times()
//
// One thread at a time.
#ifndef MILEPOST_ENGINE_RUNTIME_GPU_BACKEND_STEP_PIECES_H_
#define MILEPOST_ENGINE_RUNTIME_GPU_BACKEND_STEP_PIECES_H_

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "engine/plan/step_plan.h"
#include "engine/runtime/executor/op_time.h"
#include "engine/runtime/executor/step_context.h"
#include "engine/runtime/gpu/device/device.h"
#include "engine/runtime/gpu/device/device_executor.h"
#include "engine/runtime/gpu/device/piece_timer.h"

namespace milepost::runtime {

struct StepPiecesOptions {
  Device* device = nullptr;              // until the last call
  const plan::Program* train = nullptr;  // likewise
  bool capture = true;                   // false: all run op by op
  int64_t powersgd_start = 0;            // gradients travel as factors from this step on
  std::function<void(const std::string&)> note = [](const std::string&) {};
};

class StepPieces {
 public:
  explicit StepPieces(StepPiecesOptions options);

  // With the update, where it is the last of its step.
  absl::Status MicroStep(DeviceExecutor& executor, const StepContext& context);
  absl::Status EvaluateBatch(DeviceExecutor& executor, const StepContext& context);

  // Of a step that has been waited for. Where that fails it is noted, and no time is read again.
  void ReadTimers();
  const StreamTimes& stream_times() const { return times_; }
  const std::vector<OpKindTime>& op_times() const { return op_times_; }

  struct UnderWay {
    int64_t micro_step = 0;  // 0: a step's first, 2: its last, 1: between them
    int32_t op = 0;
  };
  // Of this step's micro-steps, in program order; nothing where no stamp tells.
  std::optional<UnderWay> FirstUnderWay() const;

 private:
  // A section list as it is captured.
  struct Piece {
    std::optional<GraphId> graph;
    int64_t turns = 0;                  // steps that had it; of an evaluation, batches
    std::unique_ptr<PieceTimer> timer;  // null: an evaluation's
    int64_t runs_to_read = 0;           // in this step, of which the timer was not read
  };

  absl::Status Run(DeviceExecutor& executor, absl::Span<const Section> sections,
                   const StepContext& context, Piece& piece);

  const StepPiecesOptions options_;
  // By first_micro_step + 2 last_micro_step + 4 many_documents + 8 many_targets; of a step's last
  // ones + 16 before powersgd_start.
  std::array<Piece, 32> micro_steps_;
  std::array<Piece, 2> evaluation_;  // by many_documents
  bool timed_ = true;
  StreamTimes times_;
  std::vector<OpKindTime> op_times_;
};

}  // namespace milepost::runtime

#endif  // MILEPOST_ENGINE_RUNTIME_GPU_BACKEND_STEP_PIECES_H_
