// The optimizers on flat shards. What a step changes, and whether it updates at all, the kernels
// read from device memory (step_control.h, UpdateControl).
#include "engine/runtime/group_ops.h"

#include <algorithm>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "engine/kernels/cpu/muon.h"
#include "engine/kernels/cuda/adamw_8bit.h"
#include "engine/kernels/cuda/elementwise.h"
#include "engine/kernels/cuda/flat.h"
#include "engine/kernels/cuda/lamb_muon.h"
#include "engine/kernels/cuda/optimizer.h"
#include "engine/runtime/cuda_backend/cuda_ops.h"

namespace milepost::runtime {
namespace {

namespace cuda = kernels::cuda;
using kernels::bf16;
using plan::Optimizer;

// The shard's segments, cut into chunks: chunk.segment is one's place among them.
struct Chunks {
  std::vector<Segment> segments;
  std::vector<cuda::FlatChunk> chunks;
};
Chunks ChunksOf(const OpBinding& b) {
  Chunks out = {.segments = SegmentsOf(GroupOf(b), ShardBegin(b), GroupOf(b).shard_elements)};
  std::vector<cuda::FlatRange> ranges;
  for (const Segment& s : out.segments) ranges.push_back({s.begin, s.end});
  out.chunks = cuda::MakeChunks(ranges);
  return out;
}

// Everything but where the parameters, their gradients and states lie. Update: FlatUpdate or
// QuantizedUpdate.
template <typename Update>
absl::StatusOr<Update> StartUpdate(const CudaBinding& b, const Chunks& chunks) {
  Update update;
  MP_ASSIGN_OR_RETURN(update.chunks, b.services.tables->Upload(chunks.chunks));
  update.chunk_count = static_cast<int64_t>(chunks.chunks.size());
  const int64_t offset = ControlLayoutOf(b.plan, b.rank).factors[b.attributes().group];
  update.factors = reinterpret_cast<const cuda::SegmentFactors*>(b.memory.control + offset);
  update.step = &b.control()->factors;
  update.control = b.memory.update;
  return update;
}

// In fp32, and where the parameter is another, that too.
template <typename T, typename Update>
absl::Status SetMaster(const CudaBinding& b, Update& update) {
  const plan::FlatGroup& group = GroupOf(b);
  update.p = ShardMaster(b);
  if (group.master_buffer == plan::kNoBuffer) {
    if constexpr (std::is_same_v<T, float>) return absl::OkStatus();
    return absl::InternalError("a 16-bit group has no master buffer");
  }
  update.copy = ShardParameters<T>(b);
  return absl::OkStatus();
}

// At fp32, and where masters are in bf16 (update.p's type), the parameter is its own master.
template <typename T, typename Update>
absl::Status SetParameters(const CudaBinding& b, Update& update) {
  if constexpr (std::is_same_v<decltype(update.p), bf16*>) {
    update.p = ShardParameters<bf16>(b);
    return absl::OkStatus();
  } else {
    return SetMaster<T>(b, update);
  }
}

template <typename T, typename S, typename P, typename G>
absl::StatusOr<BoundOp> FlatOptimizerOf(const CudaBinding& b) {
  const plan::FlatGroup& group = GroupOf(b);
  using Update = cuda::FlatUpdate<T, S, P, G>;
  MP_ASSIGN_OR_RETURN(Update update, StartUpdate<Update>(b, ChunksOf(b)));
  MP_RETURN_IF_ERROR(SetParameters<T>(b, update));
  update.m = BufferOf<S>(b, group.m_buffer);
  update.v = BufferOf<S>(b, group.v_buffer);
  update.g = ShardGradient<G>(b);
  switch (group.optimizer) {
    case Optimizer::kAdamW:
      return
          [update, stream = b.stream()](const StepContext&) { return cuda::AdamW(update, stream); };
    case Optimizer::kSgd:
      return
          [update, stream = b.stream()](const StepContext&) { return cuda::Sgd(update, stream); };
    case Optimizer::kLion:
      return
          [update, stream = b.stream()](const StepContext&) { return cuda::Lion(update, stream); };
    default:
      return absl::InternalError(absl::StrCat(plan::Name(group.optimizer), " has no states in ",
                                              graph::Name(group.state_dtype)));
  }
}

template <typename T>
absl::StatusOr<BoundOp> LambOf(const CudaBinding& b) {
  using Update = cuda::FlatUpdate<T>;
  MP_ASSIGN_OR_RETURN(Update update, StartUpdate<Update>(b, ChunksOf(b)));
  MP_RETURN_IF_ERROR(SetParameters<T>(b, update));
  update.m = BufferOf<float>(b, GroupOf(b).m_buffer);
  update.v = BufferOf<float>(b, GroupOf(b).v_buffer);
  return [update, norms = NormsOf(b), stream = b.stream()](const StepContext&) {
    return cuda::LambApply(update, norms, stream);
  };
}

template <typename T>
absl::StatusOr<BoundOp> MuonOf(const CudaBinding& b) {
  using Update = cuda::FlatUpdate<T>;
  MP_ASSIGN_OR_RETURN(Update update, StartUpdate<Update>(b, ChunksOf(b)));
  MP_RETURN_IF_ERROR(SetParameters<T>(b, update));
  update.g = BufferOf<float>(b, GroupOf(b).update_buffer) + ShardBegin(b);
  return
      [update, stream = b.stream()](const StepContext&) { return cuda::MuonApply(update, stream); };
}

template <typename T, typename P, typename G>
absl::StatusOr<BoundOp> AdamW8BitOf(const CudaBinding& b) {
  const plan::FlatGroup& group = GroupOf(b);
  using Update = cuda::QuantizedUpdate<T, P, G>;
  MP_ASSIGN_OR_RETURN(Update update, StartUpdate<Update>(b, ChunksOf(b)));
  MP_RETURN_IF_ERROR(SetParameters<T>(b, update));
  update.state = {BufferOf<uint8_t>(b, group.m_buffer), BufferOf<float>(b, group.m_scale_buffer),
                  BufferOf<uint8_t>(b, group.v_buffer), BufferOf<float>(b, group.v_scale_buffer)};
  update.g = ShardGradient<G>(b);
  return
      [update, stream = b.stream()](const StepContext&) { return cuda::AdamW8Bit(update, stream); };
}

// P: the masters' type, G: the gradient's.
template <typename T, typename P, typename G>
absl::StatusOr<BoundOp> ElementwiseOf(const CudaBinding& b) {
  const plan::FlatGroup& group = GroupOf(b);
  if (group.optimizer == Optimizer::kAdamW8Bit) return AdamW8BitOf<T, P, G>(b);
  return group.state_dtype == graph::DType::kBF16 ? FlatOptimizerOf<T, bf16, P, G>(b)
                                                  : FlatOptimizerOf<T, float, P, G>(b);
}

template <typename T>
absl::StatusOr<BoundOp> OptimizerOf(const CudaBinding& b) {
  const plan::FlatGroup& group = GroupOf(b);
  const bool masters = group.master_dtype == graph::DType::kF32;
  const bool rounds = b.plan.options.RoundsGradients();
  if (group.optimizer == Optimizer::kLamb) return LambOf<T>(b);
  if (group.optimizer == Optimizer::kMuon) return MuonOf<T>(b);
  if (masters && !rounds) return ElementwiseOf<T, float, float>(b);
  if constexpr (std::is_same_v<T, bf16>) {
    if (masters) return ElementwiseOf<T, float, bf16>(b);
    return rounds ? ElementwiseOf<T, bf16, bf16>(b) : ElementwiseOf<T, bf16, float>(b);
  }
  return absl::InternalError("masters or gradients in bf16, but parameters in another type");
}

kernels::MuonMatrix MatrixOf(const plan::FlatGroup& group, const plan::GroupParameter& p) {
  const bool rounds = group.product_dtype == graph::DType::kBF16;
  return {p.shape[0], p.shape[1], rounds ? kernels::DType::kBf16 : kernels::DType::kF32};
}

// Where a matrix's scratch lies; the products' own comes behind.
struct MuonScratch {
  explicit MuonScratch(const kernels::MuonMatrix& matrix) {
    const int64_t side = std::min(matrix.rows, matrix.cols);
    const auto element = static_cast<int64_t>(kernels::ByteSize(matrix.dtype));
    const int64_t square = AlignScratch(side * side * element);
    b = square;
    next = 2 * square;
    // The norm's sums and the next x take turns.
    squares = next + AlignScratch(std::max(matrix.elements() * element,
                                           cuda::SumSquaresWorkspaceBytes(matrix.elements())));
    sum = squares + (element == 4 ? 0 : AlignScratch(side * side * 4));
    bytes = sum + AlignScratch(sizeof(double));
  }
  int64_t b, next, squares, sum, bytes;  // `squares`: in bf16, of A before it is rounded
};

// One of a group's matrices.
struct MuonWork {
  explicit MuonWork(const kernels::MuonMatrix& of)
      : matrix(of), at(matrix), products(kernels::OrthogonalizeProducts(matrix)) {}
  bool tall() const { return matrix.rows > matrix.cols; }

