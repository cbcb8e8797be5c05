#include "engine/plan/verification/verify.h"

#include "common/status_macros.h"

namespace milepost::plan {

std::vector<int> UnrolledMicroSteps(const StepPlan& plan, const Program& program) {
  // Evaluation runs as many batches as there are, whatever a training step does.
  const bool one_only = &program == &plan.train && plan.options.MicroSteps() == 1;
  return one_only ? std::vector<int>{1} : std::vector<int>{1, 3};
}

absl::Status Verify(const StepPlan& plan) {
  MP_RETURN_IF_ERROR(VerifyLayout(plan));
  for (const Program* program : plan.Programs()) {
    const char* name = program == &plan.train      ? "train"
                       : program == &plan.evaluate ? "evaluate"
                       : program == &plan.exchange ? "exchange"
                       : program == &plan.gather   ? "gather"
                       : program == &plan.anchor   ? "anchor"
                       : program == &plan.outer    ? "outer"
                       : program == &plan.prompt   ? "prompt"
                       : program == &plan.next     ? "next"
                                                   : "score";
    MP_RETURN_IF_ERROR(Annotate(VerifyOps(plan, *program), name));
    const bool computes = program != &plan.exchange && program != &plan.gather &&
                          program != &plan.anchor && program != &plan.outer;
    if (computes) MP_RETURN_IF_ERROR(Annotate(VerifyValues(plan, *program), name));
    MP_RETURN_IF_ERROR(Annotate(VerifyOrder(plan, *program), name));
    MP_RETURN_IF_ERROR(Annotate(VerifySums(plan, *program), name));
    MP_RETURN_IF_ERROR(Annotate(VerifyRows(plan, *program), name));
    MP_RETURN_IF_ERROR(Annotate(VerifyHeads(plan, *program), name));
    MP_RETURN_IF_ERROR(Annotate(VerifyExperts(plan, *program), name));
  }
  MP_RETURN_IF_ERROR(VerifyExchange(plan));
  MP_RETURN_IF_ERROR(VerifyOuter(plan));
  return VerifyWire(plan);
}

}  // namespace milepost::plan
