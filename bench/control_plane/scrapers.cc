#include "bench/control_plane/scrapers.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <sstream>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "bench/control_plane/parts.h"
#include "common/check.h"
#include "common/unique_fd.h"

namespace milepost::bench {
namespace {

void ScrapeForEver(const ScraperOptions& options, int which, ScrapeCounts* counts) {
  absl::SleepFor(options.every * which / options.count);
  while (true) {
    const double begin = Seconds();
    if (!counts->go) {
      absl::SleepFor(options.every);
      continue;
    }
    const std::string page = Scrape(options.address);
    const auto took = static_cast<int64_t>((Seconds() - begin) * 1e6);
    ++(page.empty() ? counts->failures : counts->scrapes);
    counts->bytes += static_cast<int64_t>(page.size());
    int64_t slowest = counts->slowest_us;
    while (took > slowest && !counts->slowest_us.compare_exchange_weak(slowest, took)) continue;
    absl::SleepFor(options.every);
  }
}

}  // namespace

std::string Scrape(const std::string& address) {
  const std::pair<std::string, std::string> parts = absl::StrSplit(address, ':');
  int port = 0;
  if (!absl::SimpleAtoi(parts.second, &port)) return "";
  UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in to = {};
  to.sin_family = AF_INET;
  to.sin_port = htons(static_cast<uint16_t>(port));
  inet_pton(AF_INET, parts.first.c_str(), &to.sin_addr);
  const auto* generic = reinterpret_cast<const sockaddr*>(&to);
  if (!fd.ok() || connect(fd.get(), generic, sizeof to) != 0) return "";
  const std::string request =
      absl::StrCat("GET /metrics HTTP/1.1\r\nHost: ", address, "\r\nConnection: close\r\n\r\n");
  if (write(fd.get(), request.data(), request.size()) != static_cast<ssize_t>(request.size())) {
    return "";
  }
  std::string page;
  std::vector<char> buffer(64 << 10);
  for (ssize_t got = 0; (got = read(fd.get(), buffer.data(), buffer.size())) > 0;) {
    page.append(buffer.data(), static_cast<size_t>(got));
  }
  return absl::StartsWith(page, "HTTP/1.1 200") ? page : "";
}

double SampleOf(const std::string& page, const std::string& name) {
  double value = 0;
  for (const absl::string_view line : absl::StrSplit(page, '\n')) {
    if (!absl::StartsWith(line, name)) continue;
    if (absl::SimpleAtod(line.substr(line.rfind(' ') + 1), &value)) return value;
  }
  return 0;
}

ScrapersProcess::ScrapersProcess() {
  void* shared = mmap(nullptr, sizeof(ScrapeCounts), PROT_READ | PROT_WRITE,
                      MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  MP_CHECK(shared != MAP_FAILED);
  counts_ = new (shared) ScrapeCounts;
  int ends[2];
  MP_CHECK(pipe(ends) == 0);
  child_ = fork();
  MP_CHECK(child_ >= 0);
  if (child_ == 0) {
    close(ends[1]);
    Be(ends[0]);
  }
  close(ends[0]);
  to_ = ends[1];
}

ScrapersProcess::~ScrapersProcess() {
  close(to_);
  kill(child_, SIGKILL);
  waitpid(child_, nullptr, 0);
}

double ScrapersProcess::CpuSeconds() const {
  clockid_t clock = 0;
  timespec time = {};
  MP_CHECK(clock_getcpuclockid(child_, &clock) == 0 && clock_gettime(clock, &time) == 0);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

void ScrapersProcess::Begin(const ScraperOptions& options) {
  const std::string line = absl::StrCat(options.address, " ", options.count, " ",
                                        absl::ToDoubleSeconds(options.every), "\n");
  MP_CHECK(write(to_, line.data(), line.size()) == static_cast<ssize_t>(line.size()));
}

void ScrapersProcess::Be(int from) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  std::string line;
  for (char c = 0; read(from, &c, 1) == 1 && c != '\n';) line += c;
  if (line.empty()) _exit(0);
  ScraperOptions options;
  double every = 0;
  std::istringstream(line) >> options.address >> options.count >> every;
  options.every = absl::Seconds(every);
  std::vector<std::thread> threads;
  for (int i = 0; i < options.count; ++i) threads.emplace_back(ScrapeForEver, options, i, counts_);
  while (true) pause();
}

}  // namespace milepost::bench
