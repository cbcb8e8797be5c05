// Every image op of a ResNet's training, evaluation's too, bound by CudaBackend to the device's
// kernels on the host, against the CPU's from the same operands.
#include "engine/runtime/gpu/backend/testing/op_bench.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "common/philox.h"
#include "engine/dtype/half.h"
#include "engine/kernels/cpu/random.h"
#include "engine/kernels/cpu/testing.h"
#include "engine/kernels/cuda/testing/host_graphs.h"
#include "engine/kernels/cuda/testing/host_products.h"
#include "engine/ops/batch_norm/batch_norm_cuda_kernel.h"
#include "engine/ops/classifier/classifier_cuda_kernel.h"
#include "engine/ops/convolution/convolution_cuda.h"
#include "engine/plan/planner/planner.h"
#include "engine/runtime/cpu/cpu_backend.h"
#include "engine/runtime/executor/arena.h"
#include "engine/runtime/gpu/backend/cuda_backend.h"
#include "engine/runtime/gpu/backend/cuda_op.h"
#include "engine/runtime/session/parameter_store.h"
#include "engine/runtime/session/statistics_store.h"
#include "engine/runtime/testing/tiny_images.h"

namespace milepost::runtime {
namespace {

namespace cuda = kernels::cuda;
using graph::OpKind;
using graph::ValueId;

const std::set<OpKind> kImageOps = {OpKind::kNormalizeImages,
                                    OpKind::kConvolution,
                                    OpKind::kBatchNormSums,
                                    OpKind::kReduceStatistics,
                                    OpKind::kBatchNormStatistics,
                                    OpKind::kBatchNormRunning,
                                    OpKind::kBatchNorm,
                                    OpKind::kMaxPool,
                                    OpKind::kAveragePool,
                                    OpKind::kClassifierLoss,
                                    OpKind::kConvolutionBackwardData,
                                    OpKind::kConvolutionBackwardWeights,
                                    OpKind::kBatchNormBackwardSums,
                                    OpKind::kBatchNormBackward,
                                    OpKind::kMaxPoolBackward,
                                    OpKind::kAveragePoolBackward,
                                    OpKind::kClassifierLossBackward};
const std::set<OpKind> kPatchOps = {OpKind::kImagePatches, OpKind::kPatchTokens,
                                    OpKind::kPatchTokensBackward, OpKind::kFirstRows,
                                    OpKind::kFirstRowsBackward};

class ImageBench {
 public:
  explicit ImageBench(const v1::JobSpec& spec)
      : cpu_(1), backend_({.products = &products_, .graphs = &graphs_, .tables = &tables_}) {
    plan::PlanOptions options = *plan::OptionsFromSpec(spec, 1);
    options.device = plan::DeviceKind::kCpu;
    cpu_plan_ = *plan::PlanTraining(spec, options);
    options.min_matmul_workspace_bytes = cpu_.CheckMatmulWorkspace(cpu_plan_)->needed;
    cpu_plan_ = *plan::PlanTraining(spec, options);
    options = *plan::OptionsFromSpec(spec, 1);
    options.device = plan::DeviceKind::kCuda;
    plan_ = *plan::PlanTraining(spec, options);
    cpu_arena_ = std::make_unique<Arena>(*Arena::Allocate(cpu_plan_.arena_bytes));
    arena_ = std::make_unique<Arena>(*Arena::Allocate(plan_.arena_bytes));
    control_ = std::make_unique<kernels::AlignedBuffer>(ControlLayoutOf(plan_, 0).bytes);
    cpu_.Attach(cpu_arena_->data(), nullptr);
    backend_.Attach({.arena = arena_->data(),
                     .control = static_cast<char*>(control_->data()),
                     .update = &decision_});
    EXPECT_EQ(backend_.Prepare(plan_), absl::OkStatus());
    ParameterStore store(cpu_plan_, cpu_plan_.train.graph, cpu_arena_->data(), nullptr);
    store.Initialize(11);
    EXPECT_TRUE(store.RebuildParameters().ok());
    StatisticsStore(cpu_plan_, cpu_plan_.train.graph, cpu_arena_->data(), 0).Initialize();
    Perturb();
    context.gradient_factors = {1.0F / 7, 1.0F / 9};
  }

