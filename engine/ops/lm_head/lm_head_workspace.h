// The sizes of a head's op and how its workspace is cut, on each device: a chunk of logits, the
// classifier's losses, sums for the bias's gradient, and what is gathered. The products' scratch
// follows.
#ifndef MILEPOST_ENGINE_OPS_LM_HEAD_LM_HEAD_WORKSPACE_H_
#define MILEPOST_ENGINE_OPS_LM_HEAD_LM_HEAD_WORKSPACE_H_

#include <algorithm>
#include <cstdint>

#include "engine/dtype/dtype.h"
#include "engine/graph/graph.h"
#include "engine/ops/classifier/classifier_contract.h"
#include "engine/ops/contract/alignment.h"
#include "engine/ops/contract/sums.h"

namespace milepost::ops {

struct HeadSizes {
  HeadSizes(const graph::Graph& graph, const graph::Op& op)
      : rows(graph.values[op.inputs[0]].shape[0]),
        width(graph.values[op.inputs[0]].shape[1]),
        vocabulary(graph.values[op.inputs[1]].shape[0]),
        chunk(op.attributes.chunk_rows > 0 ? std::min(op.attributes.chunk_rows, rows) : rows),
        dtype(graph.values[op.inputs[0]].dtype),
        gathers(op.attributes.gathers),
        bias(op.inputs[op.kind == graph::OpKind::kLmHeadLogits ? 2 : 3] != graph::kNoValue),
        training(op.kind == graph::OpKind::kLmHeadLossBackward ||
                 op.kind == graph::OpKind::kLmHeadLogProbsBackward),
        divided(op.attributes.vocabulary > 0),
        kept(KeepsLogits(op)),
        weight_gradient(training && op.outputs[2].value != graph::kNoValue),
        bias_gradient(training && op.outputs[3].value != graph::kNoValue),
        adds(training && op.inputs[4] != graph::kNoValue) {}
  int64_t Element() const { return ByteSize(dtype); }
  // Of ranks that divide the vocabulary: whether the logits are made once, and outlive the op that
  // makes them.
  static bool KeepsLogits(const graph::Op& op) {
    if (op.kind == graph::OpKind::kLmHeadParts) return op.outputs.size() > 1;
    return op.kind == graph::OpKind::kLmHeadLossBackward && op.attributes.vocabulary > 0 &&
           op.inputs.size() > kKeptLogits;
  }
  // Its inputs and outputs beside the usual ones.
  static constexpr int kGatheredParts = 5, kKeptLogits = 6, kLogitsGradient = 4;
  // kLmHeadLoss, which only adds up what has been gathered.
  static constexpr int kGatheredPartsOfLoss = 4;
  static bool AddsUp(const graph::Op& op) {
    return op.kind == graph::OpKind::kLmHeadLoss && op.attributes.vocabulary > 0;
  }

  int64_t rows, width, vocabulary, chunk;
  DType dtype;
  bool gathers;  // the rows that have a target
  bool bias;
  bool training;  // with gradients
  bool divided;   // among tensor ranks
  bool kept;
  bool weight_gradient, bias_gradient;
  bool adds;  // dx adds to what its last input holds
};

struct CpuHeadLayout : HeadSizes {
  using HeadSizes::HeadSizes;
  int64_t LogitsBytes() const { return kept ? 0 : LineAligned(chunk * vocabulary * Element()); }
  int64_t ClassifierBytes() const { return LineAligned(kernels::ClassifierWorkspaceBytes(chunk)); }
  int64_t BiasGradientBytes() const {
    return bias_gradient ? LineAligned(kernels::BiasGradientWorkspaceBytes(chunk, vocabulary)) : 0;
  }
  // Of gathered rows: they themselves; their numbers, and likewise their targets.
  int64_t RowsBytes() const { return LineAligned(chunk * width * Element()); }
  int64_t NumbersBytes() const { return LineAligned(chunk * ByteSize(DType::kI32)); }
  int64_t Bytes() const {
    return LogitsBytes() + ClassifierBytes() + BiasGradientBytes() +
           (gathers ? RowsBytes() + 2 * NumbersBytes() : 0);
  }
};

struct GpuHeadLayout : HeadSizes {
  GpuHeadLayout(const graph::Graph& graph, const graph::Op& op) : HeadSizes(graph, op) {
    const auto trained = [](const graph::Parameter& p) { return p.gradient != graph::kNoValue; };
    gathers &= op.kind == graph::OpKind::kLmHeadLossBackward ||
               (op.kind == graph::OpKind::kLmHeadParts &&
                std::any_of(graph.parameters.begin(), graph.parameters.end(), trained));
  }
  // Of the logits' rows: products of rows that begin at odd places are slower (BERT-large's head on
  // an H100: 15.6 ms instead of 11.4).
  int64_t Stride() const {
    const int64_t step = 16 / Element();
    return (vocabulary + step - 1) / step * step;
  }
  int64_t LogitsBytes() const { return kept ? 0 : DeviceAligned(chunk * Stride() * Element()); }
  int64_t ClassifierBytes() const {
    return DeviceAligned(kernels::cuda::ClassifierWorkspaceBytes(chunk));
  }
  int64_t BiasGradientBytes() const {
    return bias_gradient
               ? DeviceAligned(kernels::cuda::BiasGradientWorkspaceBytes(chunk, vocabulary))
               : 0;
  }
  // Of rows that are gathered: they themselves, their targets, and the order of all rows.
  int64_t RowsBytes() const { return gathers ? DeviceAligned(chunk * width * Element()) : 0; }
  int64_t TargetsBytes() const {
    return gathers ? DeviceAligned(chunk * ByteSize(DType::kI32)) : 0;
  }
  int64_t OrderBytes() const { return gathers ? DeviceAligned(rows * ByteSize(DType::kI32)) : 0; }
  int64_t Bytes() const {
    return LogitsBytes() + ClassifierBytes() + BiasGradientBytes() + RowsBytes() + TargetsBytes() +
           OrderBytes();
  }
  // kLmHeadLogits: one row of each sequence, side by side.
  int64_t TakenRowsBytes(const graph::Op& op) const {
    return op.attributes.every_row ? 0 : DeviceAligned(op.attributes.batch * width * Element());
  }
};

}  // namespace milepost::ops

#endif  // MILEPOST_ENGINE_OPS_LM_HEAD_LM_HEAD_WORKSPACE_H_
