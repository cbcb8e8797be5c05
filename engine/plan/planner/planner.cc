#include "engine/plan/planner/planner.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/spec/model_sizes.h"
#include "common/spec/sizes.h"
#include "common/status_macros.h"
#include "engine/graph/base_matrices.h"
#include "engine/graph/freeze.h"
#include "engine/models/model.h"
#include "engine/ops/backward.h"
#include "engine/ops/cost.h"
#include "engine/plan/compression.h"
#include "engine/plan/parameter_updates.h"
#include "engine/plan/passes/buffer_pass.h"
#include "engine/plan/passes/context_pass.h"
#include "engine/plan/passes/experts_pass.h"
#include "engine/plan/passes/flat_groups.h"
#include "engine/plan/passes/fp8_pass.h"
#include "engine/plan/passes/gather_pass.h"
#include "engine/plan/passes/gelu_pass.h"
#include "engine/plan/passes/memory_pass.h"
#include "engine/plan/passes/nf4_pass.h"
#include "engine/plan/passes/offload_pass.h"
#include "engine/plan/passes/outer_pass.h"
#include "engine/plan/passes/pipeline_pass.h"
#include "engine/plan/passes/recompute_budget.h"
#include "engine/plan/passes/recompute_pass.h"
#include "engine/plan/passes/rows_pass.h"
#include "engine/plan/passes/side_by_side_pass.h"
#include "engine/plan/passes/stream_pass.h"
#include "engine/plan/passes/tensor_pass.h"
#include "engine/plan/passes/vocabulary_pass.h"
#include "engine/plan/passes/zero_pass.h"
#include "engine/plan/pipeline/schedule.h"
#include "engine/plan/pipeline/stages.h"
#include "engine/plan/planner/option_checks.h"
#include "engine/plan/verification/verify.h"
#include "engine/plan/workspace.h"

namespace milepost::plan {
namespace {

absl::StatusOr<graph::Graph> Build(const v1::ModelSpec& model, models::Mode mode,
                                   const PlanOptions& options) {
  const int64_t rows = options.micro_batch * options.OwnSequence();
  const int64_t vocabulary = SizesOf(model).vocabulary;
  std::optional<ops::PreferenceOptions> preference;
  if (options.dpo_beta > 0) {
    preference = {.beta = options.dpo_beta, .label_smoothing = options.dpo_label_smoothing};
  }
  return models::BuildModel(
      model, {.mode = mode,
              .compute_dtype = options.compute_dtype,
              .batch = options.micro_batch,
              .sequence = options.OwnSequence(),
              .lm_head_chunk_rows = vocabulary < 1
                                        ? 0
                                        : LmHeadChunkRows(rows, vocabulary, options.compute_dtype,
                                                          options.LmHeadChunkBytes()),
              .documents = options.documents,
              .segments = options.segments,
              .preference = preference});
}

void FreezeParameters(const ParameterUpdates& updates, graph::Graph& graph) {
  std::vector<bool> frozen;
  for (const ParameterUpdate& update : updates.by_parameter) frozen.push_back(update.frozen);
  if (absl::c_linear_search(frozen, true)) graph::FreezeParameters(graph, frozen);
}

int64_t WorkOf(const graph::Graph& graph) {
  int64_t work = 0;
  for (const graph::Op& op : graph.ops) work += plan::WorkOf(op);
  return work;
}

// What tensor ranks multiply alike of the heads of keys that they share, beyond what one of them
// would: the model does it once.
class SharedHeads {
 public:
  explicit SharedHeads(const graph::Graph& graph) : graph_(graph), sharers_(graph.values.size()) {
    for (const graph::Parameter& parameter : graph.parameters) {
      if (graph.values[parameter.value].shape.size() != 2) continue;
      for (const graph::ValueId value : {parameter.value, parameter.gradient}) {
        if (value != graph::kNoValue) sharers_[value] = parameter.division.sharers;
      }
    }
  }

  // By its weights, or their gradients.
  double FlopsOf(const graph::Op& op) const {
    double all = 0, again = 0;
    const auto add = [&](graph::ValueId value) {
      if (value == graph::kNoValue || sharers_[value] == 0) return;
      const auto elements = static_cast<double>(graph::Elements(graph_.values[value].shape));
      all += elements;
      again += elements * (1 - 1.0 / static_cast<double>(sharers_[value]));
    };
    for (const graph::ValueId input : op.inputs) add(input);
    for (const graph::Output& output : op.outputs) add(output.value);
    return again > 0 ? ops::OpCost(graph_, op).flops * again / all : 0;
  }

