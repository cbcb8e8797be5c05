// The only file that includes cudnn-frontend.
#include "engine/kernels/cuda/libraries/cudnn_graphs.h"

#include <cuda_runtime.h>
#include <cudnn_frontend.h>

#include <array>
#include <cmath>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace milepost::kernels::cuda {
namespace {

namespace fe = cudnn_frontend;
using Tensor = std::shared_ptr<fe::graph::Tensor_attributes>;

// Of a message's; cuDNN's can run to pages.
constexpr size_t kMaxMessage = 600;

absl::Status StatusOf(fe::error_t error, absl::StatusCode code, const std::string& what) {
  if (error.is_good()) return absl::OkStatus();
  return absl::Status(
      code, absl::StrCat("cuDNN: ", what, ": ", error.get_message().substr(0, kMaxMessage)));
}

absl::Status StatusOf(cudnnStatus_t status, const char* what) {
  if (status == CUDNN_STATUS_SUCCESS) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("cuDNN: ", what, ": ", cudnnGetErrorString(status)));
}

fe::DataType_t DataType(DType type) {
  return type == DType::kF32    ? fe::DataType_t::FLOAT
         : type == DType::kBf16 ? fe::DataType_t::BFLOAT16
                                : fe::DataType_t::HALF;
}

std::string Describe(const AttentionGraph& g, AttentionPass pass) {
  return absl::StrCat(Name(g.type), g.shape.causal ? " causal" : "",
                      g.shape.window > 0 ? absl::StrCat(" window ", g.shape.window) : "",
                      " attention", pass == AttentionPass::kBackward ? " backward" : "", " of ",
                      g.shape.batch, " x ", g.shape.sequence, " rows, ", g.shape.heads,
                      " heads on ", g.KvHeads(), " of ", g.RowKvHeads(), ", ", g.shape.head_dim,
                      " wide, at most ", g.max_documents, " documents",
                      g.deterministic ? ", deterministic" : "");
}

std::string Describe(const ConvolutionSpec& s, ConvolutionPass pass) {
  const char* passes[] = {"", " backward to its input", " backward to its weights"};
  return absl::StrCat(Name(s.type), " convolution", passes[static_cast<int>(pass)], " of ", s.batch,
                      " x ", s.height, " x ", s.width, " x ", s.in, " to ", s.out,
                      " channels, kernel ", s.kernel, ", stride ", s.stride, ", padding ",
                      s.padding);
}

// Tensors of a graph, numbered in the order in which Run takes their addresses.
class GraphBuilder {
 public:
  explicit GraphBuilder(fe::graph::Graph* graph) : graph_(*graph) {}

  Tensor Input(const char* name, std::vector<int64_t> dims, std::vector<int64_t> strides) {
    Tensor tensor = graph_.tensor(fe::graph::Tensor_attributes()
                                      .set_name(name)
                                      .set_dim(std::move(dims))
                                      .set_stride(std::move(strides)));
    tensor->set_uid(next_++);
    return tensor;
  }
  Tensor Table(const char* name, int64_t entries) {
    Tensor tensor = Input(name, {entries, 1, 1, 1}, {1, 1, 1, 1});
    tensor->set_data_type(fe::DataType_t::INT32);
    return tensor;
  }
  void Result(const Tensor& tensor, std::vector<int64_t> dims, std::vector<int64_t> strides) {
    tensor->set_output(true).set_dim(std::move(dims)).set_stride(std::move(strides));
    tensor->set_uid(next_++);
  }

 private:
  fe::graph::Graph& graph_;
  int64_t next_ = 1;
};

// The tensors' views for cuDNN: [batch, heads, sequence, head_dim] through strides. With documents
// each of them is a sequence of the batch and begins where its offset says.
class AttentionTensors {
 public:
  AttentionTensors(const AttentionGraph& graph, GraphBuilder* builder)
      : graph_(graph), documents_(graph.max_documents) {
    if (documents_ == 0) return;
    lengths_ = builder->Table("lengths", documents_);
    qkv_offsets_ = builder->Table("qkv_offsets", documents_ + 1);
    out_offsets_ = builder->Table("out_offsets", documents_ + 1);
    lse_offsets_ = builder->Table("lse_offsets", documents_ + 1);
  }

