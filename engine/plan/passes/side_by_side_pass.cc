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
  // Each ends with exchanges. The first one has nothing else, the others ops without products.
  std::vector<Piece> exchanged;
};

class SideBySide {
 public:
  SideBySide(graph::Graph& graph, int micro_batches)
      : graph_(graph), micro_batches_(micro_batches), copies_(graph) {}

  void Run() && {
    for (int m = 0; m < micro_batches_; ++m) copies_.AddInputs(m);
    for (const Phase& phase : Phases()) {
      for (int m = 0; m < micro_batches_; ++m) Add(phase, m);
    }
    AddOpen();
  }

 private:
  double FlopsOf(const Op& op) const { return ops::OpCost(graph_, op).flops; }

  // A phase also ends where another block begins: that block's sharded parameters are then gathered
  // once for all micro-batches.
  std::vector<Phase> Phases() const {
    std::vector<Phase> phases;
    const std::vector<Op>& all = copies_.ops();
    for (size_t begin = 0; begin < all.size();) {
      const int block = all[begin].block;
      Piece computed, exchanged;
      double flops = 0;
      size_t end = begin;
      for (; end < all.size() && all[end].block == block; ++end) {
        const bool exchange = IsCommunication(all[end].kind);
        if (!exchange && !exchanged.empty()) break;
        (exchange ? exchanged : computed).push_back(&all[end]);
        if (!exchange) flops += FlopsOf(all[end]);
      }
      if (flops > 0 || phases.empty()) {
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
  MicroBatchCopies copies_;
  std::vector<Piece> open_;  // of the latest phase: what is still to be exchanged
  int open_of_ = 0;          // by which micro-batch
};

}  // namespace

void TrainSideBySide(graph::Graph& graph, int micro_batches) {
  SideBySide(graph, micro_batches).Run();
}

}  // namespace milepost::plan
