// Builds the forward part of a Graph, op by op, with shape checks.
//
//   Builder b({.compute_dtype = DType::kBF16, .batch = 2, .sequence = 512});
//   b.BeginBlock("embedding");
//   ValueId wte = b.Parameter("wte.weight", {vocabulary, width}, Initializer::kNormal, 0.02);
//   ...
//   ValueId x = b.Embedding("embedding.out", b.Tokens(), wte, wpe, dropout);
//   b.LmHeadLoss("loss", y, wte, b.Targets());
//   MP_ASSIGN_OR_RETURN(Graph graph, std::move(b).Finish());
//
// The first misuse (a shape that does not fit, an operand that does not exist) is kept, further
// calls do nothing useful, and Finish returns it as INVALID_ARGUMENT with the op's and the values'
// names: model code needs no checks of its own. Value names must be unique. Not thread-safe.
#ifndef MILEPOST_ENGINE_GRAPH_BUILDER_H_
#define MILEPOST_ENGINE_GRAPH_BUILDER_H_

#include <array>
#include <cstdint>
#include <string>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "engine/graph/graph.h"

namespace milepost::graph {

struct BuilderOptions {
  DType compute_dtype = DType::kF32;  // of parameters and activations: kF32, kBF16 or kF16
  int64_t batch = 1;                  // B
  int64_t sequence = 1;               // T
  // Above 0: the T rows are a piece of a longer text of one sequence, whose keys and values are
  // kept for so many positions, P. Where the rows stand is told by the input "positions" i32[T],
  // each below P: Embedding and RopeTable read it, and Attention becomes kCachedAttention.
  int64_t cached_positions = 0;
};

struct LayerNormResult {
  ValueId y = kNoValue;
  ValueId mean = kNoValue;
  ValueId rstd = kNoValue;
};

struct ResidualLayerNormResult {
  ValueId sum = kNoValue;
  ValueId y = kNoValue;
  ValueId mean = kNoValue;
  ValueId rstd = kNoValue;
};

struct RmsNormResult {
  ValueId y = kNoValue;
  ValueId rstd = kNoValue;
};

struct ResidualRmsNormResult {
  ValueId sum = kNoValue;
  ValueId y = kNoValue;
  ValueId rstd = kNoValue;
};

// Tables beside the tokens', and the rows that they are read at (kEmbedding). kNoValue: none.
struct EmbeddingTables {
  ValueId wpe = kNoValue;        // [P,C]
  ValueId positions = kNoValue;  // i32[N], each below P; kNoValue: BuilderOptions'
  ValueId wse = kNoValue;        // [S,C]
  ValueId segments = kNoValue;   // i32[N], each below S
};

struct AttentionOptions {
  int64_t heads = 1;
  int64_t kv_heads = 0;  // 0: as many as heads
  bool causal = true;
  ValueId documents = kNoValue;  // i32[N], ids of documents that do not see each other
};

struct ConvolutionOptions {
  int64_t stride = 1;
  int64_t padding = 0;
};

struct BatchNormParameters {
  ValueId gamma = kNoValue;
  ValueId beta = kNoValue;
  ValueId running_mean = kNoValue;  // statistics
  ValueId running_variance = kNoValue;
  ValueId batches = kNoValue;  // i64[]: how many have been seen
};

struct BatchNormOptions {
  bool training = true;         // else the running statistics are used
  bool synchronised = false;    // over the rows of all ranks
  bool relu = false;            // y = max(0, ...)
  ValueId residual = kNoValue;  // added before the ReLU
  double epsilon = 1e-5;
  double momentum = 0.1;
};

class Builder {
 public:
  explicit Builder(const BuilderOptions& options);

  // What follows belongs to this block until the next call. Ops that mix blocks belong to the one
  // they are emitted in.
  void BeginBlock(absl::string_view name);

  // `name` is the checkpoint's (Hugging Face's). Two or more dimensions: weight decay.
  ValueId Parameter(absl::string_view name, const Shape& shape, Initializer initializer,
                    double stddev = 0);

  // What the host fills before each micro-step: the same value each time the name is given again.
  ValueId Input(absl::string_view name, DType dtype, const Shape& shape);
  ValueId Tokens();   // "tokens" i32[N]
  ValueId Targets();  // "targets" i32[N], -1: ignored

  ValueId Images(int64_t height, int64_t width);  // "images" u8[B,Y,X,3]
  // A value of the model's state that is not trained. F32 or I64; on every rank the same.
  ValueId Statistic(absl::string_view name, DType dtype, const Shape& shape, double initial);

