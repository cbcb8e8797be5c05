// Which keys the queries of one sequence may see: of their document, and in their window. Internal
// to attention's kernels.
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
        window_(shape.window == 0 ? shape.sequence : std::min(shape.window, shape.sequence)),
        ids_(documents == nullptr ? nullptr : documents + batch * shape.sequence) {}

  // Of the document that position t is in.
  int64_t DocumentBegin(int64_t t) const {
    return ids_ == nullptr ? 0 : std::lower_bound(ids_, ids_ + t, ids_[t]) - ids_;
  }
  int64_t DocumentEnd(int64_t t) const {
    return ids_ == nullptr ? sequence_
                           : std::upper_bound(ids_ + t, ids_ + sequence_, ids_[t]) - ids_;
  }

  bool SameDocument(int64_t a, int64_t b) const { return ids_ == nullptr || ids_[a] == ids_[b]; }
  // The first key in the window of a query. Without the causal mask every key is in it.
  int64_t WindowBegin(int64_t t) const {
    return causal_ ? std::max<int64_t>(0, t - window_ + 1) : 0;
  }
  bool causal() const { return causal_; }
  int64_t sequence() const { return sequence_; }

  // Blocks of keys of which a block of queries sees something.
  BlockRange KeyBlocks(int64_t query_block) const {
    return {Begin(query_block * kBlock) / kBlock,
            causal_ ? query_block + 1 : BlocksUpTo(DocumentEnd(Last(query_block)))};
  }
  // Blocks of queries that see something of a block of keys.
  BlockRange QueryBlocks(int64_t key_block) const {
    const int64_t last = Last(key_block);
    const int64_t end = DocumentEnd(last);
    if (!causal_) return {DocumentBegin(key_block * kBlock) / kBlock, BlocksUpTo(end)};
    return {key_block, BlocksUpTo(std::min(end, last + window_))};
  }
  // Whether every query of a block sees every key of a block.
  bool Whole(int64_t query_block, int64_t key_block) const {
    if (causal_ && key_block >= query_block) return false;
    const int64_t key = key_block * kBlock;
    return Begin(Last(query_block)) <= key && DocumentEnd(query_block * kBlock) >= key + kBlock;
  }

  // The block's last position, or the sequence's.
  int64_t Last(int64_t block) const { return std::min((block + 1) * kBlock, sequence_) - 1; }

 private:
  // The first key that a query sees.
  int64_t Begin(int64_t t) const { return std::max(DocumentBegin(t), WindowBegin(t)); }
  static int64_t BlocksUpTo(int64_t t) { return (t + kBlock - 1) / kBlock; }

  int64_t sequence_;
  bool causal_;
  int64_t window_;
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
        from = i == 0 ? keys.DocumentBegin(query) : query;
        to = keys.DocumentEnd(query);
      }
      begin[i] = static_cast<int32_t>(std::max(from, keys.WindowBegin(query)));
      end[i] = static_cast<int32_t>(keys.causal() ? query + 1 : to);
    }
  }

  // Of a text that goes on: `valid` queries from position `first` on see all up to themselves, or
  // so many as `window` has.
  QueryBounds(int64_t first, int64_t valid, int64_t window) {
    for (int64_t i = 0; i < kBlock; ++i) {
      const int64_t after = first + std::min(i, valid - 1) + 1;
      begin[i] = static_cast<int32_t>(window == 0 ? 0 : std::max<int64_t>(0, after - window));
      end[i] = static_cast<int32_t>(after);
    }
  }

  alignas(64) int32_t begin[kBlock];
  alignas(64) int32_t end[kBlock];
};

}  // namespace milepost::kernels

#endif  // MILEPOST_ENGINE_OPS_ATTENTION_ATTENTION_BOUNDS_CPU_KERNEL_H_
