// What a link does to each packet: a pure function of the plan, the plan's age and chance.
//
//   const LinkPlan plan = {.loss = 0.1, .delay = absl::Milliseconds(5),
//                          .jitter = absl::Milliseconds(20)};
//   const PacketFate fate = Decide(plan, age, random);
//   if (!fate.dropped) SendAfter(fate.delay);
//
// A plan is for one direction. Thread-safe: these are plain values.
#ifndef MILEPOST_TESTS_E2E_LINK_PLAN_H_
#define MILEPOST_TESTS_E2E_LINK_PLAN_H_

#include <cstdint>
#include <string>

#include "absl/time/time.h"

namespace milepost::e2e {

// The default passes everything at once.
struct LinkPlan {
  double loss = 0;  // share of packets that are dropped, each independently
  absl::Duration delay;
  // Up to this much more delay, independently for each packet. Later packets overtake earlier ones.
  absl::Duration jitter;
  // Nothing passes for `down` at the beginning of every `period`. If they are equal, nothing ever
  // passes.
  absl::Duration period;
  absl::Duration down;

  std::string ToString() const;  // "loss 10%, delay 5ms, jitter 20ms"; "cut"; "clean"
};

inline LinkPlan CutLink() { return {.period = absl::Seconds(1), .down = absl::Seconds(1)}; }

struct PacketFate {
  bool dropped = false;
  absl::Duration delay;  // unless it is dropped
};

// `age` is the time since the plan was set. `random` has 64 independent bits for each packet.
PacketFate Decide(const LinkPlan& plan, absl::Duration age, uint64_t random);

}  // namespace milepost::e2e

#endif  // MILEPOST_TESTS_E2E_LINK_PLAN_H_
