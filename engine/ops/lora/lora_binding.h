// Internal to the room: the matrix products of its ops, one for each adapter, on columns of wider
// matrices.
#ifndef MILEPOST_ENGINE_OPS_LORA_LORA_BINDING_H_
#define MILEPOST_ENGINE_OPS_LORA_LORA_BINDING_H_

#include <cstdint>
#include <vector>

#include "engine/graph/graph.h"
#include "engine/ops/linear/linear_contract.h"

namespace milepost::ops {

struct LoraLayer {
  struct Adapter {
    graph::ValueId weight;  // kLoraBackwardWeight: its gradient
    int64_t out;            // its columns of y
    int64_t y_column;       // the first of them
    int64_t h_column;       // the first of its columns of h
  };

  LoraLayer(const graph::Graph& graph, const graph::Op& op) {
    const auto shape = [&](graph::ValueId id) -> const graph::Shape& {
      return graph.values[id].shape;
    };
    const bool gradients = op.kind == graph::OpKind::kLoraBackwardWeight;
    const size_t first = op.kind == graph::OpKind::kLora ? 2 : 1;
    rows = shape(op.inputs[0])[0];
    type = graph.values[op.inputs[0]].dtype;
    width = shape(op.inputs[gradients ? 1 : 0])[1];
    apart = op.attributes.rows_apart;
    for (int64_t i = 0; i < op.attributes.lora.adapters; ++i) {
      const graph::ValueId weight =
          gradients ? op.outputs[i].value : op.inputs[first + static_cast<size_t>(i)];
      rank = shape(weight)[1];
      adapters.push_back({weight, shape(weight)[0], op.attributes.lora.columns[i], i * rank});
    }
  }

  kernels::MatmulSpec Forward(const Adapter& adapter) const {
    return {.m = rows,
            .n = adapter.out,
            .k = rank,
            .transpose_b = true,
            .a = type,
            .b = type,
            .c = type,
            .accumulate = true,
            .a_row = Wide(rank, HWidth()),
            .c_row = Wide(adapter.out, width),
            .rows_alone = apart};
  }
  kernels::MatmulSpec InputGradient(const Adapter& adapter) const {
    return {.m = rows,
            .n = rank,
            .k = adapter.out,
            .a = type,
            .b = type,
            .c = type,
            .a_row = Wide(adapter.out, width),
            .c_row = Wide(rank, HWidth())};
  }
  kernels::MatmulSpec WeightGradient(const Adapter& adapter, bool accumulate) const {
    return {.m = adapter.out,
            .n = rank,
            .k = rows,
            .transpose_a = true,
            .a = type,
            .b = type,
            .accumulate = accumulate,
            .a_row = Wide(adapter.out, width),
            .b_row = Wide(rank, HWidth())};
  }

  // Bytes in front of a column.
  int64_t ColumnBytes(int64_t column) const { return column * ByteSize(type); }
  int64_t HWidth() const { return static_cast<int64_t>(adapters.size()) * rank; }

  int64_t rows = 0, rank = 0;
  int64_t width = 0;   // of y
  bool apart = false;  // kLora: rows are of a text each
  DType type = DType::kF32;
  std::vector<Adapter> adapters;

 private:
  // MatmulSpec's a_row and the like: 0 where the columns are all.
  static int64_t Wide(int64_t columns, int64_t all) { return columns == all ? 0 : all; }
};

// What `layer`'s op multiplies; of weight gradients both those that assign and those that add.
template <typename Layer>
auto LoraProducts(const Layer& layer, graph::OpKind kind) {
  std::vector<decltype(layer.Forward(layer.adapters[0]))> products;
  for (const LoraLayer::Adapter& adapter : layer.adapters) {
    if (kind == graph::OpKind::kLora) {
      products.push_back(layer.Forward(adapter));
    } else if (kind == graph::OpKind::kLoraBackwardInput) {
      products.push_back(layer.InputGradient(adapter));
    } else {
      products.push_back(layer.WeightGradient(adapter, false));
      products.push_back(layer.WeightGradient(adapter, true));
    }
  }
  return products;
}

}  // namespace milepost::ops

#endif  // MILEPOST_ENGINE_OPS_LORA_LORA_BINDING_H_
