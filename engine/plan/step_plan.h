// The compiled step: every buffer's place in one arena and every op's stream and order, known
// before the first allocation.
//
// Immutable after plan::PlanStep (planner.h) has verified it (verify.h). Plain data, printable
// (printer.h); share it read-only between threads.
#ifndef MILEPOST_ENGINE_PLAN_STEP_PLAN_H_
#define MILEPOST_ENGINE_PLAN_STEP_PLAN_H_

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "engine/graph/graph.h"
#include "engine/ops/contract/optimizer_states.h"
#include "engine/optim/adamw_8bit/adamw_8bit_contract.h"
#include "engine/optim/optimizer_definition.h"

namespace milepost::plan {

// What a buffer's bytes count as in reports.
enum class BufferClass : uint8_t {
  kParameters,
  kGradients,
  kOptimizer,      // master, m, v
  kActivations,    // and caches of keys and values
  kWorkspace,      // scratch of one op
  kCommunication,  // scalars; a group's whole gradient or gathered parameters while it is needed
  kInputs,
};
inline constexpr int kBufferClasses = 7;
const char* Name(BufferClass c);

using BufferId = int32_t;
inline constexpr BufferId kNoBuffer = -1;
// Of a state that another pipeline stage or expert rank keeps (StepPlan::elsewhere).
inline constexpr BufferId kElsewhere = -2;

// Which of a rank's two arenas a buffer lies in: what is offloaded lies in its host's memory, where
// a device copies from and to at full speed. On the CPU both are host memory.
enum class Memory : uint8_t { kDevice, kHost };

struct Buffer {
  std::string name;
  BufferClass buffer_class;
  int64_t bytes = 0;
  int64_t offset = 0;       // in its arena; a multiple of 64, on a GPU of 256
  bool persistent = false;  // lives through the whole run; never shares bytes
  Memory memory = Memory::kDevice;
};

// Where a graph value lies: `offset` bytes into `buffer` (parameters lie inside their group's
// buffer).
struct Place {
  BufferId buffer = kNoBuffer;
  int64_t offset = 0;
};

// A parameter starts at a multiple of kParameterAlignment elements, so that vector loads are
// aligned in every dtype; the elements between are padding and stay zero.
inline constexpr int64_t kParameterAlignment = 32;

using optim::Optimizer;
const char* Name(Optimizer optimizer);  // as the job spec writes it
// m and v are codes of 8 bits; this many elements of a parameter share a scale.
inline constexpr int64_t kQuantizedBlock = kernels::kQuantizedBlock;
inline bool IsQuantized(Optimizer optimizer) { return optim::DefinitionOf(optimizer).quantized; }
// Elements: where parameters start in a flat group, and shards in it. No block of quantised state
// has parts in two parameters or shards, so the codes do not depend on how things are cut.
inline int64_t ParameterAlignmentOf(Optimizer optimizer) {
  return IsQuantized(optimizer) ? kQuantizedBlock : kParameterAlignment;
}
// Iterations of kOrthogonalize.
inline constexpr int64_t kNewtonSchulzSteps = 5;

// How one parameter is updated.
struct ParameterUpdate {
  Optimizer optimizer = Optimizer::kAdamW;
  float lr_scale = 1;                 // times the step's learning rate
  std::optional<float> weight_decay;  // absent: the step's, where the parameter decays
  bool frozen = false;                // never: it has no gradient and no m or v
};

// One entry of train.optimizer.groups and what it matches.
struct ParameterGroup {
  std::string match;
  double lr_scale = 1;
  std::optional<double> weight_decay;
  bool frozen = false;
  int64_t tensors = 0;
  int64_t parameters = 0;  // elements
};

struct GroupParameter {
  int parameter;  // index into graph.parameters (the same in every program's graph)
  std::string name;
  graph::Shape shape;
  int64_t begin = 0;  // first element in the flat group
  int64_t elements = 0;
  bool decay = false;
  float lr_scale = 1;                 // as ParameterUpdate has it
  std::optional<float> weight_decay;  // the same
  // train.powersgd: of the factors that its gradient travels as (compression.h); 0: it is whole.
  int64_t rank = 0;
};

// A buffer for each of an optimizer's states.
using StateBuffers = std::array<BufferId, kernels::kMaxStates>;
inline constexpr StateBuffers kNoBuffers = [] {
  StateBuffers none = {};
  none.fill(kNoBuffer);
  return none;
}();

struct PlanOptions;

// Those of one block's parameters that are updated alike, laid end to end; the unit that ZeRO
// shards.
struct FlatGroup {
  std::string name;  // "h.3"; "h.3 (frozen)", "h.3 (base)", "h.3 (base, nf4)", "h.3 (divided)"...
  int block = 0;     // of the graph
  Optimizer optimizer = Optimizer::kAdamW;
  // Its parameters are never updated: of the buffers below it has theirs and, where there are
  // masters, those.
  bool frozen = false;
  // Frozen too: what adapters adapt, or a loss compares with (graph::Parameter::base). It is no
  // part of the state.
  bool base = false;
  // Tensor ranks divide its parameters; else all have the same.
  bool divided = false;
  // Each tensor rank makes a part of its gradient (graph::Parameter::partial); kReduceParts sums
  // these.
  bool partial = false;
  // Of divided parameters: so many neighbouring tensor ranks have the same
  // (graph::TensorDivision::sharers), each with a part of the gradient.
  int sharers = 1;
  // Tensor ranks that have the same parameters.
  int Alike(const PlanOptions& options) const;
  // Another pipeline stage has the same parameters; both update them, by the sum of their
  // gradients.
  bool shared = false;
  // One that an earlier stage has too, which is the one that counts and saves it.
  bool IsCopy(const PlanOptions& options) const;
  // Each of the expert ranks has others: parameters of its own experts.
  bool of_experts = false;
  // Data ranks that have it; into how many shards it is cut; and of one of them the index of its
  // shard, and of its slice where what a shard's ranks have is shared out once more.
  int Ranks(const PlanOptions& options) const;
  int Shards(const PlanOptions& options) const;
  int ShardOf(const PlanOptions& options, int data_rank) const;
  int SliceOf(const PlanOptions& options, int data_rank) const;
  // Stage 3, and there are others to share with.
  bool ShardsParameters(const PlanOptions& options) const;
  // The compute dtype; or kU8, of a base that is kept in 4 bits (nf4_pass.h): then what is counted
  // in elements here is bytes.
  DType parameter_dtype = DType::kF32;
  bool Packed() const { return parameter_dtype == DType::kU8; }
  DType state_dtype = DType::kF32;  // of its optimizer's states: kF32 or kBF16
  // kF32; kBF16 and kU8 where the parameters are their own masters in that type.
  DType master_dtype = DType::kF32;
  // Muon: of the factors of kOrthogonalize's products: kF32 or kBF16.
  DType product_dtype = DType::kF32;
  std::vector<GroupParameter> parameters;
  int64_t elements = 0;         // without padding
  int64_t padded_elements = 0;  // multiple of world * 128
  int64_t shard_elements = 0;   // of what is sharded: padded_elements / Shards()
  // Of parameter_dtype: padded_elements, or shard_elements where parameters are sharded. Buffers of
  // gathered parameters have padded_elements and are outputs of their kGatherParameters op.
  BufferId parameter_buffer = kNoBuffer;
  // padded_elements, f32. Where gradients pass (GradientsPass): a micro-step's gradient, from its
  // first writer to its reduction or rounding. Otherwise the step's, and not persistent (dead from
  // the update to the step's first writer, its bytes used by activations meanwhile) when
  // MicroSteps() is 1 and the group has no padding. Generation plans have neither this buffer nor
  // those below.
  BufferId gradient_buffer = kNoBuffer;
  // shard_elements of options.grad_dtype, where gradients pass: the step's sum of reduced
  // gradients. Not persistent (lives from the reduction to the update) when MicroSteps() is 1.
  BufferId gradient_shard_buffer = kNoBuffer;
  // shard_elements, f32. At fp32, and without masters, the master IS this rank's shard in the
  // parameter buffer, and master_buffer kNoBuffer, unless it is offloaded.
  BufferId master_buffer = kNoBuffer;
  // Of the optimizer's states, in its definition's order: shard_elements of state_dtype each.
  StateBuffers state_buffers = kNoBuffers;
  // Where IsQuantized the states have shard_elements bytes, and these an f32 per block of them.
  StateBuffers scale_buffers = kNoBuffers;
  // options.averages: shard_elements, f32. The average of the master over steps.
  BufferId average_buffer = kNoBuffer;
  // options.outer_every: shard_elements, f32. The master after the outer step before, and what the
  // outer optimizer has moved by.
  BufferId anchor_buffer = kNoBuffer;
  BufferId outer_momentum_buffer = kNoBuffer;
  // Where gradients of its parameters travel as factors (compression.h). padded_elements, f32: what
  // these have left out on this rank, times the number of ranks; of the others zeros.
  BufferId error_buffer = kNoBuffer;
  // f32, of the layout's elements: left factors and the other gradients, within a step; right
  // factors, which the next step begins with where options.powersgd_warm.
  BufferId left_buffer = kNoBuffer;
  BufferId right_buffer = kNoBuffer;
  bool Compressed() const { return error_buffer != kNoBuffer; }
  // Muon: padded_elements f32, from kMuonMomentum to kOptimizer.
  BufferId update_buffer = kNoBuffer;
  // Offloaded: master (also at fp32), states and their scales lie on the host, and so do these.
  // shard_elements, f32: the step's reduced gradient.
  BufferId host_gradient_buffer = kNoBuffer;
  // Compute dtype, at least shard_elements: what kOptimizer leaves for kParametersToDevice. Shared
  // with every other group but one. At fp32 that takes the master, and there is no such buffer.
  BufferId host_parameter_buffer = kNoBuffer;
  bool Offloaded() const { return host_gradient_buffer != kNoBuffer; }
  optim::StepNeeds Needs() const { return optim::DefinitionOf(optimizer).needs; }
  // State on disk: which of the kDiskTurns places in host memory the buffers of master, states and
  // scales are. Other groups use them too: the group's state lies there from its kReadState to its
  // kWriteState. They have at least DiskBytes of the group's. -1: it is in memory for good.
  int disk_turn = -1;
  // LAMB: the group's first tensor among the pairs of plan.update_norms.
  int64_t first_norm = 0;
};

// A tensor kind that checkpoints hold of each parameter of a group, and where this rank's part
// lies.
struct GroupState {
  std::string kind;             // "master", "m", "v", "m.scale", "ema", "error", "outer_momentum"
  BufferId buffer = kNoBuffer;  // kNoBuffer: this rank's shard of the parameters themselves
  DType dtype = DType::kF32;
  int64_t elements_per_item = 1;  // elements of the parameter that share one item
};
// Of one group: master first, then the optimizer's; average, error and outer momentum last.
std::vector<GroupState> StatesOf(const FlatGroup& group);

// On disk a state takes whole blocks of this many bytes, and memory for it begins at multiples.
inline constexpr int64_t kDiskBlock = 4096;
inline int64_t DiskBytes(int64_t bytes) {
  return (bytes + kDiskBlock - 1) / kDiskBlock * kDiskBlock;
}
// How many groups' states are in host memory at once: while one is updated the one before is
// written and the next one read.
inline constexpr int kDiskTurns = 3;

// A state of a group (StatesOf), as it lies on disk.
struct DiskRegion {
  int32_t group = -1;
  BufferId buffer = kNoBuffer;  // where it is read to and written from, at its begin
  int64_t bytes = 0;            // whole blocks
};

// What runs side by side. Where something is offloaded: copies of each direction, what the host
// computes, and for each turn what is read from the disk to its place and written from there.
// Stages of a pipeline hand on activations and their gradients, each on a stream of its own.
enum class Stream : uint8_t {
  kCompute,
  kCommunication,
  kToHost,
  kToDevice,
  kHost,
  kStageActivations,
  kStageGradients,
  kDisk,
};
inline constexpr int kStreams = static_cast<int>(Stream::kDisk) + kDiskTurns;
// "compute", "communication", "to_host", "to_device", "host", "disk 0", ...
const char* Name(Stream stream);
inline Stream DiskStream(int turn) {
  return static_cast<Stream>(static_cast<int>(Stream::kDisk) + turn);
}
inline bool IsDisk(Stream stream) { return stream >= Stream::kDisk; }

enum class When : uint8_t {
  kEveryMicroStep,
  kLastMicroStep,  // gradient reduction at stages 0 and 1: overlaps the last backward
  kUpdate,         // after the last micro-step
};

struct Access {
  BufferId buffer;
  int64_t begin = 0;  // bytes within the buffer
  int64_t end = 0;
  bool write = false;
};

struct PlannedOp {
  graph::Op op;
  Stream stream = Stream::kCompute;
  When when = When::kEveryMicroStep;
  // Indices of earlier ops of the same program on OTHER streams that must have finished, where they
  // run in this micro-step at all (order within a stream is program order).
  std::vector<int32_t> wait_for;
  // An earlier op of another stream that must have finished even where nothing conflicts; -1: none.
  // It bounds how many groups are gathered, wait for their reduction or are copied at once.
  int32_t after = -1;
  std::vector<Access> accesses;
  BufferId workspace = kNoBuffer;
  int64_t workspace_bytes = 0;
  double flops = 0;           // of matrix products
  double repeated_flops = 0;  // of these: of products that were made before
  double bytes = 0;           // read and written, at least (ops/cost.h)
  double wire_bytes = 0;      // sent by this rank
};

// Of the step's f64 scalars. The sums of loss head h follow at LossScalar(h).
inline constexpr int kNormScalar = 0;  // sum of squared gradients
inline constexpr int kStopScalar = 1;  // how many ranks ask to stop
inline constexpr int kFixedScalars = 2;
constexpr int LossScalar(int head) { return kFixedScalars + graph::kLossSums * head; }

// Where a program has all micro-batches of a step: what a micro-batch's own value is called. The
// first has the names of the graph.
std::string InputName(absl::string_view name, int64_t micro_batch);

// A schedule of ops over one graph: for each micro-step, the kEveryMicroStep ops in order, on the
// last one joined by the kLastMicroStep ops where they stand; then the kUpdate ops. All streams
// are joined between two micro-steps, and at the end: the next step's first op may read every
// parameter. The other programs have kEveryMicroStep ops only; each of their batches is a
// micro-step of one long step. The programs of a plan share the arena, its persistent buffers and,
// as they never run at once, the rest of it.
struct Program {
  graph::Graph graph;
  // By ValueId. Where parameters are sharded a parameter itself has no place: ops read its gathered
  // copies, values that the ZeRO pass has added to the graph.
  std::vector<Place> places;
  std::vector<PlannedOp> ops;  // program order
};

// Which activations are made once more in the backward instead of being kept (recompute_pass.h).
// kBudget: one of the others for each block, chosen so that activations keep within a budget.
enum class Recompute : uint8_t { kNone, kSelective, kFull, kBudget };
const char* Name(Recompute recompute);

// The order of a stage's passes over micro-batches (pipeline/schedule.h).
enum class PipelineSchedule : uint8_t { kOneForwardOneBackward, kZeroBubble, kInterleaved };
const char* Name(PipelineSchedule schedule);

// What the plan runs on: how much scratch ops need depends on it.
enum class DeviceKind : uint8_t { kCpu, kCuda };

struct PlanOptions {
  DeviceKind device = DeviceKind::kCpu;
  // train.sync: islands of so many neighbouring ranks train apart, and become one model in an outer
  // step after every `outer_every` steps; 0: there is none. All that is said of ranks below is said
  // of those of one island.
  int islands = 1;
  int64_t outer_every = 0;
  double outer_lr = 0;
  double outer_momentum = 0;
  bool outer_nesterov = false;
  // Data ranks: each has all that is trained, and tokens of its own. What is said of ranks below is
  // said of these.
  int world = 1;
  // Neighbouring ranks of the job that divide the layers of a data rank among them.
  int tensor = 1;
  // Neighbouring data ranks that train on the same samples: each has so large a part of every
  // sequence and, for attention, of the heads, or of the queries of the same heads
  // (passes/context_pass.h). Divides world and sequence.
  int context = 1;
  // Neighbouring data ranks that share out the model's experts (passes/experts_pass.h). Divides
  // world. The plan is that of the ranks of `expert_rank`.
  int expert = 1;
  int expert_rank = 0;
  // Stages of a pipeline: a data rank has so many neighbouring groups of tensor ranks, each with
  // some of the blocks. The plan is that of the ranks of `stage`, counted from 0.
  int pipeline = 1;
  int stage = 0;
  PipelineSchedule schedule = PipelineSchedule::kOneForwardOneBackward;
  // kInterleaved: how many runs of blocks each stage has. Run c of stage s is number
  // c * pipeline + s of all. Else 1.
  int chunks = 1;
  int zero_stage = 0;  // 0 to 3
  // Hybrid sharding: what is sharded is so among this many neighbouring ranks, and replicated from
  // there on. Divides world; 0: all ranks.
  int shard_ranks = 0;
  // Stage 3: how many blocks ahead of its use a block's parameters are gathered.
  int prefetch = 1;
  Recompute recompute = Recompute::kNone;
  int64_t recompute_budget = 0;  // kBudget: bytes of activations at most
  Optimizer optimizer = Optimizer::kAdamW;
  DType compute_dtype = DType::kF32;
  // The layers of blocks multiply 8 bits (fp8_pass.h); compute_dtype is kBF16.
  bool fp8 = false;
  // What adapters adapt is kept in 4 bits, where linear layers alone read it (nf4_pass.h).
  bool nf4_base = false;
  // GELUs are computed within the products before and behind them (gelu_pass.h).
  bool fuse_gelu = false;
  // A GPU's attention backward has the same bits in every run (library_attention.h).
  bool exact = true;
  DType grad_reduce = DType::kF32;  // what gradients travel as: kF32 or kBF16
  // Gradients of matrices travel as factors of this rank (compression.h); 0: whole. At stage 0, not
  // offloaded, with one model rank.
  int64_t powersgd_rank = 0;
  int64_t powersgd_start = 0;       // so many steps before it send them whole
  bool powersgd_warm = true;        // a step begins with the factors of the one before
  DType state_dtype = DType::kF32;  // of the optimizer's m and v: kF32 or kBF16
  // What the step's reduced gradient is kept in: kF32, or kBF16, with accumulation 1 and a
  // compute_dtype of kBF16.
  DType grad_dtype = DType::kF32;
  // In 16 bits parameters have fp32 masters. false (kBF16 only): updates round them at random.
  bool masters = true;
  // false: frozen parameters in bf16 are their own masters, as where adapters are trained.
  bool frozen_masters = true;
  DType orthogonalization = DType::kF32;  // FlatGroup::product_dtype of Muon's groups
  bool averages = false;  // of the parameters over steps; not where the optimizer is offloaded
  int64_t micro_batch = 1;
  // Of a sample. Generation plans: how many positions of a text the caches hold.
  int64_t sequence = 1;
  int64_t texts = 1;    // generation plans: of how many texts, which are made side by side
  bool scores = false;  // generation plans: they have the program `score`
  int64_t accumulation = 1;
  // How many of its micro-batches a run of the training program takes, side by side
  // (side_by_side_pass.h). Divides accumulation; 1 in a pipeline, whose program has all of them.
  int64_t side_by_side = 1;
  // Inputs that say where documents and segments are (models::ModelOptions).
  bool documents = false;
  bool segments = false;
  // The loss is that of preferences, with this beta; 0: of the next token.
  double dpo_beta = 0;
  double dpo_label_smoothing = 0;
  // Master, m and v lie in host memory, and the host updates them (Ren et al., "ZeRO-Offload",
  // 2021). Not with LAMB or Muon.
  bool offload_optimizer = false;
  // With it: between updates the state lies in a file on the host's disk (Rajbhandari et al.,
  // "ZeRO-Infinity", 2021).
  bool offload_disk = false;
  // What blocks keep for their backward waits for it in host memory (offload_pass.h).
  bool offload_activations = false;
  // Of a rank's whole state, in host memory, beside the arena: checkpoint.redundancy.
  int state_copies = 0;
  int threads = 1;  // of this rank: a CPU's per-thread workspaces depend on it
  // Of logits that exist at once; 0: the device's (LmHeadChunkBytes).
  int64_t lm_head_chunk_bytes = 0;
  int64_t shard_alignment = 128;  // elements
  // What a backend found that an op needs beyond the model of workspace.h: every matrix-product
  // op's workspace is at least this.
  int64_t min_matmul_workspace_bytes = 0;
  int64_t min_convolution_workspace_bytes = 0;        // the same, of every convolution
  int64_t min_attention_workspace_bytes = 0;          // the same, of every attention
  int64_t attention_call_bytes = int64_t{512} << 20;  // library_attention.h: kAttentionCallBytes

