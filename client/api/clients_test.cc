#include "client/api/clients.h"

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <set>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/api/call.h"
#include "common/error_details.h"
#include "common/proto_time.h"
#include "common/rpc/status.h"
#include "common/rpc/warning.h"
#include "milepost/v1/job.grpc.pb.h"
#include "milepost/v1/queue.grpc.pb.h"

namespace milepost::client {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Answers as the test tells it to.
class FakeJobs : public v1::JobService::Service {
 public:
  grpc::Status GetJob(grpc::ServerContext*, const v1::GetJobRequest* request,
                      v1::Job* job) override {
    ++calls;
    if (calls <= failures) return ToGrpcStatus(failure);
    job->set_name(request->name());
    return grpc::Status::OK;
  }
  std::string warning;  // in the answers of ListJobs; empty: none

  grpc::Status ListJobs(grpc::ServerContext* context, const v1::ListJobsRequest* request,
                        v1::ListJobsResponse* response) override {
    if (!warning.empty()) context->AddTrailingMetadata(kWarningKey, warning);
    const int first = request->page_token().empty() ? 0 : std::stoi(request->page_token());
    const int end = std::min(first + std::min(request->page_size(), 2), 5);
    for (int i = first; i < end; ++i) response->add_jobs()->set_name(absl::StrCat("jobs/", i));
    if (end < 5) response->set_next_page_token(absl::StrCat(end));
    return grpc::Status::OK;
  }
  // The first stream breaks after one message, those up to `breaks` before it, the next one ends
  // well; with `hang`, none does.
  grpc::Status WatchJob(grpc::ServerContext* context, const v1::GetJobRequest*,
                        grpc::ServerWriter<v1::Job>* writer) override {
    v1::Job job;
    job.set_attempts(++calls);
    if (calls > 1 && calls <= breaks) return broken;
    writer->Write(job);
    if (hang) {
      std::unique_lock lock(mutex);
      hanging = true;
      changed.notify_all();
      while (!context->IsCancelled()) changed.wait_for(lock, std::chrono::milliseconds(5));
      return grpc::Status::CANCELLED;
    }
    if (calls == 1) return broken;
    return grpc::Status::OK;
  }
  // As a coordinator that restarts after three lines of `log`.
  grpc::Status StreamLogs(grpc::ServerContext*, const v1::StreamLogsRequest* request,
                          grpc::ServerWriter<v1::LogLine>* writer) override {
    requests.push_back(*request);
    const bool breaks = requests.size() == 1;
    if (notice.dropped_lines() > 0) writer->Write(notice);
    for (size_t i = 0; i < log.size() && !(breaks && i == 3); ++i) {
      v1::LogLine line = log[i];
      line.set_sequence(i + 1);
      const bool wanted =
          !request->has_since() || FromProto(line.time()) >= FromProto(request->since());
      if (i >= hidden_after_restart || breaks) {
        if (wanted) writer->Write(line);
      }
    }
    if (breaks) return {grpc::StatusCode::UNAVAILABLE, "going away"};
    return grpc::Status::OK;
  }

  std::atomic<int> calls = 0;
  int failures = 0;
  absl::Status failure = absl::UnavailableError("not now");
  grpc::Status broken = {grpc::StatusCode::UNAVAILABLE, "going away"};
  int breaks = 1;
  bool hang = false;
  std::mutex mutex;
  std::condition_variable changed;
  bool hanging = false;
  std::vector<v1::StreamLogsRequest> requests;
  std::vector<v1::LogLine> log;
  v1::LogLine notice;               // of lines that are not kept any more; sent before others
  size_t hidden_after_restart = 0;  // so many of the log's first are not kept any more either
};

// A collection that forgets to answer: what it is told to do it does, and the answer is lost.
class FakeQueues : public v1::QueueService::Service {
 public:
  grpc::Status CreateQueue(grpc::ServerContext*, const v1::CreateQueueRequest* request,
                           v1::Queue* queue) override {
    if (!queues.insert(request->queue_id()).second) {
      return {grpc::StatusCode::ALREADY_EXISTS, "there is a queue already"};
    }
    queue->set_name("queues/" + request->queue_id());
    return Answer();
  }
  grpc::Status DeleteQueue(grpc::ServerContext*, const v1::DeleteQueueRequest* request,
                           v1::DeleteQueueResponse*) override {
    if (refusals-- > 0) {
      return ToGrpcStatus(RetryAfter(Refusal(v1::ERROR_REASON_RATE_LIMITED, "", "too fast"),
                                     absl::Milliseconds(20)));
    }
    if (queues.erase(request->name().substr(7)) == 0) {
      return {grpc::StatusCode::NOT_FOUND, "there is no such queue"};
    }
    return Answer();
  }
  grpc::Status Answer() {
    if (lost-- > 0) return {grpc::StatusCode::UNAVAILABLE, "going away"};
    return grpc::Status::OK;
  }

