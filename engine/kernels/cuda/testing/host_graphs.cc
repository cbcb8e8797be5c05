#include "engine/kernels/cuda/testing/host_graphs.h"

#include <omp.h>

#include <algorithm>
#include <cstdint>

#include "common/status_macros.h"
#include "engine/dtype/half.h"
#include "engine/ops/attention/attention_cpu_kernel.h"

namespace milepost::kernels::cuda {
namespace {

template <typename T>
std::vector<float> WidenAll(const void* p, int64_t n) {
  std::vector<float> out(static_cast<size_t>(n));
  for (int64_t i = 0; i < n; ++i) out[i] = ToFloat(static_cast<const T*>(p)[i]);
  return out;
}
std::vector<float> WidenAll(const void* p, DType type, int64_t n) {
  return type == DType::kBf16  ? WidenAll<bf16>(p, n)
         : type == DType::kF16 ? WidenAll<f16>(p, n)
                               : WidenAll<float>(p, n);
}

template <typename T>
void NarrowAll(const std::vector<float>& values, void* p) {
  for (size_t i = 0; i < values.size(); ++i) static_cast<T*>(p)[i] = FromFloat<T>(values[i]);
}
void NarrowAll(const std::vector<float>& values, DType type, void* p) {
  type == DType::kBf16  ? NarrowAll<bf16>(values, p)
  : type == DType::kF16 ? NarrowAll<f16>(values, p)
                        : NarrowAll<float>(values, p);
}

template <typename T>
void Forward(const AttentionShape& shape, const AttentionArguments& x, const int32_t* ids,
             void* scratch) {
  kernels::AttentionForward<T>(shape, static_cast<const T*>(x.qkv), ids, static_cast<T*>(x.out),
                               x.lse, scratch);
}
template <typename T>
void Backward(const AttentionShape& shape, const AttentionBackwardArguments& x, const int32_t* ids,
              void* scratch) {
  kernels::AttentionBackward<T>(shape, static_cast<const T*>(x.qkv), ids,
                                static_cast<const T*>(x.out), x.lse, static_cast<const T*>(x.dout),
                                static_cast<T*>(x.dqkv), scratch);
}

// What the tables say, as ids by row; they must cover every row once and cross no sequence's end.
absl::StatusOr<std::vector<int32_t>> IdsOf(const AttentionGraph& graph, const int32_t* tables) {
  if ((graph.max_documents > 0) != (tables != nullptr)) {
    return absl::InvalidArgumentError("tables are given where there are documents");
  }
  if (tables == nullptr) return std::vector<int32_t>();
  const DocumentTables at = DocumentTablesOf(graph);
  std::vector<int32_t> ids;
  for (int64_t document = 0; document < graph.max_documents; ++document) {
    const auto row = static_cast<int64_t>(ids.size());
    const int64_t length = tables[at.lengths + document];
    const bool placed = tables[at.qkv_offsets + document] == row * graph.QkvWidth() &&
                        tables[at.out_offsets + document] == row * graph.OutWidth() &&
                        tables[at.lse_offsets + document] == row * graph.RowHeads();
    const bool within =
        length == 0 || row / graph.shape.sequence == (row + length - 1) / graph.shape.sequence;
    if (!placed || !within || length < 0) {
      return absl::InvalidArgumentError("a document's place in the tables is wrong");
    }
    ids.insert(ids.end(), static_cast<size_t>(length), static_cast<int32_t>(document));
  }
  if (static_cast<int64_t>(ids.size()) != graph.Rows()) {
    return absl::InvalidArgumentError("the tables' documents do not cover the rows");
  }
  return ids;
}

// From [B,H,T] to what documents have, [N,H].
void TurnLse(const AttentionGraph& graph, const float* by_head, float* by_row) {
  const AttentionShape& s = graph.shape;
  for (int64_t row = 0; row < graph.Rows(); ++row) {
    for (int64_t h = 0; h < s.heads; ++h) {
      by_row[row * s.heads + h] =
          by_head[(row / s.sequence * s.heads + h) * s.sequence + row % s.sequence];
    }
  }
}

}  // namespace

absl::Status HostGraphs::CheckWorkspace(const void* workspace) const {
  if (options_.workspace_bytes == 0) return absl::OkStatus();
  if (workspace != nullptr && reinterpret_cast<uintptr_t>(workspace) % 256 == 0) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError("a graph's workspace is missing or misaligned");
}

void* HostGraphs::Scratch(size_t bytes) {
  scratch_.resize(bytes + 64);
  const auto at = reinterpret_cast<uintptr_t>(scratch_.data());
  return reinterpret_cast<void*>((at + 63) / 64 * 64);
}

absl::Status HostGraphs::Check(const AttentionGraph& graph, AttentionPass) {
  if (!options_.attention) return absl::UnimplementedError("no attention by graphs in this test");
  return CheckAttentionGraph(graph);
}

absl::Status HostGraphs::Check(const ConvolutionSpec& spec, ConvolutionPass pass) {
  ConvolutionSpec wide = spec;
  wide.type = DType::kF32;
  return convolutions_.WorkspaceBytes(wide, pass).status();
}

absl::StatusOr<int64_t> HostGraphs::WorkspaceBytes(const AttentionGraph& graph,
                                                   AttentionPass pass) {
  MP_RETURN_IF_ERROR(Check(graph, pass));
  return options_.workspace_bytes;
}

absl::StatusOr<int64_t> HostGraphs::WorkspaceBytes(const ConvolutionSpec& spec,
                                                   ConvolutionPass pass) {
  MP_RETURN_IF_ERROR(Check(spec, pass));
  return options_.workspace_bytes;
}

absl::Status HostGraphs::Attention(const AttentionGraph& graph, const AttentionArguments& arguments,
                                   void* workspace, CUstream_st*) {
  MP_RETURN_IF_ERROR(Check(graph, AttentionPass::kForward));
  MP_RETURN_IF_ERROR(CheckWorkspace(workspace));
  ++attention_calls_;
  void* scratch =
      Scratch(AttentionForwardWorkspaceBytes(graph.shape, graph.type, omp_get_max_threads()));
  MP_ASSIGN_OR_RETURN(const std::vector<int32_t> ids, IdsOf(graph, arguments.tables));
  AttentionArguments x = arguments;
  std::vector<float> lse(ids.empty() ? 0 : static_cast<size_t>(graph.Rows() * graph.shape.heads));
  if (!ids.empty()) x.lse = lse.data();
  const int32_t* documents = ids.empty() ? nullptr : ids.data();
  graph.type == DType::kBf16 ? Forward<bf16>(graph.shape, x, documents, scratch)
                             : Forward<f16>(graph.shape, x, documents, scratch);
  if (!ids.empty()) TurnLse(graph, lse.data(), arguments.lse);
  return absl::OkStatus();
}

namespace {

// A call's heads out of whole rows, and back; numbers of 16 bits.
class PartOfHeads {
 public:
  PartOfHeads(const AttentionGraph& graph, int64_t first_kv_head)
      : graph_(graph), first_(first_kv_head) {}

