#include "engine/ops/reference/reference_run.h"

namespace milepost::ops::reference {
namespace {

// `count` columns of rows `width` wide.
Array Columns(const Array& from, int64_t width, int64_t first, int64_t count) {
  Array columns;
  for (auto row = from.begin(); row != from.end(); row += width) {
    columns.insert(columns.end(), row + first, row + first + count);
  }
  return columns;
}

void PutColumns(const Array& columns, int64_t count, int64_t width, int64_t first, bool add,
                Array& to) {
  for (size_t i = 0; i < columns.size(); ++i) {
    double& at = to[i / count * width + first + i % count];
    at = columns[i] + (add ? at : 0);
  }
}

void Lora(const Run& run) {
  Array y = run.in(0);
  const int64_t rows = run.dim(0, 0), width = run.dim(0, 1), rank = run.dim(2, 1);
  for (int64_t i = 0; i < run.op.attributes.lora.adapters; ++i) {
    const size_t weight = 2 + static_cast<size_t>(i);
    const Array h = Columns(run.in(1), run.dim(1, 1), i * rank, rank);
    const Array more = MatMul(h, false, run.in(weight), true, rows, run.dim(weight, 0), rank);
    PutColumns(more, run.dim(weight, 0), width, run.op.attributes.lora.columns[i], true, y);
  }
  run.Write(0, y);
}

void LoraBackwardInput(const Run& run) {
  const int64_t rows = run.dim(0, 0), width = run.dim(0, 1), rank = run.dim(1, 1);
  const int64_t adapters = run.op.attributes.lora.adapters;
  Array dh(static_cast<size_t>(rows * adapters * rank));
  for (int64_t i = 0; i < adapters; ++i) {
    const size_t weight = 1 + static_cast<size_t>(i);
    const int64_t out = run.dim(weight, 0);
    const Array dy = Columns(run.in(0), width, run.op.attributes.lora.columns[i], out);
    const Array part = MatMul(dy, false, run.in(weight), false, rows, rank, out);
    PutColumns(part, rank, adapters * rank, i * rank, false, dh);
  }
  run.Write(0, dh);
}

void LoraBackwardWeight(const Run& run) {
  const int64_t rows = run.dim(0, 0), width = run.dim(1, 1);
  const int64_t adapters = run.op.attributes.lora.adapters, rank = run.dim(0, 1) / adapters;
  for (int64_t i = 0; i < adapters; ++i) {
    const int64_t out = run.out_shape(static_cast<size_t>(i))[0];
    const Array dy = Columns(run.in(1), width, run.op.attributes.lora.columns[i], out);
    const Array h = Columns(run.in(0), adapters * rank, i * rank, rank);
    run.Write(static_cast<size_t>(i), MatMul(dy, true, h, false, out, rank, rows));
  }
}

}  // namespace

constinit const Rule kLora = Lora;
constinit const Rule kLoraBackwardInput = LoraBackwardInput;
constinit const Rule kLoraBackwardWeight = LoraBackwardWeight;

}  // namespace milepost::ops::reference
