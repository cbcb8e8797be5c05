// For benchmarks of the coordinator: programs that scrape its /metrics as Prometheus does. Many run
// in one separate process.
//
//   ScrapersProcess scrapers;                       // before any thread
//   scrapers.Begin({.address = "127.0.0.1:9090", .count = 200, .every = absl::Seconds(15)});
//   scrapers.Go();
//   scrapers.counts().scrapes;
#ifndef MILEPOST_BENCH_CONTROL_PLANE_SCRAPERS_H_
#define MILEPOST_BENCH_CONTROL_PLANE_SCRAPERS_H_

#include <atomic>
#include <cstdint>
#include <string>

#include "absl/time/time.h"

namespace milepost::bench {

struct ScrapeCounts {
  std::atomic<int64_t> scrapes = 0;
  std::atomic<int64_t> failures = 0;
  std::atomic<int64_t> bytes = 0;
  std::atomic<int64_t> slowest_us = 0;
  std::atomic<bool> go = false;
};

struct ScraperOptions {
  std::string address;
  int count = 1;
  absl::Duration every = absl::Seconds(15);
};

class ScrapersProcess {
 public:
  ScrapersProcess();
  ~ScrapersProcess();  // kills it
  // Spreads the scrapers evenly over the interval. They wait for Go.
  void Begin(const ScraperOptions& options);
  // Both take effect within the interval.
  void Go() { counts_->go = true; }
  void Stop() { counts_->go = false; }
  double CpuSeconds() const;  // used so far
  const ScrapeCounts& counts() const { return *counts_; }

 private:
  [[noreturn]] void Be(int from);

  ScrapeCounts* counts_;  // shared with the process
  int to_ = -1;
  int child_ = -1;
};

// The page of "HOST:PORT", over plain text. Empty: it could not be fetched.
std::string Scrape(const std::string& address);
// The value of the sample that begins with `name`. 0: there is none.
double SampleOf(const std::string& page, const std::string& name);

}  // namespace milepost::bench

#endif  // MILEPOST_BENCH_CONTROL_PLANE_SCRAPERS_H_
