#include "engine/runtime/gpu/backend/diff_engine.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "engine/comm/communicator.h"
#include "engine/plan/planner/planner.h"
#include "engine/runtime/cpu/cpu_backend.h"
#include "engine/runtime/executor/arena.h"
#include "engine/runtime/executor/executor.h"
#include "engine/runtime/executor/op_binding.h"
#include "engine/runtime/gpu/backend/cuda_backend.h"
#include "engine/runtime/gpu/backend/device_plan.h"
#include "engine/runtime/gpu/backend/documents.h"
#include "engine/runtime/gpu/backend/tables_on_device.h"

namespace milepost::runtime {
namespace {

using graph::OpKind;

// Of a gradient that may be zero but for rounding: what it is compared with at least, as a part of
// the norm of what it sums up.
constexpr double kCancelled = 0.05;

// Bytes that an op reads or writes, on both sides.
struct Piece {
  OpDiff::Tensor tensor;
  char* cpu = nullptr;
  char* device = nullptr;
  int64_t bytes = 0;
  bool reads = false;
  bool writes = false;
  int output = -1;  // its place among the op's
};

// What lies in the buffers of flat groups and of the step's scalars.
std::map<plan::BufferId, DType> TypesOf(const plan::StepPlan& plan) {
  std::map<plan::BufferId, DType> types;
  for (const plan::FlatGroup& group : plan.groups) {
    const DType state = plan::IsQuantized(group.optimizer) ? DType::kU8 : group.state_dtype;
    for (const plan::BufferId buffer : group.state_buffers) types[buffer] = state;
    types[group.parameter_buffer] = group.parameter_dtype;
    types[group.gradient_shard_buffer] = plan.options.grad_dtype;
  }
  for (const plan::BufferId scalars : {plan.scalars, plan.update_norms}) {
    types[scalars] = DType::kF64;
  }
  return types;  // all others hold f32
}

class Differ : public StepEngine {
 public:
  Differ(CudaEngineParts parts, int threads, std::function<void(const OpDiff&)> report)
      : parts_(std::move(parts)), report_(std::move(report)), cpu_backend_(threads) {}
  ~Differ() override {
    parts_.device->StopHostWork();
    parts_.graphs.reset();
    parts_.products.reset();
    parts_.device.reset();
  }
  absl::Status Open(const StepEngineArguments& arguments);

  void UseThread() override {
    cpu_backend_.UseThreads();
    parts_.device->UseThread();
  }
  const plan::StepPlan& plan() const override { return cpu_plan_; }
  int64_t allocated_bytes() const override { return cpu_arena_->bytes(); }
  int64_t allocated_host_bytes() const override { return 0; }
  char* mirror() override { return cpu_arena_->data(); }
  char* host_arena() override { return nullptr; }
  absl::Status Upload(bool) override { return absl::OkStatus(); }
  absl::Status Download() override { return absl::OkStatus(); }

  int64_t most_documents() const override {
    return backend_->takes_documents() ? layout_.documents->max_documents
                                       : StepEngine::most_documents();
  }
  int64_t most_targets(size_t head) const override { return most_targets_[head]; }

  absl::StatusOr<const HostInputs*> NextInputs() override { return &inputs_; }
  absl::Status MicroStep(const StepContext& context) override;
  absl::StatusOr<absl::Span<const double>> FinishStep(const StepContext& context) override;
  bool may_have_updated() const override { return updating_; }

  absl::Status ExchangeAverages(bool) override { return NoEvaluation(); }
  absl::Status GatherExchanged() override { return NoEvaluation(); }
  absl::Status KeepAnchors() override { return NoEvaluation(); }
  absl::Status OuterStep() override { return NoEvaluation(); }
  absl::Status BeginEvaluation() override { return NoEvaluation(); }
  absl::StatusOr<const HostInputs*> NextEvaluationInputs() override { return NoEvaluation(); }
  absl::Status EvaluateBatch(const StepContext&) override { return NoEvaluation(); }
  absl::StatusOr<absl::Span<double>> FinishEvaluation() override { return NoEvaluation(); }

