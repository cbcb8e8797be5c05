// What a checkpoint costs: durable save through the trainer's uploader, gRPC and the coordinator's
// store, beside a plain sequential write + fsync of the same bytes on the same disk; and how long
// the training loop is held, beside one copy of the state in memory. Alternating in one run.
//
//   build/release/bench/checkpoint --mib 1024 --rounds 5 --dir /var/tmp
//
// The coordinator runs in a process of its own, as it does in production.
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "common/check.h"
#include "common/spec/validate.h"
#include "coordinator/rpc/fake_worker.h"
#include "coordinator/rpc/server.h"
#include "milepost/v1/job.grpc.pb.h"
#include "worker/trainer/checkpoint_uploader.h"

namespace milepost {
namespace {

struct Flags {
  int64_t mib = 512;
  int rounds = 5;
  int ranks = 2;
  std::string dir = "/var/tmp";
};

// Serves until it is killed; tells its address through `address_fd`.
[[noreturn]] void RunCoordinator(const std::string& dir, int address_fd) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  coordinator::TuneProcess();
  coordinator::ServerOptions options;
  options.store.dir = dir;
  options.coordinator.config.lease = absl::Hours(1);
  auto server = coordinator::CoordinatorServer::Start(options);
  MP_CHECK(server.ok()) << server.status();
  const std::string& address = (*server)->address();
  MP_CHECK(write(address_fd, address.data(), address.size()) ==
           static_cast<ssize_t>(address.size()));
  close(address_fd);
  while (true) pause();
}

v1::JobSpec Spec(int ranks) {
  v1::JobSpec spec;
  spec.set_name("bench");
  v1::Gpt2Spec* model = spec.mutable_model()->mutable_gpt2();
  model->set_layers(1);
  model->set_width(8);
  model->set_heads(1);
  model->set_context(8);
  model->set_vocabulary(16);
  spec.mutable_data()->set_train("/none.npy");
  spec.mutable_train()->set_steps(1);
  spec.mutable_train()->mutable_batch()->set_global(ranks);
  spec.mutable_train()->mutable_batch()->set_micro(1);
  spec.mutable_resources()->set_ranks(ranks);
  spec.mutable_checkpoint()->set_keep_last(1);
  return spec;
}

double Seconds(absl::Time since) { return absl::ToDoubleSeconds(absl::Now() - since); }

double PlainWrite(const std::string& path, const std::vector<char>& bytes) {
  constexpr size_t kPiece = 4 << 20;
  const absl::Time start = absl::Now();
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  MP_CHECK(fd >= 0) << path;
  for (size_t at = 0; at < bytes.size(); at += kPiece) {
    const size_t size = std::min(kPiece, bytes.size() - at);
    MP_CHECK(write(fd, bytes.data() + at, size) == static_cast<ssize_t>(size)) << path;
  }
  MP_CHECK(fsync(fd) == 0);
  close(fd);
  const double seconds = Seconds(start);
  std::remove(path.c_str());
  return seconds;
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

class Bench {
 public:
  Bench(const Flags& flags, const std::string& address)
      : flags_(flags),
        state_(static_cast<size_t>(flags.mib) << 20),
        copy_(state_.size()),
        worker_(address, "bench", flags.ranks) {
    std::mt19937_64 random(1);
    for (size_t i = 0; i + 8 <= state_.size(); i += 8) {
      const uint64_t word = random();
      std::memcpy(&state_[i], &word, 8);
    }
    worker_.Receive();  // Welcome
    Submit(address);
    MakeUploaders(address, worker_.Receive().start_rank());
  }

  // Seconds until the checkpoint of `step` is committed; `held`: the longest that a rank was held.
  double Save(int64_t step, double* held) {
    v1::TrainerState trainer;
    trainer.set_step(step);
    const absl::Time start = absl::Now();
    *held = OnEveryRank([&](size_t rank) {
      const auto held_here = uploaders_[rank]->Save(sources_[rank], trainer, false);
      MP_CHECK(held_here.ok()) << held_here.status();
      return absl::ToDoubleSeconds(*held_here);
    });
    for (auto& uploader : uploaders_) {
      const absl::Status status = uploader->Wait(absl::Now() + absl::Minutes(5));
      MP_CHECK(status.ok()) << status;
    }
    return Seconds(start);
  }

  // What a hold is compared with: every rank copies its share of the state in memory, all at once.
  double Copy() {
    return OnEveryRank([&](size_t rank) {
      const absl::Time start = absl::Now();
      const size_t share = state_.size() / uploaders_.size();
      std::memcpy(&copy_[rank * share], &state_[rank * share], share);
      return Seconds(start);
    });
  }

  const std::vector<char>& state() const { return state_; }

 private:
  // Runs `body` for all ranks at the same time, as trainers do; the longest of what it returns.
  double OnEveryRank(const std::function<double(size_t)>& body) {
    std::vector<double> seconds(uploaders_.size());
    std::vector<std::thread> threads;
    for (size_t rank = 0; rank < uploaders_.size(); ++rank) {
      threads.emplace_back([&, rank] { seconds[rank] = body(rank); });
    }
    for (std::thread& thread : threads) thread.join();
    return *std::max_element(seconds.begin(), seconds.end());
  }

  void Submit(const std::string& address) const {
    auto jobs = v1::JobService::NewStub(MakeChannel(address));
    grpc::ClientContext context;
    context.set_wait_for_ready(true);
    v1::SubmitJobRequest request;
    *request.mutable_spec() = Spec(flags_.ranks);
    v1::Job job;
    const grpc::Status submitted = jobs->SubmitJob(&context, request, &job);
    MP_CHECK(submitted.ok()) << submitted.error_message();
  }

  void MakeUploaders(const std::string& address, const v1::StartRank& start) {
    const int64_t elements = static_cast<int64_t>(state_.size()) / 4;
    worker::UploaderOptions options;
    options.job = start.job();
    options.generation = start.generation();
    options.world = flags_.ranks;
    options.tensors.resize(1);
    options.tensors[0].set_name("w");
    options.tensors[0].set_kind("master");
    options.tensors[0].set_dtype("F32");
    options.tensors[0].add_shape(elements);
    for (int rank = 0; rank < flags_.ranks; ++rank) {
      const int64_t begin = elements * rank / flags_.ranks;
      const int64_t end = elements * (rank + 1) / flags_.ranks;
      options.rank = rank;
      sources_.push_back({{.tensor = 0, .begin = begin, .end = end, .data = &state_[begin * 4]}});
      uploaders_.push_back(
          std::make_unique<worker::CheckpointUploader>(address, options, sources_.back()));
    }
  }

  const Flags flags_;
  std::vector<char> state_;
  std::vector<char> copy_;
  coordinator::FakeWorker worker_;
  std::vector<std::vector<runtime::StateInterval>> sources_;
  std::vector<std::unique_ptr<worker::CheckpointUploader>> uploaders_;
};

// Lets the disk finish what the last measurement left behind: the coordinator deletes the
// checkpoint before the last one in the background.
void Settle() {
  sync();
  absl::SleepFor(absl::Milliseconds(500));
}

void Run(const Flags& flags, const std::string& dir, const std::string& address) {
  Bench bench(flags, address);
  const double gib = static_cast<double>(flags.mib) / 1024;
  std::vector<double> plain;
  std::vector<double> saved;
  std::vector<double> ratios;
  std::vector<double> holds;
  double held = 0;
  bench.Save(1, &held);  // warms the copies' memory and the connections
  bench.Copy();
  std::printf("%d ranks, %.2f GiB; round: plain GiB/s, durable save GiB/s, ratio, hold / copy\n",
              flags.ranks, gib);
  for (int round = 0; round < flags.rounds; ++round) {
    Settle();
    plain.push_back(PlainWrite(dir + "/plain", bench.state()));
    Settle();
    const double copy = bench.Copy();
    saved.push_back(bench.Save(round + 2, &held));
    holds.push_back(held / copy);
    ratios.push_back(plain.back() / saved.back());
    std::printf("  %d: %6.2f %6.2f  %5.2f  %5.2f\n", round, gib / plain.back(), gib / saved.back(),
                ratios.back(), holds.back());
  }
  std::printf(
      "median: plain %.2f GiB/s, save %.2f GiB/s, ratio %.2f (bar 0.80), hold %.2f copies "
      "(bar 1.05)\n",
      gib / Median(plain), gib / Median(saved), Median(ratios), Median(holds));
}

int Main(int argc, char** argv) {
  Flags flags;
  CLI::App app("Durable save of a checkpoint beside a plain write + fsync.", "checkpoint");
  app.add_option("--mib", flags.mib, "Size of the state")->check(CLI::Range(1, 65536));
  app.add_option("--rounds", flags.rounds)->check(CLI::Range(1, 1000));
  app.add_option("--ranks", flags.ranks)->check(CLI::Range(1, 64));
  app.add_option("--dir", flags.dir, "On the disk to measure");
  CLI11_PARSE(app, argc, argv);
  std::string dir = flags.dir + "/milepost-bench-XXXXXX";
  MP_CHECK(mkdtemp(dir.data()) != nullptr) << dir;
  int address_pipe[2];
  MP_CHECK(pipe(address_pipe) == 0);
  const pid_t server = fork();  // before any thread of gRPC
  if (server == 0) {
    close(address_pipe[0]);
    RunCoordinator(dir + "/coordinator", address_pipe[1]);
  }
  close(address_pipe[1]);
  char address[256] = {};
  MP_CHECK(read(address_pipe[0], address, sizeof(address) - 1) > 0);
  Run(flags, dir, address);
  kill(server, SIGKILL);
  waitpid(server, nullptr, 0);
  std::filesystem::remove_all(dir);
  return 0;
}

}  // namespace
}  // namespace milepost

int main(int argc, char** argv) { return milepost::Main(argc, argv); }
