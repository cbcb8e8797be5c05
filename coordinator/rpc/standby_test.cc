// A coordinator that may not act any more, one that stands by, and clients between them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <thread>

#include "common/rpc/coordinators.h"
#include "coordinator/rpc/fake_worker.h"
#include "coordinator/rpc/server.h"
#include "coordinator/rpc/standby_server.h"
#include "coordinator/store/epochs.h"
#include "coordinator/store/log_store.h"
#include "coordinator/store/store.h"
#include "milepost/v1/job.grpc.pb.h"

namespace milepost::coordinator {
namespace {

using ::testing::HasSubstr;

class StandbyTest : public ::testing::Test {
 protected:
  StandbyTest() {
    std::string pattern = (std::filesystem::temp_directory_path() / "milepost-standby-XXXXXX");
    dir_ = mkdtemp(pattern.data());
  }
  ~StandbyTest() override { std::filesystem::remove_all(dir_); }

  // The winner of an election, which may act while *holds.
  std::unique_ptr<CoordinatorServer> Active(std::function<bool()> holds,
                                            const std::string& listen = "127.0.0.1:0",
                                            std::function<void()> before = nullptr) {
    const auto epoch = TakeOver(dir_, [] { return absl::OkStatus(); });
    EXPECT_TRUE(epoch.ok()) << epoch.status();
    ServerOptions options;
    options.store = {.dir = epoch->dir, .shared = true};
    options.coordinator.may_act = [holds] {
      return holds() ? absl::OkStatus() : absl::UnavailableError("not active");
    };
    options.coordinator.start_grace = absl::Seconds(5);
    options.listen = listen;
    options.before_listening = std::move(before);
    auto server = CoordinatorServer::Start(options);
    EXPECT_TRUE(server.ok()) << server.status();
    return server.ok() ? *std::move(server) : nullptr;
  }

  static v1::SubmitJobRequest Request(const std::string& id) {
    v1::SubmitJobRequest request;
    request.set_request_id(id);
    v1::JobSpec* spec = request.mutable_spec();
    spec->set_name("test");
    v1::Gpt2Spec* model = spec->mutable_model()->mutable_gpt2();
    model->set_layers(1);
    model->set_width(8);
    model->set_heads(2);
    model->set_context(8);
    model->set_vocabulary(16);
    spec->mutable_data()->set_train("/data/train.npy");
    spec->mutable_train()->set_steps(10);
    spec->mutable_train()->mutable_batch()->set_global(1);
    spec->mutable_train()->mutable_batch()->set_micro(1);
    spec->mutable_resources()->set_ranks(1);
    return request;
  }
  static grpc::Status Submit(const std::shared_ptr<grpc::Channel>& channel, const std::string& id,
                             v1::Job* job) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(10));
    return v1::JobService::NewStub(channel)->SubmitJob(&context, Request(id), job);
  }
  static grpc::Status Get(const std::string& address, const std::string& name, v1::Job* job) {
    grpc::ClientContext context;
    v1::GetJobRequest request;
    request.set_name(name);
    return v1::JobService::NewStub(MakeChannel(address))->GetJob(&context, request, job);
  }

  std::string dir_;
};

// The lease runs out at any of the moments at which it is asked for: an answer that came is kept,
// and without one the same request makes one job, not two.
TEST_F(StandbyTest, WhatWasAcknowledgedIsThereWheneverTheLeaseEnds) {
  for (int calls = 0;; ++calls) {
    auto left = std::make_shared<std::atomic<int>>(1000);
    auto first = Active([left] { return left->fetch_sub(1) > 0; });
    const std::string id = absl::StrCat("request-", calls);
    v1::Job job;
    left->store(calls);
    const grpc::Status status = Submit(MakeChannel(first->address()), id, &job);
    left->store(0);
    auto second = Active([] { return true; });
    v1::Job again;
    const grpc::Status repeated = Submit(MakeChannel(second->address()), id, &again);
    EXPECT_TRUE(repeated.ok()) << repeated.error_message();
    EXPECT_EQ(second->coordinator().jobs().List(0, 100).jobs.size(),
              static_cast<size_t>(calls) + 1);
    if (status.ok()) {
      EXPECT_EQ(job.name(), again.name());
      EXPECT_GT(calls, 2) << "the lease was not asked for";
      return;
    }
    EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE) << status.error_message();
    ASSERT_LT(calls, 100);
  }
}

