// Every op of the update, bound by CudaBackend to the device's kernels on the host, against the
// CPU's from the same memory: bit for bit, as far as no fp64 sum is in it.
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "engine/comm/in_process.h"
#include "engine/kernels/cpu/matmul.h"
#include "engine/kernels/cpu/testing.h"
#include "engine/ops/linear/linear_contract.h"
#include "engine/optim/optimizer.h"
#include "engine/plan/passes/stream_pass.h"
#include "engine/plan/planner/planner.h"
#include "engine/runtime/cpu/cpu_backend.h"
#include "engine/runtime/executor/arena.h"
#include "engine/runtime/gpu/backend/cuda_backend.h"
#include "engine/runtime/gpu/backend/cuda_op.h"
#include "engine/runtime/gpu/backend/testing/op_bench.h"
#include "engine/runtime/testing/tiny_job.h"

namespace milepost::runtime {
namespace {

namespace cuda = kernels::cuda;
using graph::OpKind;
using kernels::RandomVector;

// The CPU's own, so that iterations over matrices end with its bits.
class CpuProducts : public cuda::DeviceProducts {
 public:
  int64_t WorkspaceBytes() const override { return kernels::cuda::kProductScratchBytes; }
  const std::string& identity() const override { return identity_; }
  absl::Status UseChoices(absl::string_view) override { return absl::OkStatus(); }
  std::string Choices() const override { return ""; }
  absl::Status Prepare(const cuda::Product& product) override {
    MP_ASSIGN_OR_RETURN(const size_t bytes, cache_.WorkspaceBytes(product.spec));
    largest_ = std::max(largest_, bytes);
    scratch_ = std::make_unique<kernels::AlignedBuffer>(largest_);
    return absl::OkStatus();
  }
  absl::Status Execute(const cuda::Product& product, const cuda::ProductArguments& x,
                       void* workspace, CUstream_st*) override {
    std::memset(workspace, 0xff, kTouched);
    return cache_.Execute(product.spec, x.a, x.b, x.bias, x.c, scratch_->data());
  }

 private:
  static constexpr size_t kTouched = 4096;
  const std::string identity_ = "this CPU";
  kernels::MatmulCache cache_;
  size_t largest_ = 0;
  std::unique_ptr<kernels::AlignedBuffer> scratch_;
};

// Is rank `rank`; sums are its own values.
class OneOf : public DeviceCommunicator {
 public:
  OneOf(int rank, int world) : rank_(rank), world_(world) {}
  int rank() const override { return rank_; }
  int world() const override { return world_; }
  bool capturable() const override { return true; }
  absl::Status Enqueue(const Collective& call, char*, void*, cudaStream_t) override {
    calls.push_back(call);
    return absl::OkStatus();
  }
  absl::Status EnqueueRows(const RowTransfers&, cudaStream_t) override { return absl::OkStatus(); }
  absl::Status Health() override { return absl::OkStatus(); }
  void Abort(absl::string_view) override {}

  std::vector<Collective> calls;

