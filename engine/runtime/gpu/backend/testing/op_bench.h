// For tests: one plan on both backends, op by op. Each op runs on the CPU and, from the same
// operands, on CudaBackend with the kernels and the doubles of engine/kernels/cuda/testing, so that
// an error is seen where it is made.
//
//   OpBench bench(spec, options);                     // plans for both, random parameters
//   for (const plan::PlannedOp& planned : bench.Ops(&plan::StepPlan::train)) { ... }
//   for (const auto& output : bench.RunOp(&plan::StepPlan::train, op)) {
//     EXPECT_LT(output.error, 1e-5) << output.name;
//   }
#ifndef MILEPOST_ENGINE_RUNTIME_GPU_BACKEND_TESTING_OP_BENCH_H_
#define MILEPOST_ENGINE_RUNTIME_GPU_BACKEND_TESTING_OP_BENCH_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/dtype/half.h"
#include "engine/kernels/cpu/random.h"
#include "engine/kernels/cuda/testing/host_graphs.h"
#include "engine/kernels/cuda/testing/host_products.h"
#include "engine/ops/fp8/fp8_cpu_kernel.h"
#include "engine/ops/linear/linear_contract.h"
#include "engine/plan/planner/planner.h"
#include "engine/runtime/cpu/cpu_backend.h"
#include "engine/runtime/executor/op_binding.h"
#include "engine/runtime/gpu/backend/cuda_backend.h"
#include "engine/runtime/gpu/backend/documents.h"

namespace milepost::runtime {

// On boundaries of 256 bytes, as the device's allocator gives them; 0xff, a NaN in every type.
class PoisonedBytes {
 public:
  explicit PoisonedBytes(int64_t bytes)
      : data_(static_cast<char*>(
            ::operator new (static_cast<size_t>(bytes), std::align_val_t{256}))) {
    std::memset(data_.get(), 0xff, static_cast<size_t>(bytes));
  }
  char* data() const { return data_.get(); }

 private:
  struct Delete {
    void operator()(char* p) const { ::operator delete (p, std::align_val_t{256}); }
  };
  std::unique_ptr<char, Delete> data_;
};

// DeviceTables in the host's memory.
class HostTables : public DeviceTables {
 public:
  absl::StatusOr<void*> Reserve(int64_t bytes) override {
    blocks_.emplace_back(bytes);
    bytes_ += bytes;
    std::memset(blocks_.back().data(), 0, static_cast<size_t>(bytes));
    return static_cast<void*>(blocks_.back().data());
  }
  int64_t bytes() const override { return bytes_; }

 protected:
  absl::StatusOr<void*> UploadBytes(const void* data, int64_t bytes) override {
    blocks_.emplace_back(bytes);
    bytes_ += bytes;
    std::memcpy(blocks_.back().data(), data, static_cast<size_t>(bytes));
    return static_cast<void*>(blocks_.back().data());
  }

 private:
  std::vector<PoisonedBytes> blocks_;
  int64_t bytes_ = 0;
};

class OpBench {
 public:
  using ProgramOf = plan::Program plan::StepPlan::*;
  struct Result {
    std::string name;  // of the value
    graph::ValueId value;
    double error;  // ||cuda - cpu|| / ||cpu||, infinite where one has a number and one has none
  };

  // Of a training plan; `options` as OptionsFromSpec has them, with what the test wants otherwise.
  OpBench(const v1::JobSpec& spec, const plan::PlanOptions& options,
          const kernels::cuda::HostGraphsOptions& graphs = {})
      : OpBench(options, graphs,
                [&spec](const plan::PlanOptions& o) { return plan::PlanTraining(spec, o); }) {}
  // Of a generation plan.
  OpBench(const v1::ModelSpec& model, const plan::PlanOptions& options)
      : OpBench(options, {},
                [&model](const plan::PlanOptions& o) { return plan::PlanGeneration(model, o); }) {}

  const plan::StepPlan& plan() const { return cuda_plan_; }
  const std::vector<plan::PlannedOp>& Ops(ProgramOf program) const {
    return (cuda_plan_.*program).ops;
  }

  // The CPU's value; what ops read on both sides.
  template <typename T>
  T* At(ProgramOf program, graph::ValueId id) {
    return reinterpret_cast<T*>(Address(cpu_plan_, program, cpu_arena_->data(), id));
  }
  // Sets an i32 input of the program, where it has one of this name.
  void Set(ProgramOf program, const char* input, int64_t i, int64_t value) {
    const graph::ValueId id = (cpu_plan_.*program).graph.Input(input);
    if (id != graph::kNoValue) At<int32_t>(program, id)[i] = static_cast<int32_t>(value);
  }

