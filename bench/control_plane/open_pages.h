// `milepost web` before a coordinator, and pages that are open on it (bench/web_pages), in
// processes of their own. For benchmarks of the coordinator.
//
//   OpenPages pages({.coordinator = server->address(), .count = 200, .jobs = 100, .folder = dir});
//   ...
//   pages.Close();   // {"answers": 1234, "answer_p99_ms": 3.4, ...}
//
// Needs python3 and the folder of the project as the working directory.
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
    int jobs = 100;       // that half of the pages show: jobs/1 to jobs/N
    double seconds = 30;  // for which they stay open
    std::string folder;   // of what the processes write
  };

  // Blocks until the page is served.
  explicit OpenPages(const Options& options);
  // Blocks until the pages' time is over. What they saw, and what `milepost web` took of a core.
  nlohmann::json Close();

 private:
  const Options options_;
  std::optional<Subprocess> web_, pages_;
};

}  // namespace milepost::bench

#endif  // MILEPOST_BENCH_CONTROL_PLANE_OPEN_PAGES_H_
