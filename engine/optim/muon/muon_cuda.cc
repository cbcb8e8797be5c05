#include <algorithm>
#include <utility>
#include <vector>

#include "common/status_macros.h"
#include "engine/kernels/cuda/elementwise.h"
#include "engine/kernels/cuda/flat.h"
#include "engine/optim/muon/muon_binding.h"
#include "engine/optim/muon/muon_cuda_kernel.h"
#include "engine/runtime/executor/group_ops.h"
#include "engine/runtime/gpu/backend/cuda_optimizer.h"
#include "engine/runtime/gpu/backend/device_call.h"

namespace milepost::optim::gpu {
namespace {

namespace cuda = kernels::cuda;
using runtime::BoundOp;
using runtime::BufferOf;
using runtime::ChunksOf;
using runtime::CudaBinding;
using runtime::GroupOf;
using runtime::SetParameters;
using runtime::ShardBegin;
using runtime::StartUpdate;
using runtime::StepContext;

template <typename T>
absl::StatusOr<BoundOp> MuonOf(const CudaBinding& b) {
  using Update = cuda::FlatUpdate<T>;
  MP_ASSIGN_OR_RETURN(Update update, StartUpdate<Update>(b, ChunksOf(b)));
  MP_RETURN_IF_ERROR(SetParameters<T>(b, update));
  update.g = BufferOf<float>(b, GroupOf(b).update_buffer) + ShardBegin(b);
  return
      [update, stream = b.stream()](const StepContext&) { return cuda::MuonApply(update, stream); };
}

cuda::SegmentFactors MuonFactors(const plan::FlatGroup& group, const runtime::Segment& segment,
                                 const StepContext& c) {
  const float rate = segment.LearningRate(c);
  return {.rate = rate * runtime::MuonFactor(group.parameters[segment.tensor]),
          .shrink = static_cast<float>(1 - double{rate} * segment.WeightDecay(c))};
}

}  // namespace

constinit const CudaOptimizer kMuon = {.bind = MP_BY_DTYPE(MuonOf), .factors = MuonFactors};

}  // namespace milepost::optim::gpu

namespace milepost::ops::gpu {
namespace {

namespace cuda = kernels::cuda;
using kernels::cuda::Product;
using runtime::BindCall;
using runtime::BoundOp;
using runtime::BufferOf;
using runtime::CudaBinding;
using runtime::GroupOf;
using runtime::MuonMatricesBefore;
using runtime::ShardBegin;
using runtime::ShardGradient;
using runtime::StepContext;

// One of a group's matrices.
struct MuonWork {
  explicit MuonWork(const kernels::MuonMatrix& of)
      : matrix(of), at(matrix), products(kernels::OrthogonalizeProducts(matrix)) {}
  bool tall() const { return matrix.rows > matrix.cols; }

  kernels::MuonMatrix matrix;
  kernels::cuda::OrthogonalizeScratch at;
  std::vector<kernels::MatmulSpec> products;  // of x with itself, of its square, of that with x
  float* x = nullptr;
  bool mine = false;
};

// muon_cpu_kernel.cc's iteration, in the same order.
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
    if (work.matrix.dtype == DType::kBf16) {
      return RunInBf16(work, sum, reinterpret_cast<bf16*>(next));
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

  absl::Status RunInBf16(const MuonWork& work, const double* sum, bf16* now) const {
    const int64_t n = work.matrix.elements();
    MP_RETURN_IF_ERROR(cuda::MuonNormalise(sum, n, work.x, now, stream_));
    for (int64_t step = 0; step < plan::kNewtonSchulzSteps; ++step) {
      MP_RETURN_IF_ERROR(IterateInBf16(work, now));
    }
    return cuda::Cast(now, n, work.x, stream_);
  }

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

absl::StatusOr<BoundOp> BindMuonMomentum(const CudaBinding& b) {
  const plan::FlatGroup& group = GroupOf(b);
  return [step = &b.control()->factors, control = b.memory.update, n = group.shard_elements,
          m = BufferOf<float>(b, group.state_buffers[0]), g = ShardGradient(b),
          u = BufferOf<float>(b, group.update_buffer) + ShardBegin(b),
          stream = b.stream()](const StepContext& c) {
    return cuda::MuonMomentum(step, c.nesterov, control, n, m, g, u, stream);
  };
}

std::vector<cuda::Product> OrthogonalizeProducts(const plan::FlatGroup& group) {
  std::vector<cuda::Product> products;
  for (const plan::GroupParameter& p : group.parameters) {
    for (const kernels::MatmulSpec& spec : kernels::OrthogonalizeProducts(MuonMatrixOf(group, p))) {
      const cuda::Product product = {.spec = spec};
      if (std::find(products.begin(), products.end(), product) == products.end()) {
        products.push_back(product);
      }
    }
  }
  return products;
}

std::vector<Product> MuonProducts(const plan::StepPlan& plan, const plan::Program&,
                                  const graph::Op& op) {
  return OrthogonalizeProducts(plan.groups[op.attributes.group]);
}

// Of the group's matrices, which the owners share out.
std::vector<MuonWork> WorksOf(const CudaBinding& b, const plan::FlatGroup& group) {
  const int64_t owners = b.plan.options.MatrixOwners();
  std::vector<MuonWork> works;
  int64_t index = MuonMatricesBefore(b);
  for (const plan::GroupParameter& p : group.parameters) {
    MuonWork& work = works.emplace_back(MuonMatrixOf(group, p));
    work.x = BufferOf<float>(b, group.update_buffer) + p.begin;
    work.mine = index++ % owners == b.rank % owners;
  }
  return works;
}

// A skipped step's updates are made orthogonal too: whatever they hold, nobody uses it.
absl::StatusOr<BoundOp> BindOrthogonalize(const CudaBinding& b) {
  const int64_t fixed = b.BytesBeforeScratch();
  MP_RETURN_IF_ERROR(b.RequireWorkspace(fixed + b.services.products->WorkspaceBytes()));
  return [orthogonalizer = Orthogonalizer(b, fixed), works = WorksOf(b, GroupOf(b)),
          stream = b.stream()](const StepContext&) -> absl::Status {
    for (const MuonWork& work : works) {
      MP_RETURN_IF_ERROR(work.mine ? orthogonalizer.Run(work)
                                   : cuda::Fill(work.x, work.matrix.elements(), 0, stream));
    }
    return absl::OkStatus();
  };
}

}  // namespace

constinit const CudaOp kMuonMomentum = {.bind = BindMuonMomentum};
constinit const CudaOp kGatherUpdates = {.bind = BindCall};
constinit const CudaOp kOrthogonalize = {.bind = BindOrthogonalize, .products = MuonProducts};
constinit const CudaOp kScatterUpdates = {.bind = BindCall};

}  // namespace milepost::ops::gpu
