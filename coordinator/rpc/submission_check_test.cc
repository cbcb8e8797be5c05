#include "coordinator/rpc/fake_worker.h"

#include "coordinator/rpc/submission_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <optional>

#include "common/spec/auto_fields.h"
#include "common/spec/validate.h"
#include "coordinator/rpc/server.h"
#include "milepost/v1/job.grpc.pb.h"

namespace milepost::coordinator {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int64_t kMiB = 1 << 20;

// Needs about 30 MiB as it is, 9 MiB at the least.
v1::JobSpec Spec() {
  v1::JobSpec spec;
  spec.set_name("test");
  v1::Gpt2Spec* model = spec.mutable_model()->mutable_gpt2();
  model->set_layers(4);
  model->set_width(128);
  model->set_heads(4);
  model->set_context(128);
  model->set_vocabulary(256);
  spec.mutable_data()->set_train("/data/train.npy");
  spec.mutable_train()->set_steps(10);
  spec.mutable_train()->mutable_batch()->set_global(16);
  spec.mutable_train()->mutable_batch()->set_micro(8);
  spec.mutable_resources()->set_ranks(2);
  return spec;
}

v1::JobSpec AutoSpec() {
  v1::JobSpec spec = Spec();
  spec.mutable_train()->mutable_batch()->set_micro(kAuto);
  spec.mutable_train()->set_recompute(v1::RECOMPUTE_AUTO);
  return spec;
}

class SubmissionCheckTest : public ::testing::Test {
 protected:
  SubmissionCheckTest() {
    std::string pattern = (std::filesystem::temp_directory_path() / "milepost-admit-XXXXXX");
    options_.store.dir = mkdtemp(pattern.data());
    options_.coordinator.check_submission = CheckSubmission;
    // Of no job a checkpoint is too large.
    options_.store.free_bytes = [](const std::string&) { return uint64_t{1} << 60; };
    Start();
  }
  ~SubmissionCheckTest() override {
    server_.reset();
    std::filesystem::remove_all(options_.store.dir);
  }

  void Start() {
    server_.reset();
    auto server = CoordinatorServer::Start(options_);
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    jobs_ = v1::JobService::NewStub(MakeChannel(server_->address()));
  }

  // Returns when the coordinator knows the worker.
  std::unique_ptr<FakeWorker> Connect(const std::string& id, int64_t slot_memory,
                                      v1::DeviceKind device = v1::DEVICE_KIND_CPU,
                                      int64_t host_memory = 0, const std::string& pool = "") {
    auto worker =
        std::make_unique<FakeWorker>(server_->address(), id, 1, 1, std::vector<v1::RankReport>(),
                                     slot_memory, device, host_memory, pool);
    const auto stub = v1::WorkerService::NewStub(MakeChannel(server_->address()));
    EXPECT_TRUE(worker->Receive().has_welcome());
    v1::Worker known;
    for (int i = 0; i < 10'000 && known.slots().empty(); ++i) {
      grpc::ClientContext context;
      v1::GetWorkerRequest request;
      request.set_name("workers/" + id);
      (void)stub->GetWorker(&context, request, &known);
    }
    EXPECT_EQ(known.slots(0).memory_bytes(), slot_memory);
    return worker;
  }

  grpc::Status Submit(const v1::JobSpec& spec, v1::Job* job, int64_t rank_memory = 0,
                      bool validate_only = false, const std::string& request_id = "") {
    v1::SubmitJobRequest request;
    *request.mutable_spec() = spec;
    request.set_rank_memory_bytes(rank_memory);
    request.set_validate_only(validate_only);
    request.set_request_id(request_id);
    grpc::ClientContext context;
    return jobs_->SubmitJob(&context, request, job);
  }

