#include "engine/runtime/gpu/backend/step_pieces.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace milepost::runtime {
namespace {

constexpr int64_t kTurnsOpByOp = 2;     // of a kind of micro-step, before it is captured
constexpr int64_t kOpsTimedEvery = 16;  // turns that are op by op

}  // namespace

StepPieces::StepPieces(StepPiecesOptions options) : options_(std::move(options)) {
  for (Piece& piece : micro_steps_) {
    piece.timer = std::make_unique<PieceTimer>(options_.device, options_.train);
  }
}

absl::Status StepPieces::MicroStep(DeviceExecutor& executor, const StepContext& context) {
  constexpr Section kSections[] = {Section::kMicroStep, Section::kReduce, Section::kUpdate};
  const absl::Span<const Section> sections(kSections, context.last_micro_step ? 3 : 1);
  const int kind = (context.first_micro_step ? 1 : 0) + (context.last_micro_step ? 2 : 0) +
                   (context.many_documents ? 4 : 0) + (context.many_targets ? 8 : 0) +
                   (context.last_micro_step && context.step < options_.powersgd_start ? 16 : 0);
  return Run(executor, sections, context, micro_steps_[kind]);
}

absl::Status StepPieces::EvaluateBatch(DeviceExecutor& executor, const StepContext& context) {
  constexpr Section kSections[] = {Section::kMicroStep};
  return Run(executor, kSections, context, evaluation_[context.many_documents ? 1 : 0]);
}

// The first turn loads what is loaded on first use, which a capture could not; the second shows
// what ops take.
absl::Status StepPieces::Run(DeviceExecutor& executor, absl::Span<const Section> sections,
                             const StepContext& context, Piece& piece) {
  PieceTimer* timer = piece.timer.get();
  if (timer == nullptr || piece.runs_to_read == 0) ++piece.turns;
  ++piece.runs_to_read;
  // Nor is what the first step alone does captured.
  if (!options_.capture || piece.turns <= kTurnsOpByOp || context.new_scalings) {
    if (timer != nullptr) timer->Restart(/*by_op=*/piece.turns % kOpsTimedEvery == 2);
    for (const Section section : sections) {
      MP_RETURN_IF_ERROR(executor.Run(section, context, timer));
    }
    return absl::OkStatus();
  }
  if (!piece.graph.has_value()) {
    if (timer != nullptr) timer->Restart(/*by_op=*/false);
    MP_ASSIGN_OR_RETURN(piece.graph, executor.Capture(sections, context, timer));
  }
  return executor.Launch(*piece.graph);
}

// The host has just waited for all of the step. No training ends because its times are not known.
void StepPieces::ReadTimers() {
  for (Piece& piece : micro_steps_) {
    const int64_t runs = std::exchange(piece.runs_to_read, 0);
    if (runs == 0 || !timed_) continue;
    const absl::Status status = piece.timer->Read(runs, &times_, &op_times_);
    if (status.ok()) continue;
    timed_ = false;
    options_.note(absl::StrCat("where the GPU's time goes is not known from here on: ",
                               std::string(status.message())));
  }
}

std::optional<StepPieces::UnderWay> StepPieces::FirstUnderWay() const {
  std::optional<UnderWay> first;
  for (size_t kind = 0; kind < micro_steps_.size(); ++kind) {
    if (micro_steps_[kind].runs_to_read == 0) continue;
    const std::vector<int32_t> ops = micro_steps_[kind].timer->UnderWay();
    if (ops.empty()) continue;
    const UnderWay its{.micro_step = (kind & 2) != 0   ? 2
                                     : (kind & 1) != 0 ? 0
                                                       : 1,
                       .op = ops.front()};
    const bool earlier =
        !first || std::pair(its.micro_step, its.op) < std::pair(first->micro_step, first->op);
    if (earlier) first = its;
  }
  return first;
}

}  // namespace milepost::runtime
