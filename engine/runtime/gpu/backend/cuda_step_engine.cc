#include "engine/runtime/gpu/backend/cuda_step_engine.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "common/checksum.h"
#include "common/status_macros.h"
#include "common/steady_time.h"
#include "engine/comm/agreement.h"
#include "engine/comm/communicator.h"
#include "engine/comm/missing_ranks.h"
#include "engine/plan/fit/required_bytes.h"
#include "engine/plan/planner/planner.h"
#include "engine/runtime/executor/arena.h"
#include "engine/runtime/executor/device_failure.h"
#include "engine/runtime/gpu/backend/cuda_backend.h"
#include "engine/runtime/gpu/backend/device_plan.h"
#include "engine/runtime/gpu/backend/documents.h"
#include "engine/runtime/gpu/backend/draw_values.h"
#include "engine/runtime/gpu/backend/step_pieces.h"
#include "engine/runtime/gpu/backend/tables_on_device.h"
#include "engine/runtime/gpu/device/device_executor.h"
#include "engine/runtime/gpu/device/host_mirror.h"
#include "engine/runtime/gpu/device/staged_copy.h"
#include "engine/runtime/offload/state_disk.h"

namespace milepost::runtime {
namespace {

// "op 57 (all-gather, block 3)".
std::string DescribeOp(const plan::Program& program, int32_t index) {
  const graph::Op& op = program.ops[static_cast<size_t>(index)].op;
  const std::string block = op.block == graph::kNoBlock ? "" : absl::StrCat(", block ", op.block);
  return absl::StrCat("op ", index, " (", graph::Name(op.kind), block, ")");
}

using Range = HostMirror::Range;

Range RangeOf(const plan::StepPlan& plan, plan::BufferId id) {
  const plan::Buffer& buffer = plan.buffers[id];
  return {buffer.offset, buffer.offset + buffer.bytes};
}

// What a program takes from the host: within the arena.
struct Inputs {
  std::vector<Range> ranges;
  std::vector<int64_t> documents;  // by micro-batch: where the ids of packed ones begin
};

Inputs InputsOf(const plan::StepPlan& plan, const plan::Program& program) {
  Inputs inputs;
  for (const graph::ValueId id : program.graph.inputs) {
    const graph::Value& value = program.graph.values[id];
    const plan::Place& place = program.places[id];
    const int64_t begin = plan.buffers[place.buffer].offset + place.offset;
    inputs.ranges.push_back({begin, begin + graph::Elements(value.shape) * ByteSize(value.dtype)});
  }
  if (auto packed = PackedDocumentsOf(plan, program); packed.has_value()) {
    inputs.documents = std::move(packed->ids);
  }
  return inputs;
}

// What a step needs that a checkpoint has, and what a checkpoint has.
std::vector<Range> RangesOf(const plan::StepPlan& plan, const std::vector<plan::BufferId>& ids) {
  std::vector<Range> ranges;
  for (const plan::BufferId id : ids) ranges.push_back(RangeOf(plan, id));
  return ranges;
}

class CudaEngine : public StepEngine {
 public:
  explicit CudaEngine(CudaEngineParts parts) : parts_(std::move(parts)) {}
  ~CudaEngine() override;
  absl::Status Open(const StepEngineArguments& arguments);

  void UseThread() override { device().UseThread(); }
  const plan::StepPlan& plan() const override { return plan_; }
  std::string choices() const override { return choices_; }
  int64_t allocated_bytes() const override { return plan_.arena_bytes; }
  int64_t allocated_host_bytes() const override {
    return host_arena_.has_value() ? host_arena_->bytes() : 0;
  }
  char* mirror() override { return state_->data(); }
  char* host_arena() override { return host_arena_.has_value() ? host_arena_->data() : nullptr; }
  StateDisk* disk() override { return disk_.get(); }
  int64_t beside_bytes() const override {
    return layout_.bytes + static_cast<int64_t>(sizeof(kernels::cuda::UpdateControl)) +
           tables_->bytes();
  }
  absl::Status Upload(bool base) override;
  absl::Status UploadInitial(InitialDrawn drawn, InitialBytes initial) override;
  absl::Status Download() override;
  absl::Status UploadErrors() override;

