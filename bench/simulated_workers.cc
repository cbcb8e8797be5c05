#include "bench/simulated_workers.h"

#include <grpcpp/grpcpp.h>

#include <deque>
#include <map>
#include <mutex>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/proto_time.h"
#include "milepost/v1/worker.grpc.pb.h"

namespace milepost {

// Deletes nothing of itself: it is joined.
class SimulatedWorkers::Worker
    : public grpc::ClientBidiReactor<v1::WorkerMessage, v1::CoordinatorMessage> {
 public:
  Worker(const std::string& address, int number, int slots) {
    grpc::ChannelArguments arguments;
    arguments.SetInt("milepost.worker", number);  // a connection of its own
    stub_ = v1::WorkerService::NewStub(
        grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments));
    v1::WorkerMessage message;
    v1::Hello* hello = message.mutable_hello();
    hello->set_worker_id(absl::StrCat("host-", number));
    hello->set_host(absl::StrCat("host-", number, ".example.org"));
    hello->set_incarnation(1);
    (*hello->mutable_labels())["rack"] = absl::StrCat("rack-", number / 16);
    for (int i = 0; i < slots; ++i) {
      v1::Slot* slot = hello->add_slots();
      slot->set_index(i);
      slot->set_device(v1::DEVICE_KIND_CPU);
    }
    context_.set_wait_for_ready(true);
    stub_->async()->Session(&context_, this);
    Send(std::move(message));
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
    connected_ = true;
    if (incoming_.has_start_rank()) Start(incoming_.start_rank());
    StartRead(&incoming_);
  }

  void OnDone(const grpc::Status&) override { done_ = true; }

  void Beat() {
    v1::WorkerMessage message;
    message.mutable_heartbeat();
    Send(std::move(message));
    std::vector<v1::RankProgress> reports;
    {
      std::lock_guard lock(mutex_);
      for (auto& [job, progress] : leads_) {
        progress.mutable_progress()->set_step(progress.progress().step() + 1);
        reports.push_back(progress);
      }
    }
    for (v1::RankProgress& report : reports) {
      v1::WorkerMessage of_rank;
      *of_rank.mutable_progress() = std::move(report);
      Send(std::move(of_rank));
    }
  }

  void Cancel() { context_.TryCancel(); }
  bool connected() const { return connected_; }
  bool done() const { return done_; }
  int started() const { return started_; }

 private:
  void Start(const v1::StartRank& start) {
    ++started_;
    v1::WorkerMessage message;
    v1::RankReport* report = message.mutable_rank_report();
    report->set_job(start.job());
    report->set_generation(start.generation());
    report->set_rank(start.rank());
    report->set_slot(start.slot());
    report->set_state(v1::RANK_STATE_RUNNING);
    *report->mutable_time() = ToProto(absl::Now());
    Send(std::move(message));
    if (start.rank() != 0) return;
    std::lock_guard lock(mutex_);
    v1::RankProgress& progress = leads_[start.job()];
    progress.set_job(start.job());
    progress.set_generation(start.generation());
    progress.mutable_progress()->set_train_loss(3.5);
  }

  void Send(v1::WorkerMessage message) {
    std::lock_guard lock(mutex_);
    outgoing_.push_back(std::move(message));
    if (outgoing_.size() == 1) StartWrite(&outgoing_.front());
  }

  std::unique_ptr<v1::WorkerService::Stub> stub_;
  grpc::ClientContext context_;
  v1::CoordinatorMessage incoming_;
  std::mutex mutex_;
  std::deque<v1::WorkerMessage> outgoing_;         // the first one is being written
  std::map<std::string, v1::RankProgress> leads_;  // of the ranks 0 that run here
  std::atomic<bool> connected_ = false;
  std::atomic<bool> done_ = false;
  std::atomic<int> started_ = 0;
};

SimulatedWorkers::SimulatedWorkers(const std::string& address, int count, int slots,
                                   absl::Duration heartbeat) {
  for (int i = 0; i < count; ++i) {
    workers_.push_back(std::make_unique<Worker>(address, i, slots));
  }
  beats_ = std::thread([this, heartbeat] { Beat(heartbeat); });
}

// Each once per interval, evenly spread.
void SimulatedWorkers::Beat(absl::Duration heartbeat) {
  const absl::Duration gap = heartbeat / static_cast<double>(workers_.size());
  absl::Time next = absl::Now();
  for (size_t i = 0; !stopping_; i = (i + 1) % workers_.size()) {
    if (workers_[i]->connected()) workers_[i]->Beat();
    next += gap;
    if (next > absl::Now()) absl::SleepFor(next - absl::Now());
  }
}

void SimulatedWorkers::WaitConnected() {
  for (const auto& worker : workers_) {
    while (!worker->connected()) absl::SleepFor(absl::Milliseconds(10));
  }
}

int SimulatedWorkers::started() const {
  int started = 0;
  for (const auto& worker : workers_) started += worker->started();
  return started;
}

SimulatedWorkers::~SimulatedWorkers() {
  stopping_ = true;
  beats_.join();
  for (const auto& worker : workers_) worker->Cancel();
  for (const auto& worker : workers_) {
    while (!worker->done()) absl::SleepFor(absl::Milliseconds(1));
  }
}

}  // namespace milepost
