// The graph IR: typed, shaped values, and the ops that make them, for ONE micro-batch.
//
//   MP_ASSIGN_OR_RETURN(Graph graph, models::BuildModel(spec, options));  // builder.h inside
//   MP_RETURN_IF_ERROR(ops::AddBackward(graph));                          // ops/backward.h
//   plan::PlanTraining(...)                  // plan/planner/planner.h: all this, and more
//
// A graph is plain data: copyable, without pointers or a device. Values are in definition order.
// Ops are in execution order, which is a valid topological order. Not synchronised: share it
// read-only.
//
// Shape legend: B batch (sequences), T sequence length, N = B*T rows, C width, V vocabulary, P
// positions, H heads of queries, G heads of keys and of values (H is a multiple of G), D width of a
// head, K and M input and output width of a linear layer. Everything is row-major. Images are
// [B,Y,X,C]: Y rows and X columns of pixels with C channels. An image op's N is B*Y*X.
#ifndef MILEPOST_ENGINE_GRAPH_GRAPH_H_
#define MILEPOST_ENGINE_GRAPH_GRAPH_H_

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/strings/string_view.h"
#include "engine/dtype/dtype.h"

namespace milepost::graph {

using Shape = absl::InlinedVector<int64_t, 4>;
int64_t Elements(const Shape& shape);

using ValueId = int32_t;
inline constexpr ValueId kNoValue = -1;
inline constexpr int kNoBlock = -1;
inline constexpr int32_t kNoPass = -1;

enum class ValueKind : uint8_t {
  kInput,              // filled by the host before each micro-step
  kParameter,          // compute dtype (bf16, f16 or f32); a slice of its block's flat group
  kParameterGradient,  // f32; a slice of the flat group's gradient; accumulates over micro-steps
  kActivation,         // lives within one micro-step
  kStepAccumulator,    // persists and accumulates over a step's micro-steps (the loss sum)
  kDiscarded,          // an unwanted gradient of an op that also makes others; never read
  kStatistic,          // a batch norm's running statistics: part of the model's state, not trained;
                       //   ops of the forward update them in place (WriteMode::kAccumulate)
  kScaling,            // how a tensor is scaled before it is rounded to 8 bits: f32, a record that
                       //   outlives steps; set by kUpdateScalings and, in the very first step, by
                       //   the kQuantize that has it as an output (WriteMode::kAccumulate)
  kAmax,               // the largest magnitudes of a tensor in a step: f32, by slots. Micro-steps
                       //   keep the larger (WriteMode::kAccumulateInStep)
  kCache,              // keys and values of the text so far, by position: shared by the programs
                       //   that generate, which add to it in place (WriteMode::kAccumulate)
};

struct Value {
  std::string name;  // "h.3.attn.qkv"; parameters: Hugging Face's name
  DType dtype;
  Shape shape;
  ValueKind kind;
  int block = kNoBlock;
};

// engine/ops/<room>/ says what each kind reads, makes and computes.
enum class OpKind : uint8_t {
#define MP_OP(kind, name) k##kind,
#include "engine/graph/op_kinds.inc"
#undef MP_OP
};
inline constexpr OpKind kNoOpKind = static_cast<OpKind>(UINT8_MAX);
const char* Name(OpKind kind);
// True for a forward op that ends a task. Its backward op also makes the loss, and replaces it.
inline bool IsLoss(OpKind kind) {
  return kind == OpKind::kLmHeadLoss || kind == OpKind::kClassifierLoss ||
         kind == OpKind::kPreferenceLoss;
}

// kRecompute: a forward op that runs once more within the backward.
enum class Phase : uint8_t { kForward, kBackward, kUpdate, kRecompute };

// How an op writes an output. Activations are assigned once. Gradients and step accumulators
// accumulate: the first writer in program order uses kAccumulateInStep, later writers kAccumulate.
// The tied embedding, for example, has two writers.
enum class WriteMode : uint8_t {
  kAssign,
  kAccumulate,        // always +=
  kAccumulateInStep,  // assigns on a step's first micro-step, += on later ones
};

struct Output {
  ValueId value = kNoValue;  // kNoValue: the output is not wanted
  WriteMode mode = WriteMode::kAssign;
  // This output may use the bytes of that input if the input dies here. kNoValue: never.
  ValueId may_overwrite = kNoValue;
  // The op does less where this output is not wanted: a gradient that is frozen is left out, not
  // discarded.
  bool optional = false;
};

// Rotary positions: angle i of position t is t f(i), with f(i) = theta^(-2i/D). With factor > 1
// frequencies are scaled as in Llama 3. f becomes f / factor where the wavelength 2 pi / f is above
// original_context / low_frequency. f stays where it is below original_context / high_frequency.
// Between the two, the mix is linear in original_context / wavelength.
struct RopeAttributes {
  double theta = 10000;
  double factor = 1;
  double low_frequency = 1;
  double high_frequency = 4;
  double original_context = 8192;
};

inline constexpr int kImageChannels = 3;  // of input images

// For convolutions, pools, batch norms, images and their patches.
struct ImageAttributes {
  int64_t kernel = 1;  // side of the square window, or of the patch
  int64_t stride = 1;
  int64_t padding = 0;
  bool relu = false;          // kBatchNorm, kBatchNormBackward*
  bool synchronised = false;  // batch norms: statistics over the rows of all ranks
  int64_t rows = 0;           // kBatchNormStatistics: rows behind a rank's sums
  double momentum = 0.1;      // of running statistics, as in torch: the share of the new value
  // kNormalizeImages, kImagePatches: for each channel, in units of values in [0, 1].
  std::array<double, kImageChannels> mean = {};
  std::array<double, kImageChannels> deviation = {};
};

// Of a layer's adapters (ops/lora/lora.h): one for each of its parts that has one. Of kDora and its
// backward: its parts, all of them.
inline constexpr int64_t kMostAdapters = 3;
struct LoraAttributes {
  int64_t adapters = 0;
  std::array<int64_t, kMostAdapters> columns = {};  // of y, the first of the adapter's part
};

// Of the ops of experts (ops/experts/experts.h).
struct ExpertsAttributes {
  int64_t count = 0;        // E; kExpertLinear*: those that this rank has
  int64_t ranks = 1;        // of ops/expert_parallel: that share out a layer's experts
  int64_t even_rows = 0;    // kExpertLinear*: of x, where all experts are used alike; 0: all
  int64_t per_token = 0;    // S
  bool normalize = true;    // the weights of a token's experts sum to 1
  double balance_loss = 0;  // kExpertBalance: times the loss of uneven use
  double z_loss = 0;        // kExpertBalance: times that of the router's logits
};

struct Attributes {
  int64_t batch = 0;     // B
  int64_t sequence = 0;  // T
  int64_t heads = 0;
  int64_t kv_heads = 0;  // heads of keys and of values; divides heads
  bool causal = true;    // kAttention*: a position sees no later one
  int64_t window = 0;    // kAttention*, kCachedAttention: positions that one sees; 0: all
  // kAttention*, kTokensToHeads, kHeadsToTokens: neighbouring context ranks that have the same
  // heads, of whose queries each has a part (passes/context_pass.h)
  int64_t query_parts = 1;
  int64_t parts = 1;        // kLinear*: weights whose outputs lie side by side
  bool transposed = false;  // kLinear*, kDoraNorms: weights are [M,K]
  bool exact = false;       // kGelu*: the exact form, not the tanh form
  bool gelu = false;        // kLinear, kLinearBackwardInput: with the GELU behind or before it
  bool fp8 = false;         // kLinear*: computed with 8-bit codes
  int32_t fp8_layer = -1;   // kLinear*: index among the layers that may use fp8; -1: none
  bool never_fp8 = false;   // kLinear*
  bool divided = false;     // each tensor rank does a part of it; else all do the same
  // kLinear: tensor ranks divide its columns, and sum what each makes of the gradient of its input.
  // With experts kExpertLinear; the sums are those of kRouteExperts and kDispatchRows.
  bool divides_columns = false;
  bool divides_rows = false;  // each tensor rank has some of the rows (plan/passes/rows_pass.h)
  int32_t peer_stage = -1;    // kStage*: the pipeline stage at the other end
  int32_t micro_batch = 0;    // of those that the program has (plan/passes/micro_batch_copies.h)
  int32_t pass = kNoPass;     // of a pipeline: index among the stage's passes
  int32_t chunk = 0;          // of the runs of blocks that an interleaved pipeline's stage has
  // kTokenRows, kEmbedding*, kLmHead*: V of the tensor ranks together, which divide the table's
  // rows (plan/passes/vocabulary_pass.h). 0: each of them has all.
  int64_t vocabulary = 0;
  RopeAttributes rope;  // kRopeTable
  ImageAttributes image;
  LoraAttributes lora;        // kLora*, kDora, kDoraBackward
  ExpertsAttributes experts;  // kRouteExperts*, kDispatchRows*, kExpert*, kCombineRows*
  double scale = 1;           // kScale, kDoraNorms; kPreferenceLoss*: beta
  double dropout = 0;         // probability; 0: none
  uint32_t dropout_tag =
      0;  // the "tensor" of the counter-based mask; the same in forward and backward
  // kClassifierLoss*: share of the target spread over all classes. kPreferenceLoss*: of pairs that
  // are taken to be the other way round.
  double label_smoothing = 0;
  double epsilon = 1e-5;    // LayerNorm, RmsNorm, BatchNorm
  double gamma_offset = 0;  // RmsNorm, kQkNorm*: added to gamma
  int64_t chunk_rows = 0;   // kLmHeadLoss*, kLmHeadLogProbs*: rows of logits that exist at a time
  bool gathers = false;     // kLmHeadLoss*: chunks hold only rows that have a target
  bool every_row = false;   // kLmHeadLogits: logits of all rows, not of one of each sequence
  bool rows_apart = false;  // generation: each row is of a text of its own, and made as if alone
  int32_t head = 0;         // losses: index into Graph::losses
  int32_t group = -1;       // flat-group ops
  int32_t state = 0;        // kAverageIslands: index among plan::StatesOf the group
};

struct Op {
  OpKind kind;
  Phase phase = Phase::kForward;
  int block = kNoBlock;
  std::vector<ValueId> inputs;
  std::vector<Output> outputs;
  Attributes attributes;
  bool constant = false;  // of the forward: no gradient passes
};

// Which elements of a whole tensor a tensor rank has: `run` neighbouring ones of every `period`.
// Rank t has elements [p run, (p + 1) run) of each, where p is its piece, so run times the number
// of pieces is the period.
struct TensorDivision {
  int64_t run = 0;  // 0: the tensor is whole
  int64_t period = 0;
  // So many neighbouring ranks have the same piece: heads of keys, of which there are fewer than
  // ranks.
  int64_t sharers = 1;