 private:
  const int rank_, world_;
};

struct UpdateCase {
  v1::OptimizerSpec::Type optimizer = v1::OptimizerSpec::TYPE_ADAMW;
  v1::Precision precision = v1::PRECISION_FP32;
  int world = 1;
  int stage = 0;
  int rank = 0;
  bool rounded_states = false;
  int group = 0;
  bool masters = true;
  bool rounded_gradients = false;
  v1::Orthogonalization orthogonalization = v1::ORTHOGONALIZATION_FP32;
};

constexpr double kLossScale = 1024;
constexpr double kMaxNorm = 0.7;

v1::JobSpec SpecOf(const TinyJob& job, const UpdateCase& c) {
  TinyOptions options{.ranks = c.world, .stage = c.stage, .group = c.group};
  options.global_batch = 4 * c.world;
  if (c.rounded_gradients) options.micro_batch = 4;  // accumulation 1
  options.precision = c.precision;
  v1::JobSpec spec = job.Spec(options);
  v1::OptimizerSpec& optimizer = *spec.mutable_train()->mutable_optimizer();
  optimizer.set_type(c.optimizer);
  if (c.rounded_states) optimizer.set_state_dtype(v1::STATE_DTYPE_BF16);
  if (!c.masters) optimizer.set_master(v1::MASTER_DTYPE_NONE);
  if (c.rounded_gradients) spec.mutable_train()->set_grad_dtype(v1::GRAD_DTYPE_BF16);
  optimizer.set_orthogonalization(c.orthogonalization);
  const auto add = [&](const char* match) {
    optimizer.add_groups()->set_match(match);
    return optimizer.mutable_groups(optimizer.groups_size() - 1);
  };
  add("*.h.0.mlp*")->set_lr_scale(0.5);
  add("*.h.1.ln_2*")->set_weight_decay(0.3);
  add("*wpe*")->set_freeze(true);
  return spec;
}

StepContext ContextOf() {
  StepContext c;
  c.seed = 42;
  c.step = 7;
  c.update = 3;
  c.learning_rate = 0.01F;
  c.beta1 = 0.9F;
  c.beta2 = 0.95F;
  c.beta3 = 0.99F;
  c.epsilon = 1e-8F;
  c.weight_decay = 0.1F;
  c.momentum = 0.9F;
  c.nesterov = true;
  return c;
}

// The same step's update on both sides.
class UpdateBench {
 public:
  explicit UpdateBench(const UpdateCase& which)
      : communicator(which.rank, which.world),
        spec_(SpecOf(job_, which)),
        in_process_(comm::MakeInProcessGroup(which.world)),
        cpu_(1),
        backend_({.products = &products_, .tables = &tables_, .communicator = &communicator}) {
    plan::PlanOptions options = *plan::OptionsFromSpec(spec_, 1);
    options.device = plan::DeviceKind::kCpu;
    cpu_plan = *plan::PlanTraining(spec_, options);
    options.min_matmul_workspace_bytes = cpu_.CheckMatmulWorkspace(cpu_plan)->needed;
    cpu_plan = *plan::PlanTraining(spec_, options);
    options = *plan::OptionsFromSpec(spec_, 1);
    options.device = plan::DeviceKind::kCuda;
    plan = *plan::PlanTraining(spec_, options);
    EXPECT_EQ(plan.train.ops.size(), cpu_plan.train.ops.size());
    cpu_arena_ = std::make_unique<Arena>(*Arena::Allocate(cpu_plan.arena_bytes));
    arena_ = std::make_unique<Arena>(*Arena::Allocate(plan.arena_bytes));
    layout_ = ControlLayoutOf(plan, which.rank);
    control_ = std::make_unique<kernels::AlignedBuffer>(layout_.bytes + 256);
    cpu_.Attach(cpu_arena_->data(), in_process_[which.rank].get());
    for (const plan::PlannedOp& op : plan.train.ops) {
      if (op.op.kind != OpKind::kOrthogonalize) continue;
      for (const auto& product : ProductsOf(plan, plan.train, op.op)) {
        EXPECT_EQ(products_.Prepare(product), absl::OkStatus());
      }
    }
    backend_.Attach({.arena = arena_->data(),
                     .control = control(),
                     .update = &decision,
                     .seed = ContextOf().seed});
    for (const plan::FlatGroup& group : plan.groups) FillGroup(group);
  }

  // From the reduced gradients to the parameters.
  void Run() {
    context = ContextOf();
    WriteControl(plan, communicator.rank(), layout_, context,
                 {.loss_scale = kLossScale, .max_norm = kMaxNorm}, control());
    for (size_t i = 0; i < plan.train.ops.size(); ++i) {
      const plan::PlannedOp& op = plan.train.ops[i];
      if (op.when != plan::When::kUpdate) continue;
      SCOPED_TRACE(testing::Message() << "op " << i << ", " << graph::Name(op.op.kind));
      RunOp(i, op.op);
      if (testing::Test::HasFatalFailure()) return;
    }
  }

  void Poison(float value) {
    const plan::FlatGroup& group = plan.groups.back();
    const plan::BufferId id = Gradient(group);
    const int64_t element = group.parameters[0].begin % group.shard_elements;
    for (char* at : {At(id), CpuAt(Gradient(cpu_plan.groups.back()))}) {
      if (plan.options.RoundsGradients()) {
        reinterpret_cast<bf16*>(at)[element] = ToBf16(value);
      } else {
        reinterpret_cast<float*>(at)[element] = value;
      }
    }
  }

