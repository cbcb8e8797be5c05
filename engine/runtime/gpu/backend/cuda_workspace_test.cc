// The planner's model of workspaces is the kernels' own, and what libraries want beyond it is said.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <set>
#include <utility>

#include "engine/comm/in_process.h"
#include "engine/kernels/cuda/testing/host_graphs.h"
#include "engine/kernels/cuda/testing/host_products.h"
#include "engine/ops/attention/attention_cuda.h"
#include "engine/ops/attention/attention_cuda_kernel.h"
#include "engine/ops/compression/compression_cuda_kernel.h"
#include "engine/ops/embedding/embedding_cuda_kernel.h"
#include "engine/ops/linear/linear_contract.h"
#include "engine/ops/norm/norm_cuda_kernel.h"
#include "engine/ops/qk_norm/qk_norm_cuda_kernel.h"
#include "engine/plan/cuda_beside.h"
#include "engine/plan/planner/planner.h"
#include "engine/runtime/gpu/backend/cuda_backend.h"
#include "engine/runtime/gpu/backend/cuda_op.h"
#include "engine/runtime/gpu/backend/cuda_step_engine.h"
#include "engine/runtime/gpu/device/testing/fake_device.h"
#include "engine/runtime/session/training_session.h"
#include "engine/runtime/testing/tiny_job.h"

namespace milepost::runtime {
namespace {

using graph::OpKind;
using ::testing::AllOf;
using ::testing::HasSubstr;
namespace cuda = kernels::cuda;

plan::StepPlan PlanOf(const TinyJob& job, const TinyOptions& options, int64_t sequence,
                      plan::PlanOptions* used = nullptr) {
  v1::JobSpec spec = job.Spec(options);
  v1::ModelSpec* model = spec.mutable_model();
  if (model->has_llama()) model->mutable_llama()->set_context(sequence);
  if (model->has_gpt2()) model->mutable_gpt2()->set_context(sequence);
  if (model->has_bert()) model->mutable_bert()->set_context(sequence);
  plan::PlanOptions plan_options = *plan::OptionsFromSpec(spec, 1);
  plan_options.device = plan::DeviceKind::kCuda;
  plan_options.sequence = sequence;
  plan_options.lm_head_chunk_bytes = 200 * TinyJob::kVocabulary * 2;
  if (used != nullptr)
    plan_options.min_attention_workspace_bytes = used->min_attention_workspace_bytes;
  if (used != nullptr) *used = plan_options;
  auto plan = plan::PlanTraining(spec, plan_options);
  EXPECT_TRUE(plan.ok()) << plan.status();
  return *std::move(plan);
}

// What the kernels of one op ask for; -1: not compared.
int64_t AskedFor(const plan::StepPlan& plan, const plan::Program& program, const graph::Op& op) {
  const auto shape = [&](int input) { return program.graph.values[op.inputs[input]].shape; };
  switch (op.kind) {
    case OpKind::kEmbeddingBackward:
      return cuda::EmbeddingBackwardWorkspaceBytes(shape(1)[0], shape(1)[1]);
    case OpKind::kLayerNormBackward:
    case OpKind::kResidualLayerNormBackward:
    case OpKind::kRmsNormBackward:
      return cuda::NormBackwardWorkspaceBytes(shape(0)[0], shape(0)[1]);
    case OpKind::kWideQkNormBackward:
      return cuda::NormBackwardWorkspaceBytes(shape(0)[0], shape(1)[0]);
    case OpKind::kQkNormBackward:
      return cuda::QkNormBackwardWorkspaceBytes({.rows = shape(0)[0],
                                                 .heads = op.attributes.heads,
                                                 .kv_heads = op.attributes.kv_heads,
                                                 .head_dim = shape(1)[0]});
    case OpKind::kAttention:
      return 0;
    case OpKind::kAttentionBackward:
      return cuda::AttentionWorkspaceBytes(ops::gpu::AttentionGraphOf(program.graph, op).shape);
    case OpKind::kLinear:
    case OpKind::kLinearBackwardInput:
    case OpKind::kLinearBackwardWeight:
    case OpKind::kLmHeadLoss:
    case OpKind::kLmHeadLossBackward:
      return plan::BytesBeforeScratch(program.graph, plan.groups, op, plan.options) +
             kernels::cuda::kProductScratchBytes;
    default:
      return -1;
  }
}

TEST(CudaWorkspace, IsTheKernelsOwn) {
  const TinyJob job;
  std::set<OpKind> seen;
  const TinyOptions shapes[] = {
      {.micro_batch = 3},
      {.global_batch = 40, .micro_batch = 40, .llama = true, .qkv_bias = true},
      {.micro_batch = 1, .llama = true, .qk_norm = true},
      {.micro_batch = 1, .llama = true, .olmo3 = true},
      {.micro_batch = 2, .bert = true, .heads = true}};
  for (const TinyOptions& options : shapes) {
    const plan::StepPlan plan = PlanOf(job, options, 300);
    for (const plan::Program* program : {&plan.train, &plan.evaluate}) {
      for (const plan::PlannedOp& planned : program->ops) {
        const int64_t asked = AskedFor(plan, *program, planned.op);
        if (asked < 0) continue;
        EXPECT_EQ(planned.workspace_bytes, DeviceAligned(asked)) << graph::Name(planned.op.kind);
        seen.insert(planned.op.kind);
      }
    }
    for (const plan::Buffer& buffer : plan.buffers) EXPECT_EQ(buffer.offset % 256, 0);
  }
  EXPECT_EQ(seen.size(), 13U);
}

// With documents the library is planned for where it takes them: heads 16 wide, not 8, nor fp32.
TEST(CudaWorkspace, DocumentsAreTheLibrarysWhereItTakesThem) {
  const TinyJob job;
  const auto forward_bytes = [&](int64_t width, v1::Precision precision) {
    const plan::StepPlan plan =
        PlanOf(job, {.precision = precision, .width = width, .documents = true}, 24);
    for (const plan::PlannedOp& planned : plan.train.ops) {
      if (planned.op.kind == OpKind::kAttention) return planned.workspace_bytes;
    }
    return int64_t{-1};
  };
  EXPECT_GE(forward_bytes(64, v1::PRECISION_BF16), 1 << 20);
  EXPECT_EQ(forward_bytes(32, v1::PRECISION_BF16), 0);
  EXPECT_EQ(forward_bytes(64, v1::PRECISION_FP32), 0);
}

TEST(CudaWorkspace, WhatALibraryWantsBeyondItIsSaid) {
  const TinyJob job;
  const TinyOptions options = {.precision = v1::PRECISION_BF16};
  plan::PlanOptions used;
  const plan::StepPlan plan = PlanOf(job, options, 24, &used);
  cuda::HostProducts products;
  cuda::HostGraphs graphs({.attention = true, .workspace_bytes = int64_t{3} << 20});
  CudaBackend backend({.products = &products, .graphs = &graphs});
  CudaScratch needed;
  const absl::Status status = backend.Prepare(plan, &needed);
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("h.0.attn"), HasSubstr("3145728 bytes")));
  EXPECT_EQ(needed.attention, int64_t{3} << 20);
  used.min_attention_workspace_bytes = needed.attention;
  EXPECT_EQ(backend.Prepare(PlanOf(job, options, 24, &used)), absl::OkStatus());

