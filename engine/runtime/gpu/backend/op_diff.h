// What one op has made on a device beside what it has made on the CPU from the same bytes, and how
// far apart the two may be. Pure; the bytes come from DiffEngine (diff_engine.h).
//
//   const DiffBounds bounds = BoundsOf(op, DType::kBf16, DType::kF32, elements, false);
//   const TensorDiff diff = Compare(DType::kF32, cpu, device, elements, {.bounds = bounds});
//   if (diff.error > bounds.error || diff.outlier > 1) ...
#ifndef MILEPOST_ENGINE_RUNTIME_GPU_BACKEND_OP_DIFF_H_
#define MILEPOST_ENGINE_RUNTIME_GPU_BACKEND_OP_DIFF_H_

#include <cstdint>
#include <string>
#include <vector>

#include "engine/graph/graph.h"

namespace milepost::runtime {

// Of a tensor's elements that are numbers.
struct Statistics {
  double least = 0;
  double most = 0;
  double mean = 0;
  double rms = 0;
  int64_t not_numbers = 0;  // NaN or infinite: in none of the above
};
Statistics StatisticsOf(DType dtype, const void* data, int64_t elements);

struct TensorDiff {
  double error = 0;  // ||device - cpu|| / ||cpu||; infinite where one has a number and one has none
  double outlier = 0;  // the largest of the elements' own errors, each by what one may have: above
                       // 1 one is wrong, however many are right
  int64_t worst = 0;   // that element
  double cpu = 0;      // its values
  double device = 0;
};

// How far apart results may be.
struct DiffBounds {
  double error = 0;   // of all elements
  double of_rms = 0;  // one element: by as much as this part of the tensor's rms,
  double of_own = 0;  // and this part of its own value
};

struct DiffOptions {
  DiffBounds bounds;
  // What `error` is divided by is at least this. For sums that cancel: a gradient that is zero but
  // for rounding differs by as much as its terms round.
  double least_norm = 0;
  // What was there before, where an update changes it: errors are then of the change.
  const void* before = nullptr;
};
TensorDiff Compare(DType dtype, const void* cpu, const void* device, int64_t elements,
                   const DiffOptions& options);
double Norm(DType dtype, const void* data, int64_t elements);

// What the order of sums and one rounding explain: of a result of `elements` of `dtype`, in a plan
// that computes in `compute_dtype`. `changed`: it is compared by its change.
DiffBounds BoundsOf(const graph::Op& op, DType compute_dtype, DType dtype, int64_t elements,
                    bool changed);

struct OpDiff {
  struct Tensor {
    std::string name;  // "h.0.attn.qkv", "m of h.0"
    DType dtype = DType::kF32;
    graph::Shape shape;
  };
  struct Operand {
    Tensor tensor;
    Statistics statistics;
  };
  struct Result {
    Tensor tensor;
    TensorDiff diff;
    DiffBounds bounds;
    bool Differs() const { return !(diff.error <= bounds.error && diff.outlier <= 1); }
  };

  int64_t step = 0;
  int64_t micro_step = 0;
  int64_t index = 0;  // in the program
  graph::OpKind kind{};
  graph::Phase phase{};
  std::vector<Operand> operands;
  std::vector<Result> results;

  bool Differs() const;
};

// One line: "  17  Linear  forward  h.0.mlp.c_fc.out  error 2.1e-03  bound 1.5e-03  DIFFERS", of
// the result that is nearest to its bound or furthest beyond it.
std::string Line(const OpDiff& op);
// Several: every operand with its shape and statistics, every result with its worst element.
std::string Describe(const OpDiff& op);

}  // namespace milepost::runtime

#endif  // MILEPOST_ENGINE_RUNTIME_GPU_BACKEND_OP_DIFF_H_