  std::string Persistent() const {
    std::string bytes;
    for (const plan::FlatGroup& group : plan.groups) {
      for (const plan::BufferId id : StatesOf(group)) {
        if (id != plan::kNoBuffer) bytes.append(At(id), plan.buffers[id].bytes);
      }
    }
    return bytes;
  }

  plan::StepPlan plan;
  plan::StepPlan cpu_plan;
  OneOf communicator;
  cuda::UpdateControl decision = {-1, 7};
  StepContext context;

 private:
  char* control() const {
    const auto at = reinterpret_cast<uintptr_t>(control_->data());
    return reinterpret_cast<char*>((at + 255) / 256 * 256);
  }
  char* At(plan::BufferId id) const { return arena_->data() + plan.buffers[id].offset; }
  char* CpuAt(plan::BufferId id) const { return cpu_arena_->data() + cpu_plan.buffers[id].offset; }

  static std::vector<plan::BufferId> StatesOf(const plan::FlatGroup& group) {
    std::vector<plan::BufferId> states = {group.parameter_buffer, group.master_buffer};
    for (const plan::StateBuffers& more : {group.state_buffers, group.scale_buffers}) {
      states.insert(states.end(), more.begin(), more.end());
    }
    return states;
  }
  static plan::BufferId Gradient(const plan::FlatGroup& group) {
    return group.gradient_shard_buffer != plan::kNoBuffer ? group.gradient_shard_buffer
                                                          : group.gradient_buffer;
  }

  // The same values in the same buffer of both plans, which `of` picks from a group.
  template <typename T, typename Of, typename Value>
  void Fill(const plan::FlatGroup& group, const Of& of, const Value& value) {
    const plan::FlatGroup& twin = cpu_plan.groups[&group - plan.groups.data()];
    const plan::BufferId id = of(group), twins = of(twin);
    ASSERT_EQ(id == plan::kNoBuffer, twins == plan::kNoBuffer);
    if (id == plan::kNoBuffer) return;
    ASSERT_EQ(plan.buffers[id].bytes, cpu_plan.buffers[twins].bytes);
    const auto n = static_cast<int64_t>(plan.buffers[id].bytes / sizeof(T));
    const std::vector<float> random = RandomVector<float>(n, ++seed_);
    for (int64_t i = 0; i < n; ++i) {
      const T v = value(random[i]);
      std::memcpy(At(id) + i * sizeof(T), &v, sizeof(T));
      std::memcpy(CpuAt(twins) + i * sizeof(T), &v, sizeof(T));
    }
  }

  void FillGroup(const plan::FlatGroup& group) {
    using Group = plan::FlatGroup;
    const auto floats = [](float scale) { return [scale](float x) { return scale * x; }; };
    const auto code = [](float x) { return static_cast<uint8_t>(std::lround(40 * x) + 127); };
    const auto positive = [](float x) { return 1e-3F * x * x; };
    const auto parameters = [](const Group& g) { return g.parameter_buffer; };
    if (plan.options.compute_dtype == DType::kF32) {
      Fill<float>(group, parameters, floats(0.3F));
    } else {
      Fill<bf16>(group, parameters, [](float x) { return ToBf16(0.3F * x); });
    }
    Fill<float>(
        group, [](const Group& g) { return g.master_buffer; }, floats(0.3F));
    if (group.frozen) return;
    constexpr float kGradient = 0.05F * static_cast<float>(kLossScale);
    if (plan.options.RoundsGradients()) {
      Fill<bf16>(group, Gradient, [](float x) { return ToBf16(kGradient * x); });
    } else {
      Fill<float>(group, Gradient, floats(kGradient));
    }
    // The first is an average of gradients; squares, among the others, are not negative.
    for (int i = 0; i < kernels::kMaxStates; ++i) {
      const auto state = [i](const Group& g) { return g.state_buffers[i]; };
      const auto value = [i](float x) { return i == 0 ? 0.01F * x : 1e-3F * x * x; };
      if (plan::IsQuantized(group.optimizer)) {
        Fill<uint8_t>(group, state, code);
        Fill<float>(
            group, [i](const Group& g) { return g.scale_buffers[i]; }, positive);
      } else if (group.state_dtype == DType::kBf16) {
        Fill<bf16>(group, state, [&](float x) { return ToBf16(value(x)); });
      } else {
        Fill<float>(group, state, value);
      }
    }
  }

