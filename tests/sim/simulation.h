// One simulated cluster over some simulated hours: the real coordinator/core, and models of all
// that it has to do with. docs/internals/simulation.md says what is modelled and what is checked.
//
//   Result result = Simulate({.seed = 7, .hours = 24});
//   if (!result.violation.empty()) std::cerr << result.violation;
//
// Deterministic: the same options give the same result, to the hash of all that happened.
#ifndef MILEPOST_TESTS_SIM_SIMULATION_H_
#define MILEPOST_TESTS_SIM_SIMULATION_H_

#include <cstdint>
#include <string>
#include <vector>

#include "tests/sim/plants.h"
#include "tests/sim/probes.h"

namespace milepost::sim {

struct Options {
  uint64_t seed = 1;
  double hours = 24;  // of faults and submissions; until all jobs have ended come more without
  int workers = 200;
  Plant plant = Plant::kNone;  // a bug that is to be found
  // Keeps the last lines about this one ("jobs/7", "workers/w3"); empty: about nobody.
  std::string trace = {};
};

struct Result {
  std::string violation;  // what was wrong; empty: nothing
  std::string checker;    // that found it
  std::string subject;    // "jobs/7", "workers/w3"
  double hour = 0;        // when it was found, or all had ended
  uint64_t hash = 0;      // of all events
  Probes probes;
  int64_t events = 0;
  int64_t jobs = 0;
  int64_t succeeded = 0;
  int64_t failed = 0;
  int64_t cancelled = 0;
  int64_t attempts = 0;
  int64_t writes = 0;
  int64_t passes = 0;
  int64_t crashes = 0;
  std::vector<std::string> lines;  // of Options::trace
};

Result Simulate(const Options& options);

// What a failure is told with: seed, time, the last lines of its subject (from a second run), and
// the command that repeats it.
std::string Describe(const Options& options, const Result& result);

}  // namespace milepost::sim

#endif  // MILEPOST_TESTS_SIM_SIMULATION_H_
