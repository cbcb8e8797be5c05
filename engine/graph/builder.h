// Builds the forward part of a Graph. Its blocks, parameters and inputs are made here. The calls of
// the ops' rooms (engine/ops/<room>/<room>.h) make the ops, and check shapes.
//
//   Builder b({.compute_dtype = DType::kBf16, .batch = 2, .sequence = 512});
//   b.BeginBlock("embedding");
//   ValueId wte = b.Parameter("wte.weight", {vocabulary, width}, Initializer::kNormal, 0.02);
//   ...
//   ValueId x = ops::Embedding(b, "embedding.out", b.Tokens(), wte, {.wpe = wpe}, dropout);
//   ops::LmHeadLoss(b, "loss", y, wte, b.Targets(), chunk_rows);
//   MP_ASSIGN_OR_RETURN(Graph graph, std::move(b).Finish());
//
// The first misuse is kept: a shape that does not fit, or an operand that does not exist. Later
// calls then do nothing useful, and Finish returns it as INVALID_ARGUMENT, with the names of the op
// and the values. So model code needs no checks of its own. Value names must be unique. Not
// thread-safe.
#ifndef MILEPOST_ENGINE_GRAPH_BUILDER_H_
#define MILEPOST_ENGINE_GRAPH_BUILDER_H_

#include <cstdint>
#include <initializer_list>
#include <string>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/graph/graph.h"

namespace milepost::graph {

struct BuilderOptions {
  DType compute_dtype = DType::kF32;  // parameters and activations: kF32, kBF16 or kF16
  int64_t batch = 1;                  // B
  int64_t sequence = 1;               // T
  // Above 0: the T rows are a piece of one longer text, whose keys and values are kept for this
  // many positions, P. The input "positions" i32[T] says where the rows are; each is below P.
  // Embedding and RopeTable read it, and Attention becomes kCachedAttention.
  int64_t cached_positions = 0;
  // Of how many texts the caches hold keys and values. Above 1 the input "texts" i32[T] says which
  // one the rows are of; of a piece of one text the first row's counts.
  int64_t cached_texts = 1;
  // The rows are no piece of a text but of one each: row r is at positions[r] of texts[r], which no
  // other row is of. Where texts[r] is -1 the row is of none, and what is made of it means nothing.
  bool rows_apart = false;
};

// Square windows over images.
struct WindowOptions {
  int64_t stride = 1;
  int64_t padding = 0;
};

class Builder {
 public:
  explicit Builder(const BuilderOptions& options);

  // Ops that are made from now on pass no gradient (Op::constant), and parameters are no part of
  // the model's state (Parameter::base), or do and are again.
  void SetConstant(bool constant) { constant_ = constant; }

  // Later values and ops have this many rows of each sample: an image's patches, then these and a
  // class token, then the class alone.
  void SetSequence(int64_t sequence) { options_.sequence = sequence; }

  // Starts a block: later values and ops belong to it until the next call. An op that mixes blocks
  // belongs to the block in which it is emitted.
  void BeginBlock(absl::string_view name);

  // `name` is the checkpoint's name (Hugging Face's). Parameters of two or more dimensions get
  // weight decay.
  ValueId Parameter(absl::string_view name, const Shape& shape, Initializer initializer,
                    double stddev = 0);

  // An input that the host fills before each micro-step. The same name always gives the same value.
  ValueId Input(absl::string_view name, DType dtype, const Shape& shape);
  ValueId Tokens();   // "tokens" i32[N]
  ValueId Targets();  // "targets" i32[N]; -1 is ignored

  ValueId Images(int64_t height, int64_t width);  // "images" u8[B,Y,X,3]
  // A value of the model's state that is not trained: F32 or I64, and the same on every rank.
  ValueId Statistic(absl::string_view name, DType dtype, const Shape& shape, double initial);

  int64_t rows() const { return options_.batch * options_.sequence; }  // N
  absl::StatusOr<Graph> Finish() &&;

  // ---- for rooms of ops ----
  // Each op names its outputs after the `name` that it gets: "<name>", or "<name>.sum",
  // "<name>.mean" and so on.
  const BuilderOptions& options() const { return options_; }
  DType compute_dtype() const { return options_.compute_dtype; }
  bool caches() const { return options_.cached_positions > 0; }
  ValueId Positions();  // "positions" i32[N]
  ValueId Texts();      // "texts" i32[N]; kNoValue: the caches are of one text
  const Value& ValueOf(ValueId value) const { return graph_.values[value]; }

  ValueId AddValue(absl::string_view name, DType dtype, const Shape& shape, ValueKind kind);
  // Adds an activation named `name` plus `suffix`: "<name>", "<name>.mean".
  ValueId AddActivation(absl::string_view name, absl::string_view suffix, DType dtype,
                        const Shape& shape);
  // The reference is valid until the next op is added.
  Op& AddOp(OpKind kind, std::initializer_list<ValueId> inputs);
  // Adds a loss head whose sums are the output of `op`.
  ValueId AddLoss(absl::string_view name, ValueId targets, double weight, Op& op);
  void SetLogits(absl::string_view name, ValueId logits);  // sets Graph::logits
  uint32_t NextDropoutTag(double dropout);

  // The shape of an image value of the compute dtype. Empty after a failure.
  Shape ImageShape(absl::string_view op, absl::string_view operand, ValueId value);
  // The shape that windows make of `shape`, except for the channels. Empty after a failure.
  Shape WindowedShape(absl::string_view op, const Shape& shape, int64_t kernel,
                      const WindowOptions& options);
  // True when `value` is absent (kNoValue) or an i32[N]; otherwise keeps the error.
  bool ExpectRowsOf(absl::string_view op, absl::string_view operand, ValueId value);
  // True when `value` exists and has this type and shape; otherwise keeps the error.
  bool Expect(absl::string_view op, absl::string_view operand, ValueId value, DType dtype,
              const Shape& shape);
  // The width of a head of the packed qkv. 0, with the error kept: the heads do not fit it.
  int64_t HeadDim(absl::string_view op, ValueId qkv, int64_t heads, int64_t kv_heads);
  // Dimension `axis` of a value. 1, with the error kept: there is no such dimension.
  int64_t Dimension(absl::string_view op, absl::string_view operand, ValueId value, int axis);
  void Fail(absl::string_view op, absl::string_view message);

 private:
  BuilderOptions options_;
  Graph graph_;
  absl::flat_hash_set<std::string> names_;
  absl::Status status_;
  uint32_t dropout_tags_ = 0;
  bool constant_ = false;
};

}  // namespace milepost::graph

#endif  // MILEPOST_ENGINE_GRAPH_BUILDER_H_