  kernels::MuonMatrix matrix;
  MuonScratch at;
  std::vector<kernels::MatmulSpec> products;  // of x with itself, of its square, of that with x
  float* x = nullptr;
  bool mine = false;
};

// kernels/cpu/muon.cc's iteration, in the same order.
class Orthogonalizer {
 public:
  Orthogonalizer(const CudaBinding& b, int64_t fixed_bytes)
      : products_(b.services.products),
        workspace_(b.Workspace()),
        scratch_(b.Workspace() + fixed_bytes),
        stream_(b.stream()) {}

  absl::Status Run(const MuonWork& work) const {
    const int64_t n = work.matrix.elements();
    auto* next = reinterpret_cast<float*>(workspace_ + work.at.next);
    auto* sum = reinterpret_cast<double*>(workspace_ + work.at.sum);
    MP_RETURN_IF_ERROR(cuda::SumSquares(work.x, n, sum, next, stream_));
    if (work.matrix.dtype == kernels::DType::kBf16) {
      auto* now = reinterpret_cast<bf16*>(next);
      MP_RETURN_IF_ERROR(cuda::MuonNormalise(sum, n, work.x, now, stream_));
      for (int64_t step = 0; step < plan::kNewtonSchulzSteps; ++step) {
        MP_RETURN_IF_ERROR(IterateInBf16(work, now));
      }
      return cuda::Cast(now, n, work.x, stream_);
    }
    MP_RETURN_IF_ERROR(cuda::MuonNormalise(sum, n, work.x, stream_));
    float* now = work.x;
    for (int64_t step = 0; step < plan::kNewtonSchulzSteps; ++step) {
      MP_RETURN_IF_ERROR(Iterate(work, now, next));
      std::swap(now, next);
    }
    return now == work.x ? absl::OkStatus() : cuda::Cast(now, n, work.x, stream_);
  }

