// Specs and options that plan tests share.
#ifndef MILEPOST_ENGINE_PLAN_TESTING_PLAN_FIXTURE_H_
#define MILEPOST_ENGINE_PLAN_TESTING_PLAN_FIXTURE_H_

#include <cstdint>

#include "engine/plan/planner/planner.h"

namespace milepost::plan {

struct TestModel {
  int64_t layers = 2;
  int64_t width = 64;
  int64_t heads = 4;
  int64_t context = 32;
  int64_t vocabulary = 96;
  double dropout = 0;
};

inline v1::JobSpec SpecOf(const TestModel& model) {
  v1::JobSpec spec;
  v1::Gpt2Spec& gpt2 = *spec.mutable_model()->mutable_gpt2();
  gpt2.set_layers(model.layers);
  gpt2.set_width(model.width);
  gpt2.set_heads(model.heads);
  gpt2.set_context(model.context);
  gpt2.set_vocabulary(model.vocabulary);
  gpt2.set_dropout(model.dropout);
  return spec;
}

inline TestModel Gpt2Small() {
  return {.layers = 12, .width = 768, .heads = 12, .context = 1024, .vocabulary = 50257};
}

inline PlanOptions OptionsOf(int world, int stage, DType dtype) {
  return {.world = world,
          .zero_stage = stage,
          .compute_dtype = dtype,
          .micro_batch = 2,
          .sequence = 16,
          .accumulation = 3,
          .threads = 2};
}

inline int64_t ClassBytes(const StepPlan& plan, BufferClass c) {
  return plan.bytes_by_class[static_cast<int>(c)];
}

}  // namespace milepost::plan

#endif  // MILEPOST_ENGINE_PLAN_TESTING_PLAN_FIXTURE_H_
