// An expert's rows and weights meet in one launch for all experts. Whose weights lie where is a
// table on the device.
#include <cstdint>
#include <utility>
#include <vector>

#include "common/status_macros.h"
#include "engine/ops/experts/experts_binding.h"
#include "engine/ops/experts/experts_cuda_kernel.h"
#include "engine/ops/experts/grouped_product_cuda_kernel.h"
#include "engine/runtime/cpu/linear_layer.h"
#include "engine/runtime/gpu/backend/cuda_op.h"

namespace milepost::ops::gpu {
namespace {

namespace cuda = kernels::cuda;
using graph::OpKind;
using runtime::BoundOp;
using runtime::CudaBinding;
using runtime::LinearLayer;
using runtime::StepContext;

template <typename T>
absl::StatusOr<BoundOp> RouteExpertsOf(const CudaBinding& b) {
  const kernels::ExpertRouting routing = RoutingOf(b);
  MP_RETURN_IF_ERROR(b.RequireWorkspace(cuda::RoutingWorkspace(routing).Bytes()));
  const cuda::RoutedTo to = {.weights = b.Output<float>(0),
                             .chosen = b.Output<int32_t>(1),
                             .slots = b.Output<int32_t>(2),
                             .offsets = b.Output<int32_t>(3),
                             .before = b.Input<float>(1),
                             .counts = b.Output<float>(4)};
  const int64_t* last = b.attributes().rows_apart ? &b.control()->row : nullptr;
  return [routing, last, logits = b.Input<T>(0), to, workspace = b.Workspace(),
          stream = b.stream()](const StepContext&) {
    return cuda::RouteExperts<T>(routing, last, logits, to, workspace, stream);
  };
}

template <typename T>
absl::StatusOr<BoundOp> RouteExpertsBackwardOf(const CudaBinding& b) {
  return [routing = RoutingOf(b), logits = b.Input<T>(0), weights = b.Input<float>(1),
          chosen = b.Input<int32_t>(2), dweights = b.Input<float>(3), slopes = SlopesOf(b),
          dlogits = b.Output<T>(0), stream = b.stream()](const StepContext&) {
    return cuda::RouteExpertsBackward<T>(routing, logits, weights, chosen, dweights, slopes,
                                         dlogits, stream);
  };
}

template <typename T>
absl::StatusOr<BoundOp> DispatchRowsOf(const CudaBinding& b) {
  return [shape = RoutedRowsOf(b, b.InputShape(0)), x = b.Input<T>(0), slots = b.Input<int32_t>(1),
          y = b.Output<T>(0), stream = b.stream()](const StepContext&) {
    return cuda::DispatchRows<T>(shape, x, slots, y, stream);
  };
}

template <typename T>
absl::StatusOr<BoundOp> DispatchRowsBackwardOf(const CudaBinding& b) {
  return
      [shape = RoutedRowsOf(b, b.OutputShape(0)), dy = b.Input<T>(0), slots = b.Input<int32_t>(1),
       dx = b.Output<T>(0), stream = b.stream()](const StepContext&) {
        return cuda::CombineRows<T>(shape, dy, nullptr, slots, dx, stream);
      };
}

template <typename T>
absl::StatusOr<BoundOp> CombineRowsOf(const CudaBinding& b) {
  return
      [shape = RoutedRowsOf(b, b.OutputShape(0)), y = b.Input<T>(0), weights = b.Input<float>(1),
       slots = b.Input<int32_t>(2), out = b.Output<T>(0), stream = b.stream()](const StepContext&) {
        return cuda::CombineRows<T>(shape, y, weights, slots, out, stream);
      };
}

template <typename T>
absl::StatusOr<BoundOp> CombineRowsBackwardOf(const CudaBinding& b) {
  return [shape = RoutedRowsOf(b, b.InputShape(3)), y = b.Input<T>(0), weights = b.Input<float>(1),
          slots = b.Input<int32_t>(2), dout = b.Input<T>(3), dy = b.Output<T>(0),
          dweights = b.Output<float>(1), stream = b.stream()](const StepContext&) {
    return cuda::CombineRowsBackward<T>(shape, y, weights, slots, dout, dy, dweights, stream);
  };
}

absl::StatusOr<BoundOp> BindExpertBalance(const CudaBinding& b) {
  const graph::ExpertsAttributes& experts = b.attributes().experts;
  const cuda::BalanceOf balance = {.targets = b.Input<int32_t>(0),
                                   .rows = b.InputShape(0)[0],
                                   .counts = b.Input<float>(1),
                                   .experts = experts.count,
                                   .balance_loss = experts.balance_loss,
                                   .z_loss = experts.z_loss,
                                   .factor = &b.control()->gradient_factors[0]};
  return [balance, slopes = b.Output<float>(0), stream = b.stream()](const StepContext&) {
    return cuda::ExpertBalance(balance, slopes, stream);
  };
}

// ---- the products ----

// A product of all experts, and the first of the weights that it takes of each: where an expert's
// parts follow each other in memory they are one product, if it is so of every expert.
struct ExpertsLayers {
  explicit ExpertsLayers(const CudaBinding& b) {
    bool alike = true;
    for (int64_t e = 0; e < b.attributes().experts.count; ++e) {
      layers.emplace_back(b.program, OfExpert(b.planned.op, e), /*with_biases=*/false);
      alike = alike && layers[e].runs.size() == layers[0].runs.size();
      for (size_t i = 0; alike && i < layers[0].runs.size(); ++i) {
        alike = layers[e].runs[i].first == layers[0].runs[i].first;
      }
    }
    runs = alike ? layers[0].runs : EachPart(b);
  }

