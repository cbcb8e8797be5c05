#include "engine/plan/printing/printer.h"

#include <array>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "engine/ops/context_parallel/context_parallel.h"
#include "engine/ops/expert_parallel/expert_parallel.h"
#include "engine/plan/cuda_beside.h"
#include "engine/plan/fit/required_bytes.h"
#include "engine/plan/human_units.h"
#include "engine/plan/pipeline/schedule.h"
#include "nlohmann/json.hpp"

namespace milepost::plan {

namespace {

using Json = nlohmann::ordered_json;

int64_t Needed(const StepPlan& plan, const RankPlace& place) {
  return RequiredBytes(plan, plan.arena_bytes, place.host_memory);
}

bool Fits(const StepPlan& plan, const RankPlace& place) {
  return Needed(plan, place) <= place.memory_bytes;
}

const char* Precision(const StepPlan& plan) {
  switch (plan.options.compute_dtype) {
    case DType::kBf16:
      return plan.options.fp8 ? "fp8" : "bf16";
    case DType::kF16:
      return "fp16";
    default:
      return "fp32";
  }
}

const char* PhaseName(graph::Phase phase) {
  switch (phase) {
    case graph::Phase::kForward:
      return "forward";
    case graph::Phase::kBackward:
      return "backward";
    case graph::Phase::kUpdate:
      return "update";
    case graph::Phase::kRecompute:
      return "recompute";
  }
  return "unknown";
}

const char* WhenName(When when) {
  switch (when) {
    case When::kEveryMicroStep:
      return "every_micro_step";
    case When::kLastMicroStep:
      return "last_micro_step";
    case When::kUpdate:
      return "update";
  }
  return "unknown";
}

std::string BlockName(const Program& program, int block) {
  const auto& blocks = program.graph.blocks;
  return block >= 0 && block < static_cast<int>(blocks.size()) ? blocks[block] : "";
}

std::string HumanCount(double count) {
  constexpr std::array<const char*, 6> kUnits = {"", " k", " M", " G", " T", " P"};
  size_t unit = 0;
  while (count >= 1000 && unit + 1 < kUnits.size()) {
    count /= 1000;
    ++unit;
  }
  return absl::StrFormat("%.*f%s", unit == 0 ? 0 : 2, count, kUnits[unit]);
}

void AppendEstimate(const StepEstimate& e, const PrintOptions& options, std::string& text) {
  absl::StrAppendFormat(&text,
                        "\nexpected on %s\n  step           %s, bound by %s\n"
                        "  %-14s %s per second, MFU %.1f%%\n",
                        options.device, HumanSeconds(e.seconds), Name(e.bound), options.unit,
                        HumanCount(e.tokens_per_second), 100 * e.mfu);
  absl::StrAppendFormat(
      &text, "  computation    %s bound by FLOPs, %s by memory, %s starting ops\n",
      HumanSeconds(e.flop_seconds), HumanSeconds(e.memory_seconds), HumanSeconds(e.start_seconds));
  if (e.bubble_seconds > 0) {
    absl::StrAppendFormat(&text, "  bubble         %s waiting for other stages\n",
                          HumanSeconds(e.bubble_seconds));
  }
  if (e.communication_seconds > 0) {
    absl::StrAppendFormat(&text, "  communication  %s, of it %s not hidden\n",
                          HumanSeconds(e.communication_seconds), HumanSeconds(e.exposed_seconds));
  }
  if (e.offload_seconds > 0) {
    absl::StrAppendFormat(&text, "  offload        %s; with communication %s not hidden\n",
                          HumanSeconds(e.offload_seconds), HumanSeconds(e.exposed_seconds));
  }
  if (e.disk_seconds > 0) {
    absl::StrAppendFormat(&text, "  disk           %s; with all of the above %s not hidden\n",
                          HumanSeconds(e.disk_seconds), HumanSeconds(e.exposed_seconds));
  }
}

Json EstimateJson(const StepEstimate& e, absl::string_view device) {
  Json json = {{"device", std::string(device)},
               {"seconds", e.seconds},
               {"tokens_per_second", e.tokens_per_second},
               {"mfu", e.mfu},
               {"bound", Name(e.bound)},
               {"flop_seconds", e.flop_seconds},
               {"memory_seconds", e.memory_seconds},
               {"start_seconds", e.start_seconds},
               {"exposed_seconds", e.exposed_seconds},
               {"bubble_seconds", e.bubble_seconds},
               {"communication_seconds", e.communication_seconds}};
  if (e.offload_seconds > 0) json["offload_seconds"] = e.offload_seconds;
  if (e.disk_seconds > 0) json["disk_seconds"] = e.disk_seconds;
  return json;
}

std::string Describe(const ParameterGroup& group) {
  if (group.frozen) return "frozen";
  std::vector<std::string> parts;
  if (group.lr_scale != 1) parts.push_back(absl::StrCat("learning rate x ", group.lr_scale));
  if (group.weight_decay) parts.push_back(absl::StrCat("weight decay ", *group.weight_decay));
  return parts.empty() ? "as all others" : absl::StrJoin(parts, ", ");
}

void AppendParameterGroups(const StepPlan& plan, std::string& text) {
  if (plan.parameter_groups.empty()) return;
  absl::StrAppend(&text, "\nparameter groups\n");
  for (const ParameterGroup& group : plan.parameter_groups) {
    absl::StrAppendFormat(&text, "  %-24s %5d tensors %12s parameters  %s\n", group.match,
                          group.tensors, HumanCount(static_cast<double>(group.parameters)),
                          Describe(group));
  }
}

Json ParameterGroupsJson(const StepPlan& plan) {
  Json groups = Json::array();
  for (const ParameterGroup& group : plan.parameter_groups) {
    Json& json = groups.emplace_back(Json{{"match", group.match},
                                          {"tensors", group.tensors},
                                          {"parameters", group.parameters},
                                          {"lr_scale", group.lr_scale},
                                          {"freeze", group.frozen}});
    if (group.weight_decay) json["weight_decay"] = *group.weight_decay;
  }
  return groups;
}

void AppendSchedule(const StepPlan& plan, std::string& text) {
  absl::StrAppendFormat(&text, "\n%5s  %-28s %-10s %-13s %-16s %-10s %10s %10s\n", "op", "kind",
                        "block", "stream", "when", "waits for", "flops", "bytes");
  for (size_t i = 0; i < plan.train.ops.size(); ++i) {
    const PlannedOp& op = plan.train.ops[i];
    absl::StrAppendFormat(&text, "%5d  %-28s %-10s %-13s %-16s %-10s %10s %10s\n", i,
                          graph::Name(op.op.kind), BlockName(plan.train, op.op.block),
                          Name(op.stream), WhenName(op.when), absl::StrJoin(op.wait_for, ","),
                          HumanCount(op.flops), HumanBytes(op.bytes));
  }
}

// How many blocks recompute how.
std::vector<std::pair<Recompute, int>> BlocksByLevel(const StepPlan& plan) {
  std::vector<std::pair<Recompute, int>> blocks = {
      {Recompute::kNone, 0}, {Recompute::kSelective, 0}, {Recompute::kFull, 0}};
  for (Recompute level : plan.recompute_of_block) ++blocks[static_cast<size_t>(level)].second;
  return blocks;
}

std::string RecomputeText(const StepPlan& plan) {
  if (plan.options.recompute == Recompute::kNone) return "";
  std::string text = absl::StrCat(", recompute ", Name(plan.options.recompute));
  if (plan.options.recompute != Recompute::kBudget) return text;
  std::vector<std::string> parts;
  for (const auto& [level, blocks] : BlocksByLevel(plan)) {
    if (blocks > 0) parts.push_back(absl::StrCat(Name(level), " in ", blocks));
  }
  return absl::StrCat(text, " of ", HumanBytes(static_cast<double>(plan.options.recompute_budget)),
                      " (blocks: ", absl::StrJoin(parts, ", "), ")");
}

Json ScheduleJson(const Program& program) {
  Json ops = Json::array();
  for (const PlannedOp& op : program.ops) {
    ops.push_back({{"op", graph::Name(op.op.kind)},
                   {"block", BlockName(program, op.op.block)},
                   {"phase", PhaseName(op.op.phase)},
                   {"stream", Name(op.stream)},
                   {"when", WhenName(op.when)},
                   {"wait_for", op.wait_for},
                   {"flops", op.flops},
                   {"bytes", op.bytes},
                   {"wire_bytes", op.wire_bytes}});
  }
  return ops;
}

// "8 x 128 tokens", or "32 images".
std::string MicroBatchText(const PlanOptions& options, const std::string& unit) {
  const bool one = options.sequence == 1 && unit != PrintOptions().unit;
  return one ? absl::StrCat(options.micro_batch, " ", unit)
             : absl::StrCat(options.micro_batch, " x ", options.sequence, " ", unit);
}

// What is stored in fewer bits than by default: ", states in bf16, no masters".
std::string StorageText(const PlanOptions& options) {
  return absl::StrCat(options.state_dtype == DType::kBf16 ? ", states in bf16" : "",
                      options.masters ? "" : ", no masters",
                      options.RoundsGradients() ? ", gradients in bf16" : "",
                      options.nf4_base ? ", base in nf4" : "");
}

// Of the first layer's attention: heads of queries, and parts of these.
graph::Attributes HeadsOfARank(const StepPlan& plan) {
  for (const PlannedOp& op : plan.train.ops) {
    if (op.op.kind == graph::OpKind::kAttention) return op.op.attributes;
  }
  return {};
}

// That ranks send each other in such ops of a step's micro-batches.
double ExchangedBytes(const StepPlan& plan, bool (*is)(graph::OpKind)) {
  double bytes = 0;
  for (const PlannedOp& op : plan.train.ops) {
    if (is(op.op.kind)) bytes += op.wire_bytes * static_cast<double>(plan.options.MicroSteps());
  }
  return bytes;
}

// Of the first layer that has some: how many this rank has, and of how many rows.
struct ExpertsOfARank {
  int64_t experts = 0;
  int64_t of = 0;
  int64_t even_rows = 0;
  int64_t most_rows = 0;
};
ExpertsOfARank FirstExperts(const StepPlan& plan) {
  for (const PlannedOp& planned : plan.train.ops) {
    if (planned.op.kind != graph::OpKind::kRowsToExperts) continue;
    const kernels::ExpertRowsShape shape = ops::ExpertRowsOf(plan.train.graph, planned.op);
    return {.experts = shape.OwnExperts(),
            .of = shape.experts,
            .even_rows = shape.rows,
            .most_rows = plan.train.graph.values[planned.op.outputs[0].value].shape[0]};
  }
  return {};
}

// What part of a step a pipeline's stage waits for others: on a device, or as if stages were alike.
double IdleShare(const StepPlan& plan, const PrintOptions& options) {
  const std::optional<StepEstimate>& estimate = options.estimate;
  if (!estimate.has_value()) return TimeOf(ShapeOf(plan.options)).idle_share();
  return estimate->seconds > 0 ? estimate->bubble_seconds / estimate->seconds : 0;
}

void AddMesh(const StepPlan& plan, const PrintOptions& options, Json& json) {
  json["world"] = plan.options.AllRanks();
  json["tensor"] = plan.options.tensor;
  if (plan.options.pipeline > 1) {
    json["pipeline"] = {{"stages", plan.options.pipeline},
                        {"schedule", Name(plan.options.schedule)},
                        {"stage", plan.options.stage},
                        {"idle_share", IdleShare(plan, options)}};
    if (plan.options.chunks > 1) json["pipeline"]["chunks"] = plan.options.chunks;
  }
  if (plan.options.outer_every > 0) {
    json["sync"] = {{"islands", plan.options.islands},
                    {"every", plan.options.outer_every},
                    {"outer_wire_bytes", plan.outer_wire_bytes}};
    if (options.estimate.has_value()) {
      json["sync"]["outer_seconds"] = options.estimate->outer_seconds;
    }
  }
  if (plan.options.context > 1) {
    json["context"] = {{"ranks", plan.options.context},
                       {"tokens", plan.options.OwnSequence()},
                       {"heads", HeadsOfARank(plan).heads},
                       {"query_parts", HeadsOfARank(plan).query_parts},
                       {"exchanged_bytes", ExchangedBytes(plan, ops::IsHeadsExchange)}};
  }
  if (plan.options.expert > 1) {
    const ExpertsOfARank own = FirstExperts(plan);
    json["expert"] = {{"ranks", plan.options.expert},
                      {"experts", own.experts},
                      {"even_rows", own.even_rows},
                      {"most_rows", own.most_rows},
                      {"exchanged_bytes", ExchangedBytes(plan, ops::IsExpertExchange)}};
  }
}

void AddExpertsText(const StepPlan& plan, std::string& text) {
  const ExpertsOfARank own = FirstExperts(plan);
  absl::StrAppendFormat(&text,
                        "expert         %d of %d experts of each layer, with room for %d rows, "
                        "%d where all are used alike; %s exchanged then per step and rank\n",
                        own.experts, own.of, own.most_rows, own.even_rows,
                        HumanBytes(ExchangedBytes(plan, ops::IsExpertExchange)));
}

void AddSyncText(const StepPlan& plan, const PrintOptions& options, std::string& text) {
  const PlanOptions& o = plan.options;
  const bool timed = options.estimate.has_value() && options.estimate->outer_seconds > 0;
  absl::StrAppendFormat(
      &text,
      "sync           %d island%s of %d ranks; an outer step every %d steps%s: %s sent per rank\n",
      o.islands, o.islands > 1 ? "s" : "", o.Ranks(), o.outer_every,
      timed ? absl::StrCat(", of ", HumanSeconds(options.estimate->outer_seconds)) : "",
      HumanBytes(plan.outer_wire_bytes));
}

// How ranks share out the work.
std::string RanksText(const StepPlan& plan, const PrintOptions& options) {
  const PlanOptions& o = plan.options;
  std::string text = absl::StrFormat(
      "ranks %d%s, ZeRO stage %d%s, %s, micro-batch %s, accumulation %d%s%s\n", o.AllRanks(),
      absl::StrCat(o.tensor > 1 ? absl::StrCat(", tensor ", o.tensor) : "",
                   o.pipeline > 1 ? absl::StrCat(", pipeline ", o.pipeline) : "",
                   o.context > 1 ? absl::StrCat(", context ", o.context) : "",
                   o.expert > 1 ? absl::StrCat(", expert ", o.expert) : ""),
      o.zero_stage, o.Replicas() > 1 ? absl::StrCat(" in groups of ", o.Shards()) : "",
      Precision(plan), MicroBatchText(o, options.unit), o.accumulation,
      o.side_by_side > 1 ? absl::StrCat(" (", o.side_by_side, " side by side)") : "",
      RecomputeText(plan));
  if (o.pipeline > 1) {
    absl::StrAppendFormat(&text,
                          "pipeline       %s%s, idle %.0f%% of the time; stage %d of %d is shown, "
                          "which needs the most memory\n",
                          Name(o.schedule),
                          o.chunks > 1 ? absl::StrCat(" with ", o.chunks, " chunks") : "",
                          100 * IdleShare(plan, options), o.stage + 1, o.pipeline);
  }
  if (o.outer_every > 0) AddSyncText(plan, options, text);
  if (o.context > 1) {
    const graph::Attributes of_rank = HeadsOfARank(plan);
    const std::string part = of_rank.query_parts > 1
                                 ? absl::StrCat(" (1/", of_rank.query_parts, " of the queries)")
                                 : "";
    absl::StrAppendFormat(&text,
                          "context        %d of %d tokens of each sequence, and %d heads of all "
                          "of them%s; %s exchanged per step and rank\n",
                          o.OwnSequence(), o.sequence, of_rank.heads, part,
                          HumanBytes(ExchangedBytes(plan, ops::IsHeadsExchange)));
  }
  if (o.expert > 1) AddExpertsText(plan, text);
  return text;
}

// Before these steps gradients travel whole.
std::string FactorsText(const PlanOptions& o) {
  if (o.powersgd_rank == 0) return "";
  return absl::StrCat(", as factors of rank ", o.powersgd_rank, " from step ", o.powersgd_start + 1,
                      " on");
}

}  // namespace

std::string PlanTable(const StepPlan& plan, const PrintOptions& options) {
  const PlanOptions& o = plan.options;
  std::string text = RanksText(plan, options);
  for (const v1::Choice& choice : options.choices) {
    absl::StrAppendFormat(&text, "chosen         %s: %s (%s)\n", choice.field(), choice.value(),
                          choice.reason());
  }
  absl::StrAppendFormat(&text, "parameters     %s\n",
                        HumanCount(static_cast<double>(plan.parameters)));
  absl::StrAppendFormat(&text, "optimizer      %s%s\n", Name(o.optimizer), StorageText(o));
  absl::StrAppendFormat(&text, "compute        %sFLOP per step and rank\n",
                        HumanCount(plan.flops_per_step));
  if (o.recompute != Recompute::kNone) {
    absl::StrAppendFormat(&text, "recompute      %sFLOP more\n",
                          HumanCount(plan.recompute_flops_per_step));
  }
  absl::StrAppendFormat(&text, "wire           %s sent per step and rank%s\n",
                        HumanBytes(plan.wire_bytes_per_step), FactorsText(o));
  absl::StrAppend(&text, "\nmemory per rank\n");
  const auto line = [&text](absl::string_view name, int64_t bytes) {
    absl::StrAppendFormat(&text, "  %-14s %12s  %14d\n", name,
                          HumanBytes(static_cast<double>(bytes)), bytes);
  };
  for (int c = 0; c < kBufferClasses; ++c) {
    line(Name(static_cast<BufferClass>(c)), plan.bytes_by_class[c]);
  }
  line("slack", plan.slack_bytes);
  line("total", plan.arena_bytes);
  const int64_t beside = CudaBesideBytes(plan);
  if (beside > 0) {
    absl::StrAppendFormat(&text, "and at most %s beside it, of tables and what changes per step\n",
                          HumanBytes(static_cast<double>(beside)));
  }
  if (o.Offloads()) {
    absl::StrAppendFormat(&text, "\nhost memory per rank (%s copied per step)\n",
                          HumanBytes(plan.offload_bytes_per_step));
    for (int c = 0; c < kBufferClasses; ++c) {
      if (plan.host_bytes_by_class[c] == 0) continue;
      line(Name(static_cast<BufferClass>(c)), plan.host_bytes_by_class[c]);
    }
    line("slack", plan.host_slack_bytes);
    line("total", plan.host_arena_bytes);
  }
  const int64_t copies = HostBytes(plan) - plan.host_arena_bytes;
  if (copies > 0) {
    absl::StrAppendFormat(&text, "and %s of host memory while it starts or saves a checkpoint\n",
                          HumanBytes(static_cast<double>(copies)));
  }
  if (o.offload_disk) {
    absl::StrAppendFormat(&text, "\ndisk per rank (%s read and written per step)\n",
                          HumanBytes(plan.disk_bytes_per_step));
    line(Name(BufferClass::kOptimizer), plan.disk_bytes);
    line("checkpoint", SnapshotBytes(plan));
    line("total", DiskBytesNeeded(plan));
  }
  if (options.place.has_value()) {
    absl::StrAppendFormat(&text, "%s in all: %s %s available per rank\n",
                          HumanBytes(static_cast<double>(Needed(plan, *options.place))),
                          Fits(plan, *options.place) ? "fits in" : "DOES NOT FIT in",
                          HumanBytes(static_cast<double>(options.place->memory_bytes)));
  }
  AppendParameterGroups(plan, text);
  if (options.estimate.has_value()) AppendEstimate(*options.estimate, options, text);
  if (options.schedule) AppendSchedule(plan, text);
  return text;
}

std::string PlanJson(const StepPlan& plan, const PrintOptions& options, int indent) {
  Json json = Json::object();
  if (options.place.has_value()) json["fits"] = Fits(plan, *options.place);
  for (const v1::Choice& choice : options.choices) {
    json["chosen"].push_back(
        {{"field", choice.field()}, {"value", choice.value()}, {"reason", choice.reason()}});
  }
  AddMesh(plan, options, json);
  json["zero_stage"] = plan.options.zero_stage;
  json["shards"] = plan.options.Shards();
  json["precision"] = Precision(plan);
  json["state_dtype"] = plan.options.state_dtype == DType::kBf16 ? "bf16" : "fp32";
  json["grad_dtype"] = plan.options.RoundsGradients() ? "bf16" : "fp32";
  json["master"] = plan.options.masters ? "fp32" : "none";
  json["grad_reduce"] = plan.options.grad_reduce == DType::kBf16 ? "bf16" : "fp32";
  if (plan.options.powersgd_rank > 0) json["powersgd_rank"] = plan.options.powersgd_rank;
  json["micro_batch"] = plan.options.micro_batch;
  json["sequence"] = plan.options.sequence;
  json["accumulation"] = plan.options.accumulation;
  if (plan.options.side_by_side > 1) json["side_by_side"] = plan.options.side_by_side;
  json["recompute"] = Name(plan.options.recompute);
  if (plan.options.recompute == Recompute::kBudget) {
    json["recompute_budget"] = plan.options.recompute_budget;
    for (const auto& [level, blocks] : BlocksByLevel(plan)) {
      json["recompute_blocks"][Name(level)] = blocks;
    }
  }
  json["optimizer"] = Name(plan.options.optimizer);
  Json& per_rank = json["per_rank"];
  for (int c = 0; c < kBufferClasses; ++c) {
    per_rank[Name(static_cast<BufferClass>(c))] = plan.bytes_by_class[c];
  }
  per_rank["slack"] = plan.slack_bytes;
  per_rank["total"] = plan.arena_bytes;
  if (const int64_t beside = CudaBesideBytes(plan); beside > 0) json["beside_bytes"] = beside;
  if (plan.options.Offloads()) {
    Json& host = json["per_rank_host"];
    for (int c = 0; c < kBufferClasses; ++c) {
      host[Name(static_cast<BufferClass>(c))] = plan.host_bytes_by_class[c];
    }
    host["slack"] = plan.host_slack_bytes;
    host["total"] = plan.host_arena_bytes;
    json["offload_bytes_per_step"] = plan.offload_bytes_per_step;
  }
  if (plan.options.offload_disk) {
    json["disk_bytes"] = DiskBytesNeeded(plan);
    json["disk_bytes_per_step"] = plan.disk_bytes_per_step;
  }
  json["snapshot_bytes"] = SnapshotBytes(plan);
  json["host_memory_bytes"] = HostBytes(plan);
  if (options.place.has_value()) json["required_bytes"] = Needed(plan, *options.place);
  if (options.estimate.has_value()) {
    json["expected"] = EstimateJson(*options.estimate, options.device);
  }
  json["parameters"] = plan.parameters;
  json["flops_per_step"] = plan.flops_per_step;
  json["recompute_flops_per_step"] = plan.recompute_flops_per_step;
  json["wire_bytes_per_step"] = plan.wire_bytes_per_step;
  Json& groups = json["groups"] = Json::array();
  for (const FlatGroup& group : plan.groups) {
    groups.push_back({{"name", group.name},
                      {"elements", group.elements},
                      {"padded_elements", group.padded_elements},
                      {"shard_elements", group.shard_elements},
                      {"dtype", milepost::Name(group.parameter_dtype)},
                      {"frozen", group.frozen}});
  }
  json["parameter_groups"] = ParameterGroupsJson(plan);
  if (options.schedule) json["ops"] = ScheduleJson(plan.train);
  return json.dump(indent);
}

}  // namespace milepost::plan