  int64_t Batch() const { return documents_ > 0 ? documents_ : graph_.shape.batch; }
  std::vector<int64_t> Dims(int64_t heads) const {
    return {Batch(), heads, graph_.shape.sequence, graph_.shape.head_dim};
  }
  std::vector<int64_t> Strides(int64_t width) const {
    return {graph_.shape.sequence * width, graph_.shape.head_dim, width, 1};
  }
  std::vector<int64_t> LseDims() const {
    return {Batch(), graph_.shape.heads, graph_.shape.sequence, 1};
  }
  std::vector<int64_t> LseStrides() const {
    const int64_t heads = graph_.shape.heads, rows = graph_.shape.sequence;
    if (documents_ > 0) return {graph_.RowHeads() * rows, 1, graph_.RowHeads(), 1};
    return {heads * rows, rows, 1, 1};
  }
  void PlaceQkv(const Tensor& tensor) const { Place(tensor, qkv_offsets_); }
  void PlaceOut(const Tensor& tensor) const { Place(tensor, out_offsets_); }
  void PlaceLse(const Tensor& tensor) const {
    tensor->set_data_type(fe::DataType_t::FLOAT);
    Place(tensor, lse_offsets_);
  }

  template <typename Attributes>
  void Set(Attributes& attributes) const {
    attributes.set_attn_scale(1.0f / std::sqrt(static_cast<float>(graph_.shape.head_dim)));
    if (graph_.shape.causal) {
      attributes.set_diagonal_alignment(fe::DiagonalAlignment_t::TOP_LEFT);
      attributes.set_diagonal_band_right_bound(0);
      // cuDNN counts as the op does: a bound of 1 is a query's own key.
      const int64_t window = graph_.shape.window;
      if (window > 0 && window < graph_.shape.sequence) {
        attributes.set_diagonal_band_left_bound(static_cast<int>(window));
      }
    }
    if (documents_ == 0) return;
    attributes.set_padding_mask(true).set_seq_len_q(lengths_).set_seq_len_kv(lengths_);
    attributes.set_max_total_seq_len_q(graph_.Rows()).set_max_total_seq_len_kv(graph_.Rows());
  }

 private:
  void Place(const Tensor& tensor, const Tensor& offsets) const {
    if (documents_ > 0) tensor->set_ragged_offset(offsets);
  }

  const AttentionGraph& graph_;
  int64_t documents_;
  Tensor lengths_, qkv_offsets_, out_offsets_, lse_offsets_;
};

struct QkvTensors {
  QkvTensors(const AttentionGraph& graph, const AttentionTensors& tensors, GraphBuilder* builder) {
    const std::vector<int64_t> strides = tensors.Strides(graph.QkvWidth());
    q = builder->Input("q", tensors.Dims(graph.shape.heads), strides);
    k = builder->Input("k", tensors.Dims(graph.KvHeads()), strides);
    v = builder->Input("v", tensors.Dims(graph.KvHeads()), strides);
    for (const Tensor& tensor : {q, k, v}) tensors.PlaceQkv(tensor);
  }
  Tensor q, k, v;
};

// Addresses: [the four tables,] q, k, v, out, lse.
void DescribeForward(const AttentionGraph& graph, fe::graph::Graph* to) {
  GraphBuilder builder(to);
  const AttentionTensors tensors(graph, &builder);
  const QkvTensors in(graph, tensors, &builder);
  auto attributes = fe::graph::SDPA_attributes().set_name("attention").set_generate_stats(true);
  tensors.Set(attributes);
  auto [out, lse] = to->sdpa(in.q, in.k, in.v, attributes);
  builder.Result(out, tensors.Dims(graph.shape.heads), tensors.Strides(graph.OutWidth()));
  tensors.PlaceOut(out);
  builder.Result(lse, tensors.LseDims(), tensors.LseStrides());
  tensors.PlaceLse(lse);
}