  int SampleRanks() const { return world / context; }             // with samples of their own
  int AllSampleRanks() const { return islands * SampleRanks(); }  // of the job
  int64_t OwnSequence() const { return sequence / context; }  // tokens of a sample that a rank has
  int64_t TokensOfStep() const { return AllSampleRanks() * micro_batch * accumulation * sequence; }
  int ModelRanks() const { return tensor * pipeline; }  // of a data rank
  int Ranks() const { return world * ModelRanks(); }    // of an island
  int AllRanks() const { return islands * Ranks(); }    // of the job
  // Of a rank of the job:
  int IslandOf(int rank) const { return rank / Ranks(); }
  int DataRank(int rank) const { return rank % Ranks() / ModelRanks(); }
  int TensorRank(int rank) const { return rank % tensor; }
  int SampleRank(int rank) const { return rank / ModelRanks() / context; }  // of the job's
  int ContextRank(int rank) const { return DataRank(rank) % context; }
  int StageOf(int rank) const { return rank / tensor % pipeline; }
  int ExpertRank(int rank) const { return DataRank(rank) % expert; }
  bool IsLastStage() const { return stage == pipeline - 1; }
  // How often a step runs the training program: that of a stage has all micro-batches in it.
  int64_t MicroSteps() const { return pipeline > 1 ? 1 : accumulation / side_by_side; }

