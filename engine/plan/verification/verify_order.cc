// Verification, part 4: happens-before between the streams. A step is unrolled into instances of
// ops; for each instance it is known how many of each other stream's have finished before it (all
// of the earlier micro-steps': the streams are joined between them). Two instances that neither
// order covers may run at once, so their accesses must not conflict.
#include <algorithm>
#include <array>
#include <functional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "engine/plan/accesses.h"
#include "engine/plan/verification/verify.h"

namespace milepost::plan {
namespace {

struct Range {
  int64_t begin;  // addresses
  int64_t end;
  bool write;
};

// Ranges that come and go, and whether one of them conflicts with another one: in logarithmic time.
class RangeSet {
 public:
  // Of all that will ever be in it.
  explicit RangeSet(const std::vector<Range>& all) {
    for (const Range& range : all) {
      bounds_.push_back(range.begin);
      bounds_.push_back(range.end);
    }
    std::sort(bounds_.begin(), bounds_.end());
    bounds_.erase(std::unique(bounds_.begin(), bounds_.end()), bounds_.end());
    while (leaves_ < bounds_.size()) leaves_ *= 2;
    for (Counts& counts : {std::ref(any_), std::ref(writes_)}) counts.Resize(leaves_);
  }

  // `by`: 1 to insert, -1 to remove.
  void Change(const Range& range, int by) {
    if (range.begin >= range.end) return;
    const size_t first = At(range.begin);
    const size_t last = At(range.end) - 1;
    any_.Add(1, 0, leaves_ - 1, first, last, by);
    if (range.write) writes_.Add(1, 0, leaves_ - 1, first, last, by);
  }

  bool Conflicts(const Range& range) const {
    if (range.begin >= range.end || bounds_.empty() || range.end <= bounds_.front() ||
        range.begin >= bounds_.back()) {
      return false;
    }
    // The cells between neighbouring bounds that it touches.
    const size_t after = At(range.begin + 1);
    const size_t first = after == 0 ? 0 : after - 1;
    const size_t last = std::min(At(range.end), bounds_.size() - 1) - 1;
    return (range.write ? any_ : writes_).Most(1, 0, leaves_ - 1, first, last) > 0;
  }

 private:
  // How many ranges cover each cell, as a tree: a node's own ones cover all of it.
  struct Counts {
    std::vector<int> own;
    std::vector<int> most;  // in one cell of the node, its own included

    void Resize(size_t leaves) {
      own.assign(2 * leaves, 0);
      most.assign(2 * leaves, 0);
    }
    void Add(size_t node, size_t low, size_t high, size_t first, size_t last, int by) {
      if (last < low || high < first) return;
      if (first <= low && high <= last) {
        own[node] += by;
        most[node] += by;
        return;
      }
      const size_t middle = (low + high) / 2;
      Add(2 * node, low, middle, first, last, by);
      Add(2 * node + 1, middle + 1, high, first, last, by);
      most[node] = own[node] + std::max(most[2 * node], most[2 * node + 1]);
    }
    int Most(size_t node, size_t low, size_t high, size_t first, size_t last) const {
      if (last < low || high < first || most[node] == 0) return 0;
      if (first <= low && high <= last) return most[node];
      const size_t middle = (low + high) / 2;
      return own[node] + std::max(Most(2 * node, low, middle, first, last),
                                  Most(2 * node + 1, middle + 1, high, first, last));
    }
  };

  // The first bound that is not below.
  size_t At(int64_t address) const {
    return static_cast<size_t>(std::lower_bound(bounds_.begin(), bounds_.end(), address) -
                               bounds_.begin());
  }

  std::vector<int64_t> bounds_;
  size_t leaves_ = 1;
  Counts any_;
  Counts writes_;
};

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
    const bool fewer = streams_[a].size() < streams_[b].size();
    if (!MayConflict(fewer ? a : b, fewer ? b : a)) return absl::OkStatus();
    for (size_t j = 0; j < streams_[b].size(); ++j) {
      for (size_t k = streams_[b][j].finished[a]; k < streams_[a].size(); ++k) {
        if (streams_[a][k].finished[b] > j) break;
        MP_RETURN_IF_ERROR(CheckPair(streams_[a][k].op, streams_[b][j].op));
      }
    }
    return absl::OkStatus();
  }

  // Whether any two that are not ordered touch the same bytes. What runs beside the instances of
  // `many`, one after the other, is a window over `few` that moves on only.
  bool MayConflict(int few, int many) const {
    if (streams_[few].empty()) return false;
    std::vector<Range> all;
    for (const Instance& instance : streams_[few]) {
      for (const Access& access : program_.ops[instance.op].accesses)
        all.push_back(RangeOf(access));
    }
    RangeSet beside(all);
    const auto change = [&](const Instance& instance, int by) {
      for (const Access& access : program_.ops[instance.op].accesses) {
        beside.Change(RangeOf(access), by);
      }
    };
    size_t begin = 0;
    size_t end = 0;
    for (size_t j = 0; j < streams_[many].size(); ++j) {
      const Instance& instance = streams_[many][j];
      for (; end < streams_[few].size() && streams_[few][end].finished[many] <= j; ++end) {
        change(streams_[few][end], 1);
      }
      for (; begin < std::min(end, instance.finished[few]); ++begin) {
        change(streams_[few][begin], -1);
      }
      if (begin == end) continue;
      for (const Access& access : program_.ops[instance.op].accesses) {
        if (beside.Conflicts(RangeOf(access))) return true;
      }
    }
    return false;
  }

  Range RangeOf(const Access& access) const {
    const int64_t base = plan_.AddressOf(access.buffer);
    return {base + access.begin, base + access.end, access.write};
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
