// Verification, part 4: happens-before between the streams. A step is unrolled into instances of
// ops; for each instance it is known how many of each other stream's have finished before it (all
// of the earlier micro-steps': the streams are joined between them). Two instances that neither
// order covers may run at once, so their accesses must not conflict.
#include <algorithm>
#include <array>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "engine/plan/accesses.h"
#include "engine/plan/verify.h"

namespace milepost::plan {
namespace {

class Unrolled {
 public:
  Unrolled(const StepPlan& plan, const Program& program, int micro_steps)
      : plan_(plan), program_(program), latest_(program.ops.size(), kNone) {
    for (int m = 0; m < micro_steps; ++m) {
      for (auto& latest : latest_) latest = kNone;  // waits look back within a micro-step
      for (size_t s = 0; s < kStreams; ++s) joined_[s] = streams_[s].size();
      Append(When::kEveryMicroStep, m == micro_steps - 1);
    }
    Append(When::kUpdate, false);
  }

  absl::Status Check() const {
    for (int a = 0; a < kStreams; ++a) {
      for (int b = a + 1; b < kStreams; ++b) MP_RETURN_IF_ERROR(CheckStreams(a, b));
    }
    return absl::OkStatus();
  }

 private:
  static constexpr size_t kNone = static_cast<size_t>(-1);
  static int Index(Stream stream) { return static_cast<int>(stream); }

  struct Instance {
    int32_t op = 0;
    // How many of each stream's instances are over when it starts.
    std::array<size_t, kStreams> finished = {};
  };

  absl::Status CheckStreams(int a, int b) const {
    for (size_t j = 0; j < streams_[b].size(); ++j) {
      for (size_t k = streams_[b][j].finished[a]; k < streams_[a].size(); ++k) {
        if (streams_[a][k].finished[b] > j) break;
        MP_RETURN_IF_ERROR(CheckPair(streams_[a][k].op, streams_[b][j].op));
      }
    }
    return absl::OkStatus();
  }

  void Append(When when, bool last_micro_step) {
    for (int32_t i = 0; i < static_cast<int32_t>(program_.ops.size()); ++i) {
      const PlannedOp& planned = program_.ops[i];
      if (planned.when != when && !(last_micro_step && planned.when == When::kLastMicroStep)) {
        continue;
      }
      std::vector<Instance>& stream = streams_[Index(planned.stream)];
      Instance instance = {.op = i, .finished = joined_};
      if (!stream.empty()) Absorb(planned.stream, stream.size() - 1, instance);
      for (int32_t wait : planned.wait_for) {
        if (latest_[wait] != kNone) Absorb(program_.ops[wait].stream, latest_[wait], instance);
      }
      latest_[i] = stream.size();
      stream.push_back(instance);
    }
  }

  // All that is over once instance `position` of `stream` is.
  void Absorb(Stream stream, size_t position, Instance& instance) const {
    const Instance& earlier = streams_[Index(stream)][position];
    for (int s = 0; s < kStreams; ++s) {
      instance.finished[s] = std::max(instance.finished[s], earlier.finished[s]);
    }
    size_t& own = instance.finished[Index(stream)];
    own = std::max(own, position + 1);
  }

  absl::Status CheckPair(int32_t a, int32_t b) const {
    for (const Access& x : program_.ops[a].accesses) {
      for (const Access& y : program_.ops[b].accesses) {
        if (!x.write && !y.write) continue;
        const int64_t x_base = plan_.AddressOf(x.buffer);
        const int64_t y_base = plan_.AddressOf(y.buffer);
        if (x_base + x.begin >= y_base + y.end || y_base + y.begin >= x_base + x.end) continue;
        return absl::InternalError(
            absl::StrCat("op ", a, " (", graph::Name(program_.ops[a].op.kind), ") and op ", b, " (",
                         graph::Name(program_.ops[b].op.kind), ") on another stream both touch ",
                         plan_.buffers[x.buffer].name, " and neither waits for the other"));
      }
    }
    return absl::OkStatus();
  }

  const StepPlan& plan_;
  const Program& program_;
  std::vector<Instance> streams_[kStreams];
  std::array<size_t, kStreams> joined_ = {};  // instances that were over when the micro-step began
  std::vector<size_t> latest_;  // by op: its instance of this micro-step, within its stream
};

}  // namespace

absl::Status VerifyOrder(const StepPlan& plan, const Program& program) {
  for (int micro_steps : UnrolledMicroSteps(plan, program)) {
    MP_RETURN_IF_ERROR(Unrolled(plan, program, micro_steps).Check());
  }
  return absl::OkStatus();
}

}  // namespace milepost::plan