  bool IsBf16() const { return plan_.options.compute_dtype == DType::kBf16; }

  // The micro-step's ops of a program: `first`: gradients are assigned. CPU's values go on.
  void Run(bool training, bool first) {
    context.first_micro_step = first;
    WriteControl(plan_, 0, ControlLayoutOf(plan_, 0), context, {},
                 static_cast<char*>(control_->data()));
    ours_ = training ? &plan_.train : &plan_.evaluate;
    theirs_ = training ? &cpu_plan_.train : &cpu_plan_.evaluate;
    FillInputs();
    ASSERT_EQ(ours_->ops.size(), theirs_->ops.size());
    for (size_t i = 0; i < ours_->ops.size(); ++i) {
      if (ours_->ops[i].when != plan::When::kEveryMicroStep) continue;
      RunOp(ours_->ops[i], theirs_->ops[i]);
      if (testing::Test::HasFatalFailure()) return;
    }
  }

  StepContext context;
  std::set<OpKind> seen;

 private:
  const graph::Value& ValueOf(ValueId id) const { return ours_->graph.values[id]; }
  int64_t Bytes(ValueId id) const {
    return graph::Elements(ValueOf(id).shape) * ByteSize(ValueOf(id).dtype);
  }
  char* At(ValueId id) const {
    const plan::Place& place = ours_->places[id];
    return arena_->data() + plan_.buffers[place.buffer].offset + place.offset;
  }
  char* CpuAt(ValueId id) const {
    const plan::Place& place = theirs_->places[id];
    return cpu_arena_->data() + cpu_plan_.buffers[place.buffer].offset + place.offset;
  }

  // What the op reads, and what is behind an output that it adds to; other outputs are poisoned,
  // but for those that lie over an input.
  void Copy(const graph::Op& op) const {
    for (const graph::Output& output : op.outputs) {
      if (output.value == graph::kNoValue) continue;
      std::memcpy(At(output.value), CpuAt(output.value), Bytes(output.value));
      const bool adds =
          output.mode == graph::WriteMode::kAccumulate ||
          (output.mode == graph::WriteMode::kAccumulateInStep && !context.first_micro_step) ||
          ValueOf(output.value).kind == graph::ValueKind::kStatistic;
      if (!adds) std::memset(At(output.value), 0xff, Bytes(output.value));
    }
    for (const ValueId id : op.inputs) {
      if (id != graph::kNoValue) std::memcpy(At(id), CpuAt(id), Bytes(id));
    }
  }

  void RunOp(const plan::PlannedOp& ours, const plan::PlannedOp& theirs) {
    SCOPED_TRACE(graph::Name(ours.op.kind));
    const bool of_images = kImageOps.contains(ours.op.kind) || kPatchOps.contains(ours.op.kind);
    if (of_images) {
      Copy(ours.op);
      auto bound = backend_.Bind(plan_, *ours_, ours);
      ASSERT_EQ(bound.status(), absl::OkStatus());
      ASSERT_EQ((*bound)(context), absl::OkStatus());
      seen.insert(ours.op.kind);
    }
    auto bound = cpu_.Bind(cpu_plan_, *theirs_, theirs);
    ASSERT_EQ(bound.status(), absl::OkStatus());
    ASSERT_EQ((*bound)(context), absl::OkStatus());
    if (!of_images) return;
    for (const graph::Output& output : ours.op.outputs) {
      if (output.value != graph::kNoValue) ExpectSame(ours.op.kind, output.value);
    }
  }