 private:
  static constexpr float kA = 3.4445f;
  static constexpr float kB = -4.7750f;
  static constexpr float kC = 2.0315f;

  // next = a x + (b A + c A A) x with A = x x^T, of the smaller side.
  absl::Status Iterate(const MuonWork& work, const float* x, float* next) const {
    const int64_t side = std::min(work.matrix.rows, work.matrix.cols);
    auto* a = reinterpret_cast<float*>(workspace_);
    auto* b = reinterpret_cast<float*>(workspace_ + work.at.b);
    MP_RETURN_IF_ERROR(Multiply(work.products[0], x, x, a));
    MP_RETURN_IF_ERROR(Multiply(work.products[1], a, a, b));
    MP_RETURN_IF_ERROR(cuda::MuonMix(kB, kC, side * side, a, b, stream_));
    MP_RETURN_IF_ERROR(cuda::ScaleTo(x, work.matrix.elements(), kA, next, stream_));
    return Multiply(work.products[2], work.tall() ? x : b, work.tall() ? b : x, next);
  }

  // x = the rounded a x + (b A + c A A) x, of rounded factors; sums with x lie in the update's own
  // place.
  absl::Status IterateInBf16(const MuonWork& work, bf16* x) const {
    const int64_t side = std::min(work.matrix.rows, work.matrix.cols);
    auto* a = reinterpret_cast<bf16*>(workspace_);
    auto* b = reinterpret_cast<bf16*>(workspace_ + work.at.b);
    auto* sums = reinterpret_cast<float*>(workspace_ + work.at.squares);
    MP_RETURN_IF_ERROR(Multiply(work.products[0], x, x, sums));
    MP_RETURN_IF_ERROR(cuda::Cast(sums, side * side, a, stream_));
    MP_RETURN_IF_ERROR(Multiply(work.products[1], a, a, sums));
    MP_RETURN_IF_ERROR(cuda::MuonMix(kB, kC, side * side, a, sums, b, stream_));
    MP_RETURN_IF_ERROR(
        Multiply(work.products[2], work.tall() ? x : b, work.tall() ? b : x, work.x));
    return cuda::MuonMix(kA, 1, work.matrix.elements(), x, work.x, x, stream_);
  }

  absl::Status Multiply(const kernels::MatmulSpec& spec, const void* a, const void* b,
                        float* c) const {
    return products_->Execute({.spec = spec}, {.a = a, .b = b, .c = c}, scratch_, stream_);
  }

