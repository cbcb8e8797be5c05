// The update of parameters that are their own masters against numpy's, in self_master.json.
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <vector>

#include "engine/plan/planner/planner.h"
#include "engine/runtime/cpu/cpu_backend.h"
#include "engine/runtime/executor/arena.h"
#include "engine/runtime/testing/tiny_job.h"
#include "hwy/targets.h"
#include "nlohmann/json.hpp"

namespace milepost::runtime {
namespace {

using json = nlohmann::json;

json SelfMasterGolden() {
  std::ifstream file("tests/golden/self_master.json");
  EXPECT_TRUE(file.good());
  return json::parse(file);
}

// One group's update, of a plan at bf16 with neither masters nor gradients in fp32.
class OneUpdate {
 public:
  explicit OneUpdate(int parameter) {
    TinyOptions options{.precision = v1::PRECISION_BF16, .global_batch = 2};
    v1::JobSpec spec = job_.Spec(options);
    spec.mutable_train()->set_grad_dtype(v1::GRAD_DTYPE_BF16);
    spec.mutable_train()->mutable_optimizer()->set_master(v1::MASTER_DTYPE_NONE);
    plan_ = *plan::PlanTraining(spec, *plan::OptionsFromSpec(spec, 1));
    arena_ = std::make_unique<Arena>(*Arena::Allocate(plan_.arena_bytes));
    std::memset(arena_->data(), 0, plan_.arena_bytes);
    backend_.Attach(arena_->data(), nullptr);
    for (size_t g = 0; g < plan_.groups.size(); ++g) {
      for (const plan::GroupParameter& p : plan_.groups[g].parameters) {
        if (p.parameter != parameter) continue;
        group_ = static_cast<int>(g);
        place_ = p;
      }
    }
  }

  int64_t elements() const { return place_.elements; }
  bool decays() const { return place_.decay; }
  const plan::FlatGroup& group() const { return plan_.groups[group_]; }
  template <typename T>
  T* At(plan::BufferId id) {
    return reinterpret_cast<T*>(arena_->data() + plan_.buffers[id].offset) + place_.begin;
  }

  absl::Status Run(const StepContext& context) {
    for (const plan::PlannedOp& op : plan_.train.ops) {
      if (op.op.kind != graph::OpKind::kOptimizer || op.op.attributes.group != group_) continue;
      absl::StatusOr<BoundOp> bound = backend_.Bind(plan_, plan_.train, op);
      return bound.ok() ? (*bound)(context) : bound.status();
    }
    return absl::NotFoundError("no update");
  }

 private:
  TinyJob job_;
  plan::StepPlan plan_;
  std::unique_ptr<Arena> arena_;
  CpuBackend backend_{1};
  int group_ = -1;
  plan::GroupParameter place_;
};

TEST(SelfMasterGolden, TheUpdateIsNumpys) {
  if ((hwy::SupportedTargets() & HWY_AVX2) == 0) {
    GTEST_SKIP() << "the CPU's kernels round between product and sum here";
  }
  const json golden = SelfMasterGolden();
  OneUpdate update(golden["tensor"]);
  const std::vector<uint16_t> p = golden["p"];
  ASSERT_GE(update.elements(), static_cast<int64_t>(p.size()));
  ASSERT_TRUE(update.decays());
  auto* parameters = update.At<uint16_t>(update.group().parameter_buffer);
  auto* gradients = update.At<uint16_t>(update.group().gradient_shard_buffer);
  std::copy(p.begin(), p.end(), parameters);
  StepContext context{.seed = golden["seed"]};
  context.learning_rate = golden["rate"];
  context.beta1 = golden["beta1"];
  context.beta2 = golden["beta2"];
  context.epsilon = golden["epsilon"];
  context.weight_decay = golden["decay"];
  context.clip_factor = golden["scale"];
  for (size_t i = 0; i < golden["g"].size(); ++i) {
    const std::vector<uint16_t> g = golden["g"][i], after = golden["after"][i];
    std::copy(g.begin(), g.end(), gradients);
    context.step = golden["first_step"].get<int64_t>() + static_cast<int64_t>(i);
    context.update = static_cast<int64_t>(i) + 1;
    ASSERT_EQ(update.Run(context), absl::OkStatus());
    EXPECT_EQ(std::vector<uint16_t>(parameters, parameters + p.size()), after) << "update " << i;
  }
  const std::vector<uint32_t> m = golden["m"], v = golden["v"];
  const auto* got_m = update.At<uint32_t>(update.group().state_buffers[0]);
  const auto* got_v = update.At<uint32_t>(update.group().state_buffers[1]);
  EXPECT_EQ(std::vector<uint32_t>(got_m, got_m + m.size()), m);
  EXPECT_EQ(std::vector<uint32_t>(got_v, got_v + v.size()), v);
}

}  // namespace
}  // namespace milepost::runtime
