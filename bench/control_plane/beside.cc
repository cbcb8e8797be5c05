#include "bench/control_plane/beside.h"

#include <sys/resource.h>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "bench/control_plane/open_pages.h"
#include "common/check.h"
#include "common/subprocess.h"

namespace milepost::bench {
namespace {

constexpr double kToOpen = 5;  // seconds

double CpuSeconds(int who = RUSAGE_SELF) {
  rusage usage{};
  getrusage(who, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

// So far.
struct Decisions {
  double seconds, count;
};
Decisions DecisionsOf(const std::string& http_address) {
  const std::string page = Scrape(http_address);
  MP_CHECK(!page.empty());
  return {SampleOf(page, "milepost_decision_duration_seconds_sum"),
          SampleOf(page, "milepost_decision_duration_seconds_count")};
}

Steady MeasureSteady(const Measured& measured) {
  const auto& [options, counts, server, jobs] = measured;
  const auto before = jobs->List(options.running);
  const Decisions decided = DecisionsOf(server.http_address());
  const double from = Seconds(), cpu = CpuSeconds();
  const int64_t progress = counts.progress, heartbeats = counts.heartbeats;
  absl::SleepFor(absl::Seconds(options.steady));
  Steady steady = {};
  steady.seconds = Seconds() - from;
  steady.cores = (CpuSeconds() - cpu) / steady.seconds;
  steady.progress_rate = static_cast<double>(counts.progress - progress) / steady.seconds;
  steady.heartbeat_rate = static_cast<double>(counts.heartbeats - heartbeats) / steady.seconds;
  const Decisions decisions = DecisionsOf(server.http_address());
  steady.decision_ms =
      1e3 * (decisions.seconds - decided.seconds) / std::max(1.0, decisions.count - decided.count);
  const auto after = jobs->List(options.running);
  MP_CHECK(before.ok() && after.ok() && before->size() == after->size());
  for (size_t i = 0; i < after->size(); ++i) {
    const int64_t steps = (*after)[i].progress().step() - (*before)[i].progress().step();
    // All but what has yet to be told.
    const double told = steady.seconds / options.step - 2 * options.heartbeat / options.step;
    if (static_cast<double>(steps) >= std::max(1.0, told)) ++steady.jobs_that_moved;
  }
  return steady;
}

Scraped MeasureScraped(const Measured& measured, ScrapersProcess* scrapers) {
  scrapers->Go();
  absl::SleepFor(absl::Seconds(measured.options.scrape));
  const int64_t scrapes = scrapers->counts().scrapes;
  Scraped scraped = {.steady = MeasureSteady(measured)};
  scraped.scrapes_per_second =
      static_cast<double>(scrapers->counts().scrapes - scrapes) / scraped.steady.seconds;
  return scraped;
}

Watched MeasureWatched(const Measured& measured, ScrapersProcess* scrapers) {
  const Options& options = measured.options;
  const double from = Seconds(), cpu = CpuSeconds(RUSAGE_CHILDREN) + scrapers->CpuSeconds();
  Watched watched = {};
  {
    OpenPages pages({.coordinator = measured.server.address(),
                     .count = options.pages,
                     .jobs = std::clamp(options.pages / 2, 1, options.running),
                     .seconds = options.steady + 2 * kToOpen,
                     .folder = options.data_dir});
    absl::SleepFor(absl::Seconds(kToOpen));
    watched.steady = MeasureSteady(measured);
    watched.pages = pages.Close();
  }
  watched.cores_of_others =
      (CpuSeconds(RUSAGE_CHILDREN) + scrapers->CpuSeconds() - cpu) / (Seconds() - from);
  return watched;
}

// Two programs that are busy for half a millisecond at a time, `cores` together.
Steady MeasureCrowded(const Measured& measured, double cores) {
  const std::string script = absl::StrFormat(
      "import time\n"
      "while True:\n"
      "  end = time.monotonic() + 0.0005\n"
      "  while time.monotonic() < end: pass\n"
      "  time.sleep(%f)\n",
      0.0005 * (2 / std::max(0.01, cores) - 1));
  std::vector<Subprocess> crowd;
  for (int i = 0; i < 2; ++i) {
    SpawnOptions program;
    program.argv = {"/usr/bin/python3", "-c", script};
    auto child = Subprocess::Spawn(std::move(program));
    MP_CHECK(child.ok()) << child.status().ToString();
    crowd.push_back(*std::move(child));
  }
  absl::SleepFor(absl::Seconds(kToOpen));
  return MeasureSteady(measured);
}

double MedianOf(const std::vector<Round>& rounds, const std::function<double(const Round&)>& of) {
  std::vector<double> values;
  for (const Round& round : rounds) values.push_back(of(round));
  return Median(std::move(values));
}

// `of`: what was measured beside others, of each round.
nlohmann::json Told(const char* beside, const std::vector<Round>& rounds,
                    const std::function<const Steady&(const Round&)>& of) {
  const double cores = MedianOf(rounds, [&](const Round& one) { return of(one).cores; });
  const double more =
      MedianOf(rounds, [&](const Round& one) { return of(one).cores - one.alone.cores; });
  const double ms = MedianOf(rounds, [&](const Round& one) { return of(one).decision_ms; });
  const double alone = MedianOf(rounds, [](const Round& one) { return one.alone.decision_ms; });
  std::vector<double> each;
  for (const Round& one : rounds) each.push_back(of(one).cores - one.alone.cores);
  printf("beside %s: %.2f of a core, %.3f more; a decision takes %.3f ms, %.3f alone\n", beside,
         cores, more, ms, alone);
  return {{"cores", cores},
          {"cores_more", more},
          {"cores_more_of_each_round", each},
          {"decision_ms", ms},
          {"decision_ms_alone", alone}};
}

nlohmann::json ToldOfScraped(const Options& options, const std::vector<Round>& rounds) {
  nlohmann::json scraped = Told(
      "who scrapes", rounds, [](const Round& one) -> const Steady& { return one.scraped.steady; });
  scraped["scrapers"] = options.scrapers;
  scraped["scrapes_per_second"] =
      MedianOf(rounds, [](const Round& one) { return one.scraped.scrapes_per_second; });
  return scraped;
}

void TellScrapes(const ScrapeCounts& counts) {
  printf("%ld scrapes of %ld bytes, the slowest took %.0f ms; %ld failed\n",
         static_cast<long>(counts.scrapes),
         static_cast<long>(counts.bytes / std::max<int64_t>(1, counts.scrapes)),
         static_cast<double>(counts.slowest_us) / 1e3, static_cast<long>(counts.failures));
}

}  // namespace

std::vector<Round> MeasureRounds(const Measured& measured, ScrapersProcess* scrapers) {
  std::vector<Round> rounds;
  scrapers->Begin({.address = measured.server.http_address(),
                   .count = measured.options.scrapers,
                   .every = absl::Seconds(measured.options.scrape)});
  for (int i = 0; i < measured.options.beside; ++i) {
    Round round = {};
    round.alone = MeasureSteady(measured);
    round.scraped = MeasureScraped(measured, scrapers);
    if (measured.options.pages > 0) round.watched = MeasureWatched(measured, scrapers);
    scrapers->Stop();
    if (measured.options.pages > 0) {
      round.crowded = MeasureCrowded(measured, round.watched.cores_of_others);
    }
    rounds.push_back(std::move(round));
  }
  TellScrapes(scrapers->counts());
  MP_CHECK(scrapers->counts().failures == 0);
  return rounds;
}

nlohmann::json Beside(const Options& options, const std::vector<Round>& rounds) {
  nlohmann::json result = {{"scraped", ToldOfScraped(options, rounds)}, {"rounds", rounds.size()}};
  if (options.pages == 0) return result;
  nlohmann::json watched =
      Told("them and open pages", rounds,
           [](const Round& one) -> const Steady& { return one.watched.steady; });
  watched.update(rounds.back().watched.pages);
  watched["bar_cores_more"] = 0.1;
  nlohmann::json crowded = Told("programs as busy that ask nothing", rounds,
                                [](const Round& one) -> const Steady& { return one.crowded; });
  crowded["cores_of_others"] =
      MedianOf(rounds, [](const Round& one) { return one.watched.cores_of_others; });
  result["scraped_and_watched"] = watched;
  result["crowded"] = crowded;
  return result;
}

}  // namespace milepost::bench