  // Into how many shards a flat group is cut. A single rank keeps everything at every stage.
  // Rank r keeps shard r % Shards() (FlatGroup::ShardOf).
  int Shards() const { return zero_stage == 0 ? 1 : shard_ranks > 0 ? shard_ranks : world; }
  // How many ranks hold the same shard; 1 where nothing is sharded among several.
  int Replicas() const { return Shards() > 1 ? world / Shards() : 1; }
  // Among how many ranks Muon's matrices are dealt out, in turn: those of the shards; where nothing
  // is sharded, all.
  int MatrixOwners() const { return Shards() > 1 ? Shards() : world; }
  bool ShardsGradients() const { return zero_stage >= 2 && Shards() > 1; }
  bool RoundsGradients() const { return grad_dtype != DType::kF32; }
  // A whole gradient in fp32 lives within a micro-step only: what stays of it is its shard, or is
  // rounded.
  bool GradientsPass() const { return ShardsGradients() || RoundsGradients(); }
  bool HasMasters() const { return compute_dtype != DType::kF32 && masters; }
  // FlatGroup::master_dtype.
  // `base`: of a group that is no part of the state.
  DType MasterDType(bool frozen, bool base) const {
    const bool kept = !frozen || (frozen_masters && !base);
    const bool none = !masters || (!kept && compute_dtype == DType::kBf16);
    return none ? compute_dtype : DType::kF32;
  }
  bool ShardsParameters() const { return zero_stage >= 3 && Shards() > 1; }
  bool Offloads() const { return offload_optimizer || offload_activations; }
  // A chunk's logits stay in a CPU's cache as far as they can. On a GPU each chunk reads and writes
  // the classifier's whole gradient once more, which takes as long as the chunk's products where
  // these have only some hundred rows.
  int64_t LmHeadChunkBytes() const {
    if (lm_head_chunk_bytes > 0) return lm_head_chunk_bytes;
    return device == DeviceKind::kCuda ? int64_t{512} << 20 : int64_t{64} << 20;
  }
};

inline int FlatGroup::Ranks(const PlanOptions& options) const {
  return of_experts ? options.world / options.expert : options.world;
}
inline int FlatGroup::Shards(const PlanOptions& options) const {
  return of_experts && options.Shards() > 1 ? Ranks(options) : options.Shards();
}
inline int FlatGroup::ShardOf(const PlanOptions& options, int data_rank) const {
  return (of_experts ? data_rank / options.expert : data_rank) % Shards(options);
}
inline int FlatGroup::SliceOf(const PlanOptions& options, int data_rank) const {
  return (of_experts ? data_rank / options.expert : data_rank) / Shards(options);
}

inline bool FlatGroup::ShardsParameters(const PlanOptions& options) const {
  return options.ShardsParameters() && Shards(options) > 1;
}

struct StepPlan {
  PlanOptions options;
  std::vector<Buffer> buffers;
  std::vector<FlatGroup> groups;  // in block order; a block may have several
  // Of parameters that only other stages or expert ranks have: what their state consists of. No
  // ops, no buffers.
  std::vector<FlatGroup> elsewhere;
  std::vector<ParameterGroup> parameter_groups;  // as the spec lists them
  int64_t arena_bytes = 0;                       // what the rank allocates, exactly
  int64_t bytes_by_class[kBufferClasses] = {};   // at the arena's peak; sums to arena_bytes with
  int64_t slack_bytes = 0;                       // alignment and fragmentation
  // The same of the arena in host memory; zeros where nothing is offloaded.
  int64_t host_arena_bytes = 0;
  int64_t host_bytes_by_class[kBufferClasses] = {};
  int64_t host_slack_bytes = 0;
  // State on disk: all of the file, in order.
  std::vector<DiskRegion> disk_regions;
  int64_t disk_bytes = 0;  // of the file
  // f64 scalars of a step. The first ReducedScalars() are all-reduced together: the fixed ones and
  // the loss heads' sums. Norm partials of the groups follow, group g's at [ReducedScalars() + g];
  // kReduceScalars sums them into kNormScalar.
  BufferId scalars = kNoBuffer;
  // Where optimizers are offloaded: the reduced scalars' copy on the host.
  BufferId host_scalars = kNoBuffer;
  // LAMB: a pair of f64 for each tensor, by group: sums of squares of the tensor and of its update.
  BufferId update_norms = kNoBuffer;
  // The model's running statistics (statistics.h), whole on every rank; kNoBuffer: it has none.
  BufferId statistics = kNoBuffer;
  // Of 8-bit products (scalings.h): records by index in train.graph.scalings, which are part of the
  // trainer's state; slots of the step's largest magnitudes; and these by rank and tensor, f32,
  // during the update. kNoBuffer: there are none.
  BufferId scalings = kNoBuffer;
  BufferId amaxes = kNoBuffer;
  BufferId gathered_amaxes = kNoBuffer;
  int loss_heads = 0;  // of either program's graph; 0: a generation plan
  int ReducedScalars() const { return LossScalar(loss_heads); }
  // By index in train.graph.blocks: kNone where nothing is made once more; never kBudget.
  std::vector<Recompute> recompute_of_block;
  int64_t parameters = 0;               // elements, tied ones once, no padding
  double flops_per_step = 0;            // per rank, matrix products and attention; what MFU counts
  double recompute_flops_per_step = 0;  // those of activations made once more, not in the above
  double wire_bytes_per_step = 0;       // sent per rank, validation not counted
  double offload_bytes_per_step = 0;    // copied to the host and back, per rank
  double disk_bytes_per_step = 0;       // read and written, per rank