  int64_t most_documents() const override {
    return backend_->takes_documents() ? layout_.documents->max_documents
                                       : StepEngine::most_documents();
  }

  int64_t most_targets(size_t head) const override { return most_targets_[head]; }

  absl::StatusOr<const HostInputs*> NextInputs() override;
  absl::Status MicroStep(const StepContext& context) override;
  absl::StatusOr<absl::Span<const double>> FinishStep(const StepContext& context) override;

  bool may_have_updated() const override { return updating_; }

  absl::Status ExchangeAverages(bool take) override {
    return exchange_->Run(Section::kMicroStep, {.last_micro_step = false, .take_averages = take});
  }
  absl::Status GatherExchanged() override;

  absl::Status KeepAnchors() override {
    return anchor_->Run(Section::kMicroStep, {.last_micro_step = false});
  }
  absl::Status OuterStep() override;

  absl::Status BeginEvaluation() override;
  absl::StatusOr<const HostInputs*> NextEvaluationInputs() override;
  absl::Status EvaluateBatch(const StepContext& context) override;
  absl::StatusOr<absl::Span<double>> FinishEvaluation() override;

  StreamTimes stream_times() const override { return pieces_->stream_times(); }
  std::vector<OpKindTime> Times() const override { return pieces_->op_times(); }

 private:
  // What the host fills for one micro-step.
  struct Slot {
    HostMirror inputs;
    HostMirror control;
    std::vector<HostInputs> train;  // by micro-batch that the program takes
    HostInputs evaluate;
    EventId copied = 0;
  };

  Device& device() const { return *parts_.device; }
  absl::Status Late(absl::Duration patience) const;
  absl::Status WaitFor(absl::FunctionRef<absl::Status(absl::Duration)> wait) {
    return WaitFor(parts_.timeout, wait);
  }
  absl::Status WaitFor(absl::Duration patience,
                       absl::FunctionRef<absl::Status(absl::Duration)> wait);
  absl::Status Synchronize() {
    return WaitFor([this](absl::Duration timeout) { return train_->Synchronize(timeout); });
  }
  HostSide HostSideOfStep() { return {memory_.host_arena, rank_, &*numbers_}; }
  // What has come from a rank that failed is not used.
  absl::Status AwaitNumbers(StreamId stream) {
    MP_RETURN_IF_ERROR(
        WaitFor([&](absl::Duration time) { return device().Synchronize(stream, time); }));
    return communicators_.Health();
  }
  absl::Status Choose(const StepEngineArguments& arguments);
  absl::Status CheckSameProducts();
  absl::StatusOr<std::string> ChooseOfStage(int stage, const v1::JobSpec& spec,
                                            const plan::PlanOptions& options);
  absl::Status AllocateOnDevice(const std::string& state_folder);
  absl::Status Bind();
  bool Pinned(const absl::Status& status);
  absl::StatusOr<Slot> MakeSlot(const data::TrainingData& data);
  absl::StatusOr<Slot*> NextSlot();
  absl::StatusOr<bool> WriteTables(const Inputs& inputs, const Slot& slot);
  void NoteDocuments();
  std::vector<StagedCopy::Transfer> Transfers(const std::vector<plan::BufferId>& buffers,
                                              bool to_device) const;
  absl::Status CopySlot(const Inputs& inputs, const StepContext& context);
  absl::StatusOr<absl::Span<double>> ReadScalars();

  CudaEngineParts parts_;
  int rank_ = 0;
  bool open_ = false;
  std::string choices_;
  plan::StepPlan plan_;
  ControlLayout layout_;
  DeviceStreams streams_;
  std::unique_ptr<TablesOnDevice> tables_;
  comm::Communicator* host_communicator_ = nullptr;
  DeviceCommunicators communicators_;
  std::optional<CudaBackend> backend_;
  CudaMemoryOfStep memory_;
  std::optional<HostNumbers> numbers_;
  std::unique_ptr<DeviceExecutor> train_;
  std::unique_ptr<DeviceExecutor> evaluate_;
  std::unique_ptr<DeviceExecutor> exchange_;
  std::unique_ptr<DeviceExecutor> gather_;
  std::unique_ptr<DeviceExecutor> anchor_;
  std::unique_ptr<DeviceExecutor> outer_;
  std::optional<StepPieces> pieces_;

