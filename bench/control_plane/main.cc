// What the coordinator costs at the size of a large cluster, beside what the disk and etcd do in
// the same run. Prints a line for each figure, and all of them as JSON to a file.
//
//   build/release/bench/control_plane [--workers 5000] [--queued 10000] [--running 500]
//       [--jobs 100000] [--data-dir DIR] [--json FILE --commit COMMIT]
//
// - workers, in another process, that beat every ten seconds over connections of their own, and
//   jobs on all their slots, every rank of which tells what real ones do (simulated_workers.h):
//   what part of a core the coordinator takes in steady state, and its memory; in turns with that,
//   beside 200 who scrape its metrics every 15 seconds, beside 200 open pages as well, and beside
//   programs as busy that ask nothing (beside.h)
// - a scheduling pass: every job of the queue looked at, some started
// - submissions that are durable when they are answered, by many callers at once over gRPC; in
//   turns with etcd's puts of as many bytes by as many callers, and with plain writes and syncs
// - pages of `job list` with many jobs stored, and a restart with them
#include <spdlog/spdlog.h>
#include <sys/resource.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "bench/control_plane/parts.h"
#include "bench/control_plane/scrapers.h"
#include "bench/control_plane/simulated_workers.h"

namespace milepost::bench {
namespace {

std::string LoadAverage() {
  std::string line;
  std::getline(std::ifstream("/proc/loadavg"), line);
  return line;
}

std::string CpuName() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const std::pair<std::string, std::string> parts =
        absl::StrSplit(line, absl::MaxSplits(": ", 1));
    if (absl::StartsWith(parts.first, "model name")) return parts.second;
  }
  return "unknown";
}

nlohmann::json Machine(const std::string& commit) {
  utsname kernel = {};
  uname(&kernel);
  return {{"date", absl::FormatTime("%Y-%m-%d %H:%M", absl::Now(), absl::UTCTimeZone())},
          {"commit", commit},
          {"cpu", CpuName()},
          {"cores", std::thread::hardware_concurrency()},
          {"kernel", kernel.release}};
}

int Main(int argc, char** argv) {
  Options options;
  std::string json, commit, only;
  options.data_dir = absl::StrCat("/tmp/milepost-control-plane-", getpid());
  CLI::App app{"Measures the coordinator."};
  app.add_option("--workers", options.workers)->capture_default_str();
  app.add_option("--slots", options.slots, "of a worker")->capture_default_str();
  app.add_option("--queued", options.queued)->capture_default_str();
  app.add_option("--running", options.running)->capture_default_str();
  app.add_option("--jobs", options.jobs, "that are listed")->capture_default_str();
  app.add_option("--callers", options.callers)->capture_default_str();
  app.add_option("--heartbeat", options.heartbeat, "seconds")->capture_default_str();
  app.add_option("--step", options.step, "seconds, of jobs that run")->capture_default_str();
  app.add_option("--steady", options.steady, "seconds of measuring the workers' load")
      ->capture_default_str();
  app.add_option("--seconds", options.seconds, "of a round of submitting")->capture_default_str();
  app.add_option("--rounds", options.rounds, "of submitting")->capture_default_str();
  app.add_option("--scrapers", options.scrapers, "of the metrics")->capture_default_str();
  app.add_option("--scrape", options.scrape, "seconds between two of one")->capture_default_str();
  app.add_option("--pages", options.pages, "of milepost web, open beside them; 0: none")
      ->capture_default_str();
  app.add_option("--beside", options.beside, "rounds of measuring with and without them")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--data-dir", options.data_dir)->capture_default_str();
  app.add_option("--only", only, "one part")
      ->check(CLI::IsMember({"running", "pass", "submissions", "lists"}));
  app.add_option("--json", json, "write the figures here");
  app.add_option("--commit", commit, "what was built, for the figures");
  CLI11_PARSE(app, argc, argv);
  coordinator::TuneProcess();
  WorkersProcess workers;  // before any thread
  ScrapersProcess scrapers;
  setvbuf(stdout, nullptr, _IOLBF, 0);
  spdlog::set_level(spdlog::level::warn);
  std::filesystem::create_directories(options.data_dir);
  nlohmann::json result = Machine(commit);
  result["load_before"] = LoadAverage();
  const auto wanted = [&](const char* part) { return only.empty() || only == part; };
  if (wanted("running")) result["running"] = MeasureRunning(options, &workers, &scrapers);
  if (wanted("pass")) result["pass"] = MeasurePass(options);
  if (wanted("submissions")) result["submissions"] = MeasureSubmissions(options);
  if (wanted("lists")) result["lists"] = MeasureLists(options);
  std::filesystem::remove_all(options.data_dir);
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  result["peak_resident_mib"] = usage.ru_maxrss / 1024;
  if (!json.empty()) std::ofstream(json) << result.dump(1) << "\n";
  return 0;
}

}  // namespace
}  // namespace milepost::bench

int main(int argc, char** argv) { return milepost::bench::Main(argc, argv); }