  ServerOptions options_;
  std::unique_ptr<CoordinatorServer> server_;
  std::unique_ptr<v1::JobService::Stub> jobs_;
};

// What took 212 s and 477 MB.
TEST(SubmissionCheck, WhatTakesTooMuchToPlanIsRefused) {
  v1::JobSpec spec = Spec();
  v1::Gpt2Spec* model = spec.mutable_model()->mutable_gpt2();
  model->set_layers(1024);
  model->set_width(8);
  model->set_heads(1);
  spec.mutable_train()->set_recompute(v1::RECOMPUTE_BUDGET);
  spec.mutable_train()->set_recompute_budget(kMiB);
  spec.mutable_train()->mutable_batch()->set_micro(1);
  spec.mutable_train()->mutable_batch()->set_global(27720);
  spec.mutable_resources()->set_ranks(28);
  spec.mutable_resources()->set_min_ranks(1);
  NormalizeJobSpec(&spec);
  ASSERT_EQ(ValidateJobSpec(spec), absl::OkStatus());
  int asked = 0;
  const auto answer = CheckSubmission(spec, {}, [&] {
    ++asked;
    return absl::OkStatus();
  });
  EXPECT_EQ(answer.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(answer.status().message()), HasSubstr("fewer layers"));
  EXPECT_GT(asked, 0);
  const auto gone = CheckSubmission(spec, {}, [] { return absl::CancelledError("gone"); });
  EXPECT_EQ(gone.status().code(), absl::StatusCode::kCancelled);
}

TEST_F(SubmissionCheckTest, DeclaredMemoryRefusesWithWhatWouldFit) {
  v1::Job job;
  EXPECT_TRUE(Submit(Spec(), &job).ok()) << "nothing is known: anything may run";
  v1::JobSpec spec = Spec();
  spec.mutable_resources()->set_memory(30 * kMiB);
  for (const bool validate_only : {false, true}) {
    const grpc::Status status = Submit(spec, &job, 0, validate_only);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    EXPECT_THAT(status.error_message(),
                AllOf(HasSubstr("does not fit"), HasSubstr("30.00 MiB"),
                      HasSubstr("resources.memory"), HasSubstr("train.batch.micro: ")));
  }
}

TEST_F(SubmissionCheckTest, WorkersTellWhatTheyHave) {
  v1::Job job;
  const auto small = Connect("small", 30 * kMiB);
  EXPECT_THAT(Submit(Spec(), &job).error_message(), HasSubstr("the largest slot of the workers"));
  const auto large = Connect("large", 1024 * kMiB);
  EXPECT_TRUE(Submit(Spec(), &job).ok()) << "one of them has room";
}

TEST_F(SubmissionCheckTest, AGpusMemoryIsTheGpusAlone) {
  v1::JobSpec spec = Spec();
  spec.mutable_resources()->set_ranks(1);
  spec.mutable_resources()->set_device(v1::DEVICE_KIND_CUDA);
  v1::Job job;
  const auto cpu = Connect("cpu", 1 * kMiB);
  EXPECT_TRUE(Submit(spec, &job).ok()) << "a CPU's memory says nothing about GPUs";
  // A host's slot of that size would do: a GPU's driver and libraries take more than it has.
  const auto gpu = Connect("gpu", 1024 * kMiB, v1::DEVICE_KIND_CUDA);
  EXPECT_THAT(Submit(spec, &job).error_message(),
              AllOf(HasSubstr("does not fit"), HasSubstr("the largest GPU of the workers")));
  const auto large = Connect("large", 24 * 1024 * kMiB, v1::DEVICE_KIND_CUDA);
  ASSERT_TRUE(Submit(spec, &job).ok());
  EXPECT_TRUE(large->Receive().has_start_rank()) << "the small one has no room";
}

// Of a stage's ranks each has a GPU of its own.
TEST_F(SubmissionCheckTest, APipelineOnGpusIsHeldAgainstThem) {
  v1::JobSpec spec = Spec();
  spec.mutable_resources()->set_device(v1::DEVICE_KIND_CUDA);
  spec.mutable_resources()->mutable_mesh()->set_pipeline(2);
  v1::Job job;
  const auto small = Connect("small", 300 * kMiB, v1::DEVICE_KIND_CUDA);
  EXPECT_THAT(Submit(spec, &job).error_message(), HasSubstr("does not fit"));
  const auto large = Connect("large", 24 * 1024 * kMiB, v1::DEVICE_KIND_CUDA);
  EXPECT_TRUE(Submit(spec, &job).ok());
}

TEST_F(SubmissionCheckTest, AJobIsHeldAgainstTheSlotsOfItsPool) {
  const auto small = Connect("small", 30 * kMiB, v1::DEVICE_KIND_CPU, 0, "old");
  const auto large = Connect("large", 1024 * kMiB, v1::DEVICE_KIND_CPU, 0, "new");
  v1::JobSpec spec = Spec();
  spec.mutable_resources()->set_ranks(1);
  v1::Job job;
  spec.mutable_resources()->set_pool("old");
  EXPECT_THAT(Submit(spec, &job).error_message(), HasSubstr("the largest slot of the workers"));
  spec.mutable_resources()->set_pool("new");
  ASSERT_TRUE(Submit(spec, &job).ok());
  EXPECT_EQ(large->Receive().start_rank().job(), job.name());
  spec.mutable_resources()->set_pool("next");
  EXPECT_TRUE(Submit(spec, &job).ok()) << "its workers may have room once they come";
}

// What is offloaded has to fit into the host's memory, and what fits instead is said.
TEST_F(SubmissionCheckTest, AHostsMemoryCountsToo) {
  v1::JobSpec spec = Spec();
  spec.mutable_resources()->set_device(v1::DEVICE_KIND_CUDA);
  spec.mutable_train()->mutable_offload()->set_optimizer(v1::OFFLOAD_TARGET_HOST);
  v1::Job job;
  const int64_t gpu = 24 * 1024 * kMiB;
  const auto small = Connect("small", gpu, v1::DEVICE_KIND_CUDA, 2 * kMiB);
  EXPECT_THAT(Submit(spec, &job).error_message(),
              AllOf(HasSubstr("does not fit"), HasSubstr("of host memory"), HasSubstr("2.00 MiB")));
  const auto silent = Connect("silent", gpu, v1::DEVICE_KIND_CUDA);
  EXPECT_TRUE(Submit(spec, &job).ok()) << "it may have room";
}

TEST_F(SubmissionCheckTest, TheLargestHostHasRoom) {
  v1::JobSpec spec = Spec();
  spec.mutable_resources()->set_device(v1::DEVICE_KIND_CUDA);
  spec.mutable_train()->mutable_offload()->set_optimizer(v1::OFFLOAD_TARGET_HOST);
  v1::Job job;
  const int64_t gpu = 24 * 1024 * kMiB;
  const auto small = Connect("small", gpu, v1::DEVICE_KIND_CUDA, 2 * kMiB);
  const auto large = Connect("large", gpu, v1::DEVICE_KIND_CUDA, 1024 * kMiB);
  EXPECT_TRUE(Submit(spec, &job).ok());
}

TEST_F(SubmissionCheckTest, AWorkerThatSaysNothingMayHaveRoom) {
  v1::Job job;
  const auto small = Connect("small", 30 * kMiB);
  const auto silent = Connect("silent", 0);
  EXPECT_TRUE(Submit(Spec(), &job).ok());
}

TEST_F(SubmissionCheckTest, AutoIsChosenOnceAndKept) {
  v1::Job job;
  EXPECT_THAT(Submit(AutoSpec(), &job).error_message(), HasSubstr("auto needs to know the memory"));
  std::string name;
  {
    const auto small = Connect("small", 30 * kMiB);
    const auto large = Connect("large", 1024 * kMiB);
    const grpc::Status status = Submit(AutoSpec(), &job, 0, false, "request-1");
    ASSERT_TRUE(status.ok()) << status.error_message();
  }
  EXPECT_FALSE(HasAutoFields(job.spec()));
  EXPECT_TRUE(MicroIsAuto(job.submitted_spec()));
  ASSERT_EQ(job.choices_size(), 2);
  EXPECT_EQ(job.choices(0).field(), "train.batch.micro");
  EXPECT_THAT(job.choices(0).reason(), HasSubstr("the smallest slot of the workers"));
  EXPECT_EQ(job.spec().train().batch().micro() * job.spec().train().batch().accumulation(), 8);
  const std::string digest = SpecDigest(job.spec());
  Start();  // other memory, another process: still what was chosen
  const auto larger = Connect("larger", 4096 * kMiB);
  v1::GetJobRequest get;
  get.set_name(job.name());
  v1::Job stored;
  grpc::ClientContext context;
  ASSERT_TRUE(jobs_->GetJob(&context, get, &stored).ok());
  EXPECT_EQ(SpecDigest(stored.spec()), digest);
  EXPECT_EQ(stored.choices_size(), 2);
  v1::Job again;
  ASSERT_TRUE(Submit(AutoSpec(), &again, 1, false, "request-1").ok());
  EXPECT_EQ(again.name(), job.name());
  EXPECT_EQ(SpecDigest(again.spec()), digest);
}

TEST_F(SubmissionCheckTest, TheCallersWordCountsBeforeWorkersHaveCome) {
  v1::Job job;
  ASSERT_TRUE(Submit(AutoSpec(), &job, 1024 * kMiB, /*validate_only=*/true).ok());
  EXPECT_EQ(job.name(), "");
  EXPECT_EQ(job.spec().train().recompute(), v1::RECOMPUTE_NONE);
  EXPECT_EQ(job.choices_size(), 2);
}

}  // namespace
}  // namespace milepost::coordinator
