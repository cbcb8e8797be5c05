#include "engine/runtime/gpu/backend/diff_engine.h"
#include "engine/ops/linear/linear_contract.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/spec/validate.h"
#include "engine/comm/in_process.h"
#include "engine/kernels/cuda/testing/host_graphs.h"
#include "engine/kernels/cuda/testing/host_products.h"
#include "engine/runtime/gpu/device/testing/fake_device.h"
#include "engine/runtime/testing/tiny_images.h"
#include "engine/runtime/testing/tiny_job.h"

namespace milepost::runtime {
namespace {

using graph::OpKind;
using ::testing::AllOf;
using ::testing::HasSubstr;

using Products = std::unique_ptr<kernels::cuda::DeviceProducts>;

Products RightProducts() {
  return std::make_unique<kernels::cuda::HostProducts>(kernels::cuda::kProductScratchBytes);
}

// Of every op of two steps.
std::vector<OpDiff> Diffs(
    const v1::JobSpec& spec, Products products = RightProducts(),
    const kernels::cuda::HostGraphsOptions& graphs = {},
    std::unique_ptr<Device> device = std::make_unique<FakeDevice>(/*seed=*/7)) {
  std::vector<OpDiff> diffs;
  const auto group = comm::MakeInProcessGroup(1);
  SessionOptions options;
  options.engine = [&](const StepEngineArguments& arguments) {
    CudaEngineParts parts;
    parts.device = std::move(device);
    parts.products = std::move(products);
    parts.graphs = std::make_unique<kernels::cuda::HostGraphs>(graphs);
    return DiffEngine(arguments, std::move(parts), [&](const OpDiff& op) { diffs.push_back(op); });
  };
  auto session = TrainingSession::Create(spec, options, group[0].get());
  EXPECT_TRUE(session.ok()) << session.status();
  if (!session.ok()) return diffs;
  EXPECT_EQ((*session)->InitializeParameters(), absl::OkStatus());
  for (int step = 0; step < 2; ++step) {
    const auto report = (*session)->Step(false);
    EXPECT_TRUE(report.ok()) << report.status();
  }
  return diffs;
}

void ExpectAlike(const std::vector<OpDiff>& diffs) {
  EXPECT_FALSE(diffs.empty());
  for (const OpDiff& op : diffs) EXPECT_FALSE(op.Differs()) << Describe(op);
}

// Two micro-steps: what is assigned in the first is added to in the second.
TinyOptions Tiny(TinyOptions options) {
  options.layers = 1;
  options.micro_batch = 2;
  options.global_batch = 4;
  return options;
}

TEST(DiffEngine, EveryOpOfEveryFamilyIsTheCpus) {
  const TinyJob job;
  for (const TinyOptions& tiny :
       {TinyOptions{.precision = v1::PRECISION_FP32, .dropout = 0.25},
        TinyOptions{.precision = v1::PRECISION_BF16, .llama = true, .qk_norm = true},
        TinyOptions{.precision = v1::PRECISION_BF16, .llama = true, .gemma3 = true},
        TinyOptions{.precision = v1::PRECISION_BF16, .llama = true, .olmo3 = true},
        TinyOptions{.precision = v1::PRECISION_BF16,
        .llama = true,
        .activation = v1::LlamaSpec::ACTIVATION_GEGLU},
        TinyOptions{.precision = v1::PRECISION_FP16, .bert = true},
        TinyOptions{.precision = v1::PRECISION_FP8, .llama = true},
        TinyOptions{.precision = v1::PRECISION_BF16, .documents = true}}) {
    const std::vector<OpDiff> diffs = Diffs(job.Spec(Tiny(tiny)));
    ExpectAlike(diffs);
    std::set<OpKind> kinds;
    for (const OpDiff& op : diffs) kinds.insert(op.kind);
    EXPECT_TRUE(kinds.contains(OpKind::kReduceScalars) && kinds.contains(OpKind::kOptimizer));
    EXPECT_GT(kinds.size(), 12u);
  }
}

TEST(DiffEngine, EveryOpOfAResNetIsTheCpus) {
  const TinyImages job;
  for (const v1::Precision precision : {v1::PRECISION_FP32, v1::PRECISION_BF16}) {
    v1::JobSpec spec = job.Spec({.precision = precision, .global_batch = 8, .micro_batch = 4});
    spec.mutable_model()->mutable_resnet()->set_image_size(16);
    ExpectAlike(Diffs(spec));
  }
}

TEST(DiffEngine, UpdatesOfEveryOptimizerAreTheCpus) {
  const TinyJob job;
  for (const auto type : {v1::OptimizerSpec::TYPE_SGD, v1::OptimizerSpec::TYPE_LION,
                          v1::OptimizerSpec::TYPE_ADAN, v1::OptimizerSpec::TYPE_LAMB,
                          v1::OptimizerSpec::TYPE_MUON, v1::OptimizerSpec::TYPE_ADAMW_8BIT}) {
    v1::JobSpec spec = job.Spec(Tiny({.precision = v1::PRECISION_BF16}));
    spec.mutable_train()->mutable_optimizer()->set_type(type);
    ExpectAlike(Diffs(spec));
    if (type != v1::OptimizerSpec::TYPE_MUON) continue;
    spec.mutable_train()->mutable_optimizer()->set_orthogonalization(v1::ORTHOGONALIZATION_BF16);
    ExpectAlike(Diffs(spec));
  }
}

TEST(DiffEngine, FactorsOfGradientsAreTheCpus) {
  const TinyJob job;
  for (const bool warm : {true, false}) {
    TinyOptions tiny = Tiny({.precision = v1::PRECISION_FP32});
    tiny.stage = 0;
    v1::JobSpec spec = job.Spec(tiny);
    v1::PowerSgdSpec* powersgd = spec.mutable_train()->mutable_powersgd();
    powersgd->set_rank(3);
    powersgd->set_start_step(0);
    powersgd->set_warm_start(warm);
    NormalizeJobSpec(&spec);
    const std::vector<OpDiff> diffs = Diffs(spec);
    ExpectAlike(diffs);
    EXPECT_TRUE(std::any_of(diffs.begin(), diffs.end(),
                            [](const OpDiff& op) { return op.kind == OpKind::kExpandGradients; }));
  }
}

TEST(DiffEngine, MicroBatchesSideBySideAreComparedInTurn) {
  const TinyJob job;
  v1::JobSpec spec = job.Spec(Tiny({.precision = v1::PRECISION_FP32, .documents = true}));
  spec.mutable_train()->mutable_batch()->set_side_by_side(2);
  NormalizeJobSpec(&spec);
  ASSERT_EQ(ValidateJobSpec(spec), absl::OkStatus());
  ExpectAlike(Diffs(spec));
}

TEST(DiffEngine, UpdatesInFewerBitsAreTheCpus) {
  const TinyJob job;
  for (const auto type : {v1::OptimizerSpec::TYPE_ADAMW, v1::OptimizerSpec::TYPE_ADAMW_8BIT}) {
    TinyOptions tiny = Tiny({.precision = v1::PRECISION_BF16});
    tiny.global_batch = 2;
    v1::JobSpec spec = job.Spec(tiny);
    spec.mutable_train()->mutable_optimizer()->set_type(type);
    spec.mutable_train()->mutable_optimizer()->set_master(v1::MASTER_DTYPE_NONE);
    spec.mutable_train()->set_grad_dtype(v1::GRAD_DTYPE_BF16);
    const std::vector<OpDiff> diffs = Diffs(spec);
    ExpectAlike(diffs);
    EXPECT_TRUE(std::any_of(diffs.begin(), diffs.end(),
                            [](const OpDiff& op) { return op.kind == OpKind::kRoundGradients; }));
  }
}

// A library's attention keeps what the backward needs in another form than the CPU does.
TEST(DiffEngine, DocumentsOfALibrarysAttention) {
  const TinyJob job;
  v1::JobSpec spec = job.Spec(Tiny({.precision = v1::PRECISION_BF16, .documents = true}));
  ExpectAlike(Diffs(spec, RightProducts(), {.attention = true}));
}

// Makes one element of one kind of product wrong, a little.
class WrongProducts : public kernels::cuda::HostProducts {
 public:
  explicit WrongProducts(std::function<bool(const kernels::cuda::Product&)> is_wrong)
      : HostProducts(kernels::cuda::kProductScratchBytes), is_wrong_(std::move(is_wrong)) {}
  absl::Status Execute(const kernels::cuda::Product& product,
                       const kernels::cuda::ProductArguments& arguments, void* workspace,
                       CUstream_st* stream) override {
    const absl::Status status = HostProducts::Execute(product, arguments, workspace, stream);
    if (is_wrong_(product)) static_cast<float*>(arguments.c)[13] += 0.5F;
    return status;
  }