  // Relative to the largest: what is not the CPU's to the bit. Sums have another order; what is
  // made of 16-bit sums differs by one rounding; weights' gradients come in the inputs' type.
  double Tolerance(OpKind kind, ValueId id) const {
    const bool rounded = ValueOf(id).dtype == DType::kBf16;
    switch (kind) {
      case OpKind::kBatchNormSums:
      case OpKind::kBatchNormBackwardSums:
        return rounded ? 0 : 2e-6;
      case OpKind::kConvolutionBackwardWeights:
        return IsBf16() ? 1.0 / 128 : 1e-6;
      case OpKind::kAveragePool:
        return rounded ? 1.0 / 128 : 1e-6;
      case OpKind::kClassifierLoss:
      case OpKind::kClassifierLossBackward:
        return rounded ? 1.0 / 128 : 2e-6;
      default:
        return 0;
    }
  }

  double Element(const char* data, DType dtype, int64_t i) const {
    switch (dtype) {
      case DType::kF32:
        return reinterpret_cast<const float*>(data)[i];
      case DType::kF64:
        return reinterpret_cast<const double*>(data)[i];
      case DType::kBf16:
        return ToFloat(reinterpret_cast<const bf16*>(data)[i]);
      default:
        ADD_FAILURE() << Name(dtype);
        return 0;
    }
  }

  void ExpectSame(OpKind kind, ValueId id) const {
    const double tolerance = Tolerance(kind, id);
    if (tolerance == 0) {
      EXPECT_EQ(std::memcmp(At(id), CpuAt(id), Bytes(id)), 0) << ValueOf(id).name;
      return;
    }
    const DType dtype = ValueOf(id).dtype;
    const int64_t n = graph::Elements(ValueOf(id).shape);
    double largest = 0;
    for (int64_t i = 0; i < n; ++i) {
      largest = std::max(largest, std::abs(Element(CpuAt(id), dtype, i)));
    }
    for (int64_t i = 0; i < n; ++i) {
      ASSERT_NEAR(Element(At(id), dtype, i), Element(CpuAt(id), dtype, i), tolerance * largest)
          << ValueOf(id).name << " at " << i;
    }
  }

  // Gains are 1 and biases 0 at first: values that would show a mix-up instead.
  void Perturb() {
    theirs_ = &cpu_plan_.train;
    ours_ = &plan_.train;
    for (const graph::Parameter& parameter : theirs_->graph.parameters) {
      const int64_t n = graph::Elements(ValueOf(parameter.value).shape);
      std::vector<float> noise(static_cast<size_t>(n));
      kernels::NormalInit(noise.data(), n, 0, 0.2F, 3, static_cast<uint64_t>(parameter.value), 0);
      for (int64_t i = 0; i < n; ++i) {
        if (IsBf16()) {
          auto* data = reinterpret_cast<bf16*>(CpuAt(parameter.value));
          data[i] = ToBf16(ToFloat(data[i]) + noise[i]);
        } else {
          reinterpret_cast<float*>(CpuAt(parameter.value))[i] += noise[i];
        }
      }
    }
  }

  void FillInputs() const {
    const graph::Graph& graph = ours_->graph;
    const ValueId images = graph.Input("images");
    for (int64_t i = 0; i < Bytes(images); ++i) {
      CpuAt(images)[i] =
          static_cast<char>(Philox4x32({static_cast<uint32_t>(i), 0, 0, 0}, PhiloxKey(1, 1))[0]);
    }
    auto* targets = reinterpret_cast<int32_t*>(CpuAt(graph.Input("targets")));
    for (int64_t i = 0; i < plan_.options.micro_batch; ++i) {
      targets[i] = i == 1 ? -1 : static_cast<int32_t>(i % TinyImages::kClasses);
    }
    const ValueId shades = graph.Input("labels.shade");
    for (int64_t i = 0; shades != graph::kNoValue && i < plan_.options.micro_batch; ++i) {
      reinterpret_cast<int32_t*>(CpuAt(shades))[i] = i == 2 ? -1 : static_cast<int32_t>(i % 3);
    }
  }

