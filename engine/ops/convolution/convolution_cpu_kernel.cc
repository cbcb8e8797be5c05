#include "engine/ops/convolution/convolution_cpu_kernel.h"

#include <algorithm>
#include <array>
#include <oneapi/dnnl/dnnl.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "common/status_macros.h"
#include "engine/kernels/cpu/parallel.h"
#include "engine/ops/convolution/convolution_widened_cpu_kernel.h"

namespace milepost::kernels {
namespace {

using dnnl::memory;

constexpr size_t kAlignment = 64;
size_t Align(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

memory::data_type DnnlType(DType type) {
  return type == DType::kF32 ? memory::data_type::f32 : memory::data_type::bf16;
}

const char* Name(ConvolutionPass pass) {
  switch (pass) {
    case ConvolutionPass::kForward:
      return "forward";
    case ConvolutionPass::kBackwardData:
      return "backward data";
    case ConvolutionPass::kBackwardWeights:
      return "backward weights";
  }
  return "unknown";
}

std::string Describe(const ConvolutionSpec& s, ConvolutionPass pass) {
  return absl::StrFormat(
      "convolution %s %s [%d,%d,%d,%d] -> %d channels, kernel %d stride %d "
      "padding %d",
      Name(pass), s.type == DType::kF32 ? "f32" : "bf16", s.batch, s.height, s.width, s.in, s.out,
      s.kernel, s.stride, s.padding);
}

absl::Status Check(const ConvolutionSpec& s, ConvolutionPass pass) {
  const bool positive = s.batch > 0 && s.height > 0 && s.width > 0 && s.in > 0 && s.out > 0 &&
                        s.kernel > 0 && s.stride > 0 && s.padding >= 0;
  if (!positive) {
    return absl::InvalidArgumentError(Describe(s, pass) + ": sizes must be positive");
  }
  if (std::min(s.height, s.width) + 2 * s.padding < s.kernel) {
    return absl::InvalidArgumentError(Describe(s, pass) + ": the kernel is larger than the image");
  }
  return absl::OkStatus();
}

absl::Status FromDnnl(const dnnl::error& error, const ConvolutionSpec& spec, ConvolutionPass pass) {
  const std::string text = absl::StrFormat("%s: oneDNN: %s", Describe(spec, pass), error.what());
  if (error.status == dnnl_unimplemented) {
    return absl::UnimplementedError(text + " (not supported on this CPU; use precision fp32)");
  }
  if (error.status == dnnl_out_of_memory) return absl::ResourceExhaustedError(text);
  return absl::InternalError(text);
}

// The operands as oneDNN sees them.
struct Descriptors {
  explicit Descriptors(const ConvolutionSpec& s)
      : x({s.batch, s.in, s.height, s.width}, DnnlType(s.type), memory::format_tag::nhwc),
        y({s.batch, s.out, s.OutHeight(), s.OutWidth()}, DnnlType(s.type),
          memory::format_tag::nhwc),
        w({s.out, s.in, s.kernel, s.kernel}, DnnlType(s.type), memory::format_tag::any),
        plain_w({s.out, s.in, s.kernel, s.kernel}, DnnlType(s.type), memory::format_tag::oihw),
        dw({s.out, s.in, s.kernel, s.kernel}, memory::data_type::f32, memory::format_tag::any),
        plain_dw({s.out, s.in, s.kernel, s.kernel}, memory::data_type::f32,
                 memory::format_tag::oihw),
        strides{s.stride, s.stride},
        padding{s.padding, s.padding} {
    scratch.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  }
  memory::desc x, y, w, plain_w, dw, plain_dw;
  memory::dims strides, padding;
  dnnl::primitive_attr scratch;
};

// oneDNN 2.6 names its algorithm itself; what else is supported here is slower.
constexpr auto kAlgorithm = dnnl::algorithm::convolution_direct;

struct Argument {
  int index;
  memory* target;
  const void* data;
};

template <size_t n>
absl::Status Run(const dnnl::primitive& primitive, const std::array<Argument, n>& arguments,
                 dnnl_stream_t stream) {
  std::array<dnnl_exec_arg_t, n> args;
  dnnl_status_t status = dnnl_success;
  for (size_t i = 0; i < n && status == dnnl_success; ++i) {
    const Argument& a = arguments[i];
    args[i] = {a.index, a.target->get()};
    status = dnnl_memory_set_data_handle_v2(a.target->get(), const_cast<void*>(a.data), nullptr);
  }
  if (status == dnnl_success) {
    status = dnnl_primitive_execute(primitive.get(), stream, n, args.data());
  }
  if (status == dnnl_success) return absl::OkStatus();
  return absl::InternalError(absl::StrFormat("convolution: oneDNN status %d", status));
}

}  // namespace

struct ConvolutionCache::Entry {
  ConvolutionSpec spec;
  ConvolutionPass pass;
  int threads = 0;

