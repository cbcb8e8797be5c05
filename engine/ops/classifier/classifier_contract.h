// The workspaces of softmax and cross-entropy over rows of logits: a loss for each row. And what
// ranks that divide the columns of logits tell each other of a row.
#ifndef MILEPOST_ENGINE_OPS_CLASSIFIER_CLASSIFIER_CONTRACT_H_
#define MILEPOST_ENGINE_OPS_CLASSIFIER_CLASSIFIER_CONTRACT_H_

#include <cstdint>

namespace milepost::kernels {

// On the CPU, 64-byte aligned: the loss, and whether the row is right.
inline int64_t ClassifierWorkspaceBytes(int64_t rows) {
  return rows * static_cast<int64_t>(sizeof(double) + sizeof(uint8_t));
}

// What a rank knows of a row from its own columns.
struct LogitsPart {
  float max = 0;     // of its logits; -inf: it has none
  float sum = 0;     // of e^(logit - max)
  float target = 0;  // the target's logit, where that is its own
  float first = 0;   // 1: that is the first of its largest ones
};
inline constexpr int64_t kLogitsPartFloats = sizeof(LogitsPart) / sizeof(float);

// A rank's columns, of all ranks': [first, first + each), of which the first `count` are classes.
// Those behind them have no logits, and gradients of 0.
struct LogitsColumns {
  int64_t first = 0;
  int64_t each = 0;
  int64_t count = 0;
  int64_t stride = 0;  // elements from row to row
};

// Rows of logits: their targets, -1: none; and their numbers among all rows, null: from `begin` on.
struct LogitsRows {
  const int32_t* targets = nullptr;
  int64_t count = 0;
  const int32_t* numbers = nullptr;
  int64_t begin = 0;
};

// What all ranks know of all rows: row r's of rank t at parts[t * rows + r].
struct GatheredParts {
  const LogitsPart* parts = nullptr;
  int64_t ranks = 0;
  int64_t rows = 0;
  int64_t each = 0;  // LogitsColumns::each
};

// ---- on a GPU ----
namespace cuda {

// Of a row.
struct RowLoss {
  double loss = 0;
  float target = 0;  // 1: has one
  float correct = 0;
};

inline int64_t ClassifierWorkspaceBytes(int64_t rows) {
  return rows * static_cast<int64_t>(sizeof(RowLoss));
}

}  // namespace cuda

}  // namespace milepost::kernels

#endif  // MILEPOST_ENGINE_OPS_CLASSIFIER_CLASSIFIER_CONTRACT_H_