// Addresses: [the four tables,] q, k, v, out, dout, lse, dq, dk, dv.
void DescribeBackward(const AttentionGraph& graph, fe::graph::Graph* to) {
  GraphBuilder builder(to);
  const AttentionTensors tensors(graph, &builder);
  const QkvTensors in(graph, tensors, &builder);
  const std::vector<int64_t> dims = tensors.Dims(graph.shape.heads);
  const Tensor out = builder.Input("out", dims, tensors.Strides(graph.OutWidth()));
  const Tensor dout = builder.Input("dout", dims, tensors.Strides(graph.OutWidth()));
  tensors.PlaceOut(out);
  tensors.PlaceOut(dout);
  const Tensor lse = builder.Input("lse", tensors.LseDims(), tensors.LseStrides());
  tensors.PlaceLse(lse);
  auto attributes = fe::graph::SDPA_backward_attributes().set_name("attention_backward");
  attributes.set_deterministic_algorithm(graph.deterministic);
  tensors.Set(attributes);
  auto [dq, dk, dv] = to->sdpa_backward(in.q, in.k, in.v, out, dout, lse, attributes);
  const std::vector<int64_t> strides = tensors.Strides(graph.QkvWidth());
  builder.Result(dq, dims, strides);
  builder.Result(dk, tensors.Dims(graph.KvHeads()), strides);
  builder.Result(dv, tensors.Dims(graph.KvHeads()), strides);
  for (const Tensor& tensor : {dq, dk, dv}) tensors.PlaceQkv(tensor);
}

// Addresses: the two inputs and the result. Channels are innermost in activations, outermost but
// one in weights; cuDNN's engines relay weights out in their workspace.
void DescribeConvolution(const ConvolutionSpec& s, ConvolutionPass pass, fe::graph::Graph* to) {
  GraphBuilder builder(to);
  const auto image = [](int64_t channels, int64_t height, int64_t width) {
    return std::vector<int64_t>{channels * height * width, 1, channels * width, channels};
  };
  const std::vector<int64_t> x = {s.batch, s.in, s.height, s.width};
  const std::vector<int64_t> x_strides = image(s.in, s.height, s.width);
  const std::vector<int64_t> y = {s.batch, s.out, s.OutHeight(), s.OutWidth()};
  const std::vector<int64_t> y_strides = image(s.out, s.OutHeight(), s.OutWidth());
  const std::vector<int64_t> w = {s.out, s.in, s.kernel, s.kernel};
  const int64_t area = s.kernel * s.kernel;
  const std::vector<int64_t> w_strides = {s.in * area, area, s.kernel, 1};
  const auto set = [&s](auto attributes) {
    return attributes.set_padding({s.padding, s.padding})
        .set_stride({s.stride, s.stride})
        .set_dilation({1, 1});
  };
  if (pass == ConvolutionPass::kForward) {
    const Tensor first = builder.Input("x", x, x_strides);
    const Tensor second = builder.Input("w", w, w_strides);
    builder.Result(to->conv_fprop(first, second, set(fe::graph::Conv_fprop_attributes())), y,
                   y_strides);
  } else if (pass == ConvolutionPass::kBackwardData) {
    const Tensor first = builder.Input("dy", y, y_strides);
    const Tensor second = builder.Input("w", w, w_strides);
    builder.Result(to->conv_dgrad(first, second, set(fe::graph::Conv_dgrad_attributes())), x,
                   x_strides);
  } else {
    const Tensor first = builder.Input("x", x, x_strides);
    const Tensor second = builder.Input("dy", y, y_strides);
    builder.Result(to->conv_wgrad(second, first, set(fe::graph::Conv_wgrad_attributes())), w,
                   w_strides);
  }
}

absl::Status CheckConvolution(const ConvolutionSpec& s) {
  const bool sizes = s.batch > 0 && s.height > 0 && s.width > 0 && s.in > 0 && s.out > 0 &&
                     s.kernel > 0 && s.stride > 0 && s.padding >= 0;
  if (sizes && s.height + 2 * s.padding >= s.kernel && s.width + 2 * s.padding >= s.kernel) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("no such convolution: ", Describe(s, ConvolutionPass::kForward)));
}

using Key = std::array<int64_t, 12>;
Key KeyOf(const AttentionGraph& g, AttentionPass pass) {
  const AttentionShape& s = g.shape;
  return {static_cast<int64_t>(pass),
          s.batch,
          s.sequence,
          s.heads,
          s.head_dim,
          g.KvHeads(),
          s.causal,
          s.window,
          static_cast<int64_t>(g.type),
          g.max_documents,
          g.deterministic,
          g.RowKvHeads()};
}
Key KeyOf(const ConvolutionSpec& s, ConvolutionPass pass) {
  return {16 + static_cast<int64_t>(pass),
          s.batch,
          s.height,
          s.width,
          s.in,
          s.out,
          s.kernel,
          s.stride,
          s.padding,
          static_cast<int64_t>(s.type)};
}

