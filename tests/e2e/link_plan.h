// What a link does to each packet that is sent over it: a pure function of the plan, of how long
// the plan holds and of chance.
//
//   const LinkPlan plan = {.loss = 0.1, .delay = absl::Milliseconds(5),
//                          .jitter = absl::Milliseconds(20)};
//   const PacketFate fate = Decide(plan, age, random);
//   if (!fate.dropped) SendAfter(fate.delay);
//
// A plan is for one direction. Thread-safe: values.
#ifndef MILEPOST_TESTS_E2E_LINK_PLAN_H_
#define MILEPOST_TESTS_E2E_LINK_PLAN_H_

#include <cstdint>
#include <string>

#include "absl/time/time.h"

namespace milepost::e2e {

// The default passes everything at once.
struct LinkPlan {
  double loss = 0;  // the part of all packets that is dropped, each by itself
  absl::Duration delay;
  // Up to so much more, each packet by itself: later ones overtake earlier ones.
  absl::Duration jitter;
  // At the beginning of every `period` nothing passes for `down`. Equal: nothing ever passes.
  absl::Duration period;
  absl::Duration down;

  std::string ToString() const;  // "loss 10%, delay 5ms, jitter 20ms"; "cut"; "clean"
};

inline LinkPlan CutLink() { return {.period = absl::Seconds(1), .down = absl::Seconds(1)}; }

struct PacketFate {
  bool dropped = false;
  absl::Duration delay;  // when it is not dropped
};

// `age`: since the plan was made to hold. `random`: 64 independent bits for each packet.
PacketFate Decide(const LinkPlan& plan, absl::Duration age, uint64_t random);

}  // namespace milepost::e2e

#endif  // MILEPOST_TESTS_E2E_LINK_PLAN_H_
