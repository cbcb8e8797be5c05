// Every method, called by everybody: who gets through is written down here once more, by hand.
#include <gmock/gmock.h>
#include <google/protobuf/descriptor.h>
#include <google/protobuf/dynamic_message.h>
#include <grpcpp/generic/generic_stub.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "coordinator/rpc/fake_worker.h"
#include "coordinator/rpc/secure_server.h"
#include "coordinator/security/method_rules.h"

namespace milepost::coordinator {
namespace {

using google::protobuf::DescriptorPool;
using google::protobuf::FieldDescriptor;
using google::protobuf::FileDescriptor;
using google::protobuf::Message;
using google::protobuf::MethodDescriptor;

// In the order of `kCallers`: y gets through, n is refused, h is told that there is no such thing.
constexpr const char* kCallers[] = {"viewer of p",      "submitter of p",     "admin of p",
                                    "viewer of *",      "submitter of *",     "admin of *",
                                    "viewer of other",  "submitter of other", "admin of other",
                                    "the job's worker", "another worker",     "a join token"};
const std::map<std::string, std::string> kExpected = {
    {"JobService/SubmitJob", "nyynyynnnnnn"},
    {"JobService/GetJob", "yyyyyyhhhnnn"},
    {"JobService/ListJobs", "yyyyyyyyynnn"},
    {"JobService/WatchJob", "yyyyyyhhhnnn"},
    {"JobService/CancelJob", "nyynyynhhnnn"},
    {"JobService/ResumeJob", "nyynyynhhnnn"},
    {"JobService/SuspendJob", "nyynyynhhnnn"},
    {"JobService/UpdateJob", "nyynyynhhnnn"},
    {"JobService/ForkJob", "nyynyynnnnnn"},
    {"JobService/SubmitJobArray", "nyynyynnnnnn"},
    {"JobService/CancelJobArray", "nyynyynhhnnn"},
    {"JobService/GetJobCurves", "yyyyyyhhhnnn"},
    {"JobService/StreamLogs", "yyyyyyhhhnnn"},
    {"JobService/DeleteJob", "nyynyynhhnnn"},
    {"QueueService/GetQueue", "yyyyyyyyynnn"},
    {"QueueService/ListQueues", "yyyyyyyyynnn"},
    {"QueueService/CreateQueue", "nnnnnynnnnnn"},
    {"QueueService/UpdateQueue", "nnnnnynnnnnn"},
    {"QueueService/DeleteQueue", "nnnnnynnnnnn"},
    {"TemplateService/GetTemplate", "yyyyyynnnnnn"},
    {"TemplateService/ListTemplates", "yyyyyyyyynnn"},
    {"TemplateService/CreateTemplate", "nyynyynnnnnn"},
    {"TemplateService/UpdateTemplate", "nyynyynnnnnn"},
    {"TemplateService/DeleteTemplate", "nyynyynnnnnn"},
    {"WorkerService/Session", "nnnnnnnnnyyn"},
    {"WorkerService/GetWorker", "yyyyyyyyynnn"},
    {"WorkerService/ListWorkers", "yyyyyyyyynnn"},
    {"WorkerService/DrainWorker", "nnnnnynnnnnn"},
    {"WorkerService/ResumeWorker", "nnnnnynnnnnn"},
    {"WorkerService/DeleteWorker", "nnnnnynnnnnn"},
    {"RendezvousService/PutKey", "nnnnnnnnnyfn"},
    {"RendezvousService/GetKey", "nnnnnnnnnyfn"},
    {"RendezvousService/PutChoices", "nnnnnnnnnyfn"},
    {"RendezvousService/GetChoices", "nnnnnnnnnyfn"},
    {"CheckpointService/BeginCheckpoint", "nnnnnnnnnyfn"},
    {"CheckpointService/WriteChunks", "nnnnnnnnnyfn"},
    {"CheckpointService/CommitCheckpoint", "nnnnnnnnnyfn"},
    {"CheckpointService/AbortCheckpoint", "nnnnnnnnnyfn"},
    {"CheckpointService/GetCheckpoint", "yyyyyyhhhyhn"},
    {"CheckpointService/ListCheckpoints", "yyyyyyyyynnn"},
    {"CheckpointService/ReadChunks", "yyyyyyhhhyhn"},
    {"CheckpointService/VerifyCheckpoint", "nyynyynhhnnn"},
    {"CheckpointService/PinCheckpoint", "nyynyynhhnnn"},
    {"CheckpointService/DeleteCheckpoint", "nyynyynhhnnn"},
    {"CheckpointService/RestoreCheckpoint", "nyynyynhhnnn"},
    {"FilesService/HasFiles", "nyynyynnnnnn"},
    {"FilesService/UploadFiles", "nyynyynnnnnn"},
    {"FilesService/ReadFiles", "yyyyyyhhhyfn"},
    {"AuthService/WhoAmI", "yyyyyyyyyyyn"},
    {"AuthService/CreateToken", "nnynnynnynnn"},
    {"AuthService/ListTokens", "yyyyyyyyyyyn"},
    {"AuthService/RevokeToken", "yyyyyyyyyyyn"},
    {"JoinService/CreateJoinToken", "nnnnnynnnnnn"},
    {"JoinService/ListJoinTokens", "nnnnnynnnnnn"},
    {"JoinService/RevokeJoinToken", "nnnnnynnnnnn"},
    {"JoinService/JoinWorker", "nnnnnnnnnnny"},
    {"JoinService/RenewWorkerCertificate", "nnnnnnnnnyyn"},
};

// Of every .proto in the tree.
std::vector<const MethodDescriptor*> AllMethods() {
  std::vector<const MethodDescriptor*> methods;
  for (const auto& entry : std::filesystem::directory_iterator("proto/milepost/v1")) {
    const std::string name = "milepost/v1/" + entry.path().filename().string();
    const FileDescriptor* file = DescriptorPool::generated_pool()->FindFileByName(name);
    if (file == nullptr) continue;  // not of this binary: without services, or missed below
    for (int s = 0; s < file->service_count(); ++s) {
      for (int m = 0; m < file->service(s)->method_count(); ++m) {
        methods.push_back(file->service(s)->method(m));
      }
    }
  }
  return methods;
}

std::string ShortName(const MethodDescriptor& method) {
  return absl::StrCat(method.service()->name(), "/", method.name());
}

class AccessTest : public SecureServerTest {
 protected:
  // A running job "jobs/1", which is all of "arrays/1", of project p on worker a, with the pinned
  // "checkpoints/1".
  AccessTest() {
    options_.worker_authority = dir_ + "/pki/ca";
    Start();
    worker_ = std::make_unique<FakeWorker>(Worker("a"), "a", 1);
    other_ = std::make_unique<FakeWorker>(Worker("b"), "b", 1);
    EXPECT_TRUE(worker_->Receive().has_welcome());
    v1::SubmitJobArrayRequest request;
    *request.mutable_spec() = Request("p").spec();
    request.set_project("p");
    request.add_elements();
    grpc::ClientContext context;
    v1::SubmitJobArrayResponse array;
    const grpc::Status status = v1::JobService::NewStub(MakeChannel(With("p", v1::ROLE_SUBMITTER)))
                                    ->SubmitJobArray(&context, request, &array);
    EXPECT_TRUE(status.ok()) << status.error_message();
    EXPECT_EQ(array.array(), "arrays/1");
    start_ = worker_->Receive().start_rank();
    EXPECT_EQ(start_.job(), "jobs/1");
    worker_->Report(start_, v1::RANK_STATE_RUNNING);
    SaveCheckpoint();
  }