// What its heuristics' first engine says that it wants, with what the frontend wants beside it.
class OpenGraph : public fe::graph::Graph {
 public:
  fe::error_t ExpectedWorkspace(int64_t* bytes) {
    auto configurations = plans.get_barred_engine_configs();
    if (configurations.empty()) {
      return {fe::error_code_t::GRAPH_NOT_SUPPORTED, "no engine is left"};
    }
    fe::error_t error = fe::detail::get_workspace_size(configurations.front(), *bytes);
    *bytes += get_fe_workspace_size_subtree();
    return error;
  }
};

struct Entry {
  OpenGraph graph;
  std::string name;
  bool built = false;
  int64_t workspace_bytes = 0;
};

constexpr int kMaxPointers = 16;

}  // namespace

struct CudnnGraphs::Impl {
  ~Impl() {
    if (handle != nullptr) cudnnDestroy(handle);
  }

  template <typename Describe>
  absl::Status Check(const Key& key, DType type, bool any_order, std::string name,
                     const Describe& describe, Entry** found) {
    auto at = entries.find(key);
    if (at == entries.end()) {
      auto entry = std::make_unique<Entry>();
      entry->name = std::move(name);
      entry->graph.set_io_data_type(DataType(type))
          .set_intermediate_data_type(fe::DataType_t::FLOAT)
          .set_compute_data_type(fe::DataType_t::FLOAT);
      if (description != nullptr) {
        entry->graph.set_device_properties(description).set_sm_version(compute_capability);
      }
      describe(&entry->graph);
      MP_RETURN_IF_ERROR(Support(*entry, type, any_order));
      at = entries.emplace(key, std::move(entry)).first;
    }
    *found = at->second.get();
    return absl::OkStatus();
  }

  absl::Status Support(Entry& entry, DType type, bool any_order) {
    fe::graph::Graph& graph = entry.graph;
    constexpr auto kRefused = absl::StatusCode::kUnimplemented;
    MP_RETURN_IF_ERROR(StatusOf(graph.validate(), kRefused, entry.name));
    MP_RETURN_IF_ERROR(StatusOf(graph.build_operation_graph(handle), kRefused, entry.name));
    MP_RETURN_IF_ERROR(
        StatusOf(graph.create_execution_plans({fe::HeurMode_t::A, fe::HeurMode_t::FALLBACK}),
                 kRefused, entry.name));
    // Of attention the graph itself says it; its forward has one order anyway.
    if (!any_order) graph.deselect_numeric_notes({fe::NumericalNote_t::NONDETERMINISTIC});
    // They would round fp32 inputs to 10 bits of mantissa (TF32).
    if (type == DType::kF32) graph.deselect_numeric_notes({fe::NumericalNote_t::TENSOR_CORE});
    return StatusOf(graph.check_support(), kRefused, entry.name);
  }

  absl::Status Build(Entry& entry) {
    if (entry.built) return absl::OkStatus();
    MP_RETURN_IF_ERROR(
        StatusOf(entry.graph.build_plans(), absl::StatusCode::kUnimplemented, entry.name));
    int64_t bytes = 0;
    MP_RETURN_IF_ERROR(
        StatusOf(entry.graph.get_workspace_size(bytes), absl::StatusCode::kInternal, entry.name));
    entry.workspace_bytes = (bytes + 255) / 256 * 256;
    entry.built = true;
    return absl::OkStatus();
  }

  absl::Status Find(const AttentionGraph& graph, AttentionPass pass, Entry** found) {
    MP_RETURN_IF_ERROR(CheckAttentionGraph(graph));
    const Key key = KeyOf(graph, pass);
    const bool known = entries.contains(key);
    return Check(
        key, graph.type, true, known ? std::string() : Describe(graph, pass),
        [&](fe::graph::Graph* to) {
          pass == AttentionPass::kForward ? DescribeForward(graph, to)
                                          : DescribeBackward(graph, to);
        },
        found);
  }
  absl::Status Find(const ConvolutionSpec& spec, ConvolutionPass pass, Entry** found) {
    MP_RETURN_IF_ERROR(CheckConvolution(spec));
    const Key key = KeyOf(spec, pass);
    const bool known = entries.contains(key);
    return Check(
        key, spec.type, false, known ? std::string() : Describe(spec, pass),
        [&](fe::graph::Graph* to) { DescribeConvolution(spec, pass, to); }, found);
  }

