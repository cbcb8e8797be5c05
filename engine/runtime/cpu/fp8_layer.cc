#include "engine/runtime/cpu/fp8_layer.h"

#include <algorithm>

namespace milepost::runtime {
namespace {

using graph::OpKind;
using graph::ValueId;
using kernels::MatmulSpec;

class Maker {
 public:
  Maker(const plan::Program& program, const graph::Op& op) : program_(program), op_(op) {}

  std::vector<Fp8Product> Make() && {
    switch (op_.kind) {
      case OpKind::kLinear:
        Forward();
        break;
      case OpKind::kLinearBackwardInput:
        products_.push_back({.spec = Spec(0, 1, Shape(1)[0]), .c = op_.outputs[0].value});
        products_[0].spec.accumulate = op_.inputs.size() > 4;
        break;
      default:
        WeightGradients();
    }
    return std::move(products_);
  }

 private:
  const graph::Value& ValueOf(ValueId id) const { return program_.graph.values[id]; }
  const graph::Shape& Shape(int input) const { return ValueOf(op_.inputs[input]).shape; }

  // All of the rows of input a, so many of input b.
  MatmulSpec Spec(int a, int b, int64_t columns) const {
    return {.m = Shape(a)[0],
            .n = columns,
            .k = Shape(a)[1],
            .transpose_b = true,
            .a = ValueOf(op_.inputs[a]).dtype,
            .b = ValueOf(op_.inputs[b]).dtype,
            .c = ValueOf(op_.outputs[0].value).dtype};
  }

  bool Follows(ValueId before, ValueId id) const {
    const plan::Place& a = program_.places[before];
    const plan::Place& b = program_.places[id];
    return a.buffer == b.buffer && a.offset + Bytes(before) == b.offset;
  }
  int64_t Bytes(ValueId id) const {
    return graph::Elements(ValueOf(id).shape) * ByteSize(ValueOf(id).dtype);
  }

  // A product for each run of biases, on columns of y.
  void Forward() {
    const ValueId y = op_.outputs[0].value;
    const int64_t width = ValueOf(y).shape[1];
    int64_t column = 0;
    for (size_t i = 4; i < op_.inputs.size(); ++i) {
      const ValueId bias = op_.inputs[i];
      const int64_t columns = ValueOf(bias).shape[0];
      if (i > 4 && Follows(op_.inputs[i - 1], bias)) {
        products_.back().spec.n += columns;
      } else {
        AddColumns(column, columns, bias);
      }
      column += columns;
    }
    if (products_.empty()) AddColumns(0, width, graph::kNoValue);
    for (Fp8Product& product : products_) {
      if (product.spec.n < width) product.spec.c_row = width;
    }
  }

  void AddColumns(int64_t column, int64_t columns, ValueId bias) {
    Fp8Product product = {.spec = Spec(0, 1, columns),
                          .b_byte = column * Shape(1)[1],
                          .c = op_.outputs[0].value,
                          .c_byte = column * ByteSize(ValueOf(op_.outputs[0].value).dtype),
                          .bias = bias};
    product.spec.bias = bias != graph::kNoValue;
    product.spec.bias_type = product.spec.c;
    products_.push_back(product);
  }

  // x' dy of the codes turned; where weights are [M,K], dy' x, a product for each run of them.
  void WeightGradients() {
    if (!op_.attributes.transposed) {
      products_.push_back({.spec = Spec(0, 1, Shape(1)[0]), .c = op_.outputs[0].value});
      return;
    }
    int64_t row = 0;
    for (size_t i = 0; i < static_cast<size_t>(op_.attributes.parts); ++i) {
      const ValueId gradient = op_.outputs[i].value;
      const int64_t rows = ValueOf(gradient).shape[0];
      if (i > 0 && Follows(op_.outputs[i - 1].value, gradient)) {
        products_.back().spec.m += rows;
      } else {
        Fp8Product product = {.spec = Spec(1, 0, Shape(0)[0]),
                              .a = 1,
                              .b = 0,
                              .a_byte = row * Shape(1)[1],
                              .c = gradient};
        product.spec.m = rows;
        products_.push_back(product);
      }
      row += rows;
    }
  }

  const plan::Program& program_;
  const graph::Op& op_;
  std::vector<Fp8Product> products_;
};

}  // namespace

std::vector<Fp8Product> Fp8Products(const plan::Program& program, const graph::Op& op) {
  return Maker(program, op).Make();
}

std::vector<BiasColumns> Fp8BiasColumns(const plan::Program& program, const graph::Op& op) {
  std::vector<BiasColumns> biases;
  int64_t column = 0;
  for (size_t i = static_cast<size_t>(op.attributes.parts); i < op.outputs.size(); ++i) {
    const ValueId gradient = op.outputs[i].value;
    const int64_t columns = program.graph.values[gradient].shape[0];
    biases.push_back({gradient, column, columns});
    column += columns;
  }
  return biases;
}

kernels::Stacked StackedOf(const OpBinding& b) {
  kernels::Stacked stacked = {.columns = b.InputShape(0)[1]};
  for (int i = 0; i < b.attributes().parts; ++i) {
    stacked.parts[i] = b.Input<bf16>(i);
    stacked.first_row[i] = stacked.rows;
    stacked.rows += b.InputShape(i)[0];
  }
  std::fill(stacked.first_row + b.attributes().parts, stacked.first_row + kernels::kMostStacked,
            stacked.rows);
  return stacked;
}

bool QuantizesToE5M2(const OpBinding& b) {
  const ValueId codes = b.OutputId(b.OutputId(0) != graph::kNoValue ? 0 : 1);
  return b.ValueOf(codes).dtype == DType::kE5M2;
}

}  // namespace milepost::runtime
