#include "engine/runtime/executor/op_time.h"

#include <algorithm>

namespace milepost::runtime {

void AddOpTime(const plan::PlannedOp& planned, int64_t runs, double seconds,
               std::vector<OpKindTime>* times) {
  const graph::Op& op = planned.op;
  const auto same = [&](const OpKindTime& t) { return t.kind == op.kind && t.phase == op.phase; };
  auto found = std::find_if(times->begin(), times->end(), same);
  if (found == times->end()) {
    found = times->insert(times->end(), {.kind = op.kind, .phase = op.phase});
  }
  found->runs += runs;
  found->seconds += seconds;
  found->flops += planned.flops * static_cast<double>(runs);
  found->bytes += planned.bytes * static_cast<double>(runs);
}

}  // namespace milepost::runtime
