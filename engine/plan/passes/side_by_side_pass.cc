#include "engine/plan/passes/side_by_side_pass.h"

#include <cstddef>
#include <utility>
#include <vector>

#include "engine/ops/cost.h"
#include "engine/plan/passes/micro_batch_copies.h"
#include "engine/plan/passes/stream_pass.h"

namespace milepost::plan {
namespace {

using graph::Op;
using Piece = std::vector<const Op*>;

// What a micro-batch computes, with products in it, and what it exchanges then before it can go on.
struct Phase {
  Piece computed;
  // The first one has exchanges alone. The others begin with ops without products, and end with
  // exchanges, or where a block does.
  std::vector<Piece> exchanged;
};

class SideBySide {
 public:
  SideBySide(graph::Graph& graph, int micro_batches, bool blocks_apart)
      : graph_(graph), micro_batches_(micro_batches), blocks_apart_(blocks_apart), copies_(graph) {}

  void Run() && {
    for (int m = 0; m < micro_batches_; ++m) copies_.AddInputs(m);
    for (const Phase& phase : Phases()) {
      for (int m = 0; m < micro_batches_; ++m) Add(phase, m);
    }
    AddOpen();
  }

 private:
  double FlopsOf(const Op& op) const { return ops::OpCost(graph_, op).flops; }

  std::vector<Phase> Phases() const {
    std::vector<Phase> phases;
    const std::vector<Op>& all = copies_.ops();
    int last_block = graph::kNoBlock;
    for (size_t begin = 0; begin < all.size();) {
      const int block = all[begin].block;
      const bool apart = blocks_apart_ && block != std::exchange(last_block, block);
      Piece computed, exchanged;
      double flops = 0;
      size_t end = begin;
      for (; end < all.size() && all[end].block == block; ++end) {
        const bool exchange = IsCommunication(all[end].kind);
        if (!exchange && !exchanged.empty()) break;
        (exchange ? exchanged : computed).push_back(&all[end]);
        if (!exchange) flops += FlopsOf(all[end]);
      }
      if (flops > 0 || apart || phases.empty()) {
        phases.push_back({std::move(computed), {std::move(exchanged)}});
      } else {
        computed.insert(computed.end(), exchanged.begin(), exchanged.end());
        phases.back().exchanged.push_back(std::move(computed));
      }
      begin = end;
    }
    return phases;
  }

  // In between comes what the micro-batch before this one has still to exchange, so that each of
  // these exchanges has a part of the phase to run beside.
  void Add(const Phase& phase, int micro_batch) {
    double flops = 0, done = 0;
    for (const Op* op : phase.computed) flops += FlopsOf(*op);
    const double parts = static_cast<double>(open_.size()) + 1;
    size_t added = 0;  // of what is open
    for (const Op* op : phase.computed) {
      while (added < open_.size() && done >= flops * static_cast<double>(added + 1) / parts) {
        AddPiece(open_[added++], open_of_);
      }
      copies_.Add(*op, graph::kNoPass, micro_batch);
      done += FlopsOf(*op);
    }
    while (added < open_.size()) AddPiece(open_[added++], open_of_);
    AddPiece(phase.exchanged.front(), micro_batch);
    open_.assign(phase.exchanged.begin() + 1, phase.exchanged.end());
    open_of_ = micro_batch;
  }

  void AddOpen() {
    for (const Piece& piece : open_) AddPiece(piece, open_of_);
  }

  void AddPiece(const Piece& piece, int micro_batch) {
    for (const Op* op : piece) copies_.Add(*op, graph::kNoPass, micro_batch);
  }

  const graph::Graph& graph_;
  const int micro_batches_;
  const bool blocks_apart_;
  MicroBatchCopies copies_;
  std::vector<Piece> open_;  // of the latest phase: what is still to be exchanged
  int open_of_ = 0;          // by which micro-batch
};

}  // namespace

void TrainSideBySide(graph::Graph& graph, int micro_batches, bool blocks_apart) {
  SideBySide(graph, micro_batches, blocks_apart).Run();
}

}  // namespace milepost::plan
