// Runs simulated days: scripts/sim.
#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "tests/sim/simulation.h"

namespace milepost::sim {
namespace {

struct Totals {
  Probes probes;
  int64_t days = 0;
  int64_t jobs = 0;
  int64_t attempts = 0;
  int64_t events = 0;
  int64_t crashes = 0;
};

void Print(const Options& options, const Result& result, double seconds) {
  std::printf(
      "seed %llu: %.1f hours, %lld jobs (%lld succeeded, %lld failed, %lld cancelled), %lld "
      "attempts, "
      "%lld events, %lld writes, %lld passes, %lld crashes, hash %016llx, %.2f s\n",
      static_cast<unsigned long long>(options.seed), result.hour,
      static_cast<long long>(result.jobs), static_cast<long long>(result.succeeded),
      static_cast<long long>(result.failed), static_cast<long long>(result.cancelled),
      static_cast<long long>(result.attempts), static_cast<long long>(result.events),
      static_cast<long long>(result.writes), static_cast<long long>(result.passes),
      static_cast<long long>(result.crashes), static_cast<unsigned long long>(result.hash),
      seconds);
}

void PrintTotals(const Totals& totals, double seconds) {
  std::printf(
      "%lld simulated days: %lld jobs, %lld attempts, %lld events, %lld coordinator crashes; %.1f "
      "s (%.2f s a day)\n",
      static_cast<long long>(totals.days), static_cast<long long>(totals.jobs),
      static_cast<long long>(totals.attempts), static_cast<long long>(totals.events),
      static_cast<long long>(totals.crashes), seconds, seconds / static_cast<double>(totals.days));
  for (size_t i = 0; i < kProbeNames.size(); ++i) {
    std::printf("%10lld  %s\n", static_cast<long long>(totals.probes.Count(static_cast<Probe>(i))),
                kProbeNames[i]);
  }
}

// 0: nothing found (or the planted bug was), 1: a violation (or the bug was not found).
int Run(Options options, uint64_t first, uint64_t last, bool quiet) {
  using Clock = std::chrono::steady_clock;
  const auto begin = Clock::now();
  const auto seconds = [](Clock::time_point since) {
    return std::chrono::duration<double>(Clock::now() - since).count();
  };
  Totals totals;
  for (uint64_t seed = first; seed <= last; ++seed) {
    options.seed = seed;
    const auto start = Clock::now();
    const Result result = Simulate(options);
    if (!quiet) Print(options, result, seconds(start));
    std::fflush(stdout);
    ++totals.days;
    totals.jobs += result.jobs;
    totals.attempts += result.attempts;
    totals.events += result.events;
    totals.crashes += result.crashes;
    totals.probes.Add(result.probes);
    if (result.violation.empty()) continue;
    std::printf("%s\n", Describe(options, result).c_str());
    return options.plant == Plant::kNone ? 1 : 0;
  }
  PrintTotals(totals, seconds(begin));
  return options.plant == Plant::kNone ? 0 : 1;
}

// Every plant by itself: in which seed it was found, and by what.
int RunPlants(Options options, uint64_t first, uint64_t last) {
  int missed = 0;
  for (const Plant plant : AllPlants()) {
    options.plant = plant;
    Result result;
    for (options.seed = first; options.seed <= last && result.violation.empty(); ++options.seed) {
      result = Simulate(options);
    }
    const bool found = !result.violation.empty();
    missed += found ? 0 : 1;
    std::printf("%-20s %5llu seeds  %-12s %s\n", PlantName(plant),
                static_cast<unsigned long long>(options.seed - first),
                found ? result.checker.c_str() : "NOT FOUND", result.violation.c_str());
    std::fflush(stdout);
  }
  return missed == 0 ? 0 : 1;
}

}  // namespace
}  // namespace milepost::sim

int main(int argc, char** argv) {
  milepost::sim::Options options;
  std::string seeds;
  std::string plant = "none";
  bool quiet = false;
  CLI::App app{"Simulates a Milepost cluster"};
  app.add_option("--seed", options.seed, "one simulation");
  app.add_option("--seeds", seeds, "FROM..TO: several, to the first that finds something");
  app.add_option("--hours", options.hours, "of faults, simulated (default: 24)")
      ->check(CLI::Range(0.01, 10000.0));
  app.add_option("--workers", options.workers, "default: 200")->check(CLI::Range(1, 5000));
  app.add_option("--plant", plant, "a bug to find; all: each by itself");
  app.add_option("--trace", options.trace, "prints the last that happened to jobs/N or workers/wN");
  app.add_flag("--quiet", quiet, "no line for each seed");
  CLI11_PARSE(app, argc, argv);
  const auto known = milepost::sim::PlantNamed(plant);
  if (!known && plant != "all") {
    std::fprintf(stderr, "--plant: there is no '%s'; there are:", plant.c_str());
    for (const auto each : milepost::sim::AllPlants()) std::fprintf(stderr, " %s", PlantName(each));
    std::fprintf(stderr, "\n");
    return 2;
  }
  options.plant = known.value_or(milepost::sim::Plant::kNone);
  uint64_t first = options.seed;
  uint64_t last = options.seed;
  if (!seeds.empty()) {
    const std::pair<std::string, std::string> ends =
        absl::StrSplit(seeds, absl::MaxSplits("..", 1));
    const bool good = absl::SimpleAtoi(ends.first, &first) &&
                      absl::SimpleAtoi(ends.second, &last) && first <= last;
    if (!good) {
      std::fprintf(stderr, "--seeds: expected FROM..TO, as 1..1000, not '%s'\n", seeds.c_str());
      return 2;
    }
  }
  if (plant == "all") return milepost::sim::RunPlants(options, first, last);
  return milepost::sim::Run(options, first, last, quiet);
}
