#include "engine/kernels/cpu/matmul.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <oneapi/dnnl/dnnl.hpp>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "common/status_macros.h"
#include "engine/kernels/cpu/elementwise.h"
#include "engine/kernels/cpu/matmul_widened.h"
#include "engine/kernels/cpu/parallel.h"
#include "engine/kernels/cpu/vector_product.h"

namespace milepost::kernels {
namespace {

using dnnl::memory;

memory::data_type OperandType(DType type) {
  return type == DType::kF32 ? memory::data_type::f32 : memory::data_type::bf16;
}

// oneDNN picks poor blocks for a transposed A with many rows that are no multiple of its tile (the
// gradient of an odd-sized vocabulary: 340 against 490 GFLOP/s), so those rows are split off.
constexpr int64_t kSplitAbove = 1024;
constexpr int64_t kSplitMultiple = 128;

// Nor does it share such a product well between threads (two: 750 against 880 GFLOP/s), so every
// thread gets rows of its own and a product for one thread, where there are rows enough.
constexpr int64_t kShareRows = 128;

// It also loses a fifth of its rate on a long inner dimension (in bf16 only a very long one, such
// as a large vocabulary's), which is therefore cut into pieces that accumulate in fp32.
constexpr int64_t LongInner(DType type) { return type == DType::kF32 ? 2048 : 16384; }
constexpr int64_t kInnerBytes = 4096;  // of a row of A in one piece

// Elements from one stored row to the next.
int64_t ARow(const MatmulSpec& s) {
  if (s.a_row > 0) return s.a_row;
  return s.transpose_a ? s.m : s.k;
}
int64_t BRow(const MatmulSpec& s) {
  if (s.b_row > 0) return s.b_row;
  return s.transpose_b ? s.k : s.n;
}
int64_t CRow(const MatmulSpec& s) { return s.c_row > 0 ? s.c_row : s.n; }

std::string Describe(const MatmulSpec& s) {
  return absl::StrFormat("matmul m=%d n=%d k=%d a_row=%d b_row=%d c_row=%d %s -> %s%s%s%s%s%s", s.m,
                         s.n, s.k, ARow(s), BRow(s), CRow(s), Name(s.a), Name(s.c),
                         s.transpose_a ? " transpose_a" : "", s.transpose_b ? " transpose_b" : "",
                         s.accumulate ? " accumulate" : "", s.bias ? " bias" : "",
                         s.packed_b ? " packed_b" : "");
}

absl::Status Check(const MatmulSpec& s) {
  if (s.m <= 0 || s.n <= 0 || s.k <= 0) {
    return absl::InvalidArgumentError(Describe(s) + ": sizes must be positive");
  }
  if (ARow(s) < (s.transpose_a ? s.m : s.k) || BRow(s) < (s.transpose_b ? s.k : s.n) ||
      CRow(s) < s.n) {
    return absl::InvalidArgumentError(Describe(s) + ": rows overlap");
  }
  if (s.a != s.b) {
    return absl::InvalidArgumentError(Describe(s) + ": A and B must have the same type");
  }
  if (s.c != DType::kF32 && s.c != s.a) {
    return absl::InvalidArgumentError(Describe(s) + ": a 16-bit result needs factors of its type");
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

// oneDNN multiplies a transposed A with adjacent rows by blocks ("brg"), any other by its gemm.
// The gemm is faster where it adds to a C that no cache holds: with k = 128 one thread makes 768 x
// 768 with 200 GFLOP/s instead of 170, in bf16 with 440 instead of 250. It also writes wide results
// faster, 768 x 3072 with 255 GFLOP/s instead of 220, but narrow ones more slowly, 1024 x 256 with
// 225 instead of 254. It copies factors into memory of its own (docs/internals/numerics.md), so
// small results, which caches hold, are not its. With AMX nothing was measured.
bool PrefersGemm(const MatmulSpec& s, const std::string& chosen) {
  constexpr int64_t kWide = 512, kFewRows = 256, kLarge = 1 << 16;
  if (!s.transpose_a || s.packed_b || s.c != DType::kF32 || s.m * s.n < kLarge) return false;
  if (chosen.find("amx") != std::string::npos) return false;
  return s.n >= kWide || (s.accumulate && s.k <= kFewRows);
}

// The implementation whose name is `name`, else the first.
dnnl::matmul::primitive_desc WithImplementation(dnnl::matmul::primitive_desc first,
                                                const std::string& name) {
  dnnl::matmul::primitive_desc next = first;
  while (next.impl_info_str() != name) {
    if (!next.next_impl()) return first;
  }
  return next;
}

struct Slice {
  int64_t first;
  int64_t count;
};

// One primitive: some rows of op(A), some of the inner dimension.
struct Part {
  int64_t a_offset = 0;  // bytes
  int64_t b_offset = 0;
  int64_t c_offset = 0;
  bool has_bias = false;
  dnnl::matmul product;
  memory a, b, bias, c, scratch;
};

memory::desc PlainB(const MatmulSpec& s, int64_t inner) {
  return memory::desc({inner, s.n}, OperandType(s.b),
                      s.transpose_b ? memory::dims{1, BRow(s)} : memory::dims{BRow(s), 1});
}

// `c_type` is the type of what the part writes, which for a cut inner dimension is always fp32.
Part MakePart(const MatmulSpec& s, Slice rows, Slice inner, DType c_type,
              const dnnl::engine& engine) {
  Part part;
  const bool first = inner.first == 0;
  part.has_bias = s.bias && first;
  const memory::desc a({rows.count, inner.count}, OperandType(s.a),
                       s.transpose_a ? memory::dims{1, ARow(s)} : memory::dims{ARow(s), 1});
  const memory::desc b = s.packed_b
                             ? memory::desc({s.k, s.n}, OperandType(s.b), memory::format_tag::any)
                             : PlainB(s, inner.count);
  const memory::desc c({rows.count, s.n}, OperandType(c_type), memory::dims{CRow(s), 1});
  const memory::desc bias =
      part.has_bias ? memory::desc({1, s.n}, OperandType(s.bias_type), memory::dims{s.n, 1})
                    : memory::desc();
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  if (s.accumulate || !first) {
    dnnl::post_ops sum;
    sum.append_sum(1.0f);
    attributes.set_post_ops(sum);
  }
  const auto desc = part.has_bias ? dnnl::matmul::desc(a, b, bias, c) : dnnl::matmul::desc(a, b, c);
  dnnl::matmul::primitive_desc primitive(desc, attributes, engine);
  if (PrefersGemm(s, primitive.impl_info_str())) {
    primitive = WithImplementation(primitive, "gemm:jit");
  }
  const auto a_bytes = ByteSize(s.a);
  const auto c_bytes = ByteSize(c_type);
  part.a_offset = a_bytes * (s.transpose_a ? inner.first * ARow(s) + rows.first
                                           : rows.first * ARow(s) + inner.first);
  part.b_offset = a_bytes * inner.first * (s.transpose_b ? 1 : BRow(s));
  part.c_offset = c_bytes * rows.first * CRow(s);
  part.product = dnnl::matmul(primitive);
  part.a = memory(a, engine, nullptr);
  part.b = memory(primitive.weights_desc(), engine, nullptr);
  if (part.has_bias) part.bias = memory(bias, engine, nullptr);
  part.c = memory(c, engine, nullptr);
  part.scratch = memory(primitive.scratchpad_desc(), engine, nullptr);
  return part;
}

dnnl_status_t RunPart(const Part& part, const void* a, const void* b, const void* bias, void* c,
                      void* workspace, dnnl_stream_t stream) {
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
  if (status == dnnl_success) status = add(DNNL_ARG_WEIGHTS, part.b, b, part.b_offset);
  if (status == dnnl_success) status = add(DNNL_ARG_DST, part.c, c, part.c_offset);
  if (status == dnnl_success) status = add(DNNL_ARG_SCRATCHPAD, part.scratch, workspace, 0);
  if (status == dnnl_success && part.has_bias) status = add(DNNL_ARG_BIAS, part.bias, bias, 0);
  if (status != dnnl_success) return status;
  return dnnl_primitive_execute(part.product.get(), stream, count, args.data());
}

}  // namespace

struct MatmulCache::Entry {
  MatmulSpec spec;
  int threads = 0;
  std::vector<std::vector<Part>> shares;  // nearly always one part; several shares: one a thread
  size_t share_scratch_bytes = 0;
  size_t partial_bytes =
      0;               // fp32 sums before they are rounded to a bf16 C, at the workspace's start
  dnnl::reorder pack;  // packed_b only
  memory pack_from, pack_scratch;
  size_t packed_bytes = 0;
  size_t workspace_bytes = 0;
};

struct MatmulCache::Impl {
  dnnl::engine engine{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream{engine};
  std::vector<std::unique_ptr<Entry>> entries;  // tens of specs: a scan is the fastest lookup

  std::unique_ptr<Entry> Build(const MatmulSpec& spec, int threads);
  std::vector<Part> BuildShare(const MatmulSpec& spec, Slice rows, int64_t inner);
};

// Threads of the oneDNN primitives made while it lives.
class ThreadsOfPrimitives {
 public:
  explicit ThreadsOfPrimitives(int threads) : before_(omp_get_max_threads()) {
    omp_set_num_threads(threads);
  }
  ~ThreadsOfPrimitives() { omp_set_num_threads(before_); }

 private:
  const int before_;
};

MatmulCache::MatmulCache(bool bf16_products)
    : bf16_products_(bf16_products), impl_(std::make_unique<Impl>()) {}
MatmulCache::~MatmulCache() = default;

// Throws dnnl::error, like Build.
std::vector<Part> MatmulCache::Impl::BuildShare(const MatmulSpec& spec, Slice rows, int64_t inner) {
  int64_t whole = rows.count;
  if (spec.transpose_a && !spec.packed_b && whole > kSplitAbove) {
    whole = whole / kSplitMultiple * kSplitMultiple;
  }
  const DType c_type = inner < spec.k ? DType::kF32 : spec.c;
  std::vector<Part> parts;
  for (int64_t k = 0; k < spec.k; k += inner) {
    const Slice depth{k, std::min(inner, spec.k - k)};
    parts.push_back(MakePart(spec, {rows.first, whole}, depth, c_type, engine));
    if (whole == rows.count) continue;
    const Slice rest{rows.first + whole, rows.count - whole};
    parts.push_back(MakePart(spec, rest, depth, c_type, engine));
  }
  return parts;
}

std::unique_ptr<MatmulCache::Entry> MatmulCache::Impl::Build(const MatmulSpec& spec, int threads) {
  auto entry = std::make_unique<Entry>();
  entry->spec = spec;
  entry->threads = threads;
  const bool rounds = spec.c == DType::kBf16;
  int64_t inner = spec.k;
  const bool whole_rows = CRow(spec) == spec.n;  // partial sums are rounded all at once
  if (!spec.transpose_a && !spec.packed_b && spec.k > LongInner(spec.a) &&
      !(rounds && (spec.accumulate || !whole_rows))) {
    inner = kInnerBytes / ByteSize(spec.a);
    if (rounds) entry->partial_bytes = (spec.m * spec.n * sizeof(float) + 63) / 64 * 64;
  }
  const bool share = spec.transpose_a && !spec.packed_b && spec.m >= threads * kShareRows;
  const int64_t shares = share ? threads : 1;
  const ThreadsOfPrimitives scope(share ? 1 : threads);
  const auto begin = [&](int64_t i) {
    return i == shares ? spec.m : spec.m / kShareRows * i / shares * kShareRows;
  };
  for (int64_t i = 0; i < shares; ++i) {
    const Slice rows{begin(i), begin(i + 1) - begin(i)};
    entry->shares.push_back(BuildShare(spec, rows, inner));
    for (const Part& part : entry->shares.back()) {
      const size_t bytes = (part.scratch.get_desc().get_size() + 63) / 64 * 64;
      entry->share_scratch_bytes = std::max(entry->share_scratch_bytes, bytes);
    }
  }
  entry->workspace_bytes = entry->partial_bytes + shares * entry->share_scratch_bytes;
  if (spec.packed_b) {
    dnnl::primitive_attr attributes;
    attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
    const memory::desc packed = entry->shares[0][0].b.get_desc();
    const dnnl::reorder::primitive_desc primitive(engine, PlainB(spec, spec.k), engine, packed,
                                                  attributes);
    entry->pack = dnnl::reorder(primitive);
    entry->pack_from = memory(PlainB(spec, spec.k), engine, nullptr);
    entry->pack_scratch = memory(primitive.scratchpad_desc(), engine, nullptr);
    entry->packed_bytes = packed.get_size();
    entry->workspace_bytes =
        std::max(entry->workspace_bytes, primitive.scratchpad_desc().get_size());
  }
  return entry;
}

absl::Status MatmulCache::CheckSpec(const MatmulSpec& spec) const {
  MP_RETURN_IF_ERROR(Check(spec));
  if (!spec.packed_b || !Widens(spec.a)) return absl::OkStatus();
  return absl::UnimplementedError(Describe(spec) + ": factors that are widened are not packed");
}

absl::StatusOr<MatmulCache::Entry*> MatmulCache::Find(const MatmulSpec& spec) {
  const int threads = MaxThreads();
  for (const auto& entry : impl_->entries) {
    if (entry->spec == spec && entry->threads == threads) return entry.get();
  }
  MP_RETURN_IF_ERROR(CheckSpec(spec));
  try {
    impl_->entries.push_back(impl_->Build(spec, threads));
  } catch (const dnnl::error& error) {
    return FromDnnl(error, spec);
  }
  return impl_->entries.back().get();
}

// oneDNN packs all of B before it multiplies a single row, or widens it.
static bool IsVectorProduct(const MatmulSpec& s) {
  return (s.m == 1 || s.rows_alone) && !s.transpose_a && s.b_row == 0 && !s.accumulate &&
         !s.packed_b && (!s.bias || s.bias_type == s.a);
}

template <typename T>
static void RunVectorProduct(const MatmulSpec& s, const void* a, const void* b, const void* bias,
                             void* c, void* workspace) {
  const VectorProductArgs<T> args{.x = static_cast<const T*>(a),
                                  .b = static_cast<const T*>(b),
                                  .bias = s.bias ? static_cast<const T*>(bias) : nullptr,
                                  .n = s.n,
                                  .k = s.k,
                                  .transpose_b = s.transpose_b,
                                  .rows = s.m,
                                  .x_row = ARow(s),
                                  .y_row = CRow(s)};
  s.c == DType::kF32 ? VectorProduct(args, static_cast<float*>(c), workspace)
                     : VectorProduct(args, static_cast<T*>(c), workspace);
}

static MatmulSpec OneRowOf(MatmulSpec spec) {
  spec.m = 1;
  spec.rows_alone = false;
  return spec;
}

absl::StatusOr<size_t> MatmulCache::WorkspaceBytes(const MatmulSpec& spec) {
  if (IsVectorProduct(spec)) {
    MP_RETURN_IF_ERROR(CheckSpec(spec));
    return spec.c == DType::kF32 ? 0 : VectorProductWorkspaceBytes(spec.m, spec.n);
  }
  if (spec.rows_alone) return WorkspaceBytes(OneRowOf(spec));
  if (Widens(spec.a)) {
    MP_RETURN_IF_ERROR(CheckSpec(spec));
    return WidenedProduct(spec, MaxThreads()).WorkspaceBytes();
  }
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
  const memory& to = entry->shares[0][0].b;
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
  if (IsVectorProduct(spec)) {
    const auto run = spec.a == DType::kBf16  ? RunVectorProduct<bf16>
                     : spec.a == DType::kF16 ? RunVectorProduct<f16>
                                             : RunVectorProduct<float>;
    MP_RETURN_IF_ERROR(CheckSpec(spec));
    run(spec, a, b, bias, c, workspace);
    return absl::OkStatus();
  }
  if (spec.rows_alone) {
    const MatmulSpec one = OneRowOf(spec);
    for (int64_t row = 0; row < spec.m; ++row) {
      const auto* from = static_cast<const char*>(a) + row * ARow(spec) * ByteSize(spec.a);
      auto* to = static_cast<char*>(c) + row * CRow(spec) * ByteSize(spec.c);
      MP_RETURN_IF_ERROR(Execute(one, from, b, bias, to, workspace));
    }
    return absl::OkStatus();
  }
  if (Widens(spec.a)) {
    MP_RETURN_IF_ERROR(CheckSpec(spec));
    WidenedProduct(spec, MaxThreads()).Run(a, b, bias, c, workspace);
    return absl::OkStatus();
  }
  MP_ASSIGN_OR_RETURN(Entry * entry, Find(spec));
  char* scratch = static_cast<char*>(workspace) + entry->partial_bytes;
  void* target = entry->partial_bytes > 0 ? workspace : c;
  std::atomic<dnnl_status_t> failure{dnnl_success};
  ParallelTasks(static_cast<int64_t>(entry->shares.size()), [&](int64_t share, int) {
    char* own = scratch + share * entry->share_scratch_bytes;
    for (const Part& part : entry->shares[share]) {
      const dnnl_status_t status = RunPart(part, a, b, bias, target, own, impl_->stream.get());
      if (status != dnnl_success) failure.store(status, std::memory_order_relaxed);
    }
  });
  MP_RETURN_IF_ERROR(FromDnnl(failure.load(std::memory_order_relaxed), spec));
  if (entry->partial_bytes > 0) {
    CastToBf16(static_cast<const float*>(workspace), spec.m * spec.n, static_cast<bf16*>(c));
  }
  return absl::OkStatus();
}

}  // namespace milepost::kernels
