// What context ranks exchange, in pieces: how they lie, and the workspace that they are packed in.
#ifndef MILEPOST_ENGINE_OPS_CONTEXT_PARALLEL_CONTEXT_PARALLEL_CONTRACT_H_
#define MILEPOST_ENGINE_OPS_CONTEXT_PARALLEL_CONTEXT_PARALLEL_CONTRACT_H_

#include <cstdint>

namespace milepost::kernels {

// Rows by tokens have all heads of some tokens of each sequence; rows by heads have some heads of
// all tokens. A piece is what two ranks have in common: the tokens of one, the heads of the other.
// Where there are more ranks than heads can be divided among, `query_parts` neighbours have the
// same ones, and each makes attention of a part of their queries.
struct HeadsExchangeShape {
  int64_t ranks = 1;
  int64_t query_parts = 1;  // divides ranks
  int64_t batch = 1;        // sequences
  int64_t tokens = 1;       // of each, that a rank has by tokens
  int64_t heads = 1;        // in a row by tokens; Groups() divides them
  int64_t kv_heads = 0;     // behind them: so many of keys, and as many of values
  int64_t head_bytes = 4;

  // Of ranks with the same heads of queries.
  int64_t Groups() const { return ranks / query_parts; }
  int64_t OwnHeads() const { return heads / Groups(); }
  int64_t FirstHead(int64_t rank) const { return rank / query_parts * OwnHeads(); }
  // Of keys, groups may have the same head: where there are fewer than groups.
  bool GroupsShareKeys() const { return kv_heads > 0 && kv_heads < Groups(); }
  int64_t OwnKvHeads() const { return GroupsShareKeys() ? 1 : kv_heads / Groups(); }
  int64_t FirstKvHead(int64_t rank) const { return rank / query_parts * kv_heads / Groups(); }
  // Ranks, one behind the other, that have the same head of keys.
  int64_t KeySharers() const { return GroupsShareKeys() ? ranks / kv_heads : query_parts; }
  bool SharesQueries() const { return query_parts > 1; }
  bool SharesKeys() const { return kv_heads > 0 && KeySharers() > 1; }
  // Whether that goes: keys are whole on each rank, with all queries that read them or some.
  bool Divides() const {
    return ranks % query_parts == 0 && heads % Groups() == 0 &&
           (GroupsShareKeys() ? Groups() % kv_heads == 0 : kv_heads % Groups() == 0);
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

// The fewest parts that a head's queries have to be divided into, for these ranks and heads.
inline int64_t QueryParts(HeadsExchangeShape shape) {
  for (shape.query_parts = 1; !shape.Divides(); ++shape.query_parts) {
  }
  return shape.query_parts;  // in as many as there are ranks, always
}

// Pieces that are cut out of rows by tokens, or put into them, lie packed at its begin. Behind them
// lie those of rows by heads, where these are not whole.
inline int64_t HeadsExchangeWorkspaceBytes(const HeadsExchangeShape& shape) {
  return (shape.WholeByHeads() ? 1 : 2) * shape.PackedBytes();
}

}  // namespace milepost::kernels

#endif  // MILEPOST_ENGINE_OPS_CONTEXT_PARALLEL_CONTEXT_PARALLEL_CONTRACT_H_
