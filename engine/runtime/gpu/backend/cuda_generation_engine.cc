#include "engine/runtime/gpu/backend/cuda_generation_engine.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "engine/plan/planner/planner.h"
#include "engine/runtime/gpu/backend/cuda_backend.h"
#include "engine/runtime/gpu/backend/tables_on_device.h"
#include "engine/runtime/gpu/device/device_executor.h"
#include "engine/runtime/gpu/device/host_mirror.h"

namespace milepost::runtime {
namespace {

class CudaDecoder : public GenerationEngine {
 public:
  explicit CudaDecoder(CudaEngineParts parts) : parts_(std::move(parts)) {}
  ~CudaDecoder() override;
  absl::Status Open(const v1::ModelSpec& model, plan::PlanOptions options);

  void UseThread() override { device().UseThread(); }
  const plan::StepPlan& plan() const override { return plan_; }
  char* host_arena() override { return parameters_->data(); }
  absl::Status Upload() override;
  absl::StatusOr<const float*> Run(const plan::Program& program, const TextPiece& piece) override;
  absl::StatusOr<const float*> RunNext(absl::Span<const TextToken> tokens) override;

 private:
  struct Bound {
    std::unique_ptr<DeviceExecutor> executor;
    GenerationPlaces places;
    int64_t runs = 0;
    std::optional<GraphId> graph;
  };

  Device& device() const { return *parts_.device; }
  absl::Status MakePlan(const v1::ModelSpec& model, plan::PlanOptions options);
  absl::Status Allocate();
  absl::Status PinWhatTravels();
  absl::StatusOr<Bound> Bind(const plan::Program& program);
  absl::Status CopyToDevice(const Bound& bound, int64_t last);
  absl::Status Enqueue(Bound& bound, const StepContext& context);
  // What was filled in. `last`: the row whose logits are wanted.
  absl::StatusOr<const float*> RunBound(Bound& bound, int64_t last);