 private:
  const std::function<bool(const kernels::cuda::Product&)> is_wrong_;
};

TEST(DiffEngine, NamesTheOpThatIsWrongAndNoOther) {
  const TinyJob job;
  const v1::JobSpec spec = job.Spec(Tiny({.precision = v1::PRECISION_FP32}));
  const int64_t width = spec.model().gpt2().width();
  // The second product of the MLP, in the forward: of a width that only it has.
  const auto is_wrong = [&](const kernels::cuda::Product& product) {
    return product.spec.k == 4 * width && product.spec.n == width && !product.spec.accumulate &&
           !product.spec.transpose_a && !product.spec.transpose_b;
  };
  int wrong = 0;
  for (const OpDiff& op : Diffs(spec, std::make_unique<WrongProducts>(is_wrong))) {
    if (!op.Differs()) continue;
    ++wrong;
    EXPECT_EQ(op.kind, OpKind::kLinear);
    EXPECT_EQ(op.phase, graph::Phase::kForward);
    ASSERT_EQ(op.results.size(), 1u);
    EXPECT_EQ(op.results[0].diff.worst, 13);
    EXPECT_NEAR(op.results[0].diff.device - op.results[0].diff.cpu, 0.5, 1e-5);
    EXPECT_THAT(Describe(op), AllOf(HasSubstr("mlp.c_proj"), HasSubstr("DIFFERS"),
                                    HasSubstr("worst at [0,13]"), HasSubstr("rms")));
    EXPECT_THAT(Line(op), HasSubstr("DIFFERS"));
  }
  EXPECT_EQ(wrong, 4);  // two steps of two micro-steps
}

TEST(DiffEngine, WhatIsOffloadedIsRefused) {
  const TinyJob job;
  const auto refused = [&](const v1::JobSpec& spec, comm::Communicator* communicator) {
    SessionOptions options;
    options.engine = [&](const StepEngineArguments& arguments) {
      CudaEngineParts parts;
      parts.device = std::make_unique<FakeDevice>(/*seed=*/7);
      parts.products = RightProducts();
      parts.graphs = std::make_unique<kernels::cuda::HostGraphs>();
      return DiffEngine(arguments, std::move(parts), [](const OpDiff&) {});
    };
    return std::string(TrainingSession::Create(spec, options, communicator).status().message());
  };
  v1::JobSpec spec = job.Spec(Tiny({}));
  spec.mutable_train()->mutable_offload()->set_optimizer(v1::OFFLOAD_TARGET_HOST);
  EXPECT_THAT(refused(spec, comm::MakeInProcessGroup(1)[0].get()), HasSubstr("train.offload"));
}

TEST(DiffEngine, NamesAnUpdateThatDoesNothing) {
  // A device whose parameters stay as they are: the optimizer's op is not issued.
  class Idle : public FakeDevice {
   public:
    using FakeDevice::FakeDevice;
    absl::Status Enqueue(StreamId stream, Work work) override {
      if (work.name == graph::Name(OpKind::kOptimizer)) return absl::OkStatus();
      return FakeDevice::Enqueue(stream, std::move(work));
    }
  };
  const TinyJob job;
  v1::JobSpec spec = job.Spec(Tiny({.precision = v1::PRECISION_BF16}));
  spec.mutable_train()->mutable_schedule()->set_warmup_steps(0);
  std::set<OpKind> wrong;
  for (const OpDiff& op : Diffs(spec, RightProducts(), {}, std::make_unique<Idle>(/*seed=*/7))) {
    if (!op.Differs()) continue;
    wrong.insert(op.kind);
    for (const OpDiff::Result& result : op.results) EXPECT_TRUE(result.Differs()) << Describe(op);
  }
  EXPECT_EQ(wrong, std::set<OpKind>{OpKind::kOptimizer});
}

// cuBLASLt rounds a product before it adds to 16 bits, which the CPU does not.
TEST(OpDiff, WhatAddsTo16BitsIsRoundedOnceMore) {
  graph::Op op = {.kind = OpKind::kLinearBackwardInput, .inputs = {1, 2}};
  op.attributes.parts = 1;
  const auto error = [&op](DType dtype) {
    return BoundsOf(op, dtype, dtype, /*elements=*/1 << 20, /*changed=*/false).error;
  };
  EXPECT_EQ(error(DType::kBf16), 1.5e-3);
  op.inputs.push_back(3);
  EXPECT_EQ(error(DType::kBf16), 0x1p-8);
  EXPECT_EQ(error(DType::kF32), 1e-5);
  op.attributes.fp8 = true;  // codes and scalings of both
  op.inputs = {1, 2, 3, 4};
  EXPECT_EQ(error(DType::kBf16), 1.5e-3);
  op.inputs.push_back(5);
  EXPECT_EQ(error(DType::kBf16), 0x1p-8);
}

constexpr DiffBounds kBounds = {.error = 1e-3, .of_rms = 0.1, .of_own = 0.1};

TEST(OpDiff, ErrorsAreOfTheNormAndWhatIsNoNumberIsFarAway) {
  const std::vector<float> cpu = {3, 0, 4, 0}, device = {3, 0, 4.5, 0};
  const auto compare = [&](const std::vector<float>& a, const std::vector<float>& b,
                           const DiffOptions& options = {.bounds = kBounds}) {
    return Compare(DType::kF32, a.data(), b.data(), static_cast<int64_t>(a.size()), options);
  };
  const TensorDiff diff = compare(cpu, device);
  EXPECT_DOUBLE_EQ(diff.error, 0.1);
  EXPECT_EQ(diff.worst, 2);
  EXPECT_EQ(diff.cpu, 4);
  EXPECT_EQ(diff.device, 4.5);
  EXPECT_DOUBLE_EQ(compare(cpu, device, {.bounds = kBounds, .least_norm = 50}).error, 0.01);
  const float none = std::numeric_limits<float>::quiet_NaN();
  const float endless = std::numeric_limits<float>::infinity();
  const std::vector<float> unwritten = {3, none, 4, 0};
  EXPECT_EQ(compare(cpu, unwritten).error, endless);
  EXPECT_EQ(compare(unwritten, unwritten).error, 0);
  const std::vector<float> masked = {1, -endless};
  EXPECT_EQ(compare(masked, masked).error, 0);
  // One of very many, and a change that is not made.
  std::vector<float> many(1 << 20, 1), other = many;
  other[77'777] = 3;
  EXPECT_LT(compare(many, other).error, 2e-3);
  EXPECT_GT(compare(many, other).outlier, 1);
  EXPECT_EQ(compare(many, other).worst, 77'777);
  const std::vector<float> before = {1, 1}, after = {1.001F, 0.999F};
  EXPECT_LT(compare(after, before).error, 2e-3);
  EXPECT_DOUBLE_EQ(compare(after, before, {.bounds = kBounds, .before = before.data()}).error, 1);
  const Statistics statistics = StatisticsOf(DType::kF32, unwritten.data(), 4);
  EXPECT_EQ(statistics.not_numbers, 1);
  EXPECT_EQ(statistics.least, 0);
  EXPECT_EQ(statistics.most, 4);
  EXPECT_NEAR(statistics.rms, 5 / std::sqrt(3.0), 1e-12);
}

}  // namespace
}  // namespace milepost::runtime