  // Each op names its outputs after `name`: "<name>", or "<name>.sum", "<name>.mean" and so on.
  ValueId Embedding(absl::string_view name, ValueId tokens, ValueId wte,
                    const EmbeddingTables& tables, double dropout);
  LayerNormResult LayerNorm(absl::string_view name, ValueId x, ValueId gamma, ValueId beta,
                            double epsilon = 1e-5);
  ResidualLayerNormResult ResidualLayerNorm(absl::string_view name, ValueId residual, ValueId delta,
                                            ValueId gamma, ValueId beta, double dropout,
                                            double epsilon = 1e-5);
  RmsNormResult RmsNorm(absl::string_view name, ValueId x, ValueId gamma, double epsilon);
  ResidualRmsNormResult ResidualRmsNorm(absl::string_view name, ValueId residual, ValueId delta,
                                        ValueId gamma, double epsilon);
  ValueId Linear(absl::string_view name, ValueId x, ValueId weight, ValueId bias);
  // y = x [w0; w1; ...]^T + biases: weights [Mi,K] as in torch's nn.Linear, one or several, whose
  // results lie side by side. One product serves them all where they follow each other in their
  // block: define them in this order, one after the other. `biases`: none, or one for each weight.
  ValueId LinearRows(absl::string_view name, ValueId x, absl::Span<const ValueId> weights,
                     absl::Span<const ValueId> biases = {});
  ValueId Gelu(absl::string_view name, ValueId x, bool exact = false);
  ValueId Dropout(absl::string_view name, ValueId x, double dropout);
  ValueId SwiGlu(absl::string_view name, ValueId x);
  // One table serves every layer: row t is of position t or, with cached_positions, of the
  // t-th row's.
  ValueId RopeTable(absl::string_view name, int64_t head_dim, const RopeAttributes& rope);
  // `positions`: i32[N], each below the sequence length; kNoValue: the place in the sequence.
  ValueId Rope(absl::string_view name, ValueId qkv, ValueId table, int64_t heads, int64_t kv_heads,
               ValueId positions = kNoValue);
  // Gammas: [D].
  ValueId QkNorm(absl::string_view name, ValueId qkv, ValueId gamma_q, ValueId gamma_k,
                 int64_t heads, int64_t kv_heads, double epsilon);
  ValueId Attention(absl::string_view name, ValueId qkv, const AttentionOptions& options);
  // ---- images, [B,Y,X,C] (builder_images.cc) ----
  // By channel: (byte / 255 - mean) / deviation.
  ValueId NormalizeImages(absl::string_view name, ValueId images,
                          const std::array<double, kImageChannels>& mean,
                          const std::array<double, kImageChannels>& deviation);
  // `weight`: [out, in, k, k], as torch has it.
  ValueId Convolution(absl::string_view name, ValueId x, ValueId weight,
                      const ConvolutionOptions& options);
  // In training with its own statistics, of at least two rows, which also move the running ones.
  ValueId BatchNorm(absl::string_view name, ValueId x, const BatchNormParameters& parameters,
                    const BatchNormOptions& options);
  ValueId MaxPool(absl::string_view name, ValueId x, int64_t kernel,
                  const ConvolutionOptions& options);
  ValueId AveragePool(absl::string_view name, ValueId x);  // -> [B,C]
  // Adds a loss head, called `name`: the sums. `chunk_rows`: rows of logits that exist at once, in
  // [1, N].
  ValueId LmHeadLoss(absl::string_view name, ValueId x, ValueId wte, ValueId targets,
                     int64_t chunk_rows, double weight = 1);
  // The same over a layer of its own: weight [V,C], bias [V].
  ValueId TokenClassifierLoss(absl::string_view name, ValueId x, ValueId weights, ValueId bias,
                              ValueId targets, int64_t chunk_rows, double weight = 1);
  // The same where few rows have a target: logits of the others are never made.
  ValueId MaskedLmHeadLoss(absl::string_view name, ValueId x, ValueId wte, ValueId bias,
                           ValueId targets, int64_t chunk_rows, double weight = 1);
  // Adds a loss head over logits that the model makes itself; `label_smoothing` in [0, 1) as
  // torch's cross_entropy has it.
  ValueId ClassifierLoss(absl::string_view name, ValueId logits, ValueId targets,
                         double label_smoothing, double weight = 1);
  // Sets Graph::logits.
  ValueId LmHeadLogits(absl::string_view name, ValueId x, ValueId wte, ValueId bias = kNoValue);

  int64_t rows() const { return options_.batch * options_.sequence; }  // N
  absl::StatusOr<Graph> Finish() &&;

 private:
  ValueId AddValue(absl::string_view name, DType dtype, const Shape& shape, ValueKind kind);
  ValueId AddActivation(absl::string_view name, absl::string_view suffix, DType dtype,
                        const Shape& shape);
  Op& AddOp(OpKind kind, std::initializer_list<ValueId> inputs);
  bool caches() const { return options_.cached_positions > 0; }
  ValueId Positions();  // "positions" i32[N]
  ValueId CachedAttention(absl::string_view name, ValueId qkv, const AttentionOptions& options);
  ValueId AddLmHeadLoss(absl::string_view name, std::array<ValueId, 4> inputs, int64_t chunk_rows,
                        bool gathers, double weight);
  // A loss head whose sums are the output of `op`.
  ValueId AddLoss(absl::string_view name, ValueId targets, double weight, Op& op);
  uint32_t NextDropoutTag(double dropout);
  // The shape of an image value of the compute dtype; empty after a failure.
  Shape ImageShape(absl::string_view op, absl::string_view operand, ValueId value);
  // What windows make of `shape`, but for the channels; empty after a failure.
  Shape WindowedShape(absl::string_view op, const Shape& shape, int64_t kernel,
                      const ConvolutionOptions& options);
  // True where an i32 of each row is not given, or is one.
  bool ExpectRowsOf(absl::string_view op, absl::string_view operand, ValueId value);
  // True when `value` exists and has this type and shape; otherwise keeps the error.
  bool Expect(absl::string_view op, absl::string_view operand, ValueId value, DType dtype,
              const Shape& shape);
  // Width of a head of the packed qkv; 0 (and an error kept) when the heads do not fit it.
  int64_t HeadDim(absl::string_view op, ValueId qkv, int64_t heads, int64_t kv_heads);
  // Dimension `axis` of a value; 1 (and an error kept) when there is none.
  int64_t Dimension(absl::string_view op, absl::string_view operand, ValueId value, int axis);
  void Fail(absl::string_view op, absl::string_view message);

  BuilderOptions options_;
  Graph graph_;
  absl::flat_hash_set<std::string> names_;
  absl::Status status_;
  uint32_t dropout_tags_ = 0;
};

}  // namespace milepost::graph

#endif  // MILEPOST_ENGINE_GRAPH_BUILDER_H_
