#include "engine/ops/reference/reference_run.h"

namespace milepost::ops::reference {
namespace {

using graph::kNoValue;
using graph::ValueId;

// The row of a table that row r of the batch reads: where the index is not given, `fallback`.
int64_t TableRow(const Run& run, size_t index, int64_t r, int64_t fallback) {
  return run.has_input(index) ? run.integers(index)[r] : fallback;
}

// Of one rank, which has all rows.
void TokenRows(const Run& run) {
  const int64_t width = run.dim(1, 1);
  Array x;
  for (const int32_t token : run.integers(0)) {
    const auto row = run.in(1).begin() + token * width;
    x.insert(x.end(), row, row + width);
  }
  run.Write(0, x);
}

void Embedding(const Run& run) {
  const int64_t width = run.dim(1, 1);
  const int64_t rows = run.dim(0, 0);
  Array x(rows * width);
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t position = TableRow(run, 3, r, r % run.op.attributes.sequence);
    const int64_t segment = TableRow(run, 5, r, 0);
    for (int64_t c = 0; c < width; ++c) {
      double sum = run.in(1)[run.integers(0)[r] * width + c];
      if (run.has_input(2)) sum += run.in(2)[position * width + c];
      if (run.has_input(4)) sum += run.in(4)[segment * width + c];
      x[r * width + c] = sum * run.Dropout(r * width + c);
    }
  }
  run.Write(0, x);
}

void EmbeddingBackward(const Run& run) {
  const int64_t width = run.dim(1, 1);
  const int64_t rows = run.dim(0, 0);
  Array tables[3];
  for (size_t i = 0; i < 3; ++i) {
    const ValueId output = run.op.outputs[i].value;
    if (output != kNoValue) tables[i].assign(run.values[output].size(), 0.0);
  }
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t places[3] = {run.integers(0)[r],
                               TableRow(run, 2, r, r % run.op.attributes.sequence),
                               TableRow(run, 3, r, 0)};
    for (int64_t c = 0; c < width; ++c) {
      const double g = run.in(1)[r * width + c] * run.Dropout(r * width + c);
      for (size_t i = 0; i < 3; ++i) {
        if (!tables[i].empty()) tables[i][places[i] * width + c] += g;
      }
    }
  }
  for (size_t i = 0; i < 3; ++i) run.Write(i, tables[i]);
}

}  // namespace

constinit const Rule kTokenRows = TokenRows;
constinit const Rule kEmbedding = Embedding;
constinit const Rule kEmbeddingBackward = EmbeddingBackward;

}  // namespace milepost::ops::reference