  std::set<std::string> queues;
  int lost = 0;
  int refusals = 0;
};

class ClientsTest : public ::testing::Test {
 protected:
  ClientsTest() {
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(&fake_);
    builder.RegisterService(&queues_);
    server_ = builder.BuildAndStart();
    address_ = absl::StrCat("127.0.0.1:", port);
    connection_ = Connection::To(address_);
  }

  // Its lines' sequences, -1 for a word of lines that were dropped.
  std::vector<int> StreamLogs(const v1::StreamLogsRequest& request) {
    std::vector<int> seen;
    const absl::Status status = JobClient(connection_).StreamLogs(request, [&](const auto& line) {
      seen.push_back(line.dropped_lines() > 0 ? -1 : static_cast<int>(line.sequence()));
      return true;
    });
    EXPECT_TRUE(status.ok()) << status;
    return seen;
  }
  static v1::LogLine Line(int rank, int seconds) {
    v1::LogLine line;
    line.set_rank(rank);
    line.mutable_time()->set_seconds(seconds);
    return line;
  }

  FakeJobs fake_;
  FakeQueues queues_;
  std::unique_ptr<grpc::Server> server_;
  std::string address_;
  std::shared_ptr<Connection> connection_;
};

TEST_F(ClientsTest, TriesAgainWhileUnavailable) {
  fake_.failures = 3;
  const auto job = JobClient(connection_).Get("jobs/7");
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->name(), "jobs/7");
  EXPECT_EQ(fake_.calls, 4);
}

