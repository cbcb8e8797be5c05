#include "bench/control_plane/simulated_workers.h"

#include <grpcpp/grpcpp.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <deque>
#include <map>
#include <mutex>
#include <new>
#include <sstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/check.h"
#include "common/proto_time.h"
#include "milepost/v1/worker.grpc.pb.h"
#include "worker/agent/outbox.h"

namespace milepost::bench {
namespace {

v1::Hello MakeHello(int number, int slots) {
  v1::Hello hello;
  hello.set_worker_id(absl::StrCat("host-", number));
  hello.set_host(absl::StrCat("host-", number, ".example.org"));
  hello.set_incarnation(1);
  (*hello.mutable_labels())["rack"] = absl::StrCat("rack-", number / 16);
  for (int i = 0; i < slots; ++i) {
    v1::Slot* slot = hello.add_slots();
    slot->set_index(i);
    slot->set_device(v1::DEVICE_KIND_CPU);
  }
  return hello;
}

// The figures that a trainer tells after a step (worker/trainer/progress.cc).
void TakeStep(absl::Duration step, absl::Time now, v1::Progress* progress) {
  const double seconds = absl::ToDoubleSeconds(step);
  if (progress->step() == 0) *progress->mutable_first_step_time() = ToProto(now);
  progress->set_step(progress->step() + 1);
  progress->set_train_loss(3.5);
  progress->set_lr(3e-4);
  progress->set_grad_norm(1.25);
  progress->set_clipped_norm(1);
  progress->set_tokens_per_second(123456);
  progress->set_planned_bytes(int64_t{12} << 30);
  progress->set_required_bytes(int64_t{13} << 30);
  progress->set_allocated_bytes(int64_t{12} << 30);
  progress->set_step_seconds(seconds);
  progress->set_data_wait_seconds(0.01 * seconds);
  progress->set_communication_wait_seconds(0.1 * seconds);
  progress->set_forward_seconds(0.3 * seconds);
  progress->set_backward_seconds(0.5 * seconds);
  progress->set_update_seconds(0.05 * seconds);
  progress->set_communication_seconds(0.4 * seconds);
  progress->set_model_flops_per_second(3e14);
  progress->set_mfu(0.4);
  progress->set_productive_seconds(progress->productive_seconds() + seconds);
  progress->set_peak_resident_bytes(int64_t{14} << 30);
  *progress->mutable_time() = ToProto(now);
}

}  // namespace

// Deletes nothing of itself: it is joined.
class SimulatedWorkers::Worker
    : public grpc::ClientBidiReactor<v1::WorkerMessage, v1::CoordinatorMessage> {
 public:
  Worker(const SimulatedWorkersOptions& options, int number, WorkerCounts* counts)
      : counts_(counts), outbox_(MakeHello(number, options.slots)) {
    grpc::ChannelArguments arguments;
    arguments.SetInt("milepost.worker", number);  // a connection of its own
    stub_ = v1::WorkerService::NewStub(
        grpc::CreateCustomChannel(options.address, grpc::InsecureChannelCredentials(), arguments));
    context_.set_wait_for_ready(true);
    stub_->async()->Session(&context_, this);
    Send(outbox_.StartStream());
    StartRead(&incoming_);
    StartCall();
  }

  void OnWriteDone(bool ok) override {
    std::lock_guard lock(mutex_);
    outgoing_.pop_front();
    if (ok && !outgoing_.empty()) StartWrite(&outgoing_.front());
  }

  void OnReadDone(bool ok) override {
    if (!ok) return;
    if (incoming_.has_welcome()) Welcome(incoming_.welcome());
    if (incoming_.has_start_rank()) Start(incoming_.start_rank());
    StartRead(&incoming_);
  }

  void OnDone(const grpc::Status&) override { done_ = true; }

  // Every rank here has done a step; what the outbox lets out is sent.
  void Step(absl::Duration step) {
    if (!connected_) return;
    const absl::Time now = absl::Now();
    {
      std::lock_guard lock(mutex_);
      for (auto& [key, progress] : ranks_) {
        TakeStep(step, now, &progress);
        if (progress.step() > 1) {
          outbox_.SetProgress(key, progress);
          continue;
        }
        v1::RankReport report =
            worker::NewRankReport(key, outbox_.Find(key)->slot(), v1::RANK_STATE_RUNNING);
        *report.mutable_progress() = progress;
        outbox_.SetReport(std::move(report));
      }
    }
    while (auto message = outbox_.Next(absl::InfinitePast())) Send(*std::move(message));
    if (now < last_sent_ + heartbeat_) return;
    v1::WorkerMessage beat;
    beat.mutable_heartbeat();
    Send(std::move(beat));
  }

  void Cancel() { context_.TryCancel(); }
  bool done() const { return done_; }

 private:
  void Welcome(const v1::Welcome& welcome) {
    heartbeat_ = absl::Seconds(welcome.heartbeat_seconds());
    outbox_.SetHeartbeat(heartbeat_);
    connected_ = true;
  }

  void Start(const v1::StartRank& start) {
    const worker::RankKey key{start.job(), start.generation(), start.rank()};
    outbox_.SetReport(worker::NewRankReport(key, start.slot(), v1::RANK_STATE_STARTING));
    std::lock_guard lock(mutex_);
    if (ranks_.try_emplace(key).second) ++counts_->ranks_started;
  }

  void Send(v1::WorkerMessage message) {
    ++(message.has_progress() ? counts_->progress
                              : (message.has_heartbeat() ? counts_->heartbeats : counts_->others));
    last_sent_ = absl::Now();
    std::lock_guard lock(mutex_);
    outgoing_.push_back(std::move(message));
    if (outgoing_.size() == 1) StartWrite(&outgoing_.front());
  }

  WorkerCounts* const counts_;
  worker::Outbox outbox_;
  std::unique_ptr<v1::WorkerService::Stub> stub_;
  grpc::ClientContext context_;
  v1::CoordinatorMessage incoming_;
  absl::Duration heartbeat_;  // set before connected_
  absl::Time last_sent_;      // of the thread that steps, after the Hello
  std::mutex mutex_;
  std::deque<v1::WorkerMessage> outgoing_;  // the first one is being written
  std::map<worker::RankKey, v1::Progress> ranks_;
  std::atomic<bool> connected_ = false;
  std::atomic<bool> done_ = false;
};

SimulatedWorkers::SimulatedWorkers(const SimulatedWorkersOptions& options, WorkerCounts* counts) {
  for (int i = 0; i < options.count; ++i) {
    workers_.push_back(std::make_unique<Worker>(options, i, counts));
  }
  steps_ = std::thread([this, step = options.step] { RunSteps(step); });
}

// Each once per step, evenly spread.
void SimulatedWorkers::RunSteps(absl::Duration step) {
  const absl::Duration gap = step / static_cast<double>(workers_.size());
  absl::Time next = absl::Now();
  for (size_t i = 0; !stopping_; i = (i + 1) % workers_.size()) {
    workers_[i]->Step(step);
    next += gap;
    if (next > absl::Now()) absl::SleepFor(next - absl::Now());
  }
}

SimulatedWorkers::~SimulatedWorkers() {
  stopping_ = true;
  steps_.join();
  for (const auto& worker : workers_) worker->Cancel();
  for (const auto& worker : workers_) {
    while (!worker->done()) absl::SleepFor(absl::Milliseconds(1));
  }
}

WorkersProcess::WorkersProcess() {
  void* shared = mmap(nullptr, sizeof(WorkerCounts), PROT_READ | PROT_WRITE,
                      MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  MP_CHECK(shared != MAP_FAILED);
  counts_ = new (shared) WorkerCounts;
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

WorkersProcess::~WorkersProcess() {
  close(to_);
  kill(child_, SIGKILL);
  waitpid(child_, nullptr, 0);
}

void WorkersProcess::Connect(const SimulatedWorkersOptions& options) {
  const std::string line = absl::StrCat(options.address, " ", options.count, " ", options.slots,
                                        " ", absl::ToDoubleSeconds(options.step), "\n");
  MP_CHECK(write(to_, line.data(), line.size()) == static_cast<ssize_t>(line.size()));
}

void WorkersProcess::Be(int from) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  std::string line;
  for (char c = 0; read(from, &c, 1) == 1 && c != '\n';) line += c;
  if (line.empty()) _exit(0);
  SimulatedWorkersOptions options;
  double step = 0;
  std::istringstream(line) >> options.address >> options.count >> options.slots >> step;
  options.step = absl::Seconds(step);
  SimulatedWorkers workers(options, counts_);
  while (true) pause();
}

}  // namespace milepost::bench