  StreamTimes stream_times() const override { return {}; }
  std::vector<OpKindTime> Times() const override { return {}; }

 private:
  struct Bound {
    BoundOp cpu;
    BoundOp device;
    std::vector<Piece> pieces;
  };

  static absl::Status NoEvaluation() {
    return absl::UnimplementedError("evaluation is not compared");
  }
  Device& device() { return *parts_.device; }
  absl::Status MakePlans(const StepEngineArguments& arguments);
  absl::Status Allocate();
  absl::Status Bind();
  absl::StatusOr<std::vector<Piece>> PiecesOf(size_t op) const;
  void AddValues(size_t op, std::vector<Piece>* pieces) const;
  absl::Status AddBuffers(size_t op, std::vector<Piece>* pieces) const;

  absl::Status RunSection(Section section, const StepContext& context);
  absl::Status RunOp(size_t op, const StepContext& context);
  absl::Status Synchronize() { return device().Synchronize(stream_, parts_.timeout); }
  absl::Status ToDevice(const Piece& piece, const char* from);
  absl::Status Prepare(size_t op, const StepContext& context);
  absl::Status RunOnDevice(size_t op, const StepContext& context);
  absl::StatusOr<OpDiff::Result> CompareResult(size_t op, const Piece& piece, double least_norm,
                                               const std::vector<char>& before);
  double LeastNorm(size_t op, const Piece& result) const;
  bool IsTurned(size_t op, const Piece& piece) const;
  void Turn(size_t op, bool to_rows, std::vector<char>* lse) const;

  const plan::PlannedOp& Op(size_t op) const { return cpu_plan_.train.ops[op]; }

