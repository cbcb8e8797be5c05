// The CPU has no 8-bit products: codes are widened to bf16, in which they are exact, and multiplied
// with fp32 sums, so that what a GPU computes differs by the order of sums alone.
//
// A product's workspace holds both operands in bf16, the bias gradients' sums and the products' own
// scratch.
#include "engine/ops/linear/linear_fp8_cpu.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "common/status_macros.h"
#include "engine/kernels/cpu/matmul.h"
#include "engine/ops/fp8/fp8_cpu_kernel.h"
#include "engine/runtime/cpu/cpu_bias_gradients.h"
#include "engine/runtime/cpu/cpu_op.h"
#include "engine/runtime/cpu/fp8_layer.h"

namespace milepost::ops::cpu {
namespace {

using graph::OpKind;
using graph::ValueId;
using kernels::MatmulSpec;
using runtime::BiasColumns;
using runtime::BiasesOf;
using runtime::BiasGradients;
using runtime::Binding;
using runtime::BoundOp;
using runtime::Fp8BiasColumns;
using runtime::Fp8Product;
using runtime::Fp8Products;
using runtime::StepContext;

MatmulSpec Widened(MatmulSpec spec) {
  spec.a = spec.b = DType::kBf16;
  return spec;
}

int64_t CodesOf(const plan::Program& program, const graph::Op& op, int input) {
  return graph::Elements(program.graph.values[op.inputs[input]].shape);
}

int64_t WideBytes(const plan::Program& program, const graph::Op& op, int input) {
  return LineAligned(CodesOf(program, op, input) * static_cast<int64_t>(sizeof(bf16)));
}

// An operand, and where it is widened to.
struct Operand {
  Operand(const Binding& b, int input, char* to)
      : codes(b.Input<uint8_t>(input)),
        count(CodesOf(b.program, b.planned.op, input)),
        is_e5m2(b.ValueOf(b.planned.op.inputs[input]).dtype == DType::kE5M2),
        record(b.Input<float>(2 + input)),
        wide(reinterpret_cast<bf16*>(to)) {}

  void Widen() const {
    if (is_e5m2) {
      kernels::Dequantize(reinterpret_cast<const e5m2*>(codes), count, record, wide);
    } else {
      kernels::Dequantize(reinterpret_cast<const e4m3*>(codes), count, record, wide);
    }
  }

  const uint8_t* codes;
  int64_t count;
  bool is_e5m2;
  const float* record;
  bf16* wide;
};

struct Product {
  MatmulSpec spec, accumulating;
  const bf16* a;
  const bf16* b;
  const char* bias;
  char* c;
};

// What an op's three kinds share: both operands and the products of them.
struct Products {
  absl::Status Run(bool accumulate) const {
    for (const Operand& operand : operands) operand.Widen();
    for (const Product& p : products) {
      MP_RETURN_IF_ERROR(
          matmuls->Execute(accumulate ? p.accumulating : p.spec, p.a, p.b, p.bias, p.c, scratch));
    }
    return absl::OkStatus();
  }

  kernels::MatmulCache* matmuls;
  std::vector<Operand> operands;
  std::vector<Product> products;
  char* scratch;
};

absl::StatusOr<Products> ProductsOf(const Binding& b) {
  const graph::Op& op = b.planned.op;
  const int64_t fixed = b.BytesBeforeScratch();
  int64_t most = 0;
  for (const MatmulSpec& spec : Fp8MatmulSpecs(b.program, op)) {
    MP_ASSIGN_OR_RETURN(const size_t bytes, b.matmuls.WorkspaceBytes(spec));
    most = std::max(most, static_cast<int64_t>(bytes));
  }
  MP_RETURN_IF_ERROR(b.RequireWorkspace(fixed + most));
  Products made = {.matmuls = &b.matmuls,
                   .operands = {Operand(b, 0, b.Workspace()),
                                Operand(b, 1, b.Workspace() + WideBytes(b.program, op, 0))},
                   .products = {},
                   .scratch = b.Workspace() + fixed};
  for (const Fp8Product& p : Fp8Products(b.program, op)) {
    Product& product = made.products.emplace_back(
        Product{.spec = Widened(p.spec),
                .accumulating = Widened(p.spec),
                .a = made.operands[p.a].wide + p.a_byte,  // a byte a code
                .b = made.operands[p.b].wide + p.b_byte,
                .bias = b.ValueAt(p.bias),
                .c = b.ValueAt(p.c) + p.c_byte});
    product.accumulating.accumulate = true;
  }
  return made;
}

}  // namespace

std::vector<MatmulSpec> Fp8MatmulSpecs(const plan::Program& program, const graph::Op& op) {
  std::vector<MatmulSpec> specs;
  for (const Fp8Product& product : Fp8Products(program, op)) {
    specs.push_back(Widened(product.spec));
    if (op.kind != OpKind::kLinearBackwardWeight) continue;
    specs.push_back(specs.back());
    specs.back().accumulate = true;
  }
  return specs;
}

absl::StatusOr<BoundOp> BindFp8Linear(const Binding& b) {
  MP_ASSIGN_OR_RETURN(Products products, ProductsOf(b));
  return [products = std::move(products)](const StepContext&) { return products.Run(false); };
}

absl::StatusOr<BoundOp> BindFp8BackwardInput(const Binding& b) {
  MP_ASSIGN_OR_RETURN(Products products, ProductsOf(b));
  return [products = std::move(products), dsum = b.Input<char>(4), dx = b.Output<char>(0),
          bytes = graph::Elements(b.OutputShape(0)) *
                  static_cast<int64_t>(sizeof(bf16))](const StepContext&) {
    if (dsum != nullptr && dsum != dx) std::memcpy(dx, dsum, bytes);
    return products.Run(false);
  };
}

absl::StatusOr<BoundOp> BindFp8BackwardWeight(const Binding& b) {
  MP_ASSIGN_OR_RETURN(Products products, ProductsOf(b));
  const graph::Op& op = b.planned.op;
  std::vector<ValueId> gradients;
  for (const BiasColumns& bias : Fp8BiasColumns(b.program, op)) gradients.push_back(bias.gradient);
  BiasGradients<bf16> biases = {};
  if (!gradients.empty()) {
    const graph::Shape& dy = b.InputShape(4);
    char* sums = b.Workspace() + WideBytes(b.program, op, 0) + WideBytes(b.program, op, 1);
    const auto before = kernels::BiasGradientWorkspaceBytes(dy[0], dy[1]);
    biases = {.dy = b.Input<bf16>(4),
              .rows = dy[0],
              .width = dy[1],
              .biases = BiasesOf(b, gradients),
              .workspace = sums,
              .sums = reinterpret_cast<float*>(sums + LineAligned(before))};
  }
  return [products = std::move(products), biases = std::move(biases),
          accumulation = b.OutputAccumulation(0)](const StepContext& context) {
    biases.Run(accumulation.At(context));
    return products.Run(accumulation.At(context));
  };
}

}  // namespace milepost::ops::cpu