  CpuBackend cpu_;
  cuda::HostProducts products_;
  cuda::HostGraphs graphs_;
  HostTables tables_;
  CudaBackend backend_;
  plan::StepPlan plan_, cpu_plan_;
  std::unique_ptr<Arena> arena_, cpu_arena_;
  std::unique_ptr<kernels::AlignedBuffer> control_;
  alignas(8) cuda::UpdateControl decision_;
  const plan::Program* ours_ = nullptr;
  const plan::Program* theirs_ = nullptr;
};

TEST(CudaImageOps, AreTheCpus) {
  TinyImages job;
  for (const v1::Precision precision : {v1::PRECISION_FP32, v1::PRECISION_BF16}) {
    for (const bool bottleneck : {true, false}) {
      v1::JobSpec spec = job.Spec({.precision = precision,
                                   .global_batch = 4,
                                   .micro_batch = 4,
                                   .bottleneck = bottleneck,
                                   .sync = bottleneck,
                                   .heads = !bottleneck});
      spec.mutable_model()->mutable_resnet()->set_image_size(16);
      SCOPED_TRACE(testing::Message()
                   << v1::Precision_Name(precision) << ", bottleneck " << bottleneck);
      ImageBench bench(spec);
      for (const bool first : {true, false}) bench.Run(/*training=*/true, first);
      bench.Run(/*training=*/false, true);
      EXPECT_EQ(bench.seen.size(), kImageOps.size() - (bottleneck ? 0 : 1));
    }
  }
}

TEST(CudaImageOps, OfPatchesAreTheCpus) {
  TinyImages job;
  for (const v1::Precision precision : {v1::PRECISION_FP32, v1::PRECISION_BF16}) {
    ImageBench bench(job.Spec(
        {.precision = precision, .global_batch = 4, .micro_batch = 4, .heads = true, .vit = true}));
    for (const bool first : {true, false}) bench.Run(/*training=*/true, first);
    bench.Run(/*training=*/false, true);
    for (const OpKind kind : kPatchOps) EXPECT_TRUE(bench.seen.contains(kind)) << Name(kind);
  }
}

// At real sizes the planner's model is the kernels' own.
TEST(CudaImageOps, ThePlannerKnowsWorkspaces) {
  TinyImages job;
  for (const v1::Precision precision : {v1::PRECISION_FP32, v1::PRECISION_BF16}) {
    for (const int64_t batch : {2, 96}) {
      v1::JobSpec spec =
          job.Spec({.precision = precision, .global_batch = batch, .micro_batch = batch});
      v1::ResNetSpec resnet;
      resnet.set_depth(50);
      resnet.set_classes(1000);
      *spec.mutable_model()->mutable_resnet() = resnet;
      NormalizeJobSpec(&spec);
      plan::PlanOptions options = *plan::OptionsFromSpec(spec, 1);
      options.device = plan::DeviceKind::kCuda;
      const plan::StepPlan plan = *plan::PlanTraining(spec, options);
      int seen = 0;
      for (const plan::PlannedOp& planned : plan.train.ops) {
        const OpKind kind = planned.op.kind;
        const graph::Shape* x = planned.op.inputs.empty()
                                    ? nullptr
                                    : &plan.train.graph.values[planned.op.inputs[0]].shape;
        if (kind == OpKind::kBatchNormSums || kind == OpKind::kBatchNormBackwardSums) {
          const int64_t rows = graph::Elements(*x) / (*x)[3];
          EXPECT_EQ(planned.workspace_bytes,
                    DeviceAligned(cuda::BatchNormWorkspaceBytes(rows, (*x)[3])));
          ++seen;
        } else if (kind == OpKind::kClassifierLossBackward) {
          EXPECT_EQ(planned.workspace_bytes,
                    DeviceAligned(cuda::ClassifierWorkspaceBytes((*x)[0])));
          ++seen;
        } else if (kind == OpKind::kConvolutionBackwardWeights) {
          EXPECT_GT(planned.workspace_bytes,
                    ops::gpu::ConvolutionBytesBeforeScratch(plan.train.graph, planned.op));
          ++seen;
        }
      }
      EXPECT_EQ(seen, 53 * 3 + 1);
    }
  }
}

}  // namespace
}  // namespace milepost::runtime
