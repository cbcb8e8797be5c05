// Which keys the queries of one sequence may see. Internal to attention's kernels.
//
// A document is a run of positions with equal ids; ids never fall along a sequence, so that its
// begin and end are found by bisection and whole blocks of other documents are never touched.
#ifndef MILEPOST_ENGINE_OPS_ATTENTION_ATTENTION_BOUNDS_CPU_KERNEL_H_
#define MILEPOST_ENGINE_OPS_ATTENTION_ATTENTION_BOUNDS_CPU_KERNEL_H_

#include <algorithm>
#include <cstdint>

#include "engine/ops/attention/attention_layout_contract.h"

namespace milepost::kernels {

struct BlockRange {
  int64_t begin;
  int64_t end;
};

class KeyBounds {
 public:
  // `documents`: of the whole batch; null: a sequence is one document.
  KeyBounds(const AttentionShape& shape, int64_t batch, const int32_t* documents)
      : sequence_(shape.sequence),
        causal_(shape.causal),
        ids_(documents == nullptr ? nullptr : documents + batch * shape.sequence) {}

  // Of the document that position t is in.
  int64_t Begin(int64_t t) const {
    return ids_ == nullptr ? 0 : std::lower_bound(ids_, ids_ + t, ids_[t]) - ids_;
  }
  int64_t End(int64_t t) const {
    return ids_ == nullptr ? sequence_
                           : std::upper_bound(ids_ + t, ids_ + sequence_, ids_[t]) - ids_;
  }

  bool SameDocument(int64_t a, int64_t b) const { return ids_ == nullptr || ids_[a] == ids_[b]; }
  bool causal() const { return causal_; }
  int64_t sequence() const { return sequence_; }

  // Blocks of keys of which a block of queries sees something.
  BlockRange KeyBlocks(int64_t query_block) const {
    return {Begin(query_block * kBlock) / kBlock,
            causal_ ? query_block + 1 : BlocksUpTo(End(Last(query_block)))};
  }
  // Blocks of queries that see something of a block of keys.
  BlockRange QueryBlocks(int64_t key_block) const {
    return {causal_ ? key_block : Begin(key_block * kBlock) / kBlock,
            BlocksUpTo(End(Last(key_block)))};
  }
  // Whether every query of a block sees every key of a block.
  bool Whole(int64_t query_block, int64_t key_block) const {
    if (causal_ && key_block >= query_block) return false;
    const int64_t key = key_block * kBlock;
    return Begin(Last(query_block)) <= key && End(query_block * kBlock) >= key + kBlock;
  }

  // The block's last position, or the sequence's.
  int64_t Last(int64_t block) const { return std::min((block + 1) * kBlock, sequence_) - 1; }

 private:
  static int64_t BlocksUpTo(int64_t t) { return (t + kBlock - 1) / kBlock; }

  int64_t sequence_;
  bool causal_;
  const int32_t* ids_;
};

// The keys [begin, end) of each query of a block. Queries past the sequence's end see what its last
// one does: no column is empty.
struct QueryBounds {
  QueryBounds(const KeyBounds& keys, int64_t block) {
    int64_t from = 0;
    int64_t to = 0;
    for (int64_t i = 0; i < kBlock; ++i) {
      const int64_t query = std::min(block * kBlock + i, keys.sequence() - 1);
      if (i == 0 || !keys.SameDocument(query, query - 1)) {
        from = i == 0 ? keys.Begin(query) : query;
        to = keys.End(query);
      }
      begin[i] = static_cast<int32_t>(from);
      end[i] = static_cast<int32_t>(keys.causal() ? query + 1 : to);
    }
  }

  // Of a text that goes on: `valid` queries from position `first` on see all up to themselves.
  QueryBounds(int64_t first, int64_t valid) {
    for (int64_t i = 0; i < kBlock; ++i) {
      begin[i] = 0;
      end[i] = static_cast<int32_t>(first + std::min(i, valid - 1) + 1);
    }
  }

  alignas(64) int32_t begin[kBlock];
  alignas(64) int32_t end[kBlock];
};

}  // namespace milepost::kernels

#endif  // MILEPOST_ENGINE_OPS_ATTENTION_ATTENTION_BOUNDS_CPU_KERNEL_H_
