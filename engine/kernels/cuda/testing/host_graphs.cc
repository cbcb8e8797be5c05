#include "engine/kernels/cuda/testing/host_graphs.h"

#include <omp.h>

#include <algorithm>
#include <cstdint>

#include "common/status_macros.h"
#include "engine/kernels/cpu/attention.h"
#include "engine/kernels/cpu/types.h"

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
                        tables[at.lse_offsets + document] == row * graph.shape.heads;
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

// Between [B,H,T] and, with documents, [N,H].
void TurnLse(const AttentionGraph& graph, const float* by_head, float* by_row) {
  const AttentionShape& s = graph.shape;
  for (int64_t row = 0; row < graph.Rows(); ++row) {
    for (int64_t h = 0; h < s.heads; ++h) {
      by_row[row * s.heads + h] =
          by_head[(row / s.sequence * s.heads + h) * s.sequence + row % s.sequence];
    }
  }
}
std::vector<float> LseByHead(const AttentionGraph& graph, const float* by_row) {
  const AttentionShape& s = graph.shape;
  std::vector<float> by_head(static_cast<size_t>(graph.Rows() * s.heads));
  for (int64_t row = 0; row < graph.Rows(); ++row) {
    for (int64_t h = 0; h < s.heads; ++h) {
      by_head[(row / s.sequence * s.heads + h) * s.sequence + row % s.sequence] =
          by_row[row * s.heads + h];
    }
  }
  return by_head;
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

absl::Status HostGraphs::AttentionBackward(const AttentionGraph& graph,
                                           const AttentionBackwardArguments& arguments,
                                           void* workspace, CUstream_st*) {
  MP_RETURN_IF_ERROR(Check(graph, AttentionPass::kBackward));
  MP_RETURN_IF_ERROR(CheckWorkspace(workspace));
  ++attention_calls_;
  void* scratch =
      Scratch(AttentionBackwardWorkspaceBytes(graph.shape, graph.type, omp_get_max_threads()));
  MP_ASSIGN_OR_RETURN(const std::vector<int32_t> ids, IdsOf(graph, arguments.tables));
  AttentionBackwardArguments x = arguments;
  std::vector<float> lse;
  if (!ids.empty()) lse = LseByHead(graph, arguments.lse);
  if (!ids.empty()) x.lse = lse.data();
  const int32_t* documents = ids.empty() ? nullptr : ids.data();
  graph.type == DType::kBf16 ? Backward<bf16>(graph.shape, x, documents, scratch)
                             : Backward<f16>(graph.shape, x, documents, scratch);
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
