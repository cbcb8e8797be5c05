// What the coordinator's decisions cost at the size of a large cluster. Prints a line for each.
//
//   build/release/bench/control_plane [--workers 5000] [--queued 10000] [--running 500]
//       [--jobs 100000] [--data-dir DIR]
//
// - a scheduling pass: every job of the queue looked at, some started
// - a page of `job list`
// - submissions that are durable when they are answered, by many callers at once over gRPC
// - workers that beat every ten seconds over connections of their own, and jobs that run on them:
//   what part of a core the coordinator takes, and its memory; the workers are another process
// - a restart: from the start of the process's work to serving, with the jobs of above stored
#include <signal.h>
#include <spdlog/spdlog.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "bench/simulated_workers.h"
#include "client/api/clients.h"
#include "client/api/connection.h"
#include "common/check.h"
#include "common/spec/validate.h"
#include "coordinator/core/decide.h"
#include "coordinator/rpc/server.h"

namespace milepost {
namespace {

using coordinator::Config;
using coordinator::CoordinatorServer;
using coordinator::Outcome;
using coordinator::State;

struct Options {
  int workers = 5000;
  int slots = 8;
  int queued = 10'000;
  int running = 500;
  int jobs = 100'000;
  int callers = 64;
  double seconds = 5;
  std::string data_dir;
};

constexpr absl::Duration kHeartbeat = absl::Seconds(10);

double Seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double Median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

// As large as users' specs are.
v1::JobSpec Spec(int ranks) {
  v1::JobSpec spec;
  spec.set_name("bench");
  v1::Gpt2Spec* model = spec.mutable_model()->mutable_gpt2();
  model->set_layers(2);
  model->set_width(64);
  model->set_heads(2);
  model->set_context(64);
  model->set_vocabulary(256);
  spec.mutable_data()->set_train("/data/train.npy");
  spec.mutable_data()->set_validation("/data/validation.npy");
  spec.mutable_train()->set_steps(1000);
  spec.mutable_train()->mutable_batch()->set_micro(1);
  spec.mutable_train()->mutable_batch()->set_accumulation(1);
  spec.mutable_resources()->set_ranks(ranks);
  NormalizeJobSpec(&spec);
  return spec;
}

void Do(State* state, const coordinator::Event& event, absl::Time now) {
  const Outcome outcome = coordinator::Decide(*state, event, now, Config());
  MP_CHECK(outcome.status.ok()) << outcome.status.ToString();
  state->Apply(outcome);
}

State MakeState(const Options& options, absl::Time now) {
  State state;
  for (int i = 0; i < options.workers; ++i) {
    v1::Hello hello;
    hello.set_worker_id(absl::StrCat("host-", i));
    hello.set_host(absl::StrCat("host-", i, ".example.org"));
    hello.set_incarnation(1);
    (*hello.mutable_labels())["rack"] = absl::StrCat("rack-", i / 16);
    for (int slot = 0; slot < options.slots; ++slot) {
      v1::Slot* one = hello.add_slots();
      one->set_index(slot);
      one->set_device(v1::DEVICE_KIND_CPU);
      one->set_memory_bytes(int64_t{16} << 30);
    }
    Do(&state, coordinator::WorkerHello{std::move(hello)}, now);
  }
  const auto submit = [&](int jobs, int ranks, int64_t priority) {
    for (int i = 0; i < jobs; ++i) {
      coordinator::JobSubmitted event{.spec = Spec(ranks)};
      event.spec.mutable_scheduling()->set_priority(static_cast<int>(priority));
      if (i % 2 == 0) event.spec.mutable_scheduling()->set_time_limit(3600 + i);
      Do(&state, event, now);
    }
  };
  // The running jobs hold all but a part of the slots.
  const int held = options.workers * options.slots / std::max(1, options.running);
  submit(options.running, std::max(1, held - 1), 0);
  state.Apply(coordinator::DecideSchedule(state, now, Config()));
  submit(options.queued / 2, 64, 0);
  submit(options.queued - options.queued / 2, 8, 1);
  return state;
}

void BenchPass(const Options& options) {
  const absl::Time now = absl::Now();
  const State state = MakeState(options, now);
  std::vector<double> times;
  size_t started = 0;
  for (int i = 0; i < 11; ++i) {
    const double begin = Seconds();
    const Outcome outcome = coordinator::DecideSchedule(state, now, Config());
    times.push_back(Seconds() - begin);
    started = outcome.actions.size();
  }
  State settled = state;
  settled.Apply(coordinator::DecideSchedule(state, now, Config()));
  std::vector<double> blocked;
  for (int i = 0; i < 11; ++i) {
    const double begin = Seconds();
    coordinator::DecideSchedule(settled, now, Config());
    blocked.push_back(Seconds() - begin);
  }
  printf(
      "scheduling pass: %d workers x %d slots, %d running, %d queued: %.1f ms (starts %zu ranks), "
      "%.1f ms (nothing can start)\n",
      options.workers, options.slots, options.running, options.queued, Median(times) * 1e3, started,
      Median(blocked) * 1e3);
}

std::unique_ptr<CoordinatorServer> Serve(const std::string& dir) {
  coordinator::ServerOptions options;
  options.store.dir = dir;
  auto server = CoordinatorServer::Start(options);
  MP_CHECK(server.ok()) << server.status().ToString();
  return *std::move(server);
}

// Callers that submit one job after the other for some time. Submissions per second.
double BenchSubmissions(const Options& options, const std::string& address, int most) {
  std::atomic<int> submitted = 0;
  const double begin = Seconds();
  std::vector<std::thread> callers;
  for (int i = 0; i < options.callers; ++i) {
    callers.emplace_back([&] {
      client::JobClient jobs(client::Connection::To(address));
      const v1::JobSpec spec = Spec(1);
      while (Seconds() - begin < options.seconds && submitted < most) {
        const auto job = jobs.Submit(spec);
        MP_CHECK(job.ok()) << job.status().ToString();
        ++submitted;
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  return submitted / (Seconds() - begin);
}

void BenchServer(const Options& options) {
  std::filesystem::create_directories(options.data_dir);
  const std::string dir = options.data_dir + "/coordinator";
  auto server = Serve(dir);
  printf("submissions: %.0f per second, durable, %d callers over gRPC\n",
         BenchSubmissions(options, server->address(), options.jobs), options.callers);
  client::JobClient jobs(client::Connection::To(server->address()));
  std::vector<double> pages;
  for (int i = 0; i < 21; ++i) {
    const double begin = Seconds();
    MP_CHECK(jobs.List(100).ok());
    pages.push_back(Seconds() - begin);
  }
  const auto newest = jobs.List(1);
  printf("job list: %.1f ms for a page of 100 of %s\n", Median(pages) * 1e3,
         newest->empty() ? "none" : newest->front().name().c_str());
  server.reset();
  const double begin = Seconds();
  server = Serve(dir);
  MP_CHECK(client::JobClient(client::Connection::To(server->address())).List(1).ok());
  printf("restart: %.2f s to serving\n", Seconds() - begin);
}

double CpuSeconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) { return t.tv_sec + t.tv_usec * 1e-6; };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

int64_t ResidentMiB() {
  FILE* file = fopen("/proc/self/statm", "r");
  long pages = 0, resident = 0;
  const bool read = file != nullptr && fscanf(file, "%ld %ld", &pages, &resident) == 2;
  if (file != nullptr) fclose(file);
  return read ? resident * sysconf(_SC_PAGESIZE) >> 20 : 0;
}

// In a process of its own, until it is killed.
[[noreturn]] void BeWorkers(const Options& options, const std::string& address) {
  SimulatedWorkers workers(address, options.workers, options.slots, kHeartbeat);
  pause();
  _exit(0);
}

void BenchWorkers(const Options& options, const char* self) {
  const std::string dir = options.data_dir + "/workers";
  std::filesystem::create_directories(options.data_dir);
  coordinator::ServerOptions server_options;
  server_options.store.dir = dir;
  server_options.coordinator.config.lease = 5 * kHeartbeat;
  auto server = CoordinatorServer::Start(server_options);
  MP_CHECK(server.ok()) << server.status().ToString();
  const std::string address = (*server)->address();
  const pid_t child = fork();
  if (child == 0) {
    const std::string workers = absl::StrCat(options.workers), slots = absl::StrCat(options.slots);
    execl(self, self, "--be-workers-of", address.c_str(), "--workers", workers.c_str(), "--slots",
          slots.c_str(), nullptr);
    _exit(1);
  }
  client::WorkerClient workers(client::Connection::To(address));
  const double begin = Seconds();
  const auto ready = [&] {
    const auto list = workers.List(options.workers);
    return list.ok() && static_cast<int>(list->size()) == options.workers;
  };
  while (!ready()) absl::SleepFor(absl::Milliseconds(200));
  printf("%d workers connected after %.1f s\n", options.workers, Seconds() - begin);
  client::JobClient jobs(client::Connection::To(address));
  const int ranks = std::max(1, options.workers * options.slots / std::max(1, options.running) / 2);
  std::string last;
  for (int i = 0; i < options.running; ++i) last = jobs.Submit(Spec(ranks))->name();
  while (jobs.Get(last)->state() != v1::JOB_STATE_RUNNING) {
    absl::SleepFor(absl::Milliseconds(100));
  }
  printf("%d jobs of %d ranks run after %.1f s\n", options.running, ranks, Seconds() - begin);
  const double from = Seconds();
  const double cpu = CpuSeconds();
  absl::SleepFor(3 * kHeartbeat);
  printf("beating every %.0f s: %.2f of a core, %ld MiB resident\n",
         absl::ToDoubleSeconds(kHeartbeat), (CpuSeconds() - cpu) / (Seconds() - from),
         static_cast<long>(ResidentMiB()));
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
}

int Main(int argc, char** argv) {
  Options options;
  std::string workers_of;
  options.data_dir = absl::StrCat("/tmp/milepost-control-plane-", getpid());
  CLI::App app{"Measures the coordinator."};
  app.add_option("--workers", options.workers)->capture_default_str();
  app.add_option("--slots", options.slots, "of a worker")->capture_default_str();
  app.add_option("--queued", options.queued)->capture_default_str();
  app.add_option("--running", options.running)->capture_default_str();
  app.add_option("--jobs", options.jobs, "submit at most this many")->capture_default_str();
  app.add_option("--callers", options.callers)->capture_default_str();
  app.add_option("--seconds", options.seconds, "of submitting")->capture_default_str();
  app.add_option("--data-dir", options.data_dir)->capture_default_str();
  app.add_option("--be-workers-of", workers_of, "be the workers of a coordinator");
  CLI11_PARSE(app, argc, argv);
  if (!workers_of.empty()) BeWorkers(options, workers_of);
  setvbuf(stdout, nullptr, _IOLBF, 0);
  spdlog::set_level(spdlog::level::warn);
  BenchPass(options);
  BenchWorkers(options, "/proc/self/exe");
  BenchServer(options);
  std::filesystem::remove_all(options.data_dir);
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  printf("peak resident: %ld MiB\n", usage.ru_maxrss / 1024);
  return 0;
}

}  // namespace
}  // namespace milepost

int main(int argc, char** argv) { return milepost::Main(argc, argv); }
