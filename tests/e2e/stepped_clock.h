// Wall clocks of processes that this process starts, each of which it can step.
//
//   SteppedClocks clocks(folder + "/clocks");
//   options.env = clocks.Env();                   // of the process
//   clocks.Step(pid, -absl::Hours(1));            // it is an hour ago, for that process
//   clocks.Step(pid, absl::ZeroDuration());       // right again
//
// The machine's clock is not touched: a library is preloaded (clock_shim.cc, which says what it
// leaves alone). What such a process starts is preloaded too, and has a clock of its own, which
// begins right. Thread-safe; calls do not block.
#ifndef MILEPOST_TESTS_E2E_STEPPED_CLOCK_H_
#define MILEPOST_TESTS_E2E_STEPPED_CLOCK_H_

#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"

namespace milepost::e2e {

class SteppedClocks {
 public:
  // Makes `folder` if it is not there.
  explicit SteppedClocks(std::string folder);

  // Why this build has none; empty: it has.
  static std::string Unavailable();

  // Of a process, on top of its other variables. `begin`: what its clock differs by at its start,
  // and that of those which it starts.
  std::vector<std::pair<std::string, std::string>> Env(
      absl::Duration begin = absl::ZeroDuration()) const;

  // What its clock differs from the machine's by, from now on. False: no process with that id has
  // been started with Env.
  bool Step(int pid, absl::Duration offset) const;

 private:
  const std::string folder_;
};

}  // namespace milepost::e2e

#endif  // MILEPOST_TESTS_E2E_STEPPED_CLOCK_H_