  cuda::DeviceProducts* products_;
  char* workspace_;
  char* scratch_;
  cudaStream_t stream_;
};

}  // namespace

absl::StatusOr<BoundOp> BindOptimizer(const CudaBinding& b) {
  return MP_BIND_BY_DTYPE(OptimizerOf, b);
}

absl::StatusOr<BoundOp> BindUpdateNorms(const CudaBinding& b) {
  const plan::FlatGroup& group = GroupOf(b);
  const Chunks chunks = ChunksOf(b);
  MP_ASSIGN_OR_RETURN(cuda::FlatUpdate<float> update,
                      StartUpdate<cuda::FlatUpdate<float>>(b, chunks));
  MP_RETURN_IF_ERROR(b.RequireWorkspace(cuda::LambWorkspaceBytes(update.chunk_count)));
  update.p = ShardMaster(b);
  update.m = BufferOf<float>(b, group.m_buffer);
  update.v = BufferOf<float>(b, group.v_buffer);
  update.g = ShardGradient(b);
  // Of each tensor's chunks; of one that has no part in the shard none, and its sums are zeros.
  std::vector<cuda::FlatRange> ranges(group.parameters.size());
  for (size_t i = 0; i < chunks.chunks.size(); ++i) {
    cuda::FlatRange& range = ranges[chunks.segments[chunks.chunks[i].segment].tensor];
    if (range.end == 0) range.begin = static_cast<int64_t>(i);
    range.end = static_cast<int64_t>(i) + 1;
  }
  MP_ASSIGN_OR_RETURN(const cuda::FlatRange* table, b.services.tables->Upload(ranges));
  return [update, table, tensors = static_cast<int64_t>(ranges.size()), norms = NormsOf(b),
          workspace = b.Workspace(), stream = b.stream()](const StepContext&) {
    return cuda::LambMoments(update, table, tensors, norms, workspace, stream);
  };
}

absl::StatusOr<BoundOp> BindMuonMomentum(const CudaBinding& b) {
  const plan::FlatGroup& group = GroupOf(b);
  return [step = &b.control()->factors, control = b.memory.update, n = group.shard_elements,
          m = BufferOf<float>(b, group.m_buffer), g = ShardGradient(b),
          u = BufferOf<float>(b, group.update_buffer) + ShardBegin(b),
          stream = b.stream()](const StepContext& c) {
    return cuda::MuonMomentum(step, c.nesterov, control, n, m, g, u, stream);
  };
}

int64_t OrthogonalizeBytesBeforeScratch(const plan::FlatGroup& group) {
  int64_t most = 0;
  for (const plan::GroupParameter& p : group.parameters) {
    most = std::max(most, MuonScratch(MatrixOf(group, p)).bytes);
  }
  return most;
}

std::vector<cuda::Product> OrthogonalizeProducts(const plan::FlatGroup& group) {
  std::vector<cuda::Product> products;
  for (const plan::GroupParameter& p : group.parameters) {
    for (const kernels::MatmulSpec& spec : kernels::OrthogonalizeProducts(MatrixOf(group, p))) {
      const cuda::Product product = {.spec = spec};
      if (std::find(products.begin(), products.end(), product) == products.end()) {
        products.push_back(product);
      }
    }
  }
  return products;
}

// A skipped step's updates are made orthogonal too: whatever they hold, nobody uses it.
absl::StatusOr<BoundOp> BindOrthogonalize(const CudaBinding& b) {
  const plan::FlatGroup& group = GroupOf(b);
  const int64_t fixed = OrthogonalizeBytesBeforeScratch(group);
  MP_RETURN_IF_ERROR(b.RequireWorkspace(fixed + b.services.products->WorkspaceBytes()));
  const int64_t owners = b.plan.options.MatrixOwners();
  std::vector<MuonWork> works;
  int64_t index = MuonMatricesBefore(b);
  for (const plan::GroupParameter& p : group.parameters) {
    MuonWork& work = works.emplace_back(MatrixOf(group, p));
    work.x = BufferOf<float>(b, group.update_buffer) + p.begin;
    work.mine = index++ % owners == b.rank % owners;
  }
  return [orthogonalizer = Orthogonalizer(b, fixed), works = std::move(works),
          stream = b.stream()](const StepContext&) -> absl::Status {
    for (const MuonWork& work : works) {
      MP_RETURN_IF_ERROR(work.mine ? orthogonalizer.Run(work)
                                   : cuda::Fill(work.x, work.matrix.elements(), 0, stream));
    }
    return absl::OkStatus();
  };
}

}  // namespace milepost::runtime