  // Declared in the order in which they refer to each other.
  CudaEngineParts parts_;
  const std::function<void(const OpDiff&)> report_;
  CpuBackend cpu_backend_;
  plan::StepPlan cpu_plan_;
  plan::StepPlan device_plan_;
  std::optional<Arena> cpu_arena_;
  StreamId stream_ = 0;
  ControlLayout layout_;
  std::vector<char> control_;  // the host's copy
  CudaMemoryOfStep memory_;
  std::unique_ptr<TablesOnDevice> tables_;
  std::optional<CudaBackend> backend_;
  HostInputs inputs_;
  std::vector<int64_t> most_targets_;
  std::vector<Section> sections_;
  std::vector<Bound> ops_;
  std::vector<char> staged_;
  absl::Span<double> scalars_;
  uint64_t seed_ = 0;
  int64_t micro_step_ = 0;
  bool library_documents_ = false;  // in this micro-step a library has attention's documents
  bool updating_ = false;
};

absl::Status Differ::Open(const StepEngineArguments& arguments) {
  if (arguments.communicator->world() != 1) {
    return absl::InvalidArgumentError("ops are compared on one rank: set resources.ranks: 1");
  }
  seed_ = arguments.spec.train().seed();
  MP_RETURN_IF_ERROR(MakePlans(arguments));
  MP_RETURN_IF_ERROR(Allocate());
  MP_RETURN_IF_ERROR(Bind());
  most_targets_ = MostTargets(device_plan_.train);
  MP_ASSIGN_OR_RETURN(inputs_, HostInputs::Find(cpu_plan_, cpu_plan_.train, cpu_arena_->data(),
                                                *arguments.data.train));
  const plan::Buffer& scalars = cpu_plan_.buffers[cpu_plan_.scalars];
  scalars_ = {reinterpret_cast<double*>(cpu_arena_->data() + scalars.offset),
              static_cast<size_t>(scalars.bytes) / sizeof(double)};
  return absl::OkStatus();
}

absl::Status Differ::MakePlans(const StepEngineArguments& arguments) {
  MP_ASSIGN_OR_RETURN(plan::PlanOptions options,
                      plan::OptionsFromSpec(arguments.spec, arguments.threads));
  if (options.Offloads()) {
    return absl::InvalidArgumentError(
        "train.offload: what is offloaded is the host's anyway; compare without");
  }
  options.side_by_side = 1;  // the same ops, one micro-batch at a time
  MP_ASSIGN_OR_RETURN(device_plan_,
                      PlanOnDevice(arguments.spec, options, *parts_.products, *parts_.graphs));
  // The same ops: fused alike, and heads in the same chunks.
  options.fuse_gelu = true;
  options.lm_head_chunk_bytes = device_plan_.options.LmHeadChunkBytes();
  options.device = plan::DeviceKind::kCpu;
  MP_ASSIGN_OR_RETURN(cpu_plan_, PlanOnCpu(arguments.spec, options, cpu_backend_));
  const auto& cpu = cpu_plan_.train.ops;
  const auto& device = device_plan_.train.ops;
  const bool alike = std::equal(cpu.begin(), cpu.end(), device.begin(), device.end(),
                                [](const plan::PlannedOp& a, const plan::PlannedOp& b) {
                                  return a.op.kind == b.op.kind && a.op.inputs == b.op.inputs;
                                });
  return alike ? absl::OkStatus()
               : absl::InternalError("the plans of the CPU and of the device have other ops");
}

absl::Status Differ::Allocate() {
  MP_ASSIGN_OR_RETURN(cpu_arena_, Arena::Allocate(cpu_plan_.arena_bytes));
  cpu_backend_.Attach(cpu_arena_->data(), nullptr);
  MP_ASSIGN_OR_RETURN(stream_, device().AddStream());
  layout_ = ControlLayoutOf(device_plan_, /*rank=*/0);
  control_.resize(static_cast<size_t>(layout_.bytes));
  MP_ASSIGN_OR_RETURN(memory_.arena, device().Allocate(device_plan_.arena_bytes));
  MP_ASSIGN_OR_RETURN(memory_.control, device().Allocate(layout_.bytes));
  MP_ASSIGN_OR_RETURN(char* update, device().Allocate(sizeof(kernels::cuda::UpdateControl)));
  memory_.update = reinterpret_cast<kernels::cuda::UpdateControl*>(update);
  memory_.streams.fill(device().native_stream(stream_));
  memory_.seed = seed_;
  tables_ = std::make_unique<TablesOnDevice>(&device(), stream_, parts_.timeout);
  backend_.emplace(CudaServices{
      .products = parts_.products.get(), .graphs = parts_.graphs.get(), .tables = tables_.get()});
  backend_->Attach(memory_);
  return absl::OkStatus();
}

absl::Status Differ::Bind() {
  sections_ = SectionsOf(cpu_plan_.train);
  ops_.resize(cpu_plan_.train.ops.size());
  for (size_t i = 0; i < ops_.size(); ++i) {
    const std::string name = absl::StrCat("op ", i, " (", graph::Name(Op(i).op.kind), ")");
    auto on_cpu = cpu_backend_.Bind(cpu_plan_, cpu_plan_.train, Op(i));
    if (!on_cpu.ok()) return Annotate(on_cpu.status(), name);
    auto on_device = backend_->Bind(device_plan_, device_plan_.train, device_plan_.train.ops[i]);
    if (!on_device.ok()) return Annotate(on_device.status(), name);
    MP_ASSIGN_OR_RETURN(std::vector<Piece> pieces, PiecesOf(i));
    ops_[i] = {*std::move(on_cpu), *std::move(on_device), std::move(pieces)};
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<Piece>> Differ::PiecesOf(size_t op) const {
  std::vector<Piece> pieces;
  AddValues(op, &pieces);
  // Ops on flat groups have no values.
  if (pieces.empty()) MP_RETURN_IF_ERROR(AddBuffers(op, &pieces));
  return pieces;
}

// Outputs first: what is poisoned may be an input's place.
void Differ::AddValues(size_t op, std::vector<Piece>* pieces) const {
  const OpBinding cpu = {cpu_plan_, cpu_plan_.train, Op(op), cpu_arena_->data(), 0};
  const OpBinding device = {device_plan_, device_plan_.train, device_plan_.train.ops[op],
                            memory_.arena, 0};
  const auto piece = [&](graph::ValueId id) {
    const graph::Value& value = cpu.ValueOf(id);
    return Piece{.tensor = {value.name, value.dtype, value.shape},
                 .cpu = cpu.ValueAt(id),
                 .device = device.ValueAt(id),
                 .bytes = graph::Elements(value.shape) * ByteSize(value.dtype)};
  };
  const graph::Op& made = Op(op).op;
  for (size_t i = 0; i < made.outputs.size(); ++i) {
    if (made.outputs[i].value == graph::kNoValue) continue;
    pieces->push_back(piece(made.outputs[i].value));
    pieces->back().writes = true;
    pieces->back().output = static_cast<int>(i);
  }
  for (const graph::ValueId id : made.inputs) {
    if (id == graph::kNoValue) continue;
    pieces->push_back(piece(id));
    pieces->back().reads = true;
  }
}

absl::Status Differ::AddBuffers(size_t op, std::vector<Piece>* pieces) const {
  const auto of = [](const plan::PlannedOp& planned) {
    std::vector<plan::Access> accesses;
    for (const plan::Access& access : planned.accesses) {
      if (access.buffer != planned.workspace) accesses.push_back(access);
    }
    return accesses;
  };
  const std::vector<plan::Access> cpu = of(Op(op)), device = of(device_plan_.train.ops[op]);
  const std::map<plan::BufferId, DType> types = TypesOf(cpu_plan_);
  bool alike = cpu.size() == device.size();
  for (size_t i = 0; alike && i < cpu.size(); ++i) {
    const plan::Buffer& buffer = cpu_plan_.buffers[cpu[i].buffer];
    const auto found = types.find(cpu[i].buffer);
    const DType type = found == types.end() ? DType::kF32 : found->second;
    const int64_t bytes = cpu[i].end - cpu[i].begin;
    alike = device[i].end - device[i].begin == bytes && device[i].write == cpu[i].write;
    pieces->push_back(
        {.tensor = {buffer.name, type, {bytes / ByteSize(type)}},
         .cpu = cpu_arena_->data() + buffer.offset + cpu[i].begin,
         .device = memory_.arena + device_plan_.buffers[device[i].buffer].offset + device[i].begin,
         .bytes = bytes,
         .reads = true,  // what is written is what was there, changed
         .writes = cpu[i].write});
  }
  return alike ? absl::OkStatus()
               : absl::InternalError(absl::StrCat("op ", op, " (", graph::Name(Op(op).op.kind),
                                                  ") has other buffers on the device"));
}

absl::Status Differ::MicroStep(const StepContext& context) {
  if (context.first_micro_step) micro_step_ = 0;
  WriteControl(device_plan_, /*rank=*/0, layout_, context,
               {.loss_scale = context.loss_scale, .max_norm = context.clip_norm}, control_.data());
  library_documents_ = backend_->takes_documents() && !context.many_documents;
  if (library_documents_) {
    const auto packed = PackedDocumentsOf(cpu_plan_, cpu_plan_.train);
    const char* ids = cpu_arena_->data() + packed->ids[0];
    MP_ASSIGN_OR_RETURN(
        const bool fit,
        WriteDocumentTables(layout_, 0, reinterpret_cast<const int32_t*>(ids), control_.data()));
    if (!fit) return absl::InternalError("more documents than the engine was told of");
  }
  MP_RETURN_IF_ERROR(device().Copy(stream_, memory_.control, control_.data(), layout_.bytes));
  MP_RETURN_IF_ERROR(Synchronize());
  MP_RETURN_IF_ERROR(RunSection(Section::kMicroStep, context));
  ++micro_step_;
  return absl::OkStatus();
}

absl::StatusOr<absl::Span<const double>> Differ::FinishStep(const StepContext& context) {
  MP_RETURN_IF_ERROR(RunSection(Section::kReduce, context));
  const optim::ClipResult clip = ClipOf(scalars_, context);
  StepContext update = context;
  update.skip_update = !clip.finite;
  update.clip_factor = static_cast<float>(clip.scale / context.loss_scale);
  updating_ = true;
  MP_RETURN_IF_ERROR(RunSection(Section::kUpdate, update));
  updating_ = false;
  return absl::Span<const double>(scalars_);
}

absl::Status Differ::RunSection(Section section, const StepContext& context) {
  for (size_t i = 0; i < ops_.size(); ++i) {
    if (sections_[i] != section) continue;
    if (Op(i).when == plan::When::kLastMicroStep && !context.last_micro_step) continue;
    MP_RETURN_IF_ERROR(
        Annotate(RunOp(i, context), absl::StrCat("op ", i, " (", graph::Name(Op(i).op.kind), ")")));
  }
  return absl::OkStatus();
}

absl::Status Differ::RunOp(size_t op, const StepContext& context) {
  OpDiff diff = {.step = context.step,
                 .micro_step = micro_step_,
                 .index = static_cast<int64_t>(op),
                 .kind = Op(op).op.kind,
                 .phase = Op(op).op.phase};
  MP_RETURN_IF_ERROR(Prepare(op, context));
  std::vector<double> least_norms;
  std::vector<std::vector<char>> before(ops_[op].pieces.size());  // of what is changed
  for (size_t i = 0; i < ops_[op].pieces.size(); ++i) {
    const Piece& piece = ops_[op].pieces[i];
    least_norms.push_back(LeastNorm(op, piece));
    const bool state =
        piece.writes && piece.tensor.dtype != DType::kF64 &&
        (Op(op).op.kind == OpKind::kOptimizer || Op(op).op.kind == OpKind::kUpdateNorms);
    if (state) before[i].assign(piece.cpu, piece.cpu + piece.bytes);
    if (!piece.reads) continue;
    const int64_t elements = piece.bytes / ByteSize(piece.tensor.dtype);
    diff.operands.push_back({piece.tensor, StatisticsOf(piece.tensor.dtype, piece.cpu, elements)});
  }
  MP_RETURN_IF_ERROR(RunOnDevice(op, context));
  MP_RETURN_IF_ERROR(ops_[op].cpu(context));
  for (size_t i = 0; i < ops_[op].pieces.size(); ++i) {
    const Piece& piece = ops_[op].pieces[i];
    if (!piece.writes) continue;
    MP_ASSIGN_OR_RETURN(OpDiff::Result result, CompareResult(op, piece, least_norms[i], before[i]));
    diff.results.push_back(std::move(result));
  }
  report_(diff);
  return absl::OkStatus();
}

absl::Status Differ::ToDevice(const Piece& piece, const char* from) {
  MP_RETURN_IF_ERROR(device().Copy(stream_, piece.device, from, piece.bytes));
  return Synchronize();
}

// What is not read has a NaN in every element, so that what is not written shows.
absl::Status Differ::Prepare(size_t op, const StepContext& context) {
  for (const Piece& piece : ops_[op].pieces) {
    staged_.assign(piece.cpu, piece.cpu + piece.bytes);
    if (piece.output >= 0) {
      const OpBinding::Accumulation adds = {Op(op).op.outputs[piece.output].mode};
      if (!adds.At(context)) std::fill(staged_.begin(), staged_.end(), static_cast<char>(0xff));
    } else if (IsTurned(op, piece)) {
      Turn(op, /*to_rows=*/true, &staged_);
    }
    MP_RETURN_IF_ERROR(ToDevice(piece, staged_.data()));
  }
  return absl::OkStatus();
}

absl::Status Differ::RunOnDevice(size_t op, const StepContext& context) {
  MP_RETURN_IF_ERROR(device().Enqueue(stream_, {.issue = [&] { return ops_[op].device(context); },
                                                .name = absl::StrCat(graph::Name(Op(op).op.kind)),
                                                .accesses = {}}));
  return Synchronize();
}

absl::StatusOr<OpDiff::Result> Differ::CompareResult(size_t op, const Piece& piece,
                                                     double least_norm,
                                                     const std::vector<char>& before) {
  staged_.resize(static_cast<size_t>(piece.bytes));
  MP_RETURN_IF_ERROR(device().Copy(stream_, staged_.data(), piece.device, piece.bytes));
  MP_RETURN_IF_ERROR(Synchronize());
  if (IsTurned(op, piece)) Turn(op, /*to_rows=*/false, &staged_);
  const DType type = piece.tensor.dtype;
  const int64_t elements = piece.bytes / ByteSize(type);
  const bool changed = !before.empty();
  const plan::PlanOptions& options = cpu_plan_.options;
  const bool orthogonalizes = Op(op).op.kind == graph::OpKind::kOrthogonalize;
  const DiffBounds bounds =
      BoundsOf(Op(op).op, orthogonalizes ? options.orthogonalization : options.compute_dtype, type,
               elements, changed);
  return OpDiff::Result{piece.tensor,
                        Compare(type, piece.cpu, staged_.data(), elements,
                                {.bounds = bounds,
                                 .least_norm = least_norm,
                                 .before = changed ? before.data() : nullptr}),
                        bounds};
}

// A bias's gradient sums up the rows of the last input. That of attention's keys is zero.
double Differ::LeastNorm(size_t op, const Piece& result) const {
  const bool bias = Op(op).op.kind == OpKind::kLinearBackwardWeight && result.writes &&
                    result.tensor.shape.size() == 1;
  if (!bias) return 0;
  const Piece& rows = ops_[op].pieces.back();
  return kCancelled * Norm(rows.tensor.dtype, rows.cpu, rows.bytes / ByteSize(rows.tensor.dtype));
}

// With documents a library's log-sum-exps are [N,H], where the CPU's are [B,H,T].
bool Differ::IsTurned(size_t op, const Piece& piece) const {
  if (!library_documents_) return false;
  const graph::Op& attention = Op(op).op;
  const graph::ValueId lse = attention.kind == OpKind::kAttention ? attention.outputs[1].value
                             : attention.kind == OpKind::kAttentionBackward ? attention.inputs[2]
                                                                            : graph::kNoValue;
  return lse != graph::kNoValue && piece.tensor.name == cpu_plan_.train.graph.values[lse].name;
}

void Differ::Turn(size_t op, bool to_rows, std::vector<char>* lse) const {
  const graph::Attributes& a = Op(op).op.attributes;
  auto* values = reinterpret_cast<float*>(lse->data());
  const std::vector<float> before(values, values + a.batch * a.heads * a.sequence);
  for (int64_t i = 0; i < static_cast<int64_t>(before.size()); ++i) {
    const int64_t t = i % a.sequence, head = i / a.sequence % a.heads;
    const int64_t row = i / (a.sequence * a.heads) * a.sequence + t;
    const int64_t turned = row * a.heads + head;
    values[to_rows ? turned : i] = before[to_rows ? i : turned];
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<StepEngine>> DiffEngine(const StepEngineArguments& arguments,
                                                       CudaEngineParts parts,
                                                       std::function<void(const OpDiff&)> report) {
  auto engine =
      std::make_unique<Differ>(std::move(parts), std::max(1, arguments.threads), std::move(report));
  MP_RETURN_IF_ERROR(engine->Open(arguments));
  return std::unique_ptr<StepEngine>(std::move(engine));
}

}  // namespace milepost::runtime