  std::optional<Arena> host_arena_;  // pinned; where something is offloaded
  std::unique_ptr<StateDisk> disk_;  // where states are on disk
  std::optional<HostMirror> state_;
  std::optional<StagedCopy> staged_;   // to and from it
  std::optional<HostMirror> scalars_;  // pinned; their buffer alone
  std::vector<int64_t> most_targets_;  // by loss head
  Inputs train_inputs_;
  Inputs evaluate_inputs_;
  std::vector<Slot> slots_;
  int64_t turn_ = 0;  // of the slots
  // Of the micro-batches that the next run of the training program takes: how many are there, and
  // what the run is given.
  size_t filled_ = 0;
  StepContext run_;
  bool noted_documents_ = false;
  bool noted_pinning_ = false;
  bool updating_ = false;  // an update has been enqueued, and is not known to have been done
};

// Pinned memory is given up by the device, which must go before what is pinned; and first all that
// is on the device, where something may still wait for peers after a failure.
CudaEngine::~CudaEngine() {
  if (!open_ || !host_communicator_->Check().ok()) communicators_.Abort("training has failed");
  device().StopHostWork();
  device().DropGraphs();  // a communicator ends only once no graph holds its calls
  communicators_.Close();
  parts_.graphs.reset();
  parts_.products.reset();
  parts_.device.reset();
  // Host work that was under way was theirs.
  for (auto* each : {&train_, &evaluate_, &exchange_, &gather_, &anchor_, &outer_}) each->reset();
}

absl::Status CudaEngine::Open(const StepEngineArguments& arguments) {
  host_communicator_ = arguments.communicator;
  rank_ = host_communicator_->rank();
  MP_RETURN_IF_ERROR(Choose(arguments));
  parts_.timeout = StepTimeout(plan_, arguments.threads, parts_.timeout);
  MP_ASSIGN_OR_RETURN(streams_, DeviceStreams::Add(device(), plan_.options));
  MP_RETURN_IF_ERROR(communicators_.Open(plan_, parts_.communicator));
  parts_.capture &= communicators_.capturable();
  tables_ = std::make_unique<TablesOnDevice>(&device(), streams_.compute, parts_.timeout);
  backend_.emplace(CudaServices{.products = parts_.products.get(),
                                .graphs = parts_.graphs.get(),
                                .tables = tables_.get(),
                                .communicator = communicators_.Of(plan::Stream::kCommunication),
                                .activations = communicators_.Of(plan::Stream::kStageActivations),
                                .gradients = communicators_.Of(plan::Stream::kStageGradients)});
  memory_.seed = arguments.spec.train().seed();
  memory_.host_threads = std::max(1, arguments.threads);
  MP_RETURN_IF_ERROR(AllocateOnDevice(arguments.state_folder));
  MP_RETURN_IF_ERROR(Bind());
  most_targets_ = MostTargets(plan_.train);
  train_inputs_ = InputsOf(plan_, plan_.train);
  evaluate_inputs_ = InputsOf(plan_, plan_.evaluate);
  for (int i = 0; i < 2; ++i) {
    MP_ASSIGN_OR_RETURN(Slot slot, MakeSlot(arguments.data));
    slots_.push_back(std::move(slot));
  }
  // What allocates may wait for all that is on the device: no rank begins before all have.
  MP_RETURN_IF_ERROR(host_communicator_->Barrier());
  MP_RETURN_IF_ERROR(communicators_.ConnectStages(plan_, rank_, memory_.arena, parts_.device.get(),
                                                  streams_, parts_.timeout));
  open_ = true;
  return host_communicator_->Barrier();
}

// The first rank chooses first, and the others as it has: the ranks of a stage have the same plan,
// and the job's bits are not to depend on which of its hosts was the faster one at something.
// Another stage may have products of its own: for these its first rank chooses.
absl::Status CudaEngine::Choose(const StepEngineArguments& arguments) {
  MP_ASSIGN_OR_RETURN(plan::PlanOptions options,
                      plan::OptionsFromSpec(arguments.spec, arguments.threads));
  options.stage = options.StageOf(rank_);
  options.expert_rank = options.ExpertRank(rank_);
  choices_ = arguments.choices;
  for (int stage = 0; stage < options.pipeline; ++stage) {
    MP_ASSIGN_OR_RETURN(choices_, ChooseOfStage(stage, arguments.spec, options));
  }
  return CheckSameProducts();
}

// Tensor ranks compute the same beside each other, and so do all ranks with factors of gradients.
// Each keeps what it has computed: with other products they would drift apart. Of stages each has
// choices of its own.
absl::Status CudaEngine::CheckSameProducts() {
  const plan::PlanOptions& options = plan_.options;
  if (options.ModelRanks() == 1 && options.powersgd_rank == 0) return absl::OkStatus();
  comm::Facts facts = {{"GPU and library", parts_.products->identity()}};
  if (options.powersgd_rank > 0) {
    facts.emplace_back("chosen products",
                       absl::StrCat(absl::Hex(Xxh3(parts_.products->Choices()))));
  }
  return Annotate(comm::CheckAgreement(*host_communicator_, facts),
                  "resources.mesh and train.powersgd need ranks that are alike: give GPUs of one "
                  "kind (resources.device_model)");
}

// What the ranks know then.
absl::StatusOr<std::string> CudaEngine::ChooseOfStage(int stage, const v1::JobSpec& spec,
                                                      const plan::PlanOptions& options) {
  const int first = stage * options.tensor;
  kernels::cuda::DeviceProducts& products = *parts_.products;
  if (rank_ == first) {
    const absl::Status used = choices_.empty() ? absl::OkStatus() : products.UseChoices(choices_);
    if (!used.ok()) parts_.note(absl::StrCat(used.message(), "; chosen anew"));
    MP_ASSIGN_OR_RETURN(plan_, PlanOnDevice(spec, options, products, *parts_.graphs));
    return comm::BroadcastText(*host_communicator_, products.Choices(), first);
  }
  MP_ASSIGN_OR_RETURN(std::string choices, comm::BroadcastText(*host_communicator_, "", first));
  if (options.stage != stage) return choices;
  MP_RETURN_IF_ERROR(products.UseChoices(choices));
  MP_ASSIGN_OR_RETURN(plan_, PlanOnDevice(spec, options, products, *parts_.graphs));
  return choices;
}

absl::Status CudaEngine::AllocateOnDevice(const std::string& state_folder) {
  layout_ = ControlLayoutOf(plan_, plan_.options.DataRank(rank_));
  MP_ASSIGN_OR_RETURN(memory_.arena, device().Allocate(plan_.arena_bytes));
  for (const std::string& note : communicators_.Register(memory_.arena, plan_.arena_bytes)) {
    parts_.note(note);
  }
  MP_ASSIGN_OR_RETURN(memory_.control, device().Allocate(layout_.bytes));
  MP_ASSIGN_OR_RETURN(char* update, device().Allocate(sizeof(kernels::cuda::UpdateControl)));
  memory_.update = reinterpret_cast<kernels::cuda::UpdateControl*>(update);
  for (int s = 0; s < plan::kStreams; ++s) {
    const StreamId stream = streams_.Of(static_cast<plan::Stream>(s));
    if (stream >= 0) memory_.streams[s] = device().native_stream(stream);
  }
  if (plan_.host_arena_bytes > 0) {
    MP_ASSIGN_OR_RETURN(host_arena_, Arena::Allocate(plan_.host_arena_bytes));
    // No capture takes copies of memory that is not pinned.
    parts_.capture &= Pinned(device().Pin(host_arena_->data(), plan_.host_arena_bytes));
    memory_.host_arena = host_arena_->data();
  }
  if (plan_.options.offload_disk) {
    MP_ASSIGN_OR_RETURN(disk_, StateDisk::Open(plan_, state_folder, rank_, host_arena()));
    memory_.disk = disk_.get();
  }
  MP_ASSIGN_OR_RETURN(state_, HostMirror::Make(plan_.arena_bytes));
  MP_ASSIGN_OR_RETURN(staged_, StagedCopy::Make(&device(), streams_.compute, memory_.host_threads));
  // Not within the state, which is too large to pin: a copy must not lie in both kinds of memory.
  const int64_t scalar_bytes = plan_.buffers[plan_.scalars].bytes;
  MP_ASSIGN_OR_RETURN(scalars_, HostMirror::Make(scalar_bytes));
  Pinned(scalars_->Pin(device(), {{0, scalar_bytes}}));
  return absl::OkStatus();
}

absl::Status CudaEngine::Bind() {
  MP_ASSIGN_OR_RETURN(numbers_, HostNumbers::Make({&plan_.train, &plan_.evaluate}));
  Pinned(numbers_->Pin(device()));
  numbers_->SetWait([this](StreamId stream) { return AwaitNumbers(stream); });
  // A replay would move as many rows as the step that was captured.
  parts_.capture &= numbers_->empty();
  memory_.numbers = &*numbers_;
  backend_->Attach(memory_);
  MP_ASSIGN_OR_RETURN(
      train_, DeviceExecutor::Create(plan_, plan_.train, &*backend_, parts_.device.get(), streams_,
                                     memory_.arena, HostSideOfStep()));
  MP_ASSIGN_OR_RETURN(evaluate_,
                      DeviceExecutor::Create(plan_, plan_.evaluate, &*backend_, parts_.device.get(),
                                             streams_, memory_.arena, HostSideOfStep()));
  const auto on_groups = [this](const plan::Program& program) {
    return DeviceExecutor::Create(plan_, program, &*backend_, parts_.device.get(), streams_,
                                  memory_.arena);
  };
  MP_ASSIGN_OR_RETURN(exchange_, on_groups(plan_.exchange));
  MP_ASSIGN_OR_RETURN(gather_, on_groups(plan_.gather));
  MP_ASSIGN_OR_RETURN(anchor_, on_groups(plan_.anchor));
  MP_ASSIGN_OR_RETURN(outer_, on_groups(plan_.outer));
  pieces_.emplace(StepPiecesOptions{.device = parts_.device.get(),
                                    .train = &plan_.train,
                                    .capture = parts_.capture,
                                    .powersgd_start = plan_.options.powersgd_start,
                                    .note = parts_.note});
  return absl::OkStatus();
}

// Copies work without, more slowly: a host that pins no more memory (ulimit -l, a container) trains
// all the same.
bool CudaEngine::Pinned(const absl::Status& status) {
  if (status.ok()) return true;
  if (!std::exchange(noted_pinning_, true)) {
    parts_.note(absl::StrCat("the host pins no memory, so copies to and from the GPU are slower: ",
                             std::string(status.message()), "; raise ulimit -l"));
  }
  return false;
}

absl::StatusOr<CudaEngine::Slot> CudaEngine::MakeSlot(const data::TrainingData& data) {
  MP_ASSIGN_OR_RETURN(HostMirror inputs, HostMirror::Make(plan_.arena_bytes));
  MP_ASSIGN_OR_RETURN(HostMirror control, HostMirror::Make(layout_.bytes));
  Slot slot{.inputs = std::move(inputs), .control = std::move(control)};
  std::vector<Range> ranges = train_inputs_.ranges;
  ranges.insert(ranges.end(), evaluate_inputs_.ranges.begin(), evaluate_inputs_.ranges.end());
  Pinned(slot.inputs.Pin(device(), std::move(ranges)));
  Pinned(slot.control.Pin(device(), {{0, layout_.bytes}}));
  const int context_rank = plan_.options.ContextRank(rank_);
  for (int64_t micro_batch = 0; micro_batch < MicroBatchesOfRun(plan_); ++micro_batch) {
    MP_ASSIGN_OR_RETURN(slot.train.emplace_back(),
                        HostInputs::Find(plan_, plan_.train, slot.inputs.data(), *data.train,
                                         micro_batch, context_rank));
  }
  if (data.validation != nullptr) {
    MP_ASSIGN_OR_RETURN(
        slot.evaluate, HostInputs::Find(plan_, plan_.evaluate, slot.inputs.data(), *data.validation,
                                        /*micro_batch=*/0, context_rank));
  }
  MP_ASSIGN_OR_RETURN(slot.copied, device().AddEvent());
  return slot;
}

// Without peers it is the device that hangs. With them all are in one collective, but for those who
// have not come to it. Of a pipeline's stages, whose programs differ, only the steps compare.
absl::Status CudaEngine::Late(absl::Duration patience) const {
  std::string text =
      absl::StrCat("the GPU's work is not done after ", absl::FormatDuration(patience));
  const std::optional<StepPieces::UnderWay> now = pieces_->FirstUnderWay();
  if (now) absl::StrAppend(&text, "; under way: ", DescribeOp(plan_.train, now->op));
  if (host_communicator_->world() == 1) return DeviceFailure(absl::InternalError(text));
  const auto ops = static_cast<int64_t>(plan_.train.ops.size());
  int64_t position = static_cast<int64_t>(turn_) * 3 * (ops + 1);
  if (plan_.options.pipeline > 1) {
    position = turn_;
  } else if (now) {
    position += now->micro_step * (ops + 1) + now->op + 1;
  }
  return absl::DeadlineExceededError(
      absl::StrCat(text, comm::MissingRanks(*host_communicator_, position)));
}

// In pieces, since a communicator may know of a peer that the device waits for in vain. Nothing is
// left on the device for ever then: it would not even be given up.
absl::Status CudaEngine::WaitFor(absl::Duration patience,
                                 absl::FunctionRef<absl::Status(absl::Duration)> wait) {
  constexpr absl::Duration kPiece = absl::Seconds(1);
  const absl::Time deadline = SteadyNow() + patience;
  while (true) {
    const absl::Status status = wait(std::min(kPiece, parts_.timeout));
    if (!absl::IsDeadlineExceeded(status)) return status;
    MP_RETURN_IF_ERROR(communicators_.Health());
    // Aborted, though the device still waits for a peer.
    const absl::Status aborted = host_communicator_->Check();
    if (aborted.ok() && SteadyNow() < deadline) continue;
    const absl::Status late = aborted.ok() ? Late(patience) : aborted;
    device().DropGraphs();  // as in the destructor; nothing runs after this
    communicators_.Abort(late.message());
    return late;
  }
}

// Between the mirror and the arena.
std::vector<StagedCopy::Transfer> CudaEngine::Transfers(const std::vector<plan::BufferId>& buffers,
                                                        bool to_device) const {
  std::vector<StagedCopy::Transfer> transfers;
  for (const Range& range : RangesOf(plan_, buffers)) {
    char* const mirrored = state_->data() + range.begin;
    char* const on_device = memory_.arena + range.begin;
    transfers.push_back({.to = to_device ? on_device : mirrored,
                         .from = to_device ? mirrored : on_device,
                         .bytes = range.end - range.begin});
  }
  return transfers;
}

absl::Status CudaEngine::Upload(bool base) {
  MP_RETURN_IF_ERROR(staged_->ToDevice(
      Transfers(plan::StateOnDevice(plan_, /*with_parameters=*/true, base), /*to_device=*/true),
      parts_.timeout));
  MP_RETURN_IF_ERROR(Synchronize());
  state_->Clear();  // until there is a checkpoint
  return absl::OkStatus();
}

// Without the mirror: what is made where it is sent from needs no pages of its own, which cost more
// than the numbers in them.
absl::Status CudaEngine::UploadInitial(InitialDrawn drawn, InitialBytes initial) {
  const auto compute = static_cast<size_t>(plan::Stream::kCompute);
  for (const plan::BufferId id : plan::InitialisedOnDevice(plan_)) {
    if (const auto values = drawn(id); values.has_value()) {
      MP_RETURN_IF_ERROR(DrawValues(plan_, *values, memory_.arena, memory_.streams[compute]));
      continue;
    }
    const Range range = RangeOf(plan_, id);
    const auto source = [&](int64_t begin, int64_t bytes, char* at) {
      initial(id, begin, bytes, at);
    };
    MP_RETURN_IF_ERROR(staged_->ToDevice(memory_.arena + range.begin, range.end - range.begin,
                                         source, parts_.timeout));
  }
  MP_RETURN_IF_ERROR(Synchronize());
  state_->Clear();
  return absl::OkStatus();
}

// Also after an abort.
absl::Status CudaEngine::Download() {
  return staged_->ToHost(
      Transfers(plan::StateOnDevice(plan_, /*with_parameters=*/false, /*base=*/false),
                /*to_device=*/false),
      parts_.timeout);
}

absl::Status CudaEngine::UploadErrors() {
  std::vector<plan::BufferId> errors;
  for (const plan::FlatGroup& group : plan_.groups) {
    if (group.Compressed()) errors.push_back(group.error_buffer);
  }
  MP_RETURN_IF_ERROR(staged_->ToDevice(Transfers(errors, /*to_device=*/true), parts_.timeout));
  return Synchronize();
}

absl::StatusOr<CudaEngine::Slot*> CudaEngine::NextSlot() {
  Slot& slot = slots_[turn_ % slots_.size()];
  MP_RETURN_IF_ERROR(
      WaitFor([&](absl::Duration timeout) { return device().Await(slot.copied, timeout); }));
  return &slot;
}

// The tables of the slot's documents, where the library's attention wants some: whether they hold
// all of them.
absl::StatusOr<bool> CudaEngine::WriteTables(const Inputs& inputs, const Slot& slot) {
  if (!backend_->takes_documents()) return true;
  for (size_t i = 0; i < inputs.documents.size(); ++i) {
    const char* ids = slot.inputs.data() + inputs.documents[i];
    MP_ASSIGN_OR_RETURN(const bool fit, WriteDocumentTables(layout_, static_cast<int64_t>(i),
                                                            reinterpret_cast<const int32_t*>(ids),
                                                            slot.control.data()));
    if (!fit) return false;
  }
  return true;
}

void CudaEngine::NoteDocuments() {
  if (std::exchange(noted_documents_, true)) return;
  parts_.note(absl::StrCat("a micro-batch has more than ", layout_.documents->max_documents,
                           " documents: such ones take slower attention kernels"));
}

// The slot that was filled, to the device; the next turn is the other's.
absl::Status CudaEngine::CopySlot(const Inputs& inputs, const StepContext& context) {
  Slot& slot = slots_[turn_++ % slots_.size()];
  if (context.many_documents) {
    NoteDocuments();
  } else {
    MP_ASSIGN_OR_RETURN(const bool fit, WriteTables(inputs, slot));
    if (!fit) return absl::InternalError("more documents than the ranks were told of");
  }
  for (const Range& range : inputs.ranges) {
    MP_RETURN_IF_ERROR(device().Copy(streams_.compute, memory_.arena + range.begin,
                                     slot.inputs.data() + range.begin, range.end - range.begin));
  }
  WriteControl(plan_, plan_.options.DataRank(rank_), layout_, context,
               {.loss_scale = context.loss_scale, .max_norm = context.clip_norm},
               slot.control.data());
  MP_RETURN_IF_ERROR(
      device().Copy(streams_.compute, memory_.control, slot.control.data(), layout_.bytes));
  return device().Record(slot.copied, streams_.compute);
}

absl::StatusOr<const HostInputs*> CudaEngine::NextInputs() {
  MP_ASSIGN_OR_RETURN(Slot * slot, NextSlot());
  return &slot->train[filled_];
}

// A run has the first of its micro-batches' context, but for what is of the step's end; where one
// of them has many documents, all take the kernels for these.
absl::Status CudaEngine::MicroStep(const StepContext& context) {
  if (filled_ == 0) run_ = context;
  run_.last_micro_step = context.last_micro_step;
  run_.many_documents |= context.many_documents;
  if (++filled_ < static_cast<size_t>(layout_.micro_batches)) return absl::OkStatus();
  filled_ = 0;
  MP_RETURN_IF_ERROR(CopySlot(train_inputs_, run_));
  // The step before has been waited for.
  if (run_.last_micro_step) train_->SetHostContext(run_);
  updating_ = run_.last_micro_step;
  return pieces_->MicroStep(*train_, run_);
}

// The update is part of the last micro-step already.
absl::StatusOr<absl::Span<const double>> CudaEngine::FinishStep(const StepContext&) {
  MP_ASSIGN_OR_RETURN(const absl::Span<double> scalars, ReadScalars());
  if (disk_ != nullptr) MP_RETURN_IF_ERROR(disk_->AwaitAll());
  updating_ = false;
  pieces_->ReadTimers();
  return absl::Span<const double>(scalars);
}

absl::StatusOr<absl::Span<double>> CudaEngine::ReadScalars() {
  const Range range = RangeOf(plan_, plan_.scalars);
  MP_RETURN_IF_ERROR(device().Copy(streams_.compute, scalars_->data(), memory_.arena + range.begin,
                                   range.end - range.begin));
  MP_RETURN_IF_ERROR(Synchronize());
  MP_RETURN_IF_ERROR(communicators_.Health());
  return absl::Span<double>(reinterpret_cast<double*>(scalars_->data()),
                            static_cast<size_t>(range.end - range.begin) / sizeof(double));
}

// It is waited for: whoever reads the state afterwards does not depend on peers.
absl::Status CudaEngine::GatherExchanged() {
  MP_RETURN_IF_ERROR(gather_->Run(Section::kMicroStep, {.last_micro_step = false}));
  MP_RETURN_IF_ERROR(Synchronize());
  return communicators_.Health();
}

absl::Status CudaEngine::OuterStep() {
  updating_ = true;
  MP_RETURN_IF_ERROR(outer_->Run(Section::kMicroStep, {.last_micro_step = false}));
  MP_RETURN_IF_ERROR(WaitFor(
      kIslandPatience, [this](absl::Duration timeout) { return outer_->Synchronize(timeout); }));
  MP_RETURN_IF_ERROR(communicators_.Health());
  updating_ = false;
  return absl::OkStatus();
}

absl::Status CudaEngine::BeginEvaluation() {
  const int64_t first = plan::LossScalar(0);
  const int64_t count = plan_.ReducedScalars() - first;
  return device().Zero(streams_.compute,
                       memory_.arena + RangeOf(plan_, plan_.scalars).begin + first * sizeof(double),
                       count * static_cast<int64_t>(sizeof(double)));
}

absl::StatusOr<const HostInputs*> CudaEngine::NextEvaluationInputs() {
  MP_ASSIGN_OR_RETURN(Slot * slot, NextSlot());
  return &slot->evaluate;
}

absl::Status CudaEngine::EvaluateBatch(const StepContext& context) {
  MP_RETURN_IF_ERROR(CopySlot(evaluate_inputs_, context));
  return pieces_->EvaluateBatch(*evaluate_, context);
}

absl::StatusOr<absl::Span<double>> CudaEngine::FinishEvaluation() { return ReadScalars(); }

}  // namespace

absl::StatusOr<std::unique_ptr<StepEngine>> CudaStepEngine(const StepEngineArguments& arguments,
                                                           CudaEngineParts parts) {
  auto engine = std::make_unique<CudaEngine>(std::move(parts));
  MP_RETURN_IF_ERROR(engine->Open(arguments));
  return std::unique_ptr<StepEngine>(std::move(engine));
}

}  // namespace milepost::runtime