  // `pointers`: in the order of the tensors' numbers.
  template <size_t n>
  absl::Status Run(Entry& entry, std::array<void*, n> pointers, size_t skip, void* workspace,
                   cudaStream_t stream) {
    static_assert(n <= kMaxPointers);
    if (handle == nullptr) {
      return absl::FailedPreconditionError(
          absl::StrCat(entry.name, ": graphs of a described device cannot run"));
    }
    MP_RETURN_IF_ERROR(Build(entry));
    if (entry.workspace_bytes > 0 && workspace == nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat(entry.name, ": no workspace; it needs ", entry.workspace_bytes, " bytes"));
    }
    MP_RETURN_IF_ERROR(StatusOf(cudnnSetStream(handle, stream), "cudnnSetStream"));
    return StatusOf(
        entry.graph.execute(handle, pointers.data() + skip, static_cast<int>(n - skip), workspace),
        absl::StatusCode::kInternal, entry.name);
  }

  cudnnHandle_t handle = nullptr;
  std::shared_ptr<const fe::DeviceProperties> description;
  int compute_capability = 0;
  std::map<Key, std::unique_ptr<Entry>> entries;
};

CudnnGraphs::CudnnGraphs(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
CudnnGraphs::~CudnnGraphs() = default;

absl::StatusOr<std::unique_ptr<CudnnGraphs>> CudnnGraphs::Create() {
  auto impl = std::make_unique<Impl>();
  MP_RETURN_IF_ERROR(StatusOf(cudnnCreate(&impl->handle), "cudnnCreate"));
  return std::unique_ptr<CudnnGraphs>(new CudnnGraphs(std::move(impl)));
}

absl::StatusOr<std::unique_ptr<CudnnGraphs>> CudnnGraphs::ForDevice(
    const DeviceDescription& device) {
  auto impl = std::make_unique<Impl>();
  auto description = std::make_shared<fe::DeviceProperties>();
  const std::string json = CudnnJson(device);
  MP_RETURN_IF_ERROR(StatusOf(
      description->deserialize(std::vector<uint8_t>(json.begin(), json.end())),
      absl::StatusCode::kInvalidArgument, absl::StrCat("the description of ", device.name)));
  impl->description = std::move(description);
  impl->compute_capability = device.compute_capability;
  return std::unique_ptr<CudnnGraphs>(new CudnnGraphs(std::move(impl)));
}

absl::Status CudnnGraphs::Check(const AttentionGraph& graph, AttentionPass pass) {
  Entry* entry = nullptr;
  return impl_->Find(graph, pass, &entry);
}

absl::Status CudnnGraphs::Check(const ConvolutionSpec& spec, ConvolutionPass pass) {
  Entry* entry = nullptr;
  return impl_->Find(spec, pass, &entry);
}

absl::StatusOr<int64_t> CudnnGraphs::WorkspaceBytes(const AttentionGraph& graph,
                                                    AttentionPass pass) {
  Entry* entry = nullptr;
  MP_RETURN_IF_ERROR(impl_->Find(graph, pass, &entry));
  MP_RETURN_IF_ERROR(impl_->Build(*entry));
  return entry->workspace_bytes;
}

absl::StatusOr<int64_t> CudnnGraphs::ExpectedWorkspaceBytes(const AttentionGraph& graph,
                                                            AttentionPass pass) {
  Entry* entry = nullptr;
  MP_RETURN_IF_ERROR(impl_->Find(graph, pass, &entry));
  int64_t bytes = 0;
  MP_RETURN_IF_ERROR(
      StatusOf(entry->graph.ExpectedWorkspace(&bytes), absl::StatusCode::kInternal, entry->name));
  return bytes;
}

absl::StatusOr<int64_t> CudnnGraphs::WorkspaceBytes(const ConvolutionSpec& spec,
                                                    ConvolutionPass pass) {
  Entry* entry = nullptr;
  MP_RETURN_IF_ERROR(impl_->Find(spec, pass, &entry));
  MP_RETURN_IF_ERROR(impl_->Build(*entry));
  return entry->workspace_bytes;
}

namespace {

int64_t HeadBytes(const AttentionGraph& graph) {
  return graph.shape.head_dim * ByteSize(graph.type);
}

// The begins of q, k and v in a packed row, for one that may be written or not.
std::array<void*, 3> QkvPointers(const AttentionGraph& graph, const void* qkv, int64_t first) {
  char* begin = static_cast<char*>(const_cast<void*>(qkv));
  const int64_t head = HeadBytes(graph);
  return {begin + first * graph.Group() * head, begin + (graph.RowHeads() + first) * head,
          begin + (graph.RowHeads() + graph.RowKvHeads() + first) * head};
}
void* OutPointer(const AttentionGraph& graph, const void* out, int64_t first) {
  return static_cast<char*>(const_cast<void*>(out)) + first * graph.Group() * HeadBytes(graph);
}
float* LsePointer(const AttentionGraph& graph, const float* lse, int64_t first) {
  const int64_t by_head = graph.max_documents > 0 ? 1 : graph.shape.sequence;
  return const_cast<float*>(lse) + first * graph.Group() * by_head;
}

std::array<void*, 4> TablePointers(const AttentionGraph& graph, const int32_t* tables) {
  if (graph.max_documents == 0) return {};
  const DocumentTables at = DocumentTablesOf(graph);
  int32_t* begin = const_cast<int32_t*>(tables);
  return {begin + at.lengths, begin + at.qkv_offsets, begin + at.out_offsets,
          begin + at.lse_offsets};
}

absl::Status CheckTables(const AttentionGraph& graph, const int32_t* tables) {
  if ((graph.max_documents > 0) == (tables != nullptr)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      "attention: document tables are given exactly where the graph has documents");
}

}  // namespace

absl::Status CudnnGraphs::Attention(const AttentionGraph& graph,
                                    const AttentionArguments& arguments, void* workspace,
                                    CUstream_st* stream) {
  MP_RETURN_IF_ERROR(CheckTables(graph, arguments.tables));
  Entry* entry = nullptr;
  MP_RETURN_IF_ERROR(impl_->Find(graph, AttentionPass::kForward, &entry));
  const auto t = TablePointers(graph, arguments.tables);
  const auto in = QkvPointers(graph, arguments.qkv, 0);
  const std::array<void*, 9> pointers = {t[0],  t[1],  t[2],          t[3],         in[0],
                                         in[1], in[2], arguments.out, arguments.lse};
  return impl_->Run(*entry, pointers, graph.max_documents > 0 ? 0 : t.size(), workspace, stream);
}

absl::Status CudnnGraphs::AttentionBackward(const AttentionGraph& graph,
                                            const AttentionBackwardArguments& arguments,
                                            void* workspace, CUstream_st* stream) {
  MP_RETURN_IF_ERROR(CheckTables(graph, arguments.tables));
  Entry* entry = nullptr;
  MP_RETURN_IF_ERROR(impl_->Find(graph, AttentionPass::kBackward, &entry));
  const auto t = TablePointers(graph, arguments.tables);
  const int64_t first = arguments.first_kv_head;
  const auto in = QkvPointers(graph, arguments.qkv, first);
  const auto d = QkvPointers(graph, arguments.dqkv, first);
  const std::array<void*, 13> pointers = {t[0],
                                          t[1],
                                          t[2],
                                          t[3],
                                          in[0],
                                          in[1],
                                          in[2],
                                          OutPointer(graph, arguments.out, first),
                                          OutPointer(graph, arguments.dout, first),
                                          LsePointer(graph, arguments.lse, first),
                                          d[0],
                                          d[1],
                                          d[2]};
  return impl_->Run(*entry, pointers, graph.max_documents > 0 ? 0 : t.size(), workspace, stream);
}

absl::Status CudnnGraphs::Convolution(const ConvolutionSpec& spec, ConvolutionPass pass,
                                      const ConvolutionArguments& arguments, void* workspace,
                                      CUstream_st* stream) {
  Entry* entry = nullptr;
  MP_RETURN_IF_ERROR(impl_->Find(spec, pass, &entry));
  const std::array<void*, 3> pointers = {const_cast<void*>(arguments.first),
                                         const_cast<void*>(arguments.second), arguments.result};
  return impl_->Run(*entry, pointers, 0, workspace, stream);
}

}  // namespace milepost::kernels::cuda