  // Gives an input of an op that is about to run a place of its own, where the plan lets it share
  // an output's.
  void Separate(ProgramOf program, size_t op, size_t input) {
    const char* data = At<char>(program, (cpu_plan_.*program).ops[op].op.inputs[input]);
    for (plan::StepPlan* plan : {&cpu_plan_, &cuda_plan_}) {
      graph::ValueId& id = (plan->*program).ops[op].op.inputs[input];
      const graph::Value value = (plan->*program).graph.values[id];
      id = static_cast<graph::ValueId>((plan->*program).graph.values.size());
      (plan->*program).graph.values.push_back(value);
      plan->buffers.push_back({.name = value.name, .offset = plan->arena_bytes});
      (plan->*program).places.push_back({static_cast<plan::BufferId>(plan->buffers.size()) - 1, 0});
    }
    const graph::ValueId id = (cpu_plan_.*program).ops[op].op.inputs[input];
    ASSERT_LE(Bytes(program, id), static_cast<size_t>(kSpare));
    std::memcpy(At<char>(program, id), data, Bytes(program, id));
  }

  // What `context` says and kernels read from device memory.
  void UpdateControl(ProgramOf program) {
    StepControl& control = *reinterpret_cast<StepControl*>(control_->data());
    control.position = {.step = static_cast<uint64_t>(context.step),
                        .first_sample = static_cast<uint64_t>(context.first_sample)};
    control.gradient_factors = context.gradient_factors;
    control.row = context.position;
    if (!cuda_backend_->takes_documents()) return;
    const auto packed = PackedDocumentsOf(cpu_plan_, cpu_plan_.*program);
    const char* ids = cpu_arena_->data() + packed->ids[0];
    const auto fit = WriteDocumentTables(ControlLayoutOf(cuda_plan_, 0), 0,
                                         reinterpret_cast<const int32_t*>(ids), control_->data());
    ASSERT_TRUE(fit.ok()) << fit.status();
    context.many_documents = !*fit;
  }

  // On the device, without running it.
  absl::Status BindOp(ProgramOf program, size_t op) {
    return cuda_backend_->Bind(cuda_plan_, cuda_plan_.*program, (cuda_plan_.*program).ops[op])
        .status();
  }

  // One entry for each output.
  std::vector<Result> RunOp(ProgramOf program, size_t op) {
    const plan::PlannedOp& cpu = (cpu_plan_.*program).ops[op];
    const plan::PlannedOp& cuda = (cuda_plan_.*program).ops[op];
    Poison(program, cuda);
    for (const graph::Output& output : cuda.op.outputs) {
      if (output.value != graph::kNoValue && Adds(output)) CopyToCuda(program, output.value);
    }
    for (const graph::ValueId id : cuda.op.inputs) {
      if (id != graph::kNoValue) CopyToCuda(program, id);
    }
    Run(cpu_backend_, cpu_plan_, program, cpu);
    // With documents a library's is [N,H].
    const bool backward = cuda.op.kind == graph::OpKind::kAttentionBackward;
    if (backward && LibraryHasDocuments()) TurnLse(program, cuda.op, cuda.op.inputs[2], true);
    Run(*cuda_backend_, cuda_plan_, program, cuda);
    const bool forward = cuda.op.kind == graph::OpKind::kAttention;
    if (forward && LibraryHasDocuments()) {
      TurnLse(program, cuda.op, cuda.op.outputs[1].value, false);
    }
    std::vector<Result> results;
    for (const graph::Output& output : cuda.op.outputs) {
      if (output.value == graph::kNoValue) continue;
      results.push_back({(cuda_plan_.*program).graph.values[output.value].name, output.value,
                         Error(program, output.value)});
    }
    return results;
  }

