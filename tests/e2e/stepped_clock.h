// Wall clocks of processes that this process starts. It can step each of them.
//
//   SteppedClocks clocks(folder + "/clocks");
//   options.env = clocks.Env();                   // environment of the process
//   clocks.Step(pid, -absl::Hours(1));            // that process sees the time of an hour ago
//   clocks.Step(pid, absl::ZeroDuration());       // right again
//
// The machine's clock is not touched. A library is preloaded instead (clock_shim.cc, which says
// what it leaves alone). Processes that such a process starts are preloaded too, and have their own
// clocks, which begin correct. Thread-safe. Calls do not block.
#ifndef MILEPOST_TESTS_E2E_STEPPED_CLOCK_H_
#define MILEPOST_TESTS_E2E_STEPPED_CLOCK_H_

#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"

namespace milepost::e2e {

class SteppedClocks {
 public:
  // Makes `folder` if it does not exist.
  explicit SteppedClocks(std::string folder);

  // Why this build has no such clocks. Empty: it has.
  static std::string Unavailable();

  // Environment variables to add to a process's others. `begin` is the initial offset of its clock,
  // and of the clocks of processes that it starts.
  std::vector<std::pair<std::string, std::string>> Env(
      absl::Duration begin = absl::ZeroDuration()) const;

  // Sets the offset of the process's clock from the machine's, from now on. False: no process with
  // that id was started with Env.
  bool Step(int pid, absl::Duration offset) const;

 private:
  const std::string folder_;
};

}  // namespace milepost::e2e

#endif  // MILEPOST_TESTS_E2E_STEPPED_CLOCK_H_