  void OnDevice(size_t i) {
    auto bound = backend_.Bind(plan, plan.train, plan.train.ops[i]);
    ASSERT_EQ(bound.status(), absl::OkStatus());
    ASSERT_EQ((*bound)(context), absl::OkStatus());
  }
  void OnCpu(size_t i) {
    auto bound = cpu_.Bind(cpu_plan, cpu_plan.train, cpu_plan.train.ops[i]);
    ASSERT_EQ(bound.status(), absl::OkStatus());
    ASSERT_EQ((*bound)(context), absl::OkStatus());
  }

  void ExpectSame(plan::BufferId id, plan::BufferId twin, const char* what) {
    if (id == plan::kNoBuffer) return;
    EXPECT_EQ(std::memcmp(At(id), CpuAt(twin), plan.buffers[id].bytes), 0)
        << what << " (" << plan.buffers[id].name << ")";
  }
  void ExpectSameStates(int32_t g) {
    const auto ours = StatesOf(plan.groups[g]), theirs = StatesOf(cpu_plan.groups[g]);
    for (size_t i = 0; i < ours.size(); ++i) ExpectSame(ours[i], theirs[i], "after the update");
  }
  double* Scalars() const { return reinterpret_cast<double*>(At(plan.scalars)); }
  double* CpuScalars() const { return reinterpret_cast<double*>(CpuAt(cpu_plan.scalars)); }

  void RunOp(size_t i, const graph::Op& op) {
    const int32_t g = op.attributes.group;
    switch (op.kind) {
      case OpKind::kGradNorm:
        OnDevice(i);
        OnCpu(i);
        return ExpectNorm(plan.ReducedScalars() + g);
      case OpKind::kReduceScalars:
        OnDevice(i);
        return Decide();
      case OpKind::kUpdateNorms:
        OnDevice(i);
        OnCpu(i);
        ExpectSameStates(g);
        return ExpectUpdateNorms();
      case OpKind::kMuonMomentum: {
        const auto update = [](const plan::FlatGroup& group) { return group.update_buffer; };
        Fill<float>(plan.groups[g], update, [](float x) { return x; });
        [[fallthrough]];
      }
      case OpKind::kOrthogonalize:
        OnDevice(i);
        OnCpu(i);
        if (context.skip_update) return;
        return ExpectSame(plan.groups[g].update_buffer, cpu_plan.groups[g].update_buffer, "update");
      case OpKind::kOptimizer:
        OnDevice(i);
        OnCpu(i);
        return ExpectSameStates(g);
      default:  // what ranks exchange
        return;
    }
  }

  void ExpectNorm(int slot) {
    const double got = Scalars()[slot], want = CpuScalars()[slot];
    if (std::isfinite(want)) {
      EXPECT_NEAR(got, want, 1e-12 * want);
      EXPECT_GT(want, 0);
    } else {
      EXPECT_FALSE(std::isfinite(got));
    }
  }

  // The rest of the CPU's update goes on from what the device has decided.
  void Decide() {
    double sum = 0;
    for (size_t g = 0; g < plan.groups.size(); ++g) {
      if (!plan.groups[g].frozen) sum += Scalars()[plan.ReducedScalars() + g];
    }
    const double got = Scalars()[plan::kNormScalar];
    EXPECT_TRUE(got == sum || !std::isfinite(sum));
    EXPECT_EQ(Scalars()[plan::kStopScalar], 0);
    const optim::ClipResult clip = optim::ClipByNorm(sum / (kLossScale * kLossScale), kMaxNorm);
    EXPECT_EQ(decision.skip, clip.finite ? 0U : 1U);
    if (clip.finite) {
      EXPECT_LT(clip.scale, 1);
      EXPECT_EQ(decision.gradient_scale, static_cast<float>(clip.scale / kLossScale));
    }
    context.skip_update = decision.skip != 0;
    context.clip_factor = decision.gradient_scale;
  }