  void SaveCheckpoint() {
    auto stub = v1::CheckpointService::NewStub(MakeChannel(Worker("a")));
    v1::BeginCheckpointRequest begin;
    begin.set_job(start_.job());
    begin.set_generation(start_.generation());
    begin.set_step(1);
    begin.set_streams(1);
    v1::BeginCheckpointResponse begun;
    grpc::ClientContext first, second, third, fourth;
    grpc::Status status = stub->BeginCheckpoint(&first, begin, &begun);
    ASSERT_TRUE(status.ok()) << status.error_message();
    v1::WriteChunksRequest message;
    message.set_checkpoint(begun.checkpoint());
    message.set_generation(start_.generation());
    v1::WriteChunksResponse written;
    auto writer = stub->WriteChunks(&second, &written);
    writer->Write(message);
    writer->WritesDone();
    ASSERT_TRUE(writer->Finish().ok());
    v1::CommitCheckpointRequest commit;
    commit.set_checkpoint(begun.checkpoint());
    commit.set_job(start_.job());
    commit.set_generation(start_.generation());
    v1::Checkpoint checkpoint;
    status = stub->CommitCheckpoint(&third, commit, &checkpoint);
    ASSERT_TRUE(status.ok()) << status.error_message();
    ASSERT_EQ(checkpoint.name(), "checkpoints/1");
    v1::PinCheckpointRequest pin;
    pin.set_name(checkpoint.name());
    pin.set_pinned(true);
    ASSERT_TRUE(v1::CheckpointService::NewStub(MakeChannel(User(AdminToken())))
                    ->PinCheckpoint(&fourth, pin, &checkpoint)
                    .ok());
  }