  std::vector<uint16_t> Qkv(const void* rows) const {
    std::vector<uint16_t> part;
    ForRuns(true, [&](int64_t at, int64_t count) { Append(rows, at, count, &part); });
    return part;
  }
  std::vector<uint16_t> Out(const void* rows) const {
    std::vector<uint16_t> part;
    ForRuns(false, [&](int64_t at, int64_t count) { Append(rows, at, count, &part); });
    return part;
  }
  void PutQkv(const std::vector<uint16_t>& part, void* rows) const {
    int64_t from = 0;
    ForRuns(true, [&](int64_t at, int64_t count) {
      std::copy_n(part.begin() + from, count, static_cast<uint16_t*>(rows) + at);
      from += count;
    });
  }
  // As [B,H,T], whatever it lies in: that, or with documents [N,H].
  std::vector<float> Lse(const float* lse) const {
    const AttentionShape& s = graph_.shape;
    const int64_t first = first_ * graph_.Group();
    std::vector<float> part;
    for (int64_t i = 0; i < graph_.Rows() * s.heads; ++i) {
      const int64_t batch = i / (s.heads * s.sequence), head = i / s.sequence % s.heads;
      const int64_t row = batch * s.sequence + i % s.sequence;
      part.push_back(graph_.max_documents > 0 ? lse[row * graph_.RowHeads() + first + head]
                                              : lse[first * s.sequence + i]);
    }
    return part;
  }

