// The agent against a coordinator in this process, with this binary as its trainer.
#include "worker/agent/agent.h"

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>

#include <condition_variable>
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
#include "common/message_channel.h"
#include "common/subprocess.h"
#include "milepost/v1/trainer.pb.h"
#include "milepost/v1/worker.grpc.pb.h"

namespace milepost::worker {
namespace {

using std::chrono::seconds;

// ---- a trainer that does what the job's name says ----

volatile sig_atomic_t stop_asked = 0;

int FakeTrainer() {
  signal(SIGTERM, [](int) { stop_asked = 1; });
  MessageChannel channel{UniqueFd(3)};
  v1::TrainerStart start;
  if (!channel.Receive(&start, absl::Now() + absl::Seconds(10)).ok()) return 77;
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

class FakeTrainerEnvironment : public testing::Environment {
  void SetUp() override {
    if (getenv("MILEPOST_FAKE_TRAINER") != nullptr) _exit(FakeTrainer());
    setenv("MILEPOST_FAKE_TRAINER", "1", 1);
  }
};
const auto* const environment = testing::AddGlobalTestEnvironment(new FakeTrainerEnvironment);

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
  // As a killed coordinator: streams end with an error.
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

  // The first message of those not yet returned that `wanted` accepts; earlier ones are dropped.
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

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<v1::WorkerMessage> heard_;
  grpc::ServerReaderWriter<v1::CoordinatorMessage, v1::WorkerMessage>* stream_ = nullptr;
  grpc::ServerContext* context_ = nullptr;
  std::string address_;
  std::unique_ptr<grpc::Server> server_;
};

v1::CoordinatorMessage Start(const std::string& role, int64_t generation = 1, int rank = 0) {
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

v1::CoordinatorMessage Stop(int64_t generation, bool graceful) {
  v1::CoordinatorMessage message;
  *message.mutable_stop_rank() = About<v1::StopRank>(generation);
  message.mutable_stop_rank()->set_graceful(graceful);
  return message;
}

v1::CoordinatorMessage Forget(int64_t generation) {
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
  void SetUp() override {
#ifdef MILEPOST_TSAN
    GTEST_SKIP() << "gRPC and abseil come without ThreadSanitizer's instrumentation";
#endif
    coordinator_ = std::make_unique<FakeCoordinator>();
  }
  ~AgentTest() override {
    StopAgent();
    std::filesystem::remove_all(folder_);
  }

  void StartAgent(int slots = 2) {
    AgentOptions options;
    options.coordinator = coordinator_->address();
    options.data_dir = folder_ + "/data";
    options.slots = slots;
    options.trainer_binary = "/proc/self/exe";
    options.stop_time = absl::Seconds(20);
    options.acknowledge_time = absl::ZeroDuration();  // this coordinator forgets nothing by itself
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

TEST_F(AgentTest, SaysHelloAndKeepsItsIdOverRestarts) {
  StartAgent();
  const v1::Hello first = coordinator_->AwaitHello();
  EXPECT_EQ(first.incarnation(), 1);
  EXPECT_EQ(first.slots_size(), 2);
  EXPECT_EQ(first.slots(1).memory_bytes(), MemoryLimitBytes() / 2);
  EXPECT_EQ(first.ranks_size(), 0);
  StopAgent();
  StartAgent();
  const v1::Hello second = coordinator_->AwaitHello();
  EXPECT_EQ(second.worker_id(), first.worker_id());
  EXPECT_EQ(second.incarnation(), 2);
}

TEST_F(AgentTest, SendsHeartbeatsAsOftenAsTold) {
  coordinator_->count_heartbeats_ = true;
  StartAgent();
  for (int i = 0; i < 3; ++i) {
    coordinator_->Await([](const auto& message) { return message.has_heartbeat(); });
  }
}

TEST_F(AgentTest, RunsARankToItsEnd) {
  StartAgent();
  coordinator_->AwaitHello();
  coordinator_->Say(Start("succeeds"));
  EXPECT_EQ(coordinator_->AwaitReport(v1::RANK_STATE_STARTING).slot(), 0);
  const v1::RankReport end = coordinator_->AwaitReport(v1::RANK_STATE_SUCCEEDED);
  EXPECT_EQ(end.progress().step(), 3);
}

TEST_F(AgentTest, ReportsAFailureWithItsClassMessageAndLastLines) {
  StartAgent();
  coordinator_->Say(Start("fails"));
  const v1::RankReport end = coordinator_->AwaitReport(v1::RANK_STATE_FAILED);
  EXPECT_EQ(end.exit_code(), kExitData);
  EXPECT_EQ(end.failure_class(), v1::FAILURE_CLASS_DATA);
  EXPECT_EQ(end.message(), "bad chunk 7");
  EXPECT_FALSE(end.peer_lost());
  ASSERT_GT(end.last_lines_size(), 0);
  EXPECT_EQ(end.last_lines(end.last_lines_size() - 1), "the dog ate it");
}

TEST_F(AgentTest, ReportsACrash) {
  StartAgent();
  coordinator_->Say(Start("crashes"));
  const v1::RankReport end = coordinator_->AwaitReport(v1::RANK_STATE_FAILED);
  EXPECT_EQ(end.signal(), SIGSEGV);
  EXPECT_EQ(end.failure_class(), v1::FAILURE_CLASS_INTERNAL);
}

TEST_F(AgentTest, ForwardsLogs) {
  StartAgent(/*slots=*/1);
  coordinator_->Say(Start("fails"));
  std::set<std::string> lines;
  while (lines.count("the dog ate it") == 0) {
    const v1::WorkerMessage message =
        coordinator_->Await([](const auto& message) { return message.has_logs(); });
    ASSERT_TRUE(message.has_logs());
    for (const v1::LogLine& line : message.logs().lines()) {
      EXPECT_EQ(line.job(), "jobs/1");
      EXPECT_TRUE(line.has_time());
      lines.insert(line.text());
    }
  }
}

TEST_F(AgentTest, TellsAgainAfterEveryReconnectionUntilForgotten) {
  StartAgent();
  coordinator_->Say(Start("succeeds"));
  coordinator_->AwaitReport(v1::RANK_STATE_SUCCEEDED);
  for (int i = 0; i < 2; ++i) {
    coordinator_->DropStream();
    const v1::Hello again = coordinator_->AwaitHello();
    ASSERT_EQ(again.ranks_size(), 1);
    EXPECT_EQ(again.ranks(0).state(), v1::RANK_STATE_SUCCEEDED);
  }
  coordinator_->Say(Forget(1));
  coordinator_->Say(Start("succeeds", 2));
  coordinator_->AwaitReport(v1::RANK_STATE_SUCCEEDED);
  coordinator_->DropStream();
  const v1::Hello last = coordinator_->AwaitHello();
  ASSERT_EQ(last.ranks_size(), 1);
  EXPECT_EQ(last.ranks(0).generation(), 2);
}

TEST_F(AgentTest, RanksOutliveTheCoordinator) {
  StartAgent();
  coordinator_->Say(Start("runs"));
  coordinator_->AwaitReport(v1::RANK_STATE_RUNNING);
  const std::string address = coordinator_->address();
  coordinator_.reset();
  coordinator_ = std::make_unique<FakeCoordinator>(address);
  const v1::Hello hello = coordinator_->AwaitHello();
  ASSERT_EQ(hello.ranks_size(), 1);
  EXPECT_EQ(hello.ranks(0).state(), v1::RANK_STATE_RUNNING);
  EXPECT_GE(hello.ranks(0).progress().step(), 1);
  coordinator_->Say(Stop(1, /*graceful=*/true));
  coordinator_->AwaitReport(v1::RANK_STATE_STOPPED);
}

TEST_F(AgentTest, StartingARankTwiceOnlyReportsItAgain) {
  StartAgent();
  coordinator_->Say(Start("runs"));
  coordinator_->AwaitReport(v1::RANK_STATE_RUNNING);
  coordinator_->Say(Start("runs"));
  coordinator_->AwaitReport(v1::RANK_STATE_RUNNING);
}

TEST_F(AgentTest, ANewerGenerationKillsTheOlderOne) {
  StartAgent();
  coordinator_->Say(Start("runs", 1));
  coordinator_->AwaitReport(v1::RANK_STATE_RUNNING);
  coordinator_->Say(Start("runs", 2));
  const v1::RankReport killed = coordinator_->AwaitReport(v1::RANK_STATE_FAILED);
  EXPECT_EQ(killed.generation(), 1);
  EXPECT_EQ(killed.signal(), SIGKILL);
  EXPECT_TRUE(killed.peer_lost());  // not the root cause of anything
}

TEST_F(AgentTest, ForgetDoesNotLoseARankThatRuns) {
  StartAgent();
  coordinator_->Say(Start("runs"));
  coordinator_->AwaitReport(v1::RANK_STATE_RUNNING);
  coordinator_->Say(Forget(1));
  coordinator_->Say(Stop(1, /*graceful=*/false));
  EXPECT_EQ(coordinator_->AwaitReport(v1::RANK_STATE_FAILED).signal(), SIGKILL);
}

TEST_F(AgentTest, LeavingStopsItsRanksAndReportsThem) {
  StartAgent();
  coordinator_->Say(Start("runs"));
  coordinator_->AwaitReport(v1::RANK_STATE_RUNNING);
  agent_->RequestStop();
  coordinator_->Await([](const auto& message) { return message.has_leaving(); });
  coordinator_->AwaitReport(v1::RANK_STATE_STOPPED);
  thread_.join();
}

TEST_F(AgentTest, RefusesASlotItDoesNotHave) {
  StartAgent(/*slots=*/1);
  coordinator_->Say(Start("runs", 1, /*rank=*/5));
  const v1::RankReport refused = coordinator_->AwaitReport(v1::RANK_STATE_FAILED);
  EXPECT_NE(refused.message().find("slot 5"), std::string::npos) << refused.message();
}

TEST_F(AgentTest, ASecondAgentOnTheSameFolderIsRefused) {
  StartAgent();
  AgentOptions options;
  options.data_dir = folder_ + "/data";
  options.trainer_binary = "/proc/self/exe";
  const absl::Status status = Agent::Create(options).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(status.message().find(folder_), std::string::npos);
}

}  // namespace
}  // namespace milepost::worker
