// What context ranks exchange, in pieces: how they lie, and the workspace that they are packed in.
#ifndef MILEPOST_ENGINE_OPS_CONTEXT_PARALLEL_CONTEXT_PARALLEL_CONTRACT_H_
#define MILEPOST_ENGINE_OPS_CONTEXT_PARALLEL_CONTEXT_PARALLEL_CONTRACT_H_

#include <cstdint>

namespace milepost::kernels {

// Rows by tokens have all heads of some tokens of each sequence; rows by heads have some heads of
// all tokens. A piece is what two ranks have in common: the tokens of one, the heads of the other.
struct HeadsExchangeShape {
  int64_t ranks = 1;
  int64_t batch = 1;     // sequences
  int64_t tokens = 1;    // of each, that a rank has by tokens
  int64_t heads = 1;     // in a row by tokens; `ranks` divides them
  int64_t kv_heads = 0;  // behind them: so many of keys, and as many of values
  int64_t head_bytes = 4;

  // Where there are fewer heads of keys than ranks, so many neighbouring ranks have the same one.
  bool SharesKeys() const { return kv_heads > 0 && kv_heads < ranks; }
  int64_t SharingRanks() const { return SharesKeys() ? ranks / kv_heads : 1; }
  int64_t OwnHeads() const { return heads / ranks; }
  int64_t OwnKvHeads() const { return SharesKeys() ? 1 : kv_heads / ranks; }
  int64_t FirstKvHead(int64_t rank) const { return rank * kv_heads / ranks; }
  // Whether that goes: keys are whole on each rank, with all queries that read them or some.
  bool Divides() const {
    return heads % ranks == 0 && (SharesKeys() ? ranks % kv_heads == 0 : kv_heads % ranks == 0);
  }

  int64_t TokenRowBytes() const { return (heads + 2 * kv_heads) * head_bytes; }
  int64_t HeadRowBytes() const { return (OwnHeads() + 2 * OwnKvHeads()) * head_bytes; }
  int64_t PieceRows() const { return batch * tokens; }
  int64_t PieceBytes() const { return PieceRows() * HeadRowBytes(); }

  // Those of the other ranks, one behind the other in rank order.
  int64_t PackedBytes() const { return (ranks - 1) * PieceBytes(); }
  // In rows by heads pieces are whole: there they need no packing.
  bool WholeByHeads() const { return batch == 1; }
};

// Pieces that are cut out of rows by tokens, or put into them, lie packed at its begin. Behind them
// lie those of rows by heads, where these are not whole.
inline int64_t HeadsExchangeWorkspaceBytes(const HeadsExchangeShape& shape) {
  return (shape.WholeByHeads() ? 1 : 2) * shape.PackedBytes();
}

}  // namespace milepost::kernels

#endif  // MILEPOST_ENGINE_OPS_CONTEXT_PARALLEL_CONTEXT_PARALLEL_CONTRACT_H_