  // Sums in another order; from here on the CPU's, so that the step is the same.
  void ExpectUpdateNorms() {
    auto* got = reinterpret_cast<double*>(At(plan.update_norms));
    auto* want = reinterpret_cast<double*>(CpuAt(cpu_plan.update_norms));
    const int64_t count = plan.buffers[plan.update_norms].bytes / 8;
    for (int64_t i = 0; i < count; ++i) {
      EXPECT_NEAR(got[i], want[i], 1e-6 * want[i]) << i;
      got[i] = want[i];
    }
  }

  TinyJob job_;
  v1::JobSpec spec_;
  std::vector<std::unique_ptr<comm::Communicator>> in_process_;
  CpuBackend cpu_;
  CpuProducts products_;
  HostTables tables_;
  CudaBackend backend_;
  std::unique_ptr<Arena> cpu_arena_, arena_;
  ControlLayout layout_;
  std::unique_ptr<kernels::AlignedBuffer> control_;
  uint32_t seed_ = 0;
};

const v1::OptimizerSpec::Type kOptimizers[] = {
    v1::OptimizerSpec::TYPE_ADAMW,      v1::OptimizerSpec::TYPE_SGD,  v1::OptimizerSpec::TYPE_LION,
    v1::OptimizerSpec::TYPE_ADAN,       v1::OptimizerSpec::TYPE_LAMB, v1::OptimizerSpec::TYPE_MUON,
    v1::OptimizerSpec::TYPE_ADAMW_8BIT,
};

// Ranks of worlds of 1, 2 and 3, and of replicas of shards.
std::vector<UpdateCase> Layouts() {
  return {{.world = 1, .stage = 0},
          {.precision = v1::PRECISION_BF16, .world = 1, .stage = 1},
          {.precision = v1::PRECISION_BF16, .world = 2, .stage = 0, .rank = 1},
          {.precision = v1::PRECISION_FP16, .world = 2, .stage = 1, .rank = 1},
          {.world = 3, .stage = 2, .rank = 2},
          {.precision = v1::PRECISION_BF16, .world = 3, .stage = 3, .rank = 1},
          {.world = 4, .stage = 3, .rank = 2, .group = 2}};
}

class CudaUpdate : public testing::Test {
 protected:
  void SetUp() override {
    if ((hwy::SupportedTargets() & HWY_AVX2) == 0) {
      GTEST_SKIP() << "the CPU's kernels round between product and sum here";
    }
  }
  static void ExpectTheCpus(UpdateCase c) {
    SCOPED_TRACE(testing::Message() << v1::OptimizerSpec::Type_Name(c.optimizer) << ", "
                                    << v1::Precision_Name(c.precision) << ", rank " << c.rank
                                    << " of " << c.world << " at stage " << c.stage);
    UpdateBench bench(c);
    const std::string before = bench.Persistent();
    bench.Run();
    EXPECT_FALSE(bench.context.skip_update);
    EXPECT_NE(bench.Persistent(), before);
    EXPECT_EQ(bench.communicator.calls.size(), c.world > 1 ? 1 : 0);  // the scalars'
  }
};

TEST_F(CudaUpdate, IsTheCpus) {
  for (const auto optimizer : kOptimizers) {
    for (UpdateCase c : Layouts()) {
      c.optimizer = optimizer;
      ExpectTheCpus(c);
    }
  }
}

TEST_F(CudaUpdate, OrthogonalizesInBf16AsTheCpu) {
  for (UpdateCase c : Layouts()) {
    c.optimizer = v1::OptimizerSpec::TYPE_MUON;
    c.orthogonalization = v1::ORTHOGONALIZATION_BF16;
    ExpectTheCpus(c);
  }
}

TEST_F(CudaUpdate, RoundsStatesAsTheCpu) {
  for (const auto optimizer : {v1::OptimizerSpec::TYPE_ADAMW, v1::OptimizerSpec::TYPE_SGD,
                               v1::OptimizerSpec::TYPE_LION, v1::OptimizerSpec::TYPE_ADAN}) {
    for (UpdateCase c : Layouts()) {
      c.optimizer = optimizer;
      c.rounded_states = true;
      ExpectTheCpus(c);
    }
  }
}

TEST_F(CudaUpdate, RoundsParametersAndReadsGradientsInBf16AsTheCpu) {
  for (const auto optimizer :
       {v1::OptimizerSpec::TYPE_ADAMW, v1::OptimizerSpec::TYPE_SGD, v1::OptimizerSpec::TYPE_LION,
        v1::OptimizerSpec::TYPE_ADAN, v1::OptimizerSpec::TYPE_ADAMW_8BIT}) {
    for (UpdateCase c : Layouts()) {
      for (const int bits : {1, 2, 3, 7}) {
        c.optimizer = optimizer;
        c.precision = v1::PRECISION_BF16;
        c.masters = (bits & 1) == 0;
        c.rounded_gradients = (bits & 2) != 0;
        c.rounded_states = (bits & 4) != 0 && optimizer != v1::OptimizerSpec::TYPE_ADAMW_8BIT;
        ExpectTheCpus(c);
      }
    }
  }
}

TEST_F(CudaUpdate, ANormThatIsNotFiniteChangesNothing) {
  for (const auto optimizer : kOptimizers) {
    for (const float poison : {INFINITY, std::numeric_limits<float>::quiet_NaN()}) {
      for (const v1::Precision precision : {v1::PRECISION_FP32, v1::PRECISION_BF16}) {
        UpdateBench bench({.optimizer = optimizer, .precision = precision});
        bench.Poison(poison);
        const std::string before = bench.Persistent();
        bench.Run();
        EXPECT_TRUE(bench.context.skip_update);
        EXPECT_TRUE(bench.Persistent() == before)
            << v1::OptimizerSpec::Type_Name(optimizer) << ", " << poison;
      }
      if (optimizer == v1::OptimizerSpec::TYPE_LAMB || optimizer == v1::OptimizerSpec::TYPE_MUON) {
        continue;
      }
      UpdateBench bench({.optimizer = optimizer,
                         .precision = v1::PRECISION_BF16,
                         .masters = false,
                         .rounded_gradients = true});
      bench.Poison(poison);
      const std::string before = bench.Persistent();
      bench.Run();
      EXPECT_TRUE(bench.context.skip_update);
      EXPECT_TRUE(bench.Persistent() == before) << v1::OptimizerSpec::Type_Name(optimizer);
    }
  }
}

// The decision is made behind the scalars' reduction, on its stream.
TEST(CudaUpdatePlan, WhatReadsTheDecisionComesAfterTheScalars) {
  TinyJob job;
  for (const auto optimizer : kOptimizers) {
    for (UpdateCase c : Layouts()) {
      c.optimizer = optimizer;
      const v1::JobSpec spec = SpecOf(job, c);
      plan::PlanOptions options = *plan::OptionsFromSpec(spec, 1);
      options.device = plan::DeviceKind::kCuda;
      options.averages = true;
      const plan::StepPlan plan = *plan::PlanTraining(spec, options);
      const std::vector<plan::FinishedBefore> order =
          plan::OrderOf(plan.train, /*last_micro_step=*/true);
      int scalars = -1;
      int readers = 0;
      for (size_t i = 0; i < plan.train.ops.size(); ++i) {
        const OpKind kind = plan.train.ops[i].op.kind;
        if (kind == OpKind::kReduceScalars) scalars = static_cast<int>(i);
        if (kind != OpKind::kOptimizer && kind != OpKind::kUpdateNorms &&
            kind != OpKind::kMuonMomentum && kind != OpKind::kAverageParameters) {
          continue;
        }
        ASSERT_GE(scalars, 0);
        EXPECT_GE(order[i].last[static_cast<int>(plan.train.ops[scalars].stream)], scalars) << i;
        ++readers;
      }
      EXPECT_GT(readers, 0);
    }
  }
}

}  // namespace
}  // namespace milepost::runtime