TEST_F(ClientsTest, GivesUpInTimeAndNamesTheAddress) {
  fake_.failures = 1'000'000;
  auto connection = Connection::To(address_, {.reach = absl::Milliseconds(60)});
  const auto job = JobClient(connection).Get("jobs/7");
  EXPECT_EQ(job.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(job.status().message(), HasSubstr("cannot reach the coordinator at " + address_ +
                                                " (tried for 60ms): not now"));
  EXPECT_GE(fake_.calls, 2);
}

TEST_F(ClientsTest, WhoFollowsAJobOutlastsARestart) {
  fake_.breaks = 7;
  auto connection =
      Connection::To(address_, {.reach = absl::Milliseconds(1), .reach_again = absl::Minutes(1)});
  const auto goes_on = [](const v1::Job&) { return true; };
  EXPECT_EQ(JobClient(connection).Watch("jobs/7", goes_on), absl::OkStatus());
  EXPECT_EQ(fake_.calls, 8);
}

TEST_F(ClientsTest, OtherErrorsAreFinal) {
  fake_.failures = 1;
  fake_.failure = absl::NotFoundError("not now");
  const auto job = JobClient(connection_).Get("jobs/7");
  EXPECT_EQ(job.status(), absl::NotFoundError("coordinator " + address_ + ": not now"));
  EXPECT_EQ(fake_.calls, 1);
}

TEST_F(ClientsTest, ErrorsCallTheCoordinatorAsTheyAreTold) {
  const auto get = [&](const absl::Status& failure, int failures) {
    fake_.failures = failures;
    fake_.failure = failure;
    const auto connection = Connection::To(
        address_, {.reach = absl::Milliseconds(20), .called = "the coordinator of here"});
    return std::string(JobClient(connection).Get("jobs/7").status().message());
  };
  EXPECT_EQ(get(absl::NotFoundError("not now"), 1), "the coordinator of here: not now");
  EXPECT_EQ(get(absl::UnavailableError("not now"), 1000),
            "cannot reach the coordinator of here (tried for 20ms): not now");
}

// Who is told when to come back does so; who is not, or not before the call is over, does not.
TEST_F(ClientsTest, ComesBackWhenItIsTold) {
  const absl::Status limited = Refusal(v1::ERROR_REASON_RATE_LIMITED, "users/a", "too fast");
  fake_.failures = 2;
  fake_.failure = RetryAfter(limited, absl::Milliseconds(40));
  const absl::Time begin = absl::Now();
  // However soon the coordinator would be given up that cannot be reached.
  auto connection = Connection::To(address_, {.reach = absl::Milliseconds(1)});
  const auto job = JobClient(connection).Get("jobs/7");
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(fake_.calls, 3);
  EXPECT_GE(absl::Now() - begin, absl::Milliseconds(80));

  fake_.calls = 0;
  fake_.failure = RetryAfter(limited, absl::Hours(1));
  const auto refused = JobClient(connection).Get("jobs/7").status();
  EXPECT_EQ(ReasonOf(refused), v1::ERROR_REASON_RATE_LIMITED);
  EXPECT_EQ(fake_.calls, 1);

  fake_.calls = 0;
  fake_.failure = Refusal(v1::ERROR_REASON_DISK_FULL, "", "no space");
  EXPECT_EQ(ReasonOf(JobClient(connection).Get("jobs/7").status()), v1::ERROR_REASON_DISK_FULL);
  EXPECT_EQ(fake_.calls, 1);
}

TEST_F(ClientsTest, RepeatsNothingBeyondTheCallsDeadline) {
  fake_.failures = 1'000'000;
  fake_.failure =
      RetryAfter(Refusal(v1::ERROR_REASON_RATE_LIMITED, "", "too fast"), absl::Milliseconds(20));
  auto connection = Connection::To(address_, {.call = absl::Milliseconds(300)});
  const absl::Time begin = absl::Now();
  EXPECT_FALSE(JobClient(connection).Get("jobs/7").ok());
  EXPECT_GE(fake_.calls, 2);
  EXPECT_LE(absl::Now() - begin, absl::Seconds(10));
}

TEST_F(ClientsTest, ListsEveryPageUpToTheLimit) {
  EXPECT_EQ(JobClient(connection_).List()->size(), 5u);
  EXPECT_EQ(JobClient(connection_).List(3)->size(), 3u);
}

TEST_F(ClientsTest, TellsOnceWhatTheCoordinatorWarnsOf) {
  std::vector<std::string> heard;
  ConnectionOptions options;
  options.on_warning = [&](const std::string& text) { heard.push_back(text); };
  auto connection = Connection::To(address_, options);
  EXPECT_EQ(JobClient(connection).List()->size(), 5u);
  EXPECT_TRUE(heard.empty());
  fake_.warning = "the store is damaged";
  for (int i = 0; i < 2; ++i) EXPECT_EQ(JobClient(connection).List()->size(), 5u);
  EXPECT_THAT(heard, ElementsAre(fake_.warning));
  EXPECT_EQ(JobClient(connection_).List()->size(), 5u) << "nobody wants to hear it";
}

TEST_F(ClientsTest, WatchingSurvivesALostStream) {
  // Also one that was cut for standing still.
  for (const grpc::StatusCode code : {grpc::StatusCode::UNAVAILABLE, grpc::StatusCode::CANCELLED}) {
    fake_.calls = 0;
    fake_.broken = {code, "going away"};
    std::vector<int> seen;
    const absl::Status status = JobClient(connection_).Watch("jobs/1", [&](const v1::Job& job) {
      seen.push_back(job.attempts());
      return true;
    });
    EXPECT_TRUE(status.ok()) << status;
    EXPECT_THAT(seen, ElementsAre(1, 2));
  }
}

TEST_F(ClientsTest, WatchingEndsWhenAskedTo) {
  fake_.hang = true;
  EXPECT_TRUE(JobClient(connection_).Watch("jobs/1", [](const v1::Job&) { return false; }).ok());
}

TEST_F(ClientsTest, CancelEndsACallInFlightAndAllLaterOnes) {
  fake_.hang = true;
  std::thread canceller([&] {
    std::unique_lock lock(fake_.mutex);
    fake_.changed.wait(lock, [&] { return fake_.hanging; });
    connection_->Cancel();
  });
  EXPECT_EQ(JobClient(connection_).Watch("jobs/1", [](const v1::Job&) { return true; }).code(),
            absl::StatusCode::kCancelled);
  canceller.join();
  EXPECT_EQ(JobClient(connection_).Get("jobs/1").status().code(), absl::StatusCode::kCancelled);
}

TEST_F(ClientsTest, LogLinesComeOnceAlsoOverARestart) {
  for (int i = 1; i <= 5; ++i) fake_.log.push_back(Line(0, 10'000));
  v1::StreamLogsRequest request;
  request.set_tail(3);
  EXPECT_THAT(StreamLogs(request), ElementsAre(1, 2, 3, 4, 5));
  ASSERT_EQ(fake_.requests.size(), 2u);
  EXPECT_EQ(fake_.requests[1].tail(), 0);
  EXPECT_EQ(fake_.requests[1].since().seconds(), 10'000 - 600);
}

// Rank 0's host is hours ahead; the others' lines are no less new for it.
TEST_F(ClientsTest, NoLogLineIsLostOverARestartWhereClocksDiffer) {
  fake_.log = {Line(1, 10'001), Line(0, 20'001), Line(0, 20'002),
               Line(1, 10'002), Line(0, 20'003), Line(1, 10'001)};
  EXPECT_THAT(StreamLogs({}), ElementsAre(1, 2, 3, 4, 5, 6));
  ASSERT_EQ(fake_.requests.size(), 2u);
}

// Nor of a rank that had said nothing before.
TEST_F(ClientsTest, NoLogLineOfANewRankIsLostOverARestart) {
  fake_.log = {Line(0, 10'001), Line(0, 10'002), Line(0, 10'003), Line(1, 9'900)};
  EXPECT_THAT(StreamLogs({}), ElementsAre(1, 2, 3, 4));
}

TEST_F(ClientsTest, ARestartBringsNoLogLinesFromBeforeWhatWasAskedFor) {
  fake_.log = {Line(0, 10'001), Line(0, 10'002), Line(0, 10'003), Line(1, 9'999), Line(1, 10'001)};
  v1::StreamLogsRequest request;
  request.mutable_since()->set_seconds(10'000);
  EXPECT_THAT(StreamLogs(request), ElementsAre(1, 2, 3, 5));
}

// That lines were dropped is told once, and again when it may be new ones.
TEST_F(ClientsTest, DroppedLinesAreToldOnceAlsoOverARestart) {
  for (int i = 1; i <= 5; ++i) fake_.log.push_back(Line(0, 10'000));
  fake_.notice.set_dropped_lines(7);
  EXPECT_THAT(StreamLogs({}), ElementsAre(-1, 1, 2, 3, 4, 5));
  fake_.requests.clear();
  fake_.hidden_after_restart = 4;
  EXPECT_THAT(StreamLogs({}), ElementsAre(-1, 1, 2, 3, -1, 5));
  fake_.log.clear();
  EXPECT_THAT(StreamLogs({}), ElementsAre(-1));
}

TEST_F(ClientsTest, WhatAnEarlierTryHasDeletedIsDeleted) {
  queues_.queues = {"a", "b"};
  queues_.lost = 1;
  EXPECT_EQ(QueueClient(connection_).Delete("queues/a"), absl::OkStatus());
  EXPECT_EQ(queues_.queues.size(), 1u);
  // There is none at the first try, nor after one that was refused.
  EXPECT_TRUE(absl::IsNotFound(QueueClient(connection_).Delete("queues/a")));
  queues_.refusals = 1;
  EXPECT_TRUE(absl::IsNotFound(QueueClient(connection_).Delete("queues/a")));
}

// A coordinator that was not reached has deleted nothing.
TEST_F(ClientsTest, WhatWasNeverSentHasDeletedNothing) {
  server_->Shutdown();
  grpc::ClientContext context;
  auto channel = grpc::CreateChannel(address_, grpc::InsecureChannelCredentials());
  v1::DeleteQueueResponse answer;
  const grpc::Status status =
      v1::QueueService::NewStub(channel)->DeleteQueue(&context, {}, &answer);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_FALSE(MayHaveActed(context, status)) << context.peer();
}

TEST_F(ClientsTest, WhatAnEarlierTryMayHaveMadeIsSaid) {
  v1::CreateQueueRequest request;
  request.set_queue_id("a");
  queues_.lost = 1;
  const absl::Status status = QueueClient(connection_).Create(request).status();
  EXPECT_TRUE(absl::IsAlreadyExists(status));
  EXPECT_THAT(status.message(), HasSubstr("an earlier try of this call, whose answer was lost"));
  EXPECT_THAT(QueueClient(connection_).Create(request).status().message(),
              ::testing::Not(HasSubstr("earlier try")));
}

TEST(RequestIdTest, IsAUuidAndNew) {
  std::set<std::string> ids;
  for (int i = 0; i < 100; ++i) {
    const std::string id = NewRequestId();
    EXPECT_THAT(id, ::testing::MatchesRegex(
                        "[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"));
    ids.insert(id);
  }
  EXPECT_EQ(ids.size(), 100u);
}

}  // namespace
}  // namespace milepost::client
