#include "engine/kernels/cpu/matmul.h"

#include <algorithm>
#include <array>
#include <oneapi/dnnl/dnnl.hpp>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "common/status_macros.h"
#include "engine/kernels/cpu/parallel.h"

namespace milepost::kernels {
namespace {

using dnnl::memory;

memory::data_type DnnlType(DType type) {
  return type == DType::kF32 ? memory::data_type::f32 : memory::data_type::bf16;
}

// oneDNN picks poor blocks for a transposed A with many rows that are no multiple of its tile (the
// gradient of an odd-sized vocabulary: 340 against 490 GFLOP/s), so those rows are split off.
constexpr int64_t kSplitAbove = 1024;
constexpr int64_t kSplitMultiple = 128;

std::string Describe(const MatmulSpec& s) {
  return absl::StrFormat("matmul m=%d n=%d k=%d %s -> %s%s%s%s%s%s", s.m, s.n, s.k,
                         s.a == DType::kF32 ? "f32" : "bf16", s.c == DType::kF32 ? "f32" : "bf16",
                         s.transpose_a ? " transpose_a" : "", s.transpose_b ? " transpose_b" : "",
                         s.accumulate ? " accumulate" : "", s.bias ? " bias" : "",
                         s.packed_b ? " packed_b" : "");
}

absl::Status Check(const MatmulSpec& s) {
  if (s.m <= 0 || s.n <= 0 || s.k <= 0) {
    return absl::InvalidArgumentError(Describe(s) + ": sizes must be positive");
  }
  if (s.a != s.b) {
    return absl::InvalidArgumentError(Describe(s) + ": A and B must have the same type");
  }
  if (s.c == DType::kBf16 && s.a == DType::kF32) {
    return absl::InvalidArgumentError(Describe(s) + ": a bf16 result needs bf16 factors");
  }
  return absl::OkStatus();
}

absl::Status FromDnnl(const dnnl::error& error, const MatmulSpec& spec) {
  const std::string text = absl::StrFormat("%s: oneDNN: %s", Describe(spec), error.what());
  if (error.status == dnnl_unimplemented) {
    return absl::UnimplementedError(text + " (not supported on this CPU; use precision fp32)");
  }
  if (error.status == dnnl_out_of_memory) return absl::ResourceExhaustedError(text);
  return absl::InternalError(text);
}

absl::Status FromDnnl(dnnl_status_t status, const MatmulSpec& spec) {
  if (status == dnnl_success) return absl::OkStatus();
  return absl::InternalError(absl::StrFormat("%s: oneDNN status %d", Describe(spec), status));
}

// The product of rows [first, first + rows) of op(A).
struct Part {
  int64_t a_offset = 0;  // bytes
  int64_t c_offset = 0;
  dnnl::matmul product;
  memory a, b, bias, c, scratch;
};

memory::desc PlainB(const MatmulSpec& s) {
  return memory::desc({s.k, s.n}, DnnlType(s.b),
                      s.transpose_b ? memory::dims{1, s.k} : memory::dims{s.n, 1});
}

Part MakePart(const MatmulSpec& s, int64_t first, int64_t rows, const dnnl::engine& engine) {
  const memory::desc a({rows, s.k}, DnnlType(s.a),
                       s.transpose_a ? memory::dims{1, s.m} : memory::dims{s.k, 1});
  const memory::desc b =
      s.packed_b ? memory::desc({s.k, s.n}, DnnlType(s.b), memory::format_tag::any) : PlainB(s);
  const memory::desc c({rows, s.n}, DnnlType(s.c), memory::dims{s.n, 1});
  const memory::desc bias =
      s.bias ? memory::desc({1, s.n}, DnnlType(s.bias_type), memory::dims{s.n, 1}) : memory::desc();
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  if (s.accumulate) {
    dnnl::post_ops sum;
    sum.append_sum(1.0f);
    attributes.set_post_ops(sum);
  }
  const auto desc = s.bias ? dnnl::matmul::desc(a, b, bias, c) : dnnl::matmul::desc(a, b, c);
  const dnnl::matmul::primitive_desc primitive(desc, attributes, engine);
  Part part;
  part.a_offset = first * static_cast<int64_t>(ByteSize(s.a)) * (s.transpose_a ? 1 : s.k);
  part.c_offset = first * static_cast<int64_t>(ByteSize(s.c)) * s.n;
  part.product = dnnl::matmul(primitive);
  part.a = memory(a, engine, nullptr);
  part.b = memory(primitive.weights_desc(), engine, nullptr);
  if (s.bias) part.bias = memory(bias, engine, nullptr);
  part.c = memory(c, engine, nullptr);
  part.scratch = memory(primitive.scratchpad_desc(), engine, nullptr);
  return part;
}

dnnl_status_t RunPart(const MatmulSpec& s, const Part& part, const void* a, const void* b,
                      const void* bias, void* c, void* workspace, dnnl_stream_t stream) {
  const auto set = [](const memory& target, const void* data, int64_t offset) {
    return dnnl_memory_set_data_handle_v2(
        target.get(), const_cast<char*>(static_cast<const char*>(data)) + offset, nullptr);
  };
  std::array<dnnl_exec_arg_t, 5> args;
  int count = 0;
  const auto add = [&](int index, const memory& target, const void* data, int64_t offset) {
    args[count++] = {index, target.get()};
    return set(target, data, offset);
  };
  dnnl_status_t status = add(DNNL_ARG_SRC, part.a, a, part.a_offset);
  if (status == dnnl_success) status = add(DNNL_ARG_WEIGHTS, part.b, b, 0);
  if (status == dnnl_success) status = add(DNNL_ARG_DST, part.c, c, part.c_offset);
  if (status == dnnl_success) status = add(DNNL_ARG_SCRATCHPAD, part.scratch, workspace, 0);
  if (status == dnnl_success && s.bias) status = add(DNNL_ARG_BIAS, part.bias, bias, 0);
  if (status != dnnl_success) return status;
  return dnnl_primitive_execute(part.product.get(), stream, count, args.data());
}

}  // namespace

struct MatmulCache::Entry {
  MatmulSpec spec;
  int threads = 0;
  std::vector<Part> parts;  // one, or two where the last rows are split off
  dnnl::reorder pack;       // packed_b only
  memory pack_from, pack_scratch;
  size_t packed_bytes = 0;
  size_t workspace_bytes = 0;
};

struct MatmulCache::Impl {
  dnnl::engine engine{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream{engine};
  std::vector<std::unique_ptr<Entry>> entries;  // tens of specs: a scan is the fastest lookup

  std::unique_ptr<Entry> Build(const MatmulSpec& spec, int threads);
};

MatmulCache::MatmulCache() : impl_(std::make_unique<Impl>()) {}
MatmulCache::~MatmulCache() = default;

// Throws dnnl::error.
std::unique_ptr<MatmulCache::Entry> MatmulCache::Impl::Build(const MatmulSpec& spec, int threads) {
  auto entry = std::make_unique<Entry>();
  entry->spec = spec;
  entry->threads = threads;
  int64_t whole = spec.m;
  if (spec.transpose_a && !spec.packed_b && spec.m > kSplitAbove) {
    whole = spec.m / kSplitMultiple * kSplitMultiple;
  }
  entry->parts.push_back(MakePart(spec, 0, whole, engine));
  if (whole < spec.m) entry->parts.push_back(MakePart(spec, whole, spec.m - whole, engine));
  for (const Part& part : entry->parts) {
    entry->workspace_bytes = std::max(entry->workspace_bytes, part.scratch.get_desc().get_size());
  }
  if (spec.packed_b) {
    dnnl::primitive_attr attributes;
    attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
    const memory::desc packed = entry->parts[0].b.get_desc();
    const dnnl::reorder::primitive_desc primitive(engine, PlainB(spec), engine, packed, attributes);
    entry->pack = dnnl::reorder(primitive);
    entry->pack_from = memory(PlainB(spec), engine, nullptr);
    entry->pack_scratch = memory(primitive.scratchpad_desc(), engine, nullptr);
    entry->packed_bytes = packed.get_size();
    entry->workspace_bytes =
        std::max(entry->workspace_bytes, primitive.scratchpad_desc().get_size());
  }
  return entry;
}

absl::StatusOr<MatmulCache::Entry*> MatmulCache::Find(const MatmulSpec& spec) {
  const int threads = MaxThreads();
  for (const auto& entry : impl_->entries) {
    if (entry->spec == spec && entry->threads == threads) return entry.get();
  }
  MP_RETURN_IF_ERROR(Check(spec));
  try {
    impl_->entries.push_back(impl_->Build(spec, threads));
  } catch (const dnnl::error& error) {
    return FromDnnl(error, spec);
  }
  return impl_->entries.back().get();
}

absl::StatusOr<size_t> MatmulCache::WorkspaceBytes(const MatmulSpec& spec) {
  MP_ASSIGN_OR_RETURN(const Entry* entry, Find(spec));
  return entry->workspace_bytes;
}

absl::StatusOr<size_t> MatmulCache::PackedWeightBytes(const MatmulSpec& spec) {
  if (!spec.packed_b) return absl::InvalidArgumentError(Describe(spec) + ": packed_b is not set");
  MP_ASSIGN_OR_RETURN(const Entry* entry, Find(spec));
  return entry->packed_bytes;
}

absl::Status MatmulCache::PackWeight(const MatmulSpec& spec, const void* b, void* packed,
                                     void* workspace) {
  if (!spec.packed_b) return absl::InvalidArgumentError(Describe(spec) + ": packed_b is not set");
  MP_ASSIGN_OR_RETURN(Entry * entry, Find(spec));
  const memory& to = entry->parts[0].b;
  try {
    entry->pack_from.set_data_handle(const_cast<void*>(b));
    to.set_data_handle(packed);
    entry->pack_scratch.set_data_handle(workspace);
  } catch (const dnnl::error& error) {
    return FromDnnl(error, spec);
  }
  const std::array<dnnl_exec_arg_t, 3> args = {{{DNNL_ARG_FROM, entry->pack_from.get()},
                                                {DNNL_ARG_TO, to.get()},
                                                {DNNL_ARG_SCRATCHPAD, entry->pack_scratch.get()}}};
  return FromDnnl(
      dnnl_primitive_execute(entry->pack.get(), impl_->stream.get(), args.size(), args.data()),
      spec);
}

absl::Status MatmulCache::Execute(const MatmulSpec& spec, const void* a, const void* b,
                                  const void* bias, void* c, void* workspace) {
  MP_ASSIGN_OR_RETURN(Entry * entry, Find(spec));
  for (const Part& part : entry->parts) {
    MP_RETURN_IF_ERROR(
        FromDnnl(RunPart(spec, part, a, b, bias, c, workspace, impl_->stream.get()), spec));
  }
  return absl::OkStatus();
}

}  // namespace milepost::kernels