  Program train;     // forward, backward, reduction, update
  Program evaluate;  // forward and loss only, no dropout, the same micro-batch
  // options.averages: of this rank's shards, takes each group's average for its parameters or, run
  // once more, gives them back.
  Program exchange;
  Program gather;  // after each of these, where all ranks hold parameters that shards update
  // options.outer_every: keeps this rank's shards of the parameters, before the first step behind
  // an outer one; and an outer step, of all islands.
  Program anchor;
  Program outer;
  double outer_wire_bytes = 0;  // that a rank sends in it
  // Generation plans have these alone: a chunk of a text, and one token of each text, ending in the
  // logits of one row of each text. They share the caches: persistent buffers, called as the values
  // are.
  Program prompt;
  Program next;
  Program score;  // as `prompt`, ending in the logits of every row; where options.scores
  std::array<const Program*, 9> Programs() const {
    return {&train, &evaluate, &exchange, &gather, &anchor, &outer, &prompt, &next, &score};
  }

  // Where a buffer begins in both arenas, one behind the other: apart where bytes are.
  int64_t AddressOf(BufferId id) const {
    const Buffer& buffer = buffers[id];
    return buffer.offset + (buffer.memory == Memory::kHost ? arena_bytes : 0);
  }
};

inline constexpr int64_t kBufferAlignment = 64;
// A GPU's: what its libraries want of their workspaces.
inline constexpr int64_t kCudaBufferAlignment = 256;
inline int64_t BufferAlignment(const PlanOptions& options, Memory memory = Memory::kDevice) {
  if (memory == Memory::kHost && options.offload_disk) return kDiskBlock;
  return options.device == DeviceKind::kCuda ? kCudaBufferAlignment : kBufferAlignment;
}

}  // namespace milepost::plan

#endif  // MILEPOST_ENGINE_PLAN_STEP_PLAN_H_