  bool whole() const { return run == 0; }
  int64_t PieceOf(int64_t tensor_rank) const { return tensor_rank / sharers; }
  // Of rank `tensor_rank`: the whole tensor's element that its element `own` is. At the tensor's
  // end, or beyond, where ranks have more places than the tensor has elements: those are padding.
  int64_t WholeIndex(int64_t own, int64_t tensor_rank) const {
    return whole() ? own : own / run * period + PieceOf(tensor_rank) * run + own % run;
  }
};

// kUniform: from -sqrt(3) stddev to sqrt(3) stddev.
enum class Initializer : uint8_t { kZeros, kOnes, kNormal, kUniform };

struct Parameter {
  ValueId value = kNoValue;
  ValueId gradient = kNoValue;  // set by AddBackward
  Initializer initializer = Initializer::kZeros;
  double stddev = 0;   // kNormal, kUniform
  bool decay = false;  // weight decay: tensors of two or more dimensions
  // Never trained, and no part of the model's state: what adapters adapt, or a loss compares with.
  bool base = false;
  // Of one that is kept in 4 bits (engine/dtype/nf4.h): its own shape, where its value is
  // u8[bytes]. Empty: of all others.
  std::vector<int64_t> unpacked = {};
  // Where pipeline stages divide the model, or expert ranks share out its experts: no op of this
  // stage or rank reads it. Nor is its value used.
  bool elsewhere = false;
  // Likewise: another stage reads it too, and has a copy of its own.
  bool shared = false;
  // Of one that tensor ranks divide: its own shape, where its value has that of a rank's part.
  std::vector<int64_t> undivided = {};
  TensorDivision division = {};
  // Tensor ranks have it whole, or share a piece of it, and each makes a part of its gradient: of
  // some rows or heads.
  bool partial = false;
  // Of an expert that only some of the expert ranks have; `elsewhere` to the others.
  bool of_experts = false;
};

// One task of the model. A model with several tasks has several heads, with the family's own first.
struct LossHead {
  std::string name;  // "lm"
  // f64[kLossSums], a step accumulator. [kLossSum] is the loss over valid targets, in nats.
  // [kLossTargets] is the number of valid targets. [kLossCorrect] is how many of them have the
  // largest logit (the first of equal ones); it is counted only without a backward, and stays 0 in
  // training.
  ValueId sums = kNoValue;
  ValueId targets = kNoValue;  // the input that it reads, i32; -1 is ignored
  double weight = 1;           // of its mean over the valid targets of the global batch
};
inline constexpr int kLossSum = 0;
inline constexpr int kLossTargets = 1;
inline constexpr int kLossCorrect = 2;
inline constexpr int kLossSums = 3;
inline constexpr int kMaxLosses = 8;
// A statistic: f32, or i64 for counts. At the end of each step it is the same on every rank.
struct Statistic {
  ValueId value = kNoValue;
  double initial = 0;
};

// The scaling of one tensor that is rounded to 8 bits.
struct Scaling {
  ValueId scaling = kNoValue;
  ValueId amax = kNoValue;
  DType dtype = DType::kE4M3;  // of the tensor's codes
};

struct Graph {
  std::vector<Value> values;
  std::vector<Op> ops;
  std::vector<Parameter> parameters;  // in definition order
  std::vector<Statistic> statistics;  // likewise
  std::vector<Scaling> scalings;      // plan/passes/fp8_pass.h
  // Names of the blocks, which are the units of flat groups. Values and ops refer to them by index,
  // in definition order.
  std::vector<std::string> blocks;
  std::vector<ValueId> inputs;   // found by name: "tokens" i32[N], "targets" i32[N]
  std::vector<LossHead> losses;  // in the order of the ops that make them
  ValueId logits = kNoValue;     // only in generation graphs

  ValueId Input(absl::string_view name) const;  // kNoValue: there is no input of this name
  // Of the parameter itself, also where it is packed or divided.
  int64_t ElementsOf(const Parameter& parameter) const;
};

}  // namespace milepost::graph

#endif  // MILEPOST_ENGINE_GRAPH_GRAPH_H_