// Both believe to be the active one until they look: the older one neither answers nor commands.
TEST_F(StandbyTest, AnOlderOneThatWakesUpIsNotHeard) {
  auto may = std::make_shared<std::atomic<bool>>(true);
  auto first = Active([may] { return may->load(); });
  v1::Job job;
  ASSERT_TRUE(Submit(MakeChannel(first->address()), "a", &job).ok());
  grpc::ClientContext context;
  v1::GetJobRequest watched;
  watched.set_name(job.name());
  auto stub = v1::JobService::NewStub(MakeChannel(first->address()));
  auto watch = stub->WatchJob(&context, watched);
  v1::Job seen;
  ASSERT_TRUE(watch->Read(&seen));
  FakeWorker idle(first->address(), "late", 2);
  // The worker is welcome and gets the job's rank: commands do arrive while it may act.
  EXPECT_TRUE(idle.Receive().has_welcome());
  EXPECT_TRUE(idle.Receive().has_start_rank());

  may->store(false);
  auto second = Active([] { return true; });
  EXPECT_EQ(Get(first->address(), job.name(), &seen).error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(Submit(MakeChannel(first->address()), "b", &seen).error_code(),
            grpc::StatusCode::UNAVAILABLE);
  while (watch->Read(&seen)) continue;
  EXPECT_EQ(watch->Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
  // Past the door of the services, the loop that decides sends nothing.
  EXPECT_TRUE(absl::IsUnavailable(first->coordinator().jobs().Submit(Request("c")).status()));
  FakeWorker other(first->address(), "other", 1);
  EXPECT_EQ(other.Finish().error_code(), grpc::StatusCode::UNAVAILABLE);

  first->Stop();
  EXPECT_FALSE(idle.Receive().has_start_rank());

  EXPECT_TRUE(Get(second->address(), job.name(), &seen).ok());
  EXPECT_EQ(seen.generation(), 1);
  EXPECT_EQ(second->coordinator().jobs().List(0, 10).jobs.size(), 1u);
}

// One that was stopped finds, before it ends, that workers were silent: the next one, which may
// find no newer directory than this one's, does not inherit that.
TEST_F(StandbyTest, WhatIsDecidedWithoutTheLeaseIsNotStored) {
  auto may = std::make_shared<std::atomic<bool>>(true);
  auto first = Active([may] { return may->load(); });
  v1::Job job;
  ASSERT_TRUE(Submit(MakeChannel(first->address()), "a", &job).ok());
  may->store(false);
  EXPECT_TRUE(absl::IsUnavailable(first->coordinator().jobs().Submit(Request("b")).status()));
  auto second = Active([] { return true; });
  EXPECT_EQ(second->coordinator().jobs().List(0, 10).jobs.size(), 1u);
}

// The lease ends in the middle of a page of lines: none of the rest leaves.
TEST_F(StandbyTest, EveryLogLineIsBehindTheLease) {
  constexpr int kLines = 200;
  auto left = std::make_shared<std::atomic<int>>(1 << 20);
  auto server = Active([left] { return left->fetch_sub(1) > 0; });
  v1::Job job;
  ASSERT_TRUE(Submit(MakeChannel(server->address()), "a", &job).ok());
  std::vector<v1::LogLine> lines(kLines);
  for (v1::LogLine& line : lines) line.set_job(job.name());
  ASSERT_TRUE(server->coordinator().store().logs().Append(1, std::move(lines)).ok());
  const auto stub = v1::JobService::NewStub(MakeChannel(server->address()));
  const auto read = [&](int* count) {
    grpc::ClientContext context;
    v1::StreamLogsRequest request;
    request.set_name(job.name());
    const auto stream = stub->StreamLogs(&context, request);
    v1::LogLine line;
    for (*count = 0; stream->Read(&line);) ++*count;
    return stream->Finish();
  };
  int count = 0;
  EXPECT_TRUE(read(&count).ok());
  EXPECT_EQ(count, kLines);
  left->store(kLines / 2);
  EXPECT_EQ(read(&count).error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_LT(count, kLines / 2);
  EXPECT_GT(count, 0);
}

TEST_F(StandbyTest, AStandbySaysWhereTheActiveOneIs) {
  auto standby = StandbyServer::Start("127.0.0.1:0", "");
  ASSERT_TRUE(standby.ok()) << standby.status();
  v1::Job job;
  EXPECT_THAT(Get((*standby)->address(), "jobs/1", &job).error_message(),
              HasSubstr("no active one is known"));
  (*standby)->SetActive("head-a:7070");
  const grpc::Status status = Get((*standby)->address(), "jobs/1", &job);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_THAT(status.error_message(), HasSubstr("head-a:7070"));
  FakeWorker worker((*standby)->address(), "w", 1);
  EXPECT_EQ(worker.Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
}

TEST_F(StandbyTest, RefusesAddressesAsACoordinatorDoes) {
  EXPECT_EQ(StandbyServer::Start("0.0.0.0:0", "").status().code(),
            absl::StatusCode::kInvalidArgument);
}

// The standby becomes active at the same address; who asks either of the two gets through.
TEST_F(StandbyTest, ClientsFailOver) {
  auto first = Active([] { return true; });
  auto standby = StandbyServer::Start("127.0.0.1:0", "");
  ASSERT_TRUE(standby.ok());
  const std::string second_address = (*standby)->address();
  // The standby comes first in the list.
  CoordinatorChannel both(Endpoint(absl::StrCat(second_address, ",", first->address())));
  const auto submit = [&](const std::string& id) {
    v1::Job job;
    for (int i = 0; i < 100; ++i) {
      const auto channel = both.Get();
      const grpc::Status status = Submit(channel, id, &job);
      if (status.ok()) return job.name();
      EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE) << status.error_message();
      both.Failed(channel);
      both.Pause(absl::Milliseconds(20));
    }
    return std::string("none");
  };
  EXPECT_EQ(submit("a"), "jobs/1");
  first.reset();
  std::thread takeover(
      [&] { first = Active([] { return true; }, second_address, [&] { standby->reset(); }); });
  EXPECT_EQ(submit("b"), "jobs/2");
  takeover.join();
  EXPECT_EQ(first->address(), second_address);
}

}  // namespace
}  // namespace milepost::coordinator
