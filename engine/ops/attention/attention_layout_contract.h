// How a thread's workspace of attention on the CPU is cut into arrays, for one head at a time.
// attention_contract.cc counts it, the kernels use it.
#ifndef MILEPOST_ENGINE_OPS_ATTENTION_ATTENTION_LAYOUT_CONTRACT_H_
#define MILEPOST_ENGINE_OPS_ATTENTION_ATTENTION_LAYOUT_CONTRACT_H_

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "engine/dtype/half.h"
#include "engine/ops/attention/attention_contract.h"

namespace milepost::kernels {

constexpr int64_t kBlock = QueryPart::kBlock;  // queries, and keys, of one block
constexpr int64_t kKeyTile = 256;              // keys of one forward softmax step
constexpr double kLog2E = 1.4426950408889634;
constexpr double kLn2 = 0.6931471805599453;

template <typename T>
inline constexpr int64_t kPair = 4 / sizeof(T);  // elements of T in a word

// What tiles of a stored type are packed as: halves are widened, as nothing multiplies them.
template <typename Stored>
using PackedAs = std::conditional_t<std::is_same_v<Stored, f16>, float, Stored>;

struct AttentionSizes {
  explicit AttentionSizes(const AttentionShape& shape)
      : blocks((shape.sequence + kBlock - 1) / kBlock),
        padded(blocks * kBlock),
        dim(shape.head_dim),
        padded_dim((shape.head_dim + 15) / 16 * 16),
        group(shape.kv_heads == 0 ? 1 : shape.heads / shape.kv_heads),
        kv_heads(shape.heads / group),
        channels(shape.heads * shape.head_dim),
        row(channels + 2 * kv_heads * shape.head_dim),
        scale(1.0f / std::sqrt(static_cast<float>(shape.head_dim))) {}

  int64_t blocks;      // of queries, and of keys
  int64_t padded;      // sequence, in whole blocks
  int64_t dim;         // of a head
  int64_t padded_dim;  // in whole vectors
  int64_t group;       // heads of queries that share a head of keys
  int64_t kv_heads;    // heads of keys
  int64_t channels;    // of all heads of queries
  int64_t row;         // of packed q, k and v
  float scale;

  // From the first element of a packed row.
  int64_t Key(int64_t kv_head) const { return channels + kv_head * dim; }
  int64_t Value(int64_t kv_head) const { return channels + (kv_heads + kv_head) * dim; }
};

// The forward's sizes and arrays, of one tile of keys: what attention over a cache takes.
inline AttentionShape KeyTileOf(const CachedAttentionShape& shape) {
  return {.batch = 1,
          .sequence = kKeyTile,
          .heads = shape.heads,
          .head_dim = shape.head_dim,
          .kv_heads = shape.kv_heads};
}

// Cuts a workspace into arrays; with a null base it only counts.
class Carver {
 public:
  explicit Carver(void* base) : base_(static_cast<char*>(base)) {}
  template <typename T>
  T* Take(int64_t count) {
    T* at = base_ == nullptr ? nullptr : reinterpret_cast<T*>(base_ + used_);
    used_ += (count * sizeof(T) + 63) / 64 * 64;
    return at;
  }
  size_t used() const { return used_; }

 private:
  char* base_;
  size_t used_ = 0;
};

// One thread's arrays of the forward, for one head.
template <typename T>
struct ForwardArrays {
  ForwardArrays(const AttentionSizes& s, Carver carver)
      : keys(carver.Take<T>(s.padded * s.dim)),
        rows(carver.Take<T>(kBlock * s.dim)),
        values(carver.Take<T>(s.padded * s.dim)),
        query(carver.Take<T>(kBlock * s.dim)),
        scores(carver.Take<float>(kKeyTile * kBlock)),
        weights(sizeof(T) == 4 ? reinterpret_cast<T*>(scores) : carver.Take<T>(kKeyTile * kBlock)),
        out(carver.Take<float>(s.dim * kBlock)),
        out_rows(carver.Take<float>(s.dim * kBlock)),
        bytes(carver.used()) {}