  // A request of the method about what there is; not complete, so that little comes of it.
  std::unique_ptr<Message> About(const MethodDescriptor& method) {
    std::unique_ptr<Message> request(google::protobuf::MessageFactory::generated_factory()
                                         ->GetPrototype(method.input_type())
                                         ->New());
    const std::map<std::string, std::string> names = {
        {"JobService", "jobs/1"},
        {"QueueService", "queues/default"},
        {"WorkerService", "workers/a"},
        {"CheckpointService", "checkpoints/1"},
        {"TemplateService", "projects/p/templates/none"},
        {"AuthService", "tokens/none"},
        {"JoinService", "joinTokens/none"}};
    const auto named = names.find(method.service()->name());
    const std::string name = named == names.end() ? "" : named->second;
    Fill(request.get(), {{"name", name},
                         {"job", "jobs/1"},
                         {"checkpoint", "checkpoints/1"},
                         {"queue_id", "default"},
                         {"template", "projects/p/templates/none"},
                         {"source", "checkpoints/1"},
                         {"array", "arrays/1"},
                         {"project", "p"}});
    if (const auto* pinned = method.input_type()->FindFieldByName("pinned")) {
      request->GetReflection()->SetBool(request.get(), pinned, true);
    }
    return request;
  }
  void Fill(Message* message, const std::map<std::string, std::string>& values) {
    for (const auto& [key, value] : values) {
      const FieldDescriptor* field = message->GetDescriptor()->FindFieldByName(key);
      if (field == nullptr) continue;
      if (field->cpp_type() == FieldDescriptor::CPPTYPE_STRING) {
        message->GetReflection()->SetString(message, field, value);
      } else if (field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
        Message* inner = message->GetReflection()->MutableMessage(message, field);
        inner->GetReflection()->SetString(inner, inner->GetDescriptor()->FindFieldByName("name"),
                                          value);
      }
    }
    if (const auto* field = message->GetDescriptor()->FindFieldByName("generation")) {
      message->GetReflection()->SetInt64(message, field, 1);
    }
    const auto* field = message->GetDescriptor()->FindFieldByName("queue");
    if (field != nullptr && field->message_type() != nullptr) {
      Message* queue = message->GetReflection()->MutableMessage(message, field);
      queue->GetReflection()->SetString(queue, queue->GetDescriptor()->FindFieldByName("name"),
                                        "queues/default");
    }
  }