  dnnl::primitive convolution;
  dnnl::reorder reorder;       // weights into, or gradients out of, the convolution's layout
  dnnl::reorder accumulating;  // kBackwardWeights: the same, adding
  bool packs = false;          // the two layouts differ
  memory x, y, packed, plain, scratch, reorder_scratch;
  size_t packed_bytes = 0;
  size_t workspace_bytes = 0;
};

struct ConvolutionCache::Impl {
  dnnl::engine engine{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream{engine};
  std::vector<std::unique_ptr<Entry>> entries;

  std::unique_ptr<Entry> Build(const ConvolutionSpec& spec, ConvolutionPass pass, int threads);
  size_t MakeReorders(const memory::desc& packed, const memory::desc& plain, Entry& entry);
  memory Empty(const memory::desc& desc) { return memory(desc, engine, nullptr); }
};

ConvolutionCache::ConvolutionCache(bool bf16_products)
    : bf16_products_(bf16_products), impl_(std::make_unique<Impl>()) {}
ConvolutionCache::~ConvolutionCache() = default;

// Returns the bytes of their scratch. Throws dnnl::error, like Build.
size_t ConvolutionCache::Impl::MakeReorders(const memory::desc& packed, const memory::desc& plain,
                                            Entry& entry) {
  const bool gradient = entry.pass == ConvolutionPass::kBackwardWeights;
  const memory::desc& from = gradient ? packed : plain;
  const memory::desc& to = gradient ? plain : packed;
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  const dnnl::reorder::primitive_desc assign(engine, from, engine, to, attributes);
  entry.reorder = dnnl::reorder(assign);
  size_t scratch = assign.scratchpad_desc().get_size();
  memory::desc scratch_desc = assign.scratchpad_desc();
  if (gradient) {
    dnnl::post_ops sum;
    sum.append_sum(1.0F);
    attributes.set_post_ops(sum);
    const dnnl::reorder::primitive_desc add(engine, from, engine, to, attributes);
    entry.accumulating = dnnl::reorder(add);
    if (add.scratchpad_desc().get_size() > scratch) scratch_desc = add.scratchpad_desc();
    scratch = std::max(scratch, add.scratchpad_desc().get_size());
  }
  entry.packed = Empty(packed);
  entry.plain = Empty(plain);
  entry.reorder_scratch = Empty(scratch_desc);
  // A gradient in torch's layout still goes through the workspace: the primitive cannot add.
  entry.packs = gradient || packed != plain;
  entry.packed_bytes = entry.packs ? Align(packed.get_size()) : 0;
  return scratch;
}

std::unique_ptr<ConvolutionCache::Entry> ConvolutionCache::Impl::Build(const ConvolutionSpec& spec,
                                                                       ConvolutionPass pass,
                                                                       int threads) {
  auto entry = std::make_unique<Entry>();
  entry->spec = spec;
  entry->pass = pass;
  entry->threads = threads;
  const Descriptors d(spec);
  const dnnl::convolution_forward::primitive_desc forward(
      {dnnl::prop_kind::forward_training, kAlgorithm, d.x, d.w, d.y, d.strides, d.padding,
       d.padding},
      d.scratch, engine);
  memory::desc packed, scratch;
  switch (pass) {
    case ConvolutionPass::kForward:
      entry->convolution = dnnl::convolution_forward(forward);
      packed = forward.weights_desc();
      scratch = forward.scratchpad_desc();
      break;
    case ConvolutionPass::kBackwardData: {
      const dnnl::convolution_backward_data::primitive_desc backward(
          {kAlgorithm, d.x, d.w, d.y, d.strides, d.padding, d.padding}, d.scratch, engine, forward);
      entry->convolution = dnnl::convolution_backward_data(backward);
      packed = backward.weights_desc();
      scratch = backward.scratchpad_desc();
      break;
    }
    case ConvolutionPass::kBackwardWeights: {
      const dnnl::convolution_backward_weights::primitive_desc backward(
          {kAlgorithm, d.x, d.dw, d.y, d.strides, d.padding, d.padding}, d.scratch, engine,
          forward);
      entry->convolution = dnnl::convolution_backward_weights(backward);
      packed = backward.diff_weights_desc();
      scratch = backward.scratchpad_desc();
      break;
    }
  }
  entry->x = Empty(d.x);
  entry->y = Empty(d.y);
  entry->scratch = Empty(scratch);
  const bool gradient = pass == ConvolutionPass::kBackwardWeights;
  const size_t reorder_scratch = MakeReorders(packed, gradient ? d.plain_dw : d.plain_w, *entry);
  entry->workspace_bytes =
      entry->packed_bytes + Align(std::max(scratch.get_size(), reorder_scratch));
  return entry;
}

absl::StatusOr<ConvolutionCache::Entry*> ConvolutionCache::Find(const ConvolutionSpec& spec,
                                                                ConvolutionPass pass) {
  const int threads = MaxThreads();
  for (const auto& entry : impl_->entries) {
    if (entry->spec == spec && entry->pass == pass && entry->threads == threads) return entry.get();
  }
  MP_RETURN_IF_ERROR(Check(spec, pass));
  try {
    impl_->entries.push_back(impl_->Build(spec, pass, threads));
  } catch (const dnnl::error& error) {
    return FromDnnl(error, spec, pass);
  }
  return impl_->entries.back().get();
}

absl::StatusOr<size_t> ConvolutionCache::WorkspaceBytes(const ConvolutionSpec& spec,
                                                        ConvolutionPass pass) {
  if (Widens(spec)) {
    MP_RETURN_IF_ERROR(Check(spec, pass));
    return WidenedConvolution(spec, *this).WorkspaceBytes(pass);
  }
  MP_ASSIGN_OR_RETURN(const Entry* entry, Find(spec, pass));
  return entry->workspace_bytes;
}

namespace {

// The weights as the convolution wants them: packed at the workspace's begin, or as they are.
template <typename Entry>
absl::StatusOr<const void*> Packed(Entry& entry, const void* w, char* workspace,
                                   dnnl_stream_t stream) {
  if (!entry.packs) return w;
  const std::array<Argument, 3> arguments = {
      {{DNNL_ARG_FROM, &entry.plain, w},
       {DNNL_ARG_TO, &entry.packed, workspace},
       {DNNL_ARG_SCRATCHPAD, &entry.reorder_scratch, workspace + entry.packed_bytes}}};
  MP_RETURN_IF_ERROR(Run(entry.reorder, arguments, stream));
  return workspace;
}

}  // namespace

absl::Status ConvolutionCache::Forward(const ConvolutionSpec& spec, const void* x, const void* w,
                                       void* y, void* workspace) {
  if (Widens(spec)) {
    MP_RETURN_IF_ERROR(Check(spec, ConvolutionPass::kForward));
    return WidenedConvolution(spec, *this)
        .Forward(static_cast<const bf16*>(x), static_cast<const bf16*>(w), static_cast<bf16*>(y),
                 workspace);
  }
  MP_ASSIGN_OR_RETURN(Entry * entry, Find(spec, ConvolutionPass::kForward));
  char* bytes = static_cast<char*>(workspace);
  MP_ASSIGN_OR_RETURN(const void* packed, Packed(*entry, w, bytes, impl_->stream.get()));
  const std::array<Argument, 4> arguments = {
      {{DNNL_ARG_SRC, &entry->x, x},
       {DNNL_ARG_WEIGHTS, &entry->packed, packed},
       {DNNL_ARG_DST, &entry->y, y},
       {DNNL_ARG_SCRATCHPAD, &entry->scratch, bytes + entry->packed_bytes}}};
  return Run(entry->convolution, arguments, impl_->stream.get());
}

absl::Status ConvolutionCache::BackwardData(const ConvolutionSpec& spec, const void* dy,
                                            const void* w, void* dx, void* workspace) {
  if (Widens(spec)) {
    MP_RETURN_IF_ERROR(Check(spec, ConvolutionPass::kBackwardData));
    return WidenedConvolution(spec, *this)
        .BackwardData(static_cast<const bf16*>(dy), static_cast<const bf16*>(w),
                      static_cast<bf16*>(dx), workspace);
  }
  MP_ASSIGN_OR_RETURN(Entry * entry, Find(spec, ConvolutionPass::kBackwardData));
  char* bytes = static_cast<char*>(workspace);
  MP_ASSIGN_OR_RETURN(const void* packed, Packed(*entry, w, bytes, impl_->stream.get()));
  const std::array<Argument, 4> arguments = {
      {{DNNL_ARG_DIFF_DST, &entry->y, dy},
       {DNNL_ARG_WEIGHTS, &entry->packed, packed},
       {DNNL_ARG_DIFF_SRC, &entry->x, dx},
       {DNNL_ARG_SCRATCHPAD, &entry->scratch, bytes + entry->packed_bytes}}};
  return Run(entry->convolution, arguments, impl_->stream.get());
}

absl::Status ConvolutionCache::BackwardWeights(const ConvolutionSpec& spec, const void* x,
                                               const void* dy, bool accumulate, float* dw,
                                               void* workspace) {
  if (Widens(spec)) {
    MP_RETURN_IF_ERROR(Check(spec, ConvolutionPass::kBackwardWeights));
    return WidenedConvolution(spec, *this)
        .BackwardWeights(static_cast<const bf16*>(x), static_cast<const bf16*>(dy), accumulate, dw,
                         workspace);
  }
  MP_ASSIGN_OR_RETURN(Entry * entry, Find(spec, ConvolutionPass::kBackwardWeights));
  char* bytes = static_cast<char*>(workspace);
  char* scratch = bytes + entry->packed_bytes;
  const std::array<Argument, 4> arguments = {{{DNNL_ARG_SRC, &entry->x, x},
                                              {DNNL_ARG_DIFF_DST, &entry->y, dy},
                                              {DNNL_ARG_DIFF_WEIGHTS, &entry->packed, bytes},
                                              {DNNL_ARG_SCRATCHPAD, &entry->scratch, scratch}}};
  MP_RETURN_IF_ERROR(Run(entry->convolution, arguments, impl_->stream.get()));
  const std::array<Argument, 3> out = {{{DNNL_ARG_FROM, &entry->packed, bytes},
                                        {DNNL_ARG_TO, &entry->plain, dw},
                                        {DNNL_ARG_SCRATCHPAD, &entry->reorder_scratch, scratch}}};
  return Run(accumulate ? entry->accumulating : entry->reorder, out, impl_->stream.get());
}

}  // namespace milepost::kernels
