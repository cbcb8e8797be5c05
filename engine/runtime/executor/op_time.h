// What the ops of one kind have cost.
#ifndef MILEPOST_ENGINE_RUNTIME_EXECUTOR_OP_TIME_H_
#define MILEPOST_ENGINE_RUNTIME_EXECUTOR_OP_TIME_H_

#include <cstdint>
#include <vector>

#include "engine/graph/graph.h"
#include "engine/plan/step_plan.h"

namespace milepost::runtime {

struct OpKindTime {
  graph::OpKind kind;
  graph::Phase phase;
  int64_t runs = 0;
  double seconds = 0;
  double flops = 0;  // of matrix products
  double bytes = 0;  // read and written, at least
};

// Adds `runs` of an op, which took `seconds` together, to its kind's and phase's entry, which is
// made at the end where there is none.
void AddOpTime(const plan::PlannedOp& op, int64_t runs, double seconds,
               std::vector<OpKindTime>* times);

// Where an executor's time has gone, in seconds since its creation.
struct StreamTimes {
  double forward = 0;   // of the compute stream, waits not counted
  double backward = 0;  // with what is made once more
  double update = 0;
  double exposed = 0;        // the compute stream waiting for the communication stream
  double communication = 0;  // the communication stream in its ops, with the wait for other ranks
};

}  // namespace milepost::runtime

#endif  // MILEPOST_ENGINE_RUNTIME_EXECUTOR_OP_TIME_H_