  // One message to any method; how the call ends, or DEADLINE_EXCEEDED while it goes on.
  static grpc::Status Call(const std::shared_ptr<grpc::Channel>& channel, const std::string& path,
                           const std::string& bytes) {
    grpc::GenericStub stub(channel);
    grpc::CompletionQueue queue;
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(300));
    const auto await = [&] {
      void* tag = nullptr;
      bool ok = false;
      queue.Next(&tag, &ok);
      return ok;
    };
    auto call = stub.PrepareCall(&context, path, &queue);
    call->StartCall(nullptr);
    await();
    const grpc::Slice slice(bytes);
    call->Write(grpc::ByteBuffer(&slice, 1), nullptr);
    if (await()) {
      call->WritesDone(nullptr);
      await();
    }
    grpc::ByteBuffer answer;
    do {
      call->Read(&answer, nullptr);
    } while (await());
    grpc::Status status;
    call->Finish(&status, nullptr);
    await();
    return status;
  }

  static char Outcome(const grpc::Status& status, const std::string& method) {
    switch (status.error_code()) {
      case grpc::StatusCode::UNAUTHENTICATED:
      case grpc::StatusCode::PERMISSION_DENIED:
        return 'n';
      case grpc::StatusCode::NOT_FOUND:
        // The name of a template says its project: those who do not see that are refused.
        return method == "AuthService/RevokeToken" || method == "JoinService/RevokeJoinToken" ||
                       absl::StartsWith(method, "TemplateService/")
                   ? 'y'
                   : 'h';
      case grpc::StatusCode::ABORTED:
        return 'f';  // fenced
      default:
        return 'y';
    }
  }

