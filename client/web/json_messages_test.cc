#include "client/web/json_messages.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>

#include "client/web/api_methods.h"
#include "client/web/openapi.h"
#include "common/error_details.h"
#include "common/http/http_status.h"
#include "milepost/v1/job.pb.h"
#include "milepost/v1/worker.pb.h"

namespace milepost::client {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(JsonMessages, QueriesAreFields) {
  v1::ListJobsRequest request;
  ASSERT_TRUE(FromQuery({{"pageSize", "5"},
                         {"name_prefix", "a&b"},
                         {"states", "JOB_STATE_RUNNING"},
                         {"states", "JOB_STATE_QUEUED"},
                         {"$fields", "jobs.name"}},
                        &request)
                  .ok());
  EXPECT_EQ(request.page_size(), 5);
  EXPECT_EQ(request.name_prefix(), "a&b");
  EXPECT_EQ(request.states_size(), 2);
  v1::StreamLogsRequest logs;
  ASSERT_TRUE(
      FromQuery({{"follow", "true"}, {"rank", "0"}, {"since", "2026-01-01T00:00:00Z"}}, &logs)
          .ok());
  EXPECT_TRUE(logs.follow());
  EXPECT_TRUE(logs.has_rank());
  EXPECT_GT(logs.since().seconds(), 0);
}

TEST(JsonMessages, WrongRequestsAreSaid) {
  v1::ListJobsRequest request;
  for (const Query& wrong : {Query{{"page", "1"}}, Query{{"pageSize", "many"}},
                             Query{{"states", "HAPPY"}}, Query{{"pageSize.x", "1"}}}) {
    EXPECT_EQ(FromQuery(wrong, &request).code(), absl::StatusCode::kInvalidArgument)
        << wrong[0].first;
  }
  for (const char* wrong : {"{", "[]", "1", R"({"page":1})", R"({"pageSize":"x"})"}) {
    EXPECT_EQ(FromJson(wrong, &request).code(), absl::StatusCode::kInvalidArgument) << wrong;
  }
  std::string deep;
  for (int i = 0; i < 100'000; ++i) deep += R"({"job":)";
  EXPECT_FALSE(FromJson(deep, &request).ok());
}

TEST(JsonMessages, LeavesTheFieldsThatAreWanted) {
  v1::ListJobsResponse jobs;
  v1::Job* job = jobs.add_jobs();
  job->set_name("jobs/1");
  job->set_state(v1::JOB_STATE_RUNNING);
  job->mutable_spec()->set_name("a");
  job->mutable_spec()->mutable_train()->set_steps(3);
  (*job->mutable_labels())["team"] = "x";
  jobs.set_next_page_token("t");
  ASSERT_TRUE(KeepFields("jobs.name,jobs.spec.train,jobs.labels", &jobs).ok());
  EXPECT_EQ(ToJson(jobs),
            R"({"jobs":[{"name":"jobs/1","spec":{"train":{"steps":"3"}},"labels":{"team":"x"}}]})");
  EXPECT_FALSE(KeepFields("jobs.nme", &jobs).ok());
  EXPECT_FALSE(KeepFields("jobs.name.x", &jobs).ok());
  EXPECT_FALSE(KeepFields(",", &jobs).ok());
}

TEST(JsonMessages, TellsTheMaskOfAList) {
  const auto mask = [](const char* fields) {
    return MaskWithin(fields, *v1::ListJobsResponse::descriptor(), "jobs");
  };
  EXPECT_THAT(mask("jobs.name,jobs.reasonDetail,jobs.spec.train.steps,nextPageToken"),
              ElementsAre("name", "reason_detail", "spec.train.steps"));
  EXPECT_THAT(mask("jobs.stragglers.rank,jobs.labels"), ElementsAre("stragglers", "labels"));
  EXPECT_THAT(mask("jobs.name,jobs"), ElementsAre()) << "all of them";
  EXPECT_THAT(mask(""), ElementsAre());
  EXPECT_THAT(mask("jobs.name.x"), ElementsAre());
}

TEST(JsonMessages, ErrorsHaveTheirDetails) {
  const absl::Status status =
      Refusal(v1::ERROR_REASON_JOB_TERMINAL, "jobs/7", "jobs/7 has ended\xff");
  const auto json = nlohmann::json::parse(StatusJson(status));
  EXPECT_EQ(json["code"], 9);
  EXPECT_THAT(json["message"].get<std::string>(), HasSubstr("jobs/7 has ended"));
  std::set<std::string> types;
  for (const auto& detail : json["details"]) types.insert(detail["@type"]);
  EXPECT_TRUE(types.count("type.googleapis.com/google.rpc.ErrorInfo"));
  EXPECT_TRUE(types.count("type.googleapis.com/google.rpc.PreconditionFailure"));
  EXPECT_THAT(StatusJson(status), HasSubstr(R"("reason":"JOB_TERMINAL")"));
  EXPECT_EQ(HttpStatusOf(status), 400);
  EXPECT_EQ(HttpStatusOf(absl::UnauthenticatedError("")), 401);
  EXPECT_EQ(HttpStatusOf(absl::UnavailableError("")), 503);
}

TEST(ApiMethods, AreThoseOfUsers) {
  std::set<std::string> paths;
  for (const ApiMethod& method : ApiMethods()) paths.insert(method.path);
  for (const char* there : {"JobService/GetJob", "JobService/StreamLogs", "AuthService/WhoAmI",
                            "QueueService/UpdateQueue", "WorkerService/DrainWorker",
                            "TemplateService/GetTemplate", "CheckpointService/PinCheckpoint"}) {
    EXPECT_TRUE(paths.count(there)) << there;
  }
  for (const char* not_there :
       {"WorkerService/Session", "CheckpointService/WriteChunks", "CheckpointService/ReadChunks",
        "CheckpointService/BeginCheckpoint", "RendezvousService/PutKey"}) {
    EXPECT_FALSE(paths.count(not_there)) << not_there;
  }
  EXPECT_TRUE(FindApiMethod("JobService/GetJob")->reads);
  EXPECT_FALSE(FindApiMethod("JobService/CancelJob")->reads);
  EXPECT_TRUE(FindApiMethod("JobService/WatchJob")->streams);
}

// Each reference leads somewhere, each method is there with its request and its answer.
void CheckReferences(const nlohmann::json& here, const nlohmann::json& document) {
  if (here.is_object() && here.contains("$ref")) {
    const std::string reference = here["$ref"];
    ASSERT_EQ(reference.substr(0, 2), "#/") << reference;
    EXPECT_TRUE(document.contains(nlohmann::json::json_pointer(reference.substr(1)))) << reference;
  }
  if (here.is_structured()) {
    for (const auto& one : here) CheckReferences(one, document);
  }
}

TEST(OpenApi, IsWhole) {
  const auto document = nlohmann::json::parse(OpenApiJson());
  EXPECT_EQ(document["openapi"], "3.0.3");
  EXPECT_TRUE(document["info"].contains("version"));
  EXPECT_EQ(document["paths"].size(), ApiMethods().size());
  std::set<std::string> operations;
  for (const auto& [path, item] : document["paths"].items()) {
    EXPECT_EQ(path[0], '/');
    const auto& post = item["post"];
    EXPECT_TRUE(operations.insert(post["operationId"]).second) << path;
    EXPECT_TRUE(post["responses"].contains("200"));
    EXPECT_TRUE(post["requestBody"]["content"]["application/json"]["schema"].contains("$ref"));
    for (const auto& parameter : post["parameters"]) EXPECT_TRUE(parameter["in"].is_string());
  }
  CheckReferences(document, document);
  const auto& job = document["components"]["schemas"]["Job"]["properties"];
  EXPECT_EQ(job["createTime"]["format"], "date-time");
  EXPECT_EQ(job["generation"]["format"], "int64");
  EXPECT_EQ(job["labels"]["additionalProperties"]["type"], "string");
}

}  // namespace
}  // namespace milepost::client