  cuda::HostProducts greedy(kernels::cuda::kProductScratchBytes + 256);
  CudaBackend other({.products = &greedy});
  EXPECT_TRUE(absl::IsResourceExhausted(other.Prepare(plan)));
}

TEST(CudaWorkspace, ASessionPlansAgainForWhatALibraryWants) {
  const TinyJob job;
  const v1::JobSpec spec = job.Spec({.stage = 0,
                                     .precision = v1::PRECISION_BF16,
                                     .global_batch = 1,
                                     .micro_batch = 1,
                                     .layers = 1,
                                     .steps = 1});
  constexpr int64_t kWanted = int64_t{5} << 20;
  const auto group = comm::MakeInProcessGroup(1);
  cuda::HostGraphs* graphs = nullptr;
  SessionOptions options;
  options.engine = [&](const StepEngineArguments& arguments) {
    CudaEngineParts parts;
    parts.device = std::make_unique<FakeDevice>(/*seed=*/3);
    parts.products = std::make_unique<cuda::HostProducts>();
    auto made = std::make_unique<cuda::HostGraphs>(
        cuda::HostGraphsOptions{.attention = true, .workspace_bytes = kWanted});
    graphs = made.get();
    parts.graphs = std::move(made);
    return CudaStepEngine(arguments, std::move(parts));
  };
  auto session = TrainingSession::Create(spec, options, group[0].get());
  ASSERT_TRUE(session.ok()) << session.status();
  ASSERT_EQ((*session)->InitializeParameters(), absl::OkStatus());
  EXPECT_EQ((*session)->Step(false).status(), absl::OkStatus());
  EXPECT_EQ(graphs->attention_calls(), 2);
}

// The arena as planned, and beside it no more than a plan says.
TEST(CudaWorkspace, AllOfTheDevicesMemoryIsAccountedFor) {
  static_assert(sizeof(StepControl) <= 512 && sizeof(cuda::SegmentFactors) <= 64);
  static_assert(sizeof(cuda::FactorRows) <= 32 && sizeof(cuda::CopiedTensor) <= 24);
  const TinyJob job;
  std::vector<TinyOptions> cases = {{.layers = 1, .documents = true}, {.layers = 2, .llama = true}};
  cases.push_back({.layers = 3, .width = 640});  // tables of more than one chunk
  cases.push_back({.layers = 8, .llama = true, .experts = 90});
  for (const TinyOptions& which : cases) {
    for (const auto optimizer : {v1::OptimizerSpec::TYPE_ADAMW, v1::OptimizerSpec::TYPE_LAMB}) {
      v1::JobSpec spec = job.Spec(which);
      spec.mutable_train()->mutable_optimizer()->set_type(optimizer);
      const auto group = comm::MakeInProcessGroup(1);
      const FakeDevice* device = nullptr;
      SessionOptions options;
      options.engine = [&](const StepEngineArguments& arguments) {
        CudaEngineParts parts;
        auto made = std::make_unique<FakeDevice>(/*seed=*/3);
        device = made.get();
        parts.device = std::move(made);
        parts.products = std::make_unique<cuda::HostProducts>();
        parts.graphs = std::make_unique<cuda::HostGraphs>();
        return CudaStepEngine(arguments, std::move(parts));
      };
      auto session = TrainingSession::Create(spec, options, group[0].get());
      ASSERT_TRUE(session.ok()) << session.status();
      const int64_t beside = (*session)->beside_bytes();
      EXPECT_EQ((*session)->allocated_bytes(), (*session)->plan().arena_bytes);
      EXPECT_EQ(device->allocated_bytes(), (*session)->allocated_bytes() + beside);
      EXPECT_GT(beside, 0);
      EXPECT_LE(beside, plan::CudaBesideBytes((*session)->plan()));
      EXPECT_LE(plan::CudaBesideBytes((*session)->plan()), 2 * beside + (512 << 10));
    }
  }
}

}  // namespace
}  // namespace milepost::runtime