  // What is at the beginning of a run, for each expert.
  template <typename P>
  std::vector<P*> Addresses(const CudaBinding& b, const LinearLayer::Run& run) const {
    std::vector<P*> addresses;
    for (const LinearLayer& layer : layers) {
      addresses.push_back(reinterpret_cast<P*>(b.ValueAt(layer.weights[run.first])));
    }
    return addresses;
  }

  std::vector<LinearLayer> layers;
  std::vector<LinearLayer::Run> runs;

 private:
  std::vector<LinearLayer::Run> EachPart(const CudaBinding& b) const {
    std::vector<LinearLayer::Run> parts;
    int64_t column = 0;
    for (size_t i = 0; i < layers[0].weights.size(); ++i) {
      const int64_t columns = b.ValueOf(layers[0].weights[i]).shape[0];
      parts.push_back({.first = i, .column = column, .columns = columns});
      column += columns;
    }
    return parts;
  }
};

template <typename P>
bool Aligned(const std::vector<P*>& addresses) {
  for (const P* address : addresses) {
    if (reinterpret_cast<uintptr_t>(address) % 16 != 0) return false;
  }
  return true;
}

// Whether all that a run's product touches is a multiple of 16 bytes: of its layer's numbers.
template <typename T, typename P>
bool InPacks(const LinearLayer& layer, const LinearLayer::Run& run,
             const std::vector<P*>& addresses) {
  constexpr int64_t kNumbers = 16 / sizeof(T);
  return layer.in % kNumbers == 0 && layer.out % kNumbers == 0 && run.column % kNumbers == 0 &&
         run.columns % kNumbers == 0 && Aligned(addresses);
}

cuda::ExpertSegments SegmentsOf(const CudaBinding& b, int offsets, int64_t rows) {
  return {.offsets = b.Input<int32_t>(offsets),
          .segments = b.InputShape(offsets)[0] - 1,
          .experts = b.attributes().experts.count,
          .rows = rows};
}

// kExpertLinear and kExpertLinearBackwardInput.
template <typename T>
absl::StatusOr<BoundOp> ExpertLinearOf(const CudaBinding& b) {
  const bool forward = b.planned.op.kind == OpKind::kExpertLinear;
  const ExpertsLayers all(b);
  const LinearLayer& layer = all.layers[0];
  std::vector<cuda::GroupedRows<T>> products;
  for (const LinearLayer::Run& run : all.runs) {
    const auto addresses = all.Addresses<const T>(b, run);
    MP_ASSIGN_OR_RETURN(const auto weights, b.services.tables->Upload(addresses));
    products.push_back({.segments = SegmentsOf(b, 1, layer.rows),
                        .x = b.Input<T>(0) + (forward ? 0 : run.column),
                        .x_stride = forward ? layer.in : layer.out,
                        .depth = forward ? layer.in : run.columns,
                        .weights = weights,
                        .y = b.Output<T>(0) + (forward ? run.column : 0),
                        .y_stride = forward ? layer.out : layer.in,
                        .columns = forward ? run.columns : layer.in,
                        .add = !forward && run.first > 0,
                        .packs = InPacks<T>(layer, run, addresses)});
  }
  return [products = std::move(products), forward,
          stream = b.stream()](const StepContext&) -> absl::Status {
    for (const cuda::GroupedRows<T>& product : products) {
      MP_RETURN_IF_ERROR(forward ? cuda::GroupedForward(product, stream)
                                 : cuda::GroupedBackwardInput(product, stream));
    }
    return absl::OkStatus();
  };
}

template <typename T>
absl::StatusOr<BoundOp> ExpertLinearBackwardWeightOf(const CudaBinding& b) {
  MP_RETURN_IF_ERROR(runtime::CheckOneMode(b.planned.op));
  const ExpertsLayers all(b);
  const LinearLayer& layer = all.layers[0];
  std::vector<cuda::GroupedWeights<T>> products;
  for (const LinearLayer::Run& run : all.runs) {
    const auto addresses = all.Addresses<float>(b, run);
    MP_ASSIGN_OR_RETURN(const auto gradients, b.services.tables->Upload(addresses));
    products.push_back({.segments = SegmentsOf(b, 2, layer.rows),
                        .dy = b.Input<T>(1) + run.column,
                        .dy_stride = layer.out,
                        .height = run.columns,
                        .x = b.Input<T>(0),
                        .x_stride = layer.in,
                        .width = layer.in,
                        .gradients = gradients,
                        .packs = InPacks<T>(layer, run, addresses)});
  }
  return [products = std::move(products), accumulation = b.OutputAccumulation(0),
          stream = b.stream()](const StepContext& context) -> absl::Status {
    for (cuda::GroupedWeights<T> product : products) {
      product.add = accumulation.At(context);
      MP_RETURN_IF_ERROR(cuda::GroupedBackwardWeight(product, stream));
    }
    return absl::OkStatus();
  };
}

}  // namespace

constinit const CudaOp kRouteExperts = {.bind = MP_BY_DTYPE(RouteExpertsOf)};
constinit const CudaOp kRouteExpertsBackward = {.bind = MP_BY_DTYPE(RouteExpertsBackwardOf)};
constinit const CudaOp kDispatchRows = {.bind = MP_BY_DTYPE(DispatchRowsOf)};
constinit const CudaOp kDispatchRowsBackward = {.bind = MP_BY_DTYPE(DispatchRowsBackwardOf)};
constinit const CudaOp kExpertLinear = {.bind = MP_BY_DTYPE(ExpertLinearOf)};
constinit const CudaOp kExpertLinearBackwardInput = {.bind = MP_BY_DTYPE(ExpertLinearOf)};
constinit const CudaOp kExpertLinearBackwardWeight = {
    .bind = MP_BY_DTYPE(ExpertLinearBackwardWeightOf)};
constinit const CudaOp kCombineRows = {.bind = MP_BY_DTYPE(CombineRowsOf)};
constinit const CudaOp kCombineRowsBackward = {.bind = MP_BY_DTYPE(CombineRowsBackwardOf)};
constinit const CudaOp kExpertBalance = {.bind = BindExpertBalance};

}  // namespace milepost::ops::gpu
