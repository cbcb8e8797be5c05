// Every op of a ResNet's training, and of a ViT's, bound to its kernels in a planned arena, against
// the fp64 reference; and the workspaces that the planner expects of convolutions.
#include "engine/runtime/testing/tiny_images.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "common/philox.h"
#include "common/spec/validate.h"
#include "engine/dtype/half.h"
#include "engine/kernels/cpu/random.h"
#include "engine/ops/reference/reference_interpreter.h"
#include "engine/plan/planner/planner.h"
#include "engine/runtime/cpu/cpu_backend.h"
#include "engine/runtime/executor/arena.h"
#include "engine/runtime/session/parameter_store.h"
#include "engine/runtime/session/statistics_store.h"
#include "gtest/gtest.h"

namespace milepost::runtime {
namespace {

using graph::OpKind;
using graph::ValueId;

// ||a - b|| / ||b||.
double ImageError(const std::vector<double>& actual, const std::vector<double>& wanted) {
  double difference = 0;
  double norm = 0;
  for (size_t i = 0; i < wanted.size(); ++i) {
    difference += (actual[i] - wanted[i]) * (actual[i] - wanted[i]);
    norm += wanted[i] * wanted[i];
  }
  return std::sqrt(difference / std::max(norm, 1e-30));
}

class ImageBench {
 public:
  ImageBench(const v1::JobSpec& spec, int threads) : backend(threads) {
    plan::PlanOptions options = *plan::OptionsFromSpec(spec, threads);
    plan = *plan::PlanTraining(spec, options);
    const auto workspace = backend.CheckMatmulWorkspace(plan);
    EXPECT_EQ(workspace->convolution, 0) << "the planner's model of oneDNN's scratch falls short";
    options.min_matmul_workspace_bytes = workspace->needed;
    plan = *plan::PlanTraining(spec, options);
    arena = std::make_unique<Arena>(*Arena::Allocate(plan.arena_bytes));
    backend.Attach(arena->data(), nullptr);
    ParameterStore store(plan, graph(), arena->data(), nullptr);
    store.Initialize(11);
    EXPECT_TRUE(store.RebuildParameters().ok());
    StatisticsStore(plan, graph(), arena->data(), 0).Initialize();
    Perturb();
    FillInputs();
    reference = std::make_unique<graph::ReferenceInterpreter>(graph());
    for (size_t head = 0; head < graph().losses.size(); ++head) {
      context.gradient_factors[head] = kScale * static_cast<float>(graph().losses[head].weight);
    }
  }

  bool IsBf16() const { return plan.options.compute_dtype == DType::kBf16; }
  const graph::Graph& graph() const { return plan.train.graph; }
  char* At(ValueId id) const {
    const plan::Place& place = plan.train.places[id];
    return arena->data() + plan.buffers[place.buffer].offset + place.offset;
  }

  std::vector<double> Read(ValueId id) const {
    const graph::Value& value = graph().values[id];
    std::vector<double> out(static_cast<size_t>(graph::Elements(value.shape)));
    const auto read = [&](const auto* data) {
      for (size_t i = 0; i < out.size(); ++i) out[i] = static_cast<double>(data[i]);
    };
    switch (value.dtype) {
      case DType::kF32:
        read(reinterpret_cast<const float*>(At(id)));
        break;
      case DType::kF64:
        read(reinterpret_cast<const double*>(At(id)));
        break;
      case DType::kU8:
        read(reinterpret_cast<const uint8_t*>(At(id)));
        break;
      case DType::kI64:
        read(reinterpret_cast<const int64_t*>(At(id)));
        break;
      case DType::kBf16:
        for (size_t i = 0; i < out.size(); ++i) {
          out[i] = ToFloat(reinterpret_cast<const bf16*>(At(id))[i]);
        }
        break;
      default:
        ADD_FAILURE() << value.name;
    }
    return out;
  }

  void LoadReference(ValueId id) const {
    if (id == graph::kNoValue) return;
    const graph::Value& value = graph().values[id];
    if (value.dtype != DType::kI32) {
      reference->values(id) = Read(id);
      return;
    }
    const auto* data = reinterpret_cast<const int32_t*>(At(id));
    reference->integers(id).assign(data, data + graph::Elements(value.shape));
  }

  // Runs one op on both sides, from the same operands.
  void RunOp(const plan::PlannedOp& planned) {
    for (ValueId id : planned.op.inputs) LoadReference(id);
    for (const graph::Output& output : planned.op.outputs) LoadReference(output.value);
    auto bound = backend.Bind(plan, plan.train, planned);
    ASSERT_TRUE(bound.ok()) << bound.status();
    ASSERT_EQ((*bound)(context), absl::OkStatus());
    graph::ReferenceContext c;
    c.gradient_scale = kScale;
    c.first_micro_step = context.first_micro_step;
    reference->RunOp(planned.op, c);
  }

