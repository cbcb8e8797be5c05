// The graph IR: typed, shaped values and the ops that make them, for ONE micro-batch.
//
//   MP_ASSIGN_OR_RETURN(Graph graph, models::BuildModel(spec, options));  // builder.h inside
//   MP_RETURN_IF_ERROR(graph::AddBackward(graph));                        // autodiff.h
//   plan::PlanTraining(...)                                // plan/planner.h: all of it, and more
//
// A graph is plain data: copyable, no pointers, no device. Values are in definition order, ops in
// execution order (a valid topological order). Not synchronised: share it read-only.
//
// Shape legend: B batch (sequences), T sequence length, N = B*T rows, C width, V vocabulary,
// P positions, H heads of queries, G heads of keys and of values (H is a multiple of G), D width of
// a head, K and M a linear layer's input and output width. Everything is row-major. Images are
// [B,Y,X,C]: Y rows and X columns of pixels of C channels; an image op's N is B*Y*X.
#ifndef MILEPOST_ENGINE_GRAPH_GRAPH_H_
#define MILEPOST_ENGINE_GRAPH_GRAPH_H_

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/strings/string_view.h"

namespace milepost::graph {

enum class DType : uint8_t { kF32, kBF16, kF16, kF64, kI32, kU8, kI64, kF8E4M3, kF8E5M2 };
int64_t ByteSize(DType dtype);
// safetensors' names: "F32", "BF16", "F16", "F64", "I32", "U8", "I64", "F8_E4M3", "F8_E5M2"
const char* Name(DType dtype);

using Shape = absl::InlinedVector<int64_t, 4>;
int64_t Elements(const Shape& shape);

using ValueId = int32_t;
inline constexpr ValueId kNoValue = -1;
inline constexpr int kNoBlock = -1;

enum class ValueKind : uint8_t {
  kInput,              // filled by the host before each micro-step
  kParameter,          // compute dtype (bf16, f16 or f32); a slice of its block's flat group
  kParameterGradient,  // f32; a slice of the flat group's gradient; accumulates over micro-steps
  kActivation,         // lives within one micro-step
  kStepAccumulator,    // persists and accumulates over the micro-steps of one step (the loss sum)
  kDiscarded,          // a gradient nobody wants, of an op that also makes others; never read
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

enum class OpKind : uint8_t {
  // ---- forward: inputs -> outputs ----
  kEmbedding,          // tokens i32[N], wte[V,C], wpe[P,C]|kNoValue, positions i32[N]|kNoValue,
                       //   wse[S,C]|kNoValue, segments i32[N]|kNoValue -> x[N,C] (with dropout)
                       //   a row's position: positions', or its place in the sequence; its
                       //   segment: segments', or 0
  kLayerNorm,          // x[N,C], gamma[C], beta[C] -> y[N,C], mean f32[N], rstd f32[N]
  kResidualLayerNorm,  // residual[N,C], delta[N,C], gamma, beta -> sum[N,C], y[N,C], mean, rstd
                       //   sum = residual + dropout(delta); y = LayerNorm(sum)
  kRmsNorm,            // x[N,C], gamma[C] -> y[N,C], rstd f32[N]
  kResidualRmsNorm,    // residual[N,C], delta[N,C], gamma -> sum[N,C], y[N,C], rstd
                       //   sum = residual + delta; y = RmsNorm(sum)
  kLinear,             // x[N,K], w[K,M], bias[M] -> y[N,M]  (Hugging Face's Conv1D layout)
                       //   transposed: x[N,K], `parts` weights w[Mi,K] (torch's nn.Linear layout),
                       //   then as many biases[Mi] or none -> y[N, sum of Mi], part beside part
                       //   gelu: -> y|kNoValue, gelu(y)[N,M]; of one part, the tanh form
                       //   fp8: codes of x[N,K], of the weights[M,K], their scalings, the biases
  kGelu,               // x[N,M] -> y[N,M]  (tanh form; exact: by the error function)
  kSwiGlu,             // x[N,2M]: gate, then up -> y[N,M] = silu(gate) up
  kQuantize,         // `parts` matrices [Ri,C] as one [R,C], bf16; scaling -> codes[R,C]|kNoValue,
                     //   turned codes[C,R]|kNoValue, amax|kNoValue, scaling|kNoValue
                     //   codes = round(scale x) in 8 bits; amax of x. In any phase
  kRopeTable,        // positions i32[T]|kNoValue -> table f32[T,D]: row t is the cosines of D/2
                     //   angles, then their sines, of the position t or positions[t]
  kRope,             // qkv[N,(H+2G)D], table, positions i32[N]|kNoValue -> the same with every
                     //   head of q and k rotated: element i of a head's first half with element
                     //   i of its second half, by the row's position as for kEmbedding
  kQkNorm,           // qkv[N,(H+2G)D], gamma_q[D], gamma_k[D] -> the same with every head of q
                     //   and k normalised as by kRmsNorm
  kDropout,          // x[N,M] -> y[N,M]; also its own backward: dy -> dx
  kAttention,        // qkv[N,(H+2G)D], documents i32[N]|kNoValue -> out[N,HD], lse f32[B,H,T]
                     //   scale 1/sqrt(D); head h reads the keys and values of head h / (H/G);
                     //   documents: a position sees those of its own id only. Ids never fall
                     //   along a sequence
  kCachedAttention,  // qkv[N,(H+2G)D], positions i32[N], cache[2,G,P,D] -> out[N,HD], cache, in
                     //   place; of one sequence (B = 1). How many rows there are is given at run
                     //   time, so that a chunk of text may be partly filled: row r's keys and
                     //   values are put into the cache at its position, positions[0] + r, and its
                     //   query sees the cached ones up to that. out of other rows: zeros
  kLmHeadLoss,       // x[N,C], wte[V,C], targets i32[N], bias[V]|kNoValue -> sums f64[3]
                     //   (accumulate; LossHead); gathers: rows without a target are left out
  kLmHeadLogits,     // x[N,C], wte[V,C], bias[V]|kNoValue -> logits f32[B,V] of ONE position of
                     //   each sequence, the same in all: given at run time, so that a window may
                     //   be partly filled
  // Of images:
  kNormalizeImages,      // images u8[B,Y,X,C] -> x[B,Y,X,C] = (images / 255 - mean) / deviation
  kConvolution,          // x[B,Y,X,I], w[O,I,k,k] -> y[B,Y',X',O]
  kBatchNormSums,        // x[B,Y,X,C] -> sums f64[2,C]: of x and of its squares over N rows
  kReduceStatistics,     // sums f64[2,C] -> the same, all-reduced over the ranks
  kBatchNormStatistics,  // sums, running mean, running variance, batches -> mean f32[C], rstd
                         //   f32[C], and the three statistics, updated
  kBatchNormRunning,     // running mean, running variance -> mean, rstd: what evaluation uses
  kBatchNorm,            // x, mean, rstd, gamma[C], beta[C], residual[B,Y,X,C]|kNoValue -> y
                         //   y = (x - mean) rstd gamma + beta + residual; max(0, y) with `relu`
  kMaxPool,              // x[B,Y,X,C] -> y[B,Y',X',C], winners u8[B,Y',X',C]
  kAveragePool,          // x[B,Y,X,C] -> y[B,C]: over all pixels
  kClassifierLoss,       // logits[N,V], targets i32[N] -> sums f64[3] (accumulate; LossHead)
  // ---- backward ----
  kEmbeddingBackward,          // tokens, dx[N,C], positions, segments -> dwte, dwpe, dwse (the last
                               //   four or kNoValue)
  kLayerNormBackward,          // x, gamma, mean, rstd, dy, dsum|kNoValue -> dx, dgamma, dbeta
                               //   dx = dsum + LayerNorm backward(dy); dsum: what other consumers
                               //   of x added to its gradient
  kResidualLayerNormBackward,  // sum, gamma, mean, rstd, dy, dsum|kNoValue -> dx, ddelta|kNoValue,
                               //   dgamma, dbeta
                               //   dx as above: gradient of sum and so of the residual;
                               //   ddelta = dropout mask(dx); without dropout ddelta IS dx
                               //   (kNoValue)
  kRmsNormBackward,            // x, gamma, rstd, dy, dsum|kNoValue -> dx, dgamma
                               //   dx as above; serves kResidualRmsNorm too, where x is sum and
                               //   dx the gradient of both the residual and delta
  kLinearBackwardInput,        // dy[N,M], the weights[, dsum] -> dx[N,K]
                               //   dsum: what other consumers of x added to its gradient
                               //   gelu: dy, w, z[N,K] -> dz, where x = gelu(z)
                               //   fp8: codes of dy[N,M], of the weights[K,M], their scalings
                               //   [, dsum]
  kLinearBackwardWeight,       // x[N,K], dy[N,M] -> the weights' gradients, then the biases'
                               //   fp8: codes of x[K,N], of dy[M,N], their scalings[, dy: where
                               //   there are biases]
  kGeluBackward,               // x, dy -> dx
  kSwiGluBackward,             // x[N,2M], dy[N,M] -> dx[N,2M]
  kRopeBackward,               // dout, table, positions|kNoValue -> dqkv: rotated back
  kQkNormBackward,             // qkv, gamma_q, gamma_k, dout -> dqkv, dgamma_q, dgamma_k
  kAttentionBackward,          // qkv, out, lse, dout, documents|kNoValue -> dqkv
  kLmHeadLossBackward,         // x, wte, targets, bias|kNoValue, dsum|kNoValue -> sums, dx, dwte,
  //   dbias|kNoValue: forward AND backward, in chunks of rows, so that logits
  //   of the whole batch never exist at once. Gradients carry the head's
  //   weight / its valid targets in the global batch.
  //   dx = dsum + the head's; dsum: what other consumers of x (the heads
  //   after it) added to its gradient. Without one dx may lie over x: a
  //   chunk's dwte comes before its dx.
  // Of images:
  kConvolutionBackwardData,     // dy, w -> dx
  kConvolutionBackwardWeights,  // x, dy -> dw
  kBatchNormBackwardSums,       // x, mean, rstd, gamma, beta, dy, dy2|kNoValue, y|kNoValue
                                //   -> sums f64[2,C], dgamma, dbeta, g|kNoValue
                                //   g = dy + dy2 where the ReLU let through (told by y or, where it
                                //   is kNoValue, by x); sums of g and of g xhat. dy2: what the
                                //   second of two consumers of y adds to its gradient
  kBatchNormBackward,           // x, mean, rstd, gamma, beta, g or dy, sums -> dx; with `relu` dy
                                //   goes through the ReLU here, told by x
  kMaxPoolBackward,             // winners, dy, dy2|kNoValue -> dx
  kAveragePoolBackward,         // dy -> dx
  kClassifierLossBackward,      // logits, targets -> sums, dlogits: as kLmHeadLossBackward
  // ---- added by the ZeRO pass; work on flat groups (plan::FlatGroup), not on values ----
  kReduceGradients,  // all-reduce (stage 0) or reduce-scatter (stage 1) of one group's gradient;
                     //   from stage 2 on reduce-scatter of a micro-step's, added to a shard
  kRoundGradients,   // this rank's shard (stage 0: all) of one group's reduced gradient, in bf16
  kGradNorm,         // sum of squares of this rank's 1/world slice of one group's reduced gradient
                     //   (at every stage) -> the group's f64 slot of the scalars
  kReduceScalars,    // sums the groups' norms in group order into scalar 0; then, where world > 1,
                     //   all-reduce (sum) of the step's scalars: norm, loss, stop flag
  kOptimizer,  // one group's shard (stage 0: all of it): gradient, master, m, v where the optimizer
               //   has it -> all but the gradient, and the parameter shard. Offloaded: on the host,
               //   of what lies there, for kParametersToDevice
  kGatherParameters,  // all-gather of one group's parameters: in place, after the update (stages 1
                      //   and 2), or (stage 3) -> every parameter of the group, gathered
  // ---- of some optimizers, between the scalars' reduction and kOptimizer ----
  kUpdateNorms,  // LAMB; one group's shard: gradient, master, m, v -> m, v, and of each tensor
                 //   the sums of squares of this rank's part of it and of its update
  kReduceUpdateNorms,  // LAMB: those of all groups, all-reduced among the ranks of the shards
  kMuonMomentum,       // Muon; one group's shard: gradient, m -> m, and its slice of the update
  kGatherUpdates,      // Muon: all-gather of one group's updates, in place
  kOrthogonalize,      // Muon: those of one group's matrices that this rank owns, in place; where
                       //   there are other owners, theirs become zero
  kScatterUpdates,     // Muon: sum over the owners; each rank needs its shard of it
  kReduceReplicas,  // hybrid sharding: all-reduce of one group's reduced gradient shard among the
                    //   ranks that hold the same shard, once a step
  kAverageStatistics,  // running statistics that are not synchronised: their mean over the ranks
  // ---- copies between the device's memory and its host's, where something is offloaded ----
  kGradientsToHost,  // this rank's shard of one group's reduced gradient -> its place on the host
  kScalarsToHost,    // the step's reduced scalars -> a copy on the host, whose kOptimizer they
                     //   tell whether and how to update
  kParametersToDevice,  // one group's parameters, as the host's kOptimizer made them -> the shard
  // Where that state lies on disk between updates:
  kReadState,     // one group's master, m and v, from the disk to their place on the host
  kWriteState,    // the other way, after the group's kOptimizer
  kCopyToHost,    // x -> x, on the host
  kCopyToDevice,  // x, on the host -> x
  // ---- of 8-bit products ----
  kGatherAmaxes,    // every tensor's largest magnitude in the step, of all ranks
  kUpdateScalings,  // from those, every tensor's scaling in the next step, if this one updates
};
const char* Name(OpKind kind);
// A forward op that ends a task: its backward makes the loss too, and takes its place.
inline bool IsLoss(OpKind kind) {
  return kind == OpKind::kLmHeadLoss || kind == OpKind::kClassifierLoss;
}

// kRecompute: an op of the forward, run once more within the backward.
enum class Phase : uint8_t { kForward, kBackward, kUpdate, kRecompute };

// How an op writes an output. Activations are assigned once; gradients and step accumulators are
// accumulated: their first writer in program order with kAccumulateInStep, later ones (the tied
// embedding has two) with kAccumulate.
enum class WriteMode : uint8_t {
  kAssign,
  kAccumulate,        // += always
  kAccumulateInStep,  // assigns on the first micro-step of a step, += on the later ones
};

struct Output {
  ValueId value = kNoValue;  // kNoValue: not wanted
  WriteMode mode = WriteMode::kAssign;
  // This output may use the bytes of that input when the input dies here (kNoValue: never).
  ValueId may_overwrite = kNoValue;
};

// Rotary positions: angle i of position t is t f(i), f(i) = theta^(-2i/D). With factor > 1 as
// Llama 3 does it: f / factor where the wavelength 2 pi / f is above original_context /
// low_frequency, f where it is below original_context / high_frequency, and between the two a mix
// that is linear in original_context / wavelength.
struct RopeAttributes {
  double theta = 10000;
  double factor = 1;
  double low_frequency = 1;
  double high_frequency = 4;
  double original_context = 8192;
};

inline constexpr int kImageChannels = 3;  // of images as they come in

// Convolutions, pools, batch norms, images.
struct ImageAttributes {
  int64_t kernel = 1;  // side of the square window
  int64_t stride = 1;
  int64_t padding = 0;
  bool relu = false;          // kBatchNorm, kBatchNormBackward*
  bool synchronised = false;  // batch norms: statistics are those of all ranks' rows
  int64_t rows = 0;           // kBatchNormStatistics: of which a rank's sums are
  double momentum = 0.1;      // of running statistics, torch's: the new one's share
  // kNormalizeImages: by channel, of values in [0, 1].
  std::array<double, kImageChannels> mean = {};
  std::array<double, kImageChannels> deviation = {};
};

struct Attributes {
  int64_t batch = 0;     // B
  int64_t sequence = 0;  // T
  int64_t heads = 0;
  int64_t kv_heads = 0;     // heads of keys and of values: divides heads
  bool causal = true;       // kAttention*: a position sees none after it
  int64_t parts = 1;        // kLinear*: weights, side by side in the output
  bool transposed = false;  // kLinear*: weights are [M,K]
  bool exact = false;       // kGelu*: not the tanh form
  bool gelu = false;        // kLinear, kLinearBackwardInput: with the GELU behind or before it
  bool fp8 = false;         // kLinear*: of 8-bit codes
  int32_t fp8_layer = -1;   // kLinear*: which of the layers that may be so; -1: none
  RopeAttributes rope;      // kRopeTable
  ImageAttributes image;
  double dropout = 0;  // probability; 0: none
  uint32_t dropout_tag =
      0;  // the "tensor" of the counter-based mask; the same in forward and backward
  double label_smoothing = 0;  // kClassifierLoss*: share of the target spread over all classes
  double epsilon = 1e-5;       // LayerNorm, RmsNorm, BatchNorm
  int64_t chunk_rows = 0;      // kLmHeadLoss*: rows of logits that exist at once
  bool gathers = false;        // kLmHeadLoss*: chunks are of rows that have a target
  int32_t head = 0;            // losses: index into Graph::losses
  int32_t group = -1;          // flat-group ops
};

struct Op {
  OpKind kind;
  Phase phase = Phase::kForward;
  int block = kNoBlock;
  std::vector<ValueId> inputs;
  std::vector<Output> outputs;
  Attributes attributes;
};

enum class Initializer : uint8_t { kZeros, kOnes, kNormal };

struct Parameter {
  ValueId value = kNoValue;
  ValueId gradient = kNoValue;  // set by AddBackward
  Initializer initializer = Initializer::kZeros;
  double stddev = 0;   // kNormal
  bool decay = false;  // weight decay: tensors of two or more dimensions
};

// What the model is trained for; a model of several tasks has several, the family's own first.
struct LossHead {
  std::string name;  // "lm"
  // f64[kLossSums], a step accumulator: [kLossSum] the loss over valid targets, in nats,
  // [kLossTargets] how many those are, [kLossCorrect] how many of them have the largest logit (the
  // first of equal ones); the last only without a backward, in training it stays 0.
  ValueId sums = kNoValue;
  ValueId targets = kNoValue;  // the input it reads, i32, -1: ignored
  double weight = 1;           // of its mean over the valid targets of the global batch
};
inline constexpr int kLossSum = 0;
inline constexpr int kLossTargets = 1;
inline constexpr int kLossCorrect = 2;
inline constexpr int kLossSums = 3;
inline constexpr int kMaxLosses = 8;
// f32 or, where it counts, i64; on every rank the same at the end of each step.
struct Statistic {
  ValueId value = kNoValue;
  double initial = 0;
};

// Of one tensor that is rounded to 8 bits.
struct Scaling {
  ValueId scaling = kNoValue;
  ValueId amax = kNoValue;
  DType dtype = DType::kF8E4M3;  // of its codes
};

struct Graph {
  std::vector<Value> values;
  std::vector<Op> ops;
  std::vector<Parameter> parameters;  // in definition order
  std::vector<Statistic> statistics;  // likewise
  std::vector<Scaling> scalings;      // plan/fp8_pass.h
  // Names; values and ops carry an index, in definition order: the unit of a flat group.
  std::vector<std::string> blocks;
  std::vector<ValueId> inputs;   // found by name: "tokens" i32[N], "targets" i32[N]
  std::vector<LossHead> losses;  // in the order in which the ops that make them stand
  ValueId logits = kNoValue;     // generation graphs

  ValueId Input(absl::string_view name) const;  // kNoValue: there is none of this name
};

}  // namespace milepost::graph

#endif  // MILEPOST_ENGINE_GRAPH_GRAPH_H_