  CudaEngineParts parts_;
  plan::StepPlan plan_;
  DeviceStreams streams_;
  std::unique_ptr<TablesOnDevice> tables_;
  std::optional<CudaBackend> backend_;
  CudaMemoryOfStep memory_;
  Bound prompt_;
  Bound next_;
  Bound score_;                           // where the plan has the program
  std::optional<HostMirror> parameters_;  // until Upload
  std::optional<HostMirror> travels_;     // pinned: inputs and logits, as in the arena
  std::optional<HostMirror> control_;     // pinned: a StepControl
};

// Pinned memory is given up by the device, which must go before what is pinned.
CudaDecoder::~CudaDecoder() {
  prompt_.executor.reset();
  next_.executor.reset();
  score_.executor.reset();
  device().DropGraphs();  // which hold the libraries' calls
  parts_.graphs.reset();
  parts_.products.reset();
  parts_.device.reset();
}

absl::Status CudaDecoder::Open(const v1::ModelSpec& model, plan::PlanOptions options) {
  MP_RETURN_IF_ERROR(MakePlan(model, options));
  MP_ASSIGN_OR_RETURN(streams_, DeviceStreams::Add(device()));
  tables_ = std::make_unique<TablesOnDevice>(&device(), streams_.compute, parts_.timeout);
  backend_.emplace(CudaServices{
      .products = parts_.products.get(), .graphs = parts_.graphs.get(), .tables = tables_.get()});
  MP_RETURN_IF_ERROR(Allocate());
  MP_ASSIGN_OR_RETURN(prompt_, Bind(plan_.prompt));
  MP_ASSIGN_OR_RETURN(next_, Bind(plan_.next));
  if (options.scores) {
    MP_ASSIGN_OR_RETURN(score_, Bind(plan_.score));
  }
  return PinWhatTravels();
}

absl::Status CudaDecoder::MakePlan(const v1::ModelSpec& model, plan::PlanOptions options) {
  options.device = plan::DeviceKind::kCuda;
  MP_ASSIGN_OR_RETURN(plan_, plan::PlanGeneration(model, options));
  CudaBackend libraries({.products = parts_.products.get(), .graphs = parts_.graphs.get()});
  return libraries.Prepare(plan_);
}

absl::Status CudaDecoder::Allocate() {
  const auto control_bytes = static_cast<int64_t>(sizeof(StepControl));
  const auto arena = device().Allocate(plan_.arena_bytes);
  if (absl::IsResourceExhausted(arena.status())) {
    return absl::ResourceExhaustedError(
        absl::StrCat(arena.status().message(), "; ", kGenerationAdvice));
  }
  MP_RETURN_IF_ERROR(arena.status());
  memory_.arena = *arena;
  MP_ASSIGN_OR_RETURN(memory_.control, device().Allocate(control_bytes));
  memory_.streams = {device().native_stream(streams_.compute),
                     device().native_stream(streams_.communication)};
  backend_->Attach(memory_);
  MP_ASSIGN_OR_RETURN(parameters_, HostMirror::Make(plan_.arena_bytes));
  MP_ASSIGN_OR_RETURN(travels_, HostMirror::Make(plan_.arena_bytes));
  MP_ASSIGN_OR_RETURN(control_, HostMirror::Make(control_bytes));
  // Slower without.
  if (const absl::Status pinned = control_->Pin(device(), {{0, control_bytes}}); !pinned.ok()) {
    parts_.note(std::string(pinned.message()));
  }
  return absl::OkStatus();
}

absl::StatusOr<CudaDecoder::Bound> CudaDecoder::Bind(const plan::Program& program) {
  Bound bound{.places = GenerationPlaces::Find(plan_, program)};
  MP_ASSIGN_OR_RETURN(bound.executor,
                      DeviceExecutor::Create(plan_, program, &*backend_, parts_.device.get(),
                                             streams_, memory_.arena));
  return bound;
}

absl::Status CudaDecoder::PinWhatTravels() {
  std::vector<HostMirror::Range> ranges;
  for (const Bound* bound : {&prompt_, &next_, &score_}) {
    if (bound->executor == nullptr) continue;
    const GenerationPlaces& at = bound->places;
    const int64_t bytes = at.rows * static_cast<int64_t>(sizeof(int32_t));
    for (const int64_t input : at.Inputs()) ranges.push_back({input, input + bytes});
    ranges.push_back({at.logits, at.logits + at.logit_rows * at.logit_row_bytes});
  }
  travels_->Pin(device(), std::move(ranges)).IgnoreError();  // slower without, which has been said
  return absl::OkStatus();
}

absl::Status CudaDecoder::Upload() {
  for (const graph::Parameter& parameter : plan_.prompt.graph.parameters) {
    const graph::Value& value = plan_.prompt.graph.values[parameter.value];
    const plan::Place& place = plan_.prompt.places[parameter.value];
    const int64_t at = plan_.buffers[place.buffer].offset + place.offset;
    MP_RETURN_IF_ERROR(device().Copy(streams_.compute, memory_.arena + at, parameters_->data() + at,
                                     graph::Elements(value.shape) * ByteSize(value.dtype)));
  }
  MP_RETURN_IF_ERROR(device().Synchronize(streams_.compute, parts_.timeout));
  parameters_.reset();
  return absl::OkStatus();
}

absl::Status CudaDecoder::CopyToDevice(const Bound& bound, int64_t last) {
  const GenerationPlaces& at = bound.places;
  for (const int64_t offset : at.Inputs()) {
    MP_RETURN_IF_ERROR(device().Copy(streams_.compute, memory_.arena + offset,
                                     travels_->data() + offset,
                                     at.rows * static_cast<int64_t>(sizeof(int32_t))));
  }
  StepControl control;
  control.row = last;
  std::memcpy(control_->data(), &control, sizeof(control));
  return device().Copy(streams_.compute, memory_.control, control_->data(), sizeof(control));
}

// The first run loads what is loaded on first use, which a capture could not.
absl::Status CudaDecoder::Enqueue(Bound& bound, const StepContext& context) {
  constexpr Section kSections[] = {Section::kMicroStep};
  if (!parts_.capture || bound.runs++ == 0) {
    return bound.executor->Run(Section::kMicroStep, context);
  }
  if (!bound.graph.has_value()) {
    MP_ASSIGN_OR_RETURN(bound.graph, bound.executor->Capture(kSections, context));
  }
  return bound.executor->Launch(*bound.graph);
}

absl::StatusOr<const float*> CudaDecoder::Run(const plan::Program& program,
                                              const TextPiece& piece) {
  Bound& bound = &program == &plan_.prompt ? prompt_ : score_;
  bound.places.Fill(piece, travels_->data());
  return RunBound(bound, static_cast<int64_t>(piece.tokens.size()) - 1);
}

absl::StatusOr<const float*> CudaDecoder::RunNext(absl::Span<const TextToken> tokens) {
  next_.places.Fill(tokens, travels_->data());
  return RunBound(next_, static_cast<int64_t>(tokens.size()) - 1);
}

absl::StatusOr<const float*> CudaDecoder::RunBound(Bound& bound, int64_t last) {
  MP_RETURN_IF_ERROR(CopyToDevice(bound, last));
  StepContext context;
  context.position = last;
  context.last_micro_step = false;  // both streams are joined behind it
  MP_RETURN_IF_ERROR(Enqueue(bound, context));
  const int64_t at = bound.places.logits;
  const int64_t rows = std::min(bound.places.logit_rows, last + 1);
  MP_RETURN_IF_ERROR(device().Copy(streams_.compute, travels_->data() + at, memory_.arena + at,
                                   rows * bound.places.logit_row_bytes));
  MP_RETURN_IF_ERROR(device().Synchronize(streams_.compute, parts_.timeout));
  return reinterpret_cast<const float*>(travels_->data() + at);
}

}  // namespace

absl::StatusOr<std::unique_ptr<GenerationEngine>> CudaGenerationEngine(
    const v1::ModelSpec& model, const plan::PlanOptions& options, CudaEngineParts parts) {
  auto engine = std::make_unique<CudaDecoder>(std::move(parts));
  MP_RETURN_IF_ERROR(engine->Open(model, options));
  return std::unique_ptr<GenerationEngine>(std::move(engine));
}

}  // namespace milepost::runtime
