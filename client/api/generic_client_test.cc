#include "client/api/generic_client.h"

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "milepost/v1/job.grpc.pb.h"

namespace milepost::client {
namespace {

using ::testing::HasSubstr;

constexpr char kGet[] = "/milepost.v1.JobService/GetJob";
constexpr char kWatch[] = "/milepost.v1.JobService/WatchJob";

// A coordinator whose stream has one message, and ends well or, while it stops, does not.
class OneMessage : public v1::JobService::Service {
 public:
  OneMessage() {
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
    address = absl::StrCat("127.0.0.1:", port);
  }
  grpc::Status GetJob(grpc::ServerContext*, const v1::GetJobRequest* request,
                      v1::Job* job) override {
    job->set_name(request->name());
    return grpc::Status::OK;
  }
  grpc::Status WatchJob(grpc::ServerContext*, const v1::GetJobRequest* request,
                        grpc::ServerWriter<v1::Job>* writer) override {
    v1::Job job;
    job.set_name(request->name());
    writer->Write(job);
    if (stops) return {grpc::StatusCode::UNAVAILABLE, "going away"};
    return grpc::Status::OK;
  }

  std::string address;
  std::atomic<bool> stops = false;

 private:
  std::unique_ptr<grpc::Server> server_;
};

std::string Request(const std::string& job) {
  v1::GetJobRequest request;
  request.set_name(job);
  return request.SerializeAsString();
}

// How a stream of `client` ends, and how many messages it had.
absl::Status Watch(GenericClient* client, int* messages) {
  absl::Notification ended;
  absl::Status end;
  *messages = 0;
  client->Stream(
      kWatch, Request("jobs/7"), "",
      [&](const std::string& bytes) {
        v1::Job job;
        EXPECT_TRUE(job.ParseFromString(bytes));
        EXPECT_EQ(job.name(), "jobs/7");
        ++*messages;
        return true;
      },
      [&](absl::Status status) {
        end = std::move(status);
        ended.Notify();
      });
  ended.WaitForNotification();
  return end;
}

TEST(GenericClientTest, CallsByName) {
  const OneMessage only;
  GenericClient client(Connection::To(Endpoint(only.address)));
  const auto bytes = client.Call(kGet, Request("jobs/3"), "");
  ASSERT_TRUE(bytes.ok()) << bytes.status();
  v1::Job job;
  ASSERT_TRUE(job.ParseFromString(*bytes));
  EXPECT_EQ(job.name(), "jobs/3");
  EXPECT_EQ(client.Call("/milepost.v1.JobService/None", "", "").status().code(),
            absl::StatusCode::kUnimplemented);
}

// The process's last channel with a stream is left on a thread of gRPC's own at the stream's end.
// Often, as what that breaks hangs on timing; the call between makes no stream that would keep
// gRPC's threads.
TEST(GenericClientTest, AStreamThatEndsWithItsCoordinatorIsFollowedByOneToTheNext) {
  OneMessage first;
  OneMessage second;
  GenericClient client(Connection::To(Endpoint(absl::StrCat(first.address, ",", second.address))));
  int messages = 0;
  for (int i = 0; i < 40; ++i) {
    OneMessage* stopping = i % 2 == 0 ? &first : &second;
    stopping->stops = true;
    const absl::Status end = Watch(&client, &messages);
    EXPECT_EQ(end.code(), absl::StatusCode::kUnavailable);
    EXPECT_THAT(end.message(), HasSubstr("going away"));
    EXPECT_EQ(messages, 1);
    EXPECT_TRUE(client.Call(kGet, Request("jobs/7"), "").ok());
    EXPECT_TRUE(Watch(&client, &messages).ok());
    EXPECT_EQ(messages, 1);
    stopping->stops = false;
  }
}

}  // namespace
}  // namespace milepost::client
