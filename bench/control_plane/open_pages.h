// For benchmarks of the coordinator: `milepost web` in front of it, with open pages
// (bench/web_pages). Both run in separate processes.
//
//   OpenPages pages({.coordinator = server->address(), .count = 200, .jobs = 100, .folder = dir});
//   ...
//   pages.Close();   // {"answers": 1234, "answer_p99_ms": 3.4, ...}
//
// Needs python3, and the project's folder as the working directory.
#ifndef MILEPOST_BENCH_CONTROL_PLANE_OPEN_PAGES_H_
#define MILEPOST_BENCH_CONTROL_PLANE_OPEN_PAGES_H_

#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "common/subprocess.h"

namespace milepost::bench {

class OpenPages {
 public:
  struct Options {
    std::string coordinator;  // HOST:PORT
    int count = 200;
    int jobs = 100;       // half of the pages show one of these: jobs/1 to jobs/N
    double seconds = 30;  // how long the pages stay open
    std::string folder;   // for the processes' output
  };

  // Blocks until the page is served.
  explicit OpenPages(const Options& options);
  // Blocks until the pages' time is over. Returns what they saw, and the share of a core that
  // `milepost web` took.
  nlohmann::json Close();

 private:
  const Options options_;
  std::optional<Subprocess> web_, pages_;
};

}  // namespace milepost::bench

#endif  // MILEPOST_BENCH_CONTROL_PLANE_OPEN_PAGES_H_