 private:
  static void Append(const void* rows, int64_t at, int64_t count, std::vector<uint16_t>* to) {
    const uint16_t* begin = static_cast<const uint16_t*>(rows) + at;
    to->insert(to->end(), begin, begin + count);
  }
  // In order of the part's elements: where they lie in the rows.
  template <typename Visit>
  void ForRuns(bool qkv, const Visit& visit) const {
    const int64_t dim = graph_.shape.head_dim, group = graph_.Group();
    const int64_t width = qkv ? graph_.QkvWidth() : graph_.OutWidth();
    for (int64_t row = 0; row < graph_.Rows(); ++row) {
      visit(row * width + first_ * group * dim, graph_.shape.heads * dim);
      if (!qkv) continue;
      const int64_t keys = row * width + (graph_.RowHeads() + first_) * dim;
      visit(keys, graph_.KvHeads() * dim);
      visit(keys + graph_.RowKvHeads() * dim, graph_.KvHeads() * dim);
    }
  }

  const AttentionGraph& graph_;
  const int64_t first_;
};

}  // namespace

absl::Status HostGraphs::AttentionBackward(const AttentionGraph& graph,
                                           const AttentionBackwardArguments& arguments,
                                           void* workspace, CUstream_st*) {
  MP_RETURN_IF_ERROR(Check(graph, AttentionPass::kBackward));
  MP_RETURN_IF_ERROR(CheckWorkspace(workspace));
  ++attention_calls_;
  void* scratch =
      Scratch(AttentionBackwardWorkspaceBytes(graph.shape, graph.type, omp_get_max_threads()));
  MP_ASSIGN_OR_RETURN(const std::vector<int32_t> ids, IdsOf(graph, arguments.tables));
  const PartOfHeads heads(graph, arguments.first_kv_head);
  const std::vector<uint16_t> qkv = heads.Qkv(arguments.qkv), out = heads.Out(arguments.out);
  const std::vector<uint16_t> dout = heads.Out(arguments.dout);
  const std::vector<float> lse = heads.Lse(arguments.lse);
  std::vector<uint16_t> dqkv(qkv.size());
  const AttentionBackwardArguments x = {.qkv = qkv.data(),
                                        .out = out.data(),
                                        .lse = lse.data(),
                                        .dout = dout.data(),
                                        .dqkv = dqkv.data()};
  const int32_t* documents = ids.empty() ? nullptr : ids.data();
  graph.type == DType::kBf16 ? Backward<bf16>(graph.shape, x, documents, scratch)
                             : Backward<f16>(graph.shape, x, documents, scratch);
  heads.PutQkv(dqkv, arguments.dqkv);
  return absl::OkStatus();
}

absl::Status HostGraphs::Convolution(const ConvolutionSpec& spec, ConvolutionPass pass,
                                     const ConvolutionArguments& arguments, void* workspace,
                                     CUstream_st*) {
  MP_RETURN_IF_ERROR(CheckWorkspace(workspace));
  ConvolutionSpec wide = spec;
  wide.type = DType::kF32;
  MP_ASSIGN_OR_RETURN(const size_t bytes, convolutions_.WorkspaceBytes(wide, pass));
  const int64_t x = spec.batch * spec.height * spec.width * spec.in;
  const int64_t y = spec.batch * spec.OutHeight() * spec.OutWidth() * spec.out;
  const int64_t w = spec.WeightElements();
  const bool data = pass == ConvolutionPass::kBackwardData;
  const bool weights = pass == ConvolutionPass::kBackwardWeights;
  const std::vector<float> first = WidenAll(arguments.first, spec.type, data ? y : x);
  const std::vector<float> second = WidenAll(arguments.second, spec.type, weights ? y : w);
  std::vector<float> result(static_cast<size_t>(data ? x : weights ? w : y));
  void* scratch = Scratch(bytes);
  MP_RETURN_IF_ERROR(
      data ? convolutions_.BackwardData(wide, first.data(), second.data(), result.data(), scratch)
      : weights ? convolutions_.BackwardWeights(wide, first.data(), second.data(),
                                                /*accumulate=*/false, result.data(), scratch)
                : convolutions_.Forward(wide, first.data(), second.data(), result.data(), scratch));
  NarrowAll(result, spec.type, arguments.result);
  return absl::OkStatus();
}

}  // namespace milepost::kernels::cuda
