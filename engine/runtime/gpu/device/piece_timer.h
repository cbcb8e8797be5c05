// Where the device's time goes in a piece of a step: one that DeviceExecutor enqueues op by op, or
// captures and launches again and again.
//
//   PieceTimer timer(&device, &plan.train);
//   timer.Restart(/*by_op=*/false);
//   MP_ASSIGN_OR_RETURN(GraphId graph, executor->Capture(sections, context, &timer));
//   MP_RETURN_IF_ERROR(executor->Launch(graph));
//   MP_RETURN_IF_ERROR(executor->Synchronize(timeout));
//   MP_RETURN_IF_ERROR(timer.Read(/*runs=*/1, &times, &ops));   // of the latest launch
//
// A stream's time is stamped where its work has waited for another stream's and where its phase
// changes, so that a step of one rank has four stamps and each collective adds about four. By op
// each op has one, after its waits, and one after it: what lies between is at least what the host
// needs to put the op there, which small ops do not reach.
//
// A stamp keeps its latest time alone: of several runs of a piece, the last one stands for all.
// One thread at a time.
#ifndef MILEPOST_ENGINE_RUNTIME_GPU_DEVICE_PIECE_TIMER_H_
#define MILEPOST_ENGINE_RUNTIME_GPU_DEVICE_PIECE_TIMER_H_

#include <array>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/plan/step_plan.h"
#include "engine/runtime/executor/op_time.h"
#include "engine/runtime/gpu/device/device.h"

namespace milepost::runtime {

class PieceTimer {
 public:
  // Both must outlive it.
  PieceTimer(Device* device, const plan::Program* program) : device_(device), program_(program) {}

  // What is enqueued next is what will be read; the stamps are used again.
  void Restart(bool by_op);

  // The executor's: in front of an op's waits for other streams, if it has any in this piece;
  // behind them; and where all streams are joined. `op`: index in the program.
  absl::Status BeforeWaits(int32_t op, StreamId stream, bool waits);
  absl::Status BeforeOp(int32_t op, StreamId stream);
  absl::Status BeforeJoin();

  // Adds the times of `runs` runs to `times` and, by op, to `ops` (AddOpTime). All that was
  // enqueued since Restart has been waited for.
  absl::Status Read(int64_t runs, StreamTimes* times, std::vector<OpKindTime>* ops) const;

  // Of a piece whose latest run does not end: what has begun and has not ended, as far as the
  // stamps tell, in program order: the first op between two stamps.
  std::vector<int32_t> UnderWay() const;

 private:
  static constexpr int kNone = -1;
  enum class Part : uint8_t { kForward, kBackward, kUpdate, kExposed, kCommunication, kOther };
  // From one stamp to another.
  struct Span {
    TimerId from = kNone;
    TimerId to = kNone;
    Part part = Part::kForward;
    int32_t op = kNone;    // the first
    int32_t join = kNone;  // kExposed: of these only the longest counts, as they go on at once
  };
  // A stream of the plan.
  struct Line {
    StreamId stream = kNone;
    int32_t open = kNone;     // first op of the span that is under way
    TimerId begin = kNone;    // of that span
    TimerId end = kNone;      // of the latest span
    bool adjoining = false;   // nothing was waited for since `end`
    bool has_waited = false;  // the compute stream, since `end`
  };

  bool IsUnderWay(const Span& span) const;
  Line& LineOf(int32_t op);
  Part PartOf(int32_t op) const;
  bool Same(int32_t a, int32_t b) const { return !by_op_ && PartOf(a) == PartOf(b); }
  absl::StatusOr<TimerId> Stamp(StreamId stream);
  absl::Status Close(Line& line);

  Device* const device_;
  const plan::Program* const program_;
  bool by_op_ = false;
  std::vector<TimerId> timers_;
  size_t used_ = 0;  // of the timers
  std::vector<Line> lines_;
  std::vector<Span> spans_;
  int32_t joins_ = 0;
};

}  // namespace milepost::runtime

#endif  // MILEPOST_ENGINE_RUNTIME_GPU_DEVICE_PIECE_TIMER_H_
