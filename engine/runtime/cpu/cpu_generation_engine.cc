#include "engine/runtime/cpu/cpu_generation_engine.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "common/status_macros.h"
#include "engine/plan/planner/planner.h"
#include "engine/runtime/cpu/cpu_backend.h"
#include "engine/runtime/executor/arena.h"
#include "engine/runtime/executor/executor.h"

namespace milepost::runtime {
namespace {

class CpuDecoder : public GenerationEngine {
 public:
  explicit CpuDecoder(int threads) : backend_(threads) {}
  absl::Status Open(const v1::ModelSpec& model, plan::PlanOptions options);

  void UseThread() override { backend_.UseThreads(); }
  const plan::StepPlan& plan() const override { return plan_; }
  char* host_arena() override { return arena_->data(); }
  absl::Status Upload() override { return absl::OkStatus(); }
  absl::StatusOr<const float*> Run(const plan::Program& program, const TextPiece& piece) override;
  absl::StatusOr<const float*> RunNext(absl::Span<const TextToken> tokens) override;

 private:
  struct Bound {
    std::unique_ptr<Executor> executor;
    GenerationPlaces places;
  };
  absl::StatusOr<Bound> Bind(const plan::Program& program);
  // `last`: the row whose logits are wanted.
  absl::StatusOr<const float*> RunBound(const Bound& bound, int64_t last);

  // Declared in the order in which they refer to each other.
  CpuBackend backend_;
  plan::StepPlan plan_;
  std::optional<Arena> arena_;
  Bound prompt_;
  Bound next_;
  Bound score_;
};

absl::Status CpuDecoder::Open(const v1::ModelSpec& model, plan::PlanOptions options) {
  MP_ASSIGN_OR_RETURN(plan_, plan::PlanGeneration(model, options));
  MP_ASSIGN_OR_RETURN(CpuBackend::MatmulWorkspace workspace, backend_.CheckMatmulWorkspace(plan_));
  if (workspace.missing) {
    options.min_matmul_workspace_bytes = workspace.needed;
    MP_ASSIGN_OR_RETURN(plan_, plan::PlanGeneration(model, options));
  }
  MP_ASSIGN_OR_RETURN(arena_, Arena::Allocate(plan_.arena_bytes, kGenerationAdvice));
  backend_.Attach(arena_->data(), nullptr);
  MP_ASSIGN_OR_RETURN(prompt_, Bind(plan_.prompt));
  MP_ASSIGN_OR_RETURN(next_, Bind(plan_.next));
  if (options.scores) {
    MP_ASSIGN_OR_RETURN(score_, Bind(plan_.score));
  }
  return absl::OkStatus();
}

absl::StatusOr<CpuDecoder::Bound> CpuDecoder::Bind(const plan::Program& program) {
  Bound bound{.places = GenerationPlaces::Find(plan_, program)};
  MP_ASSIGN_OR_RETURN(bound.executor, Executor::Create(plan_, program, &backend_, nullptr));
  return bound;
}

absl::StatusOr<const float*> CpuDecoder::RunBound(const Bound& bound, int64_t last) {
  StepContext context;
  context.position = last;
  MP_RETURN_IF_ERROR(bound.executor->Run(Section::kMicroStep, context));
  return reinterpret_cast<const float*>(arena_->data() + bound.places.logits);
}

absl::StatusOr<const float*> CpuDecoder::Run(const plan::Program& program, const TextPiece& piece) {
  const Bound& bound = &program == &plan_.prompt ? prompt_ : score_;
  bound.places.Fill(piece, arena_->data());
  return RunBound(bound, static_cast<int64_t>(piece.tokens.size()) - 1);
}

absl::StatusOr<const float*> CpuDecoder::RunNext(absl::Span<const TextToken> tokens) {
  next_.places.Fill(tokens, arena_->data());
  return RunBound(next_, static_cast<int64_t>(tokens.size()) - 1);
}

}  // namespace

absl::StatusOr<std::unique_ptr<GenerationEngine>> CpuGenerationEngine(
    const v1::ModelSpec& model, const plan::PlanOptions& options) {
  auto engine = std::make_unique<CpuDecoder>(std::max(1, options.threads));
  MP_RETURN_IF_ERROR(engine->Open(model, options));
  return std::unique_ptr<GenerationEngine>(std::move(engine));
}

}  // namespace milepost::runtime