  // All of its ops; adds their kinds.
  void RunMicroStep(bool first, std::set<OpKind>& seen) {
    context.first_micro_step = first;
    for (const plan::PlannedOp& planned : plan.train.ops) {
      if (planned.when != plan::When::kEveryMicroStep) continue;
      RunOp(planned);
      seen.insert(planned.op.kind);
      for (const graph::Output& output : planned.op.outputs) {
        if (output.value == graph::kNoValue || IsOnlyRounding(output.value)) continue;
        EXPECT_LT(ImageError(Read(output.value), reference->values(output.value)),
                  IsBf16() ? 6e-3 : 5e-6)
            << graph::Name(planned.op.kind) << " -> " << graph().values[output.value].name;
      }
    }
  }

  // A key's bias moves all scores of a query alike: its gradient is 0.
  bool IsOnlyRounding(ValueId id) const {
    return graph().values[id].name.ends_with("attention.key.bias");
  }

  static constexpr float kScale = 1.0F / 7;
  CpuBackend backend;
  plan::StepPlan plan;
  std::unique_ptr<Arena> arena;
  std::unique_ptr<graph::ReferenceInterpreter> reference;
  StepContext context;

 private:
  // Gains are 1 and biases 0 at first: values that would show a mix-up instead.
  void Perturb() const {
    for (const graph::Parameter& parameter : graph().parameters) {
      const graph::Value& value = graph().values[parameter.value];
      std::vector<float> noise(static_cast<size_t>(graph::Elements(value.shape)));
      kernels::NormalInit(noise.data(), static_cast<int64_t>(noise.size()), 0, 0.2F, 3,
                          static_cast<uint64_t>(parameter.value), 0);
      for (size_t i = 0; i < noise.size(); ++i) {
        if (IsBf16()) {
          auto* data = reinterpret_cast<bf16*>(At(parameter.value));
          data[i] = ToBf16(ToFloat(data[i]) + noise[i]);
        } else {
          reinterpret_cast<float*>(At(parameter.value))[i] += noise[i];
        }
      }
    }
  }
  void FillInputs() const {
    const ValueId images = graph().Input("images");
    for (int64_t i = 0; i < graph::Elements(graph().values[images].shape); ++i) {
      At(images)[i] =
          static_cast<char>(Philox4x32({static_cast<uint32_t>(i), 0, 0, 0}, PhiloxKey(1, 1))[0]);
    }
    auto* targets = reinterpret_cast<int32_t*>(At(graph().Input("targets")));
    for (int64_t i = 0; i < plan.options.micro_batch; ++i) {
      targets[i] = i == 1 ? -1 : static_cast<int32_t>(i % TinyImages::kClasses);
    }
    const ValueId shades = graph().Input("labels.shade");
    for (int64_t i = 0; shades != graph::kNoValue && i < plan.options.micro_batch; ++i) {
      reinterpret_cast<int32_t*>(At(shades))[i] = i == 2 ? -1 : static_cast<int32_t>(i % 3);
    }
  }
};

TEST(ImageOps, MatchTheReference) {
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
      ImageBench bench(spec, 2);
      std::set<OpKind> seen;
      for (const bool first : {true, false}) bench.RunMicroStep(first, seen);
      EXPECT_EQ(seen.size(), bottleneck ? 18u : 17u);
    }
  }
}

TEST(ImageOps, OfPatchesMatchTheReference) {
  TinyImages job;
  const std::set<OpKind> of_patches = {OpKind::kImagePatches, OpKind::kPatchTokens,
                                       OpKind::kPatchTokensBackward, OpKind::kFirstRows,
                                       OpKind::kFirstRowsBackward};
  for (const v1::Precision precision : {v1::PRECISION_FP32, v1::PRECISION_BF16}) {
    const v1::JobSpec spec = job.Spec(
        {.precision = precision, .global_batch = 4, .micro_batch = 4, .heads = true, .vit = true});
    ImageBench bench(spec, 2);
    std::set<OpKind> seen;
    for (const bool first : {true, false}) {
      bench.RunMicroStep(first, seen);
    }
    for (const OpKind kind : of_patches) EXPECT_TRUE(seen.contains(kind)) << graph::Name(kind);
  }
}

// At real sizes: nothing need be planned again, and what is planned is no waste.
TEST(ImageOps, ThePlannerKnowsConvolutionsWorkspaces) {
  TinyImages job;
  for (const int64_t depth : {18, 50}) {
    for (const v1::Precision precision : {v1::PRECISION_FP32, v1::PRECISION_BF16}) {
      v1::JobSpec spec = job.Spec({.precision = precision, .global_batch = 2, .micro_batch = 2});
      v1::ResNetSpec resnet;
      resnet.set_depth(depth);
      resnet.set_classes(1000);
      *spec.mutable_model()->mutable_resnet() = resnet;
      NormalizeJobSpec(&spec);
      for (const int threads : {1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 24, 32}) {
        CpuBackend backend(threads);
        const auto plan = plan::PlanTraining(spec, *plan::OptionsFromSpec(spec, threads));
        ASSERT_TRUE(plan.ok()) << plan.status();
        const auto workspace = backend.CheckMatmulWorkspace(*plan);
        ASSERT_TRUE(workspace.ok()) << workspace.status();
        EXPECT_EQ(workspace->convolution, 0) << "depth " << depth << ", " << threads << " threads";
      }
    }
  }
}

}  // namespace
}  // namespace milepost::runtime