 private:
  const graph::Graph& graph_;
  std::vector<int64_t> sharers_;  // by value; 0: no matrix of the model's, nor its gradient
};

void CompileProgram(StepPlan& plan, Program& program) {
  AddGathers(program, plan.groups, plan.options);
  LimitInFlight(program);
  if (plan.options.pipeline > 1) LimitTransfers(program);
  AssignBuffers(plan, program);
  AddStreams(program, plan.options);
}

void Tally(StepPlan& plan) {
  const graph::Graph& graph = plan.train.ops.empty() ? plan.prompt.graph : plan.train.graph;
  for (const graph::Parameter& parameter : graph.parameters) {
    const std::string& name = graph.values[parameter.value].name;
    if (absl::StartsWith(name, models::kReferencePrefix)) continue;  // the model's, once more
    plan.parameters += graph.ElementsOf(parameter);
  }
  for (const PlannedOp& op : plan.train.ops) {
    const bool repeated = op.when == When::kEveryMicroStep;
    const double runs = repeated ? static_cast<double>(plan.options.MicroSteps()) : 1;
    const bool again = op.op.phase == graph::Phase::kRecompute;
    // Neither Muon's nor those of factors are the model's.
    const bool counts = op.op.phase != graph::Phase::kUpdate && !IsCompression(op.op.kind);
    // What all tensor ranks do alike is done for the model once.
    const double share = op.op.attributes.divided ? 1 : 1.0 / plan.options.tensor;
    const double made_again = again ? op.flops : op.repeated_flops;
    if (counts) {
      plan.recompute_flops_per_step += share * runs * made_again;
      const bool known = plan.options.pipeline > 1;  // that of all stages
      if (!known) plan.flops_per_step += share * runs * (op.flops - made_again);
    }
    plan.wire_bytes_per_step += runs * op.wire_bytes;
    const bool copy = op.stream == Stream::kToHost || op.stream == Stream::kToDevice;
    if (copy) plan.offload_bytes_per_step += runs * op.bytes / 2;
    if (IsDisk(op.stream)) plan.disk_bytes_per_step += runs * op.bytes;
  }
  const SharedHeads shared(plan.train.graph);
  for (const graph::Op& op : plan.train.graph.ops) {
    const double flops = static_cast<double>(plan.options.MicroSteps()) * shared.FlopsOf(op);
    if (op.phase == graph::Phase::kRecompute) {
      plan.recompute_flops_per_step -= flops;
    } else if (plan.options.pipeline == 1) {
      plan.flops_per_step -= flops;
    }
  }
}

// What drafts of one spec are made of.
struct Parts {
  graph::Graph train;
  graph::Graph evaluate;
  ParameterUpdates updates;
  double flops_of_stages = 0;  // a rank's part of the model's, where stages divide it
};

std::vector<FlatGroup> GroupsElsewhere(const graph::Graph& graph, const ParameterUpdates& updates,
                                       const PlanOptions& options) {
  std::vector<FlatGroup> groups =
      MakeFlatGroups(graph, updates.by_parameter, options, /*elsewhere=*/true);
  for (FlatGroup& group : groups) {
    if (group.frozen) continue;
    group.state_buffers.fill(kElsewhere);
    if (options.averages) group.average_buffer = kElsewhere;
    if (options.outer_every > 0) group.outer_momentum_buffer = kElsewhere;
  }
  return groups;
}

// What works on flat groups alone: no values but the model's parameters.
void CompileOnGroups(StepPlan& plan, Program& program) {
  program.graph = plan.evaluate.graph;
  program.graph.ops.clear();
  AssignBuffers(plan, program);
  AddStreams(program, plan.options);
}

// Averages for parameters and back.
void CompileExchange(StepPlan& plan) {
  plan.exchange.ops = MakeExchangeOps(plan.groups);
  plan.gather.ops = MakeGatherOps(plan.groups, plan.options);
  CompileOnGroups(plan, plan.exchange);
  CompileOnGroups(plan, plan.gather);
}

void CompileOuter(StepPlan& plan) {
  plan.anchor.ops = MakeAnchorOps(plan.groups);
  plan.outer.ops = MakeOuterOps(plan.groups, plan.options);
  CompileOnGroups(plan, plan.anchor);
  CompileOnGroups(plan, plan.outer);
  for (const PlannedOp& op : plan.outer.ops) plan.outer_wire_bytes += op.wire_bytes;
}

// The programs' ops, from their graphs on.
void Compile(const PlanOptions& options, StepPlan& plan) {
  AddPersistentBuffers(plan, /*training=*/true);
  plan.train.ops = MakeTrainingOps(plan.train.graph, plan.groups, options);
  plan.evaluate.ops = MakeForwardOps(plan.evaluate.graph, options);
  CompileProgram(plan, plan.train);
  if (!plan.evaluate.ops.empty()) {
    if (options.averages) CompileExchange(plan);
    if (options.outer_every > 0) CompileOuter(plan);
    CompileProgram(plan, plan.evaluate);
  }
  Tally(plan);
}

StepPlan DraftOf(const PlanOptions& options, Parts parts, const std::vector<Recompute>& by_block) {
  StepPlan plan = {.options = options};
  plan.train.graph = std::move(parts.train);
  plan.evaluate.graph = std::move(parts.evaluate);
  AddRecompute(plan.train.graph, by_block);
  if (options.fp8) AddFp8(plan.train.graph);
  if (options.fuse_gelu) {
    FuseGelu(plan.train.graph);
    FuseGelu(plan.evaluate.graph);
  }
  if (options.offload_activations) OffloadActivations(plan.train.graph);
  if (options.nf4_base) {
    const std::vector<bool> packed = graph::BaseMatrices(plan.train.graph);
    PackWeights(plan.train.graph, packed);
    PackWeights(plan.evaluate.graph, packed);
  }
  plan.recompute_of_block.assign(by_block.size(), Recompute::kNone);
  for (const graph::Op& op : plan.train.graph.ops) {
    if (op.phase != graph::Phase::kRecompute || op.block < 0) continue;
    plan.recompute_of_block[op.block] = by_block[op.block];
  }
  if (options.pipeline > 1)
    UnrollPasses(plan.train.graph, OrderOfStage(ShapeOf(options), options.stage));
  if (options.side_by_side > 1)
    TrainSideBySide(plan.train.graph, static_cast<int>(options.side_by_side),
                    options.ShardsParameters());
  plan.loss_heads = static_cast<int>(plan.train.graph.losses.size());
  plan.parameter_groups = parts.updates.groups;
  plan.groups = MakeFlatGroups(plan.train.graph, parts.updates.by_parameter, options);
  if (options.pipeline > 1 || options.expert > 1)
    plan.elsewhere = GroupsElsewhere(plan.train.graph, parts.updates, options);
  plan.flops_per_step = parts.flops_of_stages;
  Compile(options, plan);
  return plan;
}

// What the whole model's training multiplies in a step, over its stages: of a rank on average.
absl::StatusOr<double> FlopsOfStages(graph::Graph graph, const PlanOptions& options) {
  MP_RETURN_IF_ERROR(ops::AddBackward(graph));
  double flops = 0;
  const SharedHeads shared(graph);
  for (const graph::Op& op : graph.ops) {
    const ops::Cost cost = ops::OpCost(graph, op);
    const double share = op.attributes.divided ? 1 : 1.0 / options.tensor;
    flops += share * (cost.flops - cost.repeated_flops) - shared.FlopsOf(op);
  }
  return flops * static_cast<double>(options.accumulation) / options.pipeline;
}

// Among tensor, context and expert ranks.
absl::Status DivideAmongRanks(const PlanOptions& options, graph::Graph& graph) {
  MP_RETURN_IF_ERROR(DivideLayers(graph, options.tensor));
  MP_RETURN_IF_ERROR(DivideSequences(graph, options.context));
  MP_RETURN_IF_ERROR(DivideExperts(graph, options.expert, options.expert_rank));
  DivideRows(graph, options.tensor,
             {.sequence = options.OwnSequence(), .context = options.context});
  return absl::OkStatus();
}

// Leaves this stage's part of both graphs.
absl::Status CutStages(const PlanOptions& options, Parts& parts) {
  if (options.pipeline == 1) return absl::OkStatus();
  const bool host_waits = options.expert > 1 && options.device == DeviceKind::kCuda;
  MP_RETURN_IF_ERROR(
      CheckSchedule(ShapeOf(options), host_waits ? Receives::kWhenNeeded : Receives::kAhead));
  MP_ASSIGN_OR_RETURN(parts.flops_of_stages, FlopsOfStages(parts.train, options));
  MP_ASSIGN_OR_RETURN(const std::vector<int> runs,
                      RunsOfBlocks(parts.train, options.pipeline * options.chunks));
  CutStage(parts.train, runs, options.pipeline, options.stage);
  CutStage(parts.evaluate, runs, options.pipeline, options.stage);
  return absl::OkStatus();
}

// Which blocks are recomputed within the budget. What evaluation needs makes no difference to that,
// but that its graph says where running statistics lie.
absl::StatusOr<std::vector<Recompute>> Choose(const PlanOptions& options, const Parts& parts,
                                              Planning* planning) {
  const auto draft = [&](const std::vector<Recompute>& by_block) -> absl::StatusOr<StepPlan> {
    MP_RETURN_IF_ERROR(Spend(planning, WorkOf(parts.train) * options.side_by_side));
    graph::Graph evaluate;
    evaluate.statistics = parts.evaluate.statistics;
    if (!evaluate.statistics.empty()) evaluate.values = parts.evaluate.values;
    return DraftOf(options, {parts.train, std::move(evaluate), parts.updates}, by_block);
  };
  const size_t blocks = parts.train.blocks.size();
  if (planning == nullptr) return ChooseRecompute(options.recompute_budget, blocks, draft);
  // With the same ops in the same order activations live as long, whatever the numbers of ranks.
  std::vector<Recompute>& known = planning->recomputes()[{
      options.recompute_budget, options.micro_batch, options.zero_stage, options.offload_optimizer,
      options.offload_disk, options.offload_activations, options.world > 1, options.Shards() > 1,
      options.Replicas() > 1, options.MicroSteps() > 1, options.side_by_side,
      options.RoundsGradients(), options.nf4_base, options.tensor, options.context,
      options.expert}];
  if (known.empty()) {
    MP_ASSIGN_OR_RETURN(known, ChooseRecompute(options.recompute_budget, blocks, draft));
  }
  return known;
}

// Expert ranks make the same calls, of which a rank with nothing to train would leave some out.
absl::Status CheckFrozenExperts(const graph::Graph& graph, const ParameterUpdates& updates,
                                const PlanOptions& options) {
  if (options.expert == 1) return absl::OkStatus();
  std::map<int, std::vector<size_t>> experts;  // parameters, by block; one rank's after the other's
  for (size_t i = 0; i < graph.parameters.size(); ++i) {
    const graph::Parameter& parameter = graph.parameters[i];
    if (parameter.of_experts) experts[graph.values[parameter.value].block].push_back(i);
  }
  for (const auto& [block, all] : experts) {
    const size_t of_rank = all.size() / static_cast<size_t>(options.expert);
    for (size_t i = of_rank; i < all.size(); ++i) {
      const size_t first = all[i % of_rank];
      if (updates.by_parameter[all[i]].frozen == updates.by_parameter[first].frozen) continue;
      const auto name = [&](size_t p) { return graph.values[graph.parameters[p].value].name; };
      return absl::InvalidArgumentError(absl::StrCat(
          "train.optimizer.groups: one of ", name(first), " and ", name(all[i]),
          " is frozen alone: with resources.mesh.expert freeze all experts of a layer or none"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<std::vector<double>>> CostsOfRuns(const v1::JobSpec& spec,
                                                             const PlanOptions& options) {
  MP_RETURN_IF_ERROR(CheckOptions(options));
  MP_ASSIGN_OR_RETURN(graph::Graph graph, Build(spec.model(), models::Mode::kTraining, options));
  MP_RETURN_IF_ERROR(DivideAmongRanks(options, graph));
  const int count = options.pipeline * options.chunks;
  MP_ASSIGN_OR_RETURN(const std::vector<int> runs, RunsOfBlocks(graph, count));
  const std::vector<double> blocks = BlockCosts(graph);
  std::vector<std::vector<double>> costs(static_cast<size_t>(count));
  for (size_t i = 0; i < blocks.size(); ++i) costs[runs[i]].push_back(blocks[i]);
  return costs;
}

absl::StatusOr<StepPlan> DraftTraining(const v1::JobSpec& spec, const PlanOptions& options,
                                       Planning* planning) {
  MP_RETURN_IF_ERROR(CheckOptions(options));
  if (options.dpo_beta > 0 && options.fp8) {
    return absl::InvalidArgumentError("train.dpo: not at train.precision fp8; take bf16");
  }
  if (options.nf4_base && options.fp8) {
    return absl::InvalidArgumentError(
        "model.lora.quantize_base: not at train.precision fp8; take bf16");
  }
  MP_RETURN_IF_ERROR(Spend(planning, Planning::kWorkOfDraft));
  Parts parts;
  MP_ASSIGN_OR_RETURN(parts.train, Build(spec.model(), models::Mode::kTraining, options));
  MP_ASSIGN_OR_RETURN(parts.evaluate, Build(spec.model(), models::Mode::kEvaluation, options));
  for (graph::Graph* graph : {&parts.train, &parts.evaluate}) {
    MP_RETURN_IF_ERROR(DivideAmongRanks(options, *graph));
  }
  MP_RETURN_IF_ERROR(CutStages(options, parts));
  if (options.fp8 && MarkFp8(parts.train) == 0) {
    return absl::InvalidArgumentError(
        "train.precision: fp8: no layer can be one of 8 bits, since its rows (train.batch.micro x "
        "data.sequence_length, or x the tokens of an image) or its widths are no multiples of 16; "
        "choose bf16 or other sizes");
  }
  MP_RETURN_IF_ERROR(ops::AddBackward(parts.train));
  JoinSumsAndRows(parts.train);
  if (planning != nullptr) {
    const int64_t in_program = options.accumulation / options.MicroSteps();  // micro-batches
    MP_RETURN_IF_ERROR(planning->Make(WorkOf(parts.train) * in_program));
  }
  MP_ASSIGN_OR_RETURN(parts.updates,
                      UpdatesOf(spec.train().optimizer(), parts.train, options.optimizer));
  MP_RETURN_IF_ERROR(CheckFrozenExperts(parts.train, parts.updates, options));
  FreezeParameters(parts.updates, parts.train);
  std::vector<Recompute> by_block(parts.train.blocks.size(), options.recompute);
  if (options.recompute == Recompute::kBudget) {
    MP_ASSIGN_OR_RETURN(by_block, Choose(options, parts, planning));
  }
  return DraftOf(options, std::move(parts), by_block);
}

absl::StatusOr<StepPlan> MeasureTraining(const v1::JobSpec& spec, const PlanOptions& options,
                                         Planning* planning) {
  MP_ASSIGN_OR_RETURN(StepPlan plan, DraftTraining(spec, options, planning));
  MP_RETURN_IF_ERROR(AssignOffsets(plan, planning));
  return plan;
}

absl::StatusOr<StepPlan> PlanTraining(const v1::JobSpec& spec, const PlanOptions& options,
                                      Planning* planning) {
  MP_ASSIGN_OR_RETURN(StepPlan plan, MeasureTraining(spec, options, planning));
  MP_RETURN_IF_ERROR(Spend(planning, WorkOf(plan.train.graph)));
  MP_RETURN_IF_ERROR(Verify(plan));
  return plan;
}

absl::StatusOr<StepPlan> PlanGeneration(const v1::ModelSpec& model, const PlanOptions& options) {
  MP_RETURN_IF_ERROR(CheckOptions(options));
  if (options.world != 1 || options.micro_batch != 1) {
    return absl::InvalidArgumentError("a generation plan is for one rank and no batches");
  }
  if (options.texts < 1 || options.texts > kMostTexts) {
    return absl::InvalidArgumentError(
        absl::StrCat(options.texts, " texts side by side: 1 to ", kMostTexts, " can be"));
  }
  StepPlan plan = {.options = options};
  models::ModelOptions piece = {.mode = models::Mode::kGeneration,
                                .compute_dtype = options.compute_dtype,
                                .sequence = PromptChunk(options.sequence),
                                .cached_positions = options.sequence,
                                .cached_texts = options.texts};
  MP_ASSIGN_OR_RETURN(plan.prompt.graph, models::BuildModel(model, piece));
  models::ModelOptions token = piece;
  token.sequence = options.texts;
  token.rows_apart = token.every_logits = options.texts > 1;
  MP_ASSIGN_OR_RETURN(plan.next.graph, models::BuildModel(model, token));
  std::vector<Program*> programs = {&plan.prompt, &plan.next};
  if (options.scores) {
    piece.every_logits = true;
    MP_ASSIGN_OR_RETURN(plan.score.graph, models::BuildModel(model, piece));
    programs.push_back(&plan.score);
  }
  plan.groups = MakeFlatGroups(plan.prompt.graph, {}, options);
  AddPersistentBuffers(plan, /*training=*/false);
  for (Program* program : programs) {
    program->ops = MakeForwardOps(program->graph, options);
    CompileProgram(plan, *program);
  }
  Tally(plan);
  MP_RETURN_IF_ERROR(AssignOffsets(plan));
  MP_RETURN_IF_ERROR(Verify(plan));
  return plan;
}

}  // namespace milepost::plan