  T* keys;          // [padded][dim]
  T* rows;          // [kBlock][dim], what is being packed
  T* values;        // [padded / pair][dim] words
  T* query;         // [dim / pair][kBlock] words
  float* scores;    // [kKeyTile][kBlock]: keys down, queries across
  T* weights;       // [kKeyTile / pair][kBlock] words; for float, scores themselves
  float* out;       // [dim][kBlock]
  float* out_rows;  // [kBlock][dim]
  size_t bytes;
};

// One thread's arrays of the backward, for one head of keys. Where several heads of queries share
// it, the gradients of all its keys are kept until the last of them.
template <typename T>
struct BackwardArrays {
  BackwardArrays(const AttentionSizes& s, Carver carver)
      : keys(carver.Take<T>(s.padded * s.dim)),
        key_pairs(sizeof(T) == 4 ? keys : carver.Take<T>(s.padded * s.dim)),
        values(carver.Take<T>(s.padded * s.dim)),
        rows(carver.Take<T>(kBlock * s.dim)),
        query_columns(carver.Take<T>(s.padded * s.dim)),
        d_out_columns(carver.Take<T>(s.padded * s.dim)),
        query_pairs(carver.Take<T>(s.padded * s.padded_dim)),
        d_out_pairs(carver.Take<T>(s.padded * s.padded_dim)),
        lse(carver.Take<float>(s.padded)),
        delta(carver.Take<float>(s.padded)),
        d_query(carver.Take<float>(s.padded * s.dim)),
        d_key(carver.Take<float>((s.group == 1 ? kBlock : s.padded) * s.padded_dim)),
        d_value(carver.Take<float>((s.group == 1 ? kBlock : s.padded) * s.padded_dim)),
        d_query_rows(s.group == 1 ? d_key : carver.Take<float>(kBlock * s.dim)),
        scores(carver.Take<float>(kBlock * kBlock)),
        d_scores(carver.Take<float>(kBlock * kBlock)),
        weights(sizeof(T) == 4 ? reinterpret_cast<T*>(scores) : carver.Take<T>(kBlock * kBlock)),
        d_weights(sizeof(T) == 4 ? reinterpret_cast<T*>(d_scores)
                                 : carver.Take<T>(kBlock * kBlock)),
        d_weight_pairs(sizeof(T) == 4 ? d_weights : carver.Take<T>(kBlock * kBlock)),
        bytes(carver.used()) {}

  T* keys;              // [padded][dim]
  T* key_pairs;         // [padded / pair][dim] words; for float, keys themselves
  T* values;            // [padded][dim]
  T* rows;              // [kBlock][dim], what is being packed
  T* query_columns;     // per block [dim / pair][kBlock] words
  T* d_out_columns;     // the same
  T* query_pairs;       // per block [kBlock / pair][padded_dim] words
  T* d_out_pairs;       // the same
  float* lse;           // [padded], in base 2
  float* delta;         // [padded]
  float* d_query;       // per block [dim][kBlock]
  float* d_key;         // [kBlock][padded_dim]; grouped: [padded][padded_dim]
  float* d_value;       // the same
  float* d_query_rows;  // [kBlock][dim]; ungrouped: over d_key, which is free by then
  float* scores;        // [kBlock][kBlock]: keys down, queries across
  float* d_scores;      // the same
  T* weights;           // [kBlock][kBlock], keys down; for float, scores themselves
  T* d_weights;         // the same; for float, d_scores themselves
  T* d_weight_pairs;    // [kBlock / pair][kBlock] words, pairs of keys
  size_t bytes;
};

}  // namespace milepost::kernels

#endif  // MILEPOST_ENGINE_OPS_ATTENTION_ATTENTION_LAYOUT_CONTRACT_H_