  std::vector<double> Read(ProgramOf program, graph::ValueId id, bool cuda) const {
    const plan::StepPlan& plan = cuda ? cuda_plan_ : cpu_plan_;
    const char* data = Address(plan, program, (cuda ? cuda_arena_ : cpu_arena_)->data(), id);
    const graph::Value& value = (plan.*program).graph.values[id];
    std::vector<double> out(static_cast<size_t>(graph::Elements(value.shape)));
    for (size_t i = 0; i < out.size(); ++i) {
      switch (value.dtype) {
        case DType::kF32:
          out[i] = reinterpret_cast<const float*>(data)[i];
          break;
        case DType::kBf16:
          out[i] = ToFloat(reinterpret_cast<const bf16*>(data)[i]);
          break;
        case DType::kF16:
          out[i] = ToFloat(reinterpret_cast<const f16*>(data)[i]);
          break;
        case DType::kF64:
          out[i] = reinterpret_cast<const double*>(data)[i];
          break;
        case DType::kI32:
          out[i] = reinterpret_cast<const int32_t*>(data)[i];
          break;
        case DType::kU8:
          out[i] = reinterpret_cast<const uint8_t*>(data)[i];
          break;
        case DType::kI64:
          out[i] = static_cast<double>(reinterpret_cast<const int64_t*>(data)[i]);
          break;
        case DType::kE4M3:
          out[i] = ToFloat(reinterpret_cast<const e4m3*>(data)[i]);
          break;
        case DType::kE5M2:
          out[i] = ToFloat(reinterpret_cast<const e5m2*>(data)[i]);
          break;
      }
    }
    return out;
  }

  StepContext context;
  kernels::cuda::HostProducts products{kernels::cuda::kProductScratchBytes};
  std::unique_ptr<kernels::cuda::HostGraphs> graphs;
  HostTables tables;

 private:
  static constexpr int64_t kSpare = 1 << 20;  // behind the arenas

  template <typename MakePlan>
  OpBench(plan::PlanOptions options, const kernels::cuda::HostGraphsOptions& graph_options,
          const MakePlan& make)
      : graphs(std::make_unique<kernels::cuda::HostGraphs>(graph_options)), cpu_backend_(1) {
    options.threads = 1;
    cpu_plan_ = *make(options);
    options.min_matmul_workspace_bytes = cpu_backend_.CheckMatmulWorkspace(cpu_plan_)->needed;
    cpu_plan_ = *make(options);
    options.device = plan::DeviceKind::kCuda;
    cuda_plan_ = *make(options);
    cuda_backend_ = std::make_unique<CudaBackend>(
        CudaServices{.products = &products, .graphs = graphs.get(), .tables = &tables});
    EXPECT_EQ(cuda_backend_->Prepare(cuda_plan_), absl::OkStatus());
    cpu_arena_ = std::make_unique<PoisonedBytes>(cpu_plan_.arena_bytes + kSpare);
    cuda_arena_ = std::make_unique<PoisonedBytes>(cuda_plan_.arena_bytes + kSpare);
    control_ = std::make_unique<PoisonedBytes>(ControlLayoutOf(cuda_plan_, 0).bytes);
    new (control_->data()) StepControl();
    cpu_backend_.Attach(cpu_arena_->data(), nullptr);
    context.seed = 5;
    context.step = 4;
    context.first_sample = 9;
    cuda_backend_->Attach({.arena = cuda_arena_->data(),
                           .control = control_->data(),
                           .update = &update_,
                           .seed = context.seed});
    const bool trains = !cpu_plan_.train.graph.values.empty();
    for (const ProgramOf program : {&plan::StepPlan::train, &plan::StepPlan::next}) {
      if ((program == &plan::StepPlan::train) == trains) SetParameters(program);
    }
    for (const graph::Scaling& scaling : cpu_plan_.train.graph.scalings) {
      kernels::InitializeScaling(scaling.dtype == DType::kE5M2 ? kLargestE5M2 : kLargestE4M3,
                                 At<float>(&plan::StepPlan::train, scaling.scaling));
    }
    const auto& scalars = cpu_plan_.buffers[cpu_plan_.scalars];
    std::memset(cpu_arena_->data() + scalars.offset, 0, static_cast<size_t>(scalars.bytes));
  }

  static char* Address(const plan::StepPlan& plan, ProgramOf program, char* arena,
                       graph::ValueId id) {
    const plan::Place& place = (plan.*program).places[id];
    return arena + plan.buffers[place.buffer].offset + place.offset;
  }
  size_t Bytes(ProgramOf program, graph::ValueId id) const {
    const graph::Value& value = (cpu_plan_.*program).graph.values[id];
    return static_cast<size_t>(graph::Elements(value.shape) * ByteSize(value.dtype));
  }

