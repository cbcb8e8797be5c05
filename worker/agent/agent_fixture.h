// For tests of the agent: a coordinator in this process, with this binary as the trainer.
//
//   StartAgent(2);
//   coordinator_->Say(Start("succeeds"));
//   coordinator_->AwaitReport(v1::RANK_STATE_SUCCEEDED);
#ifndef MILEPOST_WORKER_AGENT_AGENT_FIXTURE_H_
#define MILEPOST_WORKER_AGENT_AGENT_FIXTURE_H_

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>

#include <atomic>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iostream>
#include <mutex>
#include <set>
#include <thread>

#include "common/exit_codes.h"
#include "common/host_memory.h"
#include "common/incarnation.h"
#include "common/message_channel.h"
#include "common/rpc/status.h"
#include "common/subprocess.h"
#include "milepost/v1/trainer.pb.h"
#include "milepost/v1/worker.grpc.pb.h"
#include "worker/agent/agent.h"

namespace milepost::worker {

using std::chrono::seconds;

// ---- a trainer that does what the job's name says ----

inline volatile sig_atomic_t stop_asked = 0;

inline int FakeTrainer() {
  signal(SIGTERM, [](int) { stop_asked = 1; });
  MessageChannel channel{UniqueFd(3)};
  v1::TrainerStart start;
  if (!channel.Receive(&start, absl::Now() + absl::Seconds(10)).ok()) return 77;
  const char* gpu = getenv("CUDA_VISIBLE_DEVICES");
  cpu_set_t cores;
  sched_getaffinity(0, sizeof cores, &cores);
  std::cerr << "sees GPU '" << (gpu == nullptr ? "any" : gpu) << "' on " << CPU_COUNT(&cores)
            << " cores" << std::endl;
  std::cerr << "threads " << start.threads() << " OMP " << getenv("OMP_NUM_THREADS") << std::endl;
  const std::string role = start.start().spec().name();
  if (role == "fails") {
    std::cerr << "the dog ate it" << std::endl;
    v1::TrainerMessage message;
    message.mutable_failure()->set_class_(v1::FAILURE_CLASS_DATA);
    message.mutable_failure()->set_message("bad chunk 7");
    (void)channel.Send(message, absl::InfiniteFuture());
    return kExitData;
  }
  if (role == "crashes") {
    signal(SIGSEGV, SIG_DFL);  // not the sanitizer's
    raise(SIGSEGV);
  }
  v1::TrainerMessage progress;
  for (int step = 1; step <= 3; ++step) {
    progress.mutable_progress()->set_step(step);
    (void)channel.Send(progress, absl::InfiniteFuture());
  }
  if (role == "succeeds") return 0;
  while (!stop_asked) usleep(1000);
  return kExitStopped;
}

// The trainer's `check` of a GPU. Of the tests' GPUs only GPU-a fails it.
inline bool IsACheck() {
  std::ifstream file("/proc/self/cmdline");
  std::string words{std::istreambuf_iterator<char>(file), {}};
  return words.size() >= 6 && words.substr(words.size() - 6) == std::string("check\0", 6);
}
inline int FakeCheck() { return strcmp(getenv("CUDA_VISIBLE_DEVICES"), "GPU-a") == 0 ? 1 : 0; }

class FakeTrainerEnvironment : public testing::Environment {
  void SetUp() override {
    if (getenv("MILEPOST_FAKE_TRAINER") != nullptr) _exit(IsACheck() ? FakeCheck() : FakeTrainer());
    setenv("MILEPOST_FAKE_TRAINER", "1", 1);
  }
};
inline const auto* const environment =
    testing::AddGlobalTestEnvironment(new FakeTrainerEnvironment);

// ---- a coordinator that records what it hears and says what it is told to ----

class FakeCoordinator : public v1::WorkerService::Service {
 public:
  explicit FakeCoordinator(const std::string& address = "127.0.0.1:0") {
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort(address, grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
    address_ = "127.0.0.1:" + std::to_string(port);
  }
  // Behaves like a killed coordinator: streams end with an error.
  ~FakeCoordinator() override { server_->Shutdown(std::chrono::system_clock::now()); }

  const std::string& address() const { return address_; }

  void Say(const v1::CoordinatorMessage& message) {
    std::unique_lock lock(mutex_);
    ASSERT_TRUE(changed_.wait_for(lock, seconds(30), [&] { return stream_ != nullptr; }));
    stream_->Write(message);
  }

  void DropStream() {
    std::unique_lock lock(mutex_);
    ASSERT_TRUE(changed_.wait_for(lock, seconds(30), [&] { return stream_ != nullptr; }));
    context_->TryCancel();
  }

  // Returns the first message not yet returned that `wanted` accepts. Earlier ones are dropped.
  v1::WorkerMessage Await(const std::function<bool(const v1::WorkerMessage&)>& wanted) {
    std::unique_lock lock(mutex_);
    v1::WorkerMessage found;
    const bool in_time = changed_.wait_for(lock, seconds(30), [&] {
      while (!heard_.empty()) {
        found = heard_.front();
        heard_.pop_front();
        if (wanted(found)) return true;
      }
      return false;
    });
    EXPECT_TRUE(in_time);
    return found;
  }
  // Waits until `count` Hellos were refused.
  void AwaitRefusals(int count) {
    std::unique_lock lock(mutex_);
    ASSERT_TRUE(changed_.wait_for(lock, seconds(30), [&] { return refused_ >= count; }));
  }
  v1::Hello AwaitHello() {
    return Await([](const auto& message) { return message.has_hello(); }).hello();
  }
  v1::RankReport AwaitReport(v1::RankState state) {
    return Await([&](const auto& message) {
             return message.has_rank_report() && message.rank_report().state() == state;
           })
        .rank_report();
  }

 private:
  grpc::Status Session(
      grpc::ServerContext* context,
      grpc::ServerReaderWriter<v1::CoordinatorMessage, v1::WorkerMessage>* stream) override {
    v1::CoordinatorMessage welcome;
    welcome.mutable_welcome()->set_lease_seconds(5);
    welcome.mutable_welcome()->set_heartbeat_seconds(0.02);
    v1::WorkerMessage message;
    while (stream->Read(&message)) {
      std::lock_guard lock(mutex_);
      if (message.has_hello()) {
        if (message.hello().incarnation() < known_incarnation_) {
          ++refused_;
          changed_.notify_all();
          return ToGrpcStatus(
              Superseded("workers/w1", message.hello().incarnation(), known_incarnation_));
        }
        stream->Write(welcome);
        stream_ = stream;
        context_ = context;
      }
      if (!message.has_heartbeat() || count_heartbeats_) heard_.push_back(message);
      changed_.notify_all();
    }
    std::lock_guard lock(mutex_);
    if (stream_ == stream) stream_ = nullptr;
    return grpc::Status::OK;
  }

 public:
  std::atomic<bool> count_heartbeats_{false};
  std::atomic<int64_t> known_incarnation_{0};  // Hellos with a lower one are refused

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<v1::WorkerMessage> heard_;
  int refused_ = 0;
  grpc::ServerReaderWriter<v1::CoordinatorMessage, v1::WorkerMessage>* stream_ = nullptr;
  grpc::ServerContext* context_ = nullptr;
  std::string address_;
  std::unique_ptr<grpc::Server> server_;
};

inline v1::CoordinatorMessage Start(const std::string& role, int64_t generation = 1, int rank = 0) {
  v1::CoordinatorMessage message;
  v1::StartRank& start = *message.mutable_start_rank();
  start.set_job("jobs/1");
  start.set_generation(generation);
  start.set_rank(rank);
  start.set_slot(rank);
  start.set_world(1);
  start.mutable_spec()->set_name(role);
  return message;
}

template <typename Message>
Message About(int64_t generation, int rank = 0) {
  Message message;
  message.set_job("jobs/1");
  message.set_generation(generation);
  message.set_rank(rank);
  return message;
}

inline v1::CoordinatorMessage Stop(int64_t generation, bool graceful) {
  v1::CoordinatorMessage message;
  *message.mutable_stop_rank() = About<v1::StopRank>(generation);
  message.mutable_stop_rank()->set_graceful(graceful);
  return message;
}

inline v1::CoordinatorMessage Forget(int64_t generation) {
  v1::CoordinatorMessage message;
  *message.mutable_forget_rank() = About<v1::ForgetRank>(generation);
  return message;
}

class AgentTest : public testing::Test {
 protected:
  AgentTest() {
    folder_ = testing::TempDir() + "agent_XXXXXX";
    if (mkdtemp(folder_.data()) == nullptr) abort();
  }
  void SetUp() override { coordinator_ = std::make_unique<FakeCoordinator>(); }
  ~AgentTest() override {
    StopAgent();
    std::filesystem::remove_all(folder_);
  }

  void StartAgent(int slots = 2) {
    AgentOptions options;
    options.slots.count = slots;
    StartAgent(std::move(options));
  }

  // Fills in the other options.
  void StartAgent(AgentOptions options) {
    options.coordinator = coordinator_->address();
    options.data_dir = folder_ + "/data";
    options.trainer_binary = "/proc/self/exe";
    options.settings.stop_time = absl::Seconds(20);
    options.acknowledge_time = absl::ZeroDuration();  // this coordinator forgets only on demand
    auto agent = Agent::Create(options);
    ASSERT_TRUE(agent.ok()) << agent.status();
    agent_ = *std::move(agent);
    thread_ = std::thread([this] { agent_->Run(); });
  }

  void StopAgent() {
    if (!thread_.joinable()) return;
    agent_->RequestStop();
    thread_.join();
    agent_.reset();
  }

  std::string folder_;
  std::unique_ptr<FakeCoordinator> coordinator_;
  std::unique_ptr<Agent> agent_;
  std::thread thread_;
};

}  // namespace milepost::worker

#endif  // MILEPOST_WORKER_AGENT_AGENT_FIXTURE_H_
