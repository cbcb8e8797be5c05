// Internal to the room: the operands of its ops by their places, for bindings of both devices.
#ifndef MILEPOST_ENGINE_OPS_DORA_DORA_BINDING_H_
#define MILEPOST_ENGINE_OPS_DORA_DORA_BINDING_H_

#include <array>
#include <cstdint>

#include "engine/graph/graph.h"
#include "engine/ops/dora/dora_contract.h"
#include "engine/ops/linear/linear_contract.h"
#include "engine/runtime/executor/op_binding.h"

namespace milepost::ops {

static_assert(kernels::kMostDoraParts == graph::kMostAdapters);

// kDora has its parts' operands from input 1 on, kDoraBackward from input 2 on.
template <typename Args, typename T>
Args DoraArgsOf(const runtime::OpBinding& b, int first_input, int per_part) {
  Args args;
  const graph::Shape& shape = b.InputShape(0);
  const graph::LoraAttributes& parts = b.attributes().lora;
  args.rows = shape[0];
  args.width = shape[1];
  args.parts = static_cast<int>(parts.adapters);
  for (int i = 0; i < args.parts; ++i) {
    const int at = first_input + i * per_part;
    kernels::DoraColumns<T>& part = args.part[i];
    part.column = parts.columns[i];
    part.end = i + 1 < args.parts ? parts.columns[i + 1] : args.width;
    part.norms = b.Input<float>(at);
    part.change = b.Input<T>(at + 1);
    if (per_part > 2) part.bias = b.Input<T>(at + 2);
  }
  return args;
}

template <typename T>
kernels::DoraForwardArgs<T> DoraForwardArgsOf(const runtime::OpBinding& b) {
  auto args = DoraArgsOf<kernels::DoraForwardArgs<T>, T>(b, 1, 3);
  args.v = b.Input<T>(0);
  args.y = b.Output<T>(0);
  return args;
}

// Whether each gradient is added to what is there depends on the micro-step.
template <typename T>
struct DoraBackwardBinding {
  explicit DoraBackwardBinding(const runtime::OpBinding& b)
      : args(DoraArgsOf<kernels::DoraBackwardArgs<T>, T>(b, 2, 2)) {
    args.dy = b.Input<T>(0);
    args.v = b.Input<T>(1);
    args.dv = b.Output<T>(0);
    for (int i = 0; i < args.parts; ++i) {
      args.gradients[i].change = b.Output<float>(1 + 2 * i);
      args.gradients[i].bias = b.Output<float>(2 + 2 * i);
      change[i] = b.OutputAccumulation(1 + 2 * i);
      bias[i] = b.OutputAccumulation(2 + 2 * i);
    }
  }
  kernels::DoraBackwardArgs<T> At(const runtime::StepContext& context) const {
    kernels::DoraBackwardArgs<T> now = args;
    for (int i = 0; i < now.parts; ++i) {
      now.gradients[i].adds_change = change[i].At(context);
      now.gradients[i].adds_bias = bias[i].At(context);
    }
    return now;
  }

  kernels::DoraBackwardArgs<T> args;
  std::array<runtime::OpBinding::Accumulation, graph::kMostAdapters> change, bias;
};

// kDoraNorms: W A^T [out, rank] and A A^T [rank, rank], in fp32.
struct DoraProducts {
  DoraProducts(const graph::Graph& graph, const graph::Op& op) {
    const graph::Value& weight = graph.values[op.inputs[0]];
    const graph::Shape& down = graph.values[op.inputs[1]].shape;
    const bool transposed = op.attributes.transposed;
    rank = down[0];
    in = down[1];
    out = weight.shape[transposed ? 0 : 1];
    with_weight = {.m = out,
                   .n = rank,
                   .k = in,
                   .transpose_a = !transposed,
                   .transpose_b = true,
                   .a = weight.dtype,
                   .b = weight.dtype};
    with_itself = with_weight;
    with_itself.m = rank;
    with_itself.transpose_a = false;
  }
  int64_t out, in, rank;
  kernels::MatmulSpec with_weight, with_itself;
};

// `workspace` begins with the products (DoraProductBytes).
template <typename T>
kernels::DoraNormsArgs<T> DoraNormsArgsOf(const runtime::OpBinding& b,
                                          const DoraProducts& products) {
  const char* gram = b.Workspace() + kernels::DoraProductBytes(products.out, products.rank).gram_at;
  return {.out = products.out,
          .in = products.in,
          .rank = products.rank,
          .transposed = b.attributes().transposed,
          .weight = b.Input<T>(0),
          .up = b.Input<T>(2),
          .products = reinterpret_cast<const float*>(b.Workspace()),
          .gram = reinterpret_cast<const float*>(gram),
          .scale = static_cast<float>(b.attributes().scale),
          .norms = b.Output<float>(0)};
}

}  // namespace milepost::ops

#endif  // MILEPOST_ENGINE_OPS_DORA_DORA_BINDING_H_