  // No zeros or ones, which would hide a mix-up.
  void SetParameters(ProgramOf program) {
    const graph::Graph& graph = (cpu_plan_.*program).graph;
    for (const graph::Parameter& parameter : graph.parameters) {
      const graph::Value& value = graph.values[parameter.value];
      std::vector<float> values(static_cast<size_t>(graph::Elements(value.shape)));
      kernels::NormalInit(values.data(), static_cast<int64_t>(values.size()), 0, 0.2F, 3,
                          static_cast<uint64_t>(parameter.value), 0);
      const float center = parameter.initializer == graph::Initializer::kOnes ? 1.0F : 0.0F;
      for (size_t i = 0; i < values.size(); ++i) {
        const float v = values[i] + center;
        if (value.dtype == DType::kBf16) {
          At<bf16>(program, parameter.value)[i] = ToBf16(v);
        } else if (value.dtype == DType::kF16) {
          At<f16>(program, parameter.value)[i] = ToF16(v);
        } else {
          At<float>(program, parameter.value)[i] = v;
        }
      }
    }
  }

  // Known once an attention was bound.
  bool LibraryHasDocuments() const {
    return cuda_backend_->takes_documents() && !context.many_documents;
  }
  // CUDA's copy of a [B,H,T], to [N,H] or back.
  void TurnLse(ProgramOf program, const graph::Op& op, graph::ValueId id, bool to_rows) {
    const graph::Attributes& a = op.attributes;
    auto* lse = reinterpret_cast<float*>(Address(cuda_plan_, program, cuda_arena_->data(), id));
    const std::vector<float> before(lse, lse + a.batch * a.heads * a.sequence);
    for (int64_t i = 0; i < static_cast<int64_t>(before.size()); ++i) {
      const int64_t t = i % a.sequence, h = i / a.sequence % a.heads;
      const int64_t row = i / (a.sequence * a.heads) * a.sequence + t;
      const int64_t turned = row * a.heads + h;
      lse[to_rows ? turned : i] = before[to_rows ? i : turned];
    }
  }

  bool Adds(const graph::Output& output) const {
    return OpBinding::Accumulation{output.mode}.At(context);
  }
  // Outputs, and the front of the workspace.
  void Poison(ProgramOf program, const plan::PlannedOp& planned) {
    constexpr int64_t kFront = 1 << 20;
    for (const graph::Output& output : planned.op.outputs) {
      if (output.value == graph::kNoValue) continue;
      std::memset(Address(cuda_plan_, program, cuda_arena_->data(), output.value), 0xff,
                  Bytes(program, output.value));
    }
    if (planned.workspace == plan::kNoBuffer) return;
    std::memset(cuda_arena_->data() + cuda_plan_.buffers[planned.workspace].offset, 0xff,
                static_cast<size_t>(std::min(kFront, planned.workspace_bytes)));
  }
  void CopyToCuda(ProgramOf program, graph::ValueId id) {
    std::memcpy(Address(cuda_plan_, program, cuda_arena_->data(), id),
                Address(cpu_plan_, program, cpu_arena_->data(), id), Bytes(program, id));
  }

  void Run(Backend& backend, const plan::StepPlan& plan, ProgramOf program,
           const plan::PlannedOp& planned) {
    auto bound = backend.Bind(plan, plan.*program, planned);
    ASSERT_TRUE(bound.ok()) << bound.status();
    if (&backend == cuda_backend_.get()) UpdateControl(program);  // what is bound says what of it
    ASSERT_EQ((*bound)(context), absl::OkStatus()) << graph::Name(planned.op.kind);
  }

  double Error(ProgramOf program, graph::ValueId id) const {
    const std::vector<double> want = Read(program, id, false), got = Read(program, id, true);
    double difference = 0, norm = 0;
    for (size_t i = 0; i < want.size(); ++i) {
      if (std::isnan(got[i]) != std::isnan(want[i])) return INFINITY;
      if (std::isnan(want[i])) continue;
      difference += (got[i] - want[i]) * (got[i] - want[i]);
      norm += want[i] * want[i];
    }
    return std::sqrt(difference / std::max(norm, 1e-30));
  }

  CpuBackend cpu_backend_;
  plan::StepPlan cpu_plan_;
  plan::StepPlan cuda_plan_;
  std::unique_ptr<CudaBackend> cuda_backend_;
  std::unique_ptr<PoisonedBytes> cpu_arena_;
  std::unique_ptr<PoisonedBytes> cuda_arena_;
  std::unique_ptr<PoisonedBytes> control_;
  kernels::cuda::UpdateControl update_;
};

}  // namespace milepost::runtime

#endif  // MILEPOST_ENGINE_RUNTIME_GPU_BACKEND_TESTING_OP_BENCH_H_