  std::unique_ptr<FakeWorker> worker_;
  std::unique_ptr<FakeWorker> other_;
  v1::StartRank start_;
};

TEST_F(AccessTest, EveryMethodIsInTheTableAndNothingElse) {
  std::set<std::string> methods;
  for (const MethodDescriptor* method : AllMethods()) {
    const std::string name = ShortName(*method);
    methods.insert(name);
    EXPECT_NE(FindRule("/milepost.v1." + name), nullptr) << name << " has no rule";
    EXPECT_EQ(kExpected.count(name), 1u) << name << " is expected of nobody";
  }
  EXPECT_EQ(methods.size(), kExpected.size());
  EXPECT_EQ(methods.size(), AllRules().size());
}

TEST_F(AccessTest, EveryMethodByEveryRole) {
  const std::vector<Endpoint> endpoints = {With("p", v1::ROLE_VIEWER),
                                           With("p", v1::ROLE_SUBMITTER),
                                           With("p", v1::ROLE_ADMIN),
                                           With("*", v1::ROLE_VIEWER),
                                           With("*", v1::ROLE_SUBMITTER),
                                           With("*", v1::ROLE_ADMIN),
                                           With("other", v1::ROLE_VIEWER),
                                           With("other", v1::ROLE_SUBMITTER),
                                           With("other", v1::ROLE_ADMIN),
                                           Worker("a"),
                                           Worker("b"),
                                           User(MakeJoinToken({}).secret())};
  std::vector<std::shared_ptr<grpc::Channel>> channels;
  for (const Endpoint& endpoint : endpoints) channels.push_back(MakeChannel(endpoint));
  for (const MethodDescriptor* method : AllMethods()) {
    const std::string name = ShortName(*method);
    const std::string bytes = About(*method)->SerializeAsString();
    const std::string& expected = kExpected.at(name);
    for (size_t i = 0; i < channels.size(); ++i) {
      const grpc::Status status = Call(channels[i], "/milepost.v1." + name, bytes);
      EXPECT_EQ(Outcome(status, name), expected[i])
          << name << " by " << kCallers[i] << ": " << status.error_code() << " "
          << status.error_message();
    }
  }
}

TEST_F(AccessTest, NobodyGetsInWithoutCredentialsOrToOtherMethods) {
  const auto nobody = MakeChannel(User(""));
  for (const MethodDescriptor* method : AllMethods()) {
    const std::string path = "/milepost.v1." + ShortName(*method);
    EXPECT_EQ(Call(nobody, path, "").error_code(), grpc::StatusCode::UNAUTHENTICATED) << path;
  }
  const auto admin = MakeChannel(User(AdminToken()));
  EXPECT_EQ(Call(admin, "/milepost.v1.JobService/Other", "").error_code(),
            grpc::StatusCode::PERMISSION_DENIED);
  const auto joiner = MakeChannel(User(MakeJoinToken({}).secret()));
  EXPECT_EQ(Call(joiner, "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", "")
                .error_code(),
            grpc::StatusCode::PERMISSION_DENIED);
  EXPECT_EQ(Call(nobody, "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", "")
                .error_code(),
            grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_TRUE(
      Call(admin, "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", "").ok());
  EXPECT_TRUE(Call(nobody, "/grpc.health.v1.Health/Check", "").ok());
}

TEST_F(AccessTest, MalformedMessagesEndTheCallAlone) {
  const auto admin = MakeChannel(User(AdminToken()));
  const auto worker = MakeChannel(Worker("a"));
  for (const MethodDescriptor* method : AllMethods()) {
    for (const auto& channel : {admin, worker}) {
      const std::string path = "/milepost.v1." + ShortName(*method);
      EXPECT_FALSE(Call(channel, path, "\xff\xff\xff\xff").ok()) << path;
    }
  }
  EXPECT_TRUE(WhoAmI(User(AdminToken())).ok());
}

TEST_F(AccessTest, WhatIsHiddenIsToldApartFromWhatIsNotThereByNothing) {
  const Endpoint stranger = With("other", v1::ROLE_ADMIN);
  auto jobs = v1::JobService::NewStub(MakeChannel(stranger));
  auto checkpoints = v1::CheckpointService::NewStub(MakeChannel(stranger));
  const auto get = [&](const std::string& name) {
    grpc::ClientContext context;
    v1::GetJobRequest request;
    request.set_name(name);
    v1::Job job;
    return jobs->GetJob(&context, request, &job);
  };
  EXPECT_EQ(get("jobs/1").error_message(), "there is no job 'jobs/1'");
  EXPECT_EQ(get("jobs/9").error_message(), "there is no job 'jobs/9'");
  const auto manifest = [&](const std::string& name) {
    grpc::ClientContext context;
    v1::GetCheckpointRequest request;
    request.set_name(name);
    v1::CheckpointManifest found;
    return checkpoints->GetCheckpoint(&context, request, &found);
  };
  EXPECT_EQ(manifest("checkpoints/1").error_message(), "there is no checkpoint checkpoints/1");
  EXPECT_EQ(manifest("checkpoints/9").error_message(), "there is no checkpoint checkpoints/9");
  // Nor through a job of its own.
  v1::Job job;
  v1::SubmitJobRequest request = Request("other");
  request.mutable_spec()->mutable_checkpoint()->set_resume_from("checkpoints/1");
  grpc::Status status = Submit(stranger, request, &job);
  EXPECT_EQ(status.error_message(), "checkpoint.resume_from: there is no checkpoint checkpoints/1");
  request = Request("other");
  request.mutable_spec()->mutable_scheduling()->add_depends_on("jobs/1");
  status = Submit(stranger, request, &job);
  EXPECT_EQ(status.error_message(),
            "scheduling.depends_on: there is no job 'jobs/1' before this one");
  // Nor through a fork, or an array.
  for (const char* source : {"jobs/1", "checkpoints/1"}) {
    for (const char* project : {"", "other"}) {
      grpc::ClientContext context;
      v1::ForkJobRequest fork;
      fork.set_source(source);
      fork.set_project(project);
      status = jobs->ForkJob(&context, fork, &job);
      EXPECT_EQ(status.error_code(), grpc::StatusCode::NOT_FOUND) << status.error_message();
    }
  }
  grpc::ClientContext context;
  v1::SubmitJobArrayRequest array;
  *array.mutable_spec() = Request("other").spec();
  array.set_project("other");
  v1::SpecOverride* one = array.add_elements()->add_overrides();
  one->set_path("scheduling.depends_on");
  one->set_value("[jobs/1]");
  v1::SubmitJobArrayResponse response;
  EXPECT_EQ(jobs->SubmitJobArray(&context, array, &response).error_message(),
            "elements[0]: scheduling.depends_on: there is no job 'jobs/1' before this one");
}

TEST_F(AccessTest, TheTimeLimitOfAJobThatRunsIsRaisedByAnAdminAlone) {
  const auto update = [&](v1::Role role, double limit) {
    v1::UpdateJobRequest request;
    request.mutable_job()->set_name("jobs/1");
    request.mutable_job()->mutable_spec()->mutable_scheduling()->set_time_limit(limit);
    request.mutable_update_mask()->add_paths("spec.scheduling.time_limit");
    grpc::ClientContext context;
    v1::Job job;
    return v1::JobService::NewStub(MakeChannel(With("p", role)))
        ->UpdateJob(&context, request, &job)
        .error_code();
  };
  EXPECT_EQ(update(v1::ROLE_SUBMITTER, 100), grpc::StatusCode::OK);
  EXPECT_EQ(update(v1::ROLE_SUBMITTER, 0), grpc::StatusCode::PERMISSION_DENIED);
  EXPECT_EQ(update(v1::ROLE_ADMIN, 200), grpc::StatusCode::OK);
  EXPECT_EQ(update(v1::ROLE_SUBMITTER, 201), grpc::StatusCode::PERMISSION_DENIED);
  EXPECT_EQ(update(v1::ROLE_ADMIN, 0), grpc::StatusCode::OK);
}

TEST_F(AccessTest, ListsHoldWhatOneMaySee) {
  v1::Job job;
  const Endpoint both =
      User(MakeToken({{"p", v1::ROLE_VIEWER}, {"other", v1::ROLE_SUBMITTER}}).secret());
  ASSERT_TRUE(Submit(both, Request("other"), &job).ok());
  EXPECT_EQ(job.project(), "other");
  const auto list = [&](const Endpoint& endpoint, const std::string& project) {
    grpc::ClientContext context;
    v1::ListJobsRequest request;
    request.set_project(project);
    v1::ListJobsResponse response;
    EXPECT_TRUE(v1::JobService::NewStub(MakeChannel(endpoint))
                    ->ListJobs(&context, request, &response)
                    .ok());
    return response.jobs_size();
  };
  EXPECT_EQ(list(both, ""), 2);
  EXPECT_EQ(list(both, "p"), 1);
  EXPECT_EQ(list(both, "none"), 0);
  EXPECT_EQ(list(With("other", v1::ROLE_VIEWER), ""), 1);
  EXPECT_EQ(list(With("third", v1::ROLE_ADMIN), ""), 0);

  const auto assignments = [&](const Endpoint& endpoint) {
    grpc::ClientContext context;
    v1::ListWorkersResponse response;
    EXPECT_TRUE(v1::WorkerService::NewStub(MakeChannel(endpoint))
                    ->ListWorkers(&context, {}, &response)
                    .ok());
    return response.workers(0).assignments_size();
  };
  EXPECT_EQ(assignments(With("p", v1::ROLE_VIEWER)), 1);
  EXPECT_EQ(assignments(With("third", v1::ROLE_VIEWER)), 0);
}

TEST_F(AccessTest, TheSameRequestIdOfAnotherProjectIsAnotherJob) {
  v1::SubmitJobRequest request = Request("p");
  request.set_request_id("0c1d");
  v1::Job first, again, other;
  ASSERT_TRUE(Submit(User(AdminToken()), request, &first).ok());
  ASSERT_TRUE(Submit(User(AdminToken()), request, &again).ok());
  request.set_project("other");
  ASSERT_TRUE(Submit(User(AdminToken()), request, &other).ok());
  EXPECT_EQ(first.name(), again.name());
  EXPECT_NE(first.name(), other.name());
  EXPECT_EQ(other.project(), "other");
  // Nor by an id that looks like another project's.
  v1::Job disguised;
  request.clear_project();
  request.set_request_id("other/0c1d");
  ASSERT_TRUE(Submit(User(AdminToken()), request, &disguised).ok());
  EXPECT_NE(disguised.name(), other.name());
  EXPECT_NE(disguised.project(), "other");
}

TEST_F(AccessTest, AWorkerSpeaksForItselfAlone) {
  FakeWorker impostor(Worker("b"), "a", 1, /*incarnation=*/9);
  const grpc::Status status = impostor.Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::PERMISSION_DENIED);
  EXPECT_THAT(status.error_message(), ::testing::HasSubstr("that of workers/b"));
}

TEST_F(AccessTest, AWorkerIsShutOutByName) {
  EXPECT_TRUE(WhoAmI(Worker("a")).ok());
  std::ofstream(options_.tls_dir + "/denied-workers") << "# stolen\na\n";
  const absl::Time deadline = absl::Now() + absl::Seconds(20);
  grpc::Status status;
  do {
    status = WhoAmI(Worker("a"));
  } while (status.ok() && absl::Now() < deadline);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_TRUE(WhoAmI(Worker("b")).ok());
  // The stream that was open ends with its next message.
  worker_->Report(start_, v1::RANK_STATE_SUCCEEDED);
  EXPECT_EQ(worker_->Finish().error_code(), grpc::StatusCode::UNAUTHENTICATED);
}

TEST_F(AccessTest, LogLinesCountFromTheWorkerThatRanTheRankInItsGenerationAlone) {
  const auto log = [&](FakeWorker* worker, int64_t generation, int rank, const char* text) {
    v1::LogLine line;
    line.set_job("jobs/1");
    line.set_generation(generation);
    line.set_rank(rank);
    line.set_text(text);
    worker->Log(line);
  };
  EXPECT_TRUE(other_->Receive().has_welcome());
  log(other_.get(), 1, 0, "forged by another worker");
  log(worker_.get(), 2, 0, "of another generation");
  log(worker_.get(), 1, 1, "of a rank that there is not");
  // After the rank's end: what it said last comes last.
  worker_->Report(start_, v1::RANK_STATE_SUCCEEDED);
  EXPECT_TRUE(worker_->Receive().has_forget_rank());
  log(worker_.get(), 1, 0, "genuine");
  v1::StreamLogsRequest request;
  request.set_name("jobs/1");
  // A round trip of each worker's stream: what was sent before has been dealt with.
  worker_->Report(start_, v1::RANK_STATE_SUCCEEDED);
  EXPECT_TRUE(worker_->Receive().has_forget_rank());
  other_->Report(start_, v1::RANK_STATE_SUCCEEDED);
  EXPECT_TRUE(other_->Receive().has_forget_rank());
  grpc::ClientContext context;
  auto stream =
      v1::JobService::NewStub(MakeChannel(User(AdminToken())))->StreamLogs(&context, request);
  std::vector<std::string> lines;
  v1::LogLine line;
  while (stream->Read(&line)) lines.push_back(line.text());
  EXPECT_THAT(lines, ::testing::ElementsAre("genuine"));
}

// Each of a rank's methods, by the very worker, for a generation that is over.
TEST_F(AccessTest, AFencedGenerationWritesNothing) {
  v1::RankReport failed;
  worker_->Report(start_, v1::RANK_STATE_FAILED);
  v1::StartRank next;
  while (next.generation() != 2) {
    const v1::CoordinatorMessage message = worker_->Receive();
    ASSERT_NE(message.message_case(), v1::CoordinatorMessage::MESSAGE_NOT_SET);
    if (message.has_start_rank()) next = message.start_rank();
  }
  const auto channel = MakeChannel(Worker("a"));
  for (const MethodDescriptor* method : AllMethods()) {
    const bool of_ranks = method->input_type()->FindFieldByName("generation") != nullptr;
    if (!of_ranks) continue;
    // About() asks for generation 1.
    const grpc::Status status =
        Call(channel, "/milepost.v1." + ShortName(*method), About(*method)->SerializeAsString());
    EXPECT_EQ(status.error_code(), grpc::StatusCode::ABORTED)
        << ShortName(*method) << ": " << status.error_message();
  }
}

}  // namespace
}  // namespace milepost::coordinator
